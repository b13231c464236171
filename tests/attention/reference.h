/* SPDX-License-Identifier: Apache-2.0 */
/* The naive reference in double precision: the whole score matrix of a head, forward and gradients. */
#ifndef FX_TESTS_ATTENTION_REFERENCE_H
#define FX_TESTS_ATTENTION_REFERENCE_H

#include "tests/attention/attention_case.h"

/* A [B][heads][T][D] array of doubles. `mass` beside a gradient: the sum of its terms' magnitudes before the
 * subtraction dP - delta, the scale of the error that cancellation leaves. */
typedef struct reference {
  double *q, *k, *v, *dout;
  double *o, *lse, *dq, *dk, *dv, *dq_mass, *dk_mass;
  double *p, *dp; /* [T_q][T_kv] of one head */
  double highest; /* largest |score| */
} reference;

static inline double *reference_load(const fx_attention_in *view, int B, int heads, int T, int D) {
  double *dense = case_room(sizeof(double) * (size_t)B * (size_t)heads * (size_t)T * (size_t)D), *at = dense;
  for (int b = 0; b < B; b++)
    for (int h = 0; h < heads; h++)
      for (int t = 0; t < T; t++)
        for (int d = 0; d < D; d++)
          *at++ = (double)((const float *)view->data)[b * view->batch + h * view->head + t * view->time + d];
  return dense;
}

static inline double reference_dot(const double *a, const double *b, int n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static inline reference reference_create(const attention_case *c) {
  const attention_spec *s = &c->spec;
  reference r = {.q = reference_load(&c->q, s->B, s->H, s->T_q, s->D),
                 .k = reference_load(&c->k, s->B, s->K, s->T_kv, s->D),
                 .v = reference_load(&c->v, s->B, s->K, s->T_kv, s->D),
                 .dout = reference_load(&c->gradient, s->B, s->H, s->T_q, s->D)};
  size_t q = sizeof(double) * (size_t)(s->B * s->H * s->T_q * s->D),
         k = sizeof(double) * (size_t)(s->B * s->K * s->T_kv * s->D);
  r.o = case_room(q), r.dq = case_room(q), r.dq_mass = case_room(q);
  r.dk = case_room(k), r.dv = case_room(k), r.dk_mass = case_room(k);
  r.lse = case_room(sizeof(double) * (size_t)(s->B * s->H * s->T_q));
  r.p = case_room(sizeof(double) * (size_t)s->T_q * (size_t)s->T_kv);
  r.dp = case_room(sizeof(double) * (size_t)s->T_q * (size_t)s->T_kv);
  return r;
}

static inline void reference_destroy(reference *r) {
  free(r->q), free(r->k), free(r->v), free(r->dout), free(r->o), free(r->lse), free(r->dq), free(r->dk);
  free(r->dv), free(r->dq_mass), free(r->dk_mass), free(r->p), free(r->dp);
}

/* o, lse and p of one head. */
static inline void reference_head(const attention_case *c, reference *r, int b, int h) {
  const attention_spec *s = &c->spec;
  int D = s->D, N = s->T_kv;
  int64_t q_at = (int64_t)(b * s->H + h) * s->T_q, k_at = (int64_t)(b * s->K + h / (s->H / s->K)) * N;
  for (int q = 0; q < s->T_q; q++) {
    double *p = r->p + (int64_t)q * N, top = -INFINITY, sum = 0, *o = r->o + (q_at + q) * D;
    for (int n = 0; n < N; n++) {
      p[n] = -INFINITY;
      if (!case_sees(c, b, q, n)) continue;
      p[n] = (double)c->shape.scale * reference_dot(r->q + (q_at + q) * D, r->k + (k_at + n) * D, D);
      top = fmax(top, p[n]);
      r->highest = fmax(r->highest, fabs(p[n]));
    }
    for (int n = 0; n < N; n++) sum += p[n] = top == -INFINITY ? 0 : exp(p[n] - top);
    memset(o, 0, sizeof(double) * (size_t)D);
    for (int n = 0; n < N; n++) {
      if (p[n] == 0) continue;
      p[n] /= sum;
      for (int d = 0; d < D; d++) o[d] += p[n] * r->v[(k_at + n) * D + d];
    }
    r->lse[q_at + q] = top == -INFINITY ? -INFINITY : top + log(sum);
  }
}

/* Adds one head's gradients; reference_head has just filled p. */
static inline void reference_head_gradient(const attention_case *c, reference *r, int b, int h) {
  const attention_spec *s = &c->spec;
  int D = s->D, N = s->T_kv;
  int64_t q_at = (int64_t)(b * s->H + h) * s->T_q, k_at = (int64_t)(b * s->K + h / (s->H / s->K)) * N;
  double scale = (double)c->shape.scale;
  for (int q = 0; q < s->T_q; q++) {
    int64_t row = (q_at + q) * D;
    double slope = s->dlse ? (double)c->dlse[(int64_t)(b * s->H + h) * c->limits.Tpad + q] : 0;
    double delta = reference_dot(r->o + row, r->dout + row, D) - slope;
    for (int n = 0; n < N; n++) {
      double p = r->p[(int64_t)q * N + n];
      int64_t key = (k_at + n) * D;
      if (p == 0) continue;
      double dp = reference_dot(r->dout + row, r->v + key, D), ds = scale * p * (dp - delta),
             mass = scale * p * (fabs(dp) + fabs(delta));
      for (int d = 0; d < D; d++) {
        r->dv[key + d] += p * r->dout[row + d];
        r->dk[key + d] += ds * r->q[row + d];
        r->dq[row + d] += ds * r->k[key + d];
        r->dk_mass[key + d] += mass * fabs(r->q[row + d]);
        r->dq_mass[row + d] += mass * fabs(r->k[key + d]);
      }
    }
  }
}

static inline void reference_run(const attention_case *c, reference *r) {
  const attention_spec *s = &c->spec;
  size_t q = sizeof(double) * (size_t)(s->B * s->H * s->T_q * s->D),
         k = sizeof(double) * (size_t)(s->B * s->K * s->T_kv * s->D);
  memset(r->dq, 0, q), memset(r->dq_mass, 0, q);
  memset(r->dk, 0, k), memset(r->dv, 0, k), memset(r->dk_mass, 0, k);
  r->highest = 0;
  for (int b = 0; b < s->B; b++)
    for (int h = 0; h < s->H; h++) {
      reference_head(c, r, b, h);
      reference_head_gradient(c, r, b, h);
    }
}

#endif
