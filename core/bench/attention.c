/* SPDX-License-Identifier: Apache-2.0 */
/* One recorded graph holds the op and its gradient: views of a fused q, k, v in, views of its gradient out,
 * the mask as runtime inputs, as in a training step. What is timed are the spans of the two kernels. */
#include "core/bench/attention.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/bench/machine.h"
#include "core/bench/product.h"
#include "core/bench/synthetic.h"
#include "core/bench/visible.h"
#include "core/model/attention.h"
#include "core/train/device.h"
#include "core/train/memory.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/plan/plan.h"

enum { GEMM_SIZE = 2048, GPU_GEMM_SIZE = 8192 };
enum { MASK_REPEATS = 5, SPANS = 1 << 12, MAX_LENGTH = 1 << 22, MAX_STEPS = 1000 };

typedef struct bench {
  const fx_config *config;
  const fx_bench_attention_options *options;
  fx_device *device;
  int64_t B, T, H, K, D;
  int32_t index; /* kind of the layer */
  fx_attention_setup *setup;
  fx_attention_kind *kind; /* of the setup */
  fx_inputs *inputs;
  int32_t *batch[4]; /* tokens, positions, doc_start, doc_end */
  fx_dtype dtype;
  void *qkv, *dqkv, *dout; /* in memory of the device, as are: */
  void *sinks, *dsinks, *table[FX_VARIANT_MAX_TABLES], *dtable[FX_VARIANT_MAX_TABLES];
  fx_plan *plan;
  void *arena;
  fx_trace *trace;
  fx_bench_product *product; /* lives longer than the rest */
} bench;

/* ---- inputs ---- */

static fx_status make_zeros(const bench *b, int64_t floats, void **out) {
  size_t bytes = (size_t)floats * sizeof(float);
  FX_TRY(fx_device_alloc(b->device, bytes, out));
  return fx_device_fill(b->device, FX_LANE_COMPUTE, *out, 0, bytes);
}

static fx_status make_parameters(bench *b) {
  const fx_flex_variant *flex = b->kind->flex;
  if (flex->variant->sinks) {
    FX_TRY(fx_bench_random(b->device, FX_F32, b->H, 5, &b->sinks));
    FX_TRY(make_zeros(b, b->H, &b->dsinks));
  }
  for (int32_t t = 0; t < fx_flex_num_tables(flex); t++) {
    int64_t n = fx_flex_table_floats(flex, t);
    FX_TRY(fx_bench_random(b->device, FX_F32, n, 6, &b->table[t]));
    FX_TRY(make_zeros(b, n, &b->dtable[t]));
  }
  return FX_OK;
}

/* One sample's documents; the token that ends a turn stands where the made-up turns end. */
static int32_t fill_sample(bench *b, int64_t sample, int32_t *turns) {
  static const int32_t input[4] = {FX_SYNTHETIC_TOKEN, FX_SYNTHETIC_POSITION, FX_SYNTHETIC_DOC_START,
                                   FX_SYNTHETIC_DOC_END};
  uint64_t seed = b->options->seed + 1000 * (uint64_t)sample;
  int64_t mean = b->options->documents;
  int32_t n = (int32_t)b->T, end_of_turn = b->setup->turn_token, *at[4], documents = 0;
  for (int i = 0; i < 4; i++) {
    at[i] = b->batch[i] + sample * b->T;
    documents = fx_synthetic_fill(input[i], at[i], n, mean, seed);
  }
  (void)fx_synthetic_fill(FX_SYNTHETIC_TURN, turns, n, mean, seed);
  for (int32_t t = 0; t + 1 < n; t++) {
    bool ends = at[2][t + 1] == at[2][t] && turns[t + 1] != turns[t];
    if (ends)
      at[0][t] = end_of_turn;
    else if (at[0][t] == end_of_turn)
      at[0][t]++;
  }
  return documents;
}

static fx_status make_batch(bench *b, fx_bench_attention_report *r) {
  int32_t *turns = NULL;
  for (int i = 0; i < 4; i++) FX_TRY(fx_calloc(&b->batch[i], (size_t)(b->B * b->T), sizeof(int32_t)));
  FX_TRY(fx_calloc(&turns, (size_t)b->T, sizeof *turns));
  r->documents = 0;
  for (int64_t s = 0; s < b->B; s++) r->documents += fill_sample(b, s, turns);
  free(turns);
  return FX_OK;
}

/* ---- the mask ---- */

static fx_status build_mask(bench *b, fx_bench_attention_report *r) {
  fx_attention_batch batch = {b->batch[0], b->batch[1], b->batch[2], b->batch[3]};
  void *memory[FX_ATTENTION_MAX_FIELDS];
  char *scratch = NULL;
  fx_status status = FX_OK;
  for (int i = 0; i < b->setup->num_fields; i++)
    memory[i] = fx_inputs_data(b->inputs, 0, b->setup->field[i].name);
  FX_TRY(fx_alloc_aligned(&scratch, b->setup->scratch_bytes + FX_ALIGN));
  for (int i = 0; status == FX_OK && i < MASK_REPEATS; i++) {
    int64_t begin = fx_now_ns();
    status = fx_attention_fill_kind(b->setup, b->index, &batch, memory, scratch);
    double ms = (double)(fx_now_ns() - begin) * 1e-6;
    if (i == 0 || ms < r->mask_build_ms) r->mask_build_ms = ms;
  }
  free(scratch);
  return status;
}

static void *field_data(const bench *b, int field) {
  return fx_inputs_data(b->inputs, 0, b->setup->field[field].name);
}

static double pairs_by_limits(const bench *b) {
  const fx_attention_attr *attr = &b->kind->attr;
  int64_t rows = (int64_t)attr->R * attr->Bm * attr->Hm * fx_attention_tpad((int32_t)b->T);
  const int32_t *lo = field_data(b, b->kind->limits), *hi = lo + rows;
  double pairs = 0;
  for (int64_t i = 0; i < rows; i++) pairs += hi[i] - lo[i];
  return pairs / attr->Hm * (double)(attr->Bm == 1 ? b->B : 1);
}

/* By the forward's run lists, over samples and heads that differ. */
static double pairs_by_runs(const bench *b, const fx_interp *mask, bool *exact) {
  const fx_attention_attr *attr = &b->kind->attr;
  const fx_flex_variant *flex = b->kind->flex;
  const int32_t *tile = b->setup->tile[0];
  fx_runs runs = fx_runs_plan(attr->runs_Bm, (int32_t)b->T, (int32_t)b->T, tile[0], tile[1], attr->capacity);
  runs.Hm = attr->runs_Hm;
  fx_runs_bind(&runs, field_data(b, b->kind->runs));
  double pairs = 0;
  *exact = true;
  for (int32_t s = 0; s < attr->runs_Bm; s++) {
    const void *buffer[FX_EX_MAX_BUFFERS] = {NULL};
    for (int32_t i = 0; i < flex->num_inputs; i++)
      buffer[flex->input[i].buffer] = (int32_t *)field_data(b, b->kind->buffers) +
                                      fx_flex_blob_offset(flex, i, b->B) +
                                      (flex->input[i].per_batch ? s * flex->input[i].words : 0);
    for (int32_t h = 0; h < fx_runs_heads(&runs); h++) {
      bool all;
      pairs += fx_visible_pairs(&(fx_visible){mask, buffer, h}, &runs, s, h, &all);
      *exact = *exact && all;
    }
  }
  return pairs / fx_runs_heads(&runs) * (double)(attr->runs_Bm == 1 ? b->B : 1);
}

static fx_status count_pairs(const bench *b, fx_bench_attention_report *r) {
  double all = (double)b->B * (double)b->T * (double)b->T;
  r->form = "none", r->R = 0;
  r->visible_pairs = all;
  r->density_exact = true;
  if (b->kind->program) {
    const fx_mask_facts *facts = fx_mask_program_facts(b->kind->program);
    r->form = facts->form == FX_MASK_FORM_LIMITS ? "limits" : "expression";
    r->R = facts->R;
  }
  if (b->kind->limits >= 0) {
    r->visible_pairs = pairs_by_limits(b);
  } else if (b->kind->program) {
    fx_interp *mask = NULL;
    const fx_variant *variant = b->kind->flex->variant;
    FX_TRY(fx_interp_create(variant->pool, &variant->mask, 1, &mask));
    r->visible_pairs = pairs_by_runs(b, mask, &r->density_exact);
    fx_interp_destroy(mask);
  }
  r->density = r->visible_pairs / all;
  return FX_OK;
}

/* ---- the kernels ---- */

static void remove_folder(const char *path) {
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    char *file = entry->d_name[0] == '.' ? NULL : fx_strfmt("%s/%s", path, entry->d_name);
    if (file) unlink(file);
    free(file);
  }
  if (folder) closedir(folder);
  rmdir(path);
}

/* Makes the variant's functions twice with a cache of their own: the first time compiles, the second finds.
 */
static fx_status time_compiler(const bench *b, fx_bench_attention_report *r) {
  const char *root = getenv("TMPDIR");
  char *folder = fx_strfmt("%s/flexion-bench-XXXXXX", root && root[0] == '/' ? root : "/tmp");
  fx_status status = FX_OK;
  if (!folder) return fx_error(FX_ERR_MEMORY, "no memory for a file name");
  if (!mkdtemp(folder)) {
    status = fx_error(FX_ERR_IO, "no temporary folder %s", folder);
    goto free_folder;
  }
  fx_tile_options options = {.mode = FX_TILE_COMPILED,
                             .compile = {.compiler = b->config->runtime.compiler, .directory = folder}};
  for (int i = 0; i < 2; i++) {
    fx_tile_kernel *kernel = NULL;
    int64_t begin = fx_now_ns();
    FX_TRY_GOTO(fx_tile_kernel_create(b->kind->flex->variant, &options, &kernel), remove_files);
    *(i ? &r->cached_ms : &r->compile_ms) = (double)(fx_now_ns() - begin) * 1e-6;
    fx_tile_kernel_destroy(kernel);
  }
remove_files:
  remove_folder(folder);
free_folder:
  free(folder);
  return status;
}

static fx_status look_at_kernels(const bench *b, fx_bench_attention_report *r) {
  const fx_flex_variant *flex = b->kind->flex;
  r->kernels = FX_BENCH_KERNELS_NONE;
  if (!flex->kernel) return FX_OK;
  const fx_tile_functions *tile = fx_tile_kernel_functions(flex->kernel);
  if (!b->kind->attr.ask_mask && !tile->score && !tile->in_bounds) return FX_OK;
  snprintf(r->reason, sizeof r->reason, "%s", fx_tile_kernel_reason(flex->kernel));
  bool compiled = fx_tile_kernel_is_compiled(flex->kernel);
  r->kernels = compiled ? FX_BENCH_KERNELS_COMPILED : FX_BENCH_KERNELS_INTERPRETED;
  return compiled ? time_compiler(b, r) : FX_OK;
}

/* ---- the graph ---- */

static fx_value input_of(const bench *b, fx_graph *graph, int field) {
  return field < 0 ? FX_NONE : fx_graph_input(FX_AT(graph), b->setup->field[field].name);
}

static void record(const bench *b, fx_graph *graph) {
  int64_t H = b->H, K = b->K, D = b->D, width = (H + 2 * K) * D;
  fx_dtype dtype = b->dtype;
  fx_type fused = fx_type_3d(dtype, b->B, b->T, width);
  fx_value qkv = fx_graph_persistent(FX_AT(graph), "qkv", b->qkv, fused);
  fx_value q = fx_slice_heads(FX_AT(graph), qkv, 0, H, D);
  fx_value k = fx_slice_heads(FX_AT(graph), qkv, H * D, K, D);
  fx_value v = fx_slice_heads(FX_AT(graph), qkv, (H + K) * D, K, D);
  fx_attention_inputs in = fx_attention_no_inputs();
  in.limits = input_of(b, graph, b->kind->limits);
  in.runs = input_of(b, graph, b->kind->runs);
  in.runs_backward = input_of(b, graph, b->kind->runs < 0 ? -1 : b->kind->runs + 1);
  in.buffers = input_of(b, graph, b->kind->buffers);
  if (b->sinks) in.sinks = fx_graph_persistent(FX_AT(graph), "sinks", b->sinks, fx_type_1d(FX_F32, H));
  int32_t tables = fx_flex_num_tables(b->kind->flex);
  for (int32_t t = 0; t < tables; t++)
    in.table[t] = fx_graph_persistent(FX_AT(graph), "table", b->table[t],
                                      fx_type_1d(FX_F32, fx_flex_table_floats(b->kind->flex, t)));
  fx_attention_attr attr = b->kind->attr;
  attr.scale = (float)(1 / sqrt((double)D));
  fx_value lse, out = fx_flex_attention(FX_AT(graph), q, k, v, &in, attr, &lse), grads[FX_ATTENTION_GRADS];
  fx_value dout =
      fx_graph_persistent(FX_AT(graph), "dout", b->dout, fx_type_of(dtype, 4, (int64_t[]){b->B, b->T, H, D}));
  fx_flex_attention_grad(FX_AT(graph), q, k, v, out, lse, dout, FX_NONE, &in, attr, grads);
  if (fx_graph_status(graph) != FX_OK) return;
  const int64_t columns[] = {0, H * D, (H + K) * D};
  fx_value whole = fx_assemble(FX_AT(graph), grads, columns, 3, fused);
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "dqkv", b->dqkv, fused), whole);
  if (b->sinks)
    fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "dsinks", b->dsinks, fx_type_1d(FX_F32, H)),
             grads[3]);
  for (int32_t t = 0; t < tables; t++) {
    fx_type type = fx_type_1d(FX_F32, fx_flex_table_floats(b->kind->flex, t));
    fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "dtable", b->dtable[t], type), grads[4 + t]);
  }
}

static fx_status make_plan(bench *b) {
  fx_graph *graph = fx_graph_create(b->inputs);
  if (!graph) return fx_error(FX_ERR_MEMORY, "no memory for a graph");
  record(b, graph);
  fx_status status = fx_graph_status(graph);
  if (status != FX_OK) {
    fx_graph_destroy(graph);
    return status;
  }
  FX_TRY(fx_plan_prepare(graph, (fx_plan_options){.name = "attention"}, b->device, &b->plan));
  FX_TRY(fx_device_alloc(b->device, fx_plan_stats_get(b->plan)->arena.bytes, &b->arena));
  FX_TRY(fx_plan_bind(b->plan, b->arena));
  FX_TRY(fx_trace_create(SPANS, &b->trace));
  fx_plan_set_trace(b->plan, b->trace);
  return FX_OK;
}

/* ---- running ---- */

static double span_ms(const bench *b, int64_t from, const char *name) {
  const fx_trace_span *spans = fx_trace_spans(b->trace);
  for (int64_t i = from; i < fx_trace_count(b->trace); i++)
    if (strcmp(spans[i].name, name) == 0) return (double)(spans[i].end_ns - spans[i].begin_ns) * 1e-6;
  return 0;
}

/* A step is the op, its gradient and the product that they are compared with, so that what disturbs the
 * machine disturbs all three. */
static fx_status time_steps(bench *b, int steps, fx_bench_attention_report *r) {
  double *ms = NULL, unused;
  FX_TRY(fx_calloc(&ms, 3 * (size_t)steps, sizeof *ms));
  fx_status status = fx_bench_product_run(b->product, &unused);
  if (status == FX_OK && steps > 1) status = fx_plan_run(b->plan, 0);
  for (int s = 0; status == FX_OK && s < steps; s++) {
    fx_trace_destroy(b->trace);
    b->trace = NULL;
    FX_TRY_GOTO(fx_trace_create(SPANS, &b->trace), free_times);
    fx_plan_set_trace(b->plan, b->trace);
    FX_TRY_GOTO(fx_plan_run(b->plan, 0), free_times);
    FX_TRY_GOTO(fx_device_sync(b->device), free_times);
    ms[s] = span_ms(b, 0, "flex_attention");
    ms[steps + s] = span_ms(b, 0, "flex_attention_grad");
    status = fx_bench_product_run(b->product, &ms[2 * steps + s]);
  }
  r->forward_ms = fx_median(ms, steps);
  r->backward_ms = fx_median(ms + steps, steps);
  r->gemm_ms = fx_median(ms + 2 * steps, steps);
free_times:
  free(ms);
  return status;
}

static int64_t field_bytes(const bench *b, int field) {
  return field < 0 ? 0 : (int64_t)sizeof(int32_t) * b->setup->field[field].words;
}

static void account(const bench *b, fx_bench_attention_memory *m) {
  int64_t bytes = (int64_t)fx_dtype_bytes(b->dtype), runs = b->kind->runs;
  m->length = b->T;
  m->io_bytes = bytes * b->B * b->T * b->D * (2 * (b->H + 2 * b->K) + 2 * b->H);
  m->workspace_bytes = (int64_t)fx_plan_stats_get(b->plan)->workspace_bytes;
  m->mask_bytes = field_bytes(b, b->kind->limits) + field_bytes(b, b->kind->buffers);
  if (runs >= 0) m->mask_bytes += field_bytes(b, (int)runs) + field_bytes(b, (int)runs + 1);
  m->lse_bytes = (int64_t)sizeof(float) * b->B * b->H * fx_attention_tpad((int32_t)b->T);
}

static void release(bench *b) {
  fx_trace_destroy(b->trace);
  fx_plan_destroy(b->plan);
  void *memory[] = {b->arena, b->qkv, b->dqkv, b->dout, b->sinks, b->dsinks};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) fx_device_release(b->device, memory[i]);
  fx_inputs_destroy(b->inputs);
  fx_attention_setup_destroy(b->setup);
  for (int i = 0; i < 4; i++) free(b->batch[i]);
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) {
    fx_device_release(b->device, b->table[t]);
    fx_device_release(b->device, b->dtable[t]);
  }
}

static fx_status prepare(bench *b, fx_bench_attention_report *r) {
  fx_dtype dtype = b->dtype;
  int64_t tokens = b->B * b->T, width = (b->H + 2 * b->K) * b->D;
  FX_TRY(fx_attention_setup_create(b->config, b->device->backend, b->B, b->T, &b->setup));
  b->kind = &b->setup->kind[b->index];
  FX_TRY(fx_inputs_create(1, &b->inputs));
  FX_TRY(fx_attention_declare(b->setup, b->inputs));
  FX_TRY(fx_inputs_allocate_on(b->inputs, b->device));
  FX_TRY(make_batch(b, r));
  FX_TRY(fx_bench_random(b->device, dtype, tokens * width, 1, &b->qkv));
  FX_TRY(fx_bench_random(b->device, dtype, tokens * b->H * b->D, 2, &b->dout));
  FX_TRY(fx_device_alloc(b->device, (size_t)(tokens * width) * fx_dtype_bytes(dtype), &b->dqkv));
  FX_TRY(make_parameters(b));
  FX_TRY(build_mask(b, r));
  return make_plan(b);
}

static int64_t gpu_in_use(const bench *b) {
  size_t used = 0, total = 0;
  return fx_device_memory_info(b->device, &used, &total) == FX_OK ? (int64_t)used : 0;
}

/* Everything at one length. */
static fx_status run_length(const bench *common, int64_t length, int steps, fx_bench_attention_report *r,
                            fx_bench_attention_memory *memory) {
  bench b = *common;
  b.T = length;
  bool gpu = b.device->backend != FX_BACKEND_CPU;
  fx_memory_reset_peak();
  int64_t before = gpu ? gpu_in_use(&b) : fx_memory_resident();
  fx_status status = prepare(&b, r);
  if (status == FX_OK) status = time_steps(&b, steps, r);
  if (status == FX_OK) {
    account(&b, memory);
    memory->peak_bytes = (gpu ? gpu_in_use(&b) : fx_memory_peak()) - before;
    snprintf(r->name, sizeof r->name, "%s", b.kind->flex->variant->name);
    snprintf(r->text, sizeof r->text, "%s", b.kind->flex->variant->text);
    status = count_pairs(&b, r);
  }
  if (status == FX_OK && length == r->T) status = look_at_kernels(&b, r);
  release(&b);
  return status;
}

static fx_status check_options(const fx_config *config, const fx_bench_attention_options *o, int64_t length) {
  if (o->layer < 0 || o->layer >= config->model.num_hidden_layers)
    return fx_error(FX_ERR_USAGE, "there is no layer %lld; the model has 0..%lld", (long long)o->layer,
                    (long long)config->model.num_hidden_layers - 1);
  if (length < (o->memory ? 2 : 1) || length > MAX_LENGTH)
    return fx_error(FX_ERR_USAGE, "a length of %lld cannot be timed; expected %d..%d", (long long)length,
                    o->memory ? 2 : 1, MAX_LENGTH);
  if (o->batch < 1 || o->batch > 4096)
    return fx_error(FX_ERR_USAGE, "a batch of %lld cannot be timed; expected 1..4096", (long long)o->batch);
  if (o->steps < 1 || o->steps > MAX_STEPS)
    return fx_error(FX_ERR_USAGE, "%d steps; expected 1..%d", o->steps, MAX_STEPS);
  return FX_OK;
}

static void rate(fx_bench_attention_report *r) {
  double unit = r->visible_pairs * (double)(r->H * r->D) * 1e-6, n = (double)r->gemm_size;
  r->forward_gflops = 4 * unit / r->forward_ms;
  r->backward_gflops = 10 * unit / r->backward_ms;
  r->gemm_gflops = 2e-6 * n * n * n / r->gemm_ms;
}

fx_status fx_bench_attention(const fx_config *config, const fx_bench_attention_options *options,
                             fx_bench_attention_report *r) {
  int64_t length = options->length ? options->length : config->train.seq_length;
  const fx_config_model *m = &config->model;
  bench b = {.config = config,
             .options = options,
             .B = options->batch,
             .H = m->num_attention_heads,
             .K = m->num_key_value_heads,
             .D = m->head_dim};
  fx_status status = FX_OK;
  memset(r, 0, sizeof *r);
  FX_TRY(check_options(config, options, length));
  b.index = fx_config_layer_variant(config, options->layer);
  int threads = config->runtime.threads == FX_CONFIG_AUTO ? 0 : (int)config->runtime.threads;
  FX_TRY(fx_device_choose_alone(config, threads, &b.device));
  bool gpu = b.device->backend != FX_BACKEND_CPU;
  b.dtype = options->dtype != FX_DTYPE_COUNT ? options->dtype : gpu ? FX_BF16 : FX_F32;
  r->B = b.B, r->T = length, r->H = b.H, r->K = b.K, r->D = b.D;
  r->dtype = b.dtype;
  r->gpu = gpu;
  r->threads = b.device->threads;
  r->gemm_size = gpu ? GPU_GEMM_SIZE : GEMM_SIZE;
  snprintf(r->provider, sizeof r->provider, "%s", b.device->gemm_name);
  snprintf(r->device, sizeof r->device, "%.60s", b.device->name);
  /* The CPU multiplies in float32 only. */
  FX_TRY_GOTO(fx_bench_product_create(b.device, gpu ? b.dtype : FX_F32, FX_BENCH_FORWARD, r->gemm_size,
                                      r->gemm_size, r->gemm_size, &b.product),
              destroy_device);
  if (options->memory) FX_TRY_GOTO(run_length(&b, length / 2, 1, r, &r->half), free_product);
  FX_TRY_GOTO(run_length(&b, length, options->steps, r, &r->full), free_product);
  rate(r);
free_product:
  fx_bench_product_destroy(b.product);
destroy_device:
  fx_device_destroy(b.device);
  return status;
}
