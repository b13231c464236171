/* SPDX-License-Identifier: Apache-2.0 */
/* The training step of whole models on the GPU: losses and gradient norms of the CPU within rounding (of
 * float32, and within 1% of bfloat16), and the same bits from recordings, from a second run, from kernels
 * launched one by one, and from eager. Skipped without a GPU, or while attention has no
 * kernel. */
#include <math.h>
#include <stdio.h>

#include "attention/flex_attention.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "tests/core/fixture.h"

enum { B = 2, T = 160, STEPS = 6, MICROS = 2 };

static const char g_llama[] =
    "model: {model_type: llama, vocab_size: 300, hidden_size: 256, num_hidden_layers: 2, "
    "num_attention_heads: 4, "
    "num_key_value_heads: 2, intermediate_size: 344, max_position_embeddings: 160}\n"
    "attention: {variant: document_causal}\n"
    "train: {seq_length: 160, micro_batch_size: 2, global_batch_size: 4, seed: 3}\n";
static const char g_gpt2[] = "model: {model_type: gpt2, vocab_size: 300, hidden_size: 128, "
                             "num_hidden_layers: 2, num_attention_heads: 2, "
                             "max_position_embeddings: 160, bias: true, dropout: 0.1}\n"
                             "attention: {variant: sliding_window, params: {window: 50}}\n"
                             "train: {seq_length: 160, micro_batch_size: 2, global_batch_size: 4, seed: 3}\n";

typedef struct numbers {
  float loss[STEPS], norm[STEPS];
} numbers;

static void fill(fixture *f, int64_t micro) {
  static int32_t tokens[B * T], targets[B * T], start[B * T];
  for (int64_t i = 0; i < B * T; i++) {
    fx_philox r = fx_philox_at(17, 4, (uint64_t)i, (uint64_t)micro);
    tokens[i] = (int32_t)(r.word[0] % 300);
    targets[i] = r.word[1] % 7 == 0 ? -1 : (int32_t)(r.word[0] % 300 * 7 % 300);
    bool begins = i % T == 0 || r.word[3] % 40 == 0;
    start[i] = begins ? (int32_t)(i % T) : start[i - 1];
  }
  fixture_fill(f, tokens, targets, start, 1.0f / (B * T * MICROS));
}

static numbers train(const char *yaml, fixture_options options, bool launched) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_FIRST, FX_PHASE_MICRO_LAST, FX_PHASE_UPDATE};
  numbers out;
  fixture f;
  memset(&out, 0, sizeof out);
  if (!fixture_init(&f, yaml, B, T, options) || !fixture_prepare(&f, phases, 3)) return out;
  CHECK_OK(fx_params_initialize(&f.model->params, 3));
  CHECK_OK(fx_stepper_refresh(f.stepper));
  fx_stepper_launch_kernels(f.stepper, launched);
  for (int step = 0; step < STEPS; step++) {
    for (int m = 0; m < MICROS; m++) {
      fill(&f, step * MICROS + m);
      fixture_optimizer(&f, 1e-3f, step + 1);
      CHECK_OK(fx_stepper_run(f.stepper, phases[m], 0));
    }
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_UPDATE, 0));
    out.loss[step] = *fx_stepper_results(f.stepper)->loss;
    out.norm[step] = *fx_stepper_results(f.stepper)->grad_norm;
  }
  fixture_fini(&f);
  return out;
}

/* bound: of the relative difference of losses; norms get 20 times that. */
static void compare(const char *yaml, const char *dtype, float bound) {
  char text[1000];
  snprintf(text, sizeof text, "%sruntime: {dtype: %s}\n", yaml, dtype);
  numbers cpu = train(yaml, (fixture_options){.threads = 2}, false);
  numbers gpu = train(text, (fixture_options){.cuda = true, .poison = true}, false);
  numbers recorded = train(text, (fixture_options){.cuda = true}, false);
  numbers launched = train(text, (fixture_options){.cuda = true}, true);
  numbers eager = train(text, (fixture_options){.cuda = true, .mode = FX_EXEC_EAGER}, false);
  float worst = 0;
  for (int i = 0; i < STEPS; i++) {
    CHECK_MSG(fabsf(gpu.loss[i] - cpu.loss[i]) <= bound * cpu.loss[i], "step %d: loss %.7g, the CPU has %.7g",
              i, (double)gpu.loss[i], (double)cpu.loss[i]);
    CHECK_MSG(fabsf(gpu.norm[i] - cpu.norm[i]) <= 20 * bound * cpu.norm[i],
              "step %d: norm %.7g, the CPU has %.7g", i, (double)gpu.norm[i], (double)cpu.norm[i]);
    worst = fmaxf(worst, fabsf(gpu.loss[i] - cpu.loss[i]) / cpu.loss[i]);
  }
  printf("%s: losses within %.2g of the CPU's\n", dtype, (double)worst);
  CHECK_MSG(memcmp(&gpu, &recorded, sizeof gpu) == 0, "recordings and poisoned replay differ");
  CHECK_MSG(memcmp(&gpu, &launched, sizeof gpu) == 0, "recordings and launched kernels differ");
  CHECK_MSG(memcmp(&gpu, &eager, sizeof gpu) == 0, "replay and eager differ on the GPU");
}

static void llama(void) {
  compare(g_llama, "float32", 5e-5f);
  compare(g_llama, "bfloat16", 1e-2f);
}
static void gpt2(void) {
  compare(g_gpt2, "float32", 5e-5f);
  compare(g_gpt2, "bfloat16", 1e-2f);
}

int main(void) {
  static const fx_test tests[] = {{"llama", llama}, {"gpt2", gpt2}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0 || !fx_flex_attention_runs_on(FX_BACKEND_CUDA, 64)) {
    printf("skipped: no GPU: %s\n", probe.count ? "attention has no CUDA kernel yet" : probe.reason);
    return FX_TEST_SKIPPED;
  }
  return fx_test_main("cuda step", tests, (int)(sizeof tests / sizeof tests[0]));
}
