/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and its gradients in double, dense and row by row, for any variant: what the op is tested against
 * on every backend. Tables come through reads whose derivative is in the variant; a learnable table is
 * [H, BUCKETS]. */
#ifndef FX_TESTS_CORE_FLEX_REFERENCE_H
#define FX_TESTS_CORE_FLEX_REFERENCE_H

#include "tests/expression_reference.h"
#include "tests/core/flex_case.h"

#ifndef FLEX_REFERENCE_T
#define FLEX_REFERENCE_T 300 /* positions at most; a suite may define it first */
#endif
enum { MOST_T = FLEX_REFERENCE_T, BUCKETS = 9 };

typedef struct reference {
  double *out, *lse, *dq, *dk, *dv, *dsink, *dtable;
  double highest;
} reference;

/* One row's values of the variant's nodes over all keys. */
typedef struct row_values {
  double mask[MOST_T], score[MOST_T], slope[MOST_T], read[4][MOST_T], at[4][3][MOST_T];
} row_values;

static inline void evaluate(const fx_variant *v, const fx_interp_inputs *in, int h, int q, int T,
                            const double *raw, row_values *row) {
  static int32_t rows[MOST_T], keys[MOST_T];
  fx_ex node[32];
  double *value[32];
  int count = 0;
  for (int n = 0; n < T; n++)
    rows[n] = q, keys[n] = n, row->mask[n] = row->slope[n] = 1, row->score[n] = raw[n];
  if (v->mask != FX_EX_NONE) node[count] = v->mask, value[count++] = row->mask;
  if (v->score != FX_EX_NONE) node[count] = v->score, value[count++] = row->score;
  if (v->slope != FX_EX_NONE) node[count] = v->slope, value[count++] = row->slope;
  for (int i = 0; i < v->num_reads; i++) {
    const fx_ex_node *load = fx_ex_get(v->pool, v->reads[i].load);
    node[count] = v->reads[i].slope, value[count++] = row->read[i];
    for (int k = 0; k < load->num_args; k++) node[count] = load->arg[k], value[count++] = row->at[i][k];
  }
  if (count > 0) CHECK_OK(fx_reference_run(v->pool, node, count, in, h, T, rows, keys, raw, value, NULL));
}

static inline void reference_row(const flex_case *c, const fx_variant *v, const fx_interp_inputs *in, int b,
                                 int h, int q, reference *ref) {
  static row_values row;
  static double raw[MOST_T], p[MOST_T];
  int kv_head = h / (c->H / c->K), D = c->D, T = c->T;
  int64_t q_at = ((int64_t)(b * T + q) * c->H + h) * D, lse_at = (int64_t)(b * c->H + h) * T + q;
  for (int n = 0; n < T; n++) {
    const float *key = c->k + ((int64_t)(b * T + n) * c->K + kv_head) * D;
    raw[n] = 0;
    for (int d = 0; d < D; d++) raw[n] += (double)c->q[q_at + d] * (double)key[d] / sqrt(D);
  }
  evaluate(v, in, h, q, T, raw, &row);
  double top = v->sinks ? (double)c->sink[h] : -INFINITY, sum = 0, delta = -(double)c->dlse[lse_at];
  for (int n = 0; n < T; n++) {
    p[n] = row.mask[n] != 0 ? row.score[n] : -INFINITY;
    top = fmax(top, p[n]);
    if (row.mask[n] != 0) ref->highest = fmax(ref->highest, fmax(fabs(row.score[n]), fabs(raw[n])));
  }
  for (int n = 0; n < T; n++) sum += p[n] = top == -INFINITY ? 0 : exp(p[n] - top);
  double sink = v->sinks ? exp((double)c->sink[h] - top) : 0;
  sum += sink;
  ref->lse[lse_at] = top == -INFINITY ? -INFINITY : top + log(sum);
  for (int d = 0; d < D; d++) {
    double o = 0;
    for (int n = 0; n < T; n++)
      if (p[n] != 0) o += p[n] / sum * (double)c->v[((int64_t)(b * T + n) * c->K + kv_head) * D + d];
    ref->out[q_at + d] = o;
    delta += o * (double)c->dout[q_at + d];
  }
  if (v->sinks) ref->dsink[h] -= sink / sum * delta;
  for (int n = 0; n < T; n++) {
    if (p[n] == 0) continue;
    int64_t k_at = ((int64_t)(b * T + n) * c->K + kv_head) * D;
    double weight = p[n] / sum, dp = 0;
    for (int d = 0; d < D; d++) dp += (double)c->dout[q_at + d] * (double)c->v[k_at + d];
    double df = weight * (dp - delta), ds = df * row.slope[n] / sqrt(D);
    for (int i = 0; i < v->num_reads; i++)
      ref->dtable[(int)row.at[i][0][n] * BUCKETS + (int)row.at[i][1][n]] += df * row.read[i][n];
    for (int d = 0; d < D; d++) {
      ref->dq[q_at + d] += ds * (double)c->k[k_at + d];
      ref->dk[k_at + d] += ds * (double)c->q[q_at + d];
      ref->dv[k_at + d] += weight * (double)c->dout[q_at + d];
    }
  }
}

/* Buffers by number in the pool, for sample b. */
static inline void bind_buffers(const flex_case *c, const fx_variant *v, int b, int32_t *made,
                                const void **buffer) {
  for (int32_t i = 0; i < fx_ex_num_buffers(v->pool); i++) {
    const fx_ex_buffer *declared = fx_ex_buffer_at(v->pool, i);
    int32_t *ids = made + i * MOST_T, id = -1, turn = 0;
    const int32_t *start = c->doc_start + b * c->T, *tokens = c->tokens + b * c->T;
    bool is_role = strcmp(declared->name, "role") == 0, is_turn = strcmp(declared->name, "turn") == 0;
    for (int t = 0; t < c->T; t++) {
      id += start[t] == t;
      turn = start[t] == t ? 0 : turn + (tokens[t - 1] == 10);
      ids[t] = is_role ? turn % 2 : is_turn ? turn : id;
    }
    buffer[i] = declared->constant                         ? declared->constant
                : declared->learnable                      ? (const void *)c->table
                : strcmp(declared->name, "doc_start") == 0 ? start
                : strcmp(declared->name, "doc_end") == 0   ? c->doc_end + b * c->T
                                                           : ids;
  }
}

static inline reference reference_solve(const flex_case *c, const fx_variant *v) {
  int64_t q = (int64_t)c->B * c->T * c->H * c->D, k = (int64_t)c->B * c->T * c->K * c->D;
  reference ref = {.highest = 0};
  ref.out = calloc((size_t)q, 8), ref.dq = calloc((size_t)q, 8);
  ref.dk = calloc((size_t)k, 8), ref.dv = calloc((size_t)k, 8);
  ref.lse = calloc((size_t)(c->B * c->H * c->T), 8), ref.dsink = calloc((size_t)c->H, 8);
  ref.dtable = calloc((size_t)c->H * BUCKETS, 8);
  int32_t *made = calloc(FX_EX_MAX_BUFFERS * (size_t)MOST_T, sizeof *made);
  for (int b = 0; b < c->B; b++) {
    const void *buffer[FX_EX_MAX_BUFFERS];
    bind_buffers(c, v, b, made, buffer);
    fx_interp_inputs in = {NULL, buffer};
    for (int h = 0; h < c->H; h++)
      for (int t = 0; t < c->T; t++) reference_row(c, v, &in, b, h, t, &ref);
  }
  free(made);
  return ref;
}

static inline void reference_free(reference *r) {
  free(r->out), free(r->lse), free(r->dq), free(r->dk), free(r->dv), free(r->dsink), free(r->dtable);
}

#endif
