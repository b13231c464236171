/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold bit for bit: masked keys never reach a row, thread counts and run lists change nothing; and
 * chunks of keys add up to the whole. */
#include "tests/attention/reference.h"

#include <stdio.h>

static const char *const g_variants[] = {"causal", "sliding_window", "document_causal", "document", "random"};
enum { VARIANTS = 5 };

/* The results of a run, kept for a bitwise comparison. */
typedef struct results {
  float *out, *lse, *dqkv;
} results;

/* Bits, not values: -0 differs from 0 and a NaN equals itself. */
static bool same_bits(const void *a, const void *b, int64_t floats) {
  return memcmp(a, b, (size_t)floats * sizeof(float)) == 0;
}

static float *copy_of(const float *data, int64_t count) {
  return memcpy(case_room((size_t)count * sizeof(float)), data, (size_t)count * sizeof(float));
}
static results results_take(const attention_case *c) {
  return (results){copy_of(c->out, c->o_count), copy_of(c->lse, c->lse_count), copy_of(c->dqkv, c->q_count)};
}
static void results_free(results *r) {
  free(r->out), free(r->lse), free(r->dqkv);
}
static bool results_same(const attention_case *c, const results *r) {
  return same_bits(r->out, c->out, c->o_count) && same_bits(r->lse, c->lse, c->lse_count) &&
         same_bits(r->dqkv, c->dqkv, c->q_count);
}

static bool row_same(const float *a, const float *b, const fx_attention_out *view, const float *base,
                     int b_at, int t, int heads, int D) {
  int64_t at = (const float *)view->data - base + b_at * view->batch + t * view->time;
  return same_bits(a + at, b + at, (int64_t)heads * D);
}

/* K and V of key x (of sample 0) become `poison`. Every row that does not see x keeps out, lse and dq; every
 * key but x that shares no row with x keeps dk and dv; a row that does see x shows it when poison is NaN. */
static void poison_key(attention_case *c, const results *clean, int x, float poison) {
  const attention_spec *s = &c->spec;
  int64_t at = x * c->k.time, wrong = 0, unmoved = 0, excluded = 0;
  float *k = (float *)c->k.data + at, *v = (float *)c->v.data + at;
  float *before = case_room(2 * sizeof(float) * (size_t)(s->K * s->D)), *before_v = before + s->K * s->D;
  for (int i = 0; i < s->K * s->D; i++) {
    before[i] = k[i], before_v[i] = v[i];
    k[i] = v[i] = i % 3 == 1 ? -poison : poison;
  }
  case_run(c, 2, FX_ISA_AUTO);
  bool *near = case_room((size_t)s->T_kv);
  memset(near, 0, (size_t)s->T_kv);
  for (int b = 0; b < s->B; b++)
    for (int q = 0; q < s->T_q; q++) {
      bool same = row_same(c->out, clean->out, &c->o, c->out, b, q, s->H, s->D) &&
                  row_same(c->dqkv, clean->dqkv, &c->dq, c->dqkv, b, q, s->H, s->D);
      for (int h = 0; h < s->H; h++) {
        int64_t lse = (int64_t)(b * s->H + h) * c->limits.Tpad + q;
        same = same && same_bits(&c->lse[lse], &clean->lse[lse], 1);
      }
      bool sees = b == 0 && case_sees(c, b, q, x);
      if (sees)
        for (int n = 0; n < s->T_kv; n++) near[n] |= case_sees(c, b, q, n);
      wrong += !sees && !same, excluded += !sees;
      unmoved += sees && same && isnan(poison);
    }
  for (int n = 0; n < s->T_kv; n++) {
    if (near[n] || n == x) continue;
    wrong += !row_same(c->dqkv, clean->dqkv, &c->dk, c->dqkv, 0, n, s->K, s->D);
    wrong += !row_same(c->dqkv, clean->dqkv, &c->dv, c->dqkv, 0, n, s->K, s->D);
  }
  CHECK_MSG(
      wrong == 0 && unmoved == 0 && excluded > 0,
      "%s, key %d = %g: %lld rows changed that do not see it, %lld did not change that do (of %lld unseeing)",
      s->variant, x, (double)poison, (long long)wrong, (long long)unmoved, (long long)excluded);
  memcpy(k, before, sizeof(float) * (size_t)(s->K * s->D));
  memcpy(v, before_v, sizeof(float) * (size_t)(s->K * s->D));
  free(before), free(near);
}

static void masked_keys_never_matter(void) {
  static const int keys[] = {0, 1, 63, 64, 65, 100, 128, 200, 259};
  for (int v = 0; v < VARIANTS; v++)
    for (int D = 8; D <= 80; D += 36) {
      attention_case c =
          case_create((attention_spec){g_variants[v], 2, 260, 260, 2, 1, D / 8 * 8, 37, v % 2 == 0, true});
      case_run(&c, 2, FX_ISA_AUTO);
      results clean = results_take(&c);
      for (int i = 0; i < 9; i++) {
        poison_key(&c, &clean, keys[i], NAN);
        poison_key(&c, &clean, keys[i], INFINITY);
        poison_key(&c, &clean, keys[i], 1e30f);
      }
      results_free(&clean);
      case_destroy(&c);
    }
}

/* Documents do not leak: whatever the others hold, one document's rows and gradients stay. */
static void documents_do_not_leak(void) {
  attention_case c = case_create((attention_spec){"document_causal", 1, 333, 333, 4, 2, 64, 1, true, true});
  case_run(&c, 2, FX_ISA_AUTO);
  results clean = results_take(&c);
  for (int from = 0, to; from < 333; from = to) {
    to = c.documents[333 + from];
    float *saved = copy_of(c.qkv, c.q_count);
    for (int t = 0; t < 333; t++)
      for (int i = 0; i < c.spec.K * c.spec.D; i++)
        if (t < from || t >= to)
          ((float *)c.k.data)[t * c.k.time + i] = ((float *)c.v.data)[t * c.v.time + i] = -1e30f;
    case_run(&c, 2, FX_ISA_AUTO);
    int64_t wrong = 0;
    for (int t = from; t < to; t++)
      wrong += !same_bits(c.out + t * c.o.time, clean.out + t * c.o.time, 4 * 64) ||
               !same_bits(c.dqkv + t * c.dq.time, clean.dqkv + t * c.dq.time, 8 * 64);
    CHECK_MSG(wrong == 0, "document %d..%d: %lld positions changed", from, to, (long long)wrong);
    memcpy(c.qkv, saved, (size_t)c.q_count * sizeof(float));
    free(saved);
  }
  results_free(&clean);
  case_destroy(&c);
}

/* Garbage in q and dout of rows that see nothing reaches nobody; their own results are 0 and -inf. */
static void empty_rows(void) {
  attention_case c = case_create((attention_spec){"random", 2, 260, 260, 2, 1, 40, 1, false, true});
  case_run(&c, 2, FX_ISA_AUTO);
  results clean = results_take(&c);
  int64_t empty = 0, nonzero = 0;
  for (int b = 0; b < 2; b++)
    for (int q = 0; q < 260; q++) {
      if (case_sees(&c, b, q, c.limits.lo[b * c.limits.Tpad + q])) continue;
      empty++;
      for (int i = 0; i < 80; i++) {
        nonzero +=
            c.out[b * c.o.batch + q * c.o.time + i] != 0 || c.dqkv[b * c.dq.batch + q * c.dq.time + i] != 0;
        c.qkv[b * c.q.batch + q * c.q.time + i] = c.dout[b * c.gradient.batch + q * c.gradient.time + i] =
            NAN;
      }
      for (int h = 0; h < 2; h++) nonzero += c.lse[(b * 2 + h) * c.limits.Tpad + q] != -INFINITY;
    }
  CHECK(empty > 20);
  CHECK_INT(nonzero, 0);
  case_run(&c, 2, FX_ISA_AUTO);
  CHECK(results_same(&c, &clean));
  results_free(&clean);
  case_destroy(&c);
}

/* At least 8 key tiles and several splits of the backward, so that there is something to race for. */
static void threads_do_not_matter(void) {
  for (int v = 0; v < VARIANTS; v++) {
    attention_case c =
        case_create((attention_spec){g_variants[v], 1, 1100, 1100, 4, 2, 32, 400, false, true});
    CHECK(fx_attention_cpu_workspace(FX_ATTENTION_BACKWARD, &c.shape, 1) >
          (size_t)4 * 1100 * 4 * 32 * sizeof(float));
    case_run(&c, 1, FX_ISA_AUTO);
    results one = results_take(&c);
    for (int threads = 2; threads <= 4; threads++) {
      memset(c.workspace, 0x7F, fx_attention_cpu_workspace(FX_ATTENTION_BACKWARD, &c.shape, threads));
      case_run(&c, threads, FX_ISA_AUTO);
      CHECK_MSG(results_same(&c, &one), "%s: %d threads differ from 1", g_variants[v], threads);
    }
    c.spec.runs = true;
    case_run(&c, 2, FX_ISA_AUTO);
    CHECK_MSG(results_same(&c, &one), "%s: run lists change results", g_variants[v]);
    results_free(&one);
    case_destroy(&c);
  }
}

/* Chunks [cuts[i], cuts[i + 1]) of keys in the order given, forward through partial and finalize, backward a
 * chunk at a time; compared with the whole. */
typedef struct ring {
  attention_case *c;
  fx_attention_state state;
  float *dq; /* the sum of the chunks' dq, laid out as dqkv */
} ring;

static fx_attention_shape chunk_shape(const ring *r, int from, int to, fx_attention_pass pass,
                                      fx_runs *runs) {
  attention_case *c = r->c;
  fx_attention_shape shape = c->shape;
  shape.T_kv = to - from, shape.kv_base = from, shape.limits = &c->limits, shape.threads = 2;
  fx_attention_tile tile = fx_attention_cpu_tile(pass, c->spec.D);
  *runs = fx_runs_plan(c->limits.Bm, c->spec.T_q, to - from, tile.q, tile.kv, 3);
  runs->kv_base = from;
  fx_runs_bind(runs, case_room(fx_runs_bytes(runs)));
  CHECK_OK(fx_runs_build(&c->limits, runs));
  shape.runs = c->spec.runs ? runs : NULL;
  return shape;
}

static void ring_chunk_forward(ring *r, int from, int to, bool first) {
  attention_case *c = r->c;
  fx_runs runs;
  fx_attention_partial p = {.q = c->q, .k = c->k, .v = c->v, .state = r->state, .first = first};
  p.shape = chunk_shape(r, from, to, FX_ATTENTION_FORWARD, &runs);
  p.workspace = c->workspace;
  p.k.data = (const float *)p.k.data + from * c->k.time,
  p.v.data = (const float *)p.v.data + from * c->v.time;
  CHECK_OK(fx_attention_cpu_partial(&p));
  free(runs.run);
}

static void ring_chunk_backward(ring *r, int from, int to) {
  attention_case *c = r->c;
  fx_runs runs;
  fx_attention_backward g = {
      .q = c->q, .k = c->k, .v = c->v, .dout = c->gradient, .lse = c->lse, .dlse = c->dlse};
  g.shape = chunk_shape(r, from, to, FX_ATTENTION_BACKWARD, &runs);
  g.out = (fx_attention_in){c->o.data, c->o.batch, c->o.time, c->o.head, FX_F32};
  g.dq = c->dq, g.dk = c->dk, g.dv = c->dv, g.workspace = c->workspace;
  g.k.data = (const float *)g.k.data + from * c->k.time,
  g.v.data = (const float *)g.v.data + from * c->v.time;
  g.dk.data = (float *)g.dk.data + from * c->dk.time, g.dv.data = (float *)g.dv.data + from * c->dv.time;
  CHECK_OK(fx_attention_cpu_backward(&g));
  int width = c->spec.H * c->spec.D;
  for (int b = 0; b < c->spec.B; b++)
    for (int t = 0; t < c->spec.T_q; t++)
      for (int i = 0; i < width; i++) {
        int64_t at = b * c->dq.batch + t * c->dq.time + i;
        r->dq[at] += c->dqkv[at];
      }
  free(runs.run);
}

/* Relative L2 over all heads' data of a view (spare floats left out). */
static double distance(const attention_case *c, const fx_attention_out *view, const float *base,
                       const float *got, const float *want, int heads) {
  double error = 0, norm = 0;
  for (int b = 0; b < c->spec.B; b++)
    for (int t = 0; t < c->spec.T_q; t++)
      for (int i = 0; i < heads * c->spec.D; i++) {
        int64_t at = (const float *)view->data - base + b * view->batch + t * view->time + i;
        error += pow((double)got[at] - (double)want[at], 2);
        norm += pow((double)want[at], 2);
      }
  return sqrt(error / norm);
}

static void chunks_add_up(void) {
  static const int cuts[] = {0, 77, 205, 333}, orders[][3] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
  for (int v = 0; v < VARIANTS; v++)
    for (int order = 0; order < 3; order++) {
      attention_case c =
          case_create((attention_spec){g_variants[v], 2, 333, 333, 4, 2, 64, 90, order != 1, true});
      case_run(&c, 2, FX_ISA_AUTO);
      results whole = results_take(&c);
      ring r = {.c = &c, .dq = case_room((size_t)c.q_count * sizeof(float))};
      r.state =
          (fx_attention_state){c.o, case_room((size_t)c.lse_count * 4), case_room((size_t)c.lse_count * 4)};
      case_poison(c.out, c.o_count), case_poison(c.lse, c.lse_count), case_poison(c.dqkv, c.q_count);
      case_poison(r.state.m, c.lse_count), case_poison(r.state.l, c.lse_count);
      memset(r.dq, 0, (size_t)c.q_count * sizeof(float));
      for (int i = 0; i < 3; i++)
        ring_chunk_forward(&r, cuts[orders[order][i]], cuts[orders[order][i] + 1], i == 0);
      CHECK_OK(fx_attention_cpu_finalize(&c.shape, &r.state, NULL, c.o, c.lse));
      for (int i = 0; i < 3; i++) ring_chunk_backward(&r, cuts[i], cuts[i + 1]);
      double off[] = {distance(&c, &c.o, c.out, c.out, whole.out, 4),
                      distance(&c, &c.dq, c.dqkv, r.dq, whole.dqkv, 4),
                      distance(&c, &c.dk, c.dqkv, c.dqkv, whole.dqkv, 2),
                      distance(&c, &c.dv, c.dqkv, c.dqkv, whole.dqkv, 2)};
      for (int i = 0; i < 4; i++)
        CHECK_MSG(off[i] <= 2e-6, "%s, order %d, result %d: chunks differ from the whole by %g",
                  g_variants[v], order, i, off[i]);
      int64_t wrong = 0;
      for (int64_t i = 0; i < c.lse_count; i++)
        wrong += isinf(whole.lse[i]) ? c.lse[i] != whole.lse[i] : !(fabsf(c.lse[i] - whole.lse[i]) <= 8e-6f);
      CHECK_INT(wrong, 0);
      free(r.state.m), free(r.state.l), free(r.dq);
      results_free(&whole);
      case_destroy(&c);
    }
}

/* A chunk that nobody sees leaves the state as it was, bit for bit, NaN keys or not; one chunk and finalize
 * give the forward's bits. */
static void unseen_chunk(void) {
  attention_case c = case_create((attention_spec){"causal", 1, 150, 150, 2, 2, 24, 1, false, true});
  case_run(&c, 1, FX_ISA_AUTO);
  results whole = results_take(&c);
  ring r = {.c = &c};
  r.state = (fx_attention_state){c.o, case_room((size_t)c.lse_count * 4), case_room((size_t)c.lse_count * 4)};
  memset(r.state.m, 0, (size_t)c.lse_count * 4), memset(r.state.l, 0, (size_t)c.lse_count * 4);
  ring_chunk_forward(&r, 0, 150, true);
  float *o = copy_of(c.out, c.o_count), *m = copy_of(r.state.m, c.lse_count),
        *l = copy_of(r.state.l, c.lse_count);
  fx_attention_partial later = {.shape = c.shape, .q = c.q, .k = c.k, .v = c.v, .state = r.state};
  float *nan_keys = copy_of(c.qkv, c.q_count);
  case_poison(nan_keys, c.q_count);
  later.k.data = later.v.data = nan_keys;
  later.shape.limits = &c.limits, later.shape.kv_base = 150, later.workspace = c.workspace;
  CHECK_OK(fx_attention_cpu_partial(&later));
  CHECK(same_bits(o, c.out, c.o_count));
  CHECK(same_bits(m, r.state.m, c.lse_count) && same_bits(l, r.state.l, c.lse_count));
  CHECK_OK(fx_attention_cpu_finalize(&c.shape, &r.state, NULL, c.o, c.lse));
  CHECK(same_bits(c.out, whole.out, c.o_count));
  CHECK(same_bits(c.lse, whole.lse, c.lse_count));
  free(o), free(m), free(l), free(nan_keys), free(r.state.m), free(r.state.l);
  results_free(&whole);
  case_destroy(&c);
}

static const fx_test g_tests[] = {
    {"masked keys never matter", masked_keys_never_matter},
    {"documents do not leak", documents_do_not_leak},
    {"empty rows", empty_rows},
    {"threads do not matter", threads_do_not_matter},
    {"chunks add up", chunks_add_up},
    {"unseen chunk", unseen_chunk},
};
FX_TEST_MAIN("flash attention on the CPU: bitwise properties", g_tests)
