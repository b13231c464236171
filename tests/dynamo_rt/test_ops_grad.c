/* SPDX-License-Identifier: Apache-2.0 */
/* Every shipped kernel, forward and backward, against an independent double-precision reference: the forward
 * is compared with it directly, the float gradients with central differences of it. The scalar is
 * sum(cotangent * output), with a random cotangent, so no derivative can hide behind a sum of ones. Each case
 * runs with 1 and 3 threads, and once more with the gradients accumulated onto what was there. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/rope.h"
#include "tests/dynamo_rt/plan_fixture.h"

enum { MAX_ARGS = 4, B = 2, T = 5, ROWS = B * T };

typedef struct op_case {
  const char *name;
  int64_t numel[MAX_ARGS]; /* float arguments; 0 ends */
  fx_type type[MAX_ARGS];
  int64_t out; /* elements of the output */
  fx_value (*record)(fx_graph *graph, const fx_value *args, const int32_t *ids);
  void (*reference)(const double *const *args, const int32_t *ids, double *out);
  float sigma;
} op_case;

static int32_t g_ids[ROWS] = {3, 0, 7, 3, 1, 6, 6, 2, 5, 4};

/* ---- references, in double ---- */

enum { I = 12, O = 8, E = 12, F = 6, V = 9, D = 6, H = 2 };

static double gelu(double x) {
  return 0.5 * x * (1 + erf(x / sqrt(2.0)));
}
static double gelu_tanh(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void ref_linear_any(const double *const *a, double *out, bool in_out, bool bias,
                           double (*act)(double)) {
  for (int r = 0; r < ROWS; r++)
    for (int o = 0; o < O; o++) {
      double sum = bias ? a[2][o] : 0;
      for (int i = 0; i < I; i++) sum += a[0][r * I + i] * (in_out ? a[1][i * O + o] : a[1][o * I + i]);
      out[r * O + o] = act ? act(sum) : sum;
    }
}
static void ref_linear(const double *const *a, const int32_t *ids, double *out) {
  (void)ids, ref_linear_any(a, out, false, false, NULL);
}
static void ref_add_bias(const double *const *a, const int32_t *ids, double *out) {
  (void)ids;
  for (int i = 0; i < ROWS * O; i++) out[i] = a[0][i] + a[1][i % O];
}
static void ref_linear_bias(const double *const *a, const int32_t *ids, double *out) {
  (void)ids, ref_linear_any(a, out, true, true, NULL);
}
static void ref_linear_gelu(const double *const *a, const int32_t *ids, double *out) {
  (void)ids, ref_linear_any(a, out, false, true, gelu);
}
static void ref_linear_tanh(const double *const *a, const int32_t *ids, double *out) {
  (void)ids, ref_linear_any(a, out, true, true, gelu_tanh);
}

static void ref_swiglu(const double *const *a, const int32_t *ids, double *out) {
  (void)ids;
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < F; i++) {
      double g = a[0][r * 2 * F + i], u = a[0][r * 2 * F + F + i];
      out[r * F + i] = g / (1 + exp(-g)) * u;
    }
}

static void ref_norm(const double *const *a, double *out, bool layer) {
  for (int r = 0; r < ROWS; r++) {
    const double *x = a[0] + r * E;
    double mean = 0, square = 0;
    for (int i = 0; layer && i < E; i++) mean += x[i] / E;
    for (int i = 0; i < E; i++) square += (x[i] - mean) * (x[i] - mean) / E;
    for (int i = 0; i < E; i++)
      out[r * E + i] = (x[i] - mean) / sqrt(square + 1e-5) * a[1][i] + (layer ? a[2][i] : 0);
  }
}
static void ref_rms(const double *const *a, const int32_t *ids, double *out) {
  (void)ids, ref_norm(a, out, false);
}
static void ref_layer(const double *const *a, const int32_t *ids, double *out) {
  (void)ids, ref_norm(a, out, true);
}

/* C = 2 rotated heads of D and one that passes through; positions are the ids. */
static void ref_rope(const double *const *a, const int32_t *ids, double *out) {
  for (int r = 0; r < ROWS; r++)
    for (int h = 0; h < H + 1; h++)
      for (int i = 0; i < D / 2; i++) {
        const double *x = a[0] + r * (H + 1) * D + h * D;
        double *y = out + r * (H + 1) * D + h * D, angle = ids[r] / pow(100.0, 2.0 * i / D);
        if (h == H) angle = 0;
        y[i] = x[i] * cos(angle) - x[D / 2 + i] * sin(angle);
        y[D / 2 + i] = x[D / 2 + i] * cos(angle) + x[i] * sin(angle);
      }
}

static void ref_embedding(const double *const *a, const int32_t *ids, double *out) {
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < E; i++) out[r * E + i] = a[0][ids[r] * E + i];
}

static void ref_add(const double *const *a, const int32_t *ids, double *out) {
  (void)ids;
  for (int i = 0; i < ROWS * E; i++) out[i] = a[0][i] + a[1][i];
}

/* out = the loss alone: 0.37 * sum of nll over rows whose id is not 6 (masked) and vocabulary 8 of 9. */
static void ref_head(const double *const *a, const int32_t *ids, double *out) {
  double loss = 0;
  for (int r = 0; r < ROWS; r++) {
    double logit[V], top = -INFINITY, sum = 0;
    for (int v = 0; v < V - 1; v++) {
      logit[v] = 0;
      for (int i = 0; i < E; i++) logit[v] += a[0][r * E + i] * a[1][v * E + i];
      top = fmax(top, logit[v]);
    }
    for (int v = 0; v < V - 1; v++) sum += exp(logit[v] - top);
    if (ids[r] != 6) loss += log(sum) + top - logit[ids[r]];
  }
  out[0] = 0.37 * loss;
}

/* ---- recordings ---- */

static fx_value rec_linear(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_linear(FX_AT(g), a[0], a[1], FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
}
/* Each row by itself, in two pieces of unequal size, so that only their order tells them apart. */
static fx_value rec_by_rows(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  fx_linear_attr layout = {1, FX_ACT_NONE};
  fx_value x = fx_reshape(FX_AT(g), a[0], 2, (int64_t[]){ROWS, I}), part[2];
  for (int i = 0; i < 2; i++)
    part[i] =
        fx_linear(FX_AT(g), fx_slice_rows(FX_AT(g), x, i ? 3 : 0, i ? ROWS - 3 : 3), a[1], a[2], layout);
  return fx_assemble_rows(FX_AT(g), part, 2);
}
static fx_value rec_add_bias(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_add_bias(FX_AT(g), a[0], a[1]);
}
static fx_value rec_linear_bias(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_linear(FX_AT(g), a[0], a[1], a[2], (fx_linear_attr){1, FX_ACT_NONE});
}
static fx_value rec_linear_gelu(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_linear(FX_AT(g), a[0], a[1], a[2], (fx_linear_attr){0, FX_ACT_GELU});
}
static fx_value rec_linear_tanh(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_linear(FX_AT(g), a[0], a[1], a[2], (fx_linear_attr){1, FX_ACT_GELU_TANH});
}
static fx_value rec_swiglu(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_swiglu(FX_AT(g), a[0]);
}
static fx_value rec_rms(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_norm(FX_AT(g), a[0], a[1], FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f});
}
static fx_value rec_layer(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_norm(FX_AT(g), a[0], a[1], a[2], (fx_norm_attr){FX_NORM_LAYER, 1e-5f});
}
static fx_value id_value(fx_graph *g, const int32_t *ids) {
  return fx_graph_persistent(FX_AT(g), "ids", (void *)(uintptr_t)ids, fx_type_2d(FX_I32, B, T));
}
static fx_value rec_rope(fx_graph *g, const fx_value *a, const int32_t *ids) {
  fx_value table = fx_rope_table(FX_AT(g), id_value(g, ids), (fx_rope_table_attr){D, 100.0});
  return fx_rope(FX_AT(g), a[0], table, (fx_rope_attr){H, D, 1});
}
static fx_value rec_embedding(fx_graph *g, const fx_value *a, const int32_t *ids) {
  return fx_embedding(FX_AT(g), id_value(g, ids), a[0]);
}
static fx_value rec_add(fx_graph *g, const fx_value *a, const int32_t *ids) {
  (void)ids;
  return fx_add(FX_AT(g), a[0], a[1]);
}
static fx_value rec_head(fx_graph *g, const fx_value *a, const int32_t *ids) {
  static int32_t targets[ROWS];
  for (int r = 0; r < ROWS; r++) targets[r] = ids[r] == 6 ? -1 : ids[r];
  fx_value factor = fx_fill(FX_AT(g), fx_type_1d(FX_F32, 1), 0.37f);
  return fx_head_ce(FX_AT(g), a[0], a[1], id_value(g, targets), factor, (fx_head_ce_attr){V - 1}, NULL);
}

/* ---- the check ---- */

#define X3(cols)                                                                       \
  {                                                                                    \
    .dtype = FX_F32, .ndim = 3, .dim = {B, T, cols}, .stride = { T * (cols), cols, 1 } \
  }
#define W2(rows, cols)                                                     \
  {                                                                        \
    .dtype = FX_F32, .ndim = 2, .dim = {rows, cols}, .stride = { cols, 1 } \
  }
#define W1(n)                                               \
  {                                                         \
    .dtype = FX_F32, .ndim = 1, .dim = {n}, .stride = { 1 } \
  }

static const op_case g_cases[] = {
    {"linear", {ROWS * I, O *I}, {X3(I), W2(O, I)}, ROWS *O, rec_linear, ref_linear, 1},
    {"linear, bias, [in, out]",
     {ROWS * I, O *I, O},
     {X3(I), W2(I, O), W1(O)},
     ROWS *O,
     rec_linear_bias,
     ref_linear_bias,
     1},
    {"linear, rows in pieces",
     {ROWS * I, I *O, O},
     {X3(I), W2(I, O), W1(O)},
     ROWS *O,
     rec_by_rows,
     ref_linear_bias,
     1},
    {"a bias apart", {ROWS * O, O}, {X3(O), W1(O)}, ROWS *O, rec_add_bias, ref_add_bias, 1},
    {"linear, bias, GELU",
     {ROWS * I, O *I, O},
     {X3(I), W2(O, I), W1(O)},
     ROWS *O,
     rec_linear_gelu,
     ref_linear_gelu,
     0.7f},
    {"linear, bias, tanh GELU",
     {ROWS * I, O *I, O},
     {X3(I), W2(I, O), W1(O)},
     ROWS *O,
     rec_linear_tanh,
     ref_linear_tanh,
     0.7f},
    {"swiglu", {ROWS * 2 * F}, {X3(2 * F)}, ROWS *F, rec_swiglu, ref_swiglu, 2},
    {"rmsnorm", {ROWS * E, E}, {X3(E), W1(E)}, ROWS *E, rec_rms, ref_rms, 1},
    {"layernorm", {ROWS * E, E, E}, {X3(E), W1(E), W1(E)}, ROWS *E, rec_layer, ref_layer, 1},
    {"rope", {ROWS * (H + 1) * D}, {X3((H + 1) * D)}, ROWS *(H + 1) * D, rec_rope, ref_rope, 1},
    {"embedding", {V * E}, {W2(V, E)}, ROWS *E, rec_embedding, ref_embedding, 1},
    {"add", {ROWS * E, ROWS *E}, {X3(E), X3(E)}, ROWS *E, rec_add, ref_add, 1},
    {"head with cross-entropy", {ROWS * E, V *E}, {X3(E), W2(V, E)}, 1, rec_head, ref_head, 1},
};

static double scalar_of(const op_case *c, const double *const *args, const double *cotangent, double *out) {
  double sum = 0;
  c->reference(args, g_ids, out);
  for (int64_t i = 0; i < c->out; i++) sum += cotangent[i] * out[i];
  return sum;
}

/* Wraps the output as loss = sum(cotangent * y): a linear layer of one output row whose weight is the
 * cotangent. */
static fx_value record_scalar(fx_graph *g, fx_value y, int64_t n, float *cotangent) {
  if (n == 1) return y;
  fx_value flat = fx_reshape(FX_AT(g), y, 2, (int64_t[]){1, n});
  fx_value w = fx_graph_persistent(FX_AT(g), "cotangent", cotangent, fx_type_2d(FX_F32, 1, n));
  return fx_linear(FX_AT(g), flat, w, FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
}

static void check_case(const op_case *c, int threads, bool accumulate) {
  fx_device *device = NULL;
  float *data[MAX_ARGS], *grad[MAX_ARGS], *out = normals(c->out, 99, 0), *cotangent = normals(c->out, 5, 1);
  double *wide[MAX_ARGS], *wide_cotangent = calloc((size_t)c->out, sizeof(double)),
                          *scratch = calloc((size_t)c->out, sizeof(double));
  const double *view[MAX_ARGS];
  fx_value args[MAX_ARGS], grads[MAX_ARGS];
  int count = 0;
  CHECK_OK(fx_device_create_cpu(threads, "auto", &device));
  fx_graph *g = fx_graph_create(NULL);
  for (; count < MAX_ARGS && c->numel[count]; count++) {
    int64_t n = c->numel[count];
    data[count] = normals(n, 10 + (uint64_t)count, c->sigma);
    grad[count] = normals(n, 20, accumulate ? 1 : 0);
    view[count] = wide[count] = calloc((size_t)n, sizeof(double));
    for (int64_t i = 0; i < n; i++) wide[count][i] = data[count][i];
    args[count] = fx_graph_persistent(FX_AT(g), "argument", data[count], c->type[count]);
  }
  if (c->out == 1) cotangent[0] = 1;
  for (int64_t i = 0; i < c->out; i++) wide_cotangent[i] = cotangent[i];
  fx_value y = c->record(g, args, g_ids);
  fx_value loss = record_scalar(g, y, c->out, cotangent);
  CHECK_OK(fx_autograd(g, loss, args, count, grads));
  for (int k = 0; k < count; k++) {
    fx_value place = fx_graph_persistent(FX_AT(g), "gradient", grad[k], c->type[k]);
    (accumulate ? fx_accumulate : fx_store)(FX_AT(g), place, grads[k]);
  }
  fx_type flat = fx_type_1d(FX_F32, c->out);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "out", out, flat), y);
  void *arena = NULL;
  fx_plan *plan = run_graph(g, device, FX_EXEC_REPLAY, &arena);
  scalar_of(c, view, wide_cotangent, scratch);
  double error = fx_relative_l2(out, scratch, c->out);
  CHECK_MSG(error < 1e-6, "%s, %d threads: forward differs by %.3g", c->name, threads, error);
  for (int k = 0; k < count; k++) {
    double *want = calloc((size_t)c->numel[k], sizeof(double));
    float *base = normals(c->numel[k], 20, accumulate ? 1 : 0);
    for (int64_t i = 0; i < c->numel[k]; i++) {
      double x = wide[k][i], h = 1e-5;
      wide[k][i] = x + h;
      double up = scalar_of(c, view, wide_cotangent, scratch);
      wide[k][i] = x - h;
      want[i] = (up - scalar_of(c, view, wide_cotangent, scratch)) / (2 * h) + (double)base[i];
      wide[k][i] = x;
    }
    error = fx_relative_l2(grad[k], want, c->numel[k]);
    CHECK_MSG(error < 2e-6, "%s, %d threads%s: gradient %d differs by %.3g", c->name, threads,
              accumulate ? ", accumulated" : "", k, error);
    free(want);
    free(base);
  }
  fx_plan_destroy(plan);
  free(arena);
  for (int k = 0; k < count; k++) {
    free(data[k]);
    free(grad[k]);
    free(wide[k]);
  }
  free(out);
  free(cotangent);
  free(wide_cotangent);
  free(scratch);
  fx_device_destroy(device);
}

static void all_cases(void) {
  for (size_t i = 0; i < sizeof g_cases / sizeof g_cases[0]; i++)
    for (int threads = 1; threads <= 3; threads += 2)
      for (int accumulate = 0; accumulate < 2; accumulate++) check_case(&g_cases[i], threads, accumulate);
}

static const fx_test tests[] = {{"kernels against differences of a double reference", all_cases}};
FX_TEST_MAIN("op gradients", tests)
