/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding table and the language-model head split by rows over the tensor-parallel ranks (Shoeybi et
 * al., arXiv:1909.08053, section 3): rank r of n holds ids [r V / n, (r + 1) V / n) of a vocabulary padded to
 * V. Float32, on CPUs. */
#ifndef FX_PARALLEL_VOCAB_PARALLEL_H
#define FX_PARALLEL_VOCAB_PARALLEL_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_vocab_attr {
  int64_t first; /* id of this rank's first row */
  int64_t valid; /* ids of the whole vocabulary; rows from there on are padding and masked */
} fx_vocab_attr;

/* ids [B, T] int32 in [0, valid), table [V / n, E] -> [B, T, E] with rows of zeros where another rank holds
 * the id: the sum over ranks is the embedding. An id out of range fails the step with FX_ERR_DATA. */
fx_value fx_vocab_embedding(fx_graph *graph, fx_value ids, fx_value table, fx_vocab_attr attr);

/* fx_head_ce over all ranks of comm: x [R, E] or [B, T, E], the same everywhere, weight [V / n, E], targets
 * [B, T] int32 (negative: masked), factor [1] -> nll [B, T] and loss [1] = factor * sum(nll), the same
 * everywhere; NULL nll: not wanted. Logits are never gathered: of each row three numbers travel, the maximum
 * of a rank's logits, the sum of their exponentials and the target's logit. Rows go in chunks, as there. The
 * gradient of x is this rank's summand, to be added up by what made x (fx_tensor_enter). */
fx_value fx_vocab_head_ce(fx_graph *graph, fx_comm *comm, fx_value x, fx_value weight, fx_value targets,
                          fx_value factor, fx_vocab_attr attr, fx_value *nll);

#ifdef __cplusplus
}
#endif
#endif
