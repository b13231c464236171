/* SPDX-License-Identifier: Apache-2.0 */
/* The training step of whole models on the GPU: losses and gradient norms of the CPU within rounding (of
 * float32, and within 1% of bfloat16), and the same bits from recordings, from a second run, from kernels
 * launched one by one, and from eager; steps that allocate nothing. Skipped without a GPU, or while attention
 * has no kernel. FX_SLICE=i/n runs every n-th case. */
#include <math.h>

#include "attention/flex_attention.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "tests/core/steady_case.h"
#include "tests/gpu/arch_case.h"

enum { STEPS = 6, DTYPES = 2 };

typedef struct numbers {
  step_numbers step[STEPS];
} numbers;

static const struct {
  const char *name;
  float bound; /* of the relative difference of losses to the CPU's; norms get 20 times that */
} g_dtypes[DTYPES] = {{"float32", 5e-5f}, {"bfloat16", 1e-2f}};

static const step_way g_cpu = {.name = "CPU", .options = {.threads = 2}};
static const step_way g_poisoned = {.name = "poisoned replay", .options = {.cuda = true, .poison = true}};
static const step_way g_ways[] = {{.name = "recordings", .options = {.cuda = true}},
                                  {.name = "launched kernels", .options = {.cuda = true}, .launched = true},
                                  {.name = "eager", .options = {.cuda = true, .mode = FX_EXEC_EAGER}}};
enum { WAYS = sizeof g_ways / sizeof g_ways[0] };

static numbers train(const char *yaml, const step_way *way) {
  numbers out;
  fixture f;
  memset(&out, 0, sizeof out);
  if (!step_begin(&f, yaml, way, g_step_phases, STEP_PHASES)) return out;
  for (int step = 0; step < STEPS; step++) out.step[step] = step_run(&f, step, (int64_t)step * STEP_MICROS);
  fixture_fini(&f);
  return out;
}

static const char *yaml_of(int model, const char *dtype) {
  static char text[1000];
  snprintf(text, sizeof text, "%sruntime: {dtype: %s}\n", g_step_models[model], dtype);
  return text;
}

/* Of poisoned replay, which others are compared with; made once. */
static const numbers *reference(int model, int dtype) {
  static numbers made[STEP_MODELS][DTYPES];
  static bool known[STEP_MODELS][DTYPES];
  if (!known[model][dtype]) made[model][dtype] = train(yaml_of(model, g_dtypes[dtype].name), &g_poisoned);
  known[model][dtype] = true;
  return &made[model][dtype];
}

static void follows_the_cpu(int model, int dtype) {
  const numbers cpu = train(g_step_models[model], &g_cpu), *gpu = reference(model, dtype);
  float bound = g_dtypes[dtype].bound, worst = 0;
  for (int i = 0; i < STEPS; i++) {
    step_numbers got = gpu->step[i], want = cpu.step[i];
    CHECK_MSG(fabsf(got.loss - want.loss) <= bound * want.loss, "step %d: loss %.7g, the CPU has %.7g", i,
              (double)got.loss, (double)want.loss);
    CHECK_MSG(fabsf(got.norm - want.norm) <= 20 * bound * want.norm, "step %d: norm %.7g, the CPU has %.7g",
              i, (double)got.norm, (double)want.norm);
    worst = fmaxf(worst, fabsf(got.loss - want.loss) / want.loss);
  }
  printf("[%s, %s: losses within %.2g of the CPU's] ", g_step_names[model], g_dtypes[dtype].name,
         (double)worst);
}

static void same_bits(int model, int dtype, const step_way *way) {
  numbers other = train(yaml_of(model, g_dtypes[dtype].name), way);
  CHECK_MSG(memcmp(&other, reference(model, dtype), sizeof other) == 0,
            "%s, %s: %s and poisoned replay differ", g_step_names[model], g_dtypes[dtype].name, way->name);
}

static void steps(void) {
  int index, of, number = 0;
  fx_test_slice(&index, &of);
  for (int m = 0; m < STEP_MODELS; m++)
    for (int d = 0; d < DTYPES; d++) {
      if (number++ % of == index) follows_the_cpu(m, d);
      for (int w = 0; w < WAYS; w++)
        if (number++ % of == index) same_bits(m, d, &g_ways[w]);
    }
}

/* Recorded, with products that were timed in the first step, and launched. A slice is of a run that a tool
 * slows down. */
static void allocations(void) {
  static const step_way tuned = {.name = "recordings", .options = {.cuda = true}, .autotune = true};
  int index, of, number = 0;
  fx_test_slice(&index, &of);
  int count = of > 1 ? 3 : 100;
  if (number++ % of == index) steps_allocate_nothing(yaml_of(STEP_LLAMA, "bfloat16"), &tuned, count);
  if (number++ % of == index) steps_allocate_nothing(yaml_of(STEP_GPT2, "bfloat16"), &g_ways[1], count);
}

static void architecture(void) {
  fx_device *device = NULL;
  if (!CHECK_OK(fx_device_create_cuda(0, &device))) return;
  arch_check(device);
  fx_device_destroy(device);
}

int main(void) {
  static const fx_test tests[] = {
      {"architecture", architecture}, {"steps", steps}, {"steps allocate nothing", allocations}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0 || !fx_flex_attention_runs_on(FX_BACKEND_CUDA, 64)) {
    printf("skipped: no GPU: %s\n", probe.count ? "attention has no CUDA kernel yet" : probe.reason);
    return FX_TEST_SKIPPED;
  }
  return fx_test_main("cuda step", tests, (int)(sizeof tests / sizeof tests[0]));
}
