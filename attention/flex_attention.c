/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/flex_attention.h"

#include <string.h>

#include "attention/cpu/flex_attention_cpu.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/elementwise.h"

/* Input order shared by the ops below. */
enum { Q, K, V, LIMITS, RUNS, KV_BASE, NUM_COMMON };

static fx_status check_views(const fx_type *const *in) {
  char q[96], k[96], v[96];
  const fx_type *a = in[Q], *b = in[K], *c = in[V];
  bool fits = a->ndim == 4 && b->ndim == 4 && fx_type_same_shape(b, c) && a->dim[0] == b->dim[0] &&
              a->dim[3] == b->dim[3] && b->dim[2] > 0 && a->dim[2] % b->dim[2] == 0 && a->stride[3] == 1 &&
              b->stride[3] == 1 && c->stride[3] == 1 && a->dtype == FX_F32 && b->dtype == FX_F32 &&
              c->dtype == FX_F32;
  if (!fits)
    return fx_error(FX_ERR_SHAPE, "q %s, k %s, v %s are no attention inputs", fx_type_text(a, q, sizeof q),
                    fx_type_text(b, k, sizeof k), fx_type_text(c, v, sizeof v));
  return FX_OK;
}

static fx_status check_mask(const fx_type *const *in, const fx_attention_attr *attr) {
  int64_t Tpad = fx_attention_tpad((int32_t)in[Q]->dim[1]);
  if (in[LIMITS] &&
      (attr->R < 1 || (attr->Bm != 1 && attr->Bm != in[Q]->dim[0]) ||
       fx_type_numel(in[LIMITS]) != 2 * attr->R * attr->Bm * Tpad || in[LIMITS]->dtype != FX_I32))
    return fx_error(FX_ERR_SHAPE, "limits must be int32 [2, R, Bm, %lld] with Bm 1 or B", (long long)Tpad);
  if (in[RUNS] && !in[LIMITS])
    return fx_error(FX_ERR_SHAPE, "runs come without the limits they were built from");
  if (in[KV_BASE] &&
      (in[KV_BASE]->dtype != FX_I32 || fx_type_numel(in[KV_BASE]) != (in[K]->dim[1] + 127) / 128))
    return fx_error(FX_ERR_SHAPE, "kv_base must be int32 with one entry a block of 128 keys");
  return FX_OK;
}

static fx_type contiguous(const fx_type *type) {
  return fx_type_of(type->dtype, type->ndim, type->dim);
}

static fx_type lse_type(const fx_type *q) {
  return fx_type_3d(FX_F32, q->dim[0], q->dim[2], fx_attention_tpad((int32_t)q->dim[1]));
}

/* Dense products of the whole T_q x T_kv square; the mask is data, so what it skips is not known here. */
static fx_cost attention_cost(const fx_type *q, const fx_type *k, double products) {
  double rows = (double)(q->dim[0] * q->dim[1] * q->dim[2]), keys = (double)k->dim[1], d = (double)q->dim[3];
  return (fx_cost){2 * products * rows * keys * d, 4 * (2 * rows * d + 2 * (double)fx_type_numel(k))};
}

/* ---- backward ---- */

enum { GRAD_OUT = NUM_COMMON, GRAD_LSE, GRAD_DOUT, GRAD_DLSE, NUM_GRAD };

static fx_status grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check_views(in));
  FX_TRY(check_mask(in, attr));
  if (!fx_type_same_shape(in[GRAD_OUT], in[Q]) || !fx_type_same_shape(in[GRAD_DOUT], in[Q]))
    return fx_error(FX_ERR_SHAPE, "out or its gradient is not shaped as q");
  for (int i = 0; i < 3; i++) out[i] = contiguous(in[i]);
  return FX_OK;
}

static fx_cost grad_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  return attention_cost(in[Q], in[K], 5);
}

static const fx_op g_flex_attention_grad = {
    .name = "flex_attention_grad",
    .min_in = 3,
    .max_in = NUM_GRAD,
    .num_out = 3,
    .attr_bytes = sizeof(fx_attention_attr),
    .strided_out = 7,
    .infer = grad_infer,
    .cost = grad_cost,
    .workspace = fx_flex_attention_grad_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_grad_cpu},
};

void fx_flex_attention_grad(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out, fx_value lse,
                            fx_value dout, fx_value dlse, fx_attention_mask mask, fx_attention_attr attr,
                            fx_value grads[3]) {
  fx_graph_record(graph, &g_flex_attention_grad, &attr,
                  (fx_value[]){q, k, v, mask.limits, mask.runs_backward, mask.kv_base, out, lse, dout, dlse},
                  grads);
}

/* ---- forward ---- */

enum { RUNS_BACKWARD = NUM_COMMON, NUM_FORWARD };

static fx_status forward_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check_views(in));
  FX_TRY(check_mask(in, attr));
  out[0] = contiguous(in[Q]);
  out[1] = lse_type(in[Q]);
  return FX_OK;
}

static fx_status forward_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const fx_value *in = node->in;
  fx_attention_mask mask = {in[LIMITS], in[RUNS], in[RUNS_BACKWARD], in[KV_BASE]};
  fx_value dy = dout[0];
  if (dy == FX_NONE) dy = fx_fill(graph, *fx_graph_type(graph, node->out[0]), 0.0f); /* only lse was used */
  fx_flex_attention_grad(graph, in[Q], in[K], in[V], node->out[0], node->out[1], dy, dout[1], mask,
                         *(const fx_attention_attr *)node->attr, din);
  return fx_graph_status(graph);
}

static fx_cost forward_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  return attention_cost(in[Q], in[K], 2);
}

static const fx_op g_flex_attention = {
    .name = "flex_attention",
    .min_in = 3,
    .max_in = NUM_FORWARD,
    .num_out = 2,
    .attr_bytes = sizeof(fx_attention_attr),
    .infer = forward_infer,
    .vjp = forward_vjp,
    .cost = forward_cost,
    .workspace = fx_flex_attention_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_cpu},
};

fx_value fx_flex_attention(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_attention_mask mask,
                           fx_attention_attr attr, fx_value *lse) {
  fx_value out[2];
  fx_graph_record(graph, &g_flex_attention, &attr,
                  (fx_value[]){q, k, v, mask.limits, mask.runs, mask.kv_base, mask.runs_backward}, out);
  if (lse) *lse = out[1];
  return out[0];
}

/* ---- one chunk of keys at a time ---- */

fx_attention_running fx_flex_attention_begin(fx_graph *graph, fx_value q) {
  fx_attention_running state = {FX_NONE, FX_NONE, FX_NONE};
  if (fx_graph_status(graph) != FX_OK) return state;
  fx_type type = *fx_graph_type(graph, q);
  state.o = fx_fill(graph, contiguous(&type), 0.0f);
  state.m = fx_fill(graph, lse_type(&type), 0.0f);
  state.l = fx_fill(graph, lse_type(&type), 1.0f); /* apart from m: equal fills would be merged */
  return state;
}

enum { STATE_O = NUM_COMMON, STATE_M, STATE_L, NUM_PARTIAL };

static fx_status partial_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check_views(in));
  FX_TRY(check_mask(in, &((const fx_attention_partial_attr *)attr)->attention));
  fx_type rows = lse_type(in[Q]);
  if (!fx_type_same_shape(in[STATE_O], in[Q]) || !fx_type_equal(in[STATE_M], &rows) ||
      !fx_type_equal(in[STATE_L], &rows))
    return fx_error(FX_ERR_SHAPE, "the running state does not fit q");
  for (int i = 0; i < 3; i++) out[i] = *in[STATE_O + i];
  return FX_OK;
}

static const fx_op g_flex_attention_partial = {
    .name = "flex_attention_partial",
    .min_in = 3,
    .max_in = NUM_PARTIAL,
    .num_out = 3,
    .attr_bytes = sizeof(fx_attention_partial_attr),
    .effects = FX_EFFECT_MUTATES,
    .must_alias = {1 + STATE_O, 1 + STATE_M, 1 + STATE_L},
    .infer = partial_infer,
    .cost = forward_cost,
    .workspace = fx_flex_attention_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_partial_cpu},
};

void fx_flex_attention_partial(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_attention_mask mask,
                               fx_attention_attr attr, bool first, fx_attention_running *state) {
  fx_attention_partial_attr full;
  fx_value out[3];
  memset(&full, 0, sizeof full);
  full.attention = attr;
  full.first = first;
  fx_graph_record(graph, &g_flex_attention_partial, &full,
                  (fx_value[]){q, k, v, mask.limits, mask.runs, mask.kv_base, state->o, state->m, state->l},
                  out);
  *state = (fx_attention_running){out[0], out[1], out[2]};
}

static fx_status finish_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = contiguous(in[0]);
  out[1] = *in[1];
  return FX_OK;
}

static const fx_op g_flex_attention_finish = {
    .name = "flex_attention_finish",
    .min_in = 3,
    .max_in = 3,
    .num_out = 2,
    .infer = finish_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_finish_cpu},
};

fx_value fx_flex_attention_finish(fx_graph *graph, fx_attention_running state, fx_value *lse) {
  fx_value out[2];
  fx_graph_record(graph, &g_flex_attention_finish, NULL, (fx_value[]){state.o, state.m, state.l}, out);
  if (lse) *lse = out[1];
  return out[0];
}

void fx_flex_attention_tile(fx_backend backend, bool backward, int32_t D, int32_t tile[2]) {
  FX_ASSERT(backend == FX_BACKEND_CPU);
  fx_flex_attention_tile_cpu(backward, D, tile);
}
