/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that are no smooth functions: dropout, casts, the optimizer, bad ids; the vector math; every op has its
 * kernels. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/cpu/vmath.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/optimizer.h"
#include "tests/dynamo_rt/plan_fixture.h"

/* Units in the last place of a float `want`. */
static double ulps(float got, double want) {
  double ulp = fmax(ldexp(1.0, ilogb(want) - 23), 0x1p-149);
  return fabs((double)got - want) / ulp;
}

static void vector_math_against_libm(void) {
  double worst_exp = 0, worst_tanh = 0, worst_phi = 0, worst_sigmoid = 0;
  for (int i = -900000; i <= 900000; i++) {
    float x = (float)i * 1e-4f;
    if (x > -87.3f && x < 88.7f) worst_exp = fx_worse(worst_exp, ulps(fx_vexp(x), exp((double)x)));
    worst_tanh = fmax(worst_tanh, fabs((double)fx_vtanh(x) - tanh((double)x)));
    worst_sigmoid = fmax(worst_sigmoid, fabs((double)fx_vsigmoid(x) - 1 / (1 + exp(-(double)x))));
    double phi = 0.5 * erfc(-(double)x / sqrt(2.0));
    worst_phi = fmax(worst_phi, fabs((double)fx_vphi(x) - phi));
  }
  CHECK_MSG(worst_exp <= 2, "exp is off by %.2f ulp", worst_exp);
  CHECK_MSG(worst_tanh <= 2.5e-7, "tanh is off by %.3g", worst_tanh);
  CHECK_MSG(worst_sigmoid <= 1.5e-7, "sigmoid is off by %.3g", worst_sigmoid);
  CHECK_MSG(worst_phi <= 2e-7, "Phi is off by %.3g", worst_phi);
  CHECK(fx_vexp(-INFINITY) == 0 && fx_vexp(-87.5f) == 0 && fx_vexp(INFINITY) == INFINITY &&
        fx_vexp(89) == INFINITY);
  CHECK(isnan(fx_vexp(NAN)) && fx_vexp(0) == 1);
}

static fx_device *new_device(int threads) {
  fx_device *device = NULL;
  CHECK_OK(fx_device_create_cpu(threads, "auto", &device));
  return device;
}

/* y of dropout over ones [rows, T, E] whose samples carry `ordinals`. */
static void dropout_ones(float p, int64_t batch, const int64_t *ordinals, int64_t iteration, int layer,
                         int threads, float *y) {
  enum { T = 7, E = 10 };
  fx_device *device = new_device(threads);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_graph_set_layer(g, layer);
  fx_value x = fx_fill(FX_AT(g), fx_type_3d(FX_F32, batch, T, E), 1);
  fx_value ordinal =
      fx_graph_persistent(FX_AT(g), "ordinal", (void *)(uintptr_t)ordinals, fx_type_1d(FX_I64, batch));
  fx_value step = fx_graph_persistent(FX_AT(g), "iteration", &iteration, fx_type_1d(FX_I64, 1));
  fx_value out = fx_dropout(FX_AT(g), x, ordinal, step, (fx_dropout_attr){.seed = 5, .site = 77, .p = p});
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", y, fx_type_3d(FX_F32, batch, T, E)), out);
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  free(arena);
  fx_device_destroy(device);
}

static void dropout_is_a_function_of_its_counters(void) {
  enum { E = 10, N = 7 * E, BATCH = 600 }; /* of dropout_ones */
  static float many[BATCH * N], again[BATCH * N];
  static int64_t ordinals[BATCH];
  for (int i = 0; i < BATCH; i++) ordinals[i] = 1000 + i;
  dropout_ones(0.3f, BATCH, ordinals, 4, 0, 2, many);
  int zeros = 0;
  for (int i = 0; i < BATCH * N; i++) {
    zeros += many[i] == 0;
    CHECK(many[i] == 0 || many[i] == 65536.0f / 45875.0f); /* 1 / (1 - p), p in units of 2^-16 */
  }
  double rate = (double)zeros / (BATCH * N), sigma = sqrt(0.21 / (BATCH * N));
  CHECK_MSG(fabs(rate - 0.3) < 5 * sigma, "rate of zeros %.4f, expected 0.3", rate);
  /* channels draw apart from each other, whether or not they share a word */
  for (int apart = 1; apart < E; apart++) {
    int both = 0, pairs = 0;
    for (int i = 0; i < BATCH * N; i++)
      if (i % E + apart < E) pairs++, both += many[i] == 0 && many[i + apart] == 0;
    double joint = (double)both / pairs, error = sqrt(0.09 * 0.91 / pairs);
    CHECK_MSG(fabs(joint - 0.09) < 5 * error, "both of %d apart are zero: %.4f, expected 0.09", apart, joint);
  }
  /* one sample alone, another place in the batch, another number of threads: the same mask */
  float alone[N];
  dropout_ones(0.3f, 1, ordinals + 123, 4, 0, 1, alone);
  CHECK(memcmp(alone, many + 123 * N, sizeof alone) == 0);
  /* another iteration, layer or sample: another one */
  dropout_ones(0.3f, BATCH, ordinals, 5, 0, 2, again);
  CHECK(memcmp(many, again, sizeof many) != 0);
  dropout_ones(0.3f, BATCH, ordinals, 4, 1, 2, again);
  CHECK(memcmp(many, again, sizeof many) != 0);
  CHECK(memcmp(many, many + N, N * sizeof(float)) != 0);
  dropout_ones(0, 1, ordinals, 4, 0, 1, alone);
  for (int i = 0; i < N; i++) CHECK(alone[i] == 1);
}

/* Rows in the middle of the batch draw what they draw in the whole. */
static void dropout_of_some_rows(void) {
  enum { T = 7, E = 10, BATCH = 3, FIRST = 5, ROWS = 11 };
  float whole[BATCH * T * E], rows[ROWS * E];
  int64_t ordinals[BATCH] = {40, 7, 12}, iteration = 4;
  fx_dropout_attr attr = {.seed = 5, .site = 77, .p = 0.3f, .first_row = FIRST, .length = T};
  dropout_ones(0.3f, BATCH, ordinals, iteration, 0, 1, whole);
  for (int bad = 0; bad < 2; bad++) {
    fx_graph *g = fx_graph_create(NULL);
    fx_value ordinal = fx_graph_persistent(FX_AT(g), "ordinal", ordinals, fx_type_1d(FX_I64, BATCH));
    fx_value step = fx_graph_persistent(FX_AT(g), "iteration", &iteration, fx_type_1d(FX_I64, 1));
    fx_value x = fx_fill(FX_AT(g), fx_type_2d(FX_F32, ROWS, E), 1);
    if (bad) attr.first_row = BATCH * T - ROWS + 1;
    fx_value y = fx_dropout(FX_AT(g), x, ordinal, step, attr);
    if (bad) {
      CHECK_STATUS(fx_graph_status(g), FX_ERR_SHAPE);
      fx_graph_destroy(g);
      continue;
    }
    fx_device *device = new_device(2);
    void *arena = NULL;
    fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", rows, fx_type_2d(FX_F32, ROWS, E)), y);
    fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
    CHECK(memcmp(rows, whole + (ptrdiff_t)FIRST * E, sizeof rows) == 0);
    free(arena);
    fx_device_destroy(device);
  }
}

/* The gradient passes through the same mask. */
static void dropout_gradient_uses_the_same_mask(void) {
  enum { N = 4 * 6 };
  float x[N], y[N], dx[N];
  int64_t ordinal[1] = {9}, iteration = 3;
  fx_device *device = new_device(1);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_fill_normal(x, N, 1, 1);
  fx_type type = fx_type_3d(FX_F32, 1, 4, 6);
  fx_value in = fx_graph_persistent(FX_AT(g), "x", x, type), grads[1];
  fx_value o = fx_graph_persistent(FX_AT(g), "o", ordinal, fx_type_1d(FX_I64, 1));
  fx_value i = fx_graph_persistent(FX_AT(g), "i", &iteration, fx_type_1d(FX_I64, 1));
  fx_graph_set_layer(g, 2);
  fx_value out = fx_dropout(FX_AT(g), in, o, i, (fx_dropout_attr){.seed = 5, .site = 7, .p = 0.5f});
  fx_graph_set_layer(g, 0);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", y, type), out);
  CHECK_OK(fx_autograd(g, out, &in, 1, grads)); /* seeds ones: the gradient is the mask */
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "dx", dx, type), grads[0]);
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  int kept = 0;
  for (int k = 0; k < N; k++) {
    CHECK(y[k] == (dx[k] != 0 ? 2 * x[k] : 0));
    kept += dx[k] == 2;
  }
  CHECK(kept > 2 && kept < N - 2);
  free(arena);
  fx_device_destroy(device);
}

/* Rows of a longer sequence, by blocks of 128 in another order, draw what they draw in the whole. */
static void dropout_of_blocks(void) {
  enum { T = 512, PART = 256, E = 6 };
  static float whole[2 * T * E], part[2 * PART * E];
  int64_t ordinals[2] = {4, 900}, iteration = 8;
  int32_t blocks[2] = {128, 384};
  fx_device *device = new_device(1);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_dropout_attr attr = {.seed = 5, .site = 77, .p = 0.4f};
  fx_value o = fx_graph_persistent(FX_AT(g), "o", ordinals, fx_type_1d(FX_I64, 2));
  fx_value i = fx_graph_persistent(FX_AT(g), "i", &iteration, fx_type_1d(FX_I64, 1));
  fx_value at = fx_graph_persistent(FX_AT(g), "blocks", blocks, fx_type_1d(FX_I32, 2));
  fx_type all = fx_type_3d(FX_F32, 2, T, E), some = fx_type_3d(FX_F32, 2, PART, E);
  fx_value ones = fx_fill(FX_AT(g), all, 1), fewer = fx_fill(FX_AT(g), some, 1);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "whole", whole, all),
           fx_dropout(FX_AT(g), ones, o, i, attr));
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "part", part, some),
           fx_dropout_at(FX_AT(g), fewer, o, i, at, attr));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int b = 0; b < 2; b++)
    for (int k = 0; k < 2; k++)
      CHECK(memcmp(part + (b * PART + k * 128) * E, whole + (b * T + blocks[k]) * E,
                   128 * E * sizeof(float)) == 0);
  CHECK(memcmp(part, whole, 128 * E * sizeof(float)) != 0);
  free(arena);
  fx_device_destroy(device);
}

static void casts(void) {
  const float numbers[] = {0,        1,         -1.0078125f, 3.14159265f, 1e-40f, 65504, 3.3895314e38f,
                           INFINITY, -INFINITY, 1.00390625f};
  enum { N = sizeof numbers / sizeof numbers[0] };
  uint16_t half[N];
  float back[N];
  double wide[N];
  fx_device *device = new_device(1);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_value x = fx_graph_persistent(FX_AT(g), "x", (void *)(uintptr_t)numbers, fx_type_1d(FX_F32, N));
  fx_value b = fx_cast(FX_AT(g), x, FX_BF16);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "half", half, fx_type_1d(FX_BF16, N)), b);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "back", back, fx_type_1d(FX_F32, N)),
           fx_cast(FX_AT(g), b, FX_F32));
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "wide", wide, fx_type_1d(FX_F64, N)),
           fx_cast(FX_AT(g), x, FX_F64));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int i = 0; i < N; i++) CHECK(wide[i] == (double)numbers[i]);
  CHECK_INT(half[1], 0x3F80);
  CHECK_INT(half[3], 0x4049); /* pi = 0x40490FDB, rounds down */
  CHECK_INT(half[9], 0x3F80); /* 1 + 2^-8: a tie, to even */
  CHECK_INT(half[2], 0xBF81); /* exact */
  CHECK_INT(half[7], 0x7F80);
  CHECK(back[0] == 0 && back[2] == numbers[2] && isinf(back[8]));
  CHECK(isnan(fx_bf16_to_f32(fx_f32_to_bf16(NAN))));
  free(arena);
  fx_device_destroy(device);
}

/* Three updates against the formula in double; 40,001 elements cross the kernel's blocks. */
static void adamw_and_clip(void) {
  enum { N = 40001 };
  float *p = normals(N, 1, 1), *m = normals(N, 1, 0), *v = normals(N, 1, 0), *g_ = normals(N, 2, 1),
        lr = 3e-3f, norm = 0;
  double *dp = calloc(N, sizeof(double)), *dm = calloc(N, sizeof(double)), *dv = calloc(N, sizeof(double));
  int64_t step = 0;
  for (int i = 0; i < N; i++) dp[i] = p[i];
  fx_device *device = new_device(2);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_type type = fx_type_1d(FX_F32, N);
  fx_plan *plan = NULL;
  fx_value grad = fx_graph_persistent(FX_AT(g), "g", g_, type), factor;
  fx_value n = fx_clip(FX_AT(g), fx_squares(g, &grad, 1), (fx_clip_attr){1.5}, &factor);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "norm", &norm, fx_type_1d(FX_F32, 1)), n);
  fx_adamw_values values = {fx_graph_persistent(FX_AT(g), "p", p, type),
                            grad,
                            fx_graph_persistent(FX_AT(g), "m", m, type),
                            fx_graph_persistent(FX_AT(g), "v", v, type),
                            fx_graph_persistent(FX_AT(g), "lr", &lr, fx_type_1d(FX_F32, 1)),
                            fx_graph_persistent(FX_AT(g), "step", &step, fx_type_1d(FX_I64, 1)),
                            n,
                            factor,
                            FX_NONE};
  float *copy[3] = {normals(N, 1, 0), normals(N, 1, 0), normals(N, 1, 0)};
  fx_value snapshot[3];
  for (int i = 0; i < 3; i++) snapshot[i] = fx_graph_persistent(FX_AT(g), "snapshot", copy[i], type);
  fx_adamw(FX_AT(g), &values, snapshot,
           (fx_adamw_attr){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1});
  CHECK_OK(fx_plan_prepare(g, (fx_plan_options){.name = "update"}, device, &plan));
  CHECK_OK(fx_alloc_aligned(&arena, fx_plan_stats_get(plan)->arena.bytes));
  CHECK_OK(fx_plan_bind(plan, arena));
  for (step = 1; step <= 3; step++) {
    double square = 0;
    fx_fill_normal(g_, N, 100 + (uint64_t)step, step == 2 ? 1e-3f : 1);
    for (int i = 0; i < N; i++) square += (double)g_[i] * g_[i];
    double total = sqrt(square), scale = fmin(1, 1.5 / (total + 1e-6));
    CHECK_MSG(step != 2 || scale == 1, "the small gradient must not be clipped, norm %g", total);
    CHECK_OK(fx_plan_run(plan, 0));
    CHECK_MSG(fabs(norm - total) < 1e-6 * total, "norm %.9g, expected %.9g", (double)norm, total);
    for (int i = 0; i < N; i++) {
      double grad_i = g_[i] * scale;
      dm[i] = 0.9 * dm[i] + 0.1 * grad_i;
      dv[i] = 0.95 * dv[i] + 0.05 * grad_i * grad_i;
      double mean = dm[i] / (1 - pow(0.9, (double)step)), root = sqrt(dv[i] / (1 - pow(0.95, (double)step)));
      dp[i] = dp[i] * (1 - (double)lr * 0.1) - (double)lr * mean / (root + 1e-6);
    }
  }
  CHECK(memcmp(copy[0], p, N * sizeof(float)) == 0 && memcmp(copy[1], m, N * sizeof(float)) == 0 &&
        memcmp(copy[2], v, N * sizeof(float)) == 0);
  g_[7] = NAN; /* nothing is updated, but the snapshot is taken */
  copy[0][5] = 1;
  CHECK_OK(fx_plan_run(plan, 0));
  CHECK(memcmp(copy[0], p, N * sizeof(float)) == 0);
  CHECK_MSG(fx_relative_l2(p, dp, N) < 2e-7, "weights differ by %.3g", fx_relative_l2(p, dp, N));
  CHECK_MSG(fx_relative_l2(m, dm, N) < 1e-6, "first moments differ by %.3g", fx_relative_l2(m, dm, N));
  CHECK_MSG(fx_relative_l2(v, dv, N) < 1e-6, "second moments differ by %.3g", fx_relative_l2(v, dv, N));
  fx_plan_destroy(plan);
  fx_device_destroy(device);
  float *floats[] = {p, m, v, g_, copy[0], copy[1], copy[2]};
  for (int i = 0; i < 7; i++) free(floats[i]);
  free(dp);
  free(dm);
  free(dv);
  free(arena);
}

/* One update of elements [first, first + n) at a rate of 0, which leaves the parameters: their rounded copy.
 */
static void round_parameters(float *p, int64_t first, int64_t n, int32_t stochastic, int64_t step, float norm,
                             uint16_t *to) {
  float lr = 0, factor = 1, *state = normals(3 * n, 1, 0);
  fx_device *device = new_device(2);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_plan *plan = NULL;
  fx_type type = fx_type_1d(FX_F32, n), number = fx_type_1d(FX_F32, 1);
  fx_adamw_values v = {.param = fx_graph_persistent(FX_AT(g), "p", p + first, type),
                       .grad = fx_graph_persistent(FX_AT(g), "g", state, type),
                       .exp_avg = fx_graph_persistent(FX_AT(g), "m", state + n, type),
                       .exp_avg_sq = fx_graph_persistent(FX_AT(g), "v", state + 2 * n, type),
                       .lr = fx_graph_persistent(FX_AT(g), "lr", &lr, number),
                       .step = fx_graph_persistent(FX_AT(g), "step", &step, fx_type_1d(FX_I64, 1)),
                       .norm = fx_graph_persistent(FX_AT(g), "norm", &norm, number),
                       .factor = fx_graph_persistent(FX_AT(g), "factor", &factor, number),
                       .compute = fx_graph_persistent(FX_AT(g), "copy", to + first, fx_type_1d(FX_BF16, n))};
  fx_adamw(
      FX_AT(g), &v, NULL,
      (fx_adamw_attr){
          .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .seed = 5, .first = first, .stochastic = stochastic});
  CHECK_OK(fx_plan_prepare(g, (fx_plan_options){.name = "round"}, device, &plan));
  CHECK_OK(fx_alloc_aligned(&arena, fx_plan_stats_get(plan)->arena.bytes + 64));
  CHECK_OK(fx_plan_bind(plan, arena));
  CHECK_OK(fx_plan_run(plan, 0));
  fx_plan_destroy(plan);
  fx_device_destroy(device);
  free(arena);
  free(state);
}

static void adamw_rounds_a_copy(void) {
  enum { N = 40003, CUT = 17005 }; /* CUT is no multiple of eight: a draw is split over two parts */
  float *p = normals(N, 4, 1);
  uint16_t *nearest = calloc(N, 2), *whole = calloc(N, 2), *parts = calloc(N, 2), *other = calloc(N, 2);
  double bias = 0, square = 0;
  int64_t differ = 0, ups = 0;
  p[11] = INFINITY;
  p[12] = NAN;
  round_parameters(p, 0, N, 0, 1, 1.0f, nearest);
  round_parameters(p, 0, N, 1, 1, 1.0f, whole);
  round_parameters(p, 0, CUT, 1, 1, 1.0f, parts);
  round_parameters(p, CUT, N - CUT, 1, 1, 1.0f, parts);
  round_parameters(p, 0, N, 1, 2, 1.0f, other);
  CHECK_MSG(memcmp(whole, parts, N * 2) == 0, "the copy depends on how the parameters are split");
  for (int i = 0; i < N; i++) {
    CHECK(nearest[i] == fx_f32_to_bf16(p[i]));
    if (!isfinite(p[i])) {
      CHECK(whole[i] == nearest[i]);
      continue;
    }
    double step = ldexp(1, ilogb((double)p[i]) - 7),
           off = ((double)fx_bf16_to_f32(whole[i]) - (double)p[i]) / step;
    CHECK(fabs(off) < 1); /* one of the two neighbours */
    bias += off / N;
    square += off * off / N;
    ups += whole[i] != nearest[i];
    differ += whole[i] != other[i];
  }
  /* off is up or down by the other's probability: mean 0, variance E[x (1 - x)] = 1 / 6 */
  CHECK_MSG(fabs(bias) < 5 * sqrt(1.0 / 6 / N), "rounding is biased by %.3g steps", bias);
  CHECK_MSG(fabs(square - 1.0 / 6) < 0.01, "a variance of %.4g steps", square);
  CHECK_MSG(ups > N / 8 && differ > N / 8, "%lld not to nearest, %lld differ from step to step",
            (long long)ups, (long long)differ);
  round_parameters(p, 0, N, 1, 3, INFINITY, other); /* a step that is skipped writes nothing */
  memcpy(parts, other, N * 2);
  round_parameters(p, 0, N, 0, 3, NAN, other);
  CHECK(memcmp(parts, other, N * 2) == 0);
  free(p);
  free(nearest);
  free(whole);
  free(parts);
  free(other);
}

static void ids_out_of_range_are_data_errors(void) {
  float table[4 * 2] = {0}, y[2];
  int32_t id = 4;
  fx_device *device = new_device(1);
  for (int mode = 0; mode < 2; mode++) {
    fx_graph *g = fx_graph_create(NULL);
    fx_plan *plan = NULL;
    void *arena = NULL;
    fx_value ids = fx_graph_persistent(FX_AT(g), "ids", &id, fx_type_2d(FX_I32, 1, 1));
    fx_value out =
        fx_embedding(FX_AT(g), ids, fx_graph_persistent(FX_AT(g), "table", table, fx_type_2d(FX_F32, 4, 2)));
    fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", y, fx_type_3d(FX_F32, 1, 1, 2)), out);
    CHECK_OK(
        fx_plan_prepare(g, (fx_plan_options){.name = "lookup", .mode = (fx_exec_mode)mode}, device, &plan));
    CHECK_OK(fx_alloc_aligned(&arena, fx_plan_stats_get(plan)->arena.bytes));
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_STATUS(fx_plan_run(plan, 0), FX_ERR_DATA);
    CHECK_HAS(fx_error_text(), "id 4");
    CHECK_HAS(fx_error_text(), "test_ops.c:");
    fx_plan_destroy(plan);
    free(arena);
  }
  fx_device_destroy(device);
}

/* A vocabulary whose logits need several chunks gives what one chunk would: compare with a reference in
 * double. */
static void head_in_chunks(void) {
  enum { ROWS = 700, E = 8, V = 40000 };
  float *x = normals(ROWS * E, 1, 1), *w = normals(V * E, 2, 1), *nll = normals(ROWS, 1, 0),
        *dx = normals(ROWS * E, 1, 0), loss = 0;
  double *want = calloc(ROWS, sizeof(double)), *want_dx = calloc(ROWS * E, sizeof(double)), total = 0;
  int32_t *targets = calloc(ROWS, sizeof(int32_t));
  fx_device *device = new_device(2);
  fx_graph *g = fx_graph_create(NULL);
  void *arena = NULL;
  fx_value in = fx_graph_persistent(FX_AT(g), "x", x, fx_type_3d(FX_F32, 1, ROWS, E)), terms, grads[1];
  for (int r = 0; r < ROWS; r++) targets[r] = r % 5 == 0 ? -1 : (r * 57) % V;
  fx_value t = fx_graph_persistent(FX_AT(g), "t", targets, fx_type_2d(FX_I32, 1, ROWS));
  fx_value out = fx_head_ce(FX_AT(g), in, fx_graph_persistent(FX_AT(g), "w", w, fx_type_2d(FX_F32, V, E)), t,
                            fx_fill(FX_AT(g), fx_type_1d(FX_F32, 1), 0.01f), (fx_head_ce_attr){0}, &terms);
  CHECK_OK(fx_autograd(g, out, &in, 1, grads));
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "nll", nll, fx_type_2d(FX_F32, 1, ROWS)), terms);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "loss", &loss, fx_type_1d(FX_F32, 1)), out);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "dx", dx, fx_type_3d(FX_F32, 1, ROWS, E)), grads[0]);
  fx_plan *plan = run_graph(g, device, FX_EXEC_REPLAY, &arena);
  CHECK_MSG(fx_plan_stats_get(plan)->workspace_bytes < (size_t)ROWS * V * sizeof(float) * 3 / 5,
            "logits of all rows were stored: %zu bytes", fx_plan_stats_get(plan)->workspace_bytes);
  for (int r = 0; r < ROWS; r++) {
    double sum = 0, picked = 0;
    if (targets[r] < 0) continue;
    for (int v = 0; v < V; v++) {
      double logit = 0;
      for (int i = 0; i < E; i++) logit += (double)x[r * E + i] * w[v * E + i];
      sum += exp(logit);
      if (v == targets[r]) picked = logit;
      for (int i = 0; i < E; i++) want_dx[r * E + i] += exp(logit) * w[v * E + i];
    }
    want[r] = log(sum) - picked;
    total += 0.01 * want[r];
    for (int i = 0; i < E; i++)
      want_dx[r * E + i] = 0.01 * (want_dx[r * E + i] / sum - (double)w[targets[r] * E + i]);
  }
  CHECK_MSG(fx_relative_l2(nll, want, ROWS) < 1e-6, "nll differs by %.3g", fx_relative_l2(nll, want, ROWS));
  CHECK_MSG(fx_relative_l2(dx, want_dx, ROWS * E) < 3e-6, "dx differs by %.3g",
            fx_relative_l2(dx, want_dx, ROWS * E));
  CHECK_MSG(fabs(loss - total) < 1e-6 * total, "loss %.9g, expected %.9g", (double)loss, total);
  fx_plan_destroy(plan);
  fx_device_destroy(device);
  float *floats[] = {x, w, nll, dx};
  for (int i = 0; i < 4; i++) free(floats[i]);
  free(want);
  free(want_dx);
  free(targets);
  free(arena);
}

static const fx_test tests[] = {
    {"vector math against libm", vector_math_against_libm},
    {"dropout is a function of its counters", dropout_is_a_function_of_its_counters},
    {"dropout of blocks of a sequence", dropout_of_blocks},
    {"dropout of some rows", dropout_of_some_rows},
    {"dropout's gradient uses the same mask", dropout_gradient_uses_the_same_mask},
    {"casts", casts},
    {"AdamW and clipping", adamw_and_clip},
    {"adamw rounds a copy", adamw_rounds_a_copy},
    {"ids out of range", ids_out_of_range_are_data_errors},
    {"head with cross-entropy in chunks", head_in_chunks}};
FX_TEST_MAIN("ops", tests)
