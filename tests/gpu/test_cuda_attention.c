/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels of attention against a dense reference in double: variants by head dimension, type,
 * grouping, odd lengths, empty rows, run lists or none, limits of two intervals, queries that are a part of
 * the sequence. Inputs are slices of a fused buffer, outputs are poisoned, everything runs
 * twice and must give the same bits. Bounds are of relative norms, by the unit roundoff u of the type: out is
 * rounded once and P once (2 u with room), gradients come through rounded P, dS and out. FX_SLICE=i/n runs
 * every n-th case. */
#define FLEX_REFERENCE_T 530
#include "tests/gpu/attention_case.h"

#define TABLE "buffers: {bias: {shape: [H, 9], learnable: true}}"
static const variant_case g_cases[] = {
    {"full", "{variant: full}", 130, 4, 2, 0, true, false},
    {"full, one row", "{variant: full}", 1, 2, 2, 0, true, false},
    {"causal", "{variant: causal}", 257, 4, 2, 0, true, false},
    {"causal, no runs", "{variant: causal}", 300, 4, 1, 0, false, false},
    {"causal, part", "{variant: causal}", 290, 2, 1, 128, false, false},
    {"document_causal", "{variant: document_causal}", 300, 2, 2, 0, true, false},
    {"document, no runs", "{variant: document}", 193, 4, 4, 0, false, false},
    {"two intervals", "{mask: 'kv < 5 || (q - kv < 40 && q >= kv)'}", 257, 2, 1, 0, false, true},
    {"two, asked", "{mask: 'kv < 5 || (q - kv < 40 && q >= kv)'}", 200, 2, 1, 0, true, false},
    {"empty rows", "{mask: 'q >= kv + 70', sinks: true}", 200, 4, 2, 0, true, false},
    {"empty rows, no sink", "{mask: 'q >= kv + 70'}", 200, 4, 2, 0, false, false},
    {"expression", "{mask: '(q - kv) % 3 == 1 && (h % 2 == 0 || doc_id[q] == doc_id[kv])'}", 150, 4, 2, 0,
     true, false},
    {"expression, part", "{mask: 'abs(q % 13 - kv % 13) < 3 && turn[q] - turn[kv] < 2'}", 260, 2, 2, 128,
     false, false},
    {"softcap, sinks", "{mask: 'q >= kv', score: 'cap * tanh(score / cap)', params: {cap: 2.5}, sinks: true}",
     257, 4, 2, 0, true, false},
    {"alibi", "{mask: 'q >= kv', score: 'score - slope * float(abs(q - kv))', params: {slope: 0.1}}", 140, 2,
     1, 0, false, false},
    {"table", "{mask: 'q >= kv', score: 'score + bias[h, max(0, min(8, q - kv + 4))]', " TABLE "}", 150, 4, 2,
     0, true, false},
    {"table, capped",
     "{score: 'cap * tanh((score + bias[h, (q + kv) % 9]) / cap)', params: {cap: 3.5}, sinks: true, " TABLE
     "}",
     100, 2, 2, 0, false, false},
    {"wide group", "{variant: causal}", 290, 60, 1, 0, true, false},
    {"window, nine blocks", "{variant: sliding_window, params: {window: 300}}", 530, 2, 1, 0, true, false},
    {"far is -inf", "{score: 'score + log(float(max(0, 40 - abs(q - kv))))'}", 131, 2, 1, 0, true, false},
};
enum { CASES = sizeof g_cases / sizeof g_cases[0] };

/* ---- runs ---- */

/* What one run left, in the bytes of the type. */
typedef struct outcome {
  unsigned char *out, *grads;
  float *lse, *dsink, *dtable;
  size_t out_bytes, grads_bytes, lse_bytes;
} outcome;

static outcome solve(const problem *p) {
  arena a = {.count = 0};
  static call forward, backward;
  memset(&forward, 0, sizeof forward), memset(&backward, 0, sizeof backward);
  const flex_case *c = &p->c;
  int Tpad = fx_attention_tpad(p->T_q);
  size_t element = fx_dtype_bytes(p->dtype), table = (size_t)(c->H * BUCKETS) * 4;
  fx_type rows = fx_type_of(p->dtype, 4, (int64_t[]){c->B, p->T_q, c->H, c->D});
  fx_type lse = fx_type_3d(FX_F32, c->B, c->H, Tpad);
  outcome r = {.out_bytes = fx_type_bytes(&rows), .lse_bytes = fx_type_bytes(&lse)};
  r.grads_bytes = (size_t)c->B * (size_t)c->T * (size_t)((c->H + 2 * c->K) * c->D) * element;
  void *fused = fused_inputs(p, &a), *grads = fresh(&a, r.grads_bytes);
  set_views(p, &forward, fused, false), set_views(p, &backward, fused, false),
      set_views(p, &backward, grads, true);
  set_mask(p, &a, &forward, false), set_mask(p, &a, &backward, true);
  set_out(&forward, 0, fresh(&a, r.out_bytes), rows), set_out(&forward, 1, fresh(&a, r.lse_bytes), lse);
  launch(&forward, fx_flex_attention_cuda);
  set_in(&backward, IN_OWN, forward.out[0].data, rows),
      set_in(&backward, IN_OWN + 1, forward.out[1].data, lse);
  set_in(&backward, IN_OWN + 2, upload_rows(p, &a, c->dout, (int64_t)c->H * c->D), rows);
  set_in(&backward, IN_OWN + 3, upload_dlse(p, &a), lse);
  void *dsink = fresh(&a, (size_t)c->H * 4), *dtable = fresh(&a, table);
  if (backward.args.in[IN_SINKS]) set_out(&backward, 3, dsink, fx_type_1d(FX_F32, c->H));
  if (backward.args.in[IN_TABLE]) set_out(&backward, 4, dtable, fx_type_1d(FX_F32, c->H * BUCKETS));
  const fx_type *in[FX_MAX_IN] = {&backward.in[0].type, &backward.in[1].type, &backward.in[2].type};
  backward.args.workspace = fresh(&a, fx_flex_attention_grad_workspace_cuda(in, NULL, &backward.attr, 0));
  launch(&backward, fx_flex_attention_grad_cuda);
  r.out = download(forward.out[0].data, r.out_bytes), r.lse = download(forward.out[1].data, r.lse_bytes);
  r.grads = download(grads, r.grads_bytes);
  r.dsink = download(dsink, (size_t)c->H * 4), r.dtable = download(dtable, table);
  arena_free(&a);
  return r;
}

static void outcome_free(outcome *r) {
  free(r->out), free(r->lse), free(r->grads), free(r->dsink), free(r->dtable);
}

static void compare_all(const problem *p, const outcome *r, const reference *ref) {
  const flex_case *c = &p->c;
  const fx_variant *v = p->setup->kind[0].flex->variant;
  int q = c->H * c->D, k = c->K * c->D, width = q + 2 * k, from = p->of->q_from;
  compare_part(p, OUT, r->out, p->T_q, from, q, 0, q, ref->out, ref->highest);
  compare_lse(p, r->lse, ref->lse, ref->highest);
  compare_part(p, DQ, r->grads, c->T, from, width, 0, q, ref->dq, ref->highest);
  compare_part(p, DK, r->grads, c->T, 0, width, q, k, ref->dk, ref->highest);
  compare_part(p, DV, r->grads, c->T, 0, width, q + k, k, ref->dv, ref->highest);
  if (v->sinks) compare(p, DSINK, r->dsink, ref->dsink, c->H, ref->highest);
  if (v->num_tables) compare(p, DTABLE, r->dtable, ref->dtable, c->H * BUCKETS, ref->highest);
}

static void compare_runs(const problem *p, const outcome *x, const outcome *y) {
  bool same = memcmp(x->out, y->out, x->out_bytes) == 0 && memcmp(x->lse, y->lse, x->lse_bytes) == 0 &&
              memcmp(x->grads, y->grads, x->grads_bytes) == 0 &&
              memcmp(x->dsink, y->dsink, (size_t)p->c.H * 4) == 0;
  CHECK_MSG(same, "%s, D %d, %s: two runs differ", p->of->name, p->c.D, fx_dtype_name(p->dtype));
}

static void one_problem(const variant_case *of, int D, fx_dtype dtype) {
  problem p;
  if (problem_create(of, D, dtype, &p)) {
    outcome first = solve(&p), second = solve(&p);
    reference ref = reference_solve(&p.c, p.setup->kind[0].flex->variant);
    compare_all(&p, &first, &ref);
    compare_runs(&p, &first, &second);
    reference_free(&ref);
    outcome_free(&first), outcome_free(&second);
  }
  problem_free(&p);
}

/* Every variant at every head dimension in the 16-bit types, which have kernels of their own on sm_90a; in
 * fp32 at one head dimension or another. */
static void grid(void) {
  int index, of, number = 0;
  fx_test_slice(&index, &of);
  for (int v = 0; v < CASES; v++)
    for (int t = 0; t < 3; t++)
      for (int d = 0; d < 4; d++) {
        if (g_dtypes[t] == FX_F32 && (d + v) % 4 != 0) continue;
        if (number++ % of == index) one_problem(&g_cases[v], g_dims[d], g_dtypes[t]);
      }
}

static const fx_test g_tests[] = {
    {"architecture", architecture}, {"grid", grid}, {"worst relative norms", worst}};

int main(void) {
  return attention_case_main("attention on CUDA against a dense reference", g_tests,
                             (int)(sizeof g_tests / sizeof g_tests[0]));
}
