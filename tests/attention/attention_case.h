/* SPDX-License-Identifier: Apache-2.0 */
/* One attention problem for tests: inputs and outputs in strided buffers, limits and runs. Scores have a
 * standard deviation of 5, V encodes the key's index, dout and dlse are random. */
#ifndef FX_TESTS_ATTENTION_CASE_H
#define FX_TESTS_ATTENTION_CASE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cpu/flash_bwd.h"
#include "attention/cpu/flash_fwd.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

typedef struct attention_spec {
  const char *variant; /* a named one, or "random": an interval a row, one in eight empty */
  int B, T_q, T_kv, H, K, D, window;
  bool runs, dlse;
} attention_spec;

typedef struct attention_case {
  attention_spec spec;
  fx_attention_shape shape;
  int32_t *documents; /* start, end */
  fx_limits limits;
  fx_runs runs[2];                               /* forward, backward */
  int64_t q_count, kv_count, o_count, lse_count; /* floats of the buffers */
  float *qkv, *kv, *dqkv, *dkv; /* fused where T_q = T_kv (then kv = qkv), else q apart from fused k, v */
  float *out, *dout, *lse, *dlse;
  fx_attention_in q, k, v;
  fx_attention_out o, dq, dk, dv;
  fx_attention_in gradient;
  void *workspace;
} attention_case;

static inline void *case_room(size_t bytes) {
  void *memory = aligned_alloc(FX_ALIGN, fx_align_up(bytes, FX_ALIGN));
  if (!memory) abort();
  return memory;
}

static inline uint64_t case_random(uint64_t *state) { /* splitmix64 */
  uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

/* Documents of lengths 1, 2, 127, 129, 37, 5, 64, starting elsewhere in the cycle in each sample. */
static inline void case_documents(int B, int T, int32_t *start, int32_t *end) {
  static const int lengths[] = {1, 2, 127, 129, 37, 5, 64};
  for (int b = 0; b < B; b++)
    for (int t = 0, i = b; t < T; i++) {
      int stop = t + lengths[i % 7] < T ? t + lengths[i % 7] : T;
      for (int at = t; at < stop; at++) start[b * T + at] = t, end[b * T + at] = stop;
      t = stop;
    }
}

/* One interval a row: full, causal, sliding_window, document_causal or document; cut to the keys by case_row.
 */
static inline void case_interval(const attention_case *c, const char *variant, int b, int q, int *lo,
                                 int *hi) {
  const attention_spec *s = &c->spec;
  const int32_t *start = c->documents + b * s->T_q, *end = start + s->B * s->T_q;
  bool document = strncmp(variant, "document", 8) == 0;
  *lo = document ? start[q] : strcmp(variant, "sliding_window") == 0 ? q - s->window + 1 : 0;
  *hi = strcmp(variant, "full") == 0 ? s->T_kv : strcmp(variant, "document") == 0 ? end[q] : q + 1;
}

static inline void case_row(attention_case *c, int b, int q, int lo, int hi) {
  int64_t at = (int64_t)b * c->limits.Tpad + q;
  if (lo < 0) lo = 0;
  if (hi > c->spec.T_kv) hi = c->spec.T_kv;
  c->limits.lo[at] = lo < hi ? lo : 0;
  c->limits.hi[at] = lo < hi ? hi : 0;
}

static inline void case_limits(attention_case *c) {
  const attention_spec *s = &c->spec;
  bool random = strcmp(s->variant, "random") == 0, document = strncmp(s->variant, "document", 8) == 0;
  c->documents = case_room(2 * sizeof(int32_t) * (size_t)(s->B * s->T_q));
  case_documents(s->B, s->T_q, c->documents, c->documents + s->B * s->T_q);
  c->limits = (fx_limits){.R = 1, .Bm = random || document ? s->B : 1, .T = s->T_q, .T_kv = s->T_kv};
  c->limits.Tpad = fx_attention_tpad(s->T_q);
  fx_limits_bind(&c->limits, case_room(fx_limits_bytes(&c->limits)));
  memset(c->limits.lo, 0, fx_limits_bytes(&c->limits));
  for (int b = 0; !random && b < c->limits.Bm; b++)
    for (int q = 0, lo, hi; q < s->T_q; q++) {
      case_interval(c, s->variant, b, q, &lo, &hi);
      case_row(c, b, q, lo, hi);
    }
  if (!random) return;
  uint64_t state = (uint64_t)s->T_q * 1000 + (uint64_t)s->T_kv;
  for (int b = 0; b < s->B; b++)
    for (int q = 0; q < s->T_q; q++) {
      int lo = (int)(case_random(&state) % (uint64_t)s->T_kv),
          hi = (int)(case_random(&state) % (uint64_t)s->T_kv);
      if (lo > hi) lo ^= hi, hi ^= lo, lo ^= hi;
      if (case_random(&state) % 8 == 0) continue;
      case_row(c, b, q, lo, hi + 1);
    }
}

static inline fx_runs case_runs(const attention_case *c, fx_attention_pass pass) {
  fx_attention_tile tile = fx_attention_cpu_tile(pass, c->spec.D);
  fx_runs runs = fx_runs_plan(c->limits.Bm, c->spec.T_q, c->spec.T_kv, tile.q, tile.kv, fx_runs_capacity(1));
  fx_runs_bind(&runs, case_room(fx_runs_bytes(&runs)));
  CHECK_OK(fx_runs_build(&c->limits, &runs));
  return runs;
}

static inline void case_fill(attention_case *c) {
  const attention_spec *s = &c->spec;
  fx_fill_normal(c->qkv, c->q_count, 1, 5.0f);
  if (c->kv != c->qkv) fx_fill_normal(c->kv, c->kv_count, 3, 1.0f);
  for (int b = 0; b < s->B; b++)
    for (int t = 0; t < s->T_kv; t++)
      for (int i = 0; i < s->K * s->D; i++) {
        int64_t at = b * c->k.batch + t * c->k.time + i;
        if (c->kv == c->qkv) ((float *)c->k.data)[at] *= 0.2f;
        ((float *)c->v.data)[at] = (float)(t % 61) / 30.0f - 1.0f + 0.5f * cosf(0.7f * (float)t + (float)i);
      }
  fx_fill_normal(c->dout, c->o_count, 4, 1.0f);
  fx_fill_normal(c->dlse, c->lse_count, 5, 1.0f);
}

/* Buffers start as NaN where the kernels write. Widths have 8 spare floats a position, which must survive. */
static inline attention_case case_create(attention_spec s) {
  attention_case c = {.spec = s};
  bool fused = s.T_q == s.T_kv;
  int64_t HD = (int64_t)s.H * s.D, KD = (int64_t)s.K * s.D;
  int64_t q_width = (fused ? HD + 2 * KD : HD) + 8, kv_width = fused ? q_width : 2 * KD + 8, o_width = HD + 8;
  c.q_count = (int64_t)s.B * s.T_q * q_width;
  c.kv_count = (int64_t)s.B * s.T_kv * kv_width;
  c.o_count = (int64_t)s.B * s.T_q * o_width;
  c.lse_count = (int64_t)s.B * s.H * fx_attention_tpad(s.T_q);
  c.qkv = case_room((size_t)c.q_count * 4), c.dqkv = case_room((size_t)c.q_count * 4);
  c.kv = fused ? c.qkv : case_room((size_t)c.kv_count * 4);
  c.dkv = fused ? c.dqkv : case_room((size_t)c.kv_count * 4);
  c.out = case_room((size_t)c.o_count * 4), c.dout = case_room((size_t)c.o_count * 4);
  c.lse = case_room((size_t)c.lse_count * 4), c.dlse = case_room((size_t)c.lse_count * 4);
  int64_t k_at = fused ? HD : 0;
  c.q = (fx_attention_in){c.qkv, s.T_q * q_width, q_width, s.D, FX_F32};
  c.k = (fx_attention_in){c.kv + k_at, s.T_kv * kv_width, kv_width, s.D, FX_F32};
  c.v = (fx_attention_in){c.kv + k_at + KD, s.T_kv * kv_width, kv_width, s.D, FX_F32};
  c.o = (fx_attention_out){c.out, s.T_q * o_width, o_width, s.D, FX_F32};
  c.gradient = (fx_attention_in){c.dout, s.T_q * o_width, o_width, s.D, FX_F32};
  c.dq = (fx_attention_out){c.dqkv, s.T_q * q_width, q_width, s.D, FX_F32};
  c.dk = (fx_attention_out){c.dkv + k_at, s.T_kv * kv_width, kv_width, s.D, FX_F32};
  c.dv = (fx_attention_out){c.dkv + k_at + KD, s.T_kv * kv_width, kv_width, s.D, FX_F32};
  case_fill(&c);
  case_limits(&c);
  c.shape = (fx_attention_shape){.B = s.B, .T_q = s.T_q, .T_kv = s.T_kv, .H = s.H, .K = s.K, .D = s.D};
  c.shape.scale = 1.0f / sqrtf((float)s.D);
  for (int pass = 0; pass < 2; pass++) c.runs[pass] = case_runs(&c, (fx_attention_pass)pass);
  size_t forward = fx_attention_cpu_workspace(FX_ATTENTION_FORWARD, &c.shape, 4),
         backward = fx_attention_cpu_workspace(FX_ATTENTION_BACKWARD, &c.shape, 4);
  c.workspace = case_room(forward > backward ? forward : backward);
  return c;
}

static inline void case_destroy(attention_case *c) {
  if (c->kv != c->qkv) free(c->kv), free(c->dkv);
  free(c->qkv), free(c->dqkv), free(c->out), free(c->dout), free(c->lse), free(c->dlse);
  free(c->limits.lo), free(c->runs[0].run), free(c->runs[1].run), free(c->documents), free(c->workspace);
}

static inline void case_poison(float *data, int64_t count) {
  for (int64_t i = 0; i < count; i++) data[i] = NAN;
}

/* Forward and backward with `threads`, outputs poisoned first. */
static inline void case_run(attention_case *c, int threads, fx_attention_isa isa) {
  case_poison(c->out, c->o_count), case_poison(c->lse, c->lse_count), case_poison(c->dqkv, c->q_count);
  if (c->dkv != c->dqkv) case_poison(c->dkv, c->kv_count);
  fx_attention_shape shape = c->shape;
  shape.threads = threads, shape.isa = isa;
  shape.limits = strcmp(c->spec.variant, "full") == 0 && !c->spec.runs ? NULL : &c->limits;
  shape.runs = c->spec.runs ? &c->runs[0] : NULL;
  fx_attention_forward f = {.shape = shape, .q = c->q, .k = c->k, .v = c->v, .out = c->o, .lse = c->lse};
  f.workspace = c->workspace;
  CHECK_OK(fx_attention_cpu_forward(&f));
  shape.runs = c->spec.runs ? &c->runs[1] : NULL;
  fx_attention_backward g = {
      .shape = shape, .q = c->q, .k = c->k, .v = c->v, .dout = c->gradient, .lse = c->lse};
  g.out = (fx_attention_in){c->o.data, c->o.batch, c->o.time, c->o.head, FX_F32};
  g.dlse = c->spec.dlse ? c->dlse : NULL;
  g.dq = c->dq, g.dk = c->dk, g.dv = c->dv, g.workspace = c->workspace;
  CHECK_OK(fx_attention_cpu_backward(&g));
}

static inline bool case_sees(const attention_case *c, int b, int q, int kv) {
  int64_t at = (c->limits.Bm == 1 ? 0 : (int64_t)b * c->limits.Tpad) + q;
  return c->limits.lo[at] <= kv && kv < c->limits.hi[at];
}

#endif
