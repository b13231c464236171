/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs: y, mean [rows] (LayerNorm only), rstd [rows]; the statistics are kept for the backward, which
 * gives dx, dweight and dbias in one pass over the rows. x, y and their gradients are of one type T, float32
 * or bfloat16; weights, statistics and their gradients are float32. */
#include "dynamo_rt/ops/norm.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

/* x of type T (float32 or bfloat16) and contiguous; weight and bias float32. */
static fx_status check(const fx_type *x, const fx_type *weight, const fx_type *bias, int32_t kind) {
  char text[96];
  fx_type_text(x, text, sizeof text);
  if (x->ndim < 2 || !fx_type_contiguous(x) || (x->dtype != FX_F32 && x->dtype != FX_BF16))
    return fx_error(FX_ERR_SHAPE, "the input %s must be contiguous rows of float32 or bfloat16", text);
  if (weight->dtype != FX_F32 || (bias && bias->dtype != FX_F32))
    return fx_error(FX_ERR_SHAPE, "weight and bias must be float32, whatever the input %s is", text);
  if (bias && kind != FX_NORM_LAYER) return fx_error(FX_ERR_SHAPE, "RMSNorm takes no bias");
  if (fx_type_numel(weight) != fx_type_cols(x) || (bias && fx_type_numel(bias) != fx_type_cols(x)))
    return fx_error(FX_ERR_SHAPE, "weight or bias does not fit %s", text);
  return FX_OK;
}

static fx_status norm_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  FX_TRY(check(in[0], in[1], in[2], ((const fx_norm_attr *)attr)->kind));
  out[0] = *in[0];
  out[1] = out[2] = fx_type_1d(FX_F32, fx_type_rows(in[0]));
  return FX_OK;
}

/* 6 operations an element, and each of the `moved` matrices moved once. */
static fx_cost pass_over(const fx_type *x, int moved) {
  return (fx_cost){6 * (double)fx_type_numel(x), moved * (double)fx_type_bytes(x)};
}

static fx_cost norm_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  return pass_over(in[0], 2);
}

static fx_cost norm_grad_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  return pass_over(in[1], out[0].ndim ? 3 : 2);
}

static fx_status norm_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  char left[96], right[96];
  if (!fx_type_same_shape(in[0], in[1]) || in[0]->dtype != in[1]->dtype || !fx_type_contiguous(in[0]))
    return fx_error(FX_ERR_SHAPE, "the gradient %s must be as the input %s",
                    fx_type_text(in[0], left, sizeof left), fx_type_text(in[1], right, sizeof right));
  FX_TRY(check(in[1], in[2], NULL, ((const fx_norm_attr *)attr)->kind));
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
    .cost = norm_grad_cost,
    .workspace = fx_norm_grad_workspace_cpu,
    .workspace_cuda = fx_norm_grad_workspace_cuda,
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

bool fx_is_norm(const fx_node *node) {
  return node->op == &g_norm;
}

/* ---- norm of a sum ---- */

static fx_status add_norm_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  char left[96], right[96];
  if (!fx_type_same_shape(in[0], in[1]) || in[0]->dtype != in[1]->dtype || !fx_type_contiguous(in[1]))
    return fx_error(FX_ERR_SHAPE, "%s does not match %s", fx_type_text(in[0], left, sizeof left),
                    fx_type_text(in[1], right, sizeof right));
  FX_TRY(check(in[0], in[2], in[3], ((const fx_norm_attr *)attr)->kind));
  out[0] = out[3] = *in[0];
  out[1] = out[2] = fx_type_1d(FX_F32, fx_type_rows(in[0]));
  return FX_OK;
}

static fx_cost add_norm_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  fx_cost cost = pass_over(in[0], out[3].ndim ? 4 : 3);
  cost.flops += (double)fx_type_numel(in[0]);
  return cost;
}

/* Made by passes/fuse.c alone. The statistics are those of the sum as it is stored, rounded to T. y may take
 * over the memory of b, the sum that of a: a row is read before it is written. */
static const fx_op g_add_norm = {
    .name = "add_norm", /* a, b, weight, bias -> y, mean, rstd, sum */
    .min_in = 3,
    .max_in = 4,
    .num_out = 4,
    .attr_bytes = sizeof(fx_norm_attr),
    .optional_out = 14,
    .may_alias = {2, 0, 0, 1},
    .infer = add_norm_infer,
    .cost = add_norm_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_add_norm_cpu, [FX_BACKEND_CUDA] = fx_add_norm_cuda},
};

const fx_op *fx_add_norm_op(void) {
  return &g_add_norm;
}
