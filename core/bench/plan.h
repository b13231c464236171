/* SPDX-License-Identifier: Apache-2.0 */
/* What a configuration would run and need, found out without running it and without its memory: the plans of
 * one rank of any layout, for CPUs or for a GPU that need not be there. */
#ifndef FX_CORE_BENCH_PLAN_H
#define FX_CORE_BENCH_PLAN_H

#include "core/config/config.h"
#include "core/train/memory.h"
#include "core/train/step.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_bench_plan_row {
  char name[32];                          /* "micro_only", or of a smaller rung "micro_only/16x1" (step.h) */
  int kernels, fused, collectives, waits; /* fused: kernels that do the work of several recorded ops */
  int64_t arena_bytes, arena_bound_bytes, workspace_bytes;
  double gflop, gbyte; /* of one run */
  char *ledger;        /* a line a collective, in issue order; owned by the report */
} fx_bench_plan_row;

typedef struct fx_bench_plan_report {
  fx_bench_plan_row row[FX_STEP_MAX_PLANS];
  int count, ranks;
  char topology[64], attention[FX_ATTENTION_TEXT_BYTES];
  int64_t params; /* of the whole model */
  fx_dtype dtype;
  fx_memory_account memory; /* of rank 0, what a plan knows: no libraries, data or communicators */
  int64_t snapshot_bytes;   /* for checkpoints beside training */
} fx_bench_plan_report;

/* Rank 0 of `ranks` (0: parallel.tensor x parallel.context). gpu: as on a GPU. FX_ERR_CONFIG: a layout that
 * does not divide; FX_ERR_UNSUPPORTED: an op without a kernel there. */
fx_status fx_bench_plan(const fx_config *config, int ranks, bool gpu, fx_bench_plan_report *report);
void fx_bench_plan_fini(fx_bench_plan_report *report);

#ifdef __cplusplus
}
#endif
#endif
