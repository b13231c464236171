/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/flex_attention.h"

#include <string.h>

#include "attention/cpu/flex_attention_cpu.h"
#include "attention/cuda/flex_attention_cuda.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/elementwise.h"

fx_attention_inputs fx_attention_no_inputs(void) {
  fx_attention_inputs none = {FX_NONE, FX_NONE, FX_NONE, FX_NONE, FX_NONE, FX_NONE, FX_NONE, {0}};
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) none.table[t] = FX_NONE;
  return none;
}

/* Fills in[FX_FLEX_OWN]. */
static void common_inputs(fx_value q, fx_value k, fx_value v, const fx_attention_inputs *inputs,
                          bool backward, fx_value *in) {
  in[FX_FLEX_Q] = q, in[FX_FLEX_K] = k, in[FX_FLEX_V] = v;
  in[FX_FLEX_LIMITS] = inputs->limits;
  in[FX_FLEX_RUNS] = backward ? inputs->runs_backward : inputs->runs;
  in[FX_FLEX_Q_BASE] = inputs->q_base, in[FX_FLEX_KV_BASE] = inputs->kv_base;
  in[FX_FLEX_BUFFERS] = inputs->buffers, in[FX_FLEX_SINKS] = inputs->sinks;
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) in[FX_FLEX_TABLE + t] = inputs->table[t];
}

static bool is_floats(const fx_type *type, int64_t count) {
  return type->dtype == FX_F32 && fx_type_numel(type) == count;
}

static fx_status check_views(const fx_type *const *in) {
  char q[96], k[96], v[96];
  const fx_type *a = in[FX_FLEX_Q], *b = in[FX_FLEX_K], *c = in[FX_FLEX_V];
  bool fits = a->ndim == 4 && b->ndim == 4 && fx_type_same_shape(b, c) && a->dim[0] == b->dim[0] &&
              a->dim[3] == b->dim[3] && b->dim[2] > 0 && a->dim[2] % b->dim[2] == 0 && a->stride[3] == 1 &&
              b->stride[3] == 1 && c->stride[3] == 1 && (a->dtype == FX_F32 || a->dtype == FX_BF16) &&
              b->dtype == a->dtype && c->dtype == a->dtype;
  if (!fits)
    return fx_error(FX_ERR_SHAPE, "q %s, k %s, v %s are no attention inputs", fx_type_text(a, q, sizeof q),
                    fx_type_text(b, k, sizeof k), fx_type_text(c, v, sizeof v));
  return FX_OK;
}

static fx_status check_base(const fx_type *base, const char *name, int64_t T) {
  if (base && (base->dtype != FX_I32 || fx_type_numel(base) != (T + 127) / 128))
    return fx_error(FX_ERR_SHAPE, "%s must be int32 with one entry a block of 128 positions", name);
  return FX_OK;
}

static fx_status check_mask(const fx_type *const *in, const fx_attention_attr *attr) {
  int64_t Tpad = fx_attention_tpad((int32_t)in[FX_FLEX_Q]->dim[1]), B = in[FX_FLEX_Q]->dim[0];
  int64_t H = attr->all_heads ? attr->all_heads : in[FX_FLEX_Q]->dim[2];
  if (attr->first_head < 0 || attr->first_head + in[FX_FLEX_Q]->dim[2] > H)
    return fx_error(FX_ERR_SHAPE, "heads %d to %lld are not among %lld", attr->first_head,
                    (long long)(attr->first_head + in[FX_FLEX_Q]->dim[2]), (long long)H);
  bool lists = (attr->Bm == 1 || attr->Bm == B) && (attr->Hm == 1 || attr->Hm == H);
  if (in[FX_FLEX_LIMITS] &&
      (attr->R < 1 || !lists ||
       fx_type_numel(in[FX_FLEX_LIMITS]) != 2 * (int64_t)attr->R * attr->Bm * attr->Hm * Tpad ||
       in[FX_FLEX_LIMITS]->dtype != FX_I32))
    return fx_error(FX_ERR_SHAPE, "limits must be int32 [2, R, Bm, Hm, %lld] with Bm 1 or B, Hm 1 or H",
                    (long long)Tpad);
  if (attr->ask_mask && (!attr->flex || attr->flex->variant->mask == FX_EX_NONE))
    return fx_error(FX_ERR_SHAPE, "a mask is to be asked of a variant that has none");
  if (in[FX_FLEX_RUNS] && !in[FX_FLEX_LIMITS] && !attr->ask_mask)
    return fx_error(FX_ERR_SHAPE, "runs come without the limits or the variant that they were built from");
  FX_TRY(check_base(in[FX_FLEX_Q_BASE], "q_base", in[FX_FLEX_Q]->dim[1]));
  return check_base(in[FX_FLEX_KV_BASE], "kv_base", in[FX_FLEX_K]->dim[1]);
}

static fx_status check_variant(const fx_type *const *in, const fx_attention_attr *attr) {
  const fx_flex_variant *flex = attr->flex;
  if (in[FX_FLEX_SINKS] && !is_floats(in[FX_FLEX_SINKS], in[FX_FLEX_Q]->dim[2]))
    return fx_error(FX_ERR_SHAPE, "sinks must be float32 [%lld], one a query head",
                    (long long)in[FX_FLEX_Q]->dim[2]);
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) {
    bool wanted = t < fx_flex_num_tables(flex);
    if (wanted != (in[FX_FLEX_TABLE + t] != NULL) ||
        (wanted && !is_floats(in[FX_FLEX_TABLE + t], fx_flex_table_floats(flex, t))))
      return fx_error(FX_ERR_SHAPE, "the variant's learnable table %d and the op's input do not fit", t);
  }
  int64_t words = flex ? fx_flex_blob_words(flex, in[FX_FLEX_Q]->dim[0]) : 0;
  if (words > 0 && (!in[FX_FLEX_BUFFERS] || in[FX_FLEX_BUFFERS]->dtype != FX_I32 ||
                    fx_type_numel(in[FX_FLEX_BUFFERS]) < words))
    return fx_error(FX_ERR_SHAPE, "the variant's buffers must be int32 [%lld]", (long long)words);
  return FX_OK;
}

static fx_status check_inputs(const fx_type *const *in, const fx_attention_attr *attr) {
  FX_TRY(check_views(in));
  FX_TRY(check_mask(in, attr));
  return check_variant(in, attr);
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

enum { GRAD_OUT = FX_FLEX_OWN, GRAD_LSE, GRAD_DOUT, GRAD_DLSE, NUM_GRAD };

static fx_status grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check_inputs(in, attr));
  if (!fx_type_same_shape(in[GRAD_OUT], in[FX_FLEX_Q]) || !fx_type_same_shape(in[GRAD_DOUT], in[FX_FLEX_Q]))
    return fx_error(FX_ERR_SHAPE, "out or its gradient is not shaped as q");
  for (int i = 0; i < 3; i++) out[i] = contiguous(in[i]);
  for (int i = 3; i < FX_ATTENTION_GRADS; i++) { /* unused ones are never stored */
    const fx_type *of = in[FX_FLEX_SINKS + i - 3];
    out[i] = of ? *of : fx_type_1d(FX_F32, 1);
  }
  return FX_OK;
}

static fx_cost grad_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  return attention_cost(in[FX_FLEX_Q], in[FX_FLEX_K], 5);
}

static const fx_op g_flex_attention_grad = {
    .name = "flex_attention_grad",
    .min_in = 3,
    .max_in = NUM_GRAD,
    .num_out = FX_ATTENTION_GRADS,
    .attr_bytes = sizeof(fx_attention_attr),
    .bf16_cpu = true,
    .strided_out = 7,
    .optional_out = 0xf8, /* sinks and tables */
    .infer = grad_infer,
    .cost = grad_cost,
    .workspace = fx_flex_attention_grad_workspace_cpu,
    .workspace_cuda = fx_flex_attention_grad_workspace_cuda,
    .kernel =
        {[FX_BACKEND_CPU] = fx_flex_attention_grad_cpu, [FX_BACKEND_CUDA] = fx_flex_attention_grad_cuda},
};

void fx_flex_attention_grad(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out, fx_value lse,
                            fx_value dout, fx_value dlse, const fx_attention_inputs *inputs,
                            fx_attention_attr attr, fx_value grads[FX_ATTENTION_GRADS]) {
  fx_value in[NUM_GRAD];
  common_inputs(q, k, v, inputs, true, in);
  in[GRAD_OUT] = out, in[GRAD_LSE] = lse, in[GRAD_DOUT] = dout, in[GRAD_DLSE] = dlse;
  fx_graph_record(graph, &g_flex_attention_grad, &attr, in, grads);
  for (int i = 3; i < FX_ATTENTION_GRADS; i++)
    if (in[FX_FLEX_SINKS + i - 3] == FX_NONE) grads[i] = FX_NONE;
}

/* ---- backward of one chunk of keys, onto running sums ---- */

/* [3, B, H, Tpad]: log2 of the sum, delta, and what limits let blocks of rows see (flash_prepare.cuh). */
static fx_status prepare_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  fx_type grads[FX_ATTENTION_GRADS];
  FX_TRY(grad_infer(in, attr, grads));
  fx_type rows = lse_type(in[FX_FLEX_Q]);
  out[0] = fx_type_of(FX_F32, 4, (int64_t[]){3, rows.dim[0], rows.dim[1], rows.dim[2]});
  return FX_OK;
}

static const fx_op g_flex_attention_prepare = {
    .name = "flex_attention_prepare",
    .min_in = 3,
    .max_in = NUM_GRAD,
    .num_out = 1,
    .attr_bytes = sizeof(fx_attention_attr),
    .bf16_cpu = true,
    .infer = prepare_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_prepare_cpu,
               [FX_BACKEND_CUDA] = fx_flex_attention_prepare_cuda},
};

fx_value fx_flex_attention_prepare(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out,
                                   fx_value lse, fx_value dout, fx_value dlse,
                                   const fx_attention_inputs *inputs, fx_attention_attr attr) {
  fx_value in[NUM_GRAD];
  common_inputs(q, k, v, inputs, true, in);
  in[GRAD_OUT] = out, in[GRAD_LSE] = lse, in[GRAD_DOUT] = dout, in[GRAD_DLSE] = dlse;
  return fx_graph_record(graph, &g_flex_attention_prepare, &attr, in, NULL);
}

enum { ADD_PREPARED = GRAD_DLSE, SUM_DQ = NUM_GRAD, SUM_DK, SUM_DV, NUM_ADD };
_Static_assert((int)NUM_ADD <= (int)FX_MAX_IN, "more inputs than an op may have");

static fx_status add_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(grad_infer(in, &((const fx_attention_add_attr *)attr)->attention, out));
  for (int i = 0; i < 3; i++) {
    const fx_type *sum = in[SUM_DQ + i];
    out[i].dtype = FX_F32;
    if (sum && !fx_type_equal(sum, &out[i]))
      return fx_error(FX_ERR_SHAPE, "a running sum is not float32 and shaped as what is added to it");
  }
  return FX_OK;
}

static const fx_op g_flex_attention_grad_add = {
    .name = "flex_attention_grad_add",
    .min_in = 3,
    .max_in = NUM_ADD,
    .num_out = FX_ATTENTION_GRADS,
    .attr_bytes = sizeof(fx_attention_add_attr),
    .bf16_cpu = true,
    .effects = FX_EFFECT_MUTATES,
    .optional_out = 0xff,
    .must_alias = {1 + SUM_DQ, 1 + SUM_DK, 1 + SUM_DV},
    .infer = add_infer,
    .cost = grad_cost,
    .workspace = fx_flex_attention_grad_add_workspace_cpu,
    .workspace_cuda = fx_flex_attention_workspace_cuda,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_grad_add_cpu,
               [FX_BACKEND_CUDA] = fx_flex_attention_grad_add_cuda},
};

static fx_value sum_like(fx_graph *graph, fx_value x) {
  fx_type type = contiguous(fx_graph_type(graph, x));
  return fx_empty(graph, fx_type_of(FX_F32, type.ndim, type.dim));
}

void fx_flex_attention_grad_add(fx_graph *graph, fx_value q, fx_value k, fx_value v, fx_value out,
                                fx_value lse, fx_value dout, fx_value prepared,
                                const fx_attention_inputs *inputs, fx_attention_attr attr, int32_t parts,
                                bool first, fx_attention_sums *sums, fx_value params[FX_ATTENTION_PARAMS]) {
  fx_attention_add_attr full;
  fx_value in[NUM_ADD], grads[FX_ATTENTION_GRADS], *const sum[] = {&sums->dq, &sums->dk, &sums->dv};
  if (fx_graph_status(graph) != FX_OK) return;
  memset(&full, 0, sizeof full);
  full.attention = attr;
  full.parts = parts;
  full.first = first;
  common_inputs(q, k, v, inputs, true, in);
  in[GRAD_OUT] = out, in[GRAD_LSE] = lse, in[GRAD_DOUT] = dout, in[ADD_PREPARED] = prepared;
  for (int i = 0; i < 3; i++) {
    bool wanted = parts & (i == 0 ? FX_ATTENTION_OF_ROWS : FX_ATTENTION_OF_KEYS);
    if (wanted && *sum[i] == FX_NONE) *sum[i] = sum_like(graph, in[i]);
    in[SUM_DQ + i] = wanted ? *sum[i] : FX_NONE;
  }
  fx_graph_record(graph, &g_flex_attention_grad_add, &full, in, grads);
  for (int i = 0; i < 3; i++)
    if (in[SUM_DQ + i] != FX_NONE) *sum[i] = grads[i];
  for (int i = 0; params && i < FX_ATTENTION_PARAMS; i++)
    params[i] = in[FX_FLEX_SINKS + i] == FX_NONE ? FX_NONE : grads[3 + i];
}

bool fx_flex_attention_dq_apart(fx_backend backend) {
  return backend == FX_BACKEND_CUDA;
}

/* ---- forward ---- */

enum { RUNS_BACKWARD = FX_FLEX_OWN, NUM_FORWARD };

static fx_status forward_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check_inputs(in, attr));
  out[0] = contiguous(in[FX_FLEX_Q]);
  out[1] = lse_type(in[FX_FLEX_Q]);
  return FX_OK;
}

static fx_status forward_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const fx_value *in = node->in;
  fx_attention_inputs inputs = {.limits = in[FX_FLEX_LIMITS],
                                .runs_backward = in[RUNS_BACKWARD],
                                .q_base = in[FX_FLEX_Q_BASE],
                                .kv_base = in[FX_FLEX_KV_BASE],
                                .buffers = in[FX_FLEX_BUFFERS],
                                .sinks = in[FX_FLEX_SINKS]};
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) inputs.table[t] = in[FX_FLEX_TABLE + t];
  fx_value dy = dout[0], grads[FX_ATTENTION_GRADS];
  if (dy == FX_NONE) dy = fx_zeros_like(graph, node->out[0]); /* only lse was used */
  fx_flex_attention_grad(graph, in[FX_FLEX_Q], in[FX_FLEX_K], in[FX_FLEX_V], node->out[0], node->out[1], dy,
                         dout[1], &inputs, *(const fx_attention_attr *)node->attr, grads);
  for (int i = 0; i < 3; i++) din[i] = grads[i];
  for (int i = 3; i < FX_ATTENTION_GRADS; i++) din[FX_FLEX_SINKS + i - 3] = grads[i];
  return fx_graph_status(graph);
}

static fx_cost forward_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  return attention_cost(in[FX_FLEX_Q], in[FX_FLEX_K], 2);
}

static const fx_op g_flex_attention = {
    .name = "flex_attention",
    .min_in = 3,
    .max_in = NUM_FORWARD,
    .num_out = 2,
    .attr_bytes = sizeof(fx_attention_attr),
    .bf16_cpu = true,
    .infer = forward_infer,
    .vjp = forward_vjp,
    .cost = forward_cost,
    .workspace = fx_flex_attention_workspace_cpu,
    .workspace_cuda = fx_flex_attention_workspace_cuda,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_cpu, [FX_BACKEND_CUDA] = fx_flex_attention_cuda},
};

fx_value fx_flex_attention(fx_graph *graph, fx_value q, fx_value k, fx_value v,
                           const fx_attention_inputs *inputs, fx_attention_attr attr, fx_value *lse) {
  fx_value in[NUM_FORWARD], out[2];
  common_inputs(q, k, v, inputs, false, in);
  in[RUNS_BACKWARD] = inputs->runs_backward;
  fx_graph_record(graph, &g_flex_attention, &attr, in, out);
  if (lse) *lse = out[1];
  return out[0];
}

/* ---- one chunk of keys at a time ---- */

fx_attention_running fx_flex_attention_begin(fx_graph *graph, fx_value q) {
  fx_attention_running state = {FX_NONE, FX_NONE, FX_NONE};
  if (fx_graph_status(graph) != FX_OK) return state;
  fx_type type = *fx_graph_type(graph, q);
  state.o = fx_empty(graph, fx_type_of(FX_F32, type.ndim, type.dim));
  state.m = fx_empty(graph, lse_type(&type));
  state.l = fx_empty(graph, lse_type(&type));
  return state;
}

enum { STATE_O = FX_FLEX_OWN, STATE_M, STATE_L, NUM_PARTIAL };

static fx_status partial_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check_inputs(in, &((const fx_attention_partial_attr *)attr)->attention));
  fx_type rows = lse_type(in[FX_FLEX_Q]);
  if (!fx_type_same_shape(in[STATE_O], in[FX_FLEX_Q]) || in[STATE_O]->dtype != FX_F32 ||
      !fx_type_equal(in[STATE_M], &rows) || !fx_type_equal(in[STATE_L], &rows))
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
    .bf16_cpu = true,
    .effects = FX_EFFECT_MUTATES,
    .must_alias = {1 + STATE_O, 1 + STATE_M, 1 + STATE_L},
    .infer = partial_infer,
    .cost = forward_cost,
    .workspace = fx_flex_attention_workspace_cpu,
    .workspace_cuda = fx_flex_attention_workspace_cuda,
    .kernel = {[FX_BACKEND_CPU] = fx_flex_attention_partial_cpu,
               [FX_BACKEND_CUDA] = fx_flex_attention_partial_cuda},
};

void fx_flex_attention_partial(fx_graph *graph, fx_value q, fx_value k, fx_value v,
                               const fx_attention_inputs *inputs, fx_attention_attr attr, bool first,
                               fx_attention_running *state) {
  fx_attention_partial_attr full;
  fx_value in[NUM_PARTIAL], out[3];
  memset(&full, 0, sizeof full);
  full.attention = attr;
  full.first = first;
  common_inputs(q, k, v, inputs, false, in);
  in[FX_FLEX_SINKS] = FX_NONE; /* they join once, after the last chunk */
  in[STATE_O] = state->o, in[STATE_M] = state->m, in[STATE_L] = state->l;
  fx_graph_record(graph, &g_flex_attention_partial, &full, in, out);
  *state = (fx_attention_running){out[0], out[1], out[2]};
}

typedef struct finish_attr {
  int32_t dtype;
} finish_attr;

static fx_status finish_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  if (in[3] && !is_floats(in[3], in[0]->dim[2]))
    return fx_error(FX_ERR_SHAPE, "sinks must be float32 [%lld], one a query head", (long long)in[0]->dim[2]);
  out[0] = fx_type_of((fx_dtype)((const finish_attr *)attr)->dtype, in[0]->ndim, in[0]->dim);
  out[1] = *in[1];
  return FX_OK;
}

static const fx_op g_flex_attention_finish = {
    .name = "flex_attention_finish",
    .min_in = 3,
    .max_in = 4,
    .num_out = 2,
    .attr_bytes = sizeof(finish_attr),
    .bf16_cpu = true,
    .infer = finish_infer,
    .kernel =
        {[FX_BACKEND_CPU] = fx_flex_attention_finish_cpu, [FX_BACKEND_CUDA] = fx_flex_attention_finish_cuda},
};

fx_value fx_flex_attention_finish(fx_graph *graph, fx_attention_running state, fx_value sinks, fx_dtype dtype,
                                  fx_value *lse) {
  fx_value out[2];
  fx_graph_record(graph, &g_flex_attention_finish, &(finish_attr){(int32_t)dtype},
                  (fx_value[]){state.o, state.m, state.l, sinks}, out);
  if (lse) *lse = out[1];
  return out[0];
}

void fx_flex_attention_tile(fx_backend backend, bool backward, int32_t D, int32_t tile[2]) {
  if (backend == FX_BACKEND_CUDA)
    fx_flex_attention_tile_cuda(backward, D, tile);
  else
    fx_flex_attention_tile_cpu(backward, D, tile);
}

bool fx_flex_attention_runs_on(fx_backend backend, int32_t D) {
  return backend == FX_BACKEND_CPU || fx_flex_attention_runs_on_cuda(D);
}
