/* SPDX-License-Identifier: Apache-2.0 */
/* A training step of a configuration on random tokens: time, rate, dispatch, memory, each against its bound.
 */
#ifndef FX_CORE_BENCH_STEP_H
#define FX_CORE_BENCH_STEP_H

#include <stdbool.h>

#include "core/bench/machine.h"
#include "core/config/config.h"
#include "core/train/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_BENCH_OPS = 40 };

/* All kernels of one op over one step. */
typedef struct fx_bench_op {
  const char *name;
  int calls;
  double ms, best_ms;  /* mean over the steps; the fastest, for a machine that others share */
  double step_ms;      /* while summing: of the step at hand */
  double gflop, gbyte; /* of one step */
} fx_bench_op;

typedef struct fx_bench_step_report {
  int64_t params, tokens; /* parameters; tokens a step */
  int steps, threads;
  double step_ms; /* median over `steps` */
  double best_step_ms;
  double tokens_per_s;
  double kernel_ms;        /* median of the summed kernel times of a step, each kernel alone */
  double dispatch_percent; /* CPU: what replay adds: median of (step - kernels) / step * 100 */
  double launch_us;        /* GPU: median time that the host spends in a step's launches */
  double launched_step_ms; /* GPU: median of steps whose kernels are launched one by one; 0: not recorded */
  double gflops;           /* arithmetic of the step over its time */
  double mfu_percent;      /* model FLOPs (fx_model_flops_per_token) over time and nominal peak; 0: unknown */
  double capture_ms, first_step_ms;
  fx_bench_op ops[FX_BENCH_OPS]; /* of a typical step, slowest first */
  int num_ops;
  char device[160]; /* "2 threads, avx512", "NVIDIA H200, sm_90a, bfloat16" */
  fx_machine_bounds bounds;
  fx_memory_account memory;
  int64_t peak_bytes;     /* VmHWM after the steps */
  int64_t gpu_peak_bytes; /* of the GPU, in use after the steps; 0 without one */
} fx_bench_step_report;

/* One rank, one micro-batch a step (train.micro_batch_size x train.seq_length), forward, backward and update.
 * snapshot: every update copies the new state aside, as training does in the steps that it saves. */
fx_status fx_bench_step(const fx_config *config, int steps, bool snapshot, fx_bench_step_report *report);

#ifdef __cplusplus
}
#endif
#endif
