/* SPDX-License-Identifier: Apache-2.0 */
/* Every attention variant, from its YAML to the op's results, against PyTorch FlexAttention in float64: out,
 * lse and all gradients. Values: tests/golden/make_flex.py. Compiled and interpreted tile functions; out
 * within 4e-7 (4 + max |score|) relative L2, gradients within five times that. */
#include <math.h>
#include <stdio.h>

#include "tests/core/flex_case.h"
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
                          const flex_results *r) {
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
  for (int i = 0; lse && i < B * H * T; i++)
    CHECK_MSG(isinf(lse[i]) ? r->lse[i] == lse[i] : fabsf(r->lse[i] - lse[i]) <= 4e-6f,
              "%s: lse %d is %g, not %g", c->name, i, (double)r->lse[i], (double)lse[i]);
}

static void check_variant(const golden *gold, const variant_case *c, const char *compiler) {
  flex_case problem = {.B = B, .T = T, .H = H, .K = K, .D = D};
  problem.q = golden_get(gold, "", "q", Q_COUNT), problem.dout = golden_get(gold, "", "dout", Q_COUNT);
  problem.k = golden_get(gold, "", "k", KV_COUNT), problem.v = golden_get(gold, "", "v", KV_COUNT);
  problem.dlse = golden_get(gold, "", "dlse", B * H * T);
  problem.sink = golden_get(gold, "", "sink", H), problem.table = golden_get(gold, "", "table", H * 8);
  problem.tokens = golden_get(gold, "", "tokens", B * T);
  problem.doc_start = golden_get(gold, "", "doc_start", B * T);
  problem.doc_end = golden_get(gold, "", "doc_end", B * T);
  fx_attention_setup *setup = flex_setup(&problem, c->name, c->attention, compiler);
  if (!setup) return;
  const fx_tile_kernel *kernel = setup->kind[0].flex->kernel;
  CHECK(!kernel || fx_tile_kernel_is_compiled(kernel) == (strcmp(compiler, "none") != 0));
  flex_results r = flex_solve(&problem, setup, 2);
  check_results(gold, c, setup, &r);
  flex_results_free(&r);
  fx_attention_setup_destroy(setup);
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
