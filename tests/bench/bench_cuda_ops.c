/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA kernels of the ops at the shapes of a mid-size model: milliseconds a kernel (queued and waited for, so
 * with the time of a launch), and TFLOP/s or GB/s by the cost that the op declares; the best of six. Usage:
 * bench-cuda-ops [rows hidden vocabulary]. */
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/ops/rope.h"
#include "dynamo_rt/plan/plan.h"

static void ok(fx_status status) {
  if (status == FX_OK) return;
  fprintf(stderr, "%s\n", fx_error_text());
  exit(1);
}

typedef struct bench {
  fx_device *device;
  fx_graph *graph;
} bench;

/* Memory on the GPU, never released: small equal floats, integers that jump about in [0, limit), else zeros.
 */
static fx_value value(bench *b, const char *name, fx_type type, int64_t limit) {
  void *memory = NULL;
  size_t bytes = fx_type_bytes(&type);
  ok(fx_device_alloc(b->device, bytes, &memory));
  ok(fx_device_fill(b->device, FX_LANE_COMPUTE, memory, type.dtype == FX_F32 ? 0x3C : 0, bytes));
  if (type.dtype == FX_I32 && limit > 0) {
    int32_t *numbers = NULL;
    ok(fx_alloc_aligned(&numbers, bytes));
    for (int64_t i = 0; i < fx_type_numel(&type); i++)
      numbers[i] = (int32_t)(fx_philox_at(1, 2, (uint64_t)i, 0).word[0] % (uint64_t)limit);
    ok(fx_device_copy(b->device, FX_LANE_COMPUTE, memory, numbers, bytes));
    ok(fx_device_sync(b->device));
    free(numbers);
  }
  return fx_graph_persistent(FX_AT(b->graph), name, memory, type);
}

static void keep(bench *b, fx_value v) {
  if (v != FX_NONE) fx_store(FX_AT(b->graph), value(b, "kept", *fx_graph_type(b->graph, v), 0), v);
}

static void record(bench *b, int64_t rows, int64_t E, int64_t V) {
  fx_graph *g = b->graph;
  fx_value x = value(b, "x", fx_type_3d(FX_F32, 1, rows, E), 0), grads[2], factor, nll;
  fx_value w = value(b, "w", fx_type_2d(FX_F32, 4 * E, E), 0),
           gain = value(b, "gain", fx_type_1d(FX_F32, E), 0);
  fx_value y = fx_linear(FX_AT(g), x, w, FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
  ok(fx_autograd(g, y, (fx_value[]){x, w}, 2, grads));
  keep(b, grads[0]);
  keep(b, grads[1]);
  fx_value gated = fx_swiglu(FX_AT(g), y);
  ok(fx_autograd(g, gated, &y, 1, grads));
  keep(b, grads[0]);
  fx_value normed = fx_norm(FX_AT(g), x, gain, FX_NONE, (fx_norm_attr){FX_NORM_RMS, 1e-5f});
  ok(fx_autograd(g, normed, (fx_value[]){x, gain}, 2, grads));
  keep(b, grads[0]);
  keep(b, grads[1]);
  keep(b, fx_add(FX_AT(g), normed, x));
  fx_value positions = value(b, "positions", fx_type_2d(FX_I32, 1, rows), V);
  fx_value table = fx_rope_table(FX_AT(g), positions, (fx_rope_table_attr){128, 10000});
  keep(b, fx_rope(FX_AT(g), x, table, (fx_rope_attr){E / 128, 128, 1}));
  fx_value words = value(b, "words", fx_type_2d(FX_F32, V, E), 0);
  fx_value embedded = fx_embedding(FX_AT(g), positions, words);
  ok(fx_autograd(g, embedded, &words, 1, grads));
  keep(b, grads[0]);
  fx_value loss = fx_head_ce(FX_AT(g), x, words, positions, value(b, "f", fx_type_1d(FX_F32, 1), 0),
                             (fx_head_ce_attr){0}, &nll);
  ok(fx_autograd(g, loss, (fx_value[]){x, words}, 2, grads));
  keep(b, grads[0]);
  keep(b, grads[1]);
  fx_type flat = fx_type_1d(FX_F32, 12 * E * E);
  fx_value grad = value(b, "grad", flat, 0), norm = fx_clip(FX_AT(g), grad, (fx_clip_attr){1}, &factor);
  fx_adamw_values v = {.param = value(b, "p", flat, 0),
                       .grad = grad,
                       .exp_avg = value(b, "m", flat, 0),
                       .exp_avg_sq = value(b, "v", flat, 0),
                       .lr = value(b, "lr", fx_type_1d(FX_F32, 1), 0),
                       .step = value(b, "step", fx_type_1d(FX_I64, 1), 0),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  fx_adamw(FX_AT(g), &v, NULL,
           (fx_adamw_attr){.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  ok(fx_graph_status(g));
}

int main(int argc, char **argv) {
  enum { RUNS = 6 };
  int64_t rows = argc > 3 ? strtoll(argv[1], NULL, 10) : 8192,
          E = argc > 3 ? strtoll(argv[2], NULL, 10) : 2048, V = argc > 3 ? strtoll(argv[3], NULL, 10) : 32768;
  bench b = {NULL, fx_graph_create(NULL)};
  fx_plan *plan = NULL;
  fx_trace *trace = NULL;
  void *arena = NULL;
  ok(fx_device_create_cuda(FX_DEVICE_BY_RANK, &b.device));
  record(&b, rows, E, V);
  ok(fx_plan_prepare(b.graph, (fx_plan_options){.name = "bench"}, b.device, &plan));
  ok(fx_device_alloc(b.device, fx_plan_stats_get(plan)->arena.bytes, &arena));
  ok(fx_plan_bind(plan, arena));
  int nodes = fx_plan_stats_get(plan)->nodes;
  ok(fx_trace_create((int64_t)nodes * RUNS, &trace));
  ok(fx_plan_run(plan, 0)); /* chooses the algorithms of the products */
  fx_plan_set_trace(plan, trace);
  for (int r = 0; r < RUNS; r++) ok(fx_plan_run(plan, 0));
  fx_plan_set_trace(plan, NULL);
  const fx_trace_span *spans = fx_trace_spans(trace);
  double whole = 0;
  printf("%lld rows, %lld wide, vocabulary %lld, %s, %s\n%-16s %9s %9s %9s\n", (long long)rows, (long long)E,
         (long long)V, b.device->isa, b.device->gemm_name, "kernel", "ms", "TFLOP/s", "GB/s");
  for (int n = 0; n < nodes; n++) {
    const char *name = NULL;
    double best = 1e30;
    fx_cost cost = fx_plan_step_cost(plan, n, &name);
    for (int r = 0; r < RUNS; r++) {
      const fx_trace_span *s = &spans[r * nodes + n];
      double ms = (double)(s->end_ns - s->begin_ns) / 1e6;
      best = ms < best ? ms : best;
    }
    printf("%-16s %9.3f %9.2f %9.0f\n", name, best, cost.flops / best / 1e9, cost.bytes / best / 1e6);
    whole += best;
  }
  int64_t begin = fx_now_ns();
  for (int r = 0; r < RUNS; r++) ok(fx_plan_run(plan, 0));
  int64_t queued = fx_now_ns();
  ok(fx_device_sync(b.device));
  printf(
      "one run %.3f ms queued without waits, %.3f ms as a sum of waited kernels; %.1f us to queue a kernel\n",
      (double)(fx_now_ns() - begin) / 1e6 / RUNS, whole, (double)(queued - begin) / 1e3 / RUNS / nodes);
  fx_trace_destroy(trace);
  fx_plan_destroy(plan);
  fx_device_release(b.device, arena);
  fx_device_destroy(b.device);
  return 0;
}
