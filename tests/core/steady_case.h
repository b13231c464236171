/* SPDX-License-Identifier: Apache-2.0 */
/* From the third step on nothing is allocated: the device is asked for no memory, pinned memory or event, its
 * memory in use, by the driver's count, stays what it is, and the host's pages do not grow. */
#ifndef FX_TESTS_CORE_STEADY_CASE_H
#define FX_TESTS_CORE_STEADY_CASE_H

#include "tests/core/step_case.h"

enum { STEADY_FROM = 3, STEADY_WINDOWS = 3 };
/* What the kernel counts in VmHWM may lag by some pages a processor. */
enum { STEADY_RSS = 1 << 20, STEADY_PEAK = 8 << 20 };

/* Resident bytes by a walk of the page tables; VmRSS where there is no such file. */
static inline int64_t steady_resident(void) {
  char line[256];
  long long kib = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  if (!file) return fx_memory_resident();
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Rss: %lld kB", &kib) == 1) break; // NOLINT: checked
  fclose(file);
  return (int64_t)kib * 1024;
}

static inline void steady_run(fixture *f, int from, int steps) {
  for (int step = from; step < from + steps; step++) {
    fixture_optimizer(f, 1e-5f, step + 1);
    for (int p = 0; p < STEP_PHASES; p++) CHECK_OK(fx_stepper_run(f->stepper, g_step_phases[p], 0));
  }
}

/* In three windows of `steps`: others may take memory of the same GPU meanwhile, so one has to be still. */
static inline void steps_allocate_nothing(const char *yaml, const step_way *way, int steps) {
  fixture f;
  int still = 0;
  if (!step_begin(&f, yaml, way, g_step_phases, STEP_PHASES)) return;
  step_fill(&f, 0, 1.0f / (STEP_B * STEP_T * STEP_MICROS));
  steady_run(&f, 0, STEADY_FROM);
  step_watch_begin(f.device);
  int64_t resident = steady_resident(), peak = fx_memory_peak(), used = 0, now = 0;
  for (int w = 0; w < STEADY_WINDOWS; w++) {
    used = fx_device_memory_used(f.device);
    steady_run(&f, STEADY_FROM + w * steps, steps);
    now = fx_device_memory_used(f.device);
    still += now == used;
  }
  int64_t grown = steady_resident() - resident, higher = fx_memory_peak() - peak;
  CHECK_INT(g_watch.allocations, 0);
  CHECK_MSG(still > 0, "%s: the last %d steps took the device's memory from %lld to %lld bytes", way->name,
            steps, (long long)used, (long long)now);
  CHECK_MSG(grown <= STEADY_RSS && higher <= STEADY_PEAK,
            "%s: %d steps added %lld bytes to the resident ones and %lld to their peak", way->name,
            STEADY_WINDOWS * steps, (long long)grown, (long long)higher);
  bool recorded = fx_plan_records(fx_stepper_plan(f.stepper, FX_PHASE_UPDATE));
  CHECK_INT(g_watch.recordings_run, recorded ? STEADY_WINDOWS * steps * STEP_PHASES : 0);
  CHECK(!way->options.cuda || used > 0);
  printf("[%s: device %+lld, resident %+lld, peak %+lld bytes] ", way->name, (long long)(now - used),
         (long long)grown, (long long)higher);
  fixture_fini(&f);
}

#endif
