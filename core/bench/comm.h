/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives of a job's ranks on the device of a configuration: MPI between CPUs, NCCL between GPUs. */
#ifndef FX_CORE_BENCH_COMM_H
#define FX_CORE_BENCH_COMM_H

#include "core/config/config.h"
#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_BENCH_COMM_ROWS = 24 };

typedef struct fx_bench_comm_row {
  fx_collective kind;
  int64_t bytes; /* of the whole message: what all_reduce holds, all_gather makes, reduce_scatter reads */
  double us;     /* of one call, median over repetitions of the slowest rank */
  double gbps;   /* bytes / time (algorithm bandwidth); send_recv: sent by a rank */
} fx_bench_comm_row;

typedef struct fx_bench_comm_report {
  fx_bench_comm_row row[FX_BENCH_COMM_ROWS];
  int count, ranks;
  char transport[32], device[80];
  double copy_gbps; /* a rank's own copy, bytes read + written: no exchange inside one host is faster */
} fx_bench_comm_report;

/* Collective over the control channel; the report is the same on every rank. */
fx_status fx_bench_comm(const fx_config *config, fx_control *control, fx_bench_comm_report *report);

#ifdef __cplusplus
}
#endif
#endif
