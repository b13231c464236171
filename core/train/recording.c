/* SPDX-License-Identifier: Apache-2.0 */
/* Whether replaying recordings (CUDA graphs) is faster than launching kernels one by one is measured on the
 * run's own steps, whose results are the same bits either way: after the first, TIMED steps launch, one makes
 * the recordings, TIMED run them. Medians count; rank 0 decides for all. Meanwhile every batch runs the plans
 * that hold any, so that the steps do the same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"

enum { TIMED = 3, LAUNCHED_LAST = 1 + TIMED, RECORDED_FIRST = LAUNCHED_LAST + 2 };
enum { RECORDED_LAST = RECORDED_FIRST + TIMED - 1 };
static const double MARGIN = 1.02; /* steps vary by about as much */

static bool chooses(const fx_trainer *run) {
  return run->recording.wanted && run->device->vtable->record_begin != NULL;
}

void fx_trainer_recording_begin(fx_trainer *run) {
  run->recording.wanted = run->config->runtime.mode == FX_RUNTIME_MODE_REPLAY;
  if (!chooses(run)) return;
  fx_stepper_launch_kernels(run->stepper, true);
  fx_stepper_hold(run->stepper, true);
}

static double median3(const double x[TIMED]) {
  return fmax(fmin(x[0], x[1]), fmin(fmax(x[0], x[1]), x[2]));
}

bool fx_recording_is_slower(const double recorded_s[TIMED], const double launched_s[TIMED]) {
  return median3(recorded_s) > MARGIN * median3(launched_s);
}

static fx_status decide(fx_trainer *run) {
  const double *recorded_s = run->recording.recorded_s, *launched_s = run->recording.launched_s;
  int32_t mine = fx_recording_is_slower(recorded_s, launched_s), choice = 0;
  char *all = NULL;
  int64_t *offsets = NULL;
  FX_TRY(fx_calloc(&offsets, (size_t)run->job->control->size + 1, sizeof *offsets));
  fx_status status = fx_trainer_gather(run, &mine, sizeof mine, &all, offsets);
  if (status == FX_OK) {
    memcpy(&choice, all + offsets[0], sizeof choice);
    fx_stepper_launch_kernels(run->stepper, choice != 0);
    fx_stepper_hold(run->stepper, false);
    if (run->job->control->rank == 0)
      fx_info(run->job->log,
              "a step takes %.2f ms through CUDA graphs and %.2f ms launched kernel by kernel: the run %s",
              1e3 * median3(recorded_s), 1e3 * median3(launched_s),
              choice ? "launches, because graphs are not faster here" : "goes on with graphs");
  }
  free(all);
  free(offsets);
  return status;
}

fx_status fx_trainer_recording_step(fx_trainer *run, int64_t done, double seconds) {
  if (!chooses(run)) return FX_OK;
  if (done > 1 && done <= LAUNCHED_LAST) run->recording.launched_s[done - 2] = seconds;
  if (done == LAUNCHED_LAST) fx_stepper_launch_kernels(run->stepper, false);
  if (done >= RECORDED_FIRST && done <= RECORDED_LAST)
    run->recording.recorded_s[done - RECORDED_FIRST] = seconds;
  return done == RECORDED_LAST ? decide(run) : FX_OK;
}
