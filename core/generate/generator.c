/* SPDX-License-Identifier: Apache-2.0 */
#include "core/generate/generator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/device.h"
#include "core/train/step.h"
#include "core/train/threads.h"
#include "data/tokenizer.h"
#include "dynamo_rt/base/memory.h"

struct fx_generator {
  char *path;
  fx_config *config;
  fx_tokenizer *tokenizer;
  fx_device *device;
  fx_model *model;
  fx_attention_setup *attention;
  fx_inputs *inputs;
  fx_stepper *stepper;
  int32_t *bounds; /* doc_start, doc_end [T]: one document over the whole window */
  int64_t T;
};

/* ---- loading ---- */

static fx_status read_weights(fx_generator *g, const fx_ckpt *ckpt) {
  const fx_params *params = &g->model->params;
  fx_ckpt_region *region = NULL;
  char(*path)[FX_CKPT_PATH_BYTES] = NULL;
  float *copy = NULL; /* of weights that the host cannot touch */
  fx_status status = FX_OK;
  if (!fx_params_on_host(params)) {
    FX_TRY(fx_alloc_aligned(&copy, (size_t)params->numel * sizeof *copy));
    memset(copy, 0, (size_t)params->numel * sizeof *copy);
  }
  FX_TRY_GOTO(fx_calloc(&region, (size_t)params->num_params, sizeof *region), free_regions);
  FX_TRY_GOTO(fx_calloc(&path, (size_t)params->num_params, sizeof *path), free_regions);
  for (int64_t i = 0; i < params->num_params; i++) {
    const fx_param *p = &params->param[i];
    snprintf(path[i], FX_CKPT_PATH_BYTES, "/model/%s", p->name);
    region[i] = (fx_ckpt_region){.path = path[i], .dtype = FX_F32, .ndim = p->ndim};
    for (int d = 0; d < p->ndim; d++) {
      region[i].dim[d] = p->dim[d];
      region[i].start[d] = p->start[d];
      region[i].count[d] = p->count[d];
    }
    region[i].pitch = fx_param_pitch(params, p);
    region[i].data = fx_param_data(params, p, copy ? copy : params->weight);
  }
  FX_TRY_GOTO(fx_ckpt_read(ckpt, region, params->num_params), free_regions);
  if (copy) status = fx_params_upload(params, params->weight, copy);
free_regions:
  free(copy);
  free(region);
  free(path);
  return status;
}

static fx_status load(fx_generator *g, const char *path, int threads, fx_runtime_device device) {
  fx_ckpt *ckpt = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_ckpt_find(path, &g->path));
  if (!g->path)
    return fx_error(FX_ERR_CHECKPOINT,
                    "%s: there is no complete step; expected a step_N directory, or one that holds some",
                    path);
  FX_TRY(fx_ckpt_open(g->path, &ckpt));
  FX_TRY_GOTO(fx_config_parse(fx_ckpt_config(ckpt), g->path, &g->config), close_ckpt);
  g->config->parallel = (fx_config_parallel){.tensor = 1, .context = 1}; /* however it was trained */
  g->config->runtime.device = device;
  if (g->config->runtime.dtype == FX_RUNTIME_DTYPE_BFLOAT16)
    g->config->runtime.dtype = FX_RUNTIME_DTYPE_AUTO; /* as the device here likes it */
  FX_TRY_GOTO(fx_device_choose_alone(g->config, threads, &g->device), close_ckpt);
  FX_TRY_GOTO(fx_model_create_weights(g->config, g->device, &g->model), close_ckpt);
  FX_TRY_GOTO(read_weights(g, ckpt), close_ckpt);
close_ckpt:
  fx_ckpt_close(ckpt);
  return status;
}

static fx_status check_causal(const fx_generator *g, const fx_attention_batch *batch) {
  bool causal;
  FX_TRY(fx_attention_is_causal(g->attention, batch, &causal));
  if (causal) return FX_OK;
  return fx_error(
      FX_ERR_UNSUPPORTED,
      "%s: its attention (%s) sees tokens that come later, so no text can be drawn from this model one "
      "token after the other",
      g->path, g->attention->text);
}

/* The inputs that no token changes: one document over the whole window. */
static fx_status fill_constant(fx_generator *g) {
  int64_t T = g->T;
  int32_t *positions = fx_inputs_data(g->inputs, 0, "positions");
  int32_t *targets = fx_inputs_data(g->inputs, 0, "targets"),
          *tokens = fx_inputs_data(g->inputs, 0, "tokens");
  FX_TRY(fx_calloc(&g->bounds, 2 * (size_t)T, sizeof *g->bounds));
  for (int64_t t = 0; t < T; t++) {
    positions[t] = (int32_t)t;
    targets[t] = -1;
    g->bounds[T + t] = (int32_t)T;
  }
  fx_attention_batch batch = {tokens, positions, g->bounds, g->bounds + T};
  FX_TRY(check_causal(g, &batch));
  return fx_attention_fill_slot(g->attention, &batch, g->inputs, 0);
}

static fx_status prepare(fx_generator *g) {
  fx_phase phase = FX_PHASE_LOGITS;
  g->T = g->config->train.seq_length;
  FX_TRY(fx_attention_setup_create(g->config, g->device->backend, 1, g->T, &g->attention));
  FX_TRY(fx_inputs_create(1, &g->inputs));
  FX_TRY(fx_step_declare_inputs(g->inputs, g->attention));
  FX_TRY(fx_inputs_allocate_on(g->inputs, g->device));
  fx_step_config step = {.model = g->model,
                         .B = 1,
                         .T = g->T,
                         .attention = g->attention,
                         .inputs = g->inputs,
                         .device = g->device,
                         .mode = FX_EXEC_REPLAY,
                         .keep_logits = true};
  FX_TRY(fill_constant(g));
  FX_TRY(fx_stepper_create(&step, &g->stepper));
  FX_TRY(fx_stepper_prepare(g->stepper, &phase, 1));
  FX_TRY(fx_stepper_bind(g->stepper));
  return fx_stepper_refresh(g->stepper);
}

fx_status fx_generator_create(const char *path, int threads, fx_runtime_device device, fx_generator **out) {
  fx_generator *g = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&g, 1, sizeof *g));
  FX_TRY_GOTO(load(g, path, threads, device), destroy_generator);
  FX_TRY_GOTO(fx_tokenizer_create("byte", NULL, &g->tokenizer), destroy_generator);
  FX_TRY_GOTO(prepare(g), destroy_generator);
  *out = g;
  return FX_OK;
destroy_generator:
  fx_generator_destroy(g);
  return status;
}

void fx_generator_destroy(fx_generator *g) {
  if (!g) return;
  fx_stepper_destroy(g->stepper);
  fx_inputs_destroy(g->inputs);
  fx_attention_setup_destroy(g->attention);
  free(g->bounds);
  fx_model_destroy(g->model);
  fx_device_destroy(g->device);
  fx_tokenizer_destroy(g->tokenizer);
  fx_config_destroy(g->config);
  free(g->path);
  free(g);
}

const char *fx_generator_path(const fx_generator *g) {
  return g->path;
}
const fx_config *fx_generator_config(const fx_generator *g) {
  return g->config;
}

/* ---- generating ---- */

fx_status fx_generator_logits(fx_generator *g, const int32_t *tokens, int64_t count, const float **logits) {
  FX_ASSERT(count > 0);
  int64_t used = fx_min_i64(count, g->T);
  const int32_t *window = tokens + (count - used);
  int32_t *input = fx_inputs_data(g->inputs, 0, "tokens");
  for (int64_t t = 0; t < used; t++)
    if (window[t] < 0 || window[t] >= g->config->model.vocab_size)
      return fx_error(FX_ERR_DATA, "token %d is outside the vocabulary of %lld", (int)window[t],
                      (long long)g->config->model.vocab_size);
  memcpy(input, window, (size_t)used * sizeof *input);
  memset(input + used, 0, (size_t)(g->T - used) * sizeof *input);
  if (g->attention->reads_tokens) {
    fx_attention_batch batch = {input, fx_inputs_data(g->inputs, 0, "positions"), g->bounds,
                                g->bounds + g->T};
    FX_TRY(fx_attention_fill_slot(g->attention, &batch, g->inputs, 0));
  }
  FX_TRY(fx_stepper_run(g->stepper, FX_PHASE_LOGITS, 0));
  *logits = fx_stepper_results(g->stepper)->logits + (used - 1) * g->model->padded_vocab;
  return FX_OK;
}

/* The text as tokens; *start is 1 when the first one was put there because the prompt is empty. */
static fx_status encode(const fx_generator *g, const char *prompt, size_t bytes, int32_t **tokens,
                        int64_t *count, int64_t *start) {
  int32_t end = fx_tokenizer_end_of_document(g->tokenizer);
  *start = bytes == 0;
  if (bytes == 0 && end >= 0) {
    FX_TRY(fx_calloc(tokens, 1, sizeof **tokens));
    (*tokens)[0] = end;
    *count = 1;
    return FX_OK;
  }
  if (bytes == 0) {
    prompt = "\n";
    bytes = 1;
  }
  int64_t capacity = fx_tokenizer_max_tokens(g->tokenizer, bytes);
  FX_TRY(fx_calloc(tokens, (size_t)capacity, sizeof **tokens));
  return fx_tokenizer_encode(g->tokenizer, prompt, bytes, *tokens, capacity, count);
}

fx_status fx_generator_run(fx_generator *g, const char *prompt, size_t prompt_bytes, int64_t count,
                           const fx_draw_options *options, fx_generator_sink sink, void *ctx,
                           int64_t *drawn) {
  int32_t *tokens = NULL, *window = NULL, token = 0;
  int64_t length = 0, start = 0, done = 0;
  /* A model may have more ids than the tokenizer uses: those are never drawn. */
  int32_t vocab = (int32_t)fx_min_i64(g->config->model.vocab_size, fx_tokenizer_vocab_size(g->tokenizer));
  fx_draw draw = {.vocab = 0};
  fx_status status = FX_OK;
  FX_TRY_GOTO(encode(g, prompt, prompt_bytes, &tokens, &length, &start), free_tokens);
  FX_TRY_GOTO(fx_calloc(&window, (size_t)g->T, sizeof *window), free_tokens);
  FX_TRY_GOTO(fx_draw_init(&draw, options, vocab), free_tokens);
  int64_t used = fx_min_i64(length, g->T), position = length - start;
  memcpy(window, tokens + (length - used), (size_t)used * sizeof *window);
  for (bool more = true; more && done < count; done++, position++) {
    const float *logits = NULL;
    char *text = NULL;
    size_t bytes = 0;
    FX_TRY_GOTO(fx_generator_logits(g, window, used, &logits), free_tokens);
    FX_TRY_GOTO(fx_draw_next(&draw, logits, (uint64_t)position, &token), free_tokens);
    if (token == fx_tokenizer_end_of_document(g->tokenizer)) break;
    if (used == g->T) memmove(window, window + 1, (size_t)--used * sizeof *window);
    window[used++] = token;
    FX_TRY_GOTO(fx_tokenizer_decode(g->tokenizer, &token, 1, &text, &bytes), free_tokens);
    more = sink(ctx, token, text, bytes);
    free(text);
  }
  *drawn = done;
free_tokens:
  fx_draw_fini(&draw);
  free(window);
  free(tokens);
  return status;
}
