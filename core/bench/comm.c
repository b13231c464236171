/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/comm.h"

#include <stdio.h>
#include <string.h>

#include "core/bench/machine.h"
#include "core/train/device.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/topology.h"

enum { REPEATS = 7, TIMEOUT_MS = 120000 };
static const fx_collective g_kinds[] = {FX_ALL_REDUCE, FX_ALL_GATHER, FX_REDUCE_SCATTER, FX_SEND_RECV};
static const int64_t g_bytes[] = {64 << 10, 1 << 20, 16 << 20, 256 << 20};
static const int g_calls[] = {50, 20, 5, 2}; /* of one repetition */

typedef struct bench {
  fx_control *control;
  fx_device *device;
  fx_topology *topology;
  void *from, *to;
} bench;

typedef struct call_task {
  fx_comm *comm;
  fx_comm_call call;
} call_task;

static fx_status run_call(void *arg, void *stream) {
  call_task *task = arg;
  task->call.stream = stream;
  return fx_comm_issue(task->comm, &task->call);
}

static fx_comm_call make_call(const bench *b, fx_collective kind, int64_t bytes) {
  const fx_comm *comm = b->topology->comm.world;
  bool split = kind == FX_ALL_GATHER || kind == FX_REDUCE_SCATTER;
  return (fx_comm_call){.kind = kind,
                        .reduce = FX_REDUCE_SUM,
                        .dtype = FX_F32,
                        .peer = (comm->rank + 1) % comm->size,
                        .peer_from = (comm->rank + comm->size - 1) % comm->size,
                        .count = bytes / (int64_t)sizeof(float) / (split ? comm->size : 1),
                        .src = b->from,
                        .dst = b->to};
}

/* seconds: of one call on the slowest rank. */
static fx_status time_calls(const bench *b, fx_collective kind, int64_t bytes, int calls, double *seconds) {
  call_task task = {b->topology->comm.world, make_call(b, kind, bytes)};
  FX_TRY(fx_comm_bind(task.comm, &task.call));
  FX_TRY(fx_control_barrier(b->control, TIMEOUT_MS));
  int64_t begin = fx_now_ns();
  for (int i = 0; i < calls; i++) FX_TRY(fx_device_launch(b->device, FX_LANE_COMM_BULK, run_call, &task));
  FX_TRY(fx_device_sync(b->device));
  double mine = (double)(fx_now_ns() - begin) / 1e9 / calls;
  return fx_control_largest(b->control, mine, seconds, TIMEOUT_MS);
}

static fx_status measure(const bench *b, fx_bench_comm_report *report) {
  double seconds[REPEATS], warm;
  for (size_t k = 0; k < sizeof g_kinds / sizeof g_kinds[0]; k++)
    for (size_t s = 0; s < sizeof g_bytes / sizeof g_bytes[0]; s++) {
      FX_TRY(time_calls(b, g_kinds[k], g_bytes[s], 1, &warm));
      for (int r = 0; r < REPEATS; r++)
        FX_TRY(time_calls(b, g_kinds[k], g_bytes[s], g_calls[s], &seconds[r]));
      double median = fx_median(seconds, REPEATS);
      report->row[report->count++] = (fx_bench_comm_row){.kind = g_kinds[k],
                                                         .bytes = g_bytes[s],
                                                         .us = 1e6 * median,
                                                         .gbps = 1e-9 * (double)g_bytes[s] / median};
    }
  return FX_OK;
}

static fx_status build(bench *b, const fx_config *config) {
  size_t bytes = (size_t)g_bytes[sizeof g_bytes / sizeof g_bytes[0] - 1];
  FX_TRY(fx_device_choose_job(config, b->control, NULL, &b->device));
  FX_TRY(fx_topology_create_on(b->control, b->device, 1, 1, &b->topology));
  fx_status status = fx_device_alloc(b->device, bytes, &b->from);
  if (status == FX_OK) status = fx_device_alloc(b->device, bytes, &b->to);
  if (status == FX_OK) status = fx_device_fill(b->device, FX_LANE_COMPUTE, b->from, 0, bytes);
  if (status == FX_OK) status = fx_device_fill(b->device, FX_LANE_COMPUTE, b->to, 0, bytes);
  FX_TRY(fx_control_agree_status(b->control, status, TIMEOUT_MS));
  return fx_comm_open(b->topology->comm.world);
}

fx_status fx_bench_comm(const fx_config *config, fx_control *control, fx_bench_comm_report *report) {
  bench b = {.control = control};
  fx_machine_bounds bounds = {0, 0};
  memset(report, 0, sizeof *report);
  if (control->size < 2)
    return fx_error(FX_ERR_USAGE,
                    "bench comm needs at least 2 ranks; start it as launch/run.sh -np 2 bench comm "
                    "CONFIG");
  report->ranks = control->size;
  fx_status status = build(&b, config);
  if (status == FX_OK) status = measure(&b, report);
  if (status == FX_OK) status = fx_machine_measure_device(b.device, FX_F32, &bounds);
  if (status == FX_OK) {
    report->copy_gbps = bounds.copy_gbps;
    snprintf(report->transport, sizeof report->transport, "%s", b.topology->comm.world->vtable->transport);
    snprintf(report->device, sizeof report->device, "%.70s", b.device->name);
  }
  if (b.device) {
    fx_device_release(b.device, b.from);
    fx_device_release(b.device, b.to);
  }
  fx_topology_destroy(b.topology);
  fx_device_destroy(b.device);
  return status;
}
