/* SPDX-License-Identifier: Apache-2.0 */
/* Steps on the GPU whose gradient is not finite, recorded and launched kernel by kernel: they leave every bit
 * of weights, moments and rounded weights as it was, are counted and told, and the steps behind them have the
 * bits of a run that never saw them. FX_SLICE=i/n runs every n-th case. */
#include "attention/flex_attention.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "tests/core/skip_case.h"
#include "tests/core/skipped_case.h"

static const step_way g_ways[] = {{.name = "recordings", .options = {.cuda = true}},
                                  {.name = "launched kernels", .options = {.cuda = true}, .launched = true}};
enum { WAYS = sizeof g_ways / sizeof g_ways[0] };

/* Appended to a model's configuration. */
static const struct {
  int model;
  const char *text;
} g_cases[] = {{STEP_LLAMA, "runtime: {dtype: bfloat16}\n"},
               {STEP_LLAMA, "runtime: {dtype: bfloat16}\noptimizer: {stochastic_rounding: true}\n"},
               {STEP_LLAMA, "runtime: {dtype: float32}\n"},
               {STEP_GPT2, "runtime: {dtype: bfloat16}\n"}};
enum { CASES = sizeof g_cases / sizeof g_cases[0] };

static bool is_in_slice(int number) {
  int index, of;
  fx_test_slice(&index, &of);
  return number % of == index;
}

static void bad_steps(void) {
  for (int c = 0; c < CASES; c++)
    for (int w = 0; w < WAYS; w++) {
      char text[1000];
      if (!is_in_slice(WAYS * c + w)) continue;
      snprintf(text, sizeof text, "%s%s", g_step_models[g_cases[c].model], g_cases[c].text);
      bad_steps_change_nothing(text, &g_ways[w]);
    }
}

static void told(void) {
  if (is_in_slice(WAYS * CASES)) bad_steps_are_told("cuda", 1);
}
static void ten_in_a_row(void) {
  if (is_in_slice(WAYS * CASES + 1)) ten_in_a_row_end_it("cuda", 1);
}

int main(void) {
  static const fx_test tests[] = {{"bad steps change nothing", bad_steps},
                                  {"bad steps are skipped and told", told},
                                  {"ten in a row end the run", ten_in_a_row}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0 || !fx_flex_attention_runs_on(FX_BACKEND_CUDA, 64)) {
    printf("skipped: no GPU: %s\n", probe.count ? "attention has no CUDA kernel yet" : probe.reason);
    return FX_TEST_SKIPPED;
  }
  return fx_test_main("cuda skip", tests, (int)(sizeof tests / sizeof tests[0]));
}
