/* SPDX-License-Identifier: Apache-2.0 */
/* Building row runs. The least and greatest ends of a block's rows tell which tiles all rows cover and which
 * none touches; the few in between are decided by a vectorised look at the rows. Where these are many, a
 * sweep counts instead, in O(rows * R + tiles spanned): each interval adds +1/-1 at the ends of the tiles it
 * touches and of the tiles it covers, and prefix sums say for every tile how many rows touch and how many
 * cover it.
 *
 * Transposing goes over the row lists once and looks only at what changes from one to the next, so it costs
 * the length of the lists, not the number of tiles. */
#include "attention/mask/runs.h"

#include <string.h>

#include "dynamo_rt/base/isa.h"
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
  columns.Hm = rows->Hm;
  return columns;
}

static int64_t scratch_length(const fx_runs *runs) {
  return 2 * ((int64_t)fx_max_i64(runs->blocks, runs->tiles) + 1);
}
static int64_t list_count(const fx_runs *runs) {
  return (int64_t)runs->Bm * fx_runs_heads(runs) * runs->blocks;
}

size_t fx_runs_bytes(const fx_runs *runs) {
  size_t bytes = (size_t)list_count(runs) * (sizeof(int32_t) + (size_t)runs->capacity * sizeof(fx_run)) +
                 (size_t)scratch_length(runs) * sizeof(int32_t);
  return fx_align_up(bytes, FX_ALIGN);
}

void fx_runs_bind(fx_runs *runs, void *memory) {
  runs->run = memory;
  runs->count = (int32_t *)(runs->run + list_count(runs) * runs->capacity);
  runs->scratch = runs->count + list_count(runs);
}

void fx_runs_clear(fx_runs *runs) {
  memset(runs->count, 0, (size_t)list_count(runs) * sizeof(int32_t));
  runs->merged = 0;
}

/* Tiles that become needlessly partial or visited when a and its successor b are one run. */
static int64_t join_cost(const fx_run *a, const fx_run *b) {
  int64_t cost = (int64_t)b->begin - a->end;
  if (a->kind == FX_RUN_FULL) cost += (int64_t)a->end - a->begin;
  if (b->kind == FX_RUN_FULL) cost += (int64_t)b->end - b->begin;
  return cost;
}

void fx_runs_append(fx_runs *runs, int64_t list, int32_t begin, int32_t end, fx_run_kind kind) {
  fx_run *run = runs->run + list * runs->capacity, added = {begin, end, (int32_t)kind};
  int32_t *count = &runs->count[list];
  if (*count > 0 && run[*count - 1].end == begin && run[*count - 1].kind == added.kind) {
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

/* ---- from limits ---- */

/* The rows of one block: lo and hi of each interval. */
typedef struct rows {
  int32_t R, count;
  const int32_t *lo[FX_LIMITS_MAX_R], *hi[FX_LIMITS_MAX_R];
} rows;

/* Over the rows whose interval is not empty. */
typedef struct ends {
  int32_t min_lo, max_lo, min_hi, max_hi, empty;
} ends;

FX_ISA_CLONES static ends find_ends(const int32_t *lo, const int32_t *hi, int32_t count) {
  ends e = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0};
  for (int32_t i = 0; i < count; i++) {
    int32_t empty = lo[i] >= hi[i], low = empty ? INT32_MAX : lo[i], high = empty ? INT32_MIN : hi[i];
    e.min_lo = low < e.min_lo ? low : e.min_lo;
    e.max_hi = high > e.max_hi ? high : e.max_hi;
    e.max_lo = lo[i] > e.max_lo ? lo[i] : e.max_lo;
    e.min_hi = hi[i] < e.min_hi ? hi[i] : e.min_hi;
    e.empty += empty;
  }
  return e;
}

/* Rows that see some, and rows that see all, of keys [a, b). */
FX_ISA_CLONES static void look(const rows *r, int32_t a, int32_t b, int32_t *some, int32_t *all) {
  const int32_t *lo = r->lo[0], *hi = r->hi[0], *lo2 = r->lo[r->R - 1], *hi2 = r->hi[r->R - 1];
  int32_t touched = 0, covered = 0;
  for (int32_t i = 0; i < r->count; i++) {
    int32_t touches = (lo[i] < b) & (hi[i] > a), covers = (lo[i] <= a) & (hi[i] >= b);
    int32_t touches2 = (lo2[i] < b) & (hi2[i] > a), covers2 = (lo2[i] <= a) & (hi2[i] >= b);
    touched += touches | touches2;
    covered += covers | covers2;
  }
  *some = touched, *all = covered;
}

/* Tiles [from, to) touched by some row, of which [inner, outer) are covered by all. */
typedef struct tile_span {
  int32_t from, to, inner, outer;
} tile_span;

static tile_span span_of(const ends *e, int32_t count, const fx_runs *runs) {
  tile_span span = {0, 0, 0, 0};
  if (e->empty == count) return span;
  int64_t base = runs->kv_base, lo = fx_max_i64(e->min_lo - base, 0),
          hi = fx_min_i64(e->max_hi - base, runs->tile_length);
  if (lo >= hi) return span;
  span.from = (int32_t)(lo / runs->tile), span.to = (int32_t)fx_ceil_div(hi, runs->tile);
  span.inner = span.outer = span.to;
  if (e->empty > 0) return span;
  int64_t low = fx_max_i64(e->max_lo - base, 0), high = fx_min_i64(e->min_hi - base, runs->tile_length);
  int64_t inner = fx_ceil_div(low, runs->tile),
          outer = high == runs->tile_length ? runs->tiles : high / runs->tile;
  if (high > low && inner < outer) span.inner = (int32_t)inner, span.outer = (int32_t)outer;
  return span;
}

enum { MOST_LOOKS = 24 };

/* False: too many tiles are left to look at. */
static bool build_by_ends(const rows *r, fx_runs *runs, int64_t list) {
  tile_span span[FX_LIMITS_MAX_R];
  int64_t looks = 0;
  int32_t at = runs->tiles, to = 0;
  for (int32_t k = 0; k < r->R; k++) {
    ends e = find_ends(r->lo[k], r->hi[k], r->count);
    span[k] = span_of(&e, r->count, runs);
    looks += (span[k].to - span[k].from) - (span[k].outer - span[k].inner);
    if (span[k].from == span[k].to) continue;
    at = span[k].from < at ? span[k].from : at;
    to = span[k].to > to ? span[k].to : to;
  }
  if (looks > MOST_LOOKS) return false;
  while (at < to) {
    int32_t full_to = at, next = to;
    bool inside = false;
    for (int32_t k = 0; k < r->R; k++) {
      if (span[k].inner <= at && at < span[k].outer) full_to = span[k].outer;
      if (span[k].from <= at && at < span[k].to) inside = true;
      if (span[k].from > at && span[k].from < next && span[k].from < span[k].to) next = span[k].from;
    }
    if (full_to > at) {
      fx_runs_append(runs, list, at, full_to, FX_RUN_FULL);
      at = full_to;
    } else if (!inside) {
      at = next;
    } else {
      int64_t a = runs->kv_base + (int64_t)at * runs->tile,
              b = runs->kv_base + fx_min_i64(((int64_t)at + 1) * runs->tile, runs->tile_length);
      int32_t some, all;
      look(r, (int32_t)a, (int32_t)fx_min_i64(b, INT32_MAX), &some, &all);
      if (some) fx_runs_append(runs, list, at, at + 1, all == r->count ? FX_RUN_FULL : FX_RUN_PARTIAL);
      at++;
    }
  }
  return true;
}

/* Keys [from, to) here are positions base .. of the sequence. */
typedef struct segment {
  int64_t from, to, base;
} segment;

/* The segment that starts at key `from`. */
static segment segment_at(const fx_runs *runs, int64_t from) {
  if (!runs->key_base) return (segment){0, runs->tile_length, runs->kv_base};
  int64_t k = from / FX_LIMITS_ALIGN, last = fx_ceil_div(runs->tile_length, FX_LIMITS_ALIGN), first = k;
  while (k + 1 < last && runs->key_base[k + 1] == (int64_t)runs->key_base[k] + FX_LIMITS_ALIGN) k++;
  return (segment){from, fx_min_i64((k + 1) * FX_LIMITS_ALIGN, runs->tile_length), runs->key_base[first]};
}

/* Counts rows that touch and rows that cover each tile's part of one segment (as differences), and widens the
 * range of tiles touched. */
static void sweep_rows(const rows *r, const fx_runs *runs, const segment *s, int32_t *from, int32_t *to) {
  int32_t *touch = runs->scratch, *cover = runs->scratch + runs->tiles + 1;
  int64_t shift = s->from - s->base;
  for (int32_t k = 0; k < r->R; k++)
    for (int32_t i = 0; i < r->count; i++) {
      int64_t lo = fx_max_i64(r->lo[k][i] + shift, s->from), hi = fx_min_i64(r->hi[k][i] + shift, s->to);
      if (lo >= hi || r->lo[k][i] >= r->hi[k][i]) continue;
      int32_t begin = (int32_t)(lo / runs->tile), end = (int32_t)fx_ceil_div(hi, runs->tile);
      touch[begin]++, touch[end]--;
      *from = begin < *from ? begin : *from, *to = end > *to ? end : *to;
      int32_t inner = lo == s->from ? begin : (int32_t)fx_ceil_div(lo, runs->tile);
      int32_t outer = hi == s->to ? end : (int32_t)(hi / runs->tile);
      if (inner < outer) cover[inner]++, cover[outer]--;
    }
}

/* Segments that have a part in a tile. */
static int32_t parts_of(const fx_runs *runs, int64_t tile) {
  if (!runs->key_base) return 1;
  int64_t first = tile * runs->tile, last = fx_min_i64(first + runs->tile, runs->tile_length) - 1;
  int32_t parts = 1;
  for (int64_t k = first / FX_LIMITS_ALIGN + 1; k <= last / FX_LIMITS_ALIGN; k++)
    parts += runs->key_base[k] != (int64_t)runs->key_base[k - 1] + FX_LIMITS_ALIGN;
  return parts;
}

static void build_by_sweep(const rows *r, fx_runs *runs, int64_t list) {
  int32_t *touch = runs->scratch, *cover = runs->scratch + runs->tiles + 1, from = runs->tiles, to = 0;
  segment s = {0, 0, 0};
  while (s.to < runs->tile_length) {
    s = segment_at(runs, s.to);
    sweep_rows(r, runs, &s, &from, &to);
  }
  int32_t touched = 0, covered = 0;
  for (int32_t j = from; j < to; j++) {
    touched += touch[j], covered += cover[j];
    if (touched > 0)
      fx_runs_append(runs, list, j, j + 1,
                     covered == (int64_t)r->count * parts_of(runs, j) ? FX_RUN_FULL : FX_RUN_PARTIAL);
    touch[j] = cover[j] = 0;
  }
  if (from < to) touch[to] = cover[to] = 0;
}

fx_status fx_runs_build(const fx_limits *limits, fx_runs *runs) {
  if (limits->T != runs->block_length || limits->Bm != runs->Bm ||
      fx_limits_heads(limits) != fx_runs_heads(runs))
    return fx_error(FX_ERR_SHAPE, "runs were planned for %d x %d x %d rows, the limits have %d x %d x %d",
                    runs->Bm, fx_runs_heads(runs), runs->block_length, limits->Bm, fx_limits_heads(limits),
                    limits->T);
  if (limits->R > FX_LIMITS_MAX_R)
    return fx_error(FX_ERR_SHAPE, "limits have %d intervals a row, at most %d", limits->R, FX_LIMITS_MAX_R);
  memset(runs->scratch, 0, 2 * ((size_t)runs->tiles + 1) * sizeof(int32_t));
  fx_runs_clear(runs);
  for (int32_t b = 0; b < runs->Bm; b++)
    for (int32_t h = 0; h < fx_runs_heads(runs); h++)
      for (int32_t i = 0; i < runs->blocks; i++) {
        int64_t first = (int64_t)i * runs->block;
        rows r = {.R = limits->R, .count = (int32_t)fx_min_i64(runs->block, runs->block_length - first)};
        for (int32_t k = 0; k < r.R; k++) {
          int64_t at = fx_limits_at(limits, k, b, h) + first;
          r.lo[k] = limits->lo + at, r.hi[k] = limits->hi + at;
        }
        int64_t list = fx_runs_list(runs, b, h, i);
        if (runs->key_base || !build_by_ends(&r, runs, list)) build_by_sweep(&r, runs, list);
      }
  return FX_OK;
}

/* ---- transposing ---- */

enum { CLOSED = -1 };

/* Columns [from, to) have `kind` from row block i on (CLOSED: none). */
static void change(fx_runs *columns, int64_t first_list, int32_t from, int32_t to, int32_t i, int32_t kind) {
  int32_t *begin = columns->scratch, *open = columns->scratch + columns->blocks + 1;
  for (int32_t j = from; j < to; j++) {
    if (open[j] != CLOSED) fx_runs_append(columns, first_list + j, begin[j], i, (fx_run_kind)open[j]);
    begin[j] = i;
    open[j] = kind;
  }
}

/* The kind at column `at` of a list whose run `*k` is the first that ends after `at`, and where it changes.
 */
static int32_t kind_at(const fx_run *run, int32_t count, int32_t *k, int32_t at, int32_t *until) {
  while (*k < count && run[*k].end <= at) ++*k;
  if (*k == count) return CLOSED;
  if (run[*k].begin > at) {
    *until = run[*k].begin < *until ? run[*k].begin : *until;
    return CLOSED;
  }
  *until = run[*k].end < *until ? run[*k].end : *until;
  return run[*k].kind;
}

/* Row block i has the list `now`, the one before it had `was`. */
static void step(fx_runs *columns, int64_t first_list, const fx_run *was, int32_t was_count,
                 const fx_run *now, int32_t now_count, int32_t i) {
  int32_t last = 0, at = columns->blocks, was_k = 0, now_k = 0;
  if (was_count) at = was[0].begin, last = was[was_count - 1].end;
  if (now_count) {
    at = now[0].begin < at ? now[0].begin : at;
    last = now[now_count - 1].end > last ? now[now_count - 1].end : last;
  }
  while (at < last) {
    int32_t until = last;
    int32_t before = kind_at(was, was_count, &was_k, at, &until);
    int32_t after = kind_at(now, now_count, &now_k, at, &until);
    if (before != after) change(columns, first_list, at, until, i, after);
    at = until;
  }
}

fx_status fx_runs_transpose(const fx_runs *row_runs, fx_runs *columns) {
  if (columns->Bm != row_runs->Bm || fx_runs_heads(columns) != fx_runs_heads(row_runs) ||
      columns->blocks != row_runs->tiles || columns->tiles != row_runs->blocks ||
      columns->block != row_runs->tile || columns->tile != row_runs->block)
    return fx_error(FX_ERR_SHAPE, "transposed runs of %d x %d tiles do not fit row runs of %d x %d",
                    columns->blocks, columns->tiles, row_runs->blocks, row_runs->tiles);
  fx_runs_clear(columns);
  int32_t *open = columns->scratch + columns->blocks + 1;
  for (int32_t j = 0; j < columns->blocks; j++) open[j] = CLOSED;
  for (int32_t b = 0; b < row_runs->Bm; b++)
    for (int32_t h = 0; h < fx_runs_heads(row_runs); h++) {
      int64_t first_list = fx_runs_list(columns, b, h, 0);
      const fx_run *was = NULL;
      int32_t was_count = 0;
      for (int32_t i = 0; i <= row_runs->blocks; i++) { /* a last empty list closes what is open */
        int32_t count = 0;
        const fx_run *run = i < row_runs->blocks ? fx_runs_get_head(row_runs, b, h, i, &count) : NULL;
        step(columns, first_list, was, was_count, run, count, i);
        was = run, was_count = count;
      }
    }
  return FX_OK;
}

fx_runs_totals fx_runs_count(const fx_runs *runs) {
  fx_runs_totals totals = {.tiles = list_count(runs) * runs->tiles};
  for (int64_t list = 0; list < list_count(runs); list++)
    for (int32_t k = 0; k < runs->count[list]; k++) {
      const fx_run *run = &runs->run[list * runs->capacity + k];
      *(run->kind == FX_RUN_FULL ? &totals.full : &totals.partial) += run->end - run->begin;
    }
  return totals;
}
