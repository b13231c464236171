/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/embedding.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/elementwise.h"

/* ---- embedding ---- */

static fx_status embedding_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[0]->ndim != 2 || in[0]->dtype != FX_I32 || in[1]->ndim != 2 || !fx_is_activation(in[1]->dtype))
    return fx_error(FX_ERR_SHAPE, "expected int32 ids [B, T] and a table [V, E] of float32 or bfloat16");
  out[0] = fx_type_3d(in[1]->dtype, in[0]->dim[0], in[0]->dim[1], in[1]->dim[1]);
  return FX_OK;
}

static fx_status embedding_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  if (!fx_is_activation(in[0]->dtype) || in[1]->dtype != FX_I32)
    return fx_error(FX_ERR_SHAPE, "expected a gradient of float32 or bfloat16 and int32 ids");
  out[0] = *(const fx_type *)attr;
  return FX_OK;
}

static const fx_op g_embedding_grad = {
    .name = "embedding_grad", /* dy [B, T, E], ids -> dtable [V, E] F32 */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_type),
    .can_accumulate = 1,
    .infer = embedding_grad_infer,
    .workspace_cuda = fx_embedding_grad_workspace_cuda,
    .kernel = {[FX_BACKEND_CPU] = fx_embedding_grad_cpu, [FX_BACKEND_CUDA] = fx_embedding_grad_cuda},
};

static fx_status embedding_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  fx_type table = *fx_graph_type(graph, node->in[1]);
  table.dtype = FX_F32;
  din[1] = fx_graph_record(graph, &g_embedding_grad, &table, (fx_value[]){dout[0], node->in[0]}, NULL);
  return fx_graph_status(graph);
}

static const fx_op g_embedding = {
    .name = "embedding",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .infer = embedding_infer,
    .vjp = embedding_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_embedding_cpu, [FX_BACKEND_CUDA] = fx_embedding_cuda},
};

fx_value fx_embedding(fx_graph *graph, fx_value ids, fx_value table) {
  return fx_graph_record(graph, &g_embedding, NULL, (fx_value[]){ids, table}, NULL);
}

/* ---- head with cross-entropy ---- */

int64_t fx_head_chunk_rows(fx_backend backend, int64_t rows, int64_t vocab, fx_dtype dtype) {
  return backend == FX_BACKEND_CUDA ? fx_head_chunk_rows_cuda(rows, vocab, dtype)
                                    : fx_head_chunk_rows_cpu(rows, vocab);
}

static fx_status head_ce_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_head_ce_attr *a = attr;
  char x[96], w[96];
  bool fits = in[0]->ndim == 3 && in[1]->ndim == 2 && fx_type_cols(in[0]) == in[1]->dim[1] &&
              in[2]->dtype == FX_I32 && fx_type_numel(in[2]) == fx_type_rows(in[0]) &&
              fx_is_activation(in[0]->dtype) && in[1]->dtype == in[0]->dtype && fx_type_numel(in[3]) == 1 &&
              in[3]->dtype == FX_F32 && a->valid_vocab >= 0 && a->valid_vocab <= in[1]->dim[0];
  if (!fits)
    return fx_error(FX_ERR_SHAPE, "%s does not fit the head %s and its targets",
                    fx_type_text(in[0], x, sizeof x), fx_type_text(in[1], w, sizeof w));
  out[0] = fx_type_of(FX_F32, 2, in[0]->dim);
  out[1] = fx_type_1d(FX_F32, 1);
  out[2] = *in[0];
  out[3] = *in[1];
  out[3].dtype = FX_F32;
  return FX_OK;
}

static fx_cost head_ce_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  double rows = (double)fx_type_rows(in[0]), e = (double)in[1]->dim[1], v = (double)in[1]->dim[0];
  return (fx_cost){6 * rows * e * v, 4 * (3 * v * e + 4 * rows * v)};
}

static fx_status head_ce_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  if (dout[1] == FX_NONE) return FX_OK;
  bool unit = fx_is_fill(graph, dout[1], 1.0f);
  for (int i = 0; i < 2; i++) din[i] = unit ? node->out[2 + i] : fx_scale(graph, node->out[2 + i], dout[1]);
  return fx_graph_status(graph);
}

static const fx_op g_head_ce = {
    .name = "head_ce",
    .min_in = 4,
    .max_in = 4,
    .num_out = 4,
    .attr_bytes = sizeof(fx_head_ce_attr),
    .can_accumulate = 8,
    .optional_out = 12,
    .infer = head_ce_infer,
    .vjp = head_ce_vjp,
    .cost = head_ce_cost,
    .workspace = fx_head_ce_workspace_cpu,
    .workspace_cuda = fx_head_ce_workspace_cuda,
    .kernel = {[FX_BACKEND_CPU] = fx_head_ce_cpu, [FX_BACKEND_CUDA] = fx_head_ce_cuda},
};

fx_value fx_head_ce(fx_graph *graph, fx_value x, fx_value weight, fx_value targets, fx_value factor,
                    fx_head_ce_attr attr, fx_value *nll) {
  fx_value out[4];
  fx_graph_record(graph, &g_head_ce, &attr, (fx_value[]){x, weight, targets, factor}, out);
  if (nll) *nll = out[0];
  return out[1];
}

/* ---- dropout ---- */

static fx_status dropout_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_dropout_attr *a = attr;
  int64_t samples = fx_type_numel(in[1]), last = a->first_row + fx_type_rows(in[0]);
  bool fits = a->length ? a->first_row >= 0 && last <= samples * a->length
                        : in[0]->ndim == 3 && samples == in[0]->dim[0] && a->first_row == 0;
  if (!fits || !fx_type_contiguous(in[0]) || !fx_is_activation(in[0]->dtype) || !(a->p >= 0 && a->p < 1))
    return fx_error(FX_ERR_SHAPE,
                    "expected x [B, T, E] or rows of it, ordinals [B] and 0 <= p < 1, got p = %g",
                    (double)a->p);
  int64_t length = a->length ? a->length : in[0]->dim[1];
  if (in[3] && (in[3]->dtype != FX_I32 || fx_type_numel(in[3]) * 128 != length))
    return fx_error(FX_ERR_SHAPE, "expected one int32 position a block of 128 rows");
  out[0] = *in[0];
  return FX_OK;
}

static fx_status dropout_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  din[0] = fx_dropout_at(graph, dout[0], node->in[1], node->in[2], node->in[3],
                         *(const fx_dropout_attr *)node->attr);
  return fx_graph_status(graph);
}

static const fx_op g_dropout = {
    .name = "dropout",
    .min_in = 3,
    .max_in = 4,
    .num_out = 1,
    .attr_bytes = sizeof(fx_dropout_attr),
    .effects = FX_EFFECT_RNG,
    .may_alias = {1},
    .infer = dropout_infer,
    .vjp = dropout_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_dropout_cpu, [FX_BACKEND_CUDA] = fx_dropout_cuda},
};

fx_value fx_dropout(fx_graph *graph, fx_value x, fx_value ordinal, fx_value iteration, fx_dropout_attr attr) {
  return fx_dropout_at(graph, x, ordinal, iteration, FX_NONE, attr);
}

fx_value fx_dropout_at(fx_graph *graph, fx_value x, fx_value ordinal, fx_value iteration, fx_value blocks,
                       fx_dropout_attr attr) {
  return fx_graph_record(graph, &g_dropout, &attr, (fx_value[]){x, ordinal, iteration, blocks}, NULL);
}
