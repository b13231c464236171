/* SPDX-License-Identifier: Apache-2.0 */
/* Small graphs on a CPU device: what the suites of dynamo_rt share. */
#ifndef FX_TESTS_DYNAMO_RT_PLAN_FIXTURE_H
#define FX_TESTS_DYNAMO_RT_PLAN_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/plan/plan.h"
#include "tests/harness.h"

/* Prepares, binds and runs a graph once; returns the plan (NULL after a failed check) and its arena. */
static inline fx_plan *run_graph(fx_graph *graph, fx_device *device, fx_exec_mode mode, void **arena) {
  fx_plan *plan = NULL;
  fx_plan_options options = {.name = "test", .mode = mode, .poison = true};
  if (!CHECK_OK(fx_plan_prepare(graph, options, device, &plan))) return NULL;
  CHECK_OK(fx_alloc_aligned(arena, fx_plan_stats_get(plan)->arena.bytes));
  memset(*arena, 0xFF, fx_plan_stats_get(plan)->arena.bytes);
  CHECK_OK(fx_plan_bind(plan, *arena));
  CHECK_OK(fx_plan_run(plan, 0));
  return plan;
}

/* Runs a graph once on a device of its own. */
static inline void run_once(fx_graph *graph, int threads, fx_exec_mode mode) {
  fx_device *device = NULL;
  void *arena = NULL;
  if (!CHECK_OK(fx_device_create_cpu(threads, "auto", &device))) return;
  fx_plan_destroy(run_graph(graph, device, mode, &arena));
  free(arena);
  fx_device_destroy(device);
}

/* A persistent float array of `numel` numbers from N(0, sigma). */
static inline float *normals(int64_t numel, uint64_t seed, float sigma) {
  float *data = NULL;
  CHECK_OK(fx_alloc_aligned(&data, (size_t)numel * sizeof(float)));
  fx_fill_normal(data, numel, seed, sigma);
  return data;
}

#endif
