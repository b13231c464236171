/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing tokens: which sets top-k and top-p keep, frequencies against known probabilities, determinism. And
 * the generator: its logits against the evaluation of the model that the checkpoint came from, the sliding
 * window, a checkpoint of weights alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/generate/generator.h"
#include "tests/core/fixture.h"

enum { V = 8, DRAWS = 20000 };

/* Probabilities of tokens 0..7, out of order on purpose; logits are their logarithms. */
static const double g_probability[V] = {0.05, 0.30, 0.02, 0.20, 0.08, 0.25, 0.09, 0.01};
static const int32_t g_ranked[V] = {1, 5, 3, 6, 4, 0, 2, 7};

static void known_logits(float logits[V]) {
  for (int i = 0; i < V; i++) logits[i] = (float)log(g_probability[i]) + 3.5f;
}

static void temperature_zero(void) {
  float logits[V], tie[V] = {1, 4, 2, 4, 4, 0, -1, 3};
  fx_draw draw;
  int32_t token = -1;
  known_logits(logits);
  fx_draw_options options = {.temperature = 0, .top_p = 1, .seed = 7};
  if (!CHECK_OK(fx_draw_init(&draw, &options, V))) return;
  for (uint64_t position = 0; position < 100; position++) {
    CHECK_OK(fx_draw_next(&draw, logits, position, &token));
    CHECK_INT(token, 1);
  }
  CHECK_OK(fx_draw_next(&draw, tie, 0, &token)); /* the lowest id of equals */
  CHECK_INT(token, 1);
  fx_draw_fini(&draw);
}

/* The kept set is the first `want` of the ranking, its probabilities are those of the softmax renormalised,
 * and exactly its tokens are drawn. */
static void check_kept(double temperature, int32_t top_k, double top_p, int32_t want) {
  float logits[V];
  int seen[V] = {0};
  double power[V], sum = 0;
  fx_draw draw;
  fx_draw_options options = {temperature, top_k, top_p, 3};
  known_logits(logits);
  if (!CHECK_OK(fx_draw_init(&draw, &options, V))) return;
  for (uint64_t position = 0; position < DRAWS; position++) {
    int32_t token = -1;
    if (!CHECK_OK(fx_draw_next(&draw, logits, position, &token))) break;
    seen[token]++;
  }
  CHECK_MSG(draw.kept == want, "temperature %g, top-k %d, top-p %g: kept %d tokens, expected %d", temperature,
            top_k, top_p, draw.kept, want);
  for (int i = 0; i < want; i++) sum += power[i] = pow(g_probability[g_ranked[i]], 1 / temperature);
  for (int i = 0; i < V; i++) {
    bool kept = i < want;
    CHECK_MSG((seen[g_ranked[i]] > 0) == kept, "temperature %g, top-k %d, top-p %g: token %d drawn %d times",
              temperature, top_k, top_p, g_ranked[i], seen[g_ranked[i]]);
    if (!kept) continue;
    double p = power[i] / sum, sigma = sqrt(DRAWS * p * (1 - p)), off = seen[g_ranked[i]] - DRAWS * p;
    CHECK_INT(draw.candidate[i].token, g_ranked[i]);
    CHECK_MSG(fabs(draw.candidate[i].probability - p) < 1e-6, "probability %g, expected %g",
              draw.candidate[i].probability, p);
    CHECK_MSG(fabs(off) <= 5 * sigma, "token %d drawn %d times, expected %.0f +- %.0f", g_ranked[i],
              seen[g_ranked[i]], DRAWS * p, sigma);
  }
  fx_draw_fini(&draw);
}

static void sets_and_frequencies(void) {
  check_kept(1, 0, 1, 8);
  check_kept(2, 0, 1, 8);
  check_kept(1, 1, 1, 1);
  check_kept(1, 3, 1, 3);
  check_kept(1, 100, 1, 8);
  check_kept(1, 0, 1e-9, 1);
  check_kept(1, 0, 0.299, 1);
  check_kept(1, 0, 0.301, 2); /* 0.30 + 0.25 */
  check_kept(1, 0, 0.749, 3); /* + 0.20 */
  check_kept(1, 0, 0.751, 4);
  check_kept(0.5, 0, 0.79, 3); /* squares: 0.09, 0.0625, 0.04 of 0.2100 */
  check_kept(0.5, 0, 0.71, 2);
  check_kept(1, 3, 0.72, 2); /* of the renormalised three: 0.40, 0.33, 0.27 */
  check_kept(1, 3, 0.74, 3);
}

static void bad_draws(void) {
  fx_draw draw;
  float logits[V] = {0, NAN};
  int32_t token;
  const fx_draw_options bad[] = {{-0.1, 0, 1, 0}, {NAN, 0, 1, 0},  {1, -1, 1, 0},
                                 {1, 0, 0, 0},    {1, 0, 1.01, 0}, {1, 0, NAN, 0}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK_STATUS(fx_draw_init(&draw, &bad[i], V), FX_ERR_USAGE);
  CHECK_OK(fx_draw_init(&draw, &(fx_draw_options){1, 0, 1, 0}, V));
  CHECK_STATUS(fx_draw_next(&draw, logits, 0, &token), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "token 1");
  fx_draw_fini(&draw);
}

/* ---- the generator ---- */

enum { T = 40, TEXT = 100 };

static const char g_llama[] =
    "model: {vocab_size: 256, hidden_size: 48, num_hidden_layers: 2, num_attention_heads: 6, "
    "num_key_value_heads: 2, intermediate_size: 40, dropout: 0.1, initializer_range: 0.3}\n"
    "attention: {variant: document_causal}\n"
    "train: {seq_length: 40, seed: 3}\n";
static const char g_gpt2[] = "model: {model_type: gpt2, vocab_size: 256, hidden_size: 48, num_hidden_layers: "
                             "2, num_attention_heads: 3, bias: true, initializer_range: 0.3}\n"
                             "attention: {variant: sliding_window, params: {window: 9}}\n"
                             "train: {seq_length: 40, seed: 3}\n";

/* A checkpoint with the weights of `f` alone, in dir. */
static bool save_weights(const fixture *f, const char *dir) {
  const fx_params *params = &f->model->params;
  fx_ckpt_region *region = calloc((size_t)params->num_params, sizeof *region);
  char(*path)[FX_CKPT_PATH_BYTES] = calloc((size_t)params->num_params, sizeof *path);
  char *text = fx_config_print(f->config);
  for (int64_t i = 0; i < params->num_params; i++) {
    const fx_param *p = &params->param[i];
    snprintf(path[i], FX_CKPT_PATH_BYTES, "/model/%s", p->name);
    region[i] = (fx_ckpt_region){.path = path[i],
                                 .dtype = FX_F32,
                                 .ndim = p->ndim,
                                 .dim = {p->dim[0], p->dim[1]},
                                 .count = {p->count[0], p->count[1]},
                                 .data = fx_param_data(params, p, params->weight)};
  }
  fx_ckpt_state state = {.step = 3, .loss_scale = 1};
  bool good =
      CHECK_OK(fx_ckpt_save(NULL, dir, &state, text, region, params->num_params, 0, 1, 0, NULL, NULL));
  free(text);
  free(path);
  free(region);
  return good;
}

static double nll_of(const float *logits, int32_t target) {
  double largest = -INFINITY, sum = 0;
  for (int i = 0; i < 256; i++) largest = fmax(largest, (double)logits[i]);
  for (int i = 0; i < 256; i++) sum += exp((double)logits[i] - largest);
  return largest + log(sum) - (double)logits[target];
}

/* For every prefix of a text, short ones and ones longer than the window: -log softmax(logits)[next] is what
 * the evaluation of the same model gives for the window as one sample. Both are fp32: 1e-5. */
static void compare_with_evaluation(const char *yaml) {
  fixture f;
  fx_phase phases[] = {FX_PHASE_EVAL};
  fx_generator *generator = NULL;
  int32_t text[TEXT + 1];
  if (!fixture_init(&f, yaml, 1, T, (fixture_options){.threads = 1})) return;
  CHECK_OK(fx_params_initialize(&f.model->params, 5));
  const char *dir = fx_temp_dir();
  if (!fixture_prepare(&f, phases, 1) || !save_weights(&f, dir)) return;
  if (!CHECK_OK(fx_generator_create(dir, 1, FX_RUNTIME_DEVICE_CPU, &generator))) return;
  for (int i = 0; i <= TEXT; i++) text[i] = (i * 37 + i * i / 5) % 256;
  const float *nll = fx_stepper_results(f.stepper)->nll, *logits = NULL;
  double spread = 0;
  for (int count = 1; count <= TEXT; count++) {
    int first = count > T ? count - T : 0, last = count - first - 1;
    if (count >= T || count == 1) fixture_fill(&f, text + first, text + first + 1, NULL, 1);
    CHECK_OK(fx_stepper_run(f.stepper, FX_PHASE_EVAL, 0));
    if (!CHECK_OK(fx_generator_logits(generator, text, count, &logits))) break;
    double got = nll_of(logits, text[count]);
    CHECK_MSG(fabs(got - (double)nll[last]) < 1e-5, "after %d tokens: nll %.7f, evaluation %.7f", count, got,
              (double)nll[last]);
    spread = fmax(spread, fabs(got - log(256)));
  }
  CHECK_MSG(spread > 0.5, "the model hardly differs from a uniform one: %g", spread);
  int32_t outside = 256;
  CHECK_STATUS(fx_generator_logits(generator, &outside, 1, &logits), FX_ERR_DATA);
  fx_generator_destroy(generator);
  fixture_fini(&f);
}

static void llama(void) {
  compare_with_evaluation(g_llama);
}
static void gpt2(void) {
  compare_with_evaluation(g_gpt2);
}

typedef struct collected {
  char text[512];
  size_t bytes;
  int limit; /* stop after so many tokens */
} collected;

static bool collect(void *ctx, int32_t token, const char *text, size_t bytes) {
  collected *c = ctx;
  CHECK_INT(bytes, 1);
  CHECK_INT((unsigned char)text[0], token);
  c->text[c->bytes++] = text[0];
  return (int)c->bytes < c->limit;
}

static collected run(fx_generator *generator, const char *prompt, int64_t count, uint64_t seed, int limit) {
  collected c = {.limit = limit};
  int64_t drawn = 0;
  fx_draw_options options = {.temperature = 1, .top_p = 1, .seed = seed};
  CHECK_OK(fx_generator_run(generator, prompt, strlen(prompt), count, &options, collect, &c, &drawn));
  CHECK_INT(drawn, c.bytes);
  return c;
}

static void seeds_and_continuations(void) {
  fixture f;
  fx_generator *generator = NULL;
  if (!fixture_init(&f, g_llama, 1, T, (fixture_options){.threads = 1})) return;
  CHECK_OK(fx_params_initialize(&f.model->params, 5));
  const char *dir = fx_temp_dir();
  if (!save_weights(&f, dir) || !CHECK_OK(fx_generator_create(dir, 1, FX_RUNTIME_DEVICE_CPU, &generator)))
    return;
  collected a = run(generator, "ab", TEXT, 1, 512), again = run(generator, "ab", TEXT, 1, 512),
            other = run(generator, "ab", TEXT, 2, 512), empty = run(generator, "", TEXT, 1, 512);
  CHECK_INT(a.bytes, TEXT);
  CHECK_INT(empty.bytes, TEXT);
  CHECK(memcmp(a.text, again.text, TEXT) == 0);
  CHECK(memcmp(a.text, other.text, TEXT) != 0);
  CHECK(memcmp(a.text, empty.text, TEXT) != 0);
  CHECK_INT(run(generator, "ab", TEXT, 1, 7).bytes, 7); /* the sink ends it */
  /* What was drawn, given back as the prompt, goes on as the text did: no state but the position. */
  char prompt[512] = "ab";
  size_t cut = strlen(a.text) > 60 ? 60 : strlen(a.text); /* a NUL byte ends a C string */
  memcpy(prompt + 2, a.text, cut);
  collected rest = run(generator, prompt, (int64_t)(TEXT - cut), 1, 512);
  CHECK_INT(rest.bytes, TEXT - cut);
  CHECK(memcmp(rest.text, a.text + cut, TEXT - cut) == 0);
  fx_generator_destroy(generator);
  fixture_fini(&f);
}

static void refusals(void) {
  fixture f;
  fx_generator *generator = NULL;
  char missing[300];
  const char *dir = fx_temp_dir();
  snprintf(missing, sizeof missing, "%s/nowhere", dir);
  CHECK_STATUS(fx_generator_create(missing, 1, FX_RUNTIME_DEVICE_CPU, &generator), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "nowhere");
  if (!fixture_init(&f, "attention: {variant: full}\ntrain: {seq_length: 16}\n", 1, 16,
                    (fixture_options){.threads = 1}))
    return;
  if (save_weights(&f, dir)) {
    CHECK_STATUS(fx_generator_create(dir, 1, FX_RUNTIME_DEVICE_CPU, &generator), FX_ERR_UNSUPPORTED);
    CHECK_HAS(fx_error_text(), "sees tokens that come later");
  }
  CHECK(generator == NULL);
  fixture_fini(&f);
}

/* Generation pays for one flat buffer, not for four. */
static void weights_only(void) {
  fx_config *config = NULL;
  fx_model *model = NULL;
  if (!CHECK_OK(fx_config_parse(g_llama, "llama", &config))) return;
  if (CHECK_OK(fx_model_create_weights(config, NULL, &model))) {
    CHECK(model->params.weight != NULL);
    CHECK(!model->params.grad && !model->params.exp_avg && !model->params.exp_avg_sq);
  }
  fx_model_destroy(model);
  fx_config_destroy(config);
}

static const fx_test tests[] = {{"temperature 0 is argmax", temperature_zero},
                                {"top-k and top-p keep the right sets; frequencies", sets_and_frequencies},
                                {"bad options and logits", bad_draws},
                                {"logits = evaluation, Llama, documents", llama},
                                {"logits = evaluation, GPT-2, sliding window", gpt2},
                                {"seeds, empty prompt, continuation", seeds_and_continuations},
                                {"refusals", refusals},
                                {"weights alone", weights_only}};
FX_TEST_MAIN("generate", tests)
