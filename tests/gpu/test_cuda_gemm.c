/* SPDX-License-Identifier: Apache-2.0 */
/* Products on the GPU against a double reference of the operands as they are stored: types by transpositions
 * by epilogues by beta by shapes, with padded rows and poisoned outputs, each twice for the same bits, with
 * the library's first algorithm and with timed ones. Then the linear ops that use them, as a small MLP.
 * Bounds are of relative norms. bfloat16 results are rounded once or, by some algorithms with beta or a
 * derivative, twice: 2^-9 sqrt(2). fp32 sums of so few terms stay below 4e-7; the library's tanh is good to
 * 3e-6. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/linear.h"
#include "tests/gpu/gpu_case.h"

static fx_device *g_gpu;

enum { PAD = 8, MAX_M = 264, MAX_N = 1000, MAX_K = 392 };

typedef struct shape {
  int64_t m, n, k;
} shape;

static const shape g_shapes[] = {{64, 48, 8}, {40, 72, 136}, {264, 200, 88}, {8, 1000, 24}, {136, 264, 392}};
static const shape g_odd_shapes[] = {{33, 51, 71}, {1, 5, 3}};

typedef struct type_pair {
  fx_dtype in, out;
  double bound;
} type_pair;

static const type_pair g_pairs[] = {
    {FX_F32, FX_F32, 5e-6}, {FX_BF16, FX_BF16, 3e-3}, {FX_BF16, FX_F32, 5e-6}};
enum { PAIRS = sizeof g_pairs / sizeof g_pairs[0] };

typedef struct variant {
  const char *name;
  fx_cuda_epilogue epilogue;
  bool bias, aux;
  float beta;
} variant;

static const variant g_variants[] = {
    {"plain", FX_CUDA_EPILOGUE_NONE, false, false, 0},
    {"beta 1", FX_CUDA_EPILOGUE_NONE, false, false, 1},
    {"beta -0.5", FX_CUDA_EPILOGUE_NONE, false, false, -0.5f},
    {"bias", FX_CUDA_EPILOGUE_BIAS, true, false, 0},
    {"bias, beta 1", FX_CUDA_EPILOGUE_BIAS, true, false, 1},
    {"GELU", FX_CUDA_EPILOGUE_GELU, false, false, 0},
    {"GELU, bias", FX_CUDA_EPILOGUE_GELU, true, false, 0},
    {"GELU, aux", FX_CUDA_EPILOGUE_GELU, false, true, 0},
    {"GELU, bias, aux", FX_CUDA_EPILOGUE_GELU, true, true, 0},
    {"GELU gradient", FX_CUDA_EPILOGUE_GELU_GRAD, false, true, 0},
};
enum { VARIANTS = sizeof g_variants / sizeof g_variants[0] };
static double g_worst[PAIRS][VARIANTS];

/* ---- memory of both sides ---- */

typedef struct memory {
  char *a, *b, *c, *bias, *aux;             /* shared with the GPU */
  double *product, *old, *bias_of, *aux_of; /* what they hold or shall hold */
  float *op_a, *op_b;                       /* [m, k], [k, n] as stored */
} memory;

enum { MATRIX_BYTES = (MAX_M + PAD) * (MAX_N + PAD) * 4, OPERAND_BYTES = (MAX_N + PAD) * (MAX_K + PAD) * 4 };

static double get(const void *data, fx_dtype dtype, int64_t i) {
  return dtype == FX_BF16 ? fx_bf16_to_f32(((const uint16_t *)data)[i]) : ((const float *)data)[i];
}

static float put(void *data, fx_dtype dtype, int64_t i, float value) {
  if (dtype == FX_F32) return ((float *)data)[i] = value;
  ((uint16_t *)data)[i] = fx_f32_to_bf16(value);
  return fx_bf16_to_f32(((uint16_t *)data)[i]);
}

static bool take_memory(memory *x) {
  char **const shared[] = {&x->a, &x->b, &x->c, &x->bias, &x->aux};
  double **const wide[] = {&x->product, &x->old, &x->bias_of, &x->aux_of};
  for (int i = 0; i < 5; i++) {
    void *data = NULL;
    size_t bytes = i < 2 ? OPERAND_BYTES : MATRIX_BYTES;
    if (!CHECK_OK(fx_device_alloc_host(g_gpu, bytes, &data))) return false;
    *shared[i] = data;
  }
  for (int i = 0; i < 4; i++) *wide[i] = calloc((size_t)MAX_M * MAX_N, sizeof(double));
  x->op_a = calloc((size_t)MAX_N * MAX_K, sizeof(float));
  x->op_b = calloc((size_t)MAX_N * MAX_K, sizeof(float));
  return true;
}

static void drop_memory(memory *x) {
  char *const shared[] = {x->a, x->b, x->c, x->bias, x->aux};
  double *const wide[] = {x->product, x->old, x->bias_of, x->aux_of};
  for (int i = 0; i < 5; i++)
    if (shared[i]) fx_device_release_host(g_gpu, shared[i]);
  for (int i = 0; i < 4; i++) free(wide[i]);
  free(x->op_a);
  free(x->op_b);
}

/* op(A), op(B), bias and old contents as their types hold them, and all that follows from them. */
static void make_reference(memory *x, const shape *s, fx_dtype in, fx_dtype out) {
  fx_fill_normal(x->op_a, s->m * s->k, 1, 1);
  fx_fill_normal(x->op_b, s->k * s->n, 2, 1.0f / sqrtf((float)s->k));
  for (int64_t i = 0; i < s->m * s->k; i++) x->op_a[i] = put(x->a, in, 0, x->op_a[i]);
  for (int64_t i = 0; i < s->k * s->n; i++) x->op_b[i] = put(x->b, in, 0, x->op_b[i]);
  float *scratch = calloc((size_t)(s->m * s->n), sizeof *scratch);
  fx_fill_normal(scratch, s->n, 3, 1);
  for (int64_t j = 0; j < s->n; j++) x->bias_of[j] = put(x->c, out, 0, scratch[j]);
  fx_fill_normal(scratch, s->m * s->n, 4, 1);
  for (int64_t i = 0; i < s->m * s->n; i++) x->old[i] = put(x->c, out, 0, scratch[i]);
  fx_fill_normal(scratch, s->m * s->n, 5, 1);
  for (int64_t i = 0; i < s->m * s->n; i++) x->aux_of[i] = put(x->c, out, 0, scratch[i]);
  free(scratch);
  memset(x->product, 0, (size_t)(s->m * s->n) * sizeof(double));
  for (int64_t i = 0; i < s->m; i++)
    for (int64_t p = 0; p < s->k; p++) {
      double left = x->op_a[i * s->k + p];
      for (int64_t j = 0; j < s->n; j++) x->product[i * s->n + j] += left * x->op_b[p * s->n + j];
    }
}

/* Rows PAD elements longer than they need; what is between them is NaN and must not be read. */
static void lay_out(char *to, fx_dtype dtype, const float *from, int64_t rows, int64_t cols, bool transpose) {
  int64_t ld = (transpose ? rows : cols) + PAD;
  memset(to, 0xFF, OPERAND_BYTES);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++)
      put(to, dtype, transpose ? c * ld + r : r * ld + c, from[r * cols + c]);
}

static void poison_outputs(const memory *x, const shape *s, const variant *v, fx_dtype out) {
  int64_t ld = s->n + PAD;
  memset(x->c, 0xFF, MATRIX_BYTES);
  memset(x->aux, 0xFF, MATRIX_BYTES);
  memset(x->bias, 0xFF, MATRIX_BYTES);
  for (int64_t j = 0; j < s->n; j++) put(x->bias, out, j, (float)x->bias_of[j]);
  for (int64_t i = 0; i < s->m; i++)
    for (int64_t j = 0; j < s->n; j++) {
      if (v->beta != 0) put(x->c, out, i * ld + j, (float)x->old[i * s->n + j]);
      if (v->epilogue == FX_CUDA_EPILOGUE_GELU_GRAD)
        put(x->aux, out, i * ld + j, (float)x->aux_of[i * s->n + j]);
    }
}

/* ---- one case ---- */

static double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
  double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

typedef struct launch {
  const fx_cuda_product *product;
  fx_status status;
} launch;

static fx_status launch_product(void *arg, void *stream) {
  launch *l = arg;
  l->status = fx_cuda_gemm_run(((const fx_cuda_context *)g_gpu->gemm)->gemm, l->product, stream);
  return FX_OK;
}

static fx_status run_product(const fx_cuda_product *product) {
  launch l = {product, FX_OK};
  FX_TRY(fx_device_launch(g_gpu, FX_LANE_COMPUTE, launch_product, &l));
  FX_TRY(fx_device_sync(g_gpu));
  return l.status;
}

/* The [rows, cols] in rows of `ld` against `want`; what lies between rows must still be poison. */
static double matrix_error(const char *data, fx_dtype dtype, int64_t rows, int64_t cols, int64_t ld,
                           const double *want) {
  float *got = calloc((size_t)(rows * cols), sizeof *got);
  bool clean = true;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < ld; c++) {
      double value = get(data, dtype, r * ld + c);
      if (c < cols)
        got[r * cols + c] = (float)value;
      else
        clean &= isnan(value);
    }
  double error = clean ? fx_relative_l2(got, want, rows * cols) : INFINITY;
  free(got);
  return error;
}

static double worst_error(const memory *x, const shape *s, const variant *v, fx_dtype out) {
  double *want = calloc((size_t)(s->m * s->n), sizeof *want), *inner = calloc((size_t)(s->m * s->n), 8);
  int64_t ld = s->n + PAD;
  double error = 0;
  for (int64_t i = 0; i < s->m * s->n; i++) {
    inner[i] = x->product[i] + (v->bias ? x->bias_of[i % s->n] : 0) + (double)v->beta * x->old[i];
    want[i] = inner[i];
    if (v->epilogue == FX_CUDA_EPILOGUE_GELU) want[i] = gelu(inner[i]);
    if (v->epilogue == FX_CUDA_EPILOGUE_GELU_GRAD) want[i] = inner[i] * gelu_slope(x->aux_of[i]);
  }
  error = matrix_error(x->c, out, s->m, s->n, ld, want);
  if (v->epilogue == FX_CUDA_EPILOGUE_GELU && v->aux)
    error = fx_worse(error, matrix_error(x->aux, out, s->m, s->n, ld, inner));
  free(want);
  free(inner);
  return error;
}

static void check_variant(const memory *x, const shape *s, int pair, int transposes, int index) {
  const type_pair *types = &g_pairs[pair];
  const variant *v = &g_variants[index];
  bool ta = transposes & 1, tb = transposes & 2;
  fx_cuda_product product = {.transpose_a = ta,
                             .transpose_b = tb,
                             .m = s->m,
                             .n = s->n,
                             .k = s->k,
                             .in = types->in,
                             .out = types->out,
                             .a = x->a,
                             .b = x->b,
                             .lda = (ta ? s->m : s->k) + PAD,
                             .ldb = (tb ? s->k : s->n) + PAD,
                             .c = x->c,
                             .ldc = s->n + PAD,
                             .beta = v->beta,
                             .epilogue = v->epilogue,
                             .bias = v->bias ? x->bias : NULL,
                             .aux = v->aux ? x->aux : NULL};
  bool gelu_like = v->epilogue == FX_CUDA_EPILOGUE_GELU || v->epilogue == FX_CUDA_EPILOGUE_GELU_GRAD;
  bool refused = gelu_like && (types->in != types->out || (v->aux && product.ldc % 8 != 0));
  char *first = malloc(2 * MATRIX_BYTES);
  for (int run = 0; run < 2; run++) {
    poison_outputs(x, s, v, types->out);
    fx_status status = run_product(&product);
    if (refused) {
      CHECK_STATUS(status, FX_ERR_UNSUPPORTED);
      break;
    }
    if (!CHECK_MSG(status == FX_OK, "%s to %s, %s: %s", fx_dtype_name(types->in), fx_dtype_name(types->out),
                   v->name, fx_error_text()))
      break;
    double error = worst_error(x, s, v, types->out);
    CHECK_MSG(error <= types->bound,
              "%s to %s, %lld x %lld x %lld, transposed %d, %s: off by %.3g, expected at most %.3g",
              fx_dtype_name(types->in), fx_dtype_name(types->out), (long long)s->m, (long long)s->n,
              (long long)s->k, transposes, v->name, error, types->bound);
    g_worst[pair][index] = fx_worse(g_worst[pair][index], error);
    if (run == 1)
      CHECK_MSG(memcmp(first, x->c, MATRIX_BYTES) == 0 &&
                    memcmp(first + MATRIX_BYTES, x->aux, MATRIX_BYTES) == 0,
                "%s: two runs differ", v->name);
    memcpy(first, x->c, MATRIX_BYTES);
    memcpy(first + MATRIX_BYTES, x->aux, MATRIX_BYTES);
  }
  free(first);
}

static void check_shapes(memory *x, const shape *shapes, int count, int num_pairs) {
  for (int pair = 0; pair < num_pairs; pair++)
    for (int i = 0; i < count; i++) {
      const shape *s = &shapes[i];
      make_reference(x, s, g_pairs[pair].in, g_pairs[pair].out);
      for (int transposes = 0; transposes < 4; transposes++) {
        lay_out(x->a, g_pairs[pair].in, x->op_a, s->m, s->k, transposes & 1);
        lay_out(x->b, g_pairs[pair].in, x->op_b, s->k, s->n, transposes & 2);
        for (int v = 0; v < VARIANTS; v++) check_variant(x, s, pair, transposes, v);
      }
    }
}

static void all_products(void) {
  memory x = {0};
  if (take_memory(&x)) {
    check_shapes(&x, g_shapes, (int)(sizeof g_shapes / sizeof g_shapes[0]), PAIRS);
    check_shapes(&x, g_odd_shapes, (int)(sizeof g_odd_shapes / sizeof g_odd_shapes[0]), 1);
  }
  drop_memory(&x);
  for (int v = 0; v < VARIANTS; v++)
    printf("worst %-18s fp32 %.2g, bfloat16 %.2g, bfloat16 to fp32 %.2g\n", g_variants[v].name, g_worst[0][v],
           g_worst[1][v], g_worst[2][v]);
}

static void timed_products(void) {
  memory x = {0};
  fx_cuda_gemm *gemm = ((const fx_cuda_context *)g_gpu->gemm)->gemm;
  fx_cuda_gemm_autotune(gemm, true);
  if (take_memory(&x)) check_shapes(&x, g_shapes, 3, PAIRS);
  drop_memory(&x);
  fx_cuda_gemm_autotune(gemm, false);
}

static void bad_products_are_told(void) {
  void *block = NULL;
  CHECK_OK(fx_device_alloc(g_gpu, 4096, &block));
  fx_cuda_product p = {.m = 8, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8, .a = block, .b = block};
  p.c = (char *)block + 2048;
  p.in = FX_F32, p.out = FX_BF16;
  CHECK_STATUS(run_product(&p), FX_ERR_UNSUPPORTED);
  p.out = FX_F32, p.epilogue = FX_CUDA_EPILOGUE_GELU, p.beta = 1;
  CHECK_STATUS(run_product(&p), FX_ERR_UNSUPPORTED);
  p.epilogue = FX_CUDA_EPILOGUE_NONE, p.beta = 0;
  CHECK_OK(run_product(&p));
  p.m = 0, p.a = NULL;
  CHECK_OK(run_product(&p));
  fx_device_release(g_gpu, block);
}

/* ---- the linear ops ---- */

/* Two linear layers with a bias, the first with an activation; widths that the epilogues take and others. */
static void build_mlp(fx_world *w, int in_out, fx_activation activation, int64_t width) {
  enum { I = 72, O = 40 };
  static const char *const names[] = {"dx", "dw1", "db1", "dw2", "db2"};
  fx_type up = in_out ? fx_type_2d(FX_F32, I, width) : fx_type_2d(FX_F32, width, I);
  fx_type down = in_out ? fx_type_2d(FX_F32, width, O) : fx_type_2d(FX_F32, O, width);
  fx_value v[5] = {fx_world_normals(w, "x", fx_type_3d(FX_F32, 2, 36, I), 1, false),
                   fx_world_normals(w, "w1", up, 0.1f, false),
                   fx_world_normals(w, "b1", fx_type_1d(FX_F32, width), 1, false),
                   fx_world_normals(w, "w2", down, 0.1f, false),
                   fx_world_normals(w, "b2", fx_type_1d(FX_F32, O), 1, false)},
           grads[5];
  for (int i = 0; i < 5; i++) v[i] = fx_world_halved(w, v[i]);
  fx_value h = fx_linear(FX_AT(w->graph), v[0], v[1], v[2], (fx_linear_attr){in_out, (int32_t)activation});
  fx_value y = fx_linear(FX_AT(w->graph), h, v[3], v[4], (fx_linear_attr){in_out, FX_ACT_NONE});
  fx_value wide = fx_cast(FX_AT(w->graph), y, FX_F32);
  fx_value mix = fx_world_normals(w, "mix", fx_type_2d(FX_F32, 24, O), 0.2f, false);
  fx_value loss = fx_linear(FX_AT(w->graph), wide, mix, FX_NONE, (fx_linear_attr){0, FX_ACT_GELU_TANH});
  CHECK_OK(fx_autograd(w->graph, loss, v, 5, grads));
  fx_world_output(w, "y", wide);
  fx_world_output(w, names[0], fx_cast(FX_AT(w->graph), grads[0], FX_F32));
  for (int i = 1; i < 5; i++) fx_world_gradient(w, names[i], grads[i]);
}

static void mlp_tanh(fx_world *w) {
  build_mlp(w, 1, FX_ACT_GELU_TANH, 96);
}
static void mlp_tanh_odd(fx_world *w) {
  build_mlp(w, 0, FX_ACT_GELU_TANH, 91);
}
static void mlp_erf(fx_world *w) {
  build_mlp(w, 0, FX_ACT_GELU, 96);
}
static void mlp_tanh_of_92(fx_world *w) {
  build_mlp(w, 1, FX_ACT_GELU_TANH, 92);
}

static void linear_ops(void) {
  static const fx_graph_case cases[] = {
      {.name = "MLP, tanh GELU", .build = mlp_tanh, .bound = 5e-6},
      {.name = "MLP, tanh GELU, odd", .build = mlp_tanh_odd, .bound = 5e-6},
      {.name = "MLP, GELU", .build = mlp_erf, .bound = 5e-6},
      {.name = "MLP in bfloat16, tanh GELU", .build = mlp_tanh, .half = true, .bound = 1e-2},
      {.name = "MLP in bfloat16, GELU", .build = mlp_erf, .half = true, .bound = 1e-2},
      {.name = "MLP in bfloat16, tanh GELU, no multiple of 8",
       .build = mlp_tanh_of_92,
       .half = true,
       .bound = 1e-2}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (int add = 0; add < 2; add++) {
      fx_graph_case c = cases[i];
      c.add = add != 0;
      run_case(&c, g_gpu);
    }
}

int main(void) {
  static const fx_test tests[] = {{"products against a double reference", all_products},
                                  {"products by timed algorithms", timed_products},
                                  {"bad products are told", bad_products_are_told},
                                  {"linear ops against the double reference", linear_ops}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  if (fx_device_create_cuda(0, &g_gpu) != FX_OK) {
    printf("FAILED: %s\n", fx_error_text());
    return 1;
  }
  printf("GPU: %s, %s, %s\n", probe.device[0].name, g_gpu->isa, g_gpu->gemm_name);
  int code = fx_test_main("cuda products", tests, (int)(sizeof tests / sizeof tests[0]));
  fx_device_destroy(g_gpu);
  return code;
}
