/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/product.h"

#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/plan/plan.h"

fx_status fx_bench_random(fx_device *device, fx_dtype dtype, int64_t n, uint64_t seed, void **out) {
  size_t bytes = (size_t)n * fx_dtype_bytes(dtype);
  void *host = NULL, *memory = NULL;
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_alloc_aligned(&host, bytes), free_host);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; i++) {
    float x = 1.7320508f * (2 * fx_philox_uniform(fx_philox_at(seed, 7, (uint64_t)i, 0).word[0]) - 1);
    if (dtype == FX_BF16)
      ((uint16_t *)host)[i] = fx_f32_to_bf16(x);
    else
      ((float *)host)[i] = x;
  }
  FX_TRY_GOTO(fx_device_alloc(device, bytes, &memory), free_host);
  *out = memory;
  FX_TRY_GOTO(fx_device_copy(device, FX_LANE_COMPUTE, memory, host, bytes), free_host);
  status = fx_device_sync(device);
free_host:
  free(host);
  return status;
}

struct fx_bench_product {
  fx_device *device;
  void *a, *b, *c, *arena;
  fx_plan *plan;
};

/* The operands as the op of the pass takes them. */
static fx_value record(const fx_bench_product *p, fx_graph *graph, fx_dtype dtype, fx_bench_pass pass,
                       int64_t m, int64_t n, int64_t k) {
  const fx_linear_attr attr = {0, FX_ACT_NONE};
  fx_type a = pass == FX_BENCH_DW ? fx_type_2d(dtype, k, m) : fx_type_2d(dtype, m, k);
  fx_type b = pass == FX_BENCH_FORWARD ? fx_type_2d(dtype, n, k) : fx_type_2d(dtype, k, n);
  fx_value left = fx_graph_persistent(FX_AT(graph), "a", p->a, a);
  fx_value right = fx_graph_persistent(FX_AT(graph), "b", p->b, b);
  if (pass == FX_BENCH_FORWARD) return fx_linear(FX_AT(graph), left, right, FX_NONE, attr);
  if (pass == FX_BENCH_DX) return fx_linear_dx(FX_AT(graph), left, right, attr);
  return fx_linear_dw(FX_AT(graph), left, right, attr);
}

static fx_status make_plan(fx_bench_product *p, fx_dtype dtype, fx_bench_pass pass, int64_t m, int64_t n,
                           int64_t k) {
  fx_graph *graph = fx_graph_create(NULL);
  if (!graph) return fx_error(FX_ERR_MEMORY, "out of host memory");
  fx_value c = record(p, graph, dtype, pass, m, n, k);
  fx_type type = fx_type_2d(pass == FX_BENCH_DW ? FX_F32 : dtype, m, n);
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "c", p->c, type), c);
  FX_TRY(fx_plan_prepare(graph, (fx_plan_options){.name = "product"}, p->device, &p->plan));
  FX_TRY(fx_device_alloc(p->device, fx_plan_stats_get(p->plan)->arena.bytes + FX_ALIGN, &p->arena));
  return fx_plan_bind(p->plan, p->arena);
}

fx_status fx_bench_product_create(fx_device *device, fx_dtype dtype, fx_bench_pass pass, int64_t m, int64_t n,
                                  int64_t k, fx_bench_product **out) {
  fx_bench_product *p = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&p, 1, sizeof *p));
  p->device = device;
  FX_TRY_GOTO(fx_bench_random(device, dtype, m * k, 1, &p->a), destroy_product);
  FX_TRY_GOTO(fx_bench_random(device, dtype, k * n, 2, &p->b), destroy_product);
  FX_TRY_GOTO(fx_device_alloc(device, (size_t)(m * n) * sizeof(float), &p->c), destroy_product);
  FX_TRY_GOTO(make_plan(p, dtype, pass, m, n, k), destroy_product);
  double unused;
  FX_TRY_GOTO(fx_bench_product_run(p, &unused), destroy_product);
  *out = p;
  return FX_OK;
destroy_product:
  fx_bench_product_destroy(p);
  return status;
}

fx_status fx_bench_product_run(fx_bench_product *p, double *ms) {
  fx_trace *trace = NULL;
  FX_TRY(fx_trace_create(16, &trace));
  fx_plan_set_trace(p->plan, trace);
  fx_status status = fx_plan_run(p->plan, 0);
  if (status == FX_OK) status = fx_device_sync(p->device);
  fx_plan_set_trace(p->plan, NULL);
  *ms = 0;
  for (int64_t i = 0; i < fx_trace_count(trace); i++)
    *ms += (double)(fx_trace_spans(trace)[i].end_ns - fx_trace_spans(trace)[i].begin_ns) * 1e-6;
  fx_trace_destroy(trace);
  return status;
}

void fx_bench_product_destroy(fx_bench_product *p) {
  if (!p) return;
  fx_plan_destroy(p->plan);
  fx_device_release(p->device, p->a);
  fx_device_release(p->device, p->b);
  fx_device_release(p->device, p->c);
  fx_device_release(p->device, p->arena);
  free(p);
}
