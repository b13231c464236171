/* SPDX-License-Identifier: Apache-2.0 */
/* Driver of the agreement test: trains as `flexion train` does, but rank 1 leaves out the reduce_scatter that
 * it would be the NTH (from 1) to record, and goes on with its own gradients unsummed; 0: none is left out.
 * Configurations are not compared, so that ranks started with different ones show what their plans then say.
 * Prints `flexion: SENTENCE` on every rank and ends with the exit code of its status. usage: mpi_drop NTH
 * CONFIG [key=value...] */
#include <stdio.h>
#include <stdlib.h>

#include "core/config/agree.h"
#include "core/train/trainer.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "parallel/collective.h"
#include "parallel/comm/mpi/bootstrap.h"

static struct {
  int nth; /* 0 on the other ranks */
  int recorded;
} g_drop;

static fx_value scatter_or_drop(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x) {
  if (++g_drop.recorded != g_drop.nth) return fx_reduce_scatter(graph, comm, lane, x);
  int64_t own = fx_graph_type(graph, x)->dim[0] / comm->size;
  return fx_copy(graph, fx_slice_rows(graph, x, comm->rank * own, own));
}

/* The trainer's own recording, linked in place of the library's. */
#define fx_reduce_scatter scatter_or_drop
#include "core/train/record_gradients.c"
#undef fx_reduce_scatter

fx_status fx_config_agree(const fx_config *cfg, fx_control *control, int timeout_ms) {
  (void)cfg;
  (void)control;
  (void)timeout_ms;
  return FX_OK;
}

int main(int argc, char **argv) {
  fx_control *control = NULL;
  fx_config *config = NULL;
  fx_train_report report = {.agreed = false};
  if (argc < 3 || fx_mpi_bootstrap(&argc, &argv, &control) != FX_OK) return 2;
  if (control->rank == 1) g_drop.nth = atoi(argv[1]);
  fx_log log = {.stream = stderr, .level = FX_LOG_ERROR, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log};
  fx_status status = fx_config_load(argv[2], (const char *const *)argv + 3, argc - 3, &config);
  if (status == FX_OK) status = fx_train(config, &job, &report);
  if (status != FX_OK) fprintf(stderr, "flexion: %s\n", fx_error_text());
  fflush(stderr);
  fx_config_destroy(config);
  if (status != FX_OK && !report.agreed) fx_mpi_abort(fx_status_exit_code(status));
  fx_control_destroy(control);
  fx_mpi_finalize();
  return fx_status_exit_code(status);
}
