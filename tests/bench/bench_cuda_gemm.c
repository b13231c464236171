/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a training step on a GPU, in bfloat16: with the library's first algorithm and with timed ones,
 * epilogues fused and as kernels of their own. `bench-cuda-gemm`. What is compared takes turns, because the
 * clock falls with the power drawn: figures are medians over 9 rounds of averages over some 3 ms. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/linear.h"
#include "tests/harness.h"

typedef enum extra { PLAIN, BIAS, GELU, GELU_GRAD, BIAS_GRAD } extra;

/* One product of the model; rows x width_in -> width_out. */
typedef struct row {
  const char *name;
  int pass; /* 0: forward, 1: dx, 2: dw */
  extra extra;
  int in_out;
  int64_t rows, width_in, width_out;
} row;

#define GPT2 32768
#define LLAMA 16384
static const row g_rows[] = {
    {"gpt2 qkv", 0, BIAS, 1, GPT2, 768, 2304},
    {"gpt2 proj", 0, BIAS, 1, GPT2, 768, 768},
    {"gpt2 up", 0, GELU, 1, GPT2, 768, 3072},
    {"gpt2 down", 0, BIAS, 1, GPT2, 3072, 768},
    {"gpt2 head", 0, PLAIN, 0, 8192, 768, 50304},
    {"gpt2 qkv dx", 1, PLAIN, 1, GPT2, 768, 2304},
    {"gpt2 proj dx", 1, PLAIN, 1, GPT2, 768, 768},
    {"gpt2 up dx", 1, PLAIN, 1, GPT2, 768, 3072},
    {"gpt2 down dx", 1, GELU_GRAD, 1, GPT2, 3072, 768},
    {"gpt2 head dx", 1, PLAIN, 0, 8192, 768, 50304},
    {"gpt2 qkv dw", 2, BIAS_GRAD, 1, GPT2, 768, 2304},
    {"gpt2 proj dw", 2, BIAS_GRAD, 1, GPT2, 768, 768},
    {"gpt2 up dw", 2, BIAS_GRAD, 1, GPT2, 768, 3072},
    {"gpt2 down dw", 2, BIAS_GRAD, 1, GPT2, 3072, 768},
    {"gpt2 head dw", 2, PLAIN, 0, 8192, 768, 50304},
    {"llama qkv", 0, PLAIN, 0, LLAMA, 2048, 2560},
    {"llama proj", 0, PLAIN, 0, LLAMA, 2048, 2048},
    {"llama gate, up", 0, PLAIN, 0, LLAMA, 2048, 11264},
    {"llama down", 0, PLAIN, 0, LLAMA, 5632, 2048},
    {"llama head", 0, PLAIN, 0, 8192, 2048, 32000},
    {"llama qkv dx", 1, PLAIN, 0, LLAMA, 2048, 2560},
    {"llama proj dx", 1, PLAIN, 0, LLAMA, 2048, 2048},
    {"llama gate, up dx", 1, PLAIN, 0, LLAMA, 2048, 11264},
    {"llama down dx", 1, PLAIN, 0, LLAMA, 5632, 2048},
    {"llama qkv dw", 2, PLAIN, 0, LLAMA, 2048, 2560},
    {"llama proj dw", 2, PLAIN, 0, LLAMA, 2048, 2048},
    {"llama gate, up dw", 2, PLAIN, 0, LLAMA, 2048, 11264},
    {"llama down dw", 2, PLAIN, 0, LLAMA, 5632, 2048},
};

static fx_device *g_device;
static const fx_cuda_driver *g_driver;
static fx_cuda_gemm *g_gemm[2];                 /* the device's; one that times */
static void *g_x, *g_w, *g_y, *g_aux, *g_small; /* activations, weights, outputs: normal numbers at first */
static void *g_event[2];
enum { ROUNDS = 9, MAX_TIMINGS = 5 };
enum { ACTIVATION_BYTES = 900 << 20, SMALL = 4 << 20 };

static void ok(fx_status status) {
  if (status == FX_OK) return;
  fprintf(stderr, "%s\n", fx_error_text());
  exit(1);
}

/* bytes of bfloat16 normal numbers, by doubling what is there. */
static void *random_numbers(size_t bytes, float sigma) {
  enum { COUNT = 1 << 20 };
  void *memory = NULL;
  float *numbers = malloc(COUNT * sizeof *numbers);
  uint16_t *halves = malloc(COUNT * sizeof *halves);
  fx_fill_normal(numbers, COUNT, 1, sigma);
  for (int i = 0; i < COUNT; i++) halves[i] = fx_f32_to_bf16(numbers[i]);
  ok(fx_device_alloc(g_device, bytes, &memory));
  ok(fx_device_copy(g_device, FX_LANE_COMPUTE, memory, halves, COUNT * sizeof *halves));
  for (size_t done = COUNT * sizeof *halves; done < bytes; done *= 2)
    ok(fx_device_copy(g_device, FX_LANE_COMPUTE, (char *)memory + done, memory,
                      done < bytes - done ? done : bytes - done));
  ok(fx_device_sync(g_device));
  free(numbers);
  free(halves);
  return memory;
}

static fx_cuda_product product_of(const row *r, bool fused) {
  bool forward = r->pass == 0, dw = r->pass == 2, first = r->in_out; /* dw: whether x comes first */
  fx_cuda_product p = {.in = FX_BF16, .out = dw ? FX_F32 : FX_BF16, .a = g_x, .b = g_w, .c = g_y};
  p.transpose_a = dw;
  p.transpose_b = !dw && (forward ? !r->in_out : r->in_out);
  p.m = dw ? (first ? r->width_in : r->width_out) : r->rows;
  p.n = dw ? (first ? r->width_out : r->width_in) : forward ? r->width_out : r->width_in;
  p.k = dw ? r->rows : forward ? r->width_in : r->width_out;
  if (dw) p.b = g_aux;
  p.lda = p.transpose_a ? p.m : p.k;
  p.ldb = p.transpose_b ? p.k : p.n;
  p.ldc = p.n;
  p.beta = dw ? 1.0f : 0.0f;
  if (!fused) return p;
  p.bias = g_small;
  p.aux = g_aux;
  static const fx_cuda_epilogue epilogues[] = {FX_CUDA_EPILOGUE_NONE, FX_CUDA_EPILOGUE_BIAS,
                                               FX_CUDA_EPILOGUE_GELU, FX_CUDA_EPILOGUE_GELU_GRAD};
  p.epilogue = epilogues[r->extra];
  return p;
}

/* The kernel that does what the epilogue would. */
static fx_status run_kernel(const row *r, void *stream) {
  const fx_linear_attr attr = {1, r->extra == BIAS ? FX_ACT_NONE : FX_ACT_GELU_TANH};
  int64_t cols = r->pass == 1 ? r->width_in : r->width_out, n = r->rows * cols;
  fx_kernel_args args = {.attr = &attr, .gemm = g_device->gemm, .stream = stream, .workspace = g_small};
  fx_tensor wide = {g_aux, fx_type_2d(FX_BF16, r->rows, cols)},
            sum = {(char *)g_small + SMALL / 2, fx_type_1d(FX_F32, cols)};
  fx_tensor out = {g_y, wide.type};
  int activation = attr.activation;
  void *bias = g_small, *pre = r->extra == GELU ? g_aux : NULL;
  switch (r->extra) {
  case BIAS:
  case GELU:
    return fx_cuda_run_flat(&args, FX_CUDA_BIAS_ACT, FX_BF16, n,
                            FX_CUDA_ARGS(&g_y, &g_y, &bias, &pre, &activation, &n, &cols));
  case GELU_GRAD:
    args.in[0] = &out, args.in[1] = &wide, args.out[0] = &out;
    return fx_act_grad_cuda(&args);
  case BIAS_GRAD:
    args.in[0] = args.in[1] = &wide, args.out[1] = &sum;
    return fx_linear_dw_cuda(&args);
  default:
    return FX_OK;
  }
}

typedef struct timing {
  const row *r;
  fx_cuda_gemm *gemm; /* NULL: the kernel */
  fx_cuda_product product;
  int runs;
  float ms[ROUNDS];
} timing;

static fx_status run_once(const timing *t, void *stream) {
  return t->gemm ? fx_cuda_gemm_run(t->gemm, &t->product, stream) : run_kernel(t->r, stream);
}

static fx_status average(const timing *t, float *ms, void *stream) {
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_record(g_event[0], stream), "an event"));
  for (int i = 0; i < t->runs; i++) FX_TRY(run_once(t, stream));
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_record(g_event[1], stream), "an event"));
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_sync(g_event[1]), "an event"));
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_elapsed(ms, g_event[0], g_event[1]), "an event"));
  *ms /= (float)t->runs;
  return FX_OK;
}

typedef struct timings {
  timing item[MAX_TIMINGS];
  int count;
} timings;

static fx_status time_task(void *arg, void *stream) {
  timings *all = arg;
  for (int i = 0; i < all->count; i++) {
    timing *t = &all->item[i];
    FX_TRY(run_once(t, stream)); /* chooses the algorithm */
    t->runs = 2;
    FX_TRY(average(t, &t->ms[0], stream));
    t->runs = (int)fmaxf(2.0f, fminf(50.0f, 3.0f / t->ms[0]));
  }
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < all->count; i++) FX_TRY(average(&all->item[i], &all->item[i].ms[round], stream));
  return FX_OK;
}

static int by_size(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

static double median(timing *t) {
  qsort(t->ms, ROUNDS, sizeof t->ms[0], by_size);
  return t->ms[ROUNDS / 2];
}

/* Columns: the product, first and timed; the same with the epilogue; the kernel that does as the epilogue. */
static void print_row(const row *r) {
  bool epilogue = r->extra != PLAIN && r->extra != BIAS_GRAD;
  timings all = {.count = 0};
  for (int fused = 0; fused <= epilogue; fused++)
    for (int timed = 0; timed < 2; timed++)
      all.item[all.count++] = (timing){.r = r, .gemm = g_gemm[timed], .product = product_of(r, fused)};
  if (r->extra != PLAIN) all.item[all.count++] = (timing){.r = r};
  ok(fx_device_launch(g_device, FX_LANE_COMPUTE, time_task, &all));
  ok(fx_device_sync(g_device));
  const fx_cuda_product *p = &all.item[0].product;
  double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k, first = median(&all.item[0]),
         timed = median(&all.item[1]);
  printf("%-18s %6lld %6lld %6lld %7.3f %5.0f %7.3f %5.0f", r->name, (long long)p->m, (long long)p->n,
         (long long)p->k, first, flops / first / 1e9, timed, flops / timed / 1e9);
  if (r->extra == BIAS_GRAD) printf(" %15s", "");
  for (int i = 2; i < all.count; i++) printf(" %7.3f", median(&all.item[i]));
  printf("\n");
}

int main(void) {
  ok(fx_device_create_cuda(0, &g_device));
  const fx_cuda_context *context = g_device->gemm;
  g_driver = context->driver;
  g_gemm[0] = context->gemm;
  ok(fx_cuda_gemm_open(g_driver, &g_gemm[1]));
  fx_cuda_gemm_autotune(g_gemm[1], true);
  for (int i = 0; i < 2; i++) ok(fx_cuda_check(g_driver, g_driver->event_create(&g_event[i], 0), "an event"));
  g_x = random_numbers(ACTIVATION_BYTES, 1);
  g_w = random_numbers(ACTIVATION_BYTES, 0.02f);
  g_aux = random_numbers(ACTIVATION_BYTES, 1);
  g_y = random_numbers(ACTIVATION_BYTES, 1);
  g_small = random_numbers(SMALL, 1);
  printf("%s, %s, %s\n%-18s %6s %6s %6s %7s %5s %7s %5s %7s %7s %7s\n", context->info.name, g_device->isa,
         g_device->gemm_name, "product", "m", "n", "k", "ms", "TF/s", "timed", "TF/s", "fused", "timed",
         "kernel");
  for (size_t i = 0; i < sizeof g_rows / sizeof g_rows[0]; i++) print_row(&g_rows[i]);
  void *const memory[] = {g_x, g_w, g_aux, g_y, g_small};
  for (int i = 0; i < 5; i++) fx_device_release(g_device, memory[i]);
  for (int i = 0; i < 2; i++) g_driver->event_destroy(g_event[i]);
  fx_cuda_gemm_close(g_gemm[1]);
  fx_device_destroy(g_device);
  return 0;
}
