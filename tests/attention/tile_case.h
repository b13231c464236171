/* SPDX-License-Identifier: Apache-2.0 */
/* Random variants (their parts need not be one another's derivatives: tile functions only evaluate them),
 * tiles to run them on, and everything that the functions write, compared bit by bit. */
#ifndef FX_TESTS_ATTENTION_TILE_CASE_H
#define FX_TESTS_ATTENTION_TILE_CASE_H

#include "attention/tile/tile.h"
#include "attention/variant/variant.h"
#include "tests/attention/random_expr.h"

enum { CASE_READS = 6, CASE_STRIDE = 40 };

typedef struct tile_case {
  random_expr r;
  fx_variant variant;
  fx_variant_read reads[CASE_READS];
} tile_case;

static inline void tile_case_create(tile_case *c, uint64_t seed) {
  memset(c, 0, sizeof *c);
  random_expr *r = &c->r;
  random_create(r, seed);
  fx_variant *v = &c->variant;
  snprintf(v->name, sizeof v->name, "random %llu */", (unsigned long long)seed);
  v->pool = r->pool;
  v->reads = c->reads;
  v->mask = v->score = v->slope = v->mask_fault = v->score_fault = FX_EX_NONE;
  if (random_below(r, 4)) v->mask = random_make(r, FX_EX_BOOL, 5, false);
  if (random_below(r, 4)) v->score = random_make(r, FX_EX_FLOAT, 5, true);
  if (v->score != FX_EX_NONE && random_below(r, 4)) v->slope = random_make(r, FX_EX_FLOAT, 5, true);
  if (random_below(r, 2)) v->mask_fault = random_make(r, FX_EX_BOOL, 3, false);
  if (random_below(r, 2)) v->score_fault = random_make(r, FX_EX_BOOL, 4, true);
  for (fx_ex i = 0, nodes = fx_ex_pool_count(r->pool); i < nodes && v->num_reads < CASE_READS; i++) {
    fx_ex_node node = *fx_ex_get(r->pool, i);
    if (node.op != FX_EX_LOAD || !fx_ex_buffer_at(r->pool, node.index)->learnable) continue;
    c->reads[v->num_reads++] = (fx_variant_read){node.index, i, random_make(r, FX_EX_FLOAT, 3, true)};
  }
}

static inline void tile_case_destroy(tile_case *c) {
  random_destroy(&c->r);
}

typedef struct tile_data {
  fx_tile_args args;
  int32_t q[FX_TILE_ROWS], kv[FX_TILE_KEYS];
  uint32_t given[FX_TILE_KEYS]; /* bits that tables and in_bounds are asked under */
  float raw[FX_TILE_KEYS * CASE_STRIDE], ds[FX_TILE_KEYS * CASE_STRIDE];
} tile_data;

static inline void tile_data_fill(tile_data *d, tile_case *c) {
  static const int32_t sizes[] = {1, 7, 8, 9, 33, FX_TILE_KEYS};
  random_expr *r = &c->r;
  memset(d, 0, sizeof *d);
  d->args.uniform = r->uniform;
  d->args.buffer = r->buffer;
  d->args.h = random_below(r, r->ranges.H);
  d->args.keys = sizes[random_below(r, 6)];
  int32_t q = random_below(r, r->ranges.T), kv = random_below(r, r->ranges.T_kv);
  for (int i = 0; i < FX_TILE_ROWS; i++) d->q[i] = q + i < r->ranges.T ? q + i : r->ranges.T - 1;
  for (int i = 0; i < FX_TILE_KEYS; i++) d->kv[i] = (kv + i) % r->ranges.T_kv;
  for (int i = 0; i < FX_TILE_KEYS; i++) d->given[i] = random_below(r, 3) ? (uint32_t)random_next(r) : 0;
  for (int i = 0; i < FX_TILE_KEYS * CASE_STRIDE; i++) {
    d->raw[i] = random_float(r);
    d->ds[i] = random_float(r);
  }
  d->args.q = d->q;
  d->args.kv = d->kv;
}

/* What one form of the functions wrote. */
typedef struct tile_results {
  uint32_t bits[FX_TILE_KEYS];
  float score[FX_TILE_KEYS * CASE_STRIDE], with_slope[FX_TILE_KEYS * CASE_STRIDE];
  float slope[FX_TILE_KEYS * CASE_STRIDE], grad[2][512];
  bool in_bounds;
} tile_results;

static inline void tile_run(const fx_tile_functions *f, const tile_data *d, int64_t stride,
                            tile_results *out) {
  fx_tile_args args = d->args;
  float *grad[RANDOM_BUFFERS] = {NULL, NULL, NULL, NULL, NULL, out->grad[0], out->grad[1]};
  memset(out, 0, sizeof *out);
  memcpy(out->score, d->raw, sizeof out->score);
  memcpy(out->with_slope, d->raw, sizeof out->with_slope);
  args.self = f->self;
  args.table_grad = grad;
  if (f->mask) f->mask(&args, out->bits);
  if (f->score) f->score(&args, out->score, stride, 1.25f);
  if (f->score_slope) f->score_slope(&args, out->with_slope, out->slope, stride, 1.25f);
  if (f->tables) f->tables(&args, d->given, d->raw, d->ds, stride);
  if (f->in_bounds) out->in_bounds = f->in_bounds(&args, d->given, d->raw, stride);
}

/* Bitwise, but that one NaN is as good as another. */
static inline int64_t tile_differences(const float *a, const float *b, int64_t count) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; i++) wrong += memcmp(a + i, b + i, 4) != 0 && !(isnan(a[i]) && isnan(b[i]));
  return wrong;
}

static inline bool tile_same(const tile_results *a, const tile_results *b, const char *what) {
  const int64_t all = (int64_t)FX_TILE_KEYS * CASE_STRIDE;
  int64_t bits = 0;
  for (int k = 0; k < FX_TILE_KEYS; k++) bits += a->bits[k] != b->bits[k];
  int64_t score = tile_differences(a->score, b->score, all);
  int64_t with_slope = tile_differences(a->with_slope, b->with_slope, all);
  int64_t slope = tile_differences(a->slope, b->slope, all);
  int64_t grad = tile_differences(a->grad[0], b->grad[0], 2 * 512);
  return CHECK_MSG(
      !bits && !score && !with_slope && !slope && !grad && a->in_bounds == b->in_bounds,
      "%s: differ in mask of %lld keys, %lld scores, %lld scores beside slopes, %lld slopes, %lld "
      "table entries, in_bounds %d and %d",
      what, (long long)bits, (long long)score, (long long)with_slope, (long long)slope, (long long)grad,
      a->in_bounds, b->in_bounds);
}

#endif
