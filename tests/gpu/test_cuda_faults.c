/* SPDX-License-Identifier: Apache-2.0 */
/* Bad data in a step on the GPU: what it is and in which plan is said once, after recordings and launched
 * kernels without the op's name, in eager with it and the line that recorded it; the next step is as if there
 * had been none. FX_SLICE=i/n runs every n-th case. */
#include "attention/flex_attention.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "tests/core/fault_case.h"

static const step_way g_ways[] = {{.name = "recordings", .options = {.cuda = true}},
                                  {.name = "launched kernels", .options = {.cuda = true}, .launched = true},
                                  {.name = "eager", .options = {.cuda = true, .mode = FX_EXEC_EAGER}}};
enum { WAYS = sizeof g_ways / sizeof g_ways[0] };

static void bad_data(void) {
  int index, of, number = 0;
  fx_test_slice(&index, &of);
  for (int k = 0; k < FAULTS; k++)
    for (int w = 0; w < WAYS; w++)
      if (number++ % of == index) bad_data_is_told_once(&g_faults[k], &g_ways[w]);
}

int main(void) {
  static const fx_test tests[] = {{"bad data is told once", bad_data}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0 || !fx_flex_attention_runs_on(FX_BACKEND_CUDA, 64)) {
    printf("skipped: no GPU: %s\n", probe.count ? "attention has no CUDA kernel yet" : probe.reason);
    return FX_TEST_SKIPPED;
  }
  return fx_test_main("cuda faults", tests, 1);
}
