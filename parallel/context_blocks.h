/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of a context-parallel group computes which blocks of queries, and whose keys must travel for it.
 *
 * A sequence is cut into blocks of 128 positions; every rank takes equally many. Their work differs with what
 * the mask lets them see, and where a mask is sparse (documents, windows) a block's keys travel only if a
 * query of another rank sees them. Blocks are dealt so that neither is much. Pure arithmetic on what every
 * rank knows, exact where areas and cost are whole numbers: all ranks arrive at the same assignment without a
 * message. */
#ifndef FX_PARALLEL_CONTEXT_BLOCKS_H
#define FX_PARALLEL_CONTEXT_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a ring makes room for: at most `blocks` blocks of each rank travel, to the next `hops` ranks. */
typedef struct fx_ring_room {
  int32_t blocks, hops;
} fx_ring_room;

/* The room with the least to pass on, of `count` of which the first holds everything, that holds `need`. */
int32_t fx_ring_room_for(const fx_ring_room *rooms, int32_t count, fx_ring_room need);

/* blocks is a multiple of ranks. area[blocks]: visible pairs of each block's queries, not negative.
 * [first[b], last[b]): blocks of keys around all that queries of block b see, within [0, blocks); empty where
 * they see nothing. block_cost: what it costs that a block of every rank goes on to the next, in the unit of
 * area; 0 where nothing is saved by keeping it. rooms: what of a ring can be run, the first of all; no rooms:
 * anything. order[blocks]: block numbers, rank by rank, ascending within a rank; ranks in the order in which
 * what they share with others begins. scratch: fx_context_deal_scratch bytes, 8-byte aligned.
 *
 * The least of (largest share of area + block_cost * blocks * hops of the room for what travels) over several
 * ways, the first where they are equal:
 *   to and fro     0 1 .. n-1 n-1 .. 1 0, which is even for a causal mask;
 *   segments       of 1, 2, 4, .. neighbouring blocks while every rank gets equally many, the largest first
 * to the rank with the least area that has room (Graham, "Bounds on multiprocessing timing anomalies", 1969,
 * with equal counts); whole pieces   the sequence cut where at most one block is seen across (ends of
 * documents), pieces too large for one rank cut into strips of several lengths, dealt like segments by their
 * area and what of them would travel. Takes O((blocks * ranks + blocks log blocks) * log blocks). */
void fx_context_deal(const double *area, const int32_t *first, const int32_t *last, int32_t blocks, int ranks,
                     double block_cost, const fx_ring_room *rooms, int32_t num_rooms, int32_t *order,
                     void *scratch);
size_t fx_context_deal_scratch(int32_t blocks, int ranks);

/* hops[blocks], by block number: how many ranks on in the ring the farthest is whose queries' [first, last)
 * hold the block; 0 where only its own rank's do, or none's. The rest as above. O(blocks * ranks). */
void fx_context_hops(const int32_t *first, const int32_t *last, int32_t blocks, int ranks,
                     const int32_t *order, int32_t *hops, void *scratch);

/* Area of rank `rank` under an order. */
double fx_context_share(const double *area, int32_t blocks, int ranks, const int32_t *order, int rank);

#ifdef __cplusplus
}
#endif
#endif
