/* SPDX-License-Identifier: Apache-2.0 */
/* Every op's CUDA kernels against its CPU kernels, forward and backward, and what the device says of bad
 * data. Without a GPU there is one line and nothing to test. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/ops/rope.h"
#include "tests/gpu/gpu_case.h"

static fx_device *g_cpu, *g_gpu;

/* A gradient of y that differs from element to element: through a projection and a GELU. */
static fx_value weigh(gpu_world *w, fx_value y) {
  int64_t cols = fx_type_cols(fx_graph_type(w->graph, y));
  fx_value mix = world_normals(w, "mix", fx_type_2d(FX_F32, 24, cols), 1.0f / sqrtf((float)cols), false);
  return fx_linear(FX_AT(w->graph), y, mix, FX_NONE, (fx_linear_attr){0, FX_ACT_GELU_TANH});
}

static void outputs_and_gradients(gpu_world *w, fx_value y, const fx_value *wrt, const char *const *names,
                                  int count) {
  fx_value grads[8], loss = weigh(w, y);
  world_output(w, "y", y);
  CHECK_OK(fx_autograd(w->graph, loss, wrt, count, grads));
  for (int i = 0; i < count; i++) world_output(w, names[i], grads[i]);
}

/* ---- pointwise ---- */

static void build_pointwise(gpu_world *w) {
  fx_type type = fx_type_3d(FX_F32, 3, 37, 129);
  fx_value a = world_normals(w, "a", type, 1, false), b = world_normals(w, "b", type, 2, false);
  fx_value sum = fx_add(FX_AT(w->graph), a, b), s = world_number(w, "s", 0.37f);
  world_output(w, "sum", sum);
  world_output(w, "scaled", fx_scale(FX_AT(w->graph), sum, s));
  world_output(w, "fill", fx_fill(FX_AT(w->graph), type, -2.5f));
  fx_accumulate(FX_AT(w->graph), world_normals(w, "total", type, 1, true), sum);
  fx_value flat =
      fx_type_cols(&type) > 0 ? world_normals(w, "rows", fx_type_3d(FX_F32, 2, 9, 48), 1, false) : 0;
  world_output(w, "heads", fx_copy(FX_AT(w->graph), fx_slice_heads(FX_AT(w->graph), flat, 16, 2, 8)));
}

static void build_casts(gpu_world *w) {
  fx_value x = world_normals(w, "x", fx_type_1d(FX_F32, 5001), 3, false);
  fx_value half = fx_cast(FX_AT(w->graph), x, FX_BF16), wide = fx_cast(FX_AT(w->graph), x, FX_F64);
  world_output(w, "half", half);
  world_output(w, "wide", wide);
  world_output(w, "back", fx_cast(FX_AT(w->graph), half, FX_F32));
  world_output(w, "narrow", fx_cast(FX_AT(w->graph), wide, FX_BF16));
}

/* ---- linear ---- */

static void build_linear(gpu_world *w, int in_out, fx_activation activation, bool with_bias) {
  enum { I = 72, O = 52 };
  static const char *const names[] = {"dx", "dw", "db"};
  fx_value x = world_normals(w, "x", fx_type_3d(FX_F32, 2, 33, I), 1, false);
  fx_value weight =
      world_normals(w, "w", in_out ? fx_type_2d(FX_F32, I, O) : fx_type_2d(FX_F32, O, I), 0.1f, false);
  fx_value bias = with_bias ? world_normals(w, "b", fx_type_1d(FX_F32, O), 1, false) : FX_NONE;
  fx_value y = fx_linear(FX_AT(w->graph), x, weight, bias, (fx_linear_attr){in_out, (int32_t)activation});
  outputs_and_gradients(w, y, (fx_value[]){x, weight, bias}, names, with_bias ? 3 : 2);
}

static void build_linear_plain(gpu_world *w) {
  build_linear(w, 0, FX_ACT_NONE, false);
}
static void build_linear_gelu(gpu_world *w) {
  build_linear(w, 0, FX_ACT_GELU, true);
}
static void build_linear_conv1d(gpu_world *w) {
  build_linear(w, 1, FX_ACT_GELU_TANH, true);
}
static void build_linear_bias(gpu_world *w) {
  build_linear(w, 1, FX_ACT_NONE, true);
}

static void build_swiglu(gpu_world *w) {
  static const char *const names[] = {"dx"};
  fx_value x = world_normals(w, "x", fx_type_3d(FX_F32, 2, 19, 2 * 53), 2, false);
  outputs_and_gradients(w, fx_swiglu(FX_AT(w->graph), x), &x, names, 1);
}

/* ---- norm, rope ---- */

static void build_norm(gpu_world *w, fx_norm_kind kind, int64_t rows, int64_t cols) {
  static const char *const names[] = {"dx", "dw", "db"};
  bool layer = kind == FX_NORM_LAYER;
  fx_value x = world_normals(w, "x", fx_type_3d(FX_F32, 1, rows, cols), 2, false);
  fx_value weight = world_normals(w, "w", fx_type_1d(FX_F32, cols), 1, false);
  fx_value bias = layer ? world_normals(w, "b", fx_type_1d(FX_F32, cols), 1, false) : FX_NONE;
  fx_value y = fx_norm(FX_AT(w->graph), x, weight, bias, (fx_norm_attr){(int32_t)kind, 1e-5f});
  outputs_and_gradients(w, y, (fx_value[]){x, weight, bias}, names, layer ? 3 : 2);
}

static void build_rmsnorm(gpu_world *w) {
  build_norm(w, FX_NORM_RMS, 71, 300);
}
static void build_layernorm(gpu_world *w) {
  build_norm(w, FX_NORM_LAYER, 517, 1030);
}
static void build_small_norm(gpu_world *w) {
  build_norm(w, FX_NORM_LAYER, 3, 5);
}

static void build_rope(gpu_world *w) {
  enum { B = 2, T = 40, D = 16, HEADS = 3 };
  static const char *const names[] = {"dx"};
  fx_value positions = world_integers(w, "positions", fx_type_2d(FX_I32, B, T), 0, 70000);
  fx_value table = fx_rope_table(FX_AT(w->graph), positions, (fx_rope_table_attr){D, 10000.0});
  fx_value x = world_normals(w, "x", fx_type_3d(FX_F32, B, T, HEADS * D + 24), 1, false);
  fx_value y = fx_rope(FX_AT(w->graph), x, table, (fx_rope_attr){HEADS, D, 1});
  world_output(w, "table", table);
  outputs_and_gradients(w, y, &x, names, 1);
}

/* ---- embedding, head, dropout ---- */

static void build_embedding(gpu_world *w) {
  static const char *const names[] = {"dtable"};
  fx_value ids = world_integers(w, "ids", fx_type_2d(FX_I32, 3, 700), 3, 47); /* rows used often and never */
  fx_value table = world_normals(w, "table", fx_type_2d(FX_F32, 50, 333), 1, false);
  outputs_and_gradients(w, fx_embedding(FX_AT(w->graph), ids, table), &table, names, 1);
}

static void build_head(gpu_world *w, int64_t rows, int64_t vocab, int64_t valid, int64_t E) {
  fx_value x = world_normals(w, "x", fx_type_3d(FX_F32, 1, rows, E), 1, false), nll, grads[2];
  fx_value weight = world_normals(w, "w", fx_type_2d(FX_F32, vocab, E), 0.3f, false);
  fx_value targets =
      world_integers(w, "targets", fx_type_2d(FX_I32, 1, rows), -2, (int32_t)(valid ? valid : vocab));
  fx_value factor = world_number(w, "factor", 1.0f / (float)rows);
  fx_value loss = fx_head_ce(FX_AT(w->graph), x, weight, targets, factor, (fx_head_ce_attr){valid}, &nll);
  CHECK_OK(fx_autograd(w->graph, loss, (fx_value[]){x, weight}, 2, grads));
  world_output(w, "loss", loss);
  world_output(w, "nll", nll);
  world_output(w, "dx", grads[0]);
  world_output(w, "dw", grads[1]);
}

static void build_head_padded(gpu_world *w) {
  build_head(w, 130, 384, 300, 40);
}
static void build_head_in_chunks(gpu_world *w) {
  build_head(w, 300, 530000, 0, 8);
}

static void build_dropout(gpu_world *w) {
  enum { B = 3, T = 21, E = 37 };
  gpu_buffer *ordinals = world_buffer(w, "ordinals", fx_type_1d(FX_I64, B), false);
  for (int i = 0; i < B; i++) ((int64_t *)ordinals->data)[i] = 1000000 + 7 * i;
  fx_value ordinal = fx_graph_persistent(FX_AT(w->graph), "ordinals", ordinals->data, ordinals->type);
  fx_value iteration = world_count(w, "iteration", 12345678901);
  fx_value x = world_normals(w, "x", fx_type_3d(FX_F32, B, T, E), 1, false);
  fx_graph_set_layer(w->graph, 3);
  world_output(w, "y",
               fx_dropout(FX_AT(w->graph), x, ordinal, iteration,
                          (fx_dropout_attr){.seed = 5, .site = 77, .p = 0.3f}));
}

/* ---- optimizer ---- */

static void build_adamw(gpu_world *w, float sigma, bool snapshot) {
  fx_type type = fx_type_1d(FX_F32, 50003);
  fx_value copies[3], factor, grad = world_normals(w, "grad", type, sigma, false);
  fx_value norm = fx_clip(FX_AT(w->graph), grad, (fx_clip_attr){1.0}, &factor);
  for (int i = 0; snapshot && i < 3; i++) {
    static const char *const names[] = {"copy p", "copy m", "copy v"};
    copies[i] = world_normals(w, names[i], type, 1, true);
  }
  fx_adamw_values v = {.param = world_normals(w, "p", type, 1, true),
                       .grad = grad,
                       .exp_avg = world_normals(w, "m", type, 0.01f, true),
                       .exp_avg_sq = world_normals(w, "v", type, 0, true),
                       .lr = world_number(w, "lr", 1e-3f),
                       .step = world_count(w, "step", 7),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  world_output(w, "norm", norm);
  world_output(w, "factor", factor);
  fx_adamw(FX_AT(w->graph), &v, snapshot ? copies : NULL,
           (fx_adamw_attr){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
}

static void build_update(gpu_world *w) {
  build_adamw(w, 0.1f, false);
}
static void build_update_snapshot(gpu_world *w) {
  build_adamw(w, 1e-5f, true);
}
static void build_update_not_finite(gpu_world *w) {
  build_adamw(w, INFINITY, true);
}

static const gpu_case g_cases[] = {
    {"pointwise", build_pointwise, 1e-7},
    {"casts", build_casts, 0},
    {"linear", build_linear_plain, 2e-6},
    {"linear bias gelu", build_linear_gelu, 3e-6},
    {"linear in_out bias", build_linear_bias, 3e-6},
    {"linear in_out bias gelu_tanh", build_linear_conv1d, 3e-6},
    {"swiglu", build_swiglu, 2e-6},
    {"rmsnorm", build_rmsnorm, 2e-6},
    {"layernorm", build_layernorm, 4e-6},
    {"layernorm of 5", build_small_norm, 4e-6},
    {"rope", build_rope, 2e-6},
    {"embedding", build_embedding, 2e-6},
    {"head, padded", build_head_padded, 3e-6},
    {"head, in chunks", build_head_in_chunks, 3e-5},
    {"dropout", build_dropout, 0},
    {"clip and adamw", build_update, 1e-6},
    {"adamw with snapshot", build_update_snapshot, 1e-6},
};

static void every_op_against_the_cpu(void) {
  for (size_t i = 0; i < sizeof g_cases / sizeof g_cases[0]; i++) run_case(&g_cases[i], g_cpu, g_gpu);
}

static void a_bad_gradient_changes_nothing(void) {
  static const gpu_case c = {"adamw, gradient not finite", build_update_not_finite, 0};
  gpu_world shape;
  char *outputs = world_run(&c, g_gpu, FX_EXEC_REPLAY, &shape);
  size_t at = 0;
  for (int i = 0; outputs && i < shape.count; i++) {
    const gpu_buffer *b = &shape.buffer[i];
    if (!b->output) continue;
    const float *data = (const float *)(const void *)(outputs + at);
    if (strcmp(b->name, "p") == 0 || strcmp(b->name, "copy p") == 0)
      for (int64_t k = 0; k < 16; k++) CHECK(isfinite(data[k]));
    if (strcmp(b->name, "norm") == 0) CHECK(!isfinite(data[0]));
    at += fx_type_bytes(&b->type);
  }
  free(outputs);
}

/* ---- what the device says ---- */

static void bad_data_is_told(void) {
  for (int head = 0; head < 2; head++) {
    gpu_world w = {.device = g_gpu, .graph = fx_graph_create(NULL)};
    fx_plan *plan = NULL;
    void *arena = NULL;
    fx_value ids = world_integers(&w, "ids", fx_type_2d(FX_I32, 1, 40), 0, 9);
    ((int32_t *)w.buffer[0].data)[33] = 12;
    fx_value table = world_normals(&w, "table", fx_type_2d(FX_F32, 10, 8), 1, false);
    fx_value x = world_normals(&w, "x", fx_type_3d(FX_F32, 1, 40, 8), 1, false);
    fx_value y =
        head ? fx_head_ce(FX_AT(w.graph), x, table, ids, world_number(&w, "f", 1), (fx_head_ce_attr){0}, NULL)
             : fx_embedding(FX_AT(w.graph), ids, table);
    world_output(&w, "y", y);
    CHECK_OK(fx_plan_prepare(w.graph, (fx_plan_options){.name = "bad"}, g_gpu, &plan));
    CHECK_OK(fx_device_alloc(g_gpu, fx_plan_stats_get(plan)->arena.bytes + 64, &arena));
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_OK(fx_plan_run(plan, 0));
    CHECK_STATUS(fx_device_sync(g_gpu), FX_ERR_DATA);
    CHECK_HAS(fx_error_text(), head ? "target 12 is outside the vocabulary of 10" : "id 12 at place 33");
    CHECK_OK(fx_device_sync(g_gpu)); /* told once */
    fx_plan_destroy(plan);
    fx_device_release(g_gpu, arena);
    for (int i = 0; i < w.count; i++) fx_device_release_shared(g_gpu, FX_PLACE_DEVICE, w.buffer[i].data);
  }
}

static void memory_is_counted(void) {
  size_t before = 0, after = 0, total = 0;
  void *memory = NULL;
  CHECK_OK(fx_device_memory_info(g_gpu, &before, &total));
  CHECK_OK(fx_device_alloc(g_gpu, (size_t)256 << 20, &memory));
  CHECK_OK(fx_device_memory_info(g_gpu, &after, &total));
  CHECK_MSG(after >= before + ((size_t)256 << 20) && after < total, "%zu, then %zu of %zu bytes", before,
            after, total);
  fx_device_release(g_gpu, memory);
  CHECK_STATUS(fx_device_alloc(g_gpu, total * 2, &memory), FX_ERR_MEMORY);
  CHECK_HAS(fx_error_text(), "of GPU memory");
}

static fx_status no_shapes(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[0];
  return FX_OK;
}

static void a_missing_kernel_is_named(void) {
  static const fx_op lonely = {.name = "lonely", .min_in = 1, .max_in = 1, .num_out = 1, .infer = no_shapes};
  gpu_world w = {.device = g_gpu, .graph = fx_graph_create(NULL)};
  fx_plan *plan = NULL;
  fx_value x = world_normals(&w, "x", fx_type_1d(FX_F32, 8), 1, false);
  world_output(&w, "y", fx_graph_record(w.graph, &lonely, NULL, (fx_value[]){x}, NULL));
  CHECK_STATUS(fx_plan_prepare(w.graph, (fx_plan_options){.name = "p"}, g_gpu, &plan), FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "op lonely has no kernel for the cuda backend");
  for (int i = 0; i < w.count; i++) fx_device_release_shared(g_gpu, FX_PLACE_DEVICE, w.buffer[i].data);
}

static void runtime_inputs_are_copied(void) {
  fx_inputs *inputs = NULL;
  void *memory = NULL, *arena = NULL;
  fx_plan *plan = NULL;
  CHECK_OK(fx_inputs_create(2, &inputs));
  CHECK_OK(fx_inputs_add(inputs, "pad", fx_type_1d(FX_F32, 3)));
  CHECK_OK(fx_inputs_add(inputs, "x", fx_type_1d(FX_F32, 1000)));
  CHECK_OK(fx_inputs_allocate_on(inputs, g_gpu));
  CHECK_OK(fx_device_alloc_shared(g_gpu, FX_PLACE_HOST, 4000, &memory));
  fx_graph *graph = fx_graph_create(inputs);
  fx_value x = fx_graph_input(FX_AT(graph), "x");
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "y", memory, fx_type_1d(FX_F32, 1000)),
           fx_add(FX_AT(graph), x, x));
  CHECK_OK(fx_plan_prepare(graph, (fx_plan_options){.name = "p"}, g_gpu, &plan));
  CHECK_OK(fx_device_alloc(g_gpu, fx_plan_stats_get(plan)->arena.bytes + 64, &arena));
  CHECK_OK(fx_plan_bind(plan, arena));
  for (int slot = 0; slot < 2; slot++) {
    float *data = fx_inputs_data(inputs, slot, "x");
    for (int i = 0; i < 1000; i++) data[i] = (float)(i + 1000 * slot);
    CHECK_OK(fx_plan_run(plan, slot));
    CHECK_OK(fx_device_sync(g_gpu));
    for (int i = 0; i < 1000; i++) CHECK(((float *)memory)[i] == (float)(2 * (i + 1000 * slot)));
  }
  fx_plan_destroy(plan);
  fx_device_release(g_gpu, arena);
  fx_device_release_shared(g_gpu, FX_PLACE_HOST, memory);
  fx_inputs_destroy(inputs);
}

int main(void) {
  static const fx_test tests[] = {
      {"every op against the CPU", every_op_against_the_cpu},
      {"a gradient that is not finite changes nothing", a_bad_gradient_changes_nothing},
      {"bad ids and targets are told", bad_data_is_told},
      {"memory is counted", memory_is_counted},
      {"a missing kernel is named", a_missing_kernel_is_named},
      {"runtime inputs are copied from their slot", runtime_inputs_are_copied}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  if (fx_device_create_cuda(0, &g_gpu) != FX_OK || fx_device_create_cpu(2, "auto", &g_cpu) != FX_OK) {
    printf("FAILED: %s\n", fx_error_text());
    return 1;
  }
  printf("GPU: %s, %s, %s\n", probe.device[0].name, g_gpu->isa, g_gpu->gemm_name);
  int code = fx_test_main("cuda ops", tests, (int)(sizeof tests / sizeof tests[0]));
  fx_device_destroy(g_gpu);
  fx_device_destroy(g_cpu);
  return code;
}
