/* SPDX-License-Identifier: Apache-2.0 */
/* A language model without attention, trained for some steps on the CPU and on the GPU: weights shared with
 * the device, runtime inputs from pinned slots, results read by the host, two micro-batches a step (the
 * second adds to the gradients), dropout, AdamW with a snapshot. The GPU's losses are the CPU's within
 * rounding; its replay, its eager and a second run agree in every bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/plan/plan.h"
#include "parallel/param.h"
#include "tests/harness.h"

enum { V = 384, E = 64, F = 176, B = 3, T = 50, STEPS = 12, WEIGHTS = 5, MICROS = 2 };
enum { PLAN_FIRST, PLAN_LAST, PLAN_UPDATE, PLANS };

typedef struct trainer {
  fx_device *device;
  fx_params params;
  int32_t storage[WEIGHTS];
  fx_inputs *inputs;
  float *results; /* loss, norm */
  float *snapshot;
  fx_plan *plan[PLANS];
  void *arena;
} trainer;

static void declare(trainer *t) {
  static const char *const names[WEIGHTS] = {"embed", "norm", "up", "down", "head"};
  const int64_t dims[WEIGHTS][2] = {{V, E}, {E, 0}, {2 * F, E}, {E, F}, {V, E}};
  t->params.device = t->device;
  for (int i = 0; i < WEIGHTS; i++) {
    bool vector = dims[i][1] == 0;
    fx_type type = vector ? fx_type_1d(FX_F32, dims[i][0]) : fx_type_2d(FX_F32, dims[i][0], dims[i][1]);
    CHECK_OK(fx_params_add_storage(&t->params, type, !vector, &t->storage[i]));
    CHECK_OK(fx_params_add(&t->params, names[i], t->storage[i], 0, vector ? 1 : 2, dims[i],
                           vector ? FX_INIT_ONES : FX_INIT_NORMAL, 0.08));
  }
  CHECK_OK(fx_params_allocate(&t->params));
  CHECK_OK(fx_params_initialize(&t->params, 4));
}

static void declare_inputs(trainer *t) {
  void *memory = NULL;
  CHECK_OK(fx_inputs_create(2, &t->inputs));
  CHECK_OK(fx_inputs_add(t->inputs, "tokens", fx_type_2d(FX_I32, B, T)));
  CHECK_OK(fx_inputs_add(t->inputs, "targets", fx_type_2d(FX_I32, B, T)));
  CHECK_OK(fx_inputs_add(t->inputs, "ordinal", fx_type_1d(FX_I64, B)));
  CHECK_OK(fx_inputs_add(t->inputs, "iteration", fx_type_1d(FX_I64, 1)));
  CHECK_OK(fx_inputs_add(t->inputs, "step", fx_type_1d(FX_I64, 1)));
  CHECK_OK(fx_inputs_add(t->inputs, "factor", fx_type_1d(FX_F32, 1)));
  CHECK_OK(fx_inputs_add(t->inputs, "lr", fx_type_1d(FX_F32, 1)));
  CHECK_OK(fx_inputs_allocate_on(t->inputs, t->device));
  CHECK_OK(fx_device_alloc_host(t->device, 2 * sizeof(float), &memory));
  t->results = memory;
  CHECK_OK(fx_device_alloc_host(t->device, 3 * (size_t)t->params.numel * sizeof(float), &memory));
  t->snapshot = memory;
}

static fx_value storage_value(const trainer *t, fx_graph *g, int i, const char *name, float *flat) {
  const fx_param_storage *s = &t->params.storage[t->storage[i]];
  return fx_graph_persistent(FX_AT(g), name, flat + s->offset, s->type);
}

static fx_graph *record_micro(const trainer *t, bool add) {
  fx_graph *g = fx_graph_create(t->inputs);
  fx_value w[WEIGHTS], grads[WEIGHTS];
  fx_graph_persistent(FX_AT(g), "weights", t->params.weight, fx_type_1d(FX_F32, t->params.numel));
  fx_graph_persistent(FX_AT(g), "gradients", t->params.grad, fx_type_1d(FX_F32, t->params.numel));
  for (int i = 0; i < WEIGHTS; i++) w[i] = storage_value(t, g, i, "weight", t->params.weight);
  fx_value x = fx_embedding(FX_AT(g), fx_graph_input(FX_AT(g), "tokens"), w[0]);
  fx_value y = fx_norm(FX_AT(g), x, w[1], FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f});
  y = fx_swiglu(FX_AT(g), fx_linear(FX_AT(g), y, w[2], FX_NONE, (fx_linear_attr){0, FX_ACT_NONE}));
  y = fx_linear(FX_AT(g), y, w[3], FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
  y = fx_dropout(FX_AT(g), y, fx_graph_input(FX_AT(g), "ordinal"), fx_graph_input(FX_AT(g), "iteration"),
                 (fx_dropout_attr){.seed = 3, .site = 9, .p = 0.1f});
  x = fx_add(FX_AT(g), x, y);
  fx_value loss = fx_head_ce(FX_AT(g), x, w[4], fx_graph_input(FX_AT(g), "targets"),
                             fx_graph_input(FX_AT(g), "factor"), (fx_head_ce_attr){300}, NULL);
  CHECK_OK(fx_autograd(g, loss, w, WEIGHTS, grads));
  for (int i = 0; i < WEIGHTS; i++)
    (add ? fx_accumulate : fx_store)(FX_AT(g), storage_value(t, g, i, "gradient", t->params.grad), grads[i]);
  (add ? fx_accumulate
       : fx_store)(FX_AT(g), fx_graph_persistent(FX_AT(g), "loss", t->results, fx_type_1d(FX_F32, 1)), loss);
  return g;
}

static fx_graph *record_update(const trainer *t) {
  fx_graph *g = fx_graph_create(t->inputs);
  const fx_params *p = &t->params;
  fx_type all = fx_type_1d(FX_F32, p->numel);
  fx_value factor, copies[3], grad = fx_graph_persistent(FX_AT(g), "gradients", p->grad, all);
  fx_value norm = fx_clip(FX_AT(g), fx_squares(g, &grad, 1), (fx_clip_attr){1.0}, &factor);
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "norm", t->results + 1, fx_type_1d(FX_F32, 1)), norm);
  for (int i = 0; i < 3; i++)
    copies[i] = fx_graph_persistent(FX_AT(g), "snapshot", t->snapshot + i * p->numel, all);
  fx_adamw_values v = {.param = fx_graph_persistent(FX_AT(g), "weights", p->weight, all),
                       .grad = grad,
                       .exp_avg = fx_graph_persistent(FX_AT(g), "exp_avg", p->exp_avg, all),
                       .exp_avg_sq = fx_graph_persistent(FX_AT(g), "exp_avg_sq", p->exp_avg_sq, all),
                       .lr = fx_graph_input(FX_AT(g), "lr"),
                       .step = fx_graph_input(FX_AT(g), "step"),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  fx_adamw(FX_AT(g), &v, copies,
           (fx_adamw_attr){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  return g;
}

static bool prepare(trainer *t, fx_exec_mode mode) {
  fx_graph *graphs[PLANS] = {record_micro(t, false), record_micro(t, true), record_update(t)};
  size_t bytes = FX_ALIGN;
  for (int i = 0; i < PLANS; i++) {
    fx_plan_options options = {.name = "train", .mode = mode};
    if (!CHECK_OK(fx_plan_prepare(graphs[i], options, t->device, &t->plan[i]))) return false;
    size_t need = fx_plan_stats_get(t->plan[i])->arena.bytes;
    bytes = need > bytes ? need : bytes;
  }
  if (!CHECK_OK(fx_device_alloc(t->device, bytes, &t->arena))) return false;
  for (int i = 0; i < PLANS; i++) CHECK_OK(fx_plan_bind(t->plan[i], t->arena));
  return true;
}

static void fill_slot(trainer *t, int step, int micro) {
  int32_t *tokens = fx_inputs_data(t->inputs, micro, "tokens"),
          *targets = fx_inputs_data(t->inputs, micro, "targets");
  for (int i = 0; i < B * T; i++) {
    uint32_t word = fx_philox_at(1, 2, (uint64_t)i, (uint64_t)(step * MICROS + micro)).word[0];
    tokens[i] = (int32_t)(word % 300);
    targets[i] = i % 11 == 5 ? -1 : (int32_t)((word % 300) * 7 % 300);
  }
  for (int b = 0; b < B; b++)
    ((int64_t *)fx_inputs_data(t->inputs, micro, "ordinal"))[b] = (step * MICROS + micro) * B + b;
  *(int64_t *)fx_inputs_data(t->inputs, micro, "iteration") = step;
  *(int64_t *)fx_inputs_data(t->inputs, micro, "step") = step + 1;
  *(float *)fx_inputs_data(t->inputs, micro, "factor") = 1.0f / (float)(MICROS * B * T);
  *(float *)fx_inputs_data(t->inputs, micro, "lr") = 3e-3f;
}

/* losses[STEPS], and all weights after the last step in *weights (to be freed). */
static void train(fx_device *device, fx_exec_mode mode, float losses[STEPS], float **weights,
                  int64_t *numel) {
  trainer t = {.device = device};
  declare(&t);
  declare_inputs(&t);
  *weights = NULL;
  *numel = t.params.numel;
  size_t bytes = (size_t)t.params.numel * sizeof(float);
  bool good = prepare(&t, mode);
  for (int step = 0; good && step < STEPS; step++) {
    for (int micro = 0; micro < MICROS; micro++) {
      fill_slot(&t, step, micro);
      CHECK_OK(fx_plan_run(t.plan[micro ? PLAN_LAST : PLAN_FIRST], micro));
    }
    CHECK_OK(fx_plan_run(t.plan[PLAN_UPDATE], MICROS - 1));
    CHECK_OK(fx_device_sync(device));
    losses[step] = t.results[0];
  }
  float *moments = malloc(bytes);
  *weights = malloc(bytes);
  if (*weights && moments) {
    CHECK_OK(fx_params_download(&t.params, t.params.weight, *weights));
    CHECK_OK(fx_params_download(&t.params, t.params.exp_avg_sq, moments));
    CHECK_MSG(memcmp(t.snapshot, *weights, bytes) == 0, "the snapshot is not the weights");
    CHECK_MSG(memcmp(t.snapshot + 2 * t.params.numel, moments, bytes) == 0,
              "the snapshot is not the second moments");
  }
  free(moments);
  for (int i = 0; i < PLANS; i++) fx_plan_destroy(t.plan[i]);
  fx_device_release(device, t.arena);
  fx_device_release_host(device, t.results);
  fx_device_release_host(device, t.snapshot);
  fx_inputs_destroy(t.inputs);
  fx_params_fini(&t.params);
}

static void same_training_as_the_cpu(void) {
  float cpu[STEPS] = {0}, gpu[STEPS] = {0}, other[STEPS] = {0}, *want = NULL, *got = NULL, *again = NULL;
  int64_t numel = 0;
  fx_device *host = NULL, *device = NULL;
  if (!CHECK_OK(fx_device_create_cpu(2, "auto", &host)) || !CHECK_OK(fx_device_create_cuda(0, &device)))
    return;
  train(host, FX_EXEC_REPLAY, cpu, &want, &numel);
  train(device, FX_EXEC_REPLAY, gpu, &got, &numel);
  for (int i = 0; i < STEPS; i++)
    CHECK_MSG(fabsf(gpu[i] - cpu[i]) <= 2e-5f * cpu[i], "step %d: loss %.7g, the CPU has %.7g", i,
              (double)gpu[i], (double)cpu[i]);
  CHECK_MSG(gpu[STEPS - 1] < gpu[0] - 0.5f, "the loss went from %.4f to %.4f only", (double)gpu[0],
            (double)gpu[STEPS - 1]);
  double error = want && got ? fx_relative_l2_f(got, want, numel) : INFINITY;
  CHECK_MSG(error < 1e-4, "the weights are off by %.3g", error);
  printf("loss %.6f -> %.6f (CPU %.6f), weights off by %.2g\n", (double)gpu[0], (double)gpu[STEPS - 1],
         (double)cpu[STEPS - 1], error);
  for (int k = 0; k < 2; k++) {
    train(device, k ? FX_EXEC_EAGER : FX_EXEC_REPLAY, other, &again, &numel);
    CHECK_MSG(memcmp(other, gpu, sizeof gpu) == 0, "losses differ in %s", k ? "eager" : "a second run");
    CHECK_MSG(again && got && memcmp(again, got, (size_t)numel * sizeof(float)) == 0, "weights differ in %s",
              k ? "eager" : "a second run");
    free(again);
  }
  free(want);
  free(got);
  fx_device_destroy(device);
  fx_device_destroy(host);
}

int main(void) {
  static const fx_test tests[] = {{"the same training as on the CPU", same_training_as_the_cpu}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  return fx_test_main("cuda train", tests, 1);
}
