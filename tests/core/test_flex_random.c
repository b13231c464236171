/* SPDX-License-Identifier: Apache-2.0 */
/* Random compositions of masks and scores over random shapes, through YAML, set-up, mask building and the op,
 * against a dense reference in double: out, lse and all gradients. Every case prints its seed and text when
 * it fails; FX_SEED runs one alone. Rows are compared one by one (forward) and whole tensors (gradients);
 * tables come through reads whose derivative is 1 or less, so that the reference needs no derivation of its
 * own but the slope. */
#include "dynamo_rt/base/philox.h"
#include "tests/core/flex_reference.h"

enum { CASES = 240 };

typedef struct rng {
  uint64_t seed, at;
} rng;

static int below(rng *r, int n) {
  return (int)(fx_philox_at(r->seed, 77, r->at++, 0).word[0] % (uint32_t)n);
}

/* ---- texts ---- */

static void atom(rng *r, int T, char *out, size_t size) {
  int a = 1 + below(r, T), b = 1 + below(r, 9);
  switch (below(r, 14)) {
  case 0:
    snprintf(out, size, "q >= kv");
    break;
  case 1:
    snprintf(out, size, "q - kv < %d", a);
    break;
  case 2:
    snprintf(out, size, "kv < %d", a);
    break;
  case 3:
    snprintf(out, size, "doc_id[q] == doc_id[kv]");
    break;
  case 4:
    snprintf(out, size, "kv >= doc_start[q]");
    break;
  case 5:
    snprintf(out, size, "kv < doc_end[q] - %d", b);
    break;
  case 6:
    snprintf(out, size, "q / %d == kv / %d", b + 3, b + 3);
    break;
  case 7:
    snprintf(out, size, "(q - kv) %% %d == %d", b + 1, below(r, b + 1));
    break;
  case 8:
    snprintf(out, size, "abs(q - kv) <= %d", a);
    break;
  case 9:
    snprintf(out, size, "h %% 2 == 0 || q - kv < %d", b);
    break;
  case 10:
    snprintf(out, size, "abs(q %% %d - kv %% %d) < 3", b + 9, b + 9);
    break;
  case 11:
    snprintf(out, size, "turn[q] - turn[kv] < 2");
    break;
  case 12:
    snprintf(out, size, "role[kv] == 0");
    break;
  default:
    snprintf(out, size, "kv != %d", below(r, T));
    break;
  }
}

static void mask_text(rng *r, int T, int depth, char *out, size_t size) {
  char left[600], right[600];
  int kind = depth == 0 ? 0 : below(r, 5);
  if (kind <= 1) {
    atom(r, T, out, size);
    return;
  }
  mask_text(r, T, depth - 1, left, sizeof left);
  if (kind == 4) {
    snprintf(out, size, "!(%.500s)", left);
    return;
  }
  mask_text(r, T, depth - 1, right, sizeof right);
  snprintf(out, size, "(%.280s) %s (%.280s)", left, kind == 2 ? "&&" : "||", right);
}

static void score_text(rng *r, char *out, size_t size) {
  static const char *const parts[] = {"score",
                                      "cap * tanh(score / cap)",
                                      "score - slope * float(abs(q - kv))",
                                      "score * slope",
                                      "score + bias[h, max(0, min(8, q - kv + 4))]",
                                      "cap * tanh((score + bias[h, (q + kv) % 9]) / cap)",
                                      "score + exp(-slope * float(abs(q - kv))) * sigmoid(score)",
                                      "q % 3 == 0 ? score : score * 0.5",
                                      "max(score, slope) - sqrt(1.0 + score * score)"};
  snprintf(out, size, "%s", parts[below(r, 9)]);
}

/* Parameters and buffers that nothing reads are refused. */
static void attention_text(rng *r, const char *mask, const char *score, char *out, size_t size) {
  char cap[40] = "", slope[40] = "";
  if (strstr(score, "cap")) snprintf(cap, sizeof cap, "cap: %d.5, ", 1 + below(r, 4));
  if (strstr(score, "slope")) snprintf(slope, sizeof slope, "slope: 0.%d", 1 + below(r, 9));
  snprintf(out, size, "{mask: '%s', score: '%s', params: {%s%s}, sinks: %s%s}", mask, score, cap, slope,
           below(r, 3) ? "false" : "true",
           strstr(score, "bias") ? ", buffers: {bias: {shape: [H, 9], learnable: true}}" : "");
}

/* ---- a case ---- */

static int32_t *documents(rng *r, int B, int T, int32_t *start, int32_t *end, int32_t *tokens) {
  for (int b = 0; b < B; b++)
    for (int t = 0; t < T;) {
      int stop = t + 1 + below(r, T / 2 + 1);
      if (stop > T) stop = T;
      for (int first = t; t < stop; t++) {
        start[b * T + t] = first, end[b * T + t] = stop;
        tokens[b * T + t] = below(r, 5) == 0 ? 10 : 1;
      }
    }
  return tokens;
}

static float *normal(rng *r, int64_t count, float sigma) {
  float *x = calloc((size_t)count, sizeof *x);
  fx_fill_normal(x, count, r->seed * 100 + r->at++, sigma);
  return x;
}

static void near(const char *text, uint64_t seed, const char *what, const float *got, const double *want,
                 int64_t count, double tolerance) {
  double error = fx_relative_l2(got, want, count);
  CHECK_MSG(error <= tolerance, "seed %llu: %s: %s is off by %.3g, %.3g is allowed", (unsigned long long)seed,
            text, what, error, tolerance);
}

static void compare_case(const flex_case *c, const fx_attention_setup *setup, const flex_results *r,
                         const reference *ref, const char *text, uint64_t seed) {
  const fx_variant *v = setup->kind[0].flex->variant;
  int64_t q = (int64_t)c->B * c->T * c->H * c->D, k = (int64_t)c->B * c->T * c->K * c->D;
  double forward = 4e-7 * (4 + ref->highest), backward = 5 * forward;
  for (int64_t i = 0; i < q; i += c->D)
    near(text, seed, "a row of out", r->out + i, ref->out + i, c->D, 4 * forward);
  near(text, seed, "out", r->out, ref->out, q, forward);
  near(text, seed, "dq", r->dq, ref->dq, q, backward);
  near(text, seed, "dk", r->dk, ref->dk, k, backward);
  near(text, seed, "dv", r->dv, ref->dv, k, backward);
  if (v->sinks) near(text, seed, "dsink", r->dsink, ref->dsink, c->H, 4 * backward);
  if (v->num_tables) near(text, seed, "dtable", r->dtable, ref->dtable, c->H * BUCKETS, 4 * backward);
  int64_t wrong = 0;
  for (int64_t i = 0; i < (int64_t)c->B * c->H * c->T; i++)
    wrong += isinf(ref->lse[i]) ? (double)r->lse[i] != ref->lse[i]
                                : !(fabs((double)r->lse[i] - ref->lse[i]) <= 1e-6 * (4 + ref->highest));
  CHECK_MSG(wrong == 0, "seed %llu: %s: %lld wrong lse", (unsigned long long)seed, text, (long long)wrong);
}

static void one_case(uint64_t seed) {
  rng r = {seed, 0};
  int K = 1 + below(&r, 2), T = 1 + below(&r, seed % 8 == 0 ? MOST_T : 90);
  flex_case c = {
      .B = 1 + below(&r, 2), .T = T, .H = K * (1 + below(&r, 2)), .K = K, .D = 8 * (1 + below(&r, 5))};
  char mask[700] = "true", score[200], text[1600];
  if (below(&r, 8)) mask_text(&r, T, 3, mask, sizeof mask);
  score_text(&r, score, sizeof score);
  attention_text(&r, mask, score, text, sizeof text);
  int64_t q = (int64_t)c.B * T * c.H * c.D, k = (int64_t)c.B * T * c.K * c.D, n = (int64_t)c.B * T;
  float *arrays[] = {normal(&r, q, 2.0f),
                     normal(&r, k, 1.0f),
                     normal(&r, k, 1.0f),
                     normal(&r, q, 1.0f),
                     normal(&r, n * c.H, 1.0f),
                     normal(&r, c.H, 1.0f),
                     normal(&r, c.H * BUCKETS, 1.0f)};
  int32_t *ints = calloc((size_t)(3 * n), sizeof *ints);
  c.q = arrays[0], c.k = arrays[1], c.v = arrays[2], c.dout = arrays[3], c.dlse = arrays[4];
  c.sink = arrays[5], c.table = arrays[6];
  c.doc_start = ints, c.doc_end = ints + n;
  c.tokens = documents(&r, c.B, T, ints, ints + n, ints + 2 * n);
  fx_attention_setup *setup = flex_setup(&c, "random", text, seed % 6 ? "none" : "cc");
  if (setup) {
    flex_results got = flex_solve(&c, setup, 1 + below(&r, 3));
    reference ref = reference_solve(&c, setup->kind[0].flex->variant);
    compare_case(&c, setup, &got, &ref, text, seed);
    flex_results_free(&got);
    reference_free(&ref);
  } else {
    printf("seed %llu: %s\n", (unsigned long long)seed, text);
  }
  fx_attention_setup_destroy(setup);
  for (int i = 0; i < 7; i++) free(arrays[i]);
  free(ints);
}

static void random_variants(void) {
  const char *alone = getenv("FX_SEED");
  if (alone) {
    one_case(strtoull(alone, NULL, 10));
    return;
  }
  for (uint64_t seed = 1; seed <= FX_TEST_CASES(CASES); seed++) one_case(seed);
  printf("[seeds 1 to %d] ", FX_TEST_CASES(CASES));
}

static const fx_test g_tests[] = {{"random variants", random_variants}};
FX_TEST_MAIN("random variants against a dense reference", g_tests)
