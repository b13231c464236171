/* SPDX-License-Identifier: Apache-2.0 */
/* Replay against eager, bitwise: separate models, separate allocators, dead ranges poisoned, 20 steps with
 * gradient accumulation, changing documents, dropout on. And what the plan cache says when something changes.
 */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/base/philox.h"
#include "tests/core/fixture.h"

enum { B = 2, T = 70, STEPS = 20, MICROS = 4 };

static const char g_yaml[] =
    "model: {model_type: llama, vocab_size: 61, hidden_size: 48, num_hidden_layers: 3, num_attention_heads: "
    "6, "
    "num_key_value_heads: 2, intermediate_size: 40, max_position_embeddings: 80, dropout: 0.1}\n"
    "attention: {variant: document_causal}\n"
    "train: {seq_length: 70, micro_batch_size: 2, global_batch_size: 8, seed: 3}\n";
static const char g_gpt2[] = "model: {model_type: gpt2, vocab_size: 61, hidden_size: 48, num_hidden_layers: "
                             "2, num_attention_heads: 3, "
                             "max_position_embeddings: 80, bias: true}\n"
                             "attention: {variant: sliding_window, params: {window: 9}}\n"
                             "train: {seq_length: 70, micro_batch_size: 2, global_batch_size: 8, seed: 3}\n";

/* Random tokens; documents of random lengths that differ at every micro-step. */
static void fill(fixture *f, int64_t micro) {
  int32_t tokens[B * T], targets[B * T], start[B * T];
  for (int64_t i = 0; i < B * T; i++) {
    fx_philox r = fx_philox_at(17, 4, (uint64_t)i, (uint64_t)micro);
    tokens[i] = (int32_t)(r.word[0] % 61);
    targets[i] = r.word[1] % 7 == 0 ? -1 : (int32_t)(r.word[2] % 61);
    bool begins = i % T == 0 || r.word[3] % 11 == 0;
    start[i] = begins ? (int32_t)(i % T) : start[i - 1];
  }
  fixture_fill(f, tokens, targets, start, 1.0f / (B * T * MICROS));
}

static void run_step(fixture *f, int64_t step) {
  for (int64_t m = 0; m < MICROS; m++) {
    fill(f, step * MICROS + m);
    fixture_optimizer(f, 3e-3f, step + 1);
    fx_phase phase = m == 0            ? FX_PHASE_MICRO_FIRST
                     : m == MICROS - 1 ? FX_PHASE_MICRO_LAST
                                       : FX_PHASE_MICRO_MID;
    CHECK_OK(fx_stepper_run(f->stepper, phase, 0));
  }
}

static void compare_modes(const char *yaml) {
  fixture replay, eager;
  fx_phase phases[] = {FX_PHASE_MICRO_FIRST, FX_PHASE_MICRO_MID, FX_PHASE_MICRO_LAST, FX_PHASE_UPDATE,
                       FX_PHASE_EVAL};
  if (!fixture_init(&replay, yaml, B, T, (fixture_options){.threads = 2, .poison = true})) return;
  if (!fixture_init(&eager, yaml, B, T, (fixture_options){.threads = 2, .mode = FX_EXEC_EAGER})) return;
  if (!fixture_prepare(&replay, phases, 5) || !fixture_prepare(&eager, phases, 5)) return;
  CHECK_OK(fx_params_initialize(&replay.model->params, 3));
  CHECK_OK(fx_params_initialize(&eager.model->params, 3));
  const fx_params *a = &replay.model->params, *b = &eager.model->params;
  size_t bytes = (size_t)a->numel * sizeof(float);
  CHECK_INT(a->numel, b->numel);
  float first = 0;
  for (int64_t step = 0; step < STEPS; step++) {
    run_step(&replay, step);
    run_step(&eager, step);
    float x = *fx_stepper_results(replay.stepper)->loss, y = *fx_stepper_results(eager.stepper)->loss;
    CHECK_MSG(isfinite(x) && memcmp(&x, &y, sizeof x) == 0, "step %lld: loss %.9g in replay, %.9g in eager",
              (long long)step, (double)x, (double)y);
    CHECK_MSG(memcmp(a->grad, b->grad, bytes) == 0, "step %lld: gradients differ between replay and eager",
              (long long)step);
    CHECK_OK(fx_stepper_run(replay.stepper, FX_PHASE_UPDATE, 0));
    CHECK_OK(fx_stepper_run(eager.stepper, FX_PHASE_UPDATE, 0));
    CHECK_MSG(memcmp(a->weight, b->weight, bytes) == 0, "step %lld: weights differ", (long long)step);
    CHECK_MSG(memcmp(a->exp_avg_sq, b->exp_avg_sq, bytes) == 0, "step %lld: moments differ", (long long)step);
    first = step == 0 ? x : first;
  }
  CHECK_MSG(*fx_stepper_results(replay.stepper)->loss != first, "the loss never moved from %g",
            (double)first);
  CHECK_OK(fx_stepper_run(replay.stepper, FX_PHASE_EVAL, 0));
  CHECK_OK(fx_stepper_run(eager.stepper, FX_PHASE_EVAL, 0));
  CHECK(memcmp(fx_stepper_results(replay.stepper)->nll, fx_stepper_results(eager.stepper)->nll,
               B * T * sizeof(float)) == 0);
  fixture_fini(&replay);
  fixture_fini(&eager);
}

static void llama(void) {
  compare_modes(g_yaml);
}
static void gpt2(void) {
  compare_modes(g_gpt2);
}

/* A mask that shrinks and then grows again between replays of one plan gives what a fresh model gives. */
static void mask_changes_between_replays(void) {
  fixture f;
  fx_phase phases[] = {FX_PHASE_EVAL};
  int32_t tokens[B * T], one[B * T] = {0}, many[B * T];
  float before[B * T], after[B * T], split[B * T];
  if (!fixture_init(&f, g_yaml, B, T, (fixture_options){.threads = 2, .poison = true})) return;
  if (!fixture_prepare(&f, phases, 1)) return;
  CHECK_OK(fx_params_initialize(&f.model->params, 3));
  for (int i = 0; i < B * T; i++) {
    tokens[i] = (i * 37 + i / 9) % 61;
    many[i] = i % T / 3 * 3;
  }
  const float *nll = fx_stepper_results(f.stepper)->nll;
  const int32_t *starts[3] = {one, many, one};
  float *results[3] = {before, split, after};
  for (int k = 0; k < 3; k++) {
    fixture_fill(&f, tokens, tokens, starts[k], 1);
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_EVAL, 0));
    memcpy(results[k], nll, sizeof before);
  }
  CHECK(memcmp(before, after, sizeof before) == 0);
  CHECK(fx_relative_l2_f(split, before, B * T) > 1e-4);
  fixture_fini(&f);
}

/* A sliding window over 33 positions, for the model of g_gpt2. */
static fx_attention_setup *windowed(int window) {
  char yaml[512];
  fx_config *config = NULL;
  fx_attention_setup *setup = NULL;
  snprintf(yaml, sizeof yaml,
           "model: {model_type: gpt2, vocab_size: 61, hidden_size: 48, num_hidden_layers: 2, "
           "num_attention_heads: 3, max_position_embeddings: 80, bias: true}\n"
           "attention: {variant: sliding_window, params: {window: %d}}\n"
           "train: {seq_length: 33, micro_batch_size: 2, global_batch_size: 8}\n",
           window);
  CHECK_OK(fx_config_parse(yaml, "windowed", &config));
  CHECK_OK(fx_attention_setup_create(config, FX_BACKEND_CPU, B, 33, &setup));
  fx_config_destroy(config);
  return setup;
}

static void plan_cache_names_what_changed(void) {
  fixture f;
  fx_phase train[] = {FX_PHASE_MICRO_ONLY};
  fx_phase eval[] = {FX_PHASE_EVAL};
  if (!fixture_init(&f, g_gpt2, B, T, (fixture_options){.threads = 1})) return;
  fx_plan_cache *cache = fx_stepper_cache(f.stepper);
  if (!fixture_prepare(&f, train, 1)) return;
  CHECK_STR(fx_stepper_miss_reason(f.stepper), "no plan yet");
  if (!fixture_prepare(&f, train, 1)) return;
  CHECK_INT(fx_plan_cache_hits(cache), 1);
  CHECK_INT(fx_plan_cache_misses(cache), 1);
  if (!fixture_prepare(&f, eval, 1)) return;
  CHECK_STR(fx_stepper_miss_reason(f.stepper), "phase 0 -> 7");
  /* another length */
  fx_attention_setup *shorter = windowed(9), *narrower = windowed(10);
  fx_inputs *inputs = NULL;
  fixture_inputs(shorter, f.device, &inputs);
  CHECK_OK(fx_stepper_reconfigure(f.stepper, shorter, inputs));
  if (!fixture_prepare(&f, train, 1)) return;
  CHECK_STR(fx_stepper_miss_reason(f.stepper), "sequence length 70 -> 33");
  /* another variant */
  CHECK_OK(fx_stepper_reconfigure(f.stepper, narrower, inputs));
  if (!fixture_prepare(&f, train, 1)) return;
  CHECK_STR(fx_stepper_miss_reason(f.stepper), "attention variant changed");
  CHECK_INT(fx_plan_cache_misses(cache), 4);
  /* and back: nothing is captured again */
  CHECK_OK(fx_stepper_reconfigure(f.stepper, f.attention, f.inputs));
  if (!fixture_prepare(&f, train, 1)) return;
  CHECK_INT(fx_plan_cache_misses(cache), 4);
  CHECK_INT(fx_plan_cache_hits(cache), 2);
  /* the ninth plan of one site and phase is refused, with the reasons of the eight */
  fx_status status = FX_OK;
  fx_attention_setup *more[20] = {NULL};
  for (int i = 0; i < 20 && status == FX_OK; i++) {
    more[i] = windowed(11 + i);
    CHECK_OK(fx_stepper_reconfigure(f.stepper, more[i], inputs));
    status = fx_stepper_prepare(f.stepper, train, 1);
    CHECK(i + 3 <= FX_PLANS_PER_SITE);
  }
  CHECK_INT(status, FX_ERR_GRAPH);
  CHECK_HAS(fx_error_text(), "number 9");
  CHECK_HAS(fx_error_text(), "sequence length 70 -> 33");
  fx_inputs_destroy(inputs);
  fixture_fini(&f);
  fx_attention_setup_destroy(shorter);
  fx_attention_setup_destroy(narrower);
  for (int i = 0; i < 20; i++) fx_attention_setup_destroy(more[i]);
}

/* A gradient that is not finite leaves weights and moments alone, bit for bit. */
static void bad_step_changes_nothing(void) {
  fixture f;
  fx_phase phases[] = {FX_PHASE_UPDATE};
  if (!fixture_init(&f, g_gpt2, B, T, (fixture_options){.threads = 2})) return;
  if (!fixture_prepare(&f, phases, 1)) return;
  fx_params *p = &f.model->params;
  CHECK_OK(fx_params_initialize(p, 3));
  fx_fill_normal(p->grad, p->numel, 4, 1);
  float *before = malloc((size_t)p->numel * sizeof(float));
  memcpy(before, p->weight, (size_t)p->numel * sizeof(float));
  const float bad[] = {NAN, INFINITY};
  for (int k = 0; k < 2; k++) {
    float kept = p->grad[p->numel - 5];
    p->grad[p->numel - 5] = bad[k];
    fixture_optimizer(&f, 1e-2f, 1);
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_UPDATE, 0));
    CHECK(!isfinite(*fx_stepper_results(f.stepper)->grad_norm));
    CHECK(memcmp(before, p->weight, (size_t)p->numel * sizeof(float)) == 0);
    CHECK(p->exp_avg[3] == 0 && p->exp_avg_sq[3] == 0);
    p->grad[p->numel - 5] = kept;
  }
  CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_UPDATE, 0));
  CHECK(memcmp(before, p->weight, (size_t)p->numel * sizeof(float)) != 0);
  free(before);
  fixture_fini(&f);
}

static const fx_test tests[] = {{"replay = eager, Llama, documents, dropout", llama},
                                {"replay = eager, GPT-2, sliding window", gpt2},
                                {"masks shrink and grow between replays", mask_changes_between_replays},
                                {"a cache miss names the field", plan_cache_names_what_changed},
                                {"a bad step changes nothing", bad_step_changes_nothing}};
FX_TEST_MAIN("replay", tests)
