/* SPDX-License-Identifier: Apache-2.0 */
/* Run lists against brute force over every pair. (Limits: test_mask_analysis.c.) */
#include "tests/attention/attention_case.h"

#include <stdio.h>

static const char *const g_names[] = {"full",     "causal", "sliding_window", "document_causal",
                                      "document", "random"};

enum { EMPTY = -1 };

/* What tile (i, j) is, by looking at every pair; keys are counted from `base`. */
static int brute_force(const attention_case *c, const fx_runs *rows, int b, int i, int j) {
  int seen = 0, all = 0;
  for (int q = i * rows->block; q < (i + 1) * rows->block && q < rows->block_length; q++)
    for (int kv = j * rows->tile; kv < (j + 1) * rows->tile && kv < rows->tile_length; kv++) {
      seen += case_sees(c, b, q, (int)rows->kv_base + kv);
      all++;
    }
  return seen == 0 ? EMPTY : seen == all ? FX_RUN_FULL : FX_RUN_PARTIAL;
}

static int listed(const fx_runs *runs, int b, int i, int j) {
  int32_t count;
  const fx_run *run = fx_runs_get(runs, b, i, &count);
  for (int k = 0; k < count; k++)
    if (run[k].begin <= j && j < run[k].end) return run[k].kind;
  return EMPTY;
}

static bool sorted(const fx_runs *runs, int b, int i) {
  int32_t count, at = 0;
  const fx_run *run = fx_runs_get(runs, b, i, &count);
  for (int k = 0; k < count; k++) {
    if (run[k].begin < at || run[k].begin >= run[k].end || run[k].end > runs->tiles) return false;
    at = run[k].end;
  }
  return count <= runs->capacity;
}

static fx_runs build(const attention_case *c, int tile_q, int tile_kv, int capacity, int base, int keys) {
  fx_runs runs = fx_runs_plan(c->limits.Bm, c->spec.T_q, keys, tile_q, tile_kv, capacity);
  runs.kv_base = base;
  size_t bytes = fx_runs_bytes(&runs);
  void *memory = case_room(bytes);
  memset(memory, 0x5A, bytes); /* stale entries of an earlier batch */
  fx_runs_bind(&runs, memory);
  CHECK_OK(fx_runs_build(&c->limits, &runs));
  return runs;
}

static fx_runs transpose(const fx_runs *rows, int capacity) {
  fx_runs columns = fx_runs_plan_transposed(rows, capacity);
  fx_runs_bind(&columns, case_room(fx_runs_bytes(&columns)));
  CHECK_OK(fx_runs_transpose(rows, &columns));
  return columns;
}

/* exact: every tile has the brute-force kind. Else partial may stand for anything, and nothing is lost. */
static void check_runs(const attention_case *c, const fx_runs *rows, const fx_runs *columns, bool exact) {
  int64_t wrong = 0, partial = 0, full = 0;
  for (int b = 0; b < rows->Bm; b++)
    for (int i = 0; i < rows->blocks; i++) {
      wrong += !sorted(rows, b, i);
      for (int j = 0; j < rows->tiles; j++) {
        int want = brute_force(c, rows, b, i, j), row = listed(rows, b, i, j),
            column = listed(columns, b, j, i);
        partial += want == FX_RUN_PARTIAL, full += want == FX_RUN_FULL;
        wrong += exact
                     ? row != want || column != want
                     : (row != want && row != FX_RUN_PARTIAL) || (column != want && column != FX_RUN_PARTIAL);
      }
    }
  for (int b = 0; b < columns->Bm; b++)
    for (int j = 0; j < columns->blocks; j++) wrong += !sorted(columns, b, j);
  CHECK_MSG(wrong == 0, "%s T %d x %d in %d x %d: %lld tiles wrong", c->spec.variant, c->spec.T_q,
            rows->tile_length, rows->block, rows->tile, (long long)wrong);
  fx_runs_totals totals = fx_runs_count(rows);
  CHECK_INT(totals.tiles, (int64_t)rows->Bm * rows->blocks * rows->tiles);
  if (exact) {
    CHECK_INT(totals.partial, partial);
    CHECK_INT(totals.full, full);
  }
}

static const int g_tiles[][2] = {{128, 128}, {64, 64}, {176, 80}, {80, 192}, {192, 128}, {16, 100}, {333, 1}};

static void runs_match_brute_force(void) {
  for (int v = 0; v < 5; v++)
    for (int length = 129; length <= 700; length += 571 - 131 * (v % 2))
      for (int t = 0; t < 7; t++) {
        attention_case c =
            case_create((attention_spec){g_names[v], 2, length, length, 1, 1, 8, 150, false, false});
        fx_runs rows = build(&c, g_tiles[t][0], g_tiles[t][1], fx_runs_capacity(1), 0, length),
                columns = transpose(&rows, fx_runs_capacity(1));
        CHECK_INT(rows.merged, 0);
        CHECK_INT(columns.merged, 0);
        check_runs(&c, &rows, &columns, true);
        free(rows.run), free(columns.run);
        case_destroy(&c);
      }
}

/* Known densities, so that a shared misreading of `partial` cannot hide: causal in square tiles has one
 * partial tile a block and the rest of the triangle full. */
static void causal_counts(void) {
  attention_case c = case_create((attention_spec){"causal", 1, 1024, 1024, 1, 1, 8, 1, false, false});
  fx_runs rows = build(&c, 128, 128, 3, 0, 1024);
  fx_runs_totals totals = fx_runs_count(&rows);
  CHECK_INT(totals.partial, 8);
  CHECK_INT(totals.full, 28);
  CHECK_INT(totals.tiles, 64);
  free(rows.run);
  case_destroy(&c);
}

/* A chunk of keys sees its part of the limits. */
static void chunks_of_keys(void) {
  for (int v = 0; v < 6; v++) {
    attention_case c = case_create((attention_spec){g_names[v], 2, 400, 400, 1, 1, 8, 90, false, false});
    for (int base = 0; base < 400; base += 130) {
      int keys = base + 130 < 400 ? 130 : 400 - base, capacity = 16;
      fx_runs rows = build(&c, 64, 48, capacity, base, keys), columns = transpose(&rows, capacity);
      check_runs(&c, &rows, &columns, true);
      free(rows.run), free(columns.run);
    }
    case_destroy(&c);
  }
}

/* Random intervals have many changes of kind: short lists join, count it, and lose no tile. */
static void overflow(void) {
  attention_case c = case_create((attention_spec){"random", 2, 300, 300, 1, 1, 8, 1, false, false});
  for (int q = 0; q < 300; q++) { /* two rows a block far apart, so that lists have gaps */
    int lo = q % 2 * 200 + (q * 7) % 60;
    for (int b = 0; b < 2; b++) {
      c.limits.lo[b * c.limits.Tpad + q] = lo;
      c.limits.hi[b * c.limits.Tpad + q] = lo + 23;
    }
  }
  for (int tile = 1; tile <= 2; tile++) { /* one row a block: partial, full, partial; two: two partial runs */
    fx_runs wide = build(&c, tile, 4, 64, 0, 300), wide_columns = transpose(&wide, 300);
    fx_runs_totals all = fx_runs_count(&wide);
    CHECK_INT(wide.merged, 0);
    CHECK((all.full > 0) == (tile == 1));
    check_runs(&c, &wide, &wide_columns, true);
    for (int capacity = 1; capacity <= 5; capacity++) {
      fx_runs rows = build(&c, tile, 4, capacity, 0, 300), columns = transpose(&rows, capacity);
      CHECK((rows.merged > 0) == (capacity < 4 - tile));
      CHECK(columns.merged > 0);
      check_runs(&c, &rows, &columns, false);
      fx_runs_totals totals = fx_runs_count(&rows);
      CHECK(totals.full + totals.partial >= all.full + all.partial);
      free(rows.run), free(columns.run);
    }
    free(wide.run), free(wide_columns.run);
  }
  case_destroy(&c);
}

/* With R = 2 a row sees two intervals: a sink of 20 keys and a window. */
static void two_intervals(void) {
  attention_case c = case_create((attention_spec){"sliding_window", 1, 500, 500, 1, 1, 8, 60, false, false});
  int32_t Tpad = c.limits.Tpad, *both = case_room(4 * sizeof(int32_t) * (size_t)Tpad);
  fx_limits two = {2, 1, 500, Tpad, 500, both, both + 2 * Tpad, 1};
  memset(both, 0, 4 * sizeof(int32_t) * (size_t)Tpad);
  for (int q = 0; q < 500; q++) {
    two.lo[q] = c.limits.lo[q], two.hi[q] = c.limits.hi[q];
    if (c.limits.lo[q] > 20) two.hi[Tpad + q] = 20;
  }
  fx_runs rows = fx_runs_plan(1, 500, 500, 32, 16, fx_runs_capacity(2));
  fx_runs_bind(&rows, case_room(fx_runs_bytes(&rows)));
  CHECK_OK(fx_runs_build(&two, &rows));
  CHECK_INT(rows.merged, 0);
  int64_t wrong = 0;
  for (int i = 0; i < rows.blocks; i++)
    for (int j = 0; j < rows.tiles; j++) {
      int seen = 0, all = 0;
      for (int q = i * 32; q < i * 32 + 32 && q < 500; q++)
        for (int kv = j * 16; kv < j * 16 + 16 && kv < 500; kv++, all++)
          seen += (two.lo[q] <= kv && kv < two.hi[q]) || kv < two.hi[Tpad + q];
      int want = seen == 0 ? EMPTY : seen == all ? FX_RUN_FULL : FX_RUN_PARTIAL;
      wrong += listed(&rows, 0, i, j) != want;
    }
  CHECK_INT(wrong, 0);
  CHECK_INT(listed(&rows, 0, 15, 0), FX_RUN_FULL); /* the sink, far below the window */
  CHECK_INT(listed(&rows, 0, 15, 8), EMPTY);
  free(rows.run), free(both);
  case_destroy(&c);
}

/* A mask that shrinks and grows again in the same memory leaves no stale tile. */
static void rebuilt_in_place(void) {
  attention_case c = case_create((attention_spec){"sliding_window", 1, 640, 640, 1, 1, 8, 300, false, false});
  fx_runs rows = build(&c, 64, 64, 3, 0, 640), columns = transpose(&rows, 3);
  static const int windows[] = {10, 640, 1, 300};
  for (int i = 0; i < 4; i++) {
    for (int q = 0; q < 640; q++) case_row(&c, 0, q, q - windows[i] + 1, q + 1);
    CHECK_OK(fx_runs_build(&c.limits, &rows));
    CHECK_OK(fx_runs_transpose(&rows, &columns));
    check_runs(&c, &rows, &columns, true);
  }
  free(rows.run), free(columns.run);
  case_destroy(&c);
}

static void errors(void) {
  attention_case c = case_create((attention_spec){"document_causal", 2, 20, 20, 1, 1, 8, 1, false, false});
  c.limits.Bm = 1;
  CHECK_STATUS(fx_runs_build(&c.limits, &c.runs[0]), FX_ERR_SHAPE);
  fx_runs columns = fx_runs_plan(2, 20, 20, 3, 3, 3);
  CHECK_STATUS(fx_runs_transpose(&c.runs[0], &columns), FX_ERR_SHAPE);
  case_destroy(&c);
}

static const fx_test g_tests[] = {
    {"runs match brute force", runs_match_brute_force},
    {"causal counts", causal_counts},
    {"chunks of keys", chunks_of_keys},
    {"overflow", overflow},
    {"two intervals", two_intervals},
    {"rebuilt in place", rebuilt_in_place},
    {"errors", errors},
};
FX_TEST_MAIN("attention masks", g_tests)
