/* SPDX-License-Identifier: Apache-2.0 */
/* From the third step on nothing is allocated: the device is asked for no memory, pinned memory or event, its
 * memory in use, by the driver's count, stays what it is, and the host's heap and pages do not grow. */
#ifndef FX_TESTS_CORE_STEADY_CASE_H
#define FX_TESTS_CORE_STEADY_CASE_H

#include <malloc.h>

#include "tests/core/step_case.h"

enum { STEADY_FROM = 3, STEADY_WINDOWS = 3 };
/* Of a window, and of all; what the kernel counts in VmHWM may lag by some pages a processor. */
enum { STEADY_HEAP = 4 << 10, STEADY_RSS = 128 << 10, STEADY_PEAK = 8 << 20 };

static inline int64_t steady_heap(void) {
  struct mallinfo2 all = mallinfo2();
  return (int64_t)(all.uordblks + all.hblkhd);
}

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

/* In three windows of `steps`, of which one has to be still: others may take memory of the same GPU
 * meanwhile, and a driver may touch pages late, but what a step takes shows in every window. */
static inline void steps_allocate_nothing(const char *yaml, const step_way *way, int steps) {
  enum { DEVICE, HEAP, RESIDENT, KINDS };
  static const char *const names[KINDS] = {"device's memory", "heap", "resident pages"};
  static const int64_t most[KINDS] = {0, STEADY_HEAP, STEADY_RSS};
  int64_t bytes[STEADY_WINDOWS + 1][KINDS];
  fixture f;
  if (!step_begin(&f, yaml, way, g_step_phases, STEP_PHASES)) return;
  step_fill(&f, 0, 1.0f / (STEP_B * STEP_T * STEP_MICROS));
  steady_run(&f, 0, STEADY_FROM);
  step_watch_begin(f.device);
  int64_t peak = fx_memory_peak();
  for (int w = 0; w <= STEADY_WINDOWS; w++) {
    if (w > 0) steady_run(&f, STEADY_FROM + (w - 1) * steps, steps);
    bytes[w][DEVICE] = fx_device_memory_used(f.device);
    bytes[w][HEAP] = steady_heap();
    bytes[w][RESIDENT] = steady_resident();
  }
  int64_t higher = fx_memory_peak() - peak;
  CHECK_INT(g_watch.allocations, 0);
  CHECK_MSG(higher <= STEADY_PEAK, "%s: the peak of resident pages rose by %lld bytes", way->name,
            (long long)higher);
  printf("[%s, %d steps: peak %+lld", way->name, STEADY_WINDOWS * steps, (long long)higher);
  for (int kind = 0; kind < KINDS; kind++) {
    int64_t least = INT64_MAX, last = bytes[STEADY_WINDOWS][kind];
    for (int w = 0; w < STEADY_WINDOWS; w++) {
      int64_t more = bytes[w + 1][kind] - bytes[w][kind];
      if (kind == DEVICE && more < 0) more = -more;
      least = more < least ? more : least;
    }
    CHECK_MSG(least <= most[kind], "%s: every %d steps add %lld bytes or more to the %s, now %lld", way->name,
              steps, (long long)least, names[kind], (long long)last);
    printf(", %s %+lld", names[kind], (long long)(last - bytes[0][kind]));
  }
  printf("] ");
  bool recorded = fx_plan_records(fx_stepper_plan(f.stepper, FX_PHASE_UPDATE));
  CHECK_INT(g_watch.recordings_run, recorded ? STEADY_WINDOWS * steps * STEP_PHASES : 0);
  CHECK(!way->options.cuda || bytes[0][DEVICE] > 0);
  fixture_fini(&f);
}

#endif
