/* SPDX-License-Identifier: Apache-2.0 */
/* The language-model head split by rows over the tensor-parallel ranks (Shoeybi et al., arXiv:1909.08053,
 * section 3), as the embedding table is (fx_vocab_embedding, then fx_tensor_leave): rank r of n holds ids
 * [r V / n, (r + 1) V / n) of a vocabulary padded to V. */
#ifndef FX_PARALLEL_VOCAB_PARALLEL_H
#define FX_PARALLEL_VOCAB_PARALLEL_H

#include "dynamo_rt/ops/vocab_shard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* fx_head_ce over all ranks of comm: x [R, E] or [B, T, E] and weight [V / n, E] of one type T (F32 or BF16),
 * x the same everywhere, targets [B, T] int32 (negative: masked), factor [1] -> nll [B, T] and loss [1] =
 * factor * sum(nll), both F32 and the same everywhere; NULL nll: not wanted. Logits are never gathered: of
 * each row three numbers travel (fx_vocab_row_numbers). Rows go in chunks, as on one rank of `backend`. The
 * gradient of x is this rank's summand, to be added up by what made x (fx_tensor_enter). */
fx_value fx_vocab_head_ce(fx_graph *graph, fx_comm *comm, fx_backend backend, fx_value x, fx_value weight,
                          fx_value targets, fx_value factor, fx_vocab_attr attr, fx_value *nll);

#ifdef __cplusplus
}
#endif
#endif
