/* SPDX-License-Identifier: Apache-2.0 */
/* Driver under mpirun: every rank records the same small step with real collectives, rank 1 disturbed as the
 * first argument says (none, drop, drop_last, swap, reshape, late); the ranks then compare their ledgers as a
 * trainer does and run the plan when they agree. Prints `flexion: SENTENCE` and ends with the exit code of
 * its status. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/plan/ledger.h"
#include "parallel/agree.h"
#include "parallel/collective.h"
#include "parallel/comm/mpi/bootstrap.h"
#include "parallel/topology.h"
#include "tests/harness.h"

enum { N = 1000, TIMEOUT_MS = 60000, LATE_MS = 2000 };

typedef struct job {
  fx_control *control;
  const char *how;
  fx_topology *topology;
  fx_device *device;
  fx_plan *plan;
  char *ledger;
  void *arena;
  float weight[N], grad[N], loss[16];
} job;

static fx_graph *record(job *j) {
  bool disturbed = j->control->rank == 1;
  bool drop = disturbed && strcmp(j->how, "drop") == 0,
       drop_last = disturbed && strcmp(j->how, "drop_last") == 0;
  bool swap = disturbed && strcmp(j->how, "swap") == 0, reshape = disturbed && strcmp(j->how, "reshape") == 0;
  fx_comm *dp = j->topology->comm.dp;
  fx_graph *g = fx_graph_create(NULL);
  fx_value weight = fx_graph_persistent(g, "weight", j->weight, fx_type_1d(FX_F32, N));
  fx_value grad = fx_graph_persistent(g, "grad", j->grad, fx_type_1d(FX_F32, reshape ? N - 1 : N));
  fx_value loss = fx_graph_persistent(g, "loss", j->loss, fx_type_1d(FX_F32, 16));
  fx_broadcast(FX_AT(g), dp, FX_LANE_COMM_CRITICAL, weight, 0);
  if (swap) fx_all_reduce(FX_AT(g), dp, FX_LANE_COMM_BULK, loss, FX_REDUCE_MAX);
  if (!drop) fx_all_reduce(FX_AT(g), dp, FX_LANE_COMM_BULK, grad, FX_REDUCE_SUM);
  if (!swap && !drop_last) fx_all_reduce(FX_AT(g), dp, FX_LANE_COMM_BULK, loss, FX_REDUCE_MAX);
  return g;
}

static fx_status check(const job *j) {
  float size = (float)j->control->size;
  for (int i = 0; i < N; i++)
    if (j->grad[i] != size * (size + 1) / 2 || j->weight[i] != 1)
      return fx_error(FX_ERR_INTERNAL, "element %d: grad %g, weight %g", i, (double)j->grad[i],
                      (double)j->weight[i]);
  return j->loss[3] == size ? FX_OK : fx_error(FX_ERR_INTERNAL, "loss %g", (double)j->loss[3]);
}

static fx_status run(job *j) {
  float mine = (float)(j->control->rank + 1);
  for (int i = 0; i < N; i++) j->grad[i] = j->weight[i] = j->loss[i % 16] = mine;
  FX_TRY(fx_topology_create(j->control, 1, 1, &j->topology));
  FX_TRY(fx_device_create_cpu(1, "auto", &j->device));
  FX_TRY(fx_plan_prepare(record(j), (fx_plan_options){.name = "micro_only"}, j->device, &j->plan));
  j->ledger = fx_plan_ledger(j->plan);
  if (strcmp(j->how, "late") == 0 && j->control->rank == 1) fx_sleep_ms(60000);
  FX_TRY(fx_agree_plans(j->control, (const char *const[]){"micro_only"}, (const char *const *)&j->ledger, 1,
                        strcmp(j->how, "late") == 0 ? LATE_MS : TIMEOUT_MS));
  FX_TRY(fx_agree_ready(
      j->control, NULL, NULL,
      (fx_agree_ready_options){.heartbeat_ms = 50, .silence_ms = TIMEOUT_MS, .timeout_ms = TIMEOUT_MS}));
  FX_TRY(fx_alloc_aligned(&j->arena, fx_plan_stats_get(j->plan)->arena.bytes + FX_ALIGN));
  FX_TRY(fx_plan_bind(j->plan, j->arena));
  FX_TRY(fx_plan_run(j->plan, 0));
  return check(j);
}

int main(int argc, char **argv) {
  static job j;
  if (fx_mpi_bootstrap(&argc, &argv, &j.control) != FX_OK) {
    fprintf(stderr, "flexion: %s\n", fx_error_text());
    return 4;
  }
  j.how = argc > 1 ? argv[1] : "none";
  fx_status status = run(&j);
  if (status != FX_OK) fprintf(stderr, "flexion: %s\n", fx_error_text());
  fflush(stderr);
  if (status == FX_ERR_COMM)
    fx_mpi_abort(fx_status_exit_code(status)); /* a rank is not coming to the end either */
  fx_plan_destroy(j.plan);
  fx_device_destroy(j.device);
  fx_topology_destroy(j.topology);
  free(j.ledger);
  free(j.arena);
  fx_control_destroy(j.control);
  fx_mpi_finalize();
  return fx_status_exit_code(status);
}
