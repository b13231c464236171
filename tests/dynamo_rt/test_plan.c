/* SPDX-License-Identifier: Apache-2.0 */
/* Graph, passes, arena and verifier. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/passes/passes.h"
#include "tests/dynamo_rt/plan_fixture.h"

static fx_value persistent(fx_graph *g, float *data, int64_t rows, int64_t cols) {
  return fx_graph_persistent(FX_AT(g), "p", data, fx_type_2d(FX_F32, rows, cols));
}

static int live_nodes(const fx_graph *g) {
  int count = 0;
  for (int64_t n = 0; n < g->num_nodes; n++) count += !g->nodes[n].dead;
  return count;
}

static void errors_are_sticky_and_named(void) {
  float a[6] = {0}, b[4] = {0};
  fx_graph *g = fx_graph_create(NULL);
  fx_value x = persistent(g, a, 2, 3), y = persistent(g, b, 2, 2);
  fx_value sum = fx_add(FX_AT(g), x, y);
  CHECK_INT(sum, FX_NONE);
  CHECK_INT(fx_add(FX_AT(g), sum, x), FX_NONE);
  CHECK_STATUS(fx_graph_status(g), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "add: float32[2, 3] does not match float32[2, 2]");
  CHECK_HAS(fx_error_text(), "test_plan.c:");
  fx_graph_destroy(g);
}

static void overlapping_buffers_are_refused(void) {
  float a[8] = {0};
  fx_graph *g = fx_graph_create(NULL);
  persistent(g, a, 1, 4);
  CHECK_INT(persistent(g, a + 2, 1, 4), FX_NONE);
  CHECK_HAS(fx_error_text(), "overlaps");
  fx_graph_destroy(g);
}

static void cse_and_dce(void) {
  float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, out[4] = {0};
  fx_graph *g = fx_graph_create(NULL);
  fx_value x = persistent(g, a, 2, 2), y = persistent(g, b, 2, 2);
  fx_value s1 = fx_add(FX_AT(g), x, y), s2 = fx_add(FX_AT(g), x, y); /* the same twice */
  fx_add(FX_AT(g), s1, x);                                           /* nobody reads it */
  fx_store(FX_AT(g), persistent(g, out, 2, 2), fx_add(FX_AT(g), s1, s2));
  CHECK_INT(fx_pass_cse(g), 1);
  CHECK_INT(fx_pass_dce(g), 1);
  CHECK_INT(live_nodes(g), 3);
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int i = 0; i < 4; i++) CHECK(out[i] == 2 * (a[i] + b[i]));
  free(arena);
  fx_device_destroy(device);
}

/* A pass that replaces a value takes the other looks at it along: a reshape of a folded sum, and one of a
 * merged twin that its twin has not. */
static void views_follow(void) {
  enum { R = 3, N = 4 };
  float x[R * N], w[N * N], sum[R * N], twin[R * N];
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_fill_normal(x, R * N, 1, 1);
  fx_fill_normal(w, N * N, 2, 1);
  fx_graph *g = fx_graph_create(NULL);
  fx_value a = persistent(g, x, R, N), weight = persistent(g, w, N, N);
  fx_value y = fx_linear(FX_AT(g), a, weight, FX_NONE, (fx_linear_attr){0, 0});
  fx_value dx = fx_linear_dx(FX_AT(g), a, weight, (fx_linear_attr){0, 0});
  fx_value flat = fx_reshape(FX_AT(g), fx_add(FX_AT(g), y, dx), 1, (int64_t[]){R * N});
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "sum", sum, fx_type_1d(FX_F32, R * N)),
           fx_add(FX_AT(g), flat, flat));
  fx_value first = fx_add(FX_AT(g), a, a), second = fx_add(FX_AT(g), a, a);
  fx_store(FX_AT(g), persistent(g, twin, R, N), fx_add(FX_AT(g), first, a));
  fx_value wide = fx_reshape(FX_AT(g), second, 2, (int64_t[]){1, R * N});
  fx_accumulate(FX_AT(g), persistent(g, twin, 1, R * N), fx_add(FX_AT(g), wide, wide));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int r = 0; r < R; r++)
    for (int c = 0; c < N; c++) {
      double want = 0;
      for (int i = 0; i < N; i++) want += 2.0 * (double)x[r * N + i] * (double)(w[c * N + i] + w[i * N + c]);
      CHECK_MSG(fabs((double)sum[r * N + c] - want) < 1e-4, "the sum is %g, not %g", (double)sum[r * N + c],
                want);
      CHECK_MSG(fabs((double)twin[r * N + c] - 7 * (double)x[r * N + c]) < 1e-4, "the twin is off");
    }
  free(arena);
  fx_device_destroy(device);
}

/* Rows taken apart and put together again, in more parts than a node has inputs; and a part that is read
 * elsewhere is copied. */
static void rows_apart(void) {
  enum { PARTS = 47, COLS = 3 };
  float x[PARTS * 2 * COLS], whole[PARTS * 2 * COLS], last[2 * COLS];
  fx_device *device = NULL;
  void *arena = NULL;
  fx_value part[PARTS];
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_fill_normal(x, PARTS * 2 * COLS, 1, 1);
  fx_graph *g = fx_graph_create(NULL);
  fx_value a = persistent(g, x, PARTS * 2, COLS);
  for (int64_t i = 0; i < PARTS; i++) {
    fx_value rows = fx_slice_rows(FX_AT(g), a, 2 * i, 2);
    part[i] = fx_add(FX_AT(g), rows, rows);
  }
  fx_store(FX_AT(g), persistent(g, last, 2, COLS), part[PARTS - 1]);
  fx_store(FX_AT(g), persistent(g, whole, PARTS * 2, COLS), fx_assemble_rows(FX_AT(g), part, PARTS));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int i = 0; i < PARTS * 2 * COLS; i++) CHECK(whole[i] == 2 * x[i]);
  for (int i = 0; i < 2 * COLS; i++) CHECK(last[i] == 2 * x[(PARTS - 1) * 2 * COLS + i]);
  g = fx_graph_create(NULL);
  CHECK_INT(fx_slice_rows(FX_AT(g), persistent(g, x, 4, COLS), 3, 2), FX_NONE);
  CHECK_HAS(fx_error_text(), "has no rows 3 to 5");
  fx_graph_destroy(g);
  free(arena);
  fx_device_destroy(device);
}

/* Reads around a mutation must not be merged: the second sum sees the new value. */
static void cse_respects_mutation(void) {
  float a[2] = {1, 1}, b[2] = {10, 10}, first[2], second[2];
  fx_graph *g = fx_graph_create(NULL);
  fx_value x = persistent(g, a, 1, 2), y = persistent(g, b, 1, 2);
  fx_store(FX_AT(g), persistent(g, first, 1, 2), fx_add(FX_AT(g), x, y));
  fx_accumulate(FX_AT(g), x, y);
  fx_store(FX_AT(g), persistent(g, second, 1, 2), fx_add(FX_AT(g), x, y));
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  CHECK(first[0] == 11 && second[0] == 21 && a[0] == 11);
  free(arena);
  fx_device_destroy(device);
}

/* Two sums that begin with equal fills are two sums. */
static void equal_beginnings_stay_apart(void) {
  float x[4] = {1, 2, 3, 4}, y[4] = {10, 20, 30, 40}, sum_x[4], sum_y[4];
  fx_type type = fx_type_2d(FX_F32, 1, 4);
  fx_graph *g = fx_graph_create(NULL);
  fx_value first = fx_fill(FX_AT(g), type, 1), second = fx_fill(FX_AT(g), type, 1);
  first = fx_accumulate(FX_AT(g), first, persistent(g, x, 1, 4));
  second = fx_accumulate(FX_AT(g), second, persistent(g, y, 1, 4));
  fx_store(FX_AT(g), persistent(g, sum_x, 1, 4), first);
  fx_store(FX_AT(g), persistent(g, sum_y, 1, 4), second);
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int i = 0; i < 4; i++) CHECK(sum_x[i] == 1 + x[i] && sum_y[i] == 1 + y[i]);
  free(arena);
  fx_device_destroy(device);
}

/* A layer that lays two halves of its input side by side the other way round, repeated. */
static void repeated_assemblies(void) {
  enum { R = 3, HALF = 4, C = 2 * HALF, LAYERS = 3 };
  float x[R * C], weight[LAYERS][R * C], out[R * C];
  fx_type type = fx_type_2d(FX_F32, R, C);
  fx_graph *g = fx_graph_create(NULL);
  fx_device *device = NULL;
  void *arena = NULL;
  fx_fill_normal(x, R * C, 1, 1);
  fx_value in = persistent(g, x, R, C), w[LAYERS], first = FX_NONE, result = FX_NONE, now = in;
  for (int l = 0; l < LAYERS; l++) fx_fill_normal(weight[l], R * C, (uint64_t)(2 + l), 1);
  for (int l = 0; l < LAYERS; l++) w[l] = persistent(g, weight[l], R, C);
  int begin = fx_graph_num_nodes(g);
  fx_value parts[2] = {fx_slice_heads(FX_AT(g), in, HALF, 1, HALF), fx_slice_heads(FX_AT(g), in, 0, 1, HALF)};
  first = fx_add(FX_AT(g), fx_assemble(FX_AT(g), parts, (int64_t[]){0, HALF}, 2, type), w[0]);
  int end = fx_graph_num_nodes(g);
  now = first;
  for (int l = 1; l < LAYERS; l++) {
    result = first;
    CHECK_OK(
        fx_graph_repeat(g, begin, end, (fx_value[]){in, w[0]}, (fx_value[]){now, w[l]}, 2, l, &result, 1));
    now = result;
  }
  fx_store(FX_AT(g), persistent(g, out, R, C), now);
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int l = 0; l < LAYERS; l++) {
    float next[R * C];
    for (int i = 0; i < R * C; i++) next[i] = x[i / C * C + (i + HALF) % C] + weight[l][i];
    memcpy(x, next, sizeof x);
  }
  CHECK(memcmp(out, x, sizeof x) == 0);
  free(arena);
  fx_device_destroy(device);
}

/* Dimensions exchanged and made contiguous; the gradient goes back the same way. */
static void exchanged_dimensions(void) {
  enum { A = 2, B = 3, N = 4 };
  float x[A * B * N], weight[A * B * N], out[A * B * N], dx[A * B * N];
  fx_type type = fx_type_3d(FX_F32, A, B, N);
  fx_graph *g = fx_graph_create(NULL);
  fx_device *device = NULL;
  void *arena = NULL;
  fx_fill_normal(x, A * B * N, 1, 1);
  fx_fill_normal(weight, A * B * N, 2, 1);
  fx_value in = fx_graph_persistent(FX_AT(g), "x", x, type), grad;
  fx_value y = fx_copy(FX_AT(g), fx_swap_dims(FX_AT(g), in, 0, 1));
  fx_value loss = fx_linear(FX_AT(g), fx_reshape(FX_AT(g), y, 2, (int64_t[]){1, A * B * N}),
                            persistent(g, weight, 1, A * B * N), FX_NONE, (fx_linear_attr){0, 0});
  CHECK_OK(fx_autograd(g, loss, &in, 1, &grad));
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", out, fx_type_3d(FX_F32, B, A, N)), y);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "dx", dx, type), grad);
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int a = 0; a < A; a++)
    for (int b = 0; b < B; b++)
      for (int n = 0; n < N; n++) {
        CHECK(out[(b * A + a) * N + n] == x[(a * B + b) * N + n]);
        CHECK(dx[(a * B + b) * N + n] == weight[(b * A + a) * N + n]);
      }
  g = fx_graph_create(NULL);
  fx_swap_dims(FX_AT(g), fx_graph_persistent(FX_AT(g), "x", x, type), 0, 3);
  CHECK_STATUS(fx_graph_status(g), FX_ERR_SHAPE);
  fx_graph_destroy(g);
  free(arena);
  fx_device_destroy(device);
}

/* The gradient of a layer goes straight into its buffer: no store or accumulate node is left. */
static void folding_writes_in_place(void) {
  enum { R = 3, N = 4 };
  float x[R * N], w[N * N], grad[N * N], want[N * N];
  fx_device *device = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_fill_normal(x, R * N, 1, 1);
  fx_fill_normal(w, N * N, 2, 1);
  for (int add = 0; add < 2; add++) {
    fx_fill_normal(grad, N * N, 3, 1);
    fx_graph *g = fx_graph_create(NULL);
    fx_value weight = persistent(g, w, N, N), grads[1];
    fx_value y = fx_linear(FX_AT(g), persistent(g, x, R, N), weight, FX_NONE, (fx_linear_attr){0, 0});
    y = fx_linear(FX_AT(g), y, weight, FX_NONE,
                  (fx_linear_attr){0, 0}); /* the weight is used twice: its gradient is a sum */
    fx_value ones = fx_fill(FX_AT(g), fx_type_2d(FX_F32, 1, R * N), 1);
    fx_value loss = fx_linear(FX_AT(g), fx_reshape(FX_AT(g), y, 2, (int64_t[]){1, R * N}), ones, FX_NONE,
                              (fx_linear_attr){0, 0});
    CHECK_OK(fx_autograd(g, loss, &weight, 1, grads));
    (add ? fx_accumulate : fx_store)(FX_AT(g), persistent(g, grad, N, N), grads[0]);
    for (int i = 0; i < N * N; i++) { /* d/dW sum(x W^T W^T): by differences in double */
      double h = 1e-6, sums[2] = {0, 0};
      for (int k = 0; k < 2; k++) {
        double v[N * N];
        for (int j = 0; j < N * N; j++) v[j] = w[j];
        v[i] += k ? h : -h;
        for (int r = 0; r < R; r++)
          for (int o = 0; o < N; o++)
            for (int m = 0; m < N; m++)
              for (int c = 0; c < N; c++) sums[k] += (double)x[r * N + c] * v[m * N + c] * v[o * N + m];
      }
      want[i] = (float)((sums[1] - sums[0]) / (2 * h)) + (add ? grad[i] : 0);
    }
    void *arena = NULL;
    fx_plan *plan = run_graph(g, device, FX_EXEC_REPLAY, &arena);
    const fx_graph *after = fx_plan_graph(plan);
    for (int64_t n = 0; n < after->num_nodes; n++)
      CHECK(after->nodes[n].dead || (!fx_is_store(&after->nodes[n]) && !fx_is_accumulate(&after->nodes[n]) &&
                                     !fx_is_add(&after->nodes[n])));
    CHECK_MSG(fx_relative_l2_f(grad, want, N * N) < 1e-5, "folded gradient differs by %g",
              fx_relative_l2_f(grad, want, N * N));
    fx_plan_destroy(plan);
    free(arena);
  }
  fx_device_destroy(device);
}

/* Slices of one projection: their gradients are written side by side, also when one comes from an op that
 * cannot write strided output (a copy goes in between). */
static void slices_are_assembled(void) {
  enum { R = 3, C = 6 };
  float x[R * C], grad[R * C] = {0}, out[R * C] = {0};
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_fill_normal(x, R * C, 1, 1);
  fx_graph *g = fx_graph_create(NULL);
  fx_value base = persistent(g, x, R, C), grads[1];
  fx_value a = fx_copy(FX_AT(g), fx_slice_heads(FX_AT(g), base, 0, 2, 2)),
           b = fx_copy(FX_AT(g), fx_slice_heads(FX_AT(g), base, 4, 1, 2));
  fx_value two = fx_fill(FX_AT(g), fx_type_2d(FX_F32, 1, R * 4), 2),
           three = fx_fill(FX_AT(g), fx_type_2d(FX_F32, 1, R * 2), 3);
  fx_value la = fx_linear(FX_AT(g), fx_reshape(FX_AT(g), a, 2, (int64_t[]){1, R * 4}), two, FX_NONE,
                          (fx_linear_attr){0, 0});
  fx_value lb = fx_linear(FX_AT(g), fx_reshape(FX_AT(g), b, 2, (int64_t[]){1, R * 2}), three, FX_NONE,
                          (fx_linear_attr){0, 0});
  CHECK_OK(fx_autograd(g, fx_add(FX_AT(g), la, lb), &base, 1, grads));
  fx_store(FX_AT(g), persistent(g, grad, R, C), grads[0]);
  fx_store(FX_AT(g), persistent(g, out, R, C), grads[0]);
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int i = 0; i < R * C; i++) {
    CHECK(grad[i] == (i % C < 4 ? 2 : 3));
    CHECK(out[i] == grad[i]);
  }
  free(arena);
  fx_device_destroy(device);
}

static void repeated_layers_equal_written_out_ones(void) {
  enum { R = 4, N = 8, LAYERS = 5 };
  float x[R * N], w[LAYERS][N * N], out[2][R * N];
  fx_device *device = NULL;
  CHECK_OK(fx_device_create_cpu(1, "auto", &device));
  fx_fill_normal(x, R * N, 1, 1);
  for (int l = 0; l < LAYERS; l++) fx_fill_normal(w[l], N * N, 10 + (uint64_t)l, 0.5f);
  for (int repeat = 0; repeat < 2; repeat++) {
    fx_graph *g = fx_graph_create(NULL);
    fx_value v = persistent(g, x, R, N), first = v, weight[LAYERS];
    for (int l = 0; l < LAYERS; l++) weight[l] = persistent(g, w[l], N, N);
    int begin = fx_graph_num_nodes(g), end = 0;
    fx_value traced = FX_NONE;
    for (int l = 0; l < LAYERS; l++) {
      if (l == 0 || !repeat) {
        v = fx_linear(FX_AT(g), v, weight[l], FX_NONE, (fx_linear_attr){0, FX_ACT_GELU});
        if (l == 0) end = fx_graph_num_nodes(g), traced = v;
        continue;
      }
      fx_value from[2] = {weight[0], first}, to[2] = {weight[l], v}, result = traced;
      CHECK_OK(fx_graph_repeat(g, begin, end, from, to, 2, l, &result, 1));
      v = result;
      CHECK_INT(fx_graph_node(g, fx_graph_num_nodes(g) - 1)->layer, l);
    }
    fx_store(FX_AT(g), persistent(g, out[repeat], R, N), v);
    void *arena = NULL;
    fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
    free(arena);
  }
  CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
  CHECK(out[0][0] != 0);
  fx_device_destroy(device);
}

/* Each corruption of a good graph must be found. */
static void verifier_finds_damage(void) {
  float a[4] = {0}, out[4];
  for (int damage = 0; damage < 6; damage++) {
    fx_graph *g = fx_graph_create(NULL);
    fx_value x = persistent(g, a, 2, 2), y = fx_add(FX_AT(g), x, x),
             z = fx_scale(FX_AT(g), y, fx_fill(FX_AT(g), fx_type_1d(FX_F32, 1), 2));
    fx_store(FX_AT(g), persistent(g, out, 2, 2), z);
    if (damage == 0) CHECK_OK(fx_verify(g));
    const char *expected = "";
    switch (damage) {
    case 1:
      g->nodes[0].in[1] = FX_NONE, expected = "required input is absent";
      break;
    case 2:
      g->nodes[0].in[1] = z, expected = "made later";
      break;
    case 3:
      g->values[y].type.dim[0] = 1, expected = "not what its op infers";
      break;
    case 4:
      g->nodes[0].dead = true, expected = "producer is dead";
      break;
    case 5:
      g->nodes[0].accumulate = 1, expected = "its kernels cannot";
      break;
    default:
      break;
    }
    if (damage > 0) {
      CHECK_STATUS(fx_verify(g), FX_ERR_GRAPH);
      CHECK_HAS(fx_error_text(), expected);
    }
    fx_graph_destroy(g);
  }
}

/* Offsets never let two blocks alive at one step share a byte; the range is never below the bound, which is
 * computed here again, step by step. */
static void arena_is_sound(void) {
  enum { N = 60, STEPS = 40 };
  for (uint64_t seed = 0; seed < 200; seed++) {
    fx_block blocks[N];
    int count = 2 + (int)(fx_philox_at(seed, 1, 999, 0).word[0] % (N - 2));
    for (int i = 0; i < count; i++) {
      fx_philox r = fx_philox_at(seed, 1, (uint64_t)i, 0);
      int32_t first = (int32_t)(r.word[0] % STEPS), length = (int32_t)(r.word[1] % 8);
      blocks[i] = (fx_block){
          .bytes = r.word[2] % 9 == 0 ? 0 : r.word[2] % 3000, .first = first, .last = first + length};
    }
    fx_arena_plan plan;
    CHECK_OK(fx_arena_plan_blocks(blocks, count, &plan));
    size_t bound = 0;
    for (int step = 0; step < STEPS + 8; step++) {
      size_t alive = 0;
      for (int i = 0; i < count; i++)
        if (blocks[i].bytes && blocks[i].first <= step && step <= blocks[i].last)
          alive += (blocks[i].bytes + 63) / 64 * 64;
      bound = alive > bound ? alive : bound;
    }
    bool sound = plan.lower_bound == bound && plan.bytes >= bound;
    for (int i = 0; i < count; i++)
      for (int j = 0; j < i; j++) {
        bool together = blocks[i].first <= blocks[j].last && blocks[j].first <= blocks[i].last;
        bool apart = blocks[i].offset + blocks[i].bytes <= blocks[j].offset ||
                     blocks[j].offset + blocks[j].bytes <= blocks[i].offset;
        sound &= !together || apart || !blocks[i].bytes || !blocks[j].bytes;
        sound &= blocks[i].offset % FX_ALIGN == 0;
      }
    CHECK_MSG(sound, "seed %llu: arena of %zu bytes, bound %zu (planner says %zu)", (unsigned long long)seed,
              plan.bytes, bound, plan.lower_bound);
    CHECK(plan.bytes <= bound + bound / 2);
  }
}

/* ---- a device that fails ---- */

static bool g_failed;
static const fx_device_vtable *g_sound;

static fx_status fail(const fx_kernel_args *args) {
  (void)args;
  g_failed = true;
  return fx_error(FX_ERR_DEVICE, "a kernel failed");
}
static fx_status fill_or_fail(fx_device *device, fx_lane lane, void *memory, int byte, size_t bytes) {
  if (g_failed) return fx_error(FX_ERR_DEVICE, "a fill failed");
  return g_sound->fill(device, lane, memory, byte, bytes);
}
static fx_status as_input(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[0];
  return FX_OK;
}

/* As a GPU does: behind the first failure everything fails. */
static void the_first_failure_is_told(void) {
  static const fx_op op = {.name = "failing",
                           .min_in = 1,
                           .max_in = 1,
                           .num_out = 1,
                           .infer = as_input,
                           .kernel = {[FX_BACKEND_CPU] = fail}};
  for (int mode = FX_EXEC_REPLAY; mode <= FX_EXEC_EAGER; mode++) {
    float a[4] = {1, 2, 3, 4}, out[4] = {0};
    fx_device *device = NULL;
    fx_plan *plan = NULL;
    void *arena = NULL;
    if (!CHECK_OK(fx_device_create_cpu(1, "auto", &device))) return;
    fx_device_vtable table = *device->vtable;
    g_sound = device->vtable, g_failed = false;
    table.fill = fill_or_fail;
    device->vtable = &table;
    fx_graph *g = fx_graph_create(NULL);
    fx_value x = persistent(g, a, 2, 2), sum = fx_add(FX_AT(g), x, x);
    fx_value y = fx_graph_record(FX_AT(g), &op, NULL, (fx_value[]){sum}, NULL);
    fx_store(FX_AT(g), persistent(g, out, 2, 2), fx_add(FX_AT(g), y, sum));
    CHECK_OK(fx_plan_prepare(g, (fx_plan_options){.name = "p", .mode = (fx_exec_mode)mode}, device, &plan));
    CHECK_OK(fx_device_alloc(device, fx_plan_stats_get(plan)->arena.bytes + FX_ALIGN, &arena));
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_STATUS(fx_plan_run(plan, 0), FX_ERR_DEVICE);
    CHECK_HAS(fx_error_text(), "plan p: failing (recorded at ");
    CHECK_HAS(fx_error_text(), "test_plan.c:");
    CHECK_HAS(fx_error_text(), ": a kernel failed");
    fx_plan_destroy(plan);
    fx_device_release(device, arena);
    device->vtable = g_sound;
    fx_device_destroy(device);
  }
}

static const fx_test tests[] = {
    {"errors are sticky and named", errors_are_sticky_and_named},
    {"overlapping buffers are refused", overlapping_buffers_are_refused},
    {"equal and unused nodes go", cse_and_dce},
    {"reads around a mutation stay apart", cse_respects_mutation},
    {"rows apart and together", rows_apart},
    {"views follow what they look at", views_follow},
    {"two sums with equal beginnings stay apart", equal_beginnings_stay_apart},
    {"a repeated layer that assembles", repeated_assemblies},
    {"exchanged dimensions", exchanged_dimensions},
    {"gradients are written in place", folding_writes_in_place},
    {"gradients of slices are assembled", slices_are_assembled},
    {"a repeated layer equals a written-out one", repeated_layers_equal_written_out_ones},
    {"the verifier finds damage", verifier_finds_damage},
    {"arena plans are sound", arena_is_sound},
    {"the first failure is told", the_first_failure_is_told}};
FX_TEST_MAIN("plan", tests)
