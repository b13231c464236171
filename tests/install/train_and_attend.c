/* SPDX-License-Identifier: Apache-2.0 */
/* flexion as a component: a program of somebody else that sees only the installed headers and library
 * (tests/integration/install.sh builds it with cc and pkg-config). It trains a tiny model on tokens of its
 * own, and calls attention on arrays of its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cpu/flash_fwd.h"
#include "core/config/config.h"
#include "attention/mask/mask.h"
#include "core/model/attention.h"
#include "core/train/step.h"

static const char g_yaml[] = "model: {vocab_size: 32, hidden_size: 32, num_hidden_layers: 2,\n"
                             "  num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 64}\n"
                             "attention: {variant: causal}\n"
                             "train: {seq_length: 32, micro_batch_size: 4, global_batch_size: 4, seed: 7}\n";

typedef struct run {
  fx_config *config;
  fx_device *device;
  fx_model *model;
  fx_inputs *inputs;
  fx_stepper *stepper;
  fx_attention_setup *attention;
  int64_t B, T;
} run;

static const fx_phase g_phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_UPDATE};

static fx_status run_build(run *r) {
  FX_TRY(fx_config_parse(g_yaml, "tiny", &r->config));
  r->B = r->config->train.micro_batch_size;
  r->T = r->config->train.seq_length;
  FX_TRY(fx_device_create_cpu(1, "auto", &r->device));
  FX_TRY(fx_model_create(r->config, &r->model));
  FX_TRY(fx_params_initialize(&r->model->params, (uint64_t)r->config->train.seed));
  FX_TRY(fx_attention_setup_create(r->config, FX_BACKEND_CPU, r->B, r->T, &r->attention));
  FX_TRY(fx_inputs_create(2, &r->inputs));
  FX_TRY(fx_step_declare_inputs(r->inputs, r->attention));
  FX_TRY(fx_inputs_allocate(r->inputs));
  fx_step_config step = {.model = r->model,
                         .B = r->B,
                         .T = r->T,
                         .attention = r->attention,
                         .inputs = r->inputs,
                         .device = r->device,
                         .mode = FX_EXEC_REPLAY};
  FX_TRY(fx_stepper_create(&step, &r->stepper));
  FX_TRY(fx_stepper_prepare(r->stepper, g_phases, 2));
  return fx_stepper_bind(r->stepper);
}

/* Sequences that count upwards by a stride of their own: the next token follows from the last two. */
static fx_status run_step(run *r, int64_t step, float *loss) {
  int32_t *tokens = fx_inputs_data(r->inputs, 0, "tokens"),
          *targets = fx_inputs_data(r->inputs, 0, "targets");
  int32_t *positions = fx_inputs_data(r->inputs, 0, "positions");
  int32_t start[4 * 32] = {0}, end[4 * 32];
  for (int64_t b = 0; b < r->B; b++)
    for (int64_t t = 0; t < r->T; t++) {
      int64_t i = b * r->T + t, stride = 1 + (step + b) % 3;
      tokens[i] = (int32_t)((step * 5 + b + t * stride) % 32);
      targets[i] = (int32_t)((step * 5 + b + (t + 1) * stride) % 32);
      positions[i] = (int32_t)t;
      end[i] = (int32_t)r->T;
    }
  fx_attention_batch batch = {tokens, positions, start, end};
  FX_TRY(fx_attention_fill_slot(r->attention, &batch, r->inputs, 0));
  *(float *)fx_inputs_data(r->inputs, 0, "loss_factor") = 1.0f / (float)(r->B * r->T);
  *(float *)fx_inputs_data(r->inputs, 0, "lr") = 1e-2f;
  *(int64_t *)fx_inputs_data(r->inputs, 0, "optimizer_step") = step + 1;
  *(int64_t *)fx_inputs_data(r->inputs, 0, "iteration") = step;
  for (int p = 0; p < 2; p++) FX_TRY(fx_stepper_run(r->stepper, g_phases[p], 0));
  *loss = fx_stepper_results(r->stepper)->loss[0];
  return FX_OK;
}

static int train(void) {
  enum { STEPS = 40 };
  run r = {0};
  float first = 0, last = 0;
  fx_status status = run_build(&r);
  for (int64_t step = 0; step < STEPS && status == FX_OK; step++)
    status = run_step(&r, step, step ? &last : &first);
  int bad = status != FX_OK || !(fabsf(first - logf(32)) < 0.5f) || !(last < 0.5f * first);
  printf("train: status %s, loss %.3f -> %.3f (expected ln 32 = %.3f at first, less than half at last)%s%s\n",
         fx_status_name(status), (double)first, (double)last, log(32.0), bad ? ": FAILED " : "",
         status != FX_OK ? fx_error_text() : "");
  fx_stepper_destroy(r.stepper);
  fx_inputs_destroy(r.inputs);
  fx_attention_setup_destroy(r.attention);
  fx_model_destroy(r.model);
  fx_device_destroy(r.device);
  fx_config_destroy(r.config);
  return bad;
}

enum { B = 2, T = 67, H = 4, K = 2, D = 16, WINDOW = 21 };

/* Softmax by its definition, in double. */
static void attend_directly(const float *q, const float *k, const float *v, double *out) {
  for (int row = 0; row < B * T * H; row++) {
    int b = row / (T * H), t = row / H % T, kv_head = row % H / (H / K);
    double sum = 0, *o = out + (size_t)row * D;
    memset(o, 0, D * sizeof *o);
    for (int s = t < WINDOW ? 0 : t - WINDOW + 1; s <= t; s++) {
      const size_t key = (size_t)((b * T + s) * K + kv_head) * D;
      double score = 0;
      for (int d = 0; d < D; d++)
        score += (double)q[(size_t)row * D + (size_t)d] * (double)k[key + (size_t)d];
      double weight = exp(score * 0.25);
      sum += weight;
      for (int d = 0; d < D; d++) o[d] += weight * (double)v[key + (size_t)d];
    }
    for (int d = 0; d < D; d++) o[d] /= sum;
  }
}

static void *take(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory) exit(1);
  memset(memory, 0, bytes);
  return memory;
}

static void fill(float *data, int n, unsigned seed, float scale) {
  for (int i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = scale * ((float)(seed >> 8) / 8388608.0f - 1.0f);
  }
}

/* The mask `kv <= q && q - kv < WINDOW`, made of nodes, and what the analysis makes of it. */
static fx_status sliding_window(fx_limits *limits, void **memory) {
  fx_ex_pool *pool = fx_ex_pool_create(&(fx_ex_ranges){.H = H, .T = T, .T_kv = T});
  fx_mask_program *program = NULL;
  if (!pool) return FX_ERR_MEMORY;
  fx_ex query = fx_ex_variable(pool, FX_EX_Q), key = fx_ex_variable(pool, FX_EX_KV);
  fx_ex near =
      fx_ex_binary(pool, FX_EX_LT, fx_ex_binary(pool, FX_EX_SUB, query, key), fx_ex_int(pool, WINDOW));
  fx_ex mask = fx_ex_binary(pool, FX_EX_AND, fx_ex_binary(pool, FX_EX_LE, key, query), near);
  fx_status status = fx_mask_program_create(pool, mask, &program);
  if (status == FX_OK && fx_mask_program_facts(program)->form != FX_MASK_FORM_LIMITS)
    status = FX_ERR_INTERNAL;
  if (status == FX_OK) {
    *limits = fx_mask_limits_plan(program, B, H, T);
    *memory = take(fx_limits_bytes(limits));
    fx_limits_bind(limits, *memory);
    void *scratch = take(fx_mask_limits_scratch(program) + 64);
    status = fx_mask_limits_build(program, &(fx_mask_batch){.B = B}, limits, scratch);
    free(scratch);
  }
  fx_mask_program_destroy(program);
  fx_ex_pool_destroy(pool);
  return status;
}

static int attend(void) {
  enum { NQ = B * T * H * D, NK = B * T * K * D };
  float *q = take(NQ * sizeof *q), *k = take(NK * sizeof *k), *v = take(NK * sizeof *v);
  float *out = take(NQ * sizeof *out);
  float *lse = take((size_t)B * H * (size_t)fx_attention_tpad(T) * sizeof *lse);
  double *want = take(NQ * sizeof *want), error = 0, norm = 0;
  fill(q, NQ, 1, 3);
  fill(k, NK, 2, 3);
  fill(v, NK, 3, 1);
  fx_limits limits;
  void *memory = NULL;
  fx_status status = sliding_window(&limits, &memory);
  fx_attention_forward args = {.shape = {.B = B,
                                         .T_q = T,
                                         .T_kv = T,
                                         .H = H,
                                         .K = K,
                                         .D = D,
                                         .scale = 0.25f,
                                         .limits = &limits,
                                         .threads = 1},
                               .q = {q, T * H * D, H * D, D},
                               .k = {k, T * K * D, K * D, D},
                               .v = {v, T * K * D, K * D, D},
                               .out = {out, T * H * D, H * D, D},
                               .lse = lse};
  args.workspace = take(fx_attention_cpu_workspace(FX_ATTENTION_FORWARD, &args.shape, 1));
  if (status == FX_OK) status = fx_attention_cpu_forward(&args);
  attend_directly(q, k, v, want);
  for (int i = 0; i < NQ; i++) {
    error += ((double)out[i] - want[i]) * ((double)out[i] - want[i]);
    norm += want[i] * want[i];
  }
  double relative = sqrt(error / norm);
  /* fp32 sums of 16 products and up to 21 weights: a few times 2^-24; 20 times that is still no wrong key. */
  int bad = status != FX_OK || !(relative < 20 * 0x1p-24);
  printf("attention: status %s, relative error %.2e (expected below %.2e)%s\n", fx_status_name(status),
         relative, 20 * 0x1p-24, bad ? ": FAILED" : "");
  void *all[] = {q, k, v, out, lse, want, memory, args.workspace};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  return bad;
}

int main(void) {
  int bad = train();
  bad += attend();
  return bad ? 1 : 0;
}
