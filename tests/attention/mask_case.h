/* SPDX-License-Identifier: Apache-2.0 */
/* Masks against brute force: every pair of every sample and head is asked, then limits, row runs and
 * transposed runs must say exactly the same. */
#ifndef FX_TESTS_ATTENTION_MASK_CASE_H
#define FX_TESTS_ATTENTION_MASK_CASE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/mask/mask.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

/* What a pair is, by somebody who knows nothing of expressions (or, for random masks, by the interpreter). */
typedef bool (*mask_oracle)(const void *self, int32_t b, int32_t h, int32_t q, int32_t kv);

typedef struct mask_case {
  const char *name;
  const fx_mask_program *program;
  fx_mask_batch batch;
  int32_t H, T, T_kv; /* that are here */
  mask_oracle oracle;
  const void *self;
  uint8_t *sees; /* [B][H][T][T_kv], filled by mask_case_ask */
} mask_case;

enum { MASK_EMPTY = -1 };

static inline void *mask_room(size_t bytes) {
  void *memory = NULL;
  if (fx_alloc_aligned(&memory, bytes ? bytes : 64) != FX_OK) abort();
  memset(memory, 0x5A, bytes); /* stale entries of an earlier batch */
  return memory;
}

static inline void mask_case_ask(mask_case *c) {
  int64_t at = 0;
  c->sees = malloc((size_t)c->batch.B * (size_t)c->H * (size_t)c->T * (size_t)c->T_kv);
  for (int32_t b = 0; b < c->batch.B; b++)
    for (int32_t h = 0; h < c->H; h++)
      for (int32_t q = 0; q < c->T; q++)
        for (int32_t kv = 0; kv < c->T_kv; kv++)
          c->sees[at++] = c->oracle(c->self, b, c->batch.first_head + h, fx_position(&c->batch.q, q),
                                    fx_position(&c->batch.kv, kv));
}

static inline bool mask_sees(const mask_case *c, int32_t b, int32_t h, int64_t q, int64_t kv) {
  return c->sees[(((int64_t)b * c->H + h) * c->T + q) * c->T_kv + kv];
}

/* Wrong pairs, ill-formed rows. Keys that are not here are asked of the oracle. */
static inline int64_t mask_wrong_limits(const mask_case *c, const fx_limits *limits) {
  int64_t wrong = 0;
  for (int32_t b = 0; b < c->batch.B; b++)
    for (int32_t h = 0; h < c->H; h++)
      for (int32_t t = 0; t < limits->Tpad; t++) {
        int32_t last = -1;
        bool ended = false;
        for (int32_t r = 0; r < limits->R; r++) {
          int64_t at = fx_limits_at(limits, r, b, h) + t;
          int32_t lo = limits->lo[at], hi = limits->hi[at];
          bool empty = lo == hi;
          wrong += empty ? lo != 0 : (lo <= last || lo > hi || hi > limits->T_kv || ended || t >= limits->T);
          ended = ended || empty;
          last = empty ? last : hi;
        }
        for (int32_t kv = 0; t < limits->T && kv < c->T_kv; kv++) {
          int32_t position = fx_position(&c->batch.kv, kv);
          bool inside = false;
          for (int32_t r = 0; r < limits->R; r++) {
            int64_t at = fx_limits_at(limits, r, b, h) + t;
            inside = inside || (limits->lo[at] <= position && position < limits->hi[at]);
          }
          wrong += inside != mask_sees(c, b, h, t, kv);
        }
      }
  return wrong;
}

static inline int mask_tile_kind(const mask_case *c, int32_t b, int32_t h, int64_t i, int64_t j,
                                 int32_t tile_q, int32_t tile_kv) {
  int64_t seen = 0, all = 0;
  for (int64_t q = i * tile_q; q < (i + 1) * tile_q && q < c->T; q++)
    for (int64_t kv = j * tile_kv; kv < (j + 1) * tile_kv && kv < c->T_kv; kv++, all++)
      seen += mask_sees(c, b, h, q, kv);
  return seen == 0 ? MASK_EMPTY : seen == all ? FX_RUN_FULL : FX_RUN_PARTIAL;
}

/* kinds[tiles] of a list; false where the list is not sorted or leaves the tiles. */
static inline bool mask_spread(const fx_runs *runs, int32_t b, int32_t h, int32_t block, int8_t *kinds) {
  int32_t count, at = 0;
  const fx_run *run = fx_runs_get_head(runs, b, h, block, &count);
  memset(kinds, MASK_EMPTY, (size_t)runs->tiles);
  for (int32_t k = 0; k < count; k++) {
    if (run[k].begin < at || run[k].begin >= run[k].end || run[k].end > runs->tiles) return false;
    at = run[k].end;
    memset(kinds + run[k].begin, run[k].kind, (size_t)(run[k].end - run[k].begin));
  }
  return count <= runs->capacity;
}

/* Tiles whose kind is not brute force's; with a list that overflowed, partial may stand for anything. */
static inline int64_t mask_wrong_tiles(const mask_case *c, const fx_runs *rows, const fx_runs *columns) {
  int64_t wrong = 0;
  int8_t *row = malloc((size_t)rows->tiles), *all = malloc((size_t)rows->tiles * (size_t)rows->blocks),
         *column = malloc((size_t)rows->blocks);
  for (int32_t b = 0; b < c->batch.B; b++)
    for (int32_t h = 0; h < c->H; h++) {
      for (int32_t i = 0; i < rows->blocks; i++) {
        wrong += !mask_spread(rows, b, h, i, row);
        for (int32_t j = 0; j < rows->tiles; j++) {
          int want = mask_tile_kind(c, b, h, i, j, rows->block, rows->tile);
          all[(int64_t)i * rows->tiles + j] = (int8_t)want;
          wrong += row[j] != want && !(rows->merged && row[j] == FX_RUN_PARTIAL);
        }
      }
      for (int32_t j = 0; j < rows->tiles; j++) {
        wrong += !mask_spread(columns, b, h, j, column);
        for (int32_t i = 0; i < rows->blocks; i++)
          wrong += column[i] != all[(int64_t)i * rows->tiles + j] &&
                   !((rows->merged || columns->merged) && column[i] == FX_RUN_PARTIAL);
      }
    }
  free(row), free(all), free(column);
  return wrong;
}

/* Builds everything in tile_q x tile_kv and compares. capacity 0: as much as there are tiles. Returns the
 * joins. */
static inline int64_t mask_case_tiles(const mask_case *c, const fx_limits *limits, int32_t tile_q,
                                      int32_t tile_kv, int32_t capacity) {
  int32_t most = (int32_t)fx_max_i64(fx_ceil_div(c->T, tile_q), fx_ceil_div(c->T_kv, tile_kv));
  fx_runs rows = fx_mask_runs_plan(c->program, c->batch.B, c->H, c->T, c->T_kv, tile_q, tile_kv,
                                   capacity ? capacity : most);
  void *memory = mask_room(fx_runs_bytes(&rows)),
       *scratch = mask_room(fx_mask_runs_scratch(c->program, &rows));
  fx_runs_bind(&rows, memory);
  CHECK_OK(fx_mask_runs_build(c->program, &c->batch, limits, &rows, scratch));
  fx_runs columns = fx_runs_plan_transposed(&rows, capacity ? capacity : most);
  void *other = mask_room(fx_runs_bytes(&columns));
  fx_runs_bind(&columns, other);
  CHECK_OK(fx_runs_transpose(&rows, &columns));
  if (!capacity) CHECK_INT(rows.merged + columns.merged, 0);
  int64_t wrong = mask_wrong_tiles(c, &rows, &columns);
  CHECK_MSG(wrong == 0, "%s: %lld tiles of %d x %d wrong, T %d x %d", c->name, (long long)wrong, tile_q,
            tile_kv, c->T, c->T_kv);
  free(memory), free(other), free(scratch);
  return rows.merged + columns.merged;
}

static const int32_t mask_tiles[][2] = {{128, 128}, {64, 48}, {176, 80}, {16, 100}, {37, 7}};

/* Limits where there are any, and tiles of all sizes. */
static inline void mask_case_check(mask_case *c) {
  const fx_mask_facts *facts = fx_mask_program_facts(c->program);
  CHECK_OK(fx_mask_check(c->program, &c->batch));
  mask_case_ask(c);
  int64_t pairs = (int64_t)c->batch.B * c->H * c->T * c->T_kv, hidden = 0;
  for (int64_t i = 0; i < pairs; i++) hidden += !c->sees[i];
  if (facts->form == FX_MASK_FORM_NONE) {
    CHECK_MSG(hidden == 0, "%s: taken for a mask that hides nothing", c->name);
  } else {
    fx_limits limits = fx_mask_limits_plan(c->program, c->batch.B, c->H, c->T);
    bool has_limits = facts->form == FX_MASK_FORM_LIMITS;
    void *memory = NULL, *scratch = NULL;
    if (has_limits) {
      fx_limits_bind(&limits, memory = mask_room(fx_limits_bytes(&limits)));
      scratch = mask_room(fx_mask_limits_scratch(c->program));
      CHECK_OK(fx_mask_limits_build(c->program, &c->batch, &limits, scratch));
      int64_t wrong = mask_wrong_limits(c, &limits);
      CHECK_MSG(wrong == 0, "%s: limits of %lld pairs wrong, T %d x %d", c->name, (long long)wrong, c->T,
                c->T_kv);
    }
    for (int t = 0; t < 5; t++)
      mask_case_tiles(c, has_limits ? &limits : NULL, mask_tiles[t][0], mask_tiles[t][1], 0);
    free(memory), free(scratch);
  }
  free(c->sees);
  c->sees = NULL;
}

#endif
