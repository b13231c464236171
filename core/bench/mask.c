/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/mask.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/synthetic.h"
#include "core/bench/visible.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"

enum { REPEATS = 3, MAX_LENGTH = 1 << 24 };

struct fx_bench_mask {
  fx_variant *variant;
  fx_mask_program *program;
  fx_interp *points; /* NULL: everything is visible */
  fx_bench_mask_report report;
  int32_t length, head, tile_q, tile_kv;
  void *data[FX_EX_MAX_BUFFERS]; /* inputs of the batch, one sample */
  const void *buffer[FX_EX_MAX_BUFFERS];
  uint64_t seed;
};

/* ---- made-up inputs ---- */

static fx_status make_inputs(fx_bench_mask *m, int64_t mean) {
  const fx_ex_pool *pool = m->variant->pool;
  for (int32_t i = 0; i < fx_ex_num_buffers(pool); i++) {
    const fx_ex_buffer *d = fx_ex_buffer_at(pool, i);
    if (d->constant || d->learnable) continue;
    int64_t count = 1;
    for (int k = 0; k < d->ndim; k++) count *= d->dim[k];
    FX_TRY(fx_calloc(&m->data[i], (size_t)count, sizeof(int32_t)));
    m->buffer[i] = m->data[i];
    int32_t input = fx_variant_input_find(d->name);
    if (input >= 0)
      (void)fx_synthetic_fill(input, m->data[i], (int32_t)count, mean, m->seed);
    else
      fx_synthetic_fill_buffer(d, m->data[i], count, m->seed);
  }
  int32_t *ids = NULL;
  FX_TRY(fx_calloc(&ids, (size_t)m->length, sizeof *ids));
  m->report.documents = fx_synthetic_fill(FX_SYNTHETIC_DOC_ID, ids, m->length, mean, m->seed);
  free(ids);
  return FX_OK;
}

/* ---- building and counting ---- */

typedef struct built {
  fx_limits limits;
  fx_runs rows, columns;
  void *memory[5];
} built;

static fx_status make_room(fx_bench_mask *m, built *b) {
  fx_bench_mask_report *r = &m->report;
  bool has_limits = r->form == FX_MASK_FORM_LIMITS;
  b->limits = fx_mask_limits_plan(m->program, 1, 1, m->length);
  b->rows = fx_mask_runs_plan(m->program, 1, 1, m->length, m->length, m->tile_q, m->tile_kv, 0);
  b->columns = fx_runs_plan_transposed(&b->rows, b->rows.capacity);
  size_t sizes[5] = {has_limits ? fx_limits_bytes(&b->limits) : 0, fx_mask_limits_scratch(m->program),
                     fx_mask_runs_scratch(m->program, &b->rows), fx_runs_bytes(&b->rows),
                     fx_runs_bytes(&b->columns)};
  for (int i = 0; i < 5; i++) FX_TRY(fx_alloc_aligned(&b->memory[i], sizes[i] + FX_ALIGN));
  if (has_limits) fx_limits_bind(&b->limits, b->memory[0]);
  fx_runs_bind(&b->rows, b->memory[3]);
  fx_runs_bind(&b->columns, b->memory[4]);
  r->limit_bytes = (int64_t)sizes[0];
  r->scratch_bytes = (int64_t)(sizes[1] + sizes[2]);
  r->run_bytes = (int64_t)(sizes[3] + sizes[4]);
  return FX_OK;
}

static void keep_least(double *ms, int64_t begin, int64_t end) {
  double now = (double)(end - begin) * 1e-6;
  if (*ms == 0 || now < *ms) *ms = now;
}

static fx_status build(fx_bench_mask *m, built *b) {
  fx_bench_mask_report *r = &m->report;
  fx_mask_batch batch = {.B = 1, .buffer = m->buffer, .first_head = m->head};
  const fx_limits *limits = r->form == FX_MASK_FORM_LIMITS ? &b->limits : NULL;
  for (int i = 0; i < REPEATS; i++) {
    int64_t at[5] = {fx_now_ns()};
    FX_TRY(fx_mask_check(m->program, &batch));
    at[1] = fx_now_ns();
    if (limits) FX_TRY(fx_mask_limits_build(m->program, &batch, &b->limits, b->memory[1]));
    at[2] = fx_now_ns();
    FX_TRY(fx_mask_runs_build(m->program, &batch, limits, &b->rows, b->memory[2]));
    at[3] = fx_now_ns();
    FX_TRY(fx_runs_transpose(&b->rows, &b->columns));
    at[4] = fx_now_ns();
    keep_least(&r->check_ms, at[0], at[1]);
    keep_least(&r->limits_ms, at[1], at[2]);
    keep_least(&r->rows_ms, at[2], at[3]);
    keep_least(&r->columns_ms, at[3], at[4]);
  }
  return FX_OK;
}

static void count_limits(fx_bench_mask *m, const fx_limits *limits) {
  double visible = 0;
  for (int64_t i = 0; i < (int64_t)limits->R * limits->Tpad; i++) visible += limits->hi[i] - limits->lo[i];
  m->report.density = visible / ((double)m->length * m->length);
  m->report.density_exact = true;
}

static void count_tiles(fx_bench_mask *m, const fx_runs *rows) {
  fx_visible visible = {m->points, m->buffer, m->head};
  double pairs = fx_visible_pairs(&visible, rows, 0, 0, &m->report.density_exact);
  m->report.density = pairs / ((double)m->length * m->length);
}

static fx_status measure(fx_bench_mask *m) {
  fx_bench_mask_report *r = &m->report;
  built b = {.memory = {NULL}};
  fx_status status = make_room(m, &b);
  if (status == FX_OK) status = build(m, &b);
  if (status == FX_OK) {
    fx_runs_totals totals = fx_runs_count(&b.rows);
    r->full = totals.full;
    r->partial = totals.partial;
    r->empty = totals.tiles - totals.full - totals.partial;
    r->joined = b.rows.merged + b.columns.merged;
    if (r->form == FX_MASK_FORM_LIMITS)
      count_limits(m, &b.limits);
    else
      count_tiles(m, &b.rows);
  }
  for (int i = 0; i < 5; i++) free(b.memory[i]);
  return status;
}

/* ---- the mask ---- */

static fx_status check_options(const fx_config *config, const fx_bench_mask_options *o, int64_t length) {
  if (o->layer < 0 || o->layer >= config->model.num_hidden_layers)
    return fx_error(FX_ERR_USAGE, "there is no layer %lld; the model has 0..%lld", (long long)o->layer,
                    (long long)config->model.num_hidden_layers - 1);
  if (o->head < 0 || o->head >= config->model.num_attention_heads)
    return fx_error(FX_ERR_USAGE, "there is no head %lld; the model has 0..%lld", (long long)o->head,
                    (long long)config->model.num_attention_heads - 1);
  if (length < 1 || length > MAX_LENGTH)
    return fx_error(FX_ERR_USAGE, "a length of %lld cannot be shown; expected 1..%d", (long long)length,
                    MAX_LENGTH);
  if (o->tile_q < 1 || o->tile_kv < 1 || o->tile_q > 65536 || o->tile_kv > 65536)
    return fx_error(FX_ERR_USAGE, "tiles of %d x %d; expected 1..65536 each", o->tile_q, o->tile_kv);
  return FX_OK;
}

static fx_status analyse(fx_bench_mask *m, const fx_config *config, const fx_bench_mask_options *o) {
  fx_bench_mask_report *r = &m->report;
  fx_ex_ranges ranges = {(int32_t)config->model.num_attention_heads, m->length, m->length};
  FX_TRY(fx_config_variant(config, fx_config_layer_variant(config, o->layer), &ranges, &m->variant));
  int64_t begin = fx_now_ns();
  FX_TRY(fx_mask_program_create(m->variant->pool, m->variant->mask, &m->program));
  r->analysis_ms = (double)(fx_now_ns() - begin) * 1e-6;
  const fx_mask_facts *facts = fx_mask_program_facts(m->program);
  snprintf(r->name, sizeof r->name, "%s", m->variant->name);
  r->text = m->variant->text;
  r->form = facts->form, r->R = facts->R;
  r->per_sample = facts->per_sample, r->per_head = facts->per_head;
  r->length = m->length;
  FX_TRY(make_inputs(m, o->documents));
  if (r->form == FX_MASK_FORM_NONE) {
    r->full = fx_ceil_div(m->length, m->tile_q) * fx_ceil_div(m->length, m->tile_kv);
    r->density = 1, r->density_exact = true;
    return FX_OK;
  }
  FX_TRY(fx_interp_create(m->variant->pool, &m->variant->mask, 1, &m->points));
  return measure(m);
}

fx_status fx_bench_mask_create(const fx_config *config, const fx_bench_mask_options *options,
                               fx_bench_mask **mask) {
  int64_t length = options->length ? options->length : config->train.seq_length;
  FX_TRY(check_options(config, options, length));
  fx_bench_mask *m = NULL;
  FX_TRY(fx_calloc(&m, 1, sizeof *m));
  m->length = (int32_t)length;
  m->head = (int32_t)options->head;
  m->tile_q = options->tile_q, m->tile_kv = options->tile_kv;
  m->seed = options->seed;
  fx_status status = analyse(m, config, options);
  if (status != FX_OK) {
    fx_bench_mask_destroy(m);
    return status;
  }
  *mask = m;
  return FX_OK;
}

void fx_bench_mask_destroy(fx_bench_mask *m) {
  if (!m) return;
  for (int i = 0; i < FX_EX_MAX_BUFFERS; i++) free(m->data[i]);
  fx_interp_destroy(m->points);
  fx_mask_program_destroy(m->program);
  fx_variant_destroy(m->variant);
  free(m);
}

const fx_bench_mask_report *fx_bench_mask_get(const fx_bench_mask *mask) {
  return &mask->report;
}

fx_status fx_bench_mask_draw(const fx_bench_mask *m, int32_t rows, int32_t columns, float *density) {
  fx_visible visible = {m->points, m->buffer, m->head};
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      int64_t q0 = i * m->length / rows, q1 = fx_max_i64((i + 1) * m->length / rows, q0 + 1);
      int64_t k0 = j * m->length / columns, k1 = fx_max_i64((j + 1) * m->length / columns, k0 + 1);
      density[i * columns + j] =
          m->points ? (float)fx_visible_part(&visible, q0, q1, k0, k1, FX_VISIBLE_CELL) : 1.0f;
    }
  return FX_OK;
}
