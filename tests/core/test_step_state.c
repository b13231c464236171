/* SPDX-License-Identifier: Apache-2.0 */
/* What tests/gpu asks of steps on a GPU, asked of a CPU: bad steps leave the state alone, steps allocate
 * nothing, bad data is told with its op. */
#include "tests/core/fault_case.h"
#include "tests/core/skip_case.h"
#include "tests/core/steady_case.h"

enum { REPLAY, EAGER, WAYS };
static const step_way g_ways[WAYS] = {
    [REPLAY] = {.name = "replay"}, [EAGER] = {.name = "eager", .options = {.mode = FX_EXEC_EAGER}}};

static void bad_steps(void) {
  bad_steps_change_nothing(g_step_models[STEP_LLAMA], &g_ways[REPLAY]);
  bad_steps_change_nothing(g_step_models[STEP_GPT2], &g_ways[EAGER]);
}
static void no_allocations(void) {
  steps_allocate_nothing(g_step_models[STEP_GPT2], &g_ways[REPLAY], 20);
}
static void bad_data(void) {
  for (int w = 0; w < WAYS; w++)
    for (int k = 0; k < FAULTS; k++) bad_data_is_told_once(&g_faults[k], &g_ways[w]);
}

static const fx_test tests[] = {{"bad steps change nothing", bad_steps},
                                {"steps allocate nothing", no_allocations},
                                {"bad data is told once", bad_data}};
FX_TEST_MAIN("state of a step", tests)
