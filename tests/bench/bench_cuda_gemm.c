/* SPDX-License-Identifier: Apache-2.0 */
/* Products of a training step on a GPU, in bfloat16: TFLOP/s with the library's first algorithm and with
 * timed ones, epilogues fused and as kernels of their own. `bench-cuda-gemm`; each figure is the best of
 * three averages over as many runs as take some 5 ms. */
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
static fx_cuda_gemm *g_gemm;
static void *g_x, *g_w, *g_y, *g_aux, *g_small; /* activations, weights, outputs: normal numbers at first */
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
  p.sum = (char *)g_small + SMALL / 2;
  static const fx_cuda_epilogue epilogues[] = {FX_CUDA_EPILOGUE_NONE, FX_CUDA_EPILOGUE_BIAS,
                                               FX_CUDA_EPILOGUE_GELU, FX_CUDA_EPILOGUE_GELU_GRAD,
                                               FX_CUDA_EPILOGUE_NONE};
  p.epilogue = epilogues[r->extra];
  if (r->extra == BIAS_GRAD) p.epilogue = first ? FX_CUDA_EPILOGUE_SUM_B : FX_CUDA_EPILOGUE_SUM_A;
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
                            FX_CUDA_ARGS(&g_y, &bias, &pre, &activation, &n, &cols));
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
  const fx_cuda_product *product; /* NULL: the kernel */
  float ms;
} timing;

static fx_status run_once(const timing *t, void *stream) {
  return t->product ? fx_cuda_gemm_run(g_gemm, t->product, stream) : run_kernel(t->r, stream);
}

static fx_status average(const timing *t, int runs, void *const event[2], float *ms, void *stream) {
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_record(event[0], stream), "an event"));
  for (int i = 0; i < runs; i++) FX_TRY(run_once(t, stream));
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_record(event[1], stream), "an event"));
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_sync(event[1]), "an event"));
  FX_TRY(fx_cuda_check(g_driver, g_driver->event_elapsed(ms, event[0], event[1]), "an event"));
  *ms /= (float)runs;
  return FX_OK;
}

static fx_status time_task(void *arg, void *stream) {
  timing *t = arg;
  void *event[2];
  float ms = 0;
  for (int i = 0; i < 2; i++)
    FX_TRY(fx_cuda_check(g_driver, g_driver->event_create(&event[i], 0), "an event"));
  FX_TRY(run_once(t, stream)); /* chooses the algorithm */
  FX_TRY(average(t, 2, event, &ms, stream));
  int runs = (int)fmaxf(2.0f, fminf(50.0f, 5.0f / ms));
  t->ms = 1e9f;
  for (int round = 0; round < 3; round++) {
    FX_TRY(average(t, runs, event, &ms, stream));
    t->ms = fminf(t->ms, ms);
  }
  for (int i = 0; i < 2; i++) g_driver->event_destroy(event[i]);
  return FX_OK;
}

/* NaN where the library has no algorithm. */
static double time_of(const row *r, const fx_cuda_product *product) {
  timing t = {.r = r, .product = product};
  fx_status status = fx_device_launch(g_device, FX_LANE_COMPUTE, time_task, &t);
  if (status == FX_ERR_UNSUPPORTED) return NAN;
  ok(status);
  ok(fx_device_sync(g_device));
  return t.ms;
}

static void print_row(const row *r) {
  fx_cuda_product plain = product_of(r, false), fused = product_of(r, true);
  double flops = 2.0 * (double)plain.m * (double)plain.n * (double)plain.k,
         ms[2][2] = {{NAN, NAN}, {NAN, NAN}};
  double kernel = r->extra == PLAIN ? NAN : time_of(r, NULL);
  for (int tuned = 0; tuned < 2; tuned++) {
    fx_cuda_gemm_autotune(g_gemm, tuned);
    ms[tuned][0] = time_of(r, &plain);
    if (r->extra != PLAIN) ms[tuned][1] = time_of(r, &fused);
  }
  fx_cuda_gemm_autotune(g_gemm, false);
  printf("%-18s %6lld %6lld %6lld %7.3f %5.0f %7.3f %5.0f", r->name, (long long)plain.m, (long long)plain.n,
         (long long)plain.k, ms[0][0], flops / ms[0][0] / 1e9, ms[1][0], flops / ms[1][0] / 1e9);
  if (r->extra != PLAIN) printf(" %7.3f %7.3f %7.3f", ms[0][1], ms[1][1], kernel);
  printf("\n");
}

int main(void) {
  ok(fx_device_create_cuda(0, &g_device));
  const fx_cuda_context *context = g_device->gemm;
  g_driver = context->driver;
  g_gemm = context->gemm;
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
  fx_device_destroy(g_device);
  return 0;
}
