/* SPDX-License-Identifier: Apache-2.0 */
/* Steps whose gradient is not finite, on one device: they leave every bit of the state as it was, and the
 * steps behind them are those of a run that never saw them. */
#ifndef FX_TESTS_CORE_SKIP_CASE_H
#define FX_TESTS_CORE_SKIP_CASE_H

#include <float.h>
#include <math.h>

#include "tests/core/step_case.h"

/* factor: of the loss of one micro-batch; 0: the gradient is broken behind the backward, in `count` elements
 * of a storage. The last kind is finite everywhere and overflows in the norm alone. */
typedef struct bad_step {
  const char *name;
  float factor, element;
  int count;
} bad_step;
static const bad_step g_bad_steps[] = {
    {"a loss of NaN", NAN, 0, 0},          {"an infinite loss", INFINITY, 0, 0},
    {"a huge loss", FLT_MAX, 0, 0},        {"one element NaN", 0, NAN, 1},
    {"one element inf", 0, INFINITY, 1},   {"one element -inf", 0, -INFINITY, 1},
    {"a norm beyond float", 0, FLT_MAX, 2}};
enum { BAD_STEPS = sizeof g_bad_steps / sizeof g_bad_steps[0], GOOD_STEPS = 2 + BAD_STEPS };

/* The batches of no other step; the inputs of the update are those of the good step that follows. */
static inline void run_bad_step(fixture *f, int kind, int step) {
  const bad_step *bad = &g_bad_steps[kind];
  const fx_params *p = &f->model->params;
  for (int m = 0; m < STEP_MICROS; m++) {
    bool broken = bad->count == 0 && m == kind % STEP_MICROS;
    step_fill(f, 1000 + kind * STEP_MICROS + m,
              broken ? bad->factor : 1.0f / (STEP_B * STEP_T * STEP_MICROS));
    fixture_optimizer(f, 1e-3f, step + 1);
    CHECK_OK(fx_stepper_run(f->stepper, g_step_phases[m], 0));
  }
  int64_t at = p->storage[kind * 5 % p->num_storages].offset;
  for (int i = 0; i < bad->count; i++)
    CHECK_OK(fx_device_copy(f->device, FX_LANE_COMPUTE, p->grad + at + i, &bad->element, sizeof(float)));
  CHECK_OK(fx_device_sync(f->device));
  CHECK_OK(fx_stepper_run(f->stepper, FX_PHASE_UPDATE, 0));
  float norm = *fx_stepper_results(f->stepper)->grad_norm;
  CHECK_MSG(!isfinite(norm), "%s: a norm of %g, expected none that is finite", bad->name, (double)norm);
}

static inline void check_bad_step(fixture *f, int kind, int step, const char *where) {
  step_state before = step_state_take(f);
  run_bad_step(f, kind, step);
  step_state after = step_state_take(f);
  step_state_check_same(&after, &before, g_bad_steps[kind].name, where);
  step_state_free(&before);
  step_state_free(&after);
}

/* Good steps, the bad ones between them if there are any: one before anything is recorded, then each kind.
 * Returns the state. */
static inline step_state train_with_bad_steps(const char *yaml, const step_way *way, bool bad,
                                              step_numbers numbers[GOOD_STEPS]) {
  fixture f;
  step_state state;
  memset(&state, 0, sizeof state);
  memset(numbers, 0, GOOD_STEPS * sizeof *numbers);
  if (!step_begin(&f, yaml, way, g_step_phases, STEP_PHASES)) return state;
  step_watch_begin(f.device);
  for (int step = 0; step < GOOD_STEPS; step++) {
    if (bad && step != 1) check_bad_step(&f, step == 0 ? 0 : step - 2, step, way->name);
    step_state before = step_state_take(&f);
    numbers[step] = step_run(&f, step, (int64_t)step * STEP_MICROS);
    state = step_state_take(&f);
    unsigned all = before.part[STATE_COMPUTE] ? 15 : 7, moved = step_state_differs(&state, &before);
    CHECK_MSG(moved == all, "%s: step %d moved parts %x of the state, expected %x", way->name, step, moved,
              all);
    CHECK(isfinite(numbers[step].norm) && isfinite(numbers[step].loss));
    step_state_free(&before);
    if (step < GOOD_STEPS - 1) step_state_free(&state);
  }
  bool recorded = fx_plan_records(fx_stepper_plan(f.stepper, FX_PHASE_UPDATE));
  int steps = GOOD_STEPS + (bad ? 1 + BAD_STEPS : 0) - 1; /* the first one's plans are launched */
  CHECK_INT(g_watch.recordings_run, recorded ? steps * STEP_PHASES : 0);
  fixture_fini(&f);
  return state;
}

static inline void bad_steps_change_nothing(const char *yaml, const step_way *way) {
  step_numbers numbers[2][GOOD_STEPS];
  step_state with = train_with_bad_steps(yaml, way, true, numbers[0]);
  step_state without = train_with_bad_steps(yaml, way, false, numbers[1]);
  CHECK(with.part[0] && without.part[0]);
  step_state_check_same(&with, &without, "a run that saw no bad step", way->name);
  for (int i = 0; i < GOOD_STEPS; i++)
    CHECK_MSG(memcmp(&numbers[0][i], &numbers[1][i], sizeof numbers[0][i]) == 0,
              "%s: step %d: loss %.9g, norm %.9g behind a bad step, %.9g and %.9g without one", way->name, i,
              (double)numbers[0][i].loss, (double)numbers[0][i].norm, (double)numbers[1][i].loss,
              (double)numbers[1][i].norm);
  step_state_free(&with);
  step_state_free(&without);
}

#endif
