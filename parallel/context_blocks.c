/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/context_blocks.h"

#include <stdlib.h>

#include "dynamo_rt/base/status.h"

typedef struct dealt_block {
  double area;
  int32_t block;
} dealt_block;

typedef struct dealt_rank {
  double area;
  int64_t blocks;
} dealt_rank;

size_t fx_context_deal_scratch(int32_t blocks, int ranks) {
  return (size_t)blocks * (sizeof(dealt_block) + sizeof(int32_t)) + (size_t)ranks * sizeof(dealt_rank);
}

static int largest_first(const void *x, const void *y) {
  const dealt_block *a = x, *b = y;
  if (a->area != b->area) return a->area > b->area ? -1 : 1;
  return a->block < b->block ? -1 : a->block > b->block;
}

static void deal_to_and_fro(int32_t blocks, int ranks, int32_t *owner) {
  for (int32_t b = 0; b < blocks; b++) owner[b] = b / ranks % 2 ? ranks - 1 - b % ranks : b % ranks;
}

static void deal_by_area(const double *area, int32_t blocks, int ranks, dealt_block *sorted, dealt_rank *rank,
                         int32_t *owner) {
  for (int32_t b = 0; b < blocks; b++) sorted[b] = (dealt_block){area[b], b};
  for (int r = 0; r < ranks; r++) rank[r] = (dealt_rank){0, 0};
  qsort(sorted, (size_t)blocks, sizeof *sorted, largest_first);
  for (int32_t i = 0; i < blocks; i++) {
    int best = -1;
    for (int r = 0; r < ranks; r++)
      if (rank[r].blocks < blocks / ranks && (best < 0 || rank[r].area < rank[best].area)) best = r;
    rank[best].area += sorted[i].area;
    rank[best].blocks++;
    owner[sorted[i].block] = best;
  }
}

static void order_by_owner(const int32_t *owner, int32_t blocks, int ranks, int32_t *order) {
  int32_t at = 0;
  for (int r = 0; r < ranks; r++)
    for (int32_t b = 0; b < blocks; b++)
      if (owner[b] == r) order[at++] = b;
}

static double largest_share(const double *area, const int32_t *owner, int32_t blocks, dealt_rank *rank,
                            int ranks) {
  double largest = 0;
  for (int r = 0; r < ranks; r++) rank[r].area = 0;
  for (int32_t b = 0; b < blocks; b++) rank[owner[b]].area += area[b];
  for (int r = 0; r < ranks; r++) largest = rank[r].area > largest ? rank[r].area : largest;
  return largest;
}

void fx_context_deal(const double *area, int32_t blocks, int ranks, int32_t *order, void *scratch) {
  FX_ASSERT(ranks > 0 && blocks % ranks == 0);
  dealt_block *sorted = scratch;
  dealt_rank *rank = (dealt_rank *)(void *)(sorted + blocks);
  int32_t *owner = (int32_t *)(void *)(rank + ranks);
  deal_to_and_fro(blocks, ranks, owner);
  double even = largest_share(area, owner, blocks, rank, ranks);
  deal_by_area(area, blocks, ranks, sorted, rank, owner);
  if (largest_share(area, owner, blocks, rank, ranks) >= even) deal_to_and_fro(blocks, ranks, owner);
  order_by_owner(owner, blocks, ranks, order);
}

double fx_context_share(const double *area, int32_t blocks, int ranks, const int32_t *order, int rank) {
  double share = 0;
  for (int32_t i = rank * (blocks / ranks); i < (rank + 1) * (blocks / ranks); i++) share += area[order[i]];
  return share;
}
