/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/layer.h"
#include "core/model/context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/product.h"
#include "core/bench/visible.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"

enum { MAX_LENGTH = 1 << 22, MAX_BATCH = 4096, MAX_STEPS = 1000 };

fx_status fx_bench_layer_check(const fx_config *config, const fx_bench_layer_options *o, int64_t length,
                               int64_t least) {
  if (o->layer < 0 || o->layer >= config->model.num_hidden_layers)
    return fx_error(FX_ERR_USAGE, "there is no layer %lld; the model has 0..%lld", (long long)o->layer,
                    (long long)config->model.num_hidden_layers - 1);
  if (length < least || length > MAX_LENGTH)
    return fx_error(FX_ERR_USAGE, "a length of %lld cannot be timed; expected %lld..%d", (long long)length,
                    (long long)least, MAX_LENGTH);
  if (o->batch < 1 || o->batch > MAX_BATCH)
    return fx_error(FX_ERR_USAGE, "a batch of %lld cannot be timed; expected 1..%d", (long long)o->batch,
                    MAX_BATCH);
  if (o->steps < 1 || o->steps > MAX_STEPS)
    return fx_error(FX_ERR_USAGE, "%d steps; expected 1..%d", o->steps, MAX_STEPS);
  return FX_OK;
}

fx_dtype fx_bench_layer_dtype(const fx_device *device, const fx_bench_layer_options *o) {
  if (o->dtype != FX_DTYPE_COUNT) return o->dtype;
  return device->backend == FX_BACKEND_CPU ? FX_F32 : FX_BF16;
}

/* ---- memory ---- */

static int64_t fused_width(const fx_bench_layer *l) {
  return (l->H + 2 * l->K) * l->D;
}

static fx_status make_room(const fx_bench_layer *l, int64_t width, void **out) {
  return fx_device_alloc(l->device, (size_t)(l->B * l->rows * width) * fx_dtype_bytes(l->dtype), out);
}

static fx_status make_zeros(const fx_bench_layer *l, int64_t floats, void **out) {
  size_t bytes = (size_t)floats * sizeof(float);
  FX_TRY(fx_device_alloc(l->device, bytes, out));
  return fx_device_fill(l->device, FX_LANE_COMPUTE, *out, 0, bytes);
}

static fx_status make_parameters(fx_bench_layer *l) {
  const fx_flex_variant *flex = l->kind->flex;
  if (flex->variant->sinks) {
    FX_TRY(fx_bench_random(l->device, FX_F32, l->H, 5, &l->sinks));
    FX_TRY(make_zeros(l, l->H, &l->dsinks));
  }
  for (int32_t t = 0; t < fx_flex_num_tables(flex); t++) {
    int64_t n = fx_flex_table_floats(flex, t);
    FX_TRY(fx_bench_random(l->device, FX_F32, n, 6, &l->table[t]));
    FX_TRY(make_zeros(l, n, &l->dtable[t]));
  }
  return FX_OK;
}

static fx_status make_batch(fx_bench_layer *l, const fx_bench_layer_options *o) {
  for (int i = 0; i < FX_SYNTHETIC_ROWS; i++)
    FX_TRY(fx_calloc(&l->batch[i], (size_t)(l->B * l->T), sizeof(int32_t)));
  for (int64_t b = 0; b < l->B; b++) {
    int32_t *rows[FX_SYNTHETIC_ROWS], documents = 0;
    for (int i = 0; i < FX_SYNTHETIC_ROWS; i++) rows[i] = l->batch[i] + b * l->T;
    FX_TRY(fx_synthetic_sample(rows, (int32_t)l->T, o->documents, o->seed + 1000 * (uint64_t)b,
                               l->setup->turn_token, &documents));
    l->documents += documents;
  }
  return FX_OK;
}

fx_status fx_bench_layer_init(const fx_config *config, fx_device *device, const fx_bench_layer_options *o,
                              int64_t T, int ranks, int rank, bool keep_out, fx_bench_layer *l) {
  const fx_config_model *m = &config->model;
  *l = (fx_bench_layer){.device = device,
                        .B = o->batch,
                        .T = T,
                        .H = m->num_attention_heads,
                        .K = m->num_key_value_heads,
                        .D = m->head_dim,
                        .dtype = fx_bench_layer_dtype(device, o),
                        .index = fx_config_layer_variant(config, o->layer)};
  FX_TRY(fx_attention_setup_create_for(config, device->backend, l->B, T, ranks, rank, &l->setup));
  l->rows = l->setup->rows;
  l->kind = &l->setup->kind[l->index];
  FX_TRY(fx_inputs_create(1, &l->inputs));
  FX_TRY(fx_attention_declare(l->setup, l->inputs));
  FX_TRY(fx_inputs_allocate_on(l->inputs, device));
  FX_TRY(make_batch(l, o));
  if (keep_out) FX_TRY(make_room(l, l->H * l->D, &l->out));
  FX_TRY(make_room(l, fused_width(l), &l->dqkv));
  return make_parameters(l);
}

void fx_bench_layer_fini(fx_bench_layer *l) {
  fx_plan_destroy(l->plan);
  void *memory[] = {l->arena, l->qkv, l->dqkv, l->dout, l->out, l->sinks, l->dsinks};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) fx_device_release(l->device, memory[i]);
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) {
    fx_device_release(l->device, l->table[t]);
    fx_device_release(l->device, l->dtable[t]);
  }
  fx_inputs_destroy(l->inputs);
  fx_attention_setup_destroy(l->setup);
  for (int i = 0; i < FX_SYNTHETIC_ROWS; i++) free(l->batch[i]);
  *l = (fx_bench_layer){.device = NULL};
}

/* ---- batch and operands ---- */

fx_attention_batch fx_bench_layer_batch(const fx_bench_layer *l) {
  return (fx_attention_batch){l->batch[0], l->batch[1], l->batch[2], l->batch[3]};
}

static void *field_data(const fx_bench_layer *l, int field) {
  return fx_inputs_data(l->inputs, 0, l->setup->field[field].name);
}

void fx_bench_layer_fields(const fx_bench_layer *l, void *memory[FX_ATTENTION_MAX_FIELDS]) {
  for (int i = 0; i < l->setup->num_fields; i++) memory[i] = field_data(l, i);
}

fx_status fx_bench_layer_randomize(fx_bench_layer *l) {
  int64_t tokens = l->B * l->rows;
  FX_TRY(fx_bench_random(l->device, l->dtype, tokens * fused_width(l), 1, &l->qkv));
  return fx_bench_random(l->device, l->dtype, tokens * l->H * l->D, 2, &l->dout);
}

fx_status fx_bench_layer_take(fx_bench_layer *l, const fx_bench_layer *whole) {
  FX_TRY(make_room(l, fused_width(l), &l->qkv));
  FX_TRY(make_room(l, l->H * l->D, &l->dout));
  FX_TRY(fx_bench_layer_copy_rows(l, fused_width(l), whole->qkv, l->qkv));
  FX_TRY(fx_bench_layer_copy_rows(l, l->H * l->D, whole->dout, l->dout));
  return fx_device_sync(l->device);
}

fx_status fx_bench_layer_copy_rows(const fx_bench_layer *l, int64_t width, const void *whole, void *local) {
  size_t row = (size_t)width * fx_dtype_bytes(l->dtype), block = FX_LIMITS_ALIGN * row;
  int64_t blocks = l->rows / FX_LIMITS_ALIGN;
  const int32_t *mine = (const int32_t *)field_data(l, l->setup->blocks) + l->setup->rank * blocks;
  for (int64_t b = 0; b < l->B; b++)
    for (int64_t i = 0; i < blocks; i++)
      FX_TRY(fx_device_copy(l->device, FX_LANE_COMPUTE, (char *)local + (size_t)(b * blocks + i) * block,
                            (const char *)whole + (size_t)(b * l->T + mine[i]) * row, block));
  return FX_OK;
}

/* ---- the graph ---- */

/* A loss whose gradient by x is dx and costs nothing: backwards begin with a gradient in a training step too.
 * What it looks at is never read. x, dx -> [1] */
static fx_status seed_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in;
  (void)attr;
  out[0] = fx_type_1d(FX_F32, 1);
  return FX_OK;
}

static fx_status seed_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  (void)dout;
  din[0] = node->in[1];
  return fx_graph_status(graph);
}

static const fx_op g_seed = {.name = "seed",
                             .min_in = 2,
                             .max_in = 2,
                             .num_out = 1,
                             .attr_bytes = sizeof(fx_view_attr),
                             .effects = FX_EFFECT_VIEW,
                             .infer = seed_infer,
                             .vjp = seed_vjp};

static fx_value input_of(const fx_bench_layer *l, fx_graph *graph, int field) {
  return field < 0 ? FX_NONE : fx_graph_input(FX_AT(graph), l->setup->field[field].name);
}

static fx_attention_inputs inputs_of(const fx_bench_layer *l, fx_graph *graph) {
  const fx_attention_kind *kind = l->kind;
  fx_attention_inputs in = fx_attention_no_inputs();
  in.limits = input_of(l, graph, kind->limits);
  in.runs = input_of(l, graph, kind->runs);
  in.runs_backward = input_of(l, graph, kind->runs < 0 ? -1 : kind->runs + 1);
  in.buffers = input_of(l, graph, kind->buffers);
  if (l->sinks) in.sinks = fx_graph_persistent(FX_AT(graph), "sinks", l->sinks, fx_type_1d(FX_F32, l->H));
  for (int32_t t = 0; t < fx_flex_num_tables(kind->flex); t++)
    in.table[t] = fx_graph_persistent(FX_AT(graph), "table", l->table[t],
                                      fx_type_1d(FX_F32, fx_flex_table_floats(kind->flex, t)));
  return in;
}

static void store(fx_graph *graph, const char *name, void *place, fx_value of, fx_value value) {
  if (fx_graph_status(graph) != FX_OK) return;
  fx_type type = *fx_graph_type(graph, of);
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), name, place, type), value);
}

/* Gradients by the fused q, k, v and by the parameters, each to its place. */
static void record_backward(const fx_bench_layer *l, fx_graph *graph, const fx_attention_inputs *in,
                            fx_value qkv, fx_value out, fx_value dout) {
  fx_value wrt[2 + FX_VARIANT_MAX_TABLES] = {qkv}, grads[2 + FX_VARIANT_MAX_TABLES];
  void *place[2 + FX_VARIANT_MAX_TABLES] = {l->dqkv};
  int count = 1;
  if (l->sinks) wrt[count] = in->sinks, place[count++] = l->dsinks;
  for (int32_t t = 0; t < fx_flex_num_tables(l->kind->flex); t++)
    wrt[count] = in->table[t], place[count++] = l->dtable[t];
  fx_view_attr attr = {0};
  fx_value loss = fx_graph_record(FX_AT(graph), &g_seed, &attr, (fx_value[]){out, dout}, NULL);
  if (loss == FX_NONE) return;
  fx_status status = fx_autograd(graph, loss, wrt, count, grads);
  if (status != FX_OK) (void)fx_graph_fail(graph, status);
  for (int i = 0; status == FX_OK && i < count; i++) store(graph, "gradient", place[i], wrt[i], grads[i]);
}

static void record(const fx_bench_layer *l, fx_graph *graph, fx_comm *comm) {
  int64_t H = l->H, K = l->K, D = l->D;
  fx_value qkv =
      fx_graph_persistent(FX_AT(graph), "qkv", l->qkv, fx_type_3d(l->dtype, l->B, l->rows, fused_width(l)));
  fx_value dout = fx_graph_persistent(FX_AT(graph), "dout", l->dout,
                                      fx_type_of(l->dtype, 4, (int64_t[]){l->B, l->rows, H, D}));
  fx_value q = fx_slice_heads(FX_AT(graph), qkv, 0, H, D);
  fx_value k = fx_slice_heads(FX_AT(graph), qkv, H * D, K, D);
  fx_value v = fx_slice_heads(FX_AT(graph), qkv, (H + K) * D, K, D);
  fx_attention_inputs in = inputs_of(l, graph);
  fx_attention_attr attr = l->kind->attr;
  attr.scale = (float)(1 / sqrt((double)D));
  fx_context_blocks blocks = {FX_NONE, FX_NONE, FX_NONE, {0, 0}};
  if (comm)
    blocks = fx_context_values(FX_AT(graph), l->setup, input_of(l, graph, l->setup->blocks),
                               input_of(l, graph, l->setup->shared));
  fx_value out = comm ? fx_context_attention(FX_AT(graph), comm, FX_LANE_COMM_CRITICAL, l->setup->exchange, q,
                                             k, v, &blocks, &in, attr, NULL)
                      : fx_flex_attention(FX_AT(graph), q, k, v, &in, attr, NULL);
  if (out == FX_NONE) return;
  record_backward(l, graph, &in, qkv, out, dout);
  if (l->out) store(graph, "out", l->out, dout, out);
}

void fx_bench_layer_fit(fx_bench_layer *l) {
  void *memory[FX_ATTENTION_MAX_FIELDS];
  fx_bench_layer_fields(l, memory);
  l->setup->room = l->setup->rung[fx_attention_rung(l->setup, memory)];
}

fx_status fx_bench_layer_plan(fx_bench_layer *l, fx_comm *comm) {
  fx_graph *graph = fx_graph_create(l->inputs);
  if (!graph) return fx_error(FX_ERR_MEMORY, "no memory for a graph");
  record(l, graph, comm);
  FX_TRY(fx_plan_prepare(graph, (fx_plan_options){.name = "attention"}, l->device, &l->plan));
  return fx_device_alloc(l->device, fx_plan_stats_get(l->plan)->arena.bytes, &l->arena);
}

/* ---- visible pairs ---- */

static double pairs_by_limits(const fx_bench_layer *l) {
  const fx_attention_attr *attr = &l->kind->attr;
  int64_t rows = (int64_t)attr->R * attr->Bm * attr->Hm * fx_attention_tpad((int32_t)l->T);
  const int32_t *lo = field_data(l, l->kind->limits), *hi = lo + rows;
  double pairs = 0;
  for (int64_t i = 0; i < rows; i++) pairs += hi[i] - lo[i];
  return pairs / attr->Hm * (double)(attr->Bm == 1 ? l->B : 1);
}

/* By the forward's run lists, over samples and heads that differ. */
static double pairs_by_runs(const fx_bench_layer *l, const fx_interp *mask, bool *exact) {
  const fx_attention_attr *attr = &l->kind->attr;
  const fx_flex_variant *flex = l->kind->flex;
  const int32_t *tile = l->setup->tile[0];
  fx_runs runs = fx_runs_plan(attr->runs_Bm, (int32_t)l->T, (int32_t)l->T, tile[0], tile[1], attr->capacity);
  runs.Hm = attr->runs_Hm;
  fx_runs_bind(&runs, field_data(l, l->kind->runs));
  double pairs = 0;
  for (int32_t s = 0; s < attr->runs_Bm; s++) {
    const void *buffer[FX_EX_MAX_BUFFERS] = {NULL};
    for (int32_t i = 0; i < flex->num_inputs; i++)
      buffer[flex->input[i].buffer] = (int32_t *)field_data(l, l->kind->buffers) +
                                      fx_flex_blob_offset(flex, i, l->B) +
                                      (flex->input[i].per_batch ? s * flex->input[i].words : 0);
    for (int32_t h = 0; h < fx_runs_heads(&runs); h++) {
      bool all;
      pairs += fx_visible_pairs(&(fx_visible){mask, buffer, h}, &runs, s, h, &all);
      *exact = *exact && all;
    }
  }
  return pairs / fx_runs_heads(&runs) * (double)(attr->runs_Bm == 1 ? l->B : 1);
}

fx_status fx_bench_layer_pairs(const fx_bench_layer *l, double *pairs, bool *exact) {
  *exact = true;
  if (l->kind->limits >= 0) {
    *pairs = pairs_by_limits(l);
  } else if (l->kind->program) {
    fx_interp *mask = NULL;
    const fx_variant *variant = l->kind->flex->variant;
    FX_TRY(fx_interp_create(variant->pool, &variant->mask, 1, &mask));
    *pairs = pairs_by_runs(l, mask, exact);
    fx_interp_destroy(mask);
  } else {
    *pairs = (double)l->B * (double)l->T * (double)l->T;
  }
  return FX_OK;
}
