/* SPDX-License-Identifier: Apache-2.0 */
/* Each planner is an order; every block then takes the best gap among the placed blocks that are alive with
 * it. Largest first is the classic for tensors (Pisarchyk and Lee, arXiv:2001.03288); longest-lived and area
 * first win on graphs with a few long residuals. */
#include "dynamo_rt/plan/arena.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

static size_t rounded(const fx_block *b) {
  return fx_align_up(b->bytes, FX_ALIGN);
}
static double area(const fx_block *b) {
  return (double)rounded(b) * (double)(b->last - b->first + 1);
}

/* Ties by position, so that every rank plans alike. */
#define FX_ORDER(name, key)                                                \
  static int name(const void *x, const void *y) {                          \
    const fx_block *a = *(fx_block *const *)x, *b = *(fx_block *const *)y; \
    if ((key(a)) != (key(b))) return (key(a)) > (key(b)) ? -1 : 1;         \
    return a < b ? -1 : a > b;                                             \
  }
#define FX_LIFE(b) ((b)->last - (b)->first)
#define FX_EARLY(b) (-(b)->first)
FX_ORDER(largest_first, rounded)
FX_ORDER(longest_first, FX_LIFE)
FX_ORDER(area_first, area)
FX_ORDER(program_order, FX_EARLY)

static const struct {
  const char *name;
  int (*order)(const void *a, const void *b);
} g_planners[] = {{"largest first", largest_first},
                  {"longest-lived first", longest_first},
                  {"area first", area_first},
                  {"program order", program_order}};

static int by_offset(const void *x, const void *y) {
  const fx_block *a = *(fx_block *const *)x, *b = *(fx_block *const *)y;
  return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Smallest gap that fits block among the `placed` ones alive with it; `busy` is scratch of that many
 * pointers. */
static size_t best_gap(const fx_block *block, fx_block **placed, int64_t count, fx_block **busy) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; i++)
    if (placed[i]->first <= block->last && block->first <= placed[i]->last) busy[n++] = placed[i];
  qsort(busy, (size_t)n, sizeof *busy, by_offset);
  size_t need = rounded(block), end = 0, best = SIZE_MAX, best_offset = 0;
  for (int64_t i = 0; i < n; i++) {
    if (busy[i]->offset >= end + need && busy[i]->offset - end < best) {
      best = busy[i]->offset - end;
      best_offset = end;
    }
    end = busy[i]->offset + rounded(busy[i]) > end ? busy[i]->offset + rounded(busy[i]) : end;
  }
  return best == SIZE_MAX ? end : best_offset;
}

static size_t place(fx_block **order, int64_t count, fx_block **busy) {
  size_t high = 0;
  for (int64_t i = 0; i < count; i++) {
    order[i]->offset = best_gap(order[i], order, i, busy);
    size_t end = order[i]->offset + rounded(order[i]);
    if (end > high) high = end;
  }
  return high;
}

static size_t lower_bound(const fx_block *blocks, int64_t count) {
  size_t bound = 0;
  for (int64_t i = 0; i < count; i++) { /* the maximum is reached where some block begins */
    size_t alive = 0;
    if (!blocks[i].bytes) continue;
    for (int64_t j = 0; j < count; j++)
      if (blocks[j].first <= blocks[i].first && blocks[i].first <= blocks[j].last)
        alive += rounded(&blocks[j]);
    if (alive > bound) bound = alive;
  }
  return bound;
}

fx_status fx_arena_plan_blocks(fx_block *blocks, int64_t count, fx_arena_plan *out) {
  fx_block **order = NULL, **busy = NULL;
  size_t *best_offsets = NULL;
  fx_status status = FX_OK;
  fx_arena_plan plan = {.bytes = SIZE_MAX, .lower_bound = lower_bound(blocks, count)};
  FX_TRY_GOTO(fx_calloc(&order, (size_t)count, sizeof *order), free_scratch);
  FX_TRY_GOTO(fx_calloc(&busy, (size_t)count, sizeof *busy), free_scratch);
  FX_TRY_GOTO(fx_calloc(&best_offsets, (size_t)count, sizeof *best_offsets), free_scratch);
  for (size_t p = 0; p < sizeof g_planners / sizeof g_planners[0]; p++) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
      if (blocks[i].bytes) order[n++] = &blocks[i];
    qsort(order, (size_t)n, sizeof *order, g_planners[p].order);
    size_t bytes = place(order, n, busy);
    if (bytes >= plan.bytes) continue;
    plan.bytes = bytes;
    plan.planner = g_planners[p].name;
    for (int64_t i = 0; i < count; i++) best_offsets[i] = blocks[i].offset;
  }
  for (int64_t i = 0; i < count; i++) blocks[i].offset = best_offsets[i];
  *out = plan;
free_scratch:
  free(best_offsets);
  free(busy);
  free(order);
  return status;
}
