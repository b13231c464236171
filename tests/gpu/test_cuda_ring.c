/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on CUDA one chunk of keys at a time, as a ring runs it, against the dense reference: partial
 * results merged in place, gradients added to running sums. */
#include "tests/gpu/attention_case.h"

/* A call for keys [from, to) and the bases of their blocks, without sinks. */
static void set_chunk(const problem *p, arena *a, void *fused, int from, int to, bool backward, call *c) {
  memset(c, 0, sizeof *c);
  set_views(p, c, fused, false);
  for (int part = 1; part < 3; part++) {
    fx_type type;
    void *data = part_of(p, fused, part, from, to - from, &type);
    set_in(c, part, data, type);
  }
  set_mask(p, a, c, backward);
  c->args.in[IN_SINKS] = NULL;
  int32_t bases[8];
  for (int i = 0; i < 8; i++) bases[i] = from + 128 * i;
  set_in(c, IN_KV_BASE, upload(a, bases, sizeof bases), fx_type_1d(FX_I32, (to - from + 127) / 128));
}

/* Keys [from, to) merged into the state. */
static void merge(const problem *p, arena *a, void *fused, const fx_tensor state[3], int from, int to,
                  bool first) {
  static call c;
  set_chunk(p, a, fused, from, to, false, &c);
  for (int i = 0; i < 3; i++) set_out(&c, i, state[i].data, state[i].type);
  c.attr.partial.first = first;
  launch(&c, fx_flex_attention_partial_cuda);
}

/* What keys [from, to) add to dq, and their own dk, dv [B, to - from, K, D], each added twice. */
static void add_gradients(const problem *p, arena *a, void *fused, const call *finish, const fx_tensor *dq,
                          int from, int to, fx_tensor dkv[2]) {
  static call c;
  const flex_case *of = &p->c;
  set_chunk(p, a, fused, from, to, true, &c);
  set_in(&c, IN_OWN, finish->out[0].data, finish->out[0].type);
  set_in(&c, IN_OWN + 1, finish->out[1].data, finish->out[1].type);
  set_in(&c, IN_OWN + 2, upload_rows(p, a, of->dout, (int64_t)of->H * of->D), finish->out[0].type);
  fx_type prepared = fx_type_2d(FX_F32, 3, fx_type_numel(&finish->out[1].type));
  set_in(&c, IN_OWN + 3, upload_dlse(p, a), finish->out[1].type);
  set_out(&c, 0, fresh(a, fx_type_bytes(&prepared)), prepared);
  launch(&c, fx_flex_attention_prepare_cuda);
  set_in(&c, IN_OWN + 3, c.out[0].data, prepared);
  c.args.out[0] = NULL;
  c.attr.add.parts = FX_ATTENTION_OF_KEYS;
  for (int i = 0; i < 2; i++) {
    fx_type type = fx_type_of(FX_F32, 4, (int64_t[]){of->B, to - from, of->K, of->D});
    dkv[i] = (fx_tensor){fresh(a, fx_type_bytes(&type)), type};
    set_out(&c, 1 + i, dkv[i].data, type);
  }
  for (int first = 1; first >= 0; first--) {
    c.attr.add.first = first;
    launch(&c, fx_flex_attention_grad_add_cuda);
  }
  c.args.out[1] = c.args.out[2] = NULL;
  set_out(&c, 0, dq->data, dq->type);
  c.attr.add.parts = FX_ATTENTION_OF_ROWS;
  c.attr.add.first = to == of->T; /* the first chunk that is looked at */
  launch(&c, fx_flex_attention_grad_add_cuda);
}

/* fp32 [B, rows, width], every number `times` too large, against rows from `from` on of [B, T, width]. */
static void compare_sum(const problem *p, int what, const fx_tensor *sum, int from, float times,
                        const double *want, double highest) {
  int64_t rows = sum->type.dim[1], width = sum->type.dim[2] * sum->type.dim[3], n = p->c.B * rows * width;
  float *got = download(sum->data, fx_type_bytes(&sum->type));
  double *part = malloc((size_t)n * sizeof *part);
  for (int64_t i = 0; i < n; i++) got[i] /= times;
  for (int64_t b = 0; b < p->c.B; b++)
    memcpy(part + b * rows * width, want + (b * p->c.T + from) * width,
           (size_t)(rows * width) * sizeof *part);
  compare(p, what, got, part, n, highest);
  free(got), free(part);
}

static void ring_gradients(const problem *p, arena *a, void *fused, const call *finish,
                           const reference *ref) {
  fx_type type = fx_type_of(FX_F32, 4, (int64_t[]){p->c.B, p->T_q, p->c.H, p->c.D});
  fx_tensor dq = {fresh(a, fx_type_bytes(&type)), type}, dkv[2];
  static const int ends[] = {128, 0};
  for (int chunk = 0; chunk < 2; chunk++) {
    add_gradients(p, a, fused, finish, &dq, ends[chunk], chunk == 0 ? p->c.T : 128, dkv);
    compare_sum(p, DK, &dkv[0], ends[chunk], 2, ref->dk, ref->highest);
    compare_sum(p, DV, &dkv[1], ends[chunk], 2, ref->dv, ref->highest);
  }
  compare_sum(p, DQ, &dq, p->of->q_from, 1, ref->dq, ref->highest);
}

static void ring_problem(const variant_case *of, int D, fx_dtype dtype) {
  problem p;
  arena a = {.count = 0};
  static call finish;
  if (problem_create(of, D, dtype, &p)) {
    const flex_case *c = &p.c;
    memset(&finish, 0, sizeof finish);
    fx_type rows = fx_type_of(dtype, 4, (int64_t[]){c->B, p.T_q, c->H, D}), wide = rows;
    fx_type lse = fx_type_3d(FX_F32, c->B, c->H, fx_attention_tpad(p.T_q));
    wide.dtype = FX_F32;
    void *fused = fused_inputs(&p, &a);
    fx_tensor state[3] = {{fresh(&a, fx_type_bytes(&wide)), wide},
                          {fresh(&a, fx_type_bytes(&lse)), lse},
                          {fresh(&a, fx_type_bytes(&lse)), lse}};
    merge(&p, &a, fused, state, 128, c->T, true);
    merge(&p, &a, fused, state, 0, 128, false);
    for (int i = 0; i < 3; i++) set_in(&finish, i, state[i].data, state[i].type);
    if (p.setup->kind[0].flex->variant->sinks)
      set_in(&finish, 3, upload(&a, c->sink, (size_t)c->H * 4), fx_type_1d(FX_F32, c->H));
    set_out(&finish, 0, fresh(&a, fx_type_bytes(&rows)), rows);
    set_out(&finish, 1, fresh(&a, fx_type_bytes(&lse)), lse);
    launch(&finish, fx_flex_attention_finish_cuda);
    unsigned char *out = download(finish.out[0].data, fx_type_bytes(&rows));
    float *got = download(finish.out[1].data, fx_type_bytes(&lse));
    reference ref = reference_solve(c, p.setup->kind[0].flex->variant);
    compare_part(&p, OUT, out, p.T_q, of->q_from, c->H * D, 0, c->H * D, ref.out, ref.highest);
    compare_lse(&p, got, ref.lse, ref.highest);
    ring_gradients(&p, &a, fused, &finish, &ref);
    reference_free(&ref);
    free(out), free(got);
  }
  arena_free(&a);
  problem_free(&p);
}

/* The 16-bit types, which have kernels of their own on sm_90a, at every head dimension; fp32 at one of them.
 */
static void ring(void) {
  static const variant_case cases[] = {
      {"ring, causal", "{variant: causal}", 257, 4, 2, 0, false, false},
      {"ring, sinks", "{mask: 'q % 40 > 2 && q >= kv', score: 'score * s', params: {s: 0.7}, sinks: true}",
       200, 2, 1, 0, false, false},
      {"ring, part", "{variant: document_causal}", 300, 2, 2, 128, false, false}};
  int index, of, number = 0;
  fx_test_slice(&index, &of);
  for (int i = 0; i < 3; i++)
    for (int t = 0; t < 3; t++)
      for (int d = 0; d < 4; d++) {
        if (g_dtypes[t] == FX_F32 && (d + i) % 4 != 0) continue;
        if (number++ % of == index) ring_problem(&cases[i], g_dims[d], g_dtypes[t]);
      }
}

static const fx_test g_tests[] = {
    {"architecture", architecture}, {"ring", ring}, {"worst relative norms", worst}};

int main(void) {
  return attention_case_main("chunks of attention on CUDA against a dense reference", g_tests,
                             (int)(sizeof g_tests / sizeof g_tests[0]));
}
