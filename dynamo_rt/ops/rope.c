/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/rope.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

static fx_status table_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_rope_table_attr *a = attr;
  if (in[0]->ndim != 2 || in[0]->dtype != FX_I32 || a->head_dim % 2)
    return fx_error(FX_ERR_SHAPE, "positions must be int32 [B, T] and head_dim even, got head_dim %lld",
                    (long long)a->head_dim);
  out[0] = fx_type_3d(FX_F32, in[0]->dim[0], in[0]->dim[1], a->head_dim);
  return FX_OK;
}

static const fx_op g_rope_table = {
    .name = "rope_table",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(fx_rope_table_attr),
    .infer = table_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_rope_table_cpu, [FX_BACKEND_CUDA] = fx_rope_table_cuda},
};

fx_value fx_rope_table(fx_graph *graph, fx_value positions, fx_rope_table_attr attr) {
  return fx_graph_record(graph, &g_rope_table, &attr, (fx_value[]){positions}, NULL);
}

static fx_status rope_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_rope_attr *a = attr;
  char text[96];
  bool fits = in[0]->ndim == 3 && fx_type_contiguous(in[0]) && fx_is_activation(in[0]->dtype) &&
              in[1]->dtype == FX_F32 && fx_type_rows(in[0]) == fx_type_rows(in[1]) &&
              fx_type_cols(in[1]) == a->head_dim && a->heads * a->head_dim <= fx_type_cols(in[0]);
  if (!fits)
    return fx_error(FX_ERR_SHAPE, "%lld heads of %lld do not fit %s", (long long)a->heads,
                    (long long)a->head_dim, fx_type_text(in[0], text, sizeof text));
  out[0] = *in[0];
  return FX_OK;
}

/* The rotation is orthogonal, so its transpose is the rotation by the negative angle. */
static fx_status rope_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  fx_rope_attr back = *(const fx_rope_attr *)node->attr;
  back.sign = -back.sign;
  din[0] = fx_rope(graph, dout[0], node->in[1], back);
  return fx_graph_status(graph);
}

static const fx_op g_rope = {
    .name = "rope",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_rope_attr),
    .may_alias = {1},
    .infer = rope_infer,
    .vjp = rope_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_rope_cpu, [FX_BACKEND_CUDA] = fx_rope_cuda},
};

fx_value fx_rope(fx_graph *graph, fx_value x, fx_value table, fx_rope_attr attr) {
  return fx_graph_record(graph, &g_rope, &attr, (fx_value[]){x, table}, NULL);
}
