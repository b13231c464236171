/* SPDX-License-Identifier: Apache-2.0 */
/* Every attention variant, from its YAML to the op's results, against PyTorch FlexAttention in float64: out,
 * lse and all gradients. Values: tests/golden/make_flex.py. Compiled and interpreted tile functions; out
 * within 4e-7 (4 + max |score|) relative L2, gradients within five times that. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/plan/plan.h"
#include "tests/core/fixture.h"
#include "tests/golden/golden.h"

enum { B = 2, H = 2, K = 1, T = 28, D = 8, Q_COUNT = B * T * H * D, KV_COUNT = B * T * K * D };

typedef struct variant_case {
  const char *name, *attention;
} variant_case;

static const variant_case g_cases[] = {
    {"full", "{variant: full}"},
    {"causal", "{variant: causal}"},
    {"sliding_window", "{variant: sliding_window, params: {window: 5}}"},
    {"dilated_window", "{variant: dilated_window, params: {window: 4, dilation: 3}}"},
    {"chunked", "{variant: chunked, params: {chunk: 6}}"},
    {"prefix_lm", "{variant: prefix_lm, params: {prefix: 5}}"},
    {"document", "{variant: document}"},
    {"document_causal", "{variant: document_causal}"},
    {"document_causal", "{mask: 'q >= kv && doc_id[q] == doc_id[kv]'}"},
    {"document_prefix", "{variant: document_prefix, params: {prefix: 4}}"},
    {"global_sliding", "{variant: global_sliding, params: {window: 3, globals: 2}}"},
    {"shared_prefix", "{variant: shared_prefix, params: {prefix: 4}}"},
    {"neighbourhood_2d", "{variant: neighbourhood_2d, params: {width: 6, radius: 1}}"},
    {"block_diffusion", "{variant: block_diffusion, params: {block: 4}}"},
    {"conversation", "{variant: conversation, params: {memory: 1}, turn_token: 10}"},
    {"soft_sliding_window", "{variant: soft_sliding_window, params: {window: 5, slope: 0.25}}"},
    {"alibi", "{variant: alibi}"},
    {"softcap", "{variant: softcap, params: {cap: 2.5}}"},
    {"temperature", "{variant: temperature, params: {temperature: 1.7}}"},
    {"window_and_document", "{mask: {all: [sliding_window, document]}, params: {window: 5}}"},
    {"not_causal", "{mask: {not: causal}}"},
    {"any_of_two", "{mask: {any: [sliding_window, 'kv < 2']}, params: {window: 3}}"},
    {"softcap_alibi_document", "{mask: document_causal, score: [softcap, alibi], params: {cap: 2.5}}"},
    {"t5_bias", "{variant: t5_bias, params: {buckets: 8, distance: 16}}"},
    {"sinks", "{variant: sinks}"},
    {"sinks_sparse", "{mask: {not: causal}, sinks: true}"},
};

typedef struct results {
  float out[Q_COUNT], lse[B * H * 128], dq[Q_COUNT], dk[KV_COUNT], dv[KV_COUNT], dsink[H], dtable[H * 8];
} results;

static fx_value constant(fx_graph *g, const char *name, const void *data, fx_type type) {
  return fx_graph_persistent(FX_AT(g), name, (void *)(uintptr_t)data, type);
}

static void run_plan(fx_graph *g) {
  fx_device *device = NULL;
  fx_plan *plan = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(2, "auto", &device));
  if (CHECK_OK(fx_plan_prepare(g, (fx_plan_options){.name = "variant", .mode = FX_EXEC_EAGER, .poison = true},
                               device, &plan))) {
    CHECK_OK(fx_alloc_aligned(&arena, fx_plan_stats_get(plan)->arena.bytes));
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_OK(fx_plan_run(plan, 0));
  }
  fx_plan_destroy(plan);
  free(arena);
  fx_device_destroy(device);
}

static fx_value field(fx_graph *g, const fx_attention_setup *setup, void *const *memory, int index) {
  return index < 0 ? FX_NONE
                   : constant(g, setup->field[index].name, memory[index],
                              fx_type_1d(FX_I32, setup->field[index].words));
}

static void store(fx_graph *g, const char *name, float *to, fx_value value) {
  if (value == FX_NONE) return;
  fx_store(FX_AT(g), constant(g, name, to, *fx_graph_type(g, value)), value);
}

/* Forward and backward of kind 0 of the set-up. */
static void attend(const golden *gold, const fx_attention_setup *setup, void *const *memory,
                   const float *dlse, results *r) {
  const fx_attention_kind *kind = &setup->kind[0];
  fx_type q_type = fx_type_of(FX_F32, 4, (int64_t[]){B, T, H, D}),
          kv_type = fx_type_of(FX_F32, 4, (int64_t[]){B, T, K, D});
  fx_type lse_type = fx_type_3d(FX_F32, B, H, 128);
  fx_graph *g = fx_graph_create(NULL);
  fx_value q = constant(g, "q", golden_get(gold, "", "q", Q_COUNT), q_type),
           k = constant(g, "k", golden_get(gold, "", "k", KV_COUNT), kv_type),
           v = constant(g, "v", golden_get(gold, "", "v", KV_COUNT), kv_type),
           dout = constant(g, "dout", golden_get(gold, "", "dout", Q_COUNT), q_type);
  fx_attention_inputs in = fx_attention_no_inputs();
  in.limits = field(g, setup, memory, kind->limits);
  in.runs = field(g, setup, memory, kind->runs);
  in.runs_backward = field(g, setup, memory, kind->runs < 0 ? -1 : kind->runs + 1);
  in.buffers = field(g, setup, memory, kind->buffers);
  if (kind->flex->variant->sinks)
    in.sinks = constant(g, "sinks", golden_get(gold, "", "sink", H), fx_type_1d(FX_F32, H));
  if (fx_flex_num_tables(kind->flex) > 0)
    in.table[0] = constant(g, "table", golden_get(gold, "", "table", H * 8), fx_type_2d(FX_F32, H, 8));
  fx_attention_attr attr = kind->attr;
  attr.scale = 1.0f / sqrtf(D);
  fx_value lse = FX_NONE, out = fx_flex_attention(FX_AT(g), q, k, v, &in, attr, &lse);
  fx_value grads[FX_ATTENTION_GRADS];
  fx_flex_attention_grad(FX_AT(g), q, k, v, out, lse, dout, constant(g, "dlse", dlse, lse_type), &in, attr,
                         grads);
  if (CHECK_OK(fx_graph_status(g))) {
    store(g, "out", r->out, out), store(g, "lse of it", r->lse, lse);
    store(g, "dq", r->dq, grads[0]), store(g, "dk", r->dk, grads[1]), store(g, "dv", r->dv, grads[2]);
    store(g, "dsink", r->dsink, grads[3]), store(g, "dtable", r->dtable, grads[4]);
    run_plan(g); /* which takes the graph over */
  }
}

static void near_golden(const golden *gold, const char *name, const char *what, const float *got,
                        int64_t count, double tolerance) {
  char kind[64];
  snprintf(kind, sizeof kind, "%s/", name);
  const float *want = golden_get(gold, kind, what, count);
  double error = 0, norm = 0;
  for (int64_t i = 0; want && i < count; i++) {
    error += pow((double)got[i] - (double)want[i], 2);
    norm += pow((double)want[i], 2);
  }
  CHECK_MSG(norm > 0 && sqrt(error / norm) <= tolerance, "%s: %s is off by %.3g, %.3g is allowed", name, what,
            sqrt(error / norm), tolerance);
}

static double highest_score(const golden *gold) {
  const float *q = golden_get(gold, "", "q", Q_COUNT), *k = golden_get(gold, "", "k", KV_COUNT);
  double highest = 0;
  for (int i = 0; i < B * T * H; i++)
    for (int n = 0; n < T; n++) {
      double score = 0;
      for (int d = 0; d < D; d++)
        score += (double)q[i * D + d] * (double)k[((i / (T * H)) * T + n) * D + d] / sqrt(D);
      highest = fmax(highest, fabs(score));
    }
  return highest;
}

static void check_results(const golden *gold, const variant_case *c, const fx_attention_setup *setup,
                          const results *r) {
  double forward = 4e-7 * (4 + highest_score(gold)), backward = 5 * forward;
  near_golden(gold, c->name, "out", r->out, Q_COUNT, forward);
  near_golden(gold, c->name, "dq", r->dq, Q_COUNT, backward);
  near_golden(gold, c->name, "dk", r->dk, KV_COUNT, backward);
  near_golden(gold, c->name, "dv", r->dv, KV_COUNT, backward);
  if (setup->kind[0].flex->variant->sinks) near_golden(gold, c->name, "dsink", r->dsink, H, backward);
  if (fx_flex_num_tables(setup->kind[0].flex) > 0)
    near_golden(gold, c->name, "dtable", r->dtable, H * 8, backward);
  char kind[64];
  snprintf(kind, sizeof kind, "%s/", c->name);
  const float *lse = golden_get(gold, kind, "lse", B * H * T);
  for (int i = 0; lse && i < B * H * T; i++) {
    float got = r->lse[i / T * 128 + i % T];
    CHECK_MSG(isinf(lse[i]) ? got == lse[i] : fabsf(got - lse[i]) <= 4e-6f, "%s: lse %d is %g, not %g",
              c->name, i, (double)got, (double)lse[i]);
  }
}

static void check_variant(const golden *gold, const variant_case *c, const char *compiler) {
  char yaml[1024];
  fx_config *config = NULL;
  fx_attention_setup *setup = NULL;
  snprintf(yaml, sizeof yaml,
           "model: {model_type: llama, vocab_size: 64, hidden_size: 16, num_hidden_layers: 1, "
           "num_attention_heads: 2, "
           "num_key_value_heads: 1, intermediate_size: 16}\nattention: %s\n"
           "train: {seq_length: 28, micro_batch_size: 2, global_batch_size: 2}\nruntime: {compiler: %s}\n",
           c->attention, compiler);
  if (!CHECK_OK(fx_config_parse(yaml, c->name, &config))) return;
  if (!CHECK_OK(fx_attention_setup_create(config, FX_BACKEND_CPU, B, T, &setup))) return;
  const fx_tile_kernel *kernel = setup->kind[0].flex->kernel;
  CHECK(!kernel || fx_tile_kernel_is_compiled(kernel) == (strcmp(compiler, "none") != 0));
  void *memory[FX_ATTENTION_MAX_FIELDS], *scratch = NULL;
  for (int i = 0; i < setup->num_fields; i++)
    memory[i] = aligned_alloc(FX_ALIGN, fx_align_up((size_t)setup->field[i].words * 4, FX_ALIGN));
  CHECK_OK(fx_alloc_aligned(&scratch, setup->scratch_bytes + FX_ALIGN));
  int32_t positions[B * T];
  const int32_t *start = golden_get(gold, "", "doc_start", B * T);
  for (int i = 0; i < B * T; i++) positions[i] = i % T - start[i];
  fx_attention_batch batch = {golden_get(gold, "", "tokens", B * T), positions, start,
                              golden_get(gold, "", "doc_end", B * T)};
  CHECK_OK(fx_attention_fill(setup, &batch, memory, scratch));
  float dlse[B * H * 128] = {0};
  const float *given = golden_get(gold, "", "dlse", B * H * T);
  for (int i = 0; i < B * H * T; i++) dlse[i / T * 128 + i % T] = given[i];
  results *r = calloc(1, sizeof *r);
  attend(gold, setup, memory, dlse, r);
  check_results(gold, c, setup, r);
  free(r), free(scratch);
  for (int i = 0; i < setup->num_fields; i++) free(memory[i]);
  fx_attention_setup_destroy(setup);
  fx_config_destroy(config);
}

static void all_variants(const char *compiler) {
  golden gold;
  if (!golden_load(&gold, "flex")) return;
  for (size_t i = 0; i < sizeof g_cases / sizeof g_cases[0]; i++) check_variant(&gold, &g_cases[i], compiler);
  golden_free(&gold);
}
static void compiled(void) {
  all_variants("cc");
}
static void interpreted(void) {
  all_variants("none");
}

static const fx_test g_tests[] = {
    {"compiled", compiled},
    {"interpreted", interpreted},
};
FX_TEST_MAIN("variants against PyTorch FlexAttention", g_tests)
