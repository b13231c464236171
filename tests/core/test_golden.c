/* SPDX-License-Identifier: Apache-2.0 */
/* A tiny GQA Llama and a tiny GPT-2 against Hugging Face transformers on PyTorch: logits, loss, every
 * gradient, three AdamW steps. Values: tests/golden/make_goldens.py. Tolerance 1e-5 relative, by L2 norm of
 * each tensor; tensors whose exact value is zero (GPT-2's key bias gradient) get an absolute floor of 1e-6 of
 * the global gradient norm. */
#include <math.h>
#include <stdio.h>

#include "tests/core/fixture.h"
#include "tests/golden/golden.h"

static void compare(const golden *g, const fixture *f, const char *kind, float *flat, double floor_norm) {
  const fx_params *params = &f->model->params;
  for (int64_t i = 0; i < params->num_params; i++) {
    const fx_param *p = &params->param[i];
    int64_t n = fx_param_numel(p);
    const float *want = golden_get(g, kind, p->name, n), *got = fx_param_data(params, p, flat);
    double error = 0, norm = 0;
    for (int64_t k = 0; want && k < n; k++) {
      error += ((double)got[k] - want[k]) * ((double)got[k] - want[k]);
      norm += (double)want[k] * want[k];
    }
    error = sqrt(error);
    norm = sqrt(norm);
    CHECK_MSG(error <= 1e-5 * norm + floor_norm, "%s%s: |got - want| = %.3g with |want| = %.3g", kind,
              p->name, error, norm);
  }
}

static void check_model(const char *name, const char *yaml, fx_exec_mode mode) {
  enum { B = 2, T = 13, V = 61, VALID = B * T - 3 };
  golden g;
  fixture f;
  if (!golden_load(&g, name)) return;
  if (!fixture_init(&f, yaml, B, T,
                    (fixture_options){.threads = 2, .mode = mode, .poison = true, .keep_logits = true}))
    return;
  const fx_params *params = &f.model->params;
  int64_t weights = 0;
  for (int i = 0; i < g.count; i++) weights += strncmp(g.tensor[i].name, "weight/", 7) == 0;
  CHECK_INT(params->num_params, weights);
  for (int64_t i = 0; i < params->num_params; i++) {
    const fx_param *p = &params->param[i];
    const float *w = golden_get(&g, "weight/", p->name, fx_param_numel(p));
    if (w) memcpy(fx_param_data(params, p, params->weight), w, (size_t)fx_param_numel(p) * sizeof(float));
  }
  fixture_fill(&f, golden_get(&g, "tokens", "", B * T), golden_get(&g, "targets", "", B * T), NULL,
               1.0f / VALID);
  fx_phase phases[] = {FX_PHASE_LOGITS, FX_PHASE_MICRO_ONLY, FX_PHASE_UPDATE, FX_PHASE_EVAL};
  if (!fixture_prepare(&f, phases, 4)) return;
  const fx_step_results *r = fx_stepper_results(f.stepper);
  CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_LOGITS, 0));
  const float *logits = golden_get(&g, "logits", "", B * T * V);
  float *got = malloc(sizeof(float) * B * T * V);
  for (int64_t i = 0; i < B * T; i++)
    memcpy(got + i * V, r->logits + i * f.model->padded_vocab, V * sizeof(float));
  double error = fx_relative_l2_f(got, logits, B * T * V);
  CHECK_MSG(error <= 1e-5, "%s: logits differ by %.3g relative", name, error);
  const float *losses = golden_get(&g, "losses", "", 3), *norms = golden_get(&g, "grad_norms", "", 3);
  for (int step = 0; step < 3; step++) {
    fixture_optimizer(&f, 1e-2f, step + 1);
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_EVAL, 0));
    float eval = *r->loss;
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_MICRO_ONLY, 0));
    CHECK_MSG(eval == *r->loss, "evaluation %.9g and training %.9g losses differ", (double)eval,
              (double)*r->loss);
    CHECK_MSG(fabsf(*r->loss - losses[step]) <= 1e-5f * losses[step], "%s step %d: loss %.8g, PyTorch %.8g",
              name, step, (double)*r->loss, (double)losses[step]);
    if (step == 0) compare(&g, &f, "grad/", params->grad, 1e-6 * (double)norms[0]);
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_UPDATE, 0));
    CHECK_MSG(fabsf(*r->grad_norm - norms[step]) <= 1e-5f * norms[step],
              "%s step %d: gradient norm %.8g, PyTorch %.8g", name, step, (double)*r->grad_norm,
              (double)norms[step]);
  }
  compare(&g, &f, "after/", params->weight, 0);
  free(got);
  free(g.data);
  fixture_fini(&f);
}

#define TAIL                                                                                                \
  "optimizer: {lr: 1.0e-2, min_lr: 1.0e-3, betas: [0.9, 0.95], eps: 1.0e-4, weight_decay: 0.1, clip_grad: " \
  "1.0}\n"                                                                                                  \
  "train: {seq_length: 13, micro_batch_size: 2, global_batch_size: 2}\n"

static const char g_llama[] =
    "model: {model_type: llama, vocab_size: 61, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: "
    "4, "
    "num_key_value_heads: 2, intermediate_size: 40, max_position_embeddings: 16, norm_eps: 1.0e-5}\n" TAIL;
static const char g_gpt2[] = "model: {model_type: gpt2, vocab_size: 61, hidden_size: 32, num_hidden_layers: "
                             "2, num_attention_heads: 4, "
                             "max_position_embeddings: 16, norm_eps: 1.0e-5, bias: true}\n" TAIL;

static void llama_replay(void) {
  check_model("tiny_llama", g_llama, FX_EXEC_REPLAY);
}
static void llama_eager(void) {
  check_model("tiny_llama", g_llama, FX_EXEC_EAGER);
}
static void gpt2_replay(void) {
  check_model("tiny_gpt2", g_gpt2, FX_EXEC_REPLAY);
}
static void gpt2_eager(void) {
  check_model("tiny_gpt2", g_gpt2, FX_EXEC_EAGER);
}

static const fx_test tests[] = {{"GQA Llama, replay", llama_replay},
                                {"GQA Llama, eager", llama_eager},
                                {"GPT-2, replay", gpt2_replay},
                                {"GPT-2, eager", gpt2_eager}};
FX_TEST_MAIN("golden", tests)
