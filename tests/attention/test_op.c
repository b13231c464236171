/* SPDX-License-Identifier: Apache-2.0 */
/* The op flex_attention in graphs: strided views of a fused projection, gradients assembled, dlse, chunks
 * merged by _partial, replay = eager. The kernels themselves have suites of their own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex_attention.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "tests/dynamo_rt/plan_fixture.h"

enum { B = 2, T = 131, H = 4, K = 2, D = 16, C = (H + 2 * K) * D, TPAD = 256, KEYS = T };

typedef struct problem {
  float qkv[B * T * C], weight[B * T * H * D], lse_weight[B * H * TPAD];
  int32_t limits[2 * B * TPAD];
  float out[B * T * H * D], lse[B * H * TPAD], grad[B * T * C];
} problem;

static const float k_scale = 0.7f;

static problem *new_problem(void) {
  problem *p = NULL;
  CHECK_OK(fx_alloc_aligned(&p, sizeof *p));
  memset(p, 0, sizeof *p);
  fx_fill_normal(p->qkv, B * T * C, 1, 1.5f);
  fx_fill_normal(p->weight, B * T * H * D, 2, 1);
  fx_fill_normal(p->lse_weight, B * H * TPAD, 3, 1);
  for (int b = 0; b < B; b++)
    for (int q = 0; q < T; q++) { /* documents of 17 and 40, causal; row 5 of sample 1 sees nothing */
      int start = q / (b ? 40 : 17) * (b ? 40 : 17);
      bool empty = b == 1 && q == 5;
      p->limits[b * TPAD + q] = empty ? 0 : start;
      p->limits[B * TPAD + b * TPAD + q] = empty ? 0 : q + 1;
    }
  for (int i = 0; i < B * H;
       i++) /* lse is -inf where a row is empty: no weight there, as a loss would have none */
    for (int q = 0; q < TPAD; q++)
      if (q >= T || (i / H == 1 && q == 5)) p->lse_weight[i * TPAD + q] = 0;
  return p;
}

/* loss = sum(weight * out) + sum over finite rows (lse_weight * lse), in double; grad: its derivative by qkv
 * when asked. */
static double reference(const problem *p, double *out, double *lse, double *grad) {
  double loss = 0;
  for (int b = 0; b < B; b++)
    for (int h = 0; h < H; h++)
      for (int q = 0; q < T; q++) {
        int lo = p->limits[b * TPAD + q], hi = p->limits[B * TPAD + b * TPAD + q], kh = h / (H / K);
        const float *Q = p->qkv + (b * T + q) * C + h * D;
        double s[T], top = -INFINITY, sum = 0, *o = out + ((b * T + q) * H + h) * D;
        for (int d = 0; d < D; d++) o[d] = 0;
        for (int k = lo; k < hi; k++) {
          const float *key = p->qkv + (b * T + k) * C + (H + kh) * D;
          s[k] = 0;
          for (int d = 0; d < D; d++) s[k] += (double)k_scale * Q[d] * key[d];
          top = fmax(top, s[k]);
        }
        for (int k = lo; k < hi; k++) sum += exp(s[k] - top);
        for (int k = lo; k < hi; k++)
          for (int d = 0; d < D; d++)
            o[d] += exp(s[k] - top) / sum * p->qkv[(b * T + k) * C + (H + K + kh) * D + d];
        double l = hi > lo ? top + log(sum) : -INFINITY, wl = p->lse_weight[(b * H + h) * TPAD + q];
        lse[(b * H + h) * TPAD + q] = l;
        const float *w = p->weight + ((b * T + q) * H + h) * D;
        for (int d = 0; d < D; d++) loss += w[d] * o[d];
        if (hi > lo) loss += wl * l;
        for (int k = lo; grad && k < hi; k++) {
          double P = exp(s[k] - top) / sum, dP = 0;
          for (int d = 0; d < D; d++) dP += w[d] * (p->qkv[(b * T + k) * C + (H + K + kh) * D + d] - o[d]);
          double dS = P * (dP + wl) * (double)k_scale;
          for (int d = 0; d < D; d++) {
            grad[(b * T + q) * C + h * D + d] += dS * p->qkv[(b * T + k) * C + (H + kh) * D + d];
            grad[(b * T + k) * C + (H + kh) * D + d] += dS * Q[d];
            grad[(b * T + k) * C + (H + K + kh) * D + d] += P * w[d];
          }
        }
      }
  return loss;
}

static fx_value constant(fx_graph *g, const char *name, const void *data, fx_type type) {
  return fx_graph_persistent(FX_AT(g), name, (void *)(uintptr_t)data, type);
}

static fx_value dot(fx_graph *g, fx_value x, const float *weight, int64_t n) {
  fx_value flat = fx_reshape(FX_AT(g), x, 2, (int64_t[]){1, n});
  return fx_linear(FX_AT(g), flat, constant(g, "w", weight, fx_type_2d(FX_F32, 1, n)), FX_NONE,
                   (fx_linear_attr){0, 0});
}

typedef struct views {
  fx_value base, q, k, v;
  fx_attention_inputs mask;
  fx_attention_attr attr;
} views;

static views record_views(fx_graph *g, const problem *p) {
  views x;
  x.base = constant(g, "qkv", p->qkv, fx_type_3d(FX_F32, B, T, C));
  x.q = fx_slice_heads(FX_AT(g), x.base, 0, H, D);
  x.k = fx_slice_heads(FX_AT(g), x.base, H * D, K, D);
  x.v = fx_slice_heads(FX_AT(g), x.base, (H + K) * D, K, D);
  x.mask = fx_attention_no_inputs();
  x.mask.limits = constant(g, "limits", p->limits, fx_type_1d(FX_I32, 2 * B * TPAD));
  x.attr = (fx_attention_attr){.scale = k_scale, .R = 1, .Bm = B, .Hm = 1, .T_total = T};
  return x;
}

static double lse_error(const float *got, const double *want) {
  double worst = 0;
  for (int i = 0; i < B * H; i++)
    for (int q = 0; q < TPAD; q++) {
      double w = q < T ? want[i * TPAD + q] : -INFINITY, x = got[i * TPAD + q];
      worst = fx_worse(worst, isinf(w) ? (x == w ? 0 : INFINITY) : fabs(x - w));
    }
  return worst;
}

static void forward_and_backward(void) {
  problem *p = new_problem();
  double *out = calloc(B * T * H * D, sizeof(double)), *lse = calloc(B * H * TPAD, sizeof(double)),
         *grad = calloc(B * T * C, sizeof(double));
  float *first = NULL;
  reference(p, out, lse, grad);
  for (int i = 0; i < 40; i++) { /* the analytic reference itself, against differences */
    int at = i * 997 % (B * T * C);
    float kept = p->qkv[at], h = 0.0078125f;
    double *o = calloc(B * T * H * D, sizeof(double)), *l = calloc(B * H * TPAD, sizeof(double));
    p->qkv[at] = kept + h;
    double up = reference(p, o, l, NULL), up_at = p->qkv[at];
    p->qkv[at] = kept - h;
    double slope = (up - reference(p, o, l, NULL)) / (up_at - p->qkv[at]);
    p->qkv[at] = kept;
    CHECK_MSG(fabs(slope - grad[at]) < 2e-3 * (fabs(grad[at]) + 0.1),
              "reference gradient %d: %.8g, differences %.8g", at, grad[at], slope);
    free(o);
    free(l);
  }
  for (int mode = 0; mode < 2; mode++) {
    fx_graph *g = fx_graph_create(NULL);
    views x = record_views(g, p);
    fx_value l = FX_NONE, o = fx_flex_attention(FX_AT(g), x.q, x.k, x.v, &x.mask, x.attr, &l), grads[1];
    /* lse may hold -inf, and -inf * 0 is NaN: only its gradient is wanted here, so the dot product itself is
     * not stored */
    fx_value loss =
        fx_add(FX_AT(g), dot(g, o, p->weight, B * T * H * D), dot(g, l, p->lse_weight, B * H * TPAD));
    CHECK_OK(fx_autograd(g, loss, &x.base, 1, grads));
    fx_store(FX_AT(g), constant(g, "out", p->out, fx_type_1d(FX_F32, B * T * H * D)), o);
    fx_store(FX_AT(g), constant(g, "lse", p->lse, fx_type_1d(FX_F32, B * H * TPAD)), l);
    fx_store(FX_AT(g), constant(g, "grad", p->grad, fx_type_1d(FX_F32, B * T * C)), grads[0]);
    run_once(g, 2, (fx_exec_mode)mode);
    CHECK_MSG(fx_relative_l2(p->out, out, B * T * H * D) < 2e-6, "out differs by %.3g",
              fx_relative_l2(p->out, out, B * T * H * D));
    CHECK_MSG(lse_error(p->lse, lse) < 1e-5, "lse differs by %.3g", lse_error(p->lse, lse));
    CHECK_MSG(fx_relative_l2(p->grad, grad, B * T * C) < 5e-6, "gradient differs by %.3g",
              fx_relative_l2(p->grad, grad, B * T * C));
    if (!first) {
      first = malloc(sizeof p->grad);
      memcpy(first, p->grad, sizeof p->grad);
    } else {
      CHECK(memcmp(first, p->grad, sizeof p->grad) == 0);
    }
  }
  free(first);
  free(out);
  free(lse);
  free(grad);
  free(p);
}

/* Three unequal chunks of keys, 128-key blocks placed by kv_base, merged in any order, equal the whole. */
static void chunks_merge(void) {
  static const int order[3][2] = {{1, 0}, {0, 1}, {1, 0}};
  problem *p = new_problem();
  double *out = calloc(B * T * H * D, sizeof(double)), *lse = calloc(B * H * TPAD, sizeof(double));
  reference(p, out, lse, NULL);
  for (int run_index = 0; run_index < 2; run_index++) {
    fx_graph *g = fx_graph_create(NULL);
    views x = record_views(g, p);
    float *chunk[2];
    int32_t base[2] = {0, 128}, length[2] = {128, T - 128};
    fx_attention_running state = fx_flex_attention_begin(FX_AT(g), x.q);
    for (int c = 0; c < 2; c++) {
      int i = order[run_index][c];
      chunk[i] = malloc(sizeof(float) * B * (size_t)length[i] * C);
      for (int b = 0; b < B; b++)
        memcpy(chunk[i] + b * length[i] * C, p->qkv + (b * T + base[i]) * C,
               sizeof(float) * (size_t)length[i] * C);
      fx_value keys = constant(g, "chunk", chunk[i], fx_type_3d(FX_F32, B, length[i], C));
      fx_value k = fx_slice_heads(FX_AT(g), keys, H * D, K, D),
               v = fx_slice_heads(FX_AT(g), keys, (H + K) * D, K, D);
      fx_attention_inputs mask = x.mask;
      mask.kv_base = constant(g, "base", &base[i], fx_type_1d(FX_I32, 1));
      fx_flex_attention_partial(FX_AT(g), x.q, k, v, &mask, x.attr, c == 0, &state);
    }
    fx_value l = FX_NONE, o = fx_flex_attention_finish(FX_AT(g), state, FX_NONE, FX_F32, &l);
    fx_store(FX_AT(g), constant(g, "out", p->out, fx_type_1d(FX_F32, B * T * H * D)), o);
    fx_store(FX_AT(g), constant(g, "lse", p->lse, fx_type_1d(FX_F32, B * H * TPAD)), l);
    run_once(g, 2, FX_EXEC_REPLAY);
    CHECK_MSG(fx_relative_l2(p->out, out, B * T * H * D) < 2e-6, "merged out differs by %.3g",
              fx_relative_l2(p->out, out, B * T * H * D));
    CHECK_MSG(lse_error(p->lse, lse) < 1e-5, "merged lse differs by %.3g", lse_error(p->lse, lse));
    free(chunk[0]);
    free(chunk[1]);
  }
  free(out);
  free(lse);
  free(p);
}

static void shapes_are_checked(void) {
  problem *p = new_problem();
  fx_graph *g = fx_graph_create(NULL);
  views x = record_views(g, p);
  x.mask.limits = constant(g, "short", p->limits, fx_type_1d(FX_I32, 2 * B * TPAD - 2));
  CHECK_INT(fx_flex_attention(FX_AT(g), x.q, x.k, x.v, &x.mask, x.attr, NULL), FX_NONE);
  CHECK_STATUS(fx_graph_status(g), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "limits must be int32 [2, R, Bm, Hm, 256]");
  fx_graph_destroy(g);
  free(p);
}

static const fx_test tests[] = {{"forward and backward in a graph, lse included", forward_and_backward},
                                {"chunks of keys merge", chunks_merge},
                                {"shapes are checked", shapes_are_checked}};
FX_TEST_MAIN("flex_attention", tests)
