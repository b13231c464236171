/* SPDX-License-Identifier: Apache-2.0 */
/* Building is a sweep: each interval adds +1/-1 at the ends of the tiles it touches and of the tiles it
 * covers; prefix sums then say for every tile how many rows touch and how many cover it. Exact, and O(rows *
 * R + tiles spanned) a block. */
#include "attention/mask/runs.h"

#include <string.h>

#include "dynamo_rt/base/memory.h"

static fx_runs plan(int32_t Bm, int32_t block_length, int32_t tile_length, int32_t block, int32_t tile,
                    int32_t capacity) {
  FX_ASSERT(Bm > 0 && block_length > 0 && tile_length > 0 && block > 0 && tile > 0 && capacity > 0);
  return (fx_runs){.Bm = Bm,
                   .block = block,
                   .tile = tile,
                   .block_length = block_length,
                   .tile_length = tile_length,
                   .blocks = (int32_t)fx_ceil_div(block_length, block),
                   .tiles = (int32_t)fx_ceil_div(tile_length, tile),
                   .capacity = capacity};
}

fx_runs fx_runs_plan(int32_t Bm, int32_t T, int32_t T_kv, int32_t tile_q, int32_t tile_kv, int32_t capacity) {
  return plan(Bm, T, T_kv, tile_q, tile_kv, capacity);
}

fx_runs fx_runs_plan_transposed(const fx_runs *rows, int32_t capacity) {
  fx_runs columns = plan(rows->Bm, rows->tile_length, rows->block_length, rows->tile, rows->block, capacity);
  columns.kv_base = rows->kv_base;
  return columns;
}

static int64_t scratch_length(const fx_runs *runs) {
  return 2 * ((int64_t)fx_max_i64(runs->blocks, runs->tiles) + 1);
}

size_t fx_runs_bytes(const fx_runs *runs) {
  size_t lists = (size_t)runs->Bm * (size_t)runs->blocks;
  size_t bytes = lists * (sizeof(int32_t) + (size_t)runs->capacity * sizeof(fx_run)) +
                 (size_t)scratch_length(runs) * sizeof(int32_t);
  return fx_align_up(bytes, FX_ALIGN);
}

void fx_runs_bind(fx_runs *runs, void *memory) {
  int64_t lists = (int64_t)runs->Bm * runs->blocks;
  runs->run = memory;
  runs->count = (int32_t *)(runs->run + lists * runs->capacity);
  runs->scratch = runs->count + lists;
}

/* Tiles that become needlessly partial or visited when a and its successor b are one run. */
static int64_t join_cost(const fx_run *a, const fx_run *b) {
  int64_t cost = (int64_t)b->begin - a->end;
  if (a->kind == FX_RUN_FULL) cost += (int64_t)a->end - a->begin;
  if (b->kind == FX_RUN_FULL) cost += (int64_t)b->end - b->begin;
  return cost;
}

/* Appends tiles [begin, end) to a sorted list, joining where it touches a run of its kind or space is out. */
static void append(fx_runs *runs, int64_t list, int32_t begin, int32_t end, int32_t kind) {
  fx_run *run = runs->run + list * runs->capacity, added = {begin, end, kind};
  int32_t *count = &runs->count[list];
  if (*count > 0 && run[*count - 1].end == begin && run[*count - 1].kind == kind) {
    run[*count - 1].end = end;
    return;
  }
  if (*count < runs->capacity) {
    run[(*count)++] = added;
    return;
  }
  int32_t best = *count - 1; /* join run[best] with its successor, the added run being the last one */
  int64_t best_cost = join_cost(&run[best], &added);
  for (int32_t i = 0; i + 1 < *count; i++) {
    int64_t cost = join_cost(&run[i], &run[i + 1]);
    if (cost < best_cost) best = i, best_cost = cost;
  }
  runs->merged++;
  run[best].end = best == *count - 1 ? added.end : run[best + 1].end;
  run[best].kind = FX_RUN_PARTIAL;
  if (best == *count - 1) return;
  memmove(run + best + 1, run + best + 2, (size_t)(*count - best - 2) * sizeof *run);
  run[*count - 1] = added;
}

/* Counts, for the rows of one block, how many touch and how many cover each tile (as differences); returns
 * the range of tiles touched. */
static void sweep_rows(const fx_limits *limits, const fx_runs *runs, int32_t b, int32_t first, int32_t rows,
                       int32_t *from, int32_t *to) {
  int32_t *touch = runs->scratch, *cover = runs->scratch + runs->tiles + 1;
  *from = runs->tiles, *to = 0;
  for (int32_t r = 0; r < limits->R; r++) {
    int64_t at = ((int64_t)r * limits->Bm + b) * limits->Tpad + first;
    for (int32_t i = 0; i < rows; i++) {
      int64_t lo = fx_max_i64(limits->lo[at + i] - runs->kv_base, 0);
      int64_t hi = fx_min_i64(limits->hi[at + i] - runs->kv_base, runs->tile_length);
      if (lo >= hi) continue;
      int32_t begin = (int32_t)(lo / runs->tile), end = (int32_t)fx_ceil_div(hi, runs->tile);
      touch[begin]++, touch[end]--;
      *from = (int32_t)fx_min_i64(*from, begin), *to = (int32_t)fx_max_i64(*to, end);
      int32_t inner = (int32_t)fx_ceil_div(lo, runs->tile);
      int32_t outer = hi == runs->tile_length ? runs->tiles : (int32_t)(hi / runs->tile);
      if (inner < outer) cover[inner]++, cover[outer]--;
    }
  }
}

fx_status fx_runs_build(const fx_limits *limits, fx_runs *runs) {
  if (limits->T != runs->block_length || limits->Bm != runs->Bm)
    return fx_error(FX_ERR_SHAPE, "runs were planned for %d x %d rows, the limits have %d x %d", runs->Bm,
                    runs->block_length, limits->Bm, limits->T);
  int32_t *touch = runs->scratch, *cover = runs->scratch + runs->tiles + 1;
  memset(runs->scratch, 0, 2 * ((size_t)runs->tiles + 1) * sizeof(int32_t));
  memset(runs->count, 0, (size_t)runs->Bm * (size_t)runs->blocks * sizeof(int32_t));
  runs->merged = 0;
  for (int32_t b = 0; b < runs->Bm; b++)
    for (int32_t i = 0; i < runs->blocks; i++) {
      int64_t first = (int64_t)i * runs->block;
      int32_t rows = (int32_t)fx_min_i64(runs->block, runs->block_length - first), from, to;
      sweep_rows(limits, runs, b, (int32_t)first, rows, &from, &to);
      int32_t touched = 0, covered = 0;
      for (int32_t j = from; j < to; j++) {
        touched += touch[j], covered += cover[j];
        if (touched > 0)
          append(runs, (int64_t)b * runs->blocks + i, j, j + 1,
                 covered == rows ? FX_RUN_FULL : FX_RUN_PARTIAL);
        touch[j] = cover[j] = 0;
      }
      if (from < to) touch[to] = cover[to] = 0;
    }
  return FX_OK;
}

/* Row blocks are appended to each column's list in ascending order, so the lists come out sorted. Joined runs
 * stay partial, so a tile's kind never rises above what the rows say. */
fx_status fx_runs_transpose(const fx_runs *rows, fx_runs *columns) {
  if (columns->Bm != rows->Bm || columns->blocks != rows->tiles || columns->tiles != rows->blocks ||
      columns->block != rows->tile || columns->tile != rows->block)
    return fx_error(FX_ERR_SHAPE, "transposed runs of %d x %d tiles do not fit row runs of %d x %d",
                    columns->blocks, columns->tiles, rows->blocks, rows->tiles);
  memset(columns->count, 0, (size_t)columns->Bm * (size_t)columns->blocks * sizeof(int32_t));
  columns->merged = 0;
  for (int32_t b = 0; b < rows->Bm; b++)
    for (int32_t i = 0; i < rows->blocks; i++) {
      int32_t count;
      const fx_run *run = fx_runs_get(rows, b, i, &count);
      for (int32_t k = 0; k < count; k++)
        for (int32_t j = run[k].begin; j < run[k].end; j++)
          append(columns, (int64_t)b * columns->blocks + j, i, i + 1, run[k].kind);
    }
  return FX_OK;
}

fx_runs_totals fx_runs_count(const fx_runs *runs) {
  fx_runs_totals totals = {.tiles = (int64_t)runs->Bm * runs->blocks * runs->tiles};
  for (int64_t list = 0; list < (int64_t)runs->Bm * runs->blocks; list++)
    for (int32_t k = 0; k < runs->count[list]; k++) {
      const fx_run *run = &runs->run[list * runs->capacity + k];
      *(run->kind == FX_RUN_FULL ? &totals.full : &totals.partial) += run->end - run->begin;
    }
  return totals;
}
