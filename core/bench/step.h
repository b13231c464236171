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
  double ms, gflop, gbyte; /* of one step */
} fx_bench_op;

typedef struct fx_bench_step_report {
  int64_t params, tokens; /* parameters; tokens a step */
  int steps, threads;
  double step_ms; /* median over `steps` */
  double tokens_per_s;
  double kernel_ms;        /* median of the summed kernel times of a step */
  double dispatch_percent; /* what replay adds: median of (step - kernels) / step * 100 */
  double gflops;           /* arithmetic of the step over its time */
  double capture_ms, first_step_ms;
  fx_bench_op ops[FX_BENCH_OPS]; /* of a typical step, slowest first */
  int num_ops;
  char device[64];          /* "2 threads, avx512", "GPU, sm_90a" */
  fx_machine_bounds bounds; /* of the processor; zero on a GPU, which is not measured */
  fx_memory_account memory;
  int64_t peak_bytes; /* VmHWM after the steps */
} fx_bench_step_report;

/* One rank, one micro-batch a step (train.micro_batch_size x train.seq_length), forward, backward and update.
 * snapshot: every update copies the new state aside, as training does in the steps that it saves. */
fx_status fx_bench_step(const fx_config *config, int steps, bool snapshot, fx_bench_step_report *report);

#ifdef __cplusplus
}
#endif
#endif
