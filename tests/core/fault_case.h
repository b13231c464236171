/* SPDX-License-Identifier: Apache-2.0 */
/* Data that a kernel cannot use, met in a step, on one device: what is said of it, that it is said once, and
 * that the next step is the one of a run that never met it. */
#ifndef FX_TESTS_CORE_FAULT_CASE_H
#define FX_TESTS_CORE_FAULT_CASE_H

#include "tests/core/step_case.h"

enum { FAULT_PLACE = 33, FAULT_STEPS = 5 };

/* Tokens of the batches are below 300. */
static const char g_fault_tokens[] =
    "model: {model_type: llama, vocab_size: 320, hidden_size: 128, num_hidden_layers: 1, "
    "num_attention_heads: 2, num_key_value_heads: 1, intermediate_size: 176, max_position_embeddings: 160}\n"
    "attention: {mask: 'q >= kv', score: 'score + bias[h, token[kv]]', "
    "buffers: {bias: {shape: [H, 300], expression: '0.001 * float(i + j)'}}}\n"
    "train: {seq_length: 160, micro_batch_size: 2, global_batch_size: 2, seed: 3}\n";

typedef struct fault_kind {
  const char *name, *yaml; /* yaml NULL: the small Llama */
  bool target;             /* in place of a token */
  int32_t value;
  const char *sentence, *op;
} fault_kind;
static const fault_kind g_faults[] = {
    {"token", NULL, false, 100000, "id 100000 at place 33 of the batch is outside the embedding's ",
     "embedding (recorded at "},
    {"target", NULL, true, 100000, "target 100000 is outside the vocabulary of 300", "head_ce (recorded at "},
    {"index of a score", g_fault_tokens, false, 310,
     "an index in the score of this attention variant leaves its buffer", "flex_attention (recorded at "}};
enum { FAULTS = sizeof g_faults / sizeof g_faults[0] };

/* What each step left; broken: step 3 is tried with bad data first. */
static inline void run_with_fault(const fault_kind *kind, const step_way *way, bool broken,
                                  step_numbers numbers[FAULT_STEPS]) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_UPDATE};
  const char *yaml = kind->yaml ? kind->yaml : g_step_models[STEP_LLAMA];
  bool named = !way->options.cuda || way->options.mode == FX_EXEC_EAGER;
  fixture f;
  memset(numbers, 0, FAULT_STEPS * sizeof *numbers);
  if (!step_begin(&f, yaml, way, phases, 2)) return;
  for (int step = 0; step < FAULT_STEPS; step++) {
    fixture_optimizer(&f, 1e-3f, step + 1);
    if (broken && step == 3) {
      step_fill_but(&f, step, 1.0f / (STEP_B * STEP_T), FAULT_PLACE, kind->target ? NULL : &kind->value,
                    kind->target ? &kind->value : NULL);
      CHECK_STATUS(fx_stepper_run(f.stepper, FX_PHASE_MICRO_ONLY, 0), FX_ERR_DATA);
      CHECK_HAS(fx_error_text(), kind->sentence);
      CHECK_HAS(fx_error_text(), "plan micro_only: ");
      if (named) CHECK_HAS(fx_error_text(), kind->op);
      if (named) CHECK_HAS(fx_error_text(), "core/model/forward.c:");
      CHECK_OK(fx_device_sync(f.device));
    }
    step_fill(&f, step, 1.0f / (STEP_B * STEP_T));
    for (int p = 0; p < 2; p++) CHECK_OK(fx_stepper_run(f.stepper, phases[p], 0));
    const fx_step_results *results = fx_stepper_results(f.stepper);
    numbers[step] = (step_numbers){*results->loss, *results->grad_norm};
  }
  fixture_fini(&f);
}

static inline void bad_data_is_told_once(const fault_kind *kind, const step_way *way) {
  step_numbers with[FAULT_STEPS], without[FAULT_STEPS];
  run_with_fault(kind, way, true, with);
  run_with_fault(kind, way, false, without);
  for (int i = 0; i < FAULT_STEPS; i++)
    CHECK_MSG(with[i].loss > 0 && memcmp(&with[i], &without[i], sizeof with[i]) == 0,
              "%s, %s: step %d: loss %.9g, norm %.9g behind bad data, %.9g and %.9g without", kind->name,
              way->name, i, (double)with[i].loss, (double)with[i].norm, (double)without[i].loss,
              (double)without[i].norm);
}

#endif
