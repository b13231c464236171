/* SPDX-License-Identifier: Apache-2.0 */
/* The memory-bound CUDA kernels of a training step in bfloat16, at the shapes of GPT-2 124M (B 32, T 1024)
 * and of a Llama of 1.1B (B 4, T 4096): bytes that the op cannot avoid, microseconds, GB/s, percent of what a
 * copy of 512 MiB reaches; then microseconds of a copy that moves as many bytes, and the percentage that they
 * are of the op's. All in the same run. Each op runs on several sets of buffers in turn, so that the L2 cache
 * holds none of them; the median of seven batches, by events. Usage: bench-cuda-ops
 * [fp32] [NAME]: only ops with NAME in their names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/ops/rope.h"

enum { MAX_SETS = 8, BATCHES = 7, ROUNDS = 3 };

static void ok(fx_status status) {
  if (status == FX_OK) return;
  fprintf(stderr, "%s\n", fx_error_text());
  exit(1);
}

static fx_device *g_device;
static fx_dtype g_type = FX_BF16;
static char *g_arena; /* of ARENA bytes, all of them 0x3C: small positive numbers of any float type */
static size_t g_used;
static double g_copy; /* GB/s */
static const char *g_wanted = "";
static const size_t g_arena_bytes = (size_t)32 << 30;

/* One op: its arguments on every set of buffers. */
typedef struct op {
  const char *name;
  fx_kernel_fn run;
  fx_tensor in[MAX_SETS][12], out[MAX_SETS][8];
  fx_kernel_args args[MAX_SETS];
  const void *attr;
  size_t workspace;
  unsigned accumulate;
  int sets;
  double bytes; /* of one set */
} op;

static void *carve(size_t bytes) {
  void *at = g_arena + g_used;
  g_used += fx_align_up(bytes, 256);
  if (g_used > g_arena_bytes) ok(fx_error(FX_ERR_MEMORY, "the arena of the bench is too small"));
  return at;
}

static op *start(const char *name, fx_kernel_fn run, double bytes) {
  static op o;
  memset(&o, 0, sizeof o);
  g_used = 0;
  o.name = name;
  o.run = run;
  o.bytes = bytes;
  o.sets = (int)fx_max_i64(1, fx_min_i64(MAX_SETS, (int64_t)(1e9 / bytes)));
  return &o;
}

static void in(op *o, int i, fx_type type) {
  for (int s = 0; s < o->sets; s++) {
    o->in[s][i] = (fx_tensor){.data = carve(fx_type_bytes(&type)), .type = type};
    o->args[s].in[i] = &o->in[s][i];
  }
}
static void out(op *o, int i, fx_type type) {
  for (int s = 0; s < o->sets; s++) {
    o->out[s][i] = (fx_tensor){.data = carve(fx_type_bytes(&type)), .type = type};
    o->args[s].out[i] = &o->out[s][i];
  }
}
/* Output i lies where input k does. */
static void inout(op *o, int i, int k) {
  for (int s = 0; s < o->sets; s++) {
    o->out[s][i] = o->in[s][k];
    o->args[s].out[i] = &o->out[s][i];
  }
}

/* Integers into input i: all `one`, or, for a negative one, drawn from [0, limit). */
static void integers(op *o, int i, int64_t limit, int32_t one) {
  int64_t n = fx_type_numel(&o->in[0][i].type);
  int32_t *numbers = NULL;
  ok(fx_calloc(&numbers, (size_t)n, sizeof *numbers));
  for (int64_t k = 0; k < n; k++)
    numbers[k] = one >= 0 ? one : (int32_t)(fx_philox_at(1, 2, (uint64_t)k, 0).word[0] % (uint64_t)limit);
  for (int s = 0; s < o->sets; s++)
    ok(fx_device_copy(g_device, FX_LANE_COMPUTE, o->in[s][i].data, numbers, (size_t)n * sizeof *numbers));
  ok(fx_device_sync(g_device));
  free(numbers);
}

/* ---- timing ---- */

typedef struct batch {
  op *o;
  void *begin, *end;
} batch;

static fx_status run_batch(void *data, void *stream) {
  batch *b = data;
  const fx_cuda_driver *driver = ((const fx_cuda_context *)g_device->gemm)->driver;
  FX_TRY(fx_cuda_check(driver, driver->event_record(b->begin, stream), "an event"));
  for (int r = 0; r < ROUNDS; r++)
    for (int s = 0; s < b->o->sets; s++) {
      b->o->args[s].stream = stream;
      FX_TRY(b->o->run(&b->o->args[s]));
    }
  return fx_cuda_check(driver, driver->event_record(b->end, stream), "an event");
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median_us(op *o) {
  const fx_cuda_driver *driver = ((const fx_cuda_context *)g_device->gemm)->driver;
  batch b = {.o = o};
  double us[BATCHES];
  ok(fx_cuda_check(driver, driver->event_create(&b.begin, 0), "an event"));
  ok(fx_cuda_check(driver, driver->event_create(&b.end, 0), "an event"));
  for (int i = -1; i < BATCHES; i++) {
    float ms = 0;
    ok(fx_device_launch(g_device, FX_LANE_COMPUTE, run_batch, &b));
    ok(fx_device_sync(g_device));
    ok(fx_cuda_check(driver, driver->event_elapsed(&ms, b.begin, b.end), "an event"));
    if (i >= 0) us[i] = (double)ms * 1e3 / (ROUNDS * o->sets);
  }
  driver->event_destroy(b.begin);
  driver->event_destroy(b.end);
  qsort(us, BATCHES, sizeof us[0], by_size);
  return us[BATCHES / 2];
}

/* Microseconds of a copy that moves as many bytes, in the upper half of the arena; timed in the same way. */
static double copy_us(double bytes) {
  static op o;
  double most = 2e9, moved = bytes < most ? bytes : most;
  memset(&o, 0, sizeof o);
  g_used = g_arena_bytes / 2;
  o.run = fx_copy_cuda;
  o.sets = (int)fx_max_i64(2, fx_min_i64(MAX_SETS, (int64_t)(1e9 / moved)));
  fx_type type = fx_type_1d(FX_F32, (int64_t)(moved / 8));
  in(&o, 0, type);
  out(&o, 0, type);
  for (int s = 0; s < o.sets; s++) o.args[s].gemm = g_device->gemm;
  return median_us(&o) * bytes / moved;
}

static void finish(op *o) {
  if (g_copy > 0 && !strstr(o->name, g_wanted)) return;
  void *workspace = carve(o->workspace);
  for (int s = 0; s < o->sets; s++) {
    o->args[s].attr = o->attr;
    o->args[s].accumulate = o->accumulate;
    o->args[s].gemm = g_device->gemm;
    o->args[s].workspace = o->workspace ? workspace : NULL;
  }
  double us = median_us(o), rate = o->bytes / us / 1e3;
  if (g_copy <= 0) g_copy = rate;
  double same = copy_us(o->bytes);
  printf("%-34s %9.1f %9.1f %7.0f %6.0f%% %9.1f %6.0f%%\n", o->name, o->bytes / 1e6, us, rate,
         100 * rate / g_copy, same, 100 * same / us);
  fflush(stdout);
}

/* ---- ops ---- */

static fx_type rows_of(int64_t rows, int64_t cols) {
  return fx_type_3d(g_type, 1, rows, cols);
}
static fx_type floats(int64_t n) {
  return fx_type_1d(FX_F32, n);
}
static double size_of(int64_t rows, int64_t cols) {
  return (double)rows * (double)cols * (double)fx_dtype_bytes(g_type);
}

static void copies(void) {
  int64_t n = (int64_t)256 << 20;
  op *o = start("copy of 256 Mi elements", fx_copy_cuda, 2 * size_of(n, 1));
  in(o, 0, fx_type_1d(g_type, n));
  out(o, 0, fx_type_1d(g_type, n));
  finish(o);
}

static void pointwise(int64_t rows, int64_t cols) {
  op *o = start("add", fx_add_cuda, 3 * size_of(rows, cols));
  in(o, 0, rows_of(rows, cols));
  in(o, 1, rows_of(rows, cols));
  out(o, 0, rows_of(rows, cols));
  finish(o);
  static fx_dropout_attr attr = {.seed = 1, .site = 2, .p = 0.1f};
  o = start("dropout", fx_dropout_cuda, 2 * size_of(rows, cols));
  o->attr = &attr;
  in(o, 0, rows_of(rows, cols));
  in(o, 1, fx_type_1d(FX_I64, 1));
  in(o, 2, fx_type_1d(FX_I64, 1));
  out(o, 0, rows_of(rows, cols));
  finish(o);
  fx_type heads = fx_type_of(g_type, 3, (const int64_t[]){rows, cols / 64, 64}), strided = heads;
  strided.stride[0] = 3 * cols;
  o = start("copy of a third of each row", fx_copy_cuda, 2 * size_of(rows, cols));
  in(o, 0, rows_of(rows, 3 * cols));
  out(o, 0, heads);
  for (int s = 0; s < o->sets; s++) o->in[s][0].type = strided;
  finish(o);
}

static void gelu(int64_t rows, int64_t cols) {
  static fx_linear_attr attr = {0, FX_ACT_GELU_TANH};
  op *o = start("gelu gradient", fx_act_grad_cuda, 3 * size_of(rows, cols));
  o->attr = &attr;
  in(o, 0, rows_of(rows, cols));
  in(o, 1, rows_of(rows, cols));
  out(o, 0, rows_of(rows, cols));
  finish(o);
  o = start("bias gradient", fx_linear_dw_cuda, size_of(rows, cols));
  o->attr = &attr;
  o->workspace = (size_t)(256 * cols) * sizeof(float);
  in(o, 0, rows_of(rows, cols));
  in(o, 1, rows_of(8, cols));
  out(o, 1, floats(cols));
  finish(o);
}

static void swiglu(int64_t rows, int64_t cols) {
  op *o = start("swiglu", fx_swiglu_cuda, 3 * size_of(rows, cols));
  in(o, 0, rows_of(rows, 2 * cols));
  out(o, 0, rows_of(rows, cols));
  finish(o);
  o = start("swiglu gradient", fx_swiglu_grad_cuda, 5 * size_of(rows, cols));
  in(o, 0, rows_of(rows, cols));
  in(o, 1, rows_of(rows, 2 * cols));
  out(o, 0, rows_of(rows, 2 * cols));
  finish(o);
}

static void norms(fx_norm_kind kind, int64_t rows, int64_t cols) {
  static fx_norm_attr attr;
  attr = (fx_norm_attr){(int32_t)kind, 1e-5f};
  bool layer = kind == FX_NORM_LAYER;
  for (int sum = 0; sum < 2; sum++) {
    op *o = start(sum ? "add_norm" : "norm", sum ? fx_add_norm_cuda : fx_norm_cuda,
                  (sum ? 4 : 2) * size_of(rows, cols));
    o->attr = &attr;
    for (int i = 0; i <= sum; i++) in(o, i, rows_of(rows, cols));
    in(o, 1 + sum, floats(cols));
    if (layer) in(o, 2 + sum, floats(cols));
    out(o, 0, rows_of(rows, cols));
    if (layer) out(o, 1, floats(rows));
    out(o, 2, floats(rows));
    if (sum) out(o, 3, rows_of(rows, cols));
    finish(o);
  }
  for (int add = 0; add < 2; add++) {
    op *o = start(add ? "norm gradient, dx added" : "norm gradient", fx_norm_grad_cuda,
                  (add ? 4 : 3) * size_of(rows, cols));
    o->attr = &attr;
    o->accumulate = add ? 7 : 6;
    in(o, 0, rows_of(rows, cols));
    in(o, 1, rows_of(rows, cols));
    in(o, 2, floats(cols));
    if (layer) in(o, 3, floats(rows));
    in(o, 4, floats(rows));
    out(o, 0, rows_of(rows, cols));
    out(o, 1, floats(cols));
    if (layer) out(o, 2, floats(cols));
    const fx_type *types[] = {NULL, &o->in[0][1].type};
    o->workspace = fx_norm_grad_workspace_cuda(types, NULL, NULL, 0);
    finish(o);
  }
}

static void rope(int64_t rows, int64_t cols, int64_t heads, int64_t head_dim) {
  static fx_rope_attr attr;
  attr = (fx_rope_attr){heads, head_dim, 1};
  op *o = start("rope in place", fx_rope_cuda,
                2 * size_of(rows, heads * head_dim) + 4 * (double)rows * (double)head_dim);
  o->attr = &attr;
  in(o, 0, rows_of(rows, cols));
  in(o, 1, floats(rows * head_dim));
  inout(o, 0, 0);
  finish(o);
}

/* Table rows are counted once for each place that asks for one; the sums read and write each used row. */
static void embedding(int64_t rows, int64_t cols, int64_t vocab) {
  static fx_type table;
  table = fx_type_2d(FX_F32, vocab, cols);
  op *o = start("embedding", fx_embedding_cuda, 2 * size_of(rows, cols));
  in(o, 0, fx_type_2d(FX_I32, 1, rows));
  in(o, 1, fx_type_2d(g_type, vocab, cols));
  out(o, 0, rows_of(rows, cols));
  integers(o, 0, vocab, -1);
  finish(o);
  for (int one = 0; one < 3; one++) {
    static const char *const names[] = {"embedding gradient, added", "embedding gradient, one id",
                                        "embedding gradient, stored"};
    double used = (double)vocab * (1 - exp(-(double)rows / (double)vocab)) * (double)cols * 4;
    o = start(names[one], fx_embedding_grad_cuda,
              size_of(rows, cols) + (one == 1   ? 0
                                     : one == 2 ? 4.0 * (double)(vocab * cols)
                                                : 2 * used));
    o->attr = &table;
    o->accumulate = one < 2;
    in(o, 0, rows_of(rows, cols));
    in(o, 1, fx_type_2d(FX_I32, 1, rows));
    out(o, 0, table);
    integers(o, 1, vocab, one == 1 ? 17 : -1);
    const fx_type *types[] = {&o->in[0][0].type, &o->in[0][1].type};
    o->workspace = fx_embedding_grad_workspace_cuda(types, &table, NULL, 0);
    finish(o);
  }
}

static fx_status all_rows(const fx_kernel_args *args) {
  return fx_head_ce_rows_cuda(args, 0, fx_type_rows(&args->in[0]->type));
}

static void cross_entropy(int64_t rows, int64_t vocab) {
  static fx_head_ce_attr attr;
  attr = (fx_head_ce_attr){vocab - 47};
  op *o = start("cross-entropy in place", all_rows, 2 * size_of(rows, vocab));
  o->attr = &attr;
  o->sets = 1; /* larger than the L2 cache */
  in(o, 0, rows_of(rows, 8));
  in(o, 1, fx_type_2d(g_type, vocab, 8));
  in(o, 2, fx_type_2d(FX_I32, 1, rows));
  in(o, 3, floats(1));
  out(o, 0, floats(rows));
  out(o, 2, rows_of(rows, 8));
  integers(o, 2, vocab - 47, -1);
  o->workspace = (size_t)size_of(rows, vocab);
  finish(o);
}

static void optimizer(int64_t n) {
  static fx_adamw_attr attr = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .seed = 3};
  static const fx_type number = {FX_F32, 1, {1}, {1}}, sum = {FX_F64, 1, {1}, {1}};
  op *o = start("squares", fx_squares_cuda, 4 * (double)n);
  o->workspace = (size_t)fx_ceil_div(n, 16384) * sizeof(double);
  in(o, 0, floats(n));
  out(o, 0, sum);
  finish(o);
  o = start("cast float32 to bfloat16", fx_cast_cuda, 6 * (double)n);
  in(o, 0, floats(n));
  out(o, 0, fx_type_1d(FX_BF16, n));
  finish(o);
  for (int kind = 0; kind < 3; kind++) {
    static const char *const names[] = {"adamw", "adamw, bfloat16 copy", "adamw, copy at random"};
    o = start(names[kind], fx_adamw_cuda, (kind ? 30 : 28) * (double)n);
    attr.stochastic = kind == 2;
    o->attr = &attr;
    for (int i = 0; i < 4; i++) in(o, i, floats(n));
    in(o, 4, number);
    in(o, 5, fx_type_1d(FX_I64, 1));
    in(o, 6, number);
    in(o, 7, number);
    inout(o, 0, 0);
    inout(o, 1, 2);
    inout(o, 2, 3);
    if (kind) out(o, 6, fx_type_1d(FX_BF16, n));
    finish(o);
  }
}

int main(int argc, char **argv) {
  void *memory = NULL;
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "fp32") == 0)
      g_type = FX_F32;
    else
      g_wanted = argv[i];
  ok(fx_device_create_cuda(FX_DEVICE_BY_RANK, &g_device));
  ok(fx_device_alloc(g_device, g_arena_bytes, &memory));
  ok(fx_device_fill(g_device, FX_LANE_COMPUTE, memory, 0x3C, g_arena_bytes));
  g_arena = memory;
  printf("%s, %s\n%-34s %9s %9s %7s %7s %9s %7s\n", g_device->isa, fx_dtype_name(g_type), "kernel", "MB",
         "us", "GB/s", "copy", "same copy", "of it");
  copies();
  printf("GPT-2 124M: 32,768 rows of 768, vocabulary 50,304\n");
  pointwise(32768, 768);
  gelu(32768, 3072);
  norms(FX_NORM_LAYER, 32768, 768);
  embedding(32768, 768, 50304);
  cross_entropy(5248, 50304);
  optimizer(124475904);
  printf("Llama 1.1B: 16,384 rows of 2,048, vocabulary 32,000\n");
  norms(FX_NORM_RMS, 16384, 2048);
  rope(16384, 2560, 36, 64);
  swiglu(16384, 5632);
  embedding(16384, 2048, 32000);
  cross_entropy(8192, 32000);
  optimizer(1100048384);
  fx_device_release(g_device, memory);
  fx_device_destroy(g_device);
  return 0;
}
