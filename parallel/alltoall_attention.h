/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a sequence that several ranks share, by heads (DeepSpeed Ulysses, Jacobs et al.,
 * arXiv:2309.14509): every rank gives each of the others some heads of its rows, attends with its own heads
 * over the whole sequence, and gets its rows back. Private to parallel/; fx_context_attention chooses it. */
#ifndef FX_PARALLEL_ALLTOALL_ATTENTION_H
#define FX_PARALLEL_ALLTOALL_ATTENTION_H

#include "parallel/ring_attention.h"

enum { FX_ALLTOALL_RANKS = 16 }; /* at most */

/* Whether `ranks` ranks can divide H query heads and K key heads between them. */
static inline bool fx_alltoall_divides(int64_t ranks, int64_t H, int64_t K) {
  return ranks <= FX_ALLTOALL_RANKS && H % ranks == 0 && K % ranks == 0;
}

/* As fx_context_attention. Rank r's rows are positions [r T_local, (r + 1) T_local); the ranks divide both
 * numbers of heads. Limits and run lists are those of all rows and keys, in order. */
fx_value fx_alltoall_attention(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value q, fx_value k,
                               fx_value v, const fx_attention_inputs *inputs, fx_attention_attr attr,
                               fx_value *lse);

/* [a * b, ...] seen as [a, b, rest], its first two dimensions exchanged: b * a times `rest` elements, under
 * whatever shape; x itself where one of them is 1. */
fx_value fx_exchange_dims(fx_graph *graph, fx_value x, int64_t a, int64_t b);

#endif
