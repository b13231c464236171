/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/context_blocks.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/status.h"

/* Neighbouring blocks [begin, end) that go to one rank while it has room. */
typedef struct piece {
  double weight; /* area and the cost of what travels */
  int32_t begin, end;
  int32_t travel; /* blocks of it that are thought to travel */
} piece;

typedef struct dealt_rank {
  double weight;
  int32_t room, travel;
  int32_t rank, first; /* place in the ring and what it follows from */
} dealt_rank;

typedef struct dealer {
  const double *area;
  const int32_t *first, *last;
  int32_t blocks, share; /* share: blocks a rank */
  int ranks;
  double block_cost, all, least; /* area of all; cost of the best way so far */
  const fx_ring_room *rooms;
  int32_t num_rooms;
  piece *piece;          /* [blocks] */
  dealt_rank *rank;      /* [ranks] */
  int32_t *owner, *best; /* [blocks]: of this way and of the best so far */
  int32_t *lo, *hi; /* [blocks + 1]: least first of queries from here on, greatest last of those before */
  int32_t *count;   /* [blocks + 1] */
  int32_t *hops;    /* [blocks] */
} dealer;

size_t fx_context_deal_scratch(int32_t blocks, int ranks) {
  size_t n = (size_t)blocks;
  return n * sizeof(piece) + (size_t)ranks * sizeof(dealt_rank) + (6 * n + 3) * sizeof(int32_t);
}

static dealer dealer_of(const int32_t *first, const int32_t *last, int32_t blocks, int ranks, void *scratch) {
  FX_ASSERT(ranks > 0 && blocks % ranks == 0);
  dealer d = {.first = first, .last = last, .blocks = blocks, .share = blocks / ranks, .ranks = ranks};
  d.piece = scratch;
  d.rank = (dealt_rank *)(void *)(d.piece + blocks);
  d.owner = (int32_t *)(void *)(d.rank + ranks);
  d.best = d.owner + blocks;
  d.lo = d.best + blocks;
  d.hi = d.lo + blocks + 1;
  d.count = d.hi + blocks + 1;
  d.hops = d.count + blocks + 1;
  return d;
}

/* ---- what an assignment costs ---- */

/* For each rank: how many blocks of its queries may see each key, from where their ranges begin and end. */
static void mark_hops(const dealer *d, int32_t *hops) {
  memset(hops, 0, (size_t)d->blocks * sizeof *hops);
  for (int r = 0; r < d->ranks; r++) {
    memset(d->count, 0, (size_t)(d->blocks + 1) * sizeof *d->count);
    for (int32_t b = 0; b < d->blocks; b++)
      if (d->owner[b] == r) d->count[d->first[b]]++, d->count[d->last[b]]--;
    for (int32_t b = 0, seen = 0; b < d->blocks; b++) {
      int32_t away = (r - d->owner[b] + d->ranks) % d->ranks;
      seen += d->count[b];
      if (seen > 0 && away > hops[b]) hops[b] = away;
    }
  }
}

static int by_first(const void *x, const void *y) {
  const dealt_rank *a = x, *b = y;
  return a->first != b->first ? a->first - b->first : a->rank - b->rank;
}

/* Any rank may have any place in the ring. In the order in which their shared blocks begin, those that cut
 * one document or window between them are neighbours. */
static void order_ranks(dealer *d) {
  int32_t next = d->blocks; /* where another rank's blocks begin */
  mark_hops(d, d->hops);
  for (int r = 0; r < d->ranks; r++) d->rank[r] = (dealt_rank){.rank = r, .first = d->blocks};
  for (int32_t b = d->blocks - 1; b >= 0; b--) {
    if (b + 1 < d->blocks && d->owner[b + 1] != d->owner[b]) next = b + 1;
    d->count[b] = next;
  }
  for (int32_t b = d->blocks - 1; b >= 0; b--) {
    int32_t first = d->first[b], r = d->owner[b];
    bool sees = first < d->last[b] && (d->owner[first] != r || d->count[first] < d->last[b]);
    if (sees || d->hops[b] > 0) d->rank[r].first = b;
  }
  qsort(d->rank, (size_t)d->ranks, sizeof *d->rank, by_first);
  for (int r = 0; r < d->ranks; r++) d->count[d->rank[r].rank] = r;
  for (int32_t b = 0; b < d->blocks; b++) d->owner[b] = d->count[d->owner[b]];
}

int32_t fx_ring_room_for(const fx_ring_room *rooms, int32_t count, fx_ring_room need) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; i++) {
    bool holds = rooms[i].blocks >= need.blocks && rooms[i].hops >= need.hops;
    if (holds && rooms[i].blocks * rooms[i].hops < rooms[best].blocks * rooms[best].hops) best = i;
  }
  return best;
}

static double cost_of(dealer *d) {
  double largest = 0;
  fx_ring_room room = {0, 0};
  order_ranks(d);
  mark_hops(d, d->hops);
  for (int r = 0; r < d->ranks; r++) d->rank[r] = (dealt_rank){.weight = 0};
  for (int32_t b = 0; b < d->blocks; b++) {
    dealt_rank *rank = &d->rank[d->owner[b]];
    rank->weight += d->area[b];
    rank->travel += d->hops[b] > 0;
    room.hops = d->hops[b] > room.hops ? d->hops[b] : room.hops;
  }
  for (int r = 0; r < d->ranks; r++) {
    largest = d->rank[r].weight > largest ? d->rank[r].weight : largest;
    room.blocks = d->rank[r].travel > room.blocks ? d->rank[r].travel : room.blocks;
  }
  if (d->num_rooms > 0) room = d->rooms[fx_ring_room_for(d->rooms, d->num_rooms, room)];
  return largest + d->block_cost * room.blocks * room.hops;
}

static void consider(dealer *d) {
  double cost = cost_of(d);
  if (d->least >= 0 && cost >= d->least) return;
  d->least = cost;
  memcpy(d->best, d->owner, (size_t)d->blocks * sizeof *d->best);
}

/* ---- the ways ---- */

static void deal_to_and_fro(dealer *d) {
  for (int32_t b = 0; b < d->blocks; b++) {
    int32_t at = b % d->ranks;
    d->owner[b] = b / d->ranks % 2 ? d->ranks - 1 - at : at;
  }
}

static double weight_of(const dealer *d, int32_t begin, int32_t end, int32_t travel) {
  double weight = d->block_cost * travel;
  for (int32_t b = begin; b < end; b++) weight += d->area[b];
  return weight;
}

static void add_piece(const dealer *d, int32_t *count, int32_t begin, int32_t end, int32_t travel) {
  d->piece[(*count)++] = (piece){weight_of(d, begin, end, travel), begin, end, travel};
}

static int largest_first(const void *x, const void *y) {
  const piece *a = x, *b = y;
  if (a->weight != b->weight) return a->weight > b->weight ? -1 : 1;
  return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* The rank with the least weight among those that have room for `size` blocks; -1: none has. */
static int lightest(const dealer *d, int32_t size) {
  int best = -1;
  for (int r = 0; r < d->ranks; r++)
    if (d->rank[r].room >= size && (best < 0 || d->rank[r].weight < d->rank[best].weight)) best = r;
  return best;
}

static int roomiest(const dealer *d) {
  int best = 0;
  for (int r = 1; r < d->ranks; r++)
    if (d->rank[r].room > d->rank[best].room) best = r;
  return best;
}

/* Counts are to be equal, so the last pieces may have to be cut: what fits goes where most does. */
static void deal_pieces(dealer *d, int32_t count) {
  for (int r = 0; r < d->ranks; r++) d->rank[r] = (dealt_rank){.room = d->share};
  qsort(d->piece, (size_t)count, sizeof *d->piece, largest_first);
  for (int32_t i = 0; i < count; i++) {
    const piece *p = &d->piece[i];
    for (int32_t at = p->begin, end; at < p->end; at = end) {
      int r = lightest(d, p->end - at);
      end = p->end;
      if (r < 0) r = roomiest(d), end = at + d->rank[r].room;
      d->rank[r].weight += weight_of(d, at, end, end == p->end ? p->travel : end - at);
      d->rank[r].room -= end - at;
      for (int32_t b = at; b < end; b++) d->owner[b] = r;
    }
  }
}

static void consider_segments(dealer *d) {
  for (int32_t length = 1; d->share % length == 0; length *= 2) {
    int32_t count = 0;
    for (int32_t b = 0; b < d->blocks; b += length) add_piece(d, &count, b, b + length, 0);
    deal_pieces(d, count);
    consider(d);
  }
}

static void find_reach(const dealer *d) {
  d->lo[d->blocks] = d->blocks;
  d->hi[0] = 0;
  for (int32_t b = d->blocks - 1; b >= 0; b--) {
    bool sees = d->first[b] < d->last[b];
    d->lo[b] = sees && d->first[b] < d->lo[b + 1] ? d->first[b] : d->lo[b + 1];
  }
  for (int32_t b = 0; b < d->blocks; b++) d->hi[b + 1] = d->last[b] > d->hi[b] ? d->last[b] : d->hi[b];
}

/* Blocks of [begin, end) that queries before or behind it may see. */
static int32_t seen_from_outside(const dealer *d, int32_t begin, int32_t end) {
  int32_t before = d->hi[begin] - begin, behind = end - d->lo[end];
  int32_t seen = (before > 0 ? before : 0) + (behind > 0 ? behind : 0);
  return seen < end - begin ? seen : end - begin;
}

/* Whether at most one block is seen across the end of block c - 1. */
static bool may_cut(const dealer *d, int32_t c) {
  if (c == d->blocks) return true;
  int32_t before = c - d->lo[c], behind = d->hi[c] - c;
  return (before > 0 ? before : 0) + (behind > 0 ? behind : 0) <= 1;
}

/* Pieces of more than `limit` area, or longer than a share, become strips of at most `length` blocks. */
static int32_t cut_pieces(const dealer *d, double limit, int32_t length) {
  int32_t count = 0;
  for (int32_t begin = 0, end; begin < d->blocks; begin = end) {
    for (end = begin + 1; !may_cut(d, end);) end++;
    bool whole = end - begin <= d->share && weight_of(d, begin, end, 0) <= limit;
    int64_t size = end - begin, strips = whole ? 1 : (size + length - 1) / length;
    for (int64_t i = 0; i < strips; i++) {
      int32_t from = begin + (int32_t)(size * i / strips), to = begin + (int32_t)(size * (i + 1) / strips);
      add_piece(d, &count, from, to, seen_from_outside(d, from, to));
    }
  }
  return count;
}

/* What is too large: more than a share of area, or half of one. */
static void consider_pieces(dealer *d) {
  find_reach(d);
  for (int parts = 1; parts <= 2; parts++)
    for (int32_t length = d->share; length > 0; length /= 2) {
      deal_pieces(d, cut_pieces(d, d->all / d->ranks / parts, length));
      consider(d);
    }
}

/* ---- */

void fx_context_deal(const double *area, const int32_t *first, const int32_t *last, int32_t blocks, int ranks,
                     double block_cost, const fx_ring_room *rooms, int32_t num_rooms, int32_t *order,
                     void *scratch) {
  dealer d = dealer_of(first, last, blocks, ranks, scratch);
  d.area = area, d.block_cost = block_cost, d.least = -1;
  d.rooms = rooms, d.num_rooms = num_rooms;
  for (int32_t b = 0; b < blocks; b++) d.all += area[b];
  deal_to_and_fro(&d);
  consider(&d);
  consider_segments(&d);
  consider_pieces(&d);
  for (int32_t r = 0, at = 0; r < ranks; r++)
    for (int32_t b = 0; b < blocks; b++)
      if (d.best[b] == r) order[at++] = b;
}

void fx_context_hops(const int32_t *first, const int32_t *last, int32_t blocks, int ranks,
                     const int32_t *order, int32_t *hops, void *scratch) {
  dealer d = dealer_of(first, last, blocks, ranks, scratch);
  for (int32_t i = 0; i < blocks; i++) d.owner[order[i]] = i / d.share;
  mark_hops(&d, hops);
}

double fx_context_share(const double *area, int32_t blocks, int ranks, const int32_t *order, int rank) {
  double share = 0;
  for (int32_t i = rank * (blocks / ranks); i < (rank + 1) * (blocks / ranks); i++) share += area[order[i]];
  return share;
}
