/* SPDX-License-Identifier: Apache-2.0 */
/* Dealing blocks of a sequence to ranks: counts and order for any input, which blocks travel against brute
 * force, and how even the work is and how much travels for masks that matter. */
#include "parallel/context_blocks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

enum { BLOCK = 128, MOST = 512 };

/* What blocks of queries do and see, and what a deal makes of it. */
typedef struct problem {
  int32_t blocks, ranks, first[MOST], last[MOST], order[MOST], owner[MOST], hops[MOST];
  double area[MOST];
  uint64_t state;
} problem;

static double uniform(problem *p) { /* (0, 1] */
  p->state = p->state * 6364136223846793005ull + 1442695040888963407ull;
  return ((double)(p->state >> 11) + 1) * 0x1p-53;
}

static int32_t below(problem *p, int32_t n) {
  return (int32_t)(uniform(p) * n) % n;
}

static void deal_into(problem *p, int ranks, double block_cost, const fx_ring_room *rooms, int count) {
  void *scratch = malloc(fx_context_deal_scratch(p->blocks, ranks));
  p->ranks = ranks;
  fx_context_deal(p->area, p->first, p->last, p->blocks, ranks, block_cost, rooms, count, p->order, scratch);
  fx_context_hops(p->first, p->last, p->blocks, ranks, p->order, p->hops, scratch);
  for (int32_t i = 0; i < p->blocks; i++) p->owner[p->order[i]] = i / (p->blocks / ranks);
  free(scratch);
}

static void deal(problem *p, int ranks, double block_cost) {
  deal_into(p, ranks, block_cost, NULL, 0);
}

/* ---- any input ---- */

/* Every block once, equal counts, ascending within a rank. */
static void check_order(const problem *p, const char *what) {
  bool seen[MOST] = {false}, ascending = true;
  int32_t share = p->blocks / p->ranks, repeated = 0;
  for (int32_t i = 0; i < p->blocks; i++) {
    repeated += seen[p->order[i]];
    seen[p->order[i]] = true;
    ascending = ascending && (i % share == 0 || p->order[i] > p->order[i - 1]);
  }
  CHECK_MSG(repeated == 0 && ascending, "%s, %d ranks: %d blocks are dealt twice, ascending: %d", what,
            p->ranks, repeated, ascending);
}

static void check_hops(const problem *p, const char *what) {
  int32_t wrong = 0;
  for (int32_t b = 0; b < p->blocks; b++) {
    int32_t hops = 0;
    for (int32_t q = 0; q < p->blocks; q++) {
      int32_t away = (p->owner[q] - p->owner[b] + p->ranks) % p->ranks;
      if (p->first[q] <= b && b < p->last[q] && away > hops) hops = away;
    }
    wrong += hops != p->hops[b];
  }
  CHECK_MSG(wrong == 0, "%s, %d ranks: %d of %d blocks are marked wrong", what, p->ranks, wrong, p->blocks);
}

static void any_input(void) {
  static problem p;
  p.state = 5;
  for (int n = 0; n < FX_TEST_CASES(400); n++) {
    char what[64];
    double block_cost = n % 3 ? floor(1000 * uniform(&p) * uniform(&p)) : 0;
    int ranks = 1 + below(&p, 9);
    p.blocks = ranks * (1 + below(&p, 48 / ranks));
    for (int32_t b = 0; b < p.blocks; b++) {
      int32_t size = below(&p, n % 2 ? 5 : p.blocks + 1);
      p.area[b] = size ? floor(900 * uniform(&p)) : 0;
      p.first[b] = size ? below(&p, p.blocks) : 0;
      p.last[b] = size ? p.first[b] + size < p.blocks ? p.first[b] + size : p.blocks : 0;
    }
    snprintf(what, sizeof what, "case %d of seed 5, %d blocks", n, p.blocks);
    fx_ring_room rooms[3] = {{p.blocks / ranks, ranks - 1}};
    for (int i = 1; i < 3; i++) rooms[i] = (fx_ring_room){below(&p, p.blocks), below(&p, ranks)};
    deal_into(&p, ranks, block_cost, rooms, n % 4);
    check_order(&p, what);
    check_hops(&p, what);
  }
}

/* ---- masks that matter ---- */

static double imbalance(const problem *p) {
  double most = 0, all = 0;
  for (int r = 0; r < p->ranks; r++) {
    double share = fx_context_share(p->area, p->blocks, p->ranks, p->order, r);
    most = fmax(most, share), all += share;
  }
  return most / (all / p->ranks);
}

/* Most blocks of a rank that travel, as a part of its blocks. */
static double travelling(const problem *p) {
  int32_t count[MOST] = {0}, most = 0;
  for (int32_t b = 0; b < p->blocks; b++) count[p->owner[b]] += p->hops[b] > 0;
  for (int r = 0; r < p->ranks; r++) most = count[r] > most ? count[r] : most;
  return (double)most * p->ranks / p->blocks;
}

static int32_t farthest(const problem *p) {
  int32_t hops = 0;
  for (int32_t b = 0; b < p->blocks; b++) hops = p->hops[b] > hops ? p->hops[b] : hops;
  return hops;
}

/* Queries [from, to) see [begin, themselves], each of `pairs` heads. */
static void see_back(problem *p, int64_t from, int64_t to, int64_t begin, double pairs) {
  for (int64_t q = from; q < to; q++) {
    int32_t b = (int32_t)(q / BLOCK), first = (int32_t)(begin / BLOCK);
    if (p->last[b] == 0 || first < p->first[b]) p->first[b] = first;
    p->last[b] = b + 1;
    p->area[b] += pairs * (double)(q - begin + 1);
  }
}

static void clear(problem *p, int32_t blocks) {
  p->blocks = blocks;
  for (int32_t b = 0; b < blocks; b++) p->area[b] = 0, p->first[b] = p->last[b] = 0;
}

/* 32 query and 8 key heads: a block that travels costs as much as this many visible pairs (core/model). */
static const double k_pairs = 32, k_block_cost = 195047.0 * 8;

/* Documents of 2,000 tokens on average: of exponential distribution, or uniform up to twice as much. */
static void documents_of(problem *p, int32_t blocks, bool exponential) {
  int64_t T = (int64_t)blocks * BLOCK;
  clear(p, blocks);
  for (int64_t start = 0, end; start < T; start = end) {
    double x = uniform(p);
    end = start + 1 + (int64_t)(2000 * (exponential ? -log(x) : 2 * x));
    end = end < T ? end : T;
    see_back(p, start, end, start, k_pairs);
  }
}

/* What a set-up makes room for where masks depend on the batch (core/model/attention.c). */
static fx_ring_room room_for(const fx_ring_room *rooms, const problem *p) {
  fx_ring_room need = {(int32_t)(travelling(p) * p->blocks / p->ranks + 0.5), farthest(p)};
  return rooms[fx_ring_room_for(rooms, 4, need)];
}

/* A document that is more work than a rank's share must be cut, and then travels but for its end: with
 * lengths of exponential distribution and 8 ranks those documents are a third of all blocks. Where that costs
 * more than uneven work, work stays uneven. */
static void documents(void) {
  static problem p;
  static const struct {
    bool exponential;
    int ranks;
    double imbalance, most, mean, room; /* measured over 16 seeds, rounded up; room: blocks times hops */
  } rows[] = {{false, 2, 1.008, 4.7, 3.3, 6.3},    {false, 4, 1.065, 14.9, 7.8, 68.8},
              {false, 8, 1.355, 48.5, 31.2, 73.5}, {true, 2, 1.009, 20.4, 4.4, 7.5},
              {true, 4, 1.101, 25.0, 15.2, 75.0},  {true, 8, 1.839, 100.0, 45.5, 267.2}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    double uneven = 0, most = 0, mean = 0, passed = 0;
    int share = 512 / rows[i].ranks, on = rows[i].ranks - 1;
    const fx_ring_room rooms[] = {{share, on}, {share / 4, on}, {share / (on > 1 ? 2 : 16), 1}, {0, 0}};
    for (int seed = 1; seed <= 16; seed++) {
      p.state = (uint64_t)seed * 0x9e3779b97f4a7c15ull;
      documents_of(&p, 512, rows[i].exponential);
      deal_into(&p, rows[i].ranks, k_block_cost, rooms, 4);
      check_hops(&p, "documents");
      fx_ring_room room = room_for(rooms, &p);
      uneven = fmax(uneven, imbalance(&p));
      most = fmax(most, 100 * travelling(&p)), mean += 100 * travelling(&p) / 16;
      passed += 100.0 * room.blocks * room.hops / share / 16;
    }
    CHECK_MSG(
        uneven <= rows[i].imbalance && most <= rows[i].most && mean <= rows[i].mean && passed <= rows[i].room,
        "%s documents, %d ranks, seeds 1-16: imbalance at most %.3f, %.1f%% of a rank's blocks travel "
        "at most, %.1f%% on average, room for %.1f%% times hops; %.3f, %.1f%%, %.1f%%, %.1f%% were measured",
        rows[i].exponential ? "exponential" : "uniform", rows[i].ranks, uneven, most, mean, passed,
        rows[i].imbalance, rows[i].most, rows[i].mean, rows[i].room);
  }
}

/* 4,096 of 65,536 positions: only the last 32 blocks of a rank's neighbours are seen, by the next rank. */
static void window(void) {
  static problem p;
  clear(&p, 512);
  for (int64_t q = 0; q < 65536; q++) see_back(&p, q, q + 1, q < 4095 ? 0 : q - 4095, k_pairs);
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    deal(&p, ranks, k_block_cost);
    CHECK_MSG(imbalance(&p) <= 1.04 && travelling(&p) <= 32.0 * ranks / 512 && farthest(&p) == 1,
              "%d ranks: imbalance %.3f, 1.033 was measured; %.1f%% travel, %.1f%% were measured; %d hops",
              ranks, imbalance(&p), 100 * travelling(&p), 100 * 32.0 * ranks / 512, farthest(&p));
  }
}

/* All but the last block is needed whoever has it, so that work decides. */
static void causal(void) {
  static problem p;
  static const int32_t rank0[] = {0, 7, 8, 15, 16, 23, 24, 31, 32, 39, 40, 47};
  clear(&p, 48);
  see_back(&p, 0, 48 * BLOCK, 0, 1);
  deal(&p, 4, k_block_cost);
  CHECK(memcmp(p.order, rank0, sizeof rank0) == 0); /* to and fro */
  CHECK_MSG(fabs(imbalance(&p) - 1) < 1e-12, "imbalance %.6f", imbalance(&p));
  for (int32_t b = 0; b < 48; b++) CHECK((p.hops[b] > 0) == (b < 47));
  clear(&p, 512);
  see_back(&p, 0, 65536, 0, k_pairs);
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    deal(&p, ranks, k_block_cost);
    CHECK(fabs(imbalance(&p) - 1) < 1e-12 && travelling(&p) == 1);
  }
}

/* Without a cost of travelling only work counts: to and fro would give all large blocks to one rank. */
static void work_alone(void) {
  static problem p;
  clear(&p, 48);
  for (int i = 0; i < 48; i++) p.area[i] = i % 12 == 0 ? 40 : 1, p.last[i] = 48;
  deal(&p, 4, 0);
  CHECK_MSG(fabs(imbalance(&p) - 1) < 1e-12, "imbalance %.6f", imbalance(&p));
}

static void nothing_seen(void) {
  static problem p;
  clear(&p, 24);
  for (int ranks = 1; ranks <= 24; ranks++) {
    if (24 % ranks) continue;
    deal(&p, ranks, k_block_cost);
    check_order(&p, "nothing");
    CHECK(travelling(&p) == 0);
  }
}

static const fx_test g_tests[] = {{"counts, order and travelling blocks of any input", any_input},
                                  {"documents", documents},
                                  {"a window", window},
                                  {"causal", causal},
                                  {"work alone", work_alone},
                                  {"a mask that sees nothing", nothing_seen}};
FX_TEST_MAIN("blocks of a shared sequence", g_tests)
