/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said of GPUs without one: every op that the plans of a model run on the CPU has a CUDA kernel,
 * and what runtime.deterministic promises. */
#include <stdio.h>

#include "attention/flex_attention.h"
#include "core/train/device.h"
#include "tests/core/fixture.h"

static const char *const g_models[] = {
    "model: {model_type: llama, vocab_size: 61, hidden_size: 48, num_hidden_layers: 2, num_attention_heads: "
    "6, "
    "num_key_value_heads: 2, intermediate_size: 40, max_position_embeddings: 256, dropout: 0.1}\n",
    "model: {model_type: gpt2, vocab_size: 61, hidden_size: 48, num_hidden_layers: 2, num_attention_heads: "
    "3, "
    "max_position_embeddings: 256, bias: true, tie_word_embeddings: true}\n"};

static void every_op_has_a_cuda_kernel(void) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_MICRO_FIRST, FX_PHASE_MICRO_LAST,
                                    FX_PHASE_UPDATE,     FX_PHASE_EVAL,        FX_PHASE_LOGITS};
  enum { PHASES = sizeof phases / sizeof phases[0] };
  bool attention = fx_flex_attention_runs_on(FX_BACKEND_CUDA, 64);
  int kernels = 0;
  for (size_t m = 0; m < sizeof g_models / sizeof g_models[0]; m++) {
    fixture f;
    if (!fixture_init(&f, g_models[m], 2, 16, (fixture_options){.keep_logits = true})) return;
    if (!fixture_prepare(&f, phases, PHASES)) return;
    for (int p = 0; p < PHASES; p++) {
      const fx_graph *graph = fx_plan_graph(fx_stepper_plan(f.stepper, phases[p]));
      for (int n = 0; n < fx_graph_num_nodes(graph); n++) {
        const fx_node *node = fx_graph_node(graph, n);
        if (node->dead || !node->op->kernel[FX_BACKEND_CPU]) continue;
        bool missing = !attention && strncmp(node->op->name, "flex_attention", 14) == 0;
        CHECK_MSG(missing || node->op->kernel[FX_BACKEND_CUDA], "%s: op %s has no CUDA kernel",
                  fx_phase_name(phases[p]), node->op->name);
        kernels++;
      }
    }
    fixture_fini(&f);
  }
  CHECK_MSG(kernels > 100, "only %d kernels were looked at", kernels);
}

/* Types of a GPU's default, bfloat16 over fp32 masters, from end to end. */
static void bfloat16_plans_prepare(void) {
  static const fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_MICRO_FIRST, FX_PHASE_MICRO_LAST,
                                    FX_PHASE_UPDATE,     FX_PHASE_EVAL,        FX_PHASE_LOGITS,
                                    FX_PHASE_REFRESH};
  enum { PHASES = sizeof phases / sizeof phases[0] };
  int linears = 0;
  for (size_t m = 0; m < sizeof g_models / sizeof g_models[0]; m++) {
    fixture f;
    fixture_options options = {.keep_logits = true, .pretend_cuda = true};
    if (!fixture_init(&f, g_models[m], 2, 16, options)) return;
    CHECK(f.model->params.dtype == FX_BF16 && f.model->params.compute);
    CHECK_OK(fx_stepper_prepare(f.stepper, phases, PHASES));
    for (int p = 0; p < PHASES; p++) {
      const fx_plan *plan = fx_stepper_plan(f.stepper, phases[p]);
      if (!CHECK(plan != NULL)) break;
      const fx_graph *graph = fx_plan_graph(plan);
      for (int n = 0; phases[p] != FX_PHASE_LOGITS && n < fx_graph_num_nodes(graph); n++) {
        const fx_node *node = fx_graph_node(graph, n);
        if (node->dead || strcmp(node->op->name, "linear") != 0) continue;
        fx_dtype dtype = fx_graph_value(graph, node->out[0])->type.dtype;
        CHECK_MSG(dtype == FX_BF16, "%s: a linear layer computes in %s", fx_phase_name(phases[p]),
                  fx_dtype_name(dtype));
        linears++;
      }
    }
    fixture_fini(&f);
  }
  CHECK_MSG(linears >= 40, "only %d linear layers were looked at", linears);
}

static void bfloat16_needs_a_gpu(void) {
  fx_config *config = NULL;
  fx_device *device = NULL;
  CHECK_OK(fx_config_parse("runtime: {device: cpu, dtype: bfloat16}", "x.yaml", &config));
  CHECK_STATUS(fx_device_choose_alone(config, 1, &device), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "x.yaml:1:31: runtime.dtype=bfloat16 needs a GPU");
  fx_config_destroy(config);
}

/* A promise that does not hold is refused: sums of learnable tables' gradients have no order on GPUs. */
static void deterministic(void) {
  static const struct {
    const char *variant, *wanted;
    fx_backend backend;
    fx_status status;
  } rows[] = {{"t5_bias", "true", FX_BACKEND_CUDA, FX_ERR_CONFIG},
              {"t5_bias", "true", FX_BACKEND_CPU, FX_OK},
              {"t5_bias", "false", FX_BACKEND_CUDA, FX_OK},
              {"alibi", "true", FX_BACKEND_CUDA, FX_OK}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char yaml[400];
    fx_config *config = NULL;
    fx_attention_setup *setup = NULL;
    snprintf(yaml, sizeof yaml,
             "attention: {layers: [causal, other], variants: {causal: {variant: causal}, other: {variant: "
             "%s}}}\nmodel: {num_hidden_layers: 2}\ntrain: {seq_length: 128}\nruntime: {deterministic: %s, "
             "compiler: none}\n",
             rows[i].variant, rows[i].wanted);
    if (!CHECK_OK(fx_config_parse(yaml, "promise", &config))) return;
    CHECK_OK(fx_attention_setup_create(config, FX_BACKEND_CPU, 1, 128, &setup));
    CHECK_STATUS(fx_attention_check_deterministic(config, setup, rows[i].backend), rows[i].status);
    if (rows[i].status != FX_OK) {
      CHECK_HAS(fx_error_text(), "promise:");
      CHECK_HAS(fx_error_text(), "variant \"other\" learns a table");
      CHECK_HAS(fx_error_text(), "runtime.device=cpu");
    }
    fx_attention_setup_destroy(setup);
    fx_config_destroy(config);
  }
}

static const fx_test tests[] = {{"every op has a CUDA kernel", every_op_has_a_cuda_kernel},
                                {"bfloat16 plans prepare", bfloat16_plans_prepare},
                                {"bfloat16 needs a GPU", bfloat16_needs_a_gpu},
                                {"deterministic is refused where it is not", deterministic}};
FX_TEST_MAIN("cuda coverage", tests)
