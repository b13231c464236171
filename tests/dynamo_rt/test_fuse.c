/* SPDX-License-Identifier: Apache-2.0 */
/* Fusion: which pairs merge and which must not, and that a whole small step gives the same bits with the pass
 * and without it. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/passes/passes.h"
#include "tests/dynamo_rt/plan_fixture.h"

enum { ROWS = 6, E = 8, F = 12, MAX_DATA = 48 };

/* A graph over numbers of its own. */
typedef struct world {
  fx_graph *graph;
  float *data[MAX_DATA];
  int64_t numel[MAX_DATA];
  int count;
} world;

static fx_value numbers(world *w, int64_t rows, int64_t cols, float sigma) {
  fx_type type = rows ? fx_type_2d(FX_F32, rows, cols) : fx_type_1d(FX_F32, cols);
  int64_t numel = fx_type_numel(&type);
  w->numel[w->count] = numel;
  w->data[w->count] = normals(numel, 100 + (uint64_t)w->count, sigma);
  return fx_graph_persistent(FX_AT(w->graph), "p", w->data[w->count++], type);
}

static void keep(world *w, fx_value value) {
  const fx_type *type = fx_graph_type(w->graph, value);
  fx_store(FX_AT(w->graph), numbers(w, type->ndim == 2 ? type->dim[0] : 0, fx_type_cols(type), 0), value);
}

static void end(world *w) {
  for (int i = 0; i < w->count; i++) free(w->data[i]);
  fx_graph_destroy(w->graph);
}

static int count_of(const fx_graph *graph, const char *name) {
  int count = 0;
  for (int64_t n = 0; n < graph->num_nodes; n++)
    count += !graph->nodes[n].dead && strcmp(graph->nodes[n].op->name, name) == 0;
  return count;
}

static fx_value layer_norm(world *w, fx_value x) {
  return fx_norm(FX_AT(w->graph), x, numbers(w, 0, E, 1), numbers(w, 0, E, 1),
                 (fx_norm_attr){FX_NORM_LAYER, 1e-5f});
}

static fx_value rms_norm(world *w, fx_value x) {
  return fx_norm(FX_AT(w->graph), x, numbers(w, 0, E, 1), FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f});
}

/* ---- sums and norms ---- */

typedef struct sum_case {
  const char *name;
  void (*build)(world *w);
  int fused, adds, norms,
      outputs; /* nodes left; how many outputs the first add_norm has, once dead ones went */
} sum_case;

static void sum_unread(world *w) {
  keep(w, layer_norm(w, fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1))));
}
static void sum_read(world *w) {
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  keep(w, fx_add(FX_AT(w->graph), rms_norm(w, sum), sum));
}
static void sum_read_before(world *w) {
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  keep(w, fx_copy(FX_AT(w->graph), sum));
  keep(w, rms_norm(w, sum));
}
static void two_norms(world *w) {
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  keep(w, layer_norm(w, sum));
  keep(w, rms_norm(w, sum));
}
static void chained(world *w) {
  fx_value x = numbers(w, ROWS, E, 1);
  for (int i = 0; i < 3; i++) x = fx_add(FX_AT(w->graph), x, rms_norm(w, x));
  keep(w, rms_norm(w, x));
}
static void same_twice(world *w) {
  fx_value x = fx_copy(FX_AT(w->graph), numbers(w, ROWS, E, 1)), sum = fx_add(FX_AT(w->graph), x, x);
  keep(w, fx_add(FX_AT(w->graph), layer_norm(w, sum), sum));
}
static void dropout_between(world *w) {
  static int64_t ordinals[1] = {5}, iteration[1] = {7};
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  fx_value x = fx_reshape(FX_AT(w->graph), sum, 3, (int64_t[]){1, ROWS, E});
  fx_value o = fx_graph_persistent(FX_AT(w->graph), "o", ordinals, fx_type_1d(FX_I64, 1));
  fx_value i = fx_graph_persistent(FX_AT(w->graph), "i", iteration, fx_type_1d(FX_I64, 1));
  x = fx_dropout(FX_AT(w->graph), x, o, i, (fx_dropout_attr){.seed = 1, .site = 2, .p = 0.5f});
  keep(w, layer_norm(w, fx_reshape(FX_AT(w->graph), x, 2, (int64_t[]){ROWS, E})));
}
static void weight_made_later(world *w) {
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  fx_value weight = fx_copy(FX_AT(w->graph), numbers(w, 0, E, 1));
  keep(w, fx_norm(FX_AT(w->graph), sum, weight, FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f}));
}
static void weight_made_before(world *w) {
  fx_value weight = fx_copy(FX_AT(w->graph), numbers(w, 0, E, 1));
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  keep(w, fx_norm(FX_AT(w->graph), sum, weight, FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f}));
}
/* As a collective that gathers weights would: it writes them between the sum and the norm. */
static void weight_written_between(world *w) {
  fx_value weight = numbers(w, 0, E, 1), fresh = numbers(w, 0, E, 1);
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  fx_store(FX_AT(w->graph), weight, fresh);
  keep(w, fx_norm(FX_AT(w->graph), sum, weight, FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f}));
}
static void bias_written_between(world *w) {
  fx_value weight = numbers(w, 0, E, 1), bias = numbers(w, 0, E, 1);
  fx_value sum = fx_add(FX_AT(w->graph), numbers(w, ROWS, E, 1), numbers(w, ROWS, E, 1));
  fx_accumulate(FX_AT(w->graph), bias, weight);
  keep(w, fx_norm(FX_AT(w->graph), sum, weight, bias, (fx_norm_attr){FX_NORM_LAYER, 1e-5f}));
}
static void summand_written_after(world *w) {
  fx_value a = numbers(w, ROWS, E, 1), b = numbers(w, ROWS, E, 1), sum = fx_add(FX_AT(w->graph), a, b);
  fx_accumulate(FX_AT(w->graph), a, b); /* after the sum: the sum keeps its place, so it may */
  keep(w, rms_norm(w, sum));
}

static const sum_case g_sums[] = {
    {"a sum that only the norm reads", sum_unread, 1, 0, 0, 1},
    {"a sum that others read", sum_read, 1, 1, 0, 2},
    {"a sum that is read before the norm", sum_read_before, 1, 0, 0, 2},
    {"two norms of a sum", two_norms, 1, 0, 1, 2},
    {"residual blocks", chained, 3, 0, 1, 2},
    {"the same summand twice", same_twice, 1, 1, 0, 2},
    {"dropout between", dropout_between, 0, 1, 1, 0},
    {"a weight made after the sum", weight_made_later, 0, 1, 1, 0},
    {"a weight made before the sum", weight_made_before, 1, 0, 0, 1},
    {"a weight written in between", weight_written_between, 0, 1, 1, 0},
    {"a bias written in between", bias_written_between, 0, 1, 1, 0},
    {"a summand written after the sum", summand_written_after, 1, 0, 0, 1},
};

/* ---- products and derivatives of activations ---- */

typedef struct mlp {
  fx_value x, h, y, v[5]; /* v: x, two weights, two biases */
} mlp;

static mlp two_layers(world *w, fx_activation first, fx_activation second) {
  mlp m = {.v = {numbers(w, ROWS, E, 1), numbers(w, E, F, 0.5f), numbers(w, 0, F, 1), numbers(w, E, F, 0.5f),
                 numbers(w, 0, E, 1)}};
  m.x = m.v[0];
  m.h = fx_linear(FX_AT(w->graph), m.x, m.v[1], m.v[2], (fx_linear_attr){1, (int32_t)first});
  m.y = fx_linear(FX_AT(w->graph), m.h, m.v[3], m.v[4], (fx_linear_attr){0, (int32_t)second});
  return m;
}

static void keep_gradients(world *w, fx_value loss, const fx_value *wrt, int count) {
  fx_value grads[16];
  CHECK_OK(fx_autograd(w->graph, loss, wrt, count, grads));
  for (int i = 0; i < count; i++) keep(w, grads[i]);
}

typedef struct act_case {
  const char *name;
  void (*build)(world *w);
  int fused, acts, dxs; /* nodes left */
} act_case;

static void plain_mlp(world *w) {
  mlp m = two_layers(w, FX_ACT_GELU_TANH, FX_ACT_NONE);
  keep_gradients(w, m.y, m.v, 5);
}
static void exact_mlp(world *w) {
  mlp m = two_layers(w, FX_ACT_GELU, FX_ACT_NONE);
  keep_gradients(w, m.y, m.v, 5);
}
/* The last activation's gradient comes from no product; the first one's comes from a layer with another. */
static void both_active(world *w) {
  mlp m = two_layers(w, FX_ACT_GELU, FX_ACT_GELU_TANH);
  keep_gradients(w, m.y, m.v, 5);
}
/* h is read twice, so its gradient is a sum. */
static void two_readers_of_h(world *w) {
  mlp m = two_layers(w, FX_ACT_GELU_TANH, FX_ACT_NONE);
  fx_value other = fx_linear(FX_AT(w->graph), m.h, numbers(w, E, F, 0.5f), FX_NONE, (fx_linear_attr){0, 0});
  keep_gradients(w, fx_add(FX_AT(w->graph), m.y, other), m.v, 5);
}
/* The gradient of h is also an answer. */
static void gradient_is_kept(world *w) {
  mlp m = two_layers(w, FX_ACT_GELU_TANH, FX_ACT_NONE);
  keep_gradients(w, m.y, (fx_value[]){m.x, m.h}, 2);
}

static const act_case g_acts[] = {
    {"MLP, tanh GELU", plain_mlp, 1, 0, 1},
    {"MLP, GELU", exact_mlp, 1, 0, 1},
    {"two activations", both_active, 1, 1, 1},
    {"two readers of the hidden values", two_readers_of_h, 0, 1, 3},
    {"a gradient that is kept", gradient_is_kept, 0, 1, 2},
};

/* ---- a whole block ---- */

/* x + attention-like product, norm, MLP, residual, norm: twice, with every gradient. */
static void small_step(world *w) {
  fx_value wrt[16], x = numbers(w, ROWS, E, 1);
  int count = 0;
  wrt[count++] = x;
  for (int layer = 0; layer < 2; layer++) {
    fx_value gain = numbers(w, 0, E, 1), shift = numbers(w, 0, E, 1), mix = numbers(w, E, E, 0.5f);
    fx_value up = numbers(w, E, F, 0.5f), bias = numbers(w, 0, F, 1), down = numbers(w, F, E, 0.5f);
    fx_norm_attr attr = {FX_NORM_LAYER, 1e-5f};
    fx_value n = fx_norm(FX_AT(w->graph), x, gain, shift, attr);
    x = fx_add(FX_AT(w->graph), x, fx_linear(FX_AT(w->graph), n, mix, FX_NONE, (fx_linear_attr){1, 0}));
    n = fx_norm(FX_AT(w->graph), x, gain, shift, attr);
    fx_value h = fx_linear(FX_AT(w->graph), n, up, bias, (fx_linear_attr){1, FX_ACT_GELU_TANH});
    x = fx_add(FX_AT(w->graph), x, fx_linear(FX_AT(w->graph), h, down, FX_NONE, (fx_linear_attr){1, 0}));
    const fx_value mine[] = {gain, shift, mix, up, bias, down};
    for (int i = 0; i < 6; i++) wrt[count++] = mine[i];
  }
  fx_value y = fx_norm(FX_AT(w->graph), x, numbers(w, 0, E, 1), FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f});
  fx_value loss =
      fx_linear(FX_AT(w->graph), y, numbers(w, 3, E, 1), FX_NONE, (fx_linear_attr){0, FX_ACT_GELU});
  keep(w, loss);
  keep_gradients(w, loss, wrt, count);
}

/* ---- checks ---- */

/* All numbers of the world after running it; the caller frees them. */
static float *result_of(void (*build)(world *w), fx_plan_options options, int64_t *total) {
  world w = {.graph = fx_graph_create(NULL)};
  fx_device *device = NULL;
  fx_plan *plan = NULL;
  void *arena = NULL;
  int64_t at = 0;
  *total = 0;
  CHECK_OK(fx_device_create_cpu(2, "auto", &device));
  build(&w);
  options.name = "test";
  options.poison = true;
  if (CHECK_OK(fx_plan_prepare(w.graph, options, device, &plan))) {
    size_t bytes = fx_plan_stats_get(plan)->arena.bytes;
    CHECK_OK(fx_alloc_aligned(&arena, bytes));
    memset(arena, 0xFF, bytes);
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_OK(fx_plan_run(plan, 0));
  }
  for (int i = 0; i < w.count; i++) *total += w.numel[i];
  float *all = calloc((size_t)*total, sizeof *all);
  for (int i = 0; i < w.count; at += w.numel[i++]) {
    memcpy(all + at, w.data[i], (size_t)w.numel[i] * sizeof *all);
    free(w.data[i]);
  }
  fx_plan_destroy(plan);
  free(arena);
  fx_device_destroy(device);
  return all;
}

static void check_bits(const char *name, void (*build)(world *w)) {
  static const fx_plan_options modes[] = {{.mode = FX_EXEC_REPLAY}, {.mode = FX_EXEC_EAGER}};
  int64_t total, again;
  float *apart = result_of(build, (fx_plan_options){.mode = FX_EXEC_EAGER, .unfused = true}, &total);
  for (int64_t i = 0; i < total; i++)
    if (!CHECK_MSG(isfinite(apart[i]), "%s: number %lld is not finite", name, (long long)i)) break;
  for (int m = 0; m < 2; m++) {
    float *merged = result_of(build, modes[m], &again);
    CHECK_MSG(again == total && memcmp(apart, merged, (size_t)total * sizeof *apart) == 0,
              "%s: fused, %s, differs from unfused", name, m ? "eager" : "replay");
    free(merged);
  }
  free(apart);
}

/* cse and dce, then the pass, then dce as in fx_graph_optimize; the graph must still be well-formed. */
static int fuse_alone(world *w, void (*build)(world *w)) {
  w->graph = fx_graph_create(NULL);
  build(w);
  fx_pass_cse(w->graph);
  fx_pass_dce(w->graph);
  int fused = fx_pass_fuse(w->graph);
  fx_pass_dce(w->graph);
  CHECK_OK(fx_verify(w->graph));
  return fused;
}

static void sums_and_norms(void) {
  for (size_t i = 0; i < sizeof g_sums / sizeof g_sums[0]; i++) {
    const sum_case *c = &g_sums[i];
    world w = {0};
    int fused = fuse_alone(&w, c->build), outputs = 0;
    for (int64_t n = 0; n < w.graph->num_nodes && !outputs; n++)
      for (int k = 0; k < 4 && w.graph->nodes[n].op == fx_add_norm_op() && !w.graph->nodes[n].dead; k++)
        outputs += w.graph->nodes[n].out[k] != FX_NONE;
    int merged = count_of(w.graph, "add_norm"), adds = count_of(w.graph, "add"),
        norms = count_of(w.graph, "norm");
    CHECK_MSG(fused == c->fused && merged == c->fused && adds == c->adds && norms == c->norms &&
                  outputs == c->outputs,
              "%s: fused %d (%d left), %d adds, %d norms, %d outputs; expected %d, %d, %d, %d", c->name,
              fused, merged, adds, norms, outputs, c->fused, c->adds, c->norms, c->outputs);
    end(&w);
    check_bits(c->name, c->build);
  }
}

static void activations(void) {
  for (size_t i = 0; i < sizeof g_acts / sizeof g_acts[0]; i++) {
    const act_case *c = &g_acts[i];
    world w = {0};
    int fused = fuse_alone(&w, c->build), merged = count_of(w.graph, "linear_dx_act");
    int acts = count_of(w.graph, "act_grad"), dxs = count_of(w.graph, "linear_dx");
    CHECK_MSG(fused == c->fused && merged == c->fused && acts == c->acts && dxs == c->dxs,
              "%s: fused %d (%d left), %d act_grad, %d linear_dx; expected %d, %d, %d", c->name, fused,
              merged, acts, dxs, c->fused, c->acts, c->dxs);
    end(&w);
    check_bits(c->name, c->build);
  }
}

/* In the backward of a residual block the norm's gradient is still added onto the residual gradient in place,
 * and parameters' gradients, biases included, go straight into their buffers. */
static void a_whole_step(void) {
  world w = {0};
  w.graph = fx_graph_create(NULL);
  small_step(&w);
  CHECK_OK(fx_graph_optimize(w.graph, true));
  CHECK_INT(count_of(w.graph, "add_norm"), 4);
  CHECK_INT(count_of(w.graph, "linear_dx_act"), 2);
  CHECK_INT(count_of(w.graph, "norm"), 1);
  CHECK_INT(count_of(w.graph, "add"), 0);
  CHECK_INT(count_of(w.graph, "act_grad"), 1);
  int onto = 0;
  for (int64_t n = 0; n < w.graph->num_nodes; n++)
    onto += !w.graph->nodes[n].dead && strcmp(w.graph->nodes[n].op->name, "norm_grad") == 0 &&
            (w.graph->nodes[n].accumulate & 1);
  CHECK_INT(onto, 4);
  end(&w);
  check_bits("a whole step", small_step);
}

static void adding_to_nothing_is_found(void) {
  world w = {0};
  fuse_alone(&w, plain_mlp);
  for (int64_t n = 0; n < w.graph->num_nodes; n++)
    if (strcmp(w.graph->nodes[n].op->name, "linear_dx") == 0) w.graph->nodes[n].accumulate = 1;
  CHECK_STATUS(fx_verify(w.graph), FX_ERR_GRAPH);
  CHECK_HAS(fx_error_text(), "added to what nobody wrote");
  end(&w);
}

static const fx_test tests[] = {{"a sum and its norm", sums_and_norms},
                                {"a product and the derivative after it", activations},
                                {"a whole step", a_whole_step},
                                {"adding to nothing is found", adding_to_nothing_is_found}};
FX_TEST_MAIN("fusion", tests)
