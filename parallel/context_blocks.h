/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of a context-parallel group computes which blocks of queries.
 *
 * A sequence is cut into blocks of 128 positions; every rank takes equally many. Their work differs with what
 * the mask lets them see, so blocks are dealt by area. Pure arithmetic on what every rank knows: all ranks
 * arrive at the same assignment without a message. */
#ifndef FX_PARALLEL_CONTEXT_BLOCKS_H
#define FX_PARALLEL_CONTEXT_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* blocks is a multiple of ranks. area[blocks]: visible pairs of each block's queries, not negative.
 * order[blocks]: block numbers, rank by rank, ascending within a rank. scratch: fx_context_deal_scratch
 * bytes, 8-byte aligned. The better of two ways, the first where both are as good: to and fro (0 1 .. n-1 n-1
 * .. 1 0), which is even for a causal mask, and the largest block first to the rank with the least area that
 * has room (Graham, "Bounds on multiprocessing timing anomalies", 1969, with equal counts). */
void fx_context_deal(const double *area, int32_t blocks, int ranks, int32_t *order, void *scratch);
size_t fx_context_deal_scratch(int32_t blocks, int ranks);

/* Area of rank `rank` under an order. */
double fx_context_share(const double *area, int32_t blocks, int ranks, const int32_t *order, int rank);

#ifdef __cplusplus
}
#endif
#endif
