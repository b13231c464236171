/* SPDX-License-Identifier: Apache-2.0 */
/* Whether replaying recordings (CUDA graphs) is faster than launching kernels one by one is measured on the
 * run's own steps, whose results are the same bits either way: the second step launches, the third makes the
 * recordings, the fourth runs them. Rank 0 decides for all. */
#include <stdlib.h>
#include <string.h>

#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"

enum { LAUNCHED_STEP = 2, RECORDED_STEP = 4 };
static const double MARGIN = 1.02; /* steps vary by about as much */

static bool chooses(const fx_trainer *run) {
  return run->recording.wanted && run->device->vtable->record_begin != NULL;
}

void fx_trainer_recording_begin(fx_trainer *run) {
  run->recording.wanted = run->config->runtime.mode == FX_RUNTIME_MODE_REPLAY;
  if (chooses(run)) fx_stepper_launch_kernels(run->stepper, true);
}

static fx_status decide(fx_trainer *run) {
  int32_t mine = run->recording.recorded_s > MARGIN * run->recording.launched_s, choice = 0;
  char *all = NULL;
  int64_t *offsets = NULL;
  FX_TRY(fx_calloc(&offsets, (size_t)run->job->control->size + 1, sizeof *offsets));
  fx_status status = fx_trainer_gather(run, &mine, sizeof mine, &all, offsets);
  if (status == FX_OK) {
    memcpy(&choice, all + offsets[0], sizeof choice);
    fx_stepper_launch_kernels(run->stepper, choice != 0);
    if (run->job->control->rank == 0)
      fx_info(run->job->log,
              "a step takes %.2f ms through CUDA graphs and %.2f ms launched kernel by kernel: the run %s",
              1e3 * run->recording.recorded_s, 1e3 * run->recording.launched_s,
              choice ? "launches, because graphs are not faster here" : "goes on with graphs");
  }
  free(all);
  free(offsets);
  return status;
}

fx_status fx_trainer_recording_step(fx_trainer *run, int64_t done, double seconds) {
  if (!chooses(run)) return FX_OK;
  if (done == LAUNCHED_STEP) {
    run->recording.launched_s = seconds;
    fx_stepper_launch_kernels(run->stepper, false);
  }
  if (done != RECORDED_STEP) return FX_OK;
  run->recording.recorded_s = seconds;
  return decide(run);
}
