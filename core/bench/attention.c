/* SPDX-License-Identifier: Apache-2.0 */
/* What is timed are the spans of the two kernels of a recorded layer (layer.h). */
#include "core/bench/attention.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/bench/machine.h"
#include "core/bench/product.h"
#include "core/train/device.h"
#include "core/train/memory.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"

enum { GEMM_SIZE = 2048, GPU_GEMM_SIZE = 8192 };
enum { MASK_REPEATS = 5, SPANS = 1 << 12 };

typedef struct bench {
  const fx_config *config;
  const fx_bench_attention_options *options;
  fx_device *device;
  fx_bench_layer layer;
  fx_trace *trace;
  fx_bench_product *product; /* lives longer than the rest */
} bench;

/* ---- the mask ---- */

static fx_status build_mask(const fx_bench_layer *l, fx_bench_attention_report *r) {
  fx_attention_batch batch = fx_bench_layer_batch(l);
  void *memory[FX_ATTENTION_MAX_FIELDS];
  char *scratch = NULL;
  fx_status status = FX_OK;
  fx_bench_layer_fields(l, memory);
  FX_TRY(fx_alloc_aligned(&scratch, l->setup->scratch_bytes + FX_ALIGN));
  for (int i = 0; status == FX_OK && i < MASK_REPEATS; i++) {
    int64_t begin = fx_now_ns();
    status = fx_attention_fill_kind(l->setup, l->index, &batch, memory, scratch);
    double ms = (double)(fx_now_ns() - begin) * 1e-6;
    if (i == 0 || ms < r->mask_build_ms) r->mask_build_ms = ms;
  }
  free(scratch);
  return status;
}

static fx_status describe_mask(const fx_bench_layer *l, fx_bench_attention_report *r) {
  r->form = "none", r->R = 0;
  if (l->kind->program) {
    const fx_mask_facts *facts = fx_mask_program_facts(l->kind->program);
    r->form = facts->form == FX_MASK_FORM_LIMITS ? "limits" : "expression";
    r->R = facts->R;
  }
  FX_TRY(fx_bench_layer_pairs(l, &r->visible_pairs, &r->density_exact));
  r->density = r->visible_pairs / ((double)l->B * (double)l->T * (double)l->T);
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
    FX_TRY_GOTO(fx_tile_kernel_create(b->layer.kind->flex->variant, &options, &kernel), remove_files);
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
  const fx_flex_variant *flex = b->layer.kind->flex;
  r->kernels = FX_BENCH_KERNELS_NONE;
  if (!flex->kernel) return FX_OK;
  const fx_tile_functions *tile = fx_tile_kernel_functions(flex->kernel);
  if (!b->layer.kind->attr.ask_mask && !tile->score && !tile->in_bounds) return FX_OK;
  snprintf(r->reason, sizeof r->reason, "%s", fx_tile_kernel_reason(flex->kernel));
  bool compiled = fx_tile_kernel_is_compiled(flex->kernel);
  r->kernels = compiled ? FX_BENCH_KERNELS_COMPILED : FX_BENCH_KERNELS_INTERPRETED;
  return compiled ? time_compiler(b, r) : FX_OK;
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
  if (status == FX_OK && steps > 1) status = fx_plan_run(b->layer.plan, 0);
  for (int s = 0; status == FX_OK && s < steps; s++) {
    fx_trace_destroy(b->trace);
    b->trace = NULL;
    FX_TRY_GOTO(fx_trace_create(SPANS, &b->trace), free_times);
    fx_plan_set_trace(b->layer.plan, b->trace);
    FX_TRY_GOTO(fx_plan_run(b->layer.plan, 0), free_times);
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

static int64_t field_bytes(const fx_bench_layer *l, int field) {
  return field < 0 ? 0 : (int64_t)sizeof(int32_t) * l->setup->field[field].words;
}

static void account(const fx_bench_layer *l, fx_bench_attention_memory *m) {
  int64_t bytes = (int64_t)fx_dtype_bytes(l->dtype);
  int runs = l->kind->runs;
  m->length = l->T;
  m->io_bytes = bytes * l->B * l->T * l->D * (2 * (l->H + 2 * l->K) + 2 * l->H);
  m->workspace_bytes = (int64_t)fx_plan_stats_get(l->plan)->workspace_bytes;
  m->mask_bytes = field_bytes(l, l->kind->limits) + field_bytes(l, l->kind->buffers);
  if (runs >= 0) m->mask_bytes += field_bytes(l, runs) + field_bytes(l, runs + 1);
  m->lse_bytes = (int64_t)sizeof(float) * l->B * l->H * fx_attention_tpad((int32_t)l->T);
}

static fx_status prepare(bench *b, int64_t length, fx_bench_attention_report *r) {
  fx_bench_layer *l = &b->layer;
  FX_TRY(fx_bench_layer_init(b->config, b->device, &b->options->layer, length, 1, 0, false, l));
  r->documents = l->documents;
  FX_TRY(fx_bench_layer_randomize(l));
  FX_TRY(build_mask(l, r));
  FX_TRY(fx_bench_layer_plan(l, NULL));
  FX_TRY(fx_plan_bind(l->plan, l->arena));
  FX_TRY(fx_trace_create(SPANS, &b->trace));
  fx_plan_set_trace(l->plan, b->trace);
  return FX_OK;
}

/* Everything at one length. */
static fx_status run_length(bench *b, int64_t length, int steps, fx_bench_attention_report *r,
                            fx_bench_attention_memory *memory) {
  bool gpu = b->device->backend != FX_BACKEND_CPU;
  fx_memory_reset_peak();
  int64_t before = gpu ? fx_device_memory_used(b->device) : fx_memory_resident();
  fx_status status = prepare(b, length, r);
  if (status == FX_OK) status = time_steps(b, steps, r);
  if (status == FX_OK) {
    const fx_variant *variant = b->layer.kind->flex->variant;
    account(&b->layer, memory);
    memory->peak_bytes = (gpu ? fx_device_memory_used(b->device) : fx_memory_peak()) - before;
    snprintf(r->name, sizeof r->name, "%s", variant->name);
    snprintf(r->text, sizeof r->text, "%s", variant->text);
    status = describe_mask(&b->layer, r);
  }
  if (status == FX_OK && length == r->T) status = look_at_kernels(b, r);
  fx_trace_destroy(b->trace);
  b->trace = NULL;
  fx_bench_layer_fini(&b->layer);
  return status;
}

static void rate(fx_bench_attention_report *r) {
  double unit = r->visible_pairs * (double)(r->H * r->D) * 1e-6, n = (double)r->gemm_size;
  r->forward_gflops = 4 * unit / r->forward_ms;
  r->backward_gflops = 10 * unit / r->backward_ms;
  r->gemm_gflops = 2e-6 * n * n * n / r->gemm_ms;
}

fx_status fx_bench_attention(const fx_config *config, const fx_bench_attention_options *options,
                             fx_bench_attention_report *r) {
  const fx_bench_layer_options *o = &options->layer;
  int64_t length = o->length ? o->length : config->train.seq_length;
  const fx_config_model *m = &config->model;
  bench b = {.config = config, .options = options};
  fx_status status = FX_OK;
  memset(r, 0, sizeof *r);
  FX_TRY(fx_bench_layer_check(config, o, length, options->memory ? 2 : 1));
  int threads = config->runtime.threads == FX_CONFIG_AUTO ? 0 : (int)config->runtime.threads;
  FX_TRY(fx_device_choose_alone(config, threads, &b.device));
  bool gpu = b.device->backend != FX_BACKEND_CPU;
  r->B = o->batch, r->T = length;
  r->H = m->num_attention_heads, r->K = m->num_key_value_heads, r->D = m->head_dim;
  r->dtype = fx_bench_layer_dtype(b.device, o);
  r->gpu = gpu;
  r->threads = b.device->threads;
  r->gemm_size = gpu ? GPU_GEMM_SIZE : GEMM_SIZE;
  snprintf(r->provider, sizeof r->provider, "%s", b.device->gemm_name);
  snprintf(r->device, sizeof r->device, "%.60s", b.device->name);
  /* The CPU multiplies in float32 only. */
  FX_TRY_GOTO(fx_bench_product_create(b.device, gpu ? r->dtype : FX_F32, FX_BENCH_FORWARD, r->gemm_size,
                                      r->gemm_size, r->gemm_size, &b.product),
              destroy_device);
  if (options->memory) FX_TRY_GOTO(run_length(&b, length / 2, 1, r, &r->half), free_product);
  FX_TRY_GOTO(run_length(&b, length, o->steps, r, &r->full), free_product);
  rate(r);
free_product:
  fx_bench_product_destroy(b.product);
destroy_device:
  fx_device_destroy(b.device);
  return status;
}
