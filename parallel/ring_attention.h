/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a sequence that several ranks share: every rank holds the queries, keys and values of some
 * blocks of 128 positions, and sees the keys of all. One interface, several ways to exchange keys:
 *
 *   allgather  K and V of all ranks are gathered, attention runs once over all keys; the backward gathers
 *              again and reduce-scatters fp32 dK and dV. One exchange, nothing to overlap it with; memory for
 *              the keys of the whole sequence while a layer runs.
 *   ring       K and V of one rank at a time: each chunk goes on to the next rank while attention over it
 *              runs (Liu et al., "Ring Attention with Blockwise Transformers", arXiv:2310.01889). Partial
 *              outputs are merged in fp32. In the backward K and V go round again and their fp32 gradients
 *              with them: every other rank adds its part, then they come home. Of a sparse mask only those
 *              blocks travel that queries of another rank may see, and only as far as such a rank: which ones
 *              is data, how many at most and how far is recorded.
 *   alltoall   rows of all heads are exchanged for all rows of some heads (alltoall_attention.h). The least
 *              travels, but the ranks must divide the heads, rank r has the r-th share of the sequence, and
 *              nothing overlaps.
 *
 * Which rank holds which blocks is data (`blocks`), so a new assignment records nothing. Positions stay
 * global: limits and expressions mean what they mean on one rank. Every rank takes part in every hop, also
 * where the mask lets it see nothing of a chunk; its lists are then empty and the kernels do nothing.
 *
 * Must not know: models, configurations. */
#ifndef FX_PARALLEL_RING_ATTENTION_H
#define FX_PARALLEL_RING_ATTENTION_H

#include "attention/flex_attention.h"
#include "parallel/context_blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_context_exchange {
  FX_CONTEXT_ALLGATHER,
  FX_CONTEXT_RING,
  FX_CONTEXT_ALLTOALL
} fx_context_exchange;

const char *fx_context_exchange_name(fx_context_exchange exchange);

/* Rows that limits and run lists are for: a rank's own, or with alltoall all. */
int32_t fx_context_rows(fx_context_exchange exchange, int ranks, int32_t T_local);

/* Keys a run list covers, and how many lists `runs` and `runs_backward` hold one behind the other: one of all
 * keys, rank by rank, or one a rank's chunk, in rank order. T_local: positions of one rank. */
int32_t fx_context_keys(fx_context_exchange exchange, int ranks, int32_t T_local);
int32_t fx_context_lists(fx_context_exchange exchange, int ranks);

/* Who has which keys, and which of them travel in a ring.
 * all: int32 [size * N], N = T_local / 128: global position of every block of 128, rank by rank, ascending
 * within a rank, the same on every rank. index: int32 of N elements, numbers of this rank's travelling blocks
 * among its own, behind them negative ones; base: int32 [size * N], global positions of every rank's
 * travelling blocks, in their order; FX_NONE both: everything travels to every rank. room: with an index, for
 * what travels; with no hops the ring does not turn. */
typedef struct fx_context_blocks {
  fx_value all, index, base;
  fx_ring_room room;
} fx_context_blocks;

/* As fx_flex_attention with these differences. q, k, v [B, T_local, heads, D] are this rank's rows, T_local a
 * multiple of 128. blocks stand for q_base and kv_base, which are not read. Limits are those of this rank's
 * rows. Run lists are for fx_context_keys keys, fx_context_lists of them, each padded to the same number of
 * words; with an index those of other ranks are for their travelling blocks. Sinks and tables are whole on
 * every rank and so are used once a row: their gradients are this rank's rows' share, to be summed over the
 * ranks like those of any parameter. Exchanges run on `lane`. Collective over comm. *lse (may be NULL):
 * [B, H, T_local], of this rank's rows, differentiable; alltoall exchanges it only where it is asked for. */
fx_value fx_context_attention(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_context_exchange exchange,
                              fx_value q, fx_value k, fx_value v, const fx_context_blocks *blocks,
                              const fx_attention_inputs *inputs, fx_attention_attr attr, fx_value *lse);

/* Blocks of rank `rank` as q_base or kv_base: int32 [1, T_local / 128]. */
fx_value fx_context_blocks_of(fx_graph *graph, fx_value blocks, int rank, int ranks);

#ifdef __cplusplus
}
#endif
#endif
