/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs: y, mean [rows] (LayerNorm only), rstd [rows]; the statistics are kept for the backward, which
 * gives dx, dweight and dbias in one pass over the rows. */
#include "dynamo_rt/ops/norm.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

static fx_status norm_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_norm_attr *a = attr;
  char text[96];
  int64_t cols = fx_type_cols(in[0]);
  bool fits = in[0]->ndim >= 2 && fx_type_contiguous(in[0]) && in[0]->dtype == FX_F32 &&
              fx_type_numel(in[1]) == cols &&
              (!in[2] || (fx_type_numel(in[2]) == cols && a->kind == FX_NORM_LAYER));
  if (!fits)
    return fx_error(FX_ERR_SHAPE, "weight or bias does not fit %s", fx_type_text(in[0], text, sizeof text));
  out[0] = *in[0];
  out[1] = out[2] = fx_type_1d(FX_F32, fx_type_rows(in[0]));
  return FX_OK;
}

static fx_cost norm_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  double n = (double)fx_type_numel(in[0]);
  return (fx_cost){6 * n, 8 * n};
}

static fx_status norm_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[1];
  out[1] = out[2] = *in[2];
  return FX_OK;
}

static const fx_op g_norm_grad = {
    .name = "norm_grad", /* dy, x, weight, mean, rstd -> dx, dweight, dbias */
    .min_in = 3,
    .max_in = 5,
    .num_out = 3,
    .attr_bytes = sizeof(fx_norm_attr),
    .can_accumulate = 7,
    .optional_out = 7,
    .infer = norm_grad_infer,
    .cost = norm_cost,
    .workspace = fx_norm_grad_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_norm_grad_cpu, [FX_BACKEND_CUDA] = fx_norm_grad_cuda},
};

static fx_status norm_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const fx_norm_attr *a = node->attr;
  fx_value out[3];
  fx_value mean = a->kind == FX_NORM_LAYER ? node->out[1] : FX_NONE;
  fx_graph_record(graph, &g_norm_grad, a, (fx_value[]){dout[0], node->in[0], node->in[1], mean, node->out[2]},
                  out);
  din[0] = out[0];
  din[1] = out[1];
  if (node->in[2] != FX_NONE) din[2] = out[2];
  return fx_graph_status(graph);
}

static const fx_op g_norm = {
    .name = "norm",
    .min_in = 2,
    .max_in = 3,
    .num_out = 3,
    .attr_bytes = sizeof(fx_norm_attr),
    .optional_out = 6,
    .infer = norm_infer,
    .vjp = norm_vjp,
    .cost = norm_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_norm_cpu, [FX_BACKEND_CUDA] = fx_norm_cuda},
};

fx_value fx_norm(fx_graph *graph, fx_value x, fx_value weight, fx_value bias, fx_norm_attr attr) {
  return fx_graph_record(graph, &g_norm, &attr, (fx_value[]){x, weight, bias}, NULL);
}
