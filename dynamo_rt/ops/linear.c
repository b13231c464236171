/* SPDX-License-Identifier: Apache-2.0 */
/* linear is y = act(pre), pre = x W^T + b; `pre` is its second output, dropped when no backward reads it. The
 * backward is four separate ops so that unused ones vanish and each can add straight into its gradient. */
#include "dynamo_rt/ops/linear.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

static fx_status need(bool fits, const fx_type *a, const fx_type *b, const char *what) {
  char left[96], right[96];
  if (fits) return FX_OK;
  return fx_error(FX_ERR_SHAPE, "%s: %s and %s do not fit", what, fx_type_text(a, left, sizeof left),
                  fx_type_text(b, right, sizeof right));
}

static fx_type with_cols(const fx_type *like, int64_t cols) {
  fx_type type = *like;
  type.dim[type.ndim - 1] = cols;
  return fx_type_of(type.dtype, type.ndim, type.dim);
}

static fx_cost gemm_cost(double rows, double in, double out) {
  return (fx_cost){2 * rows * in * out, 4 * (rows * in + rows * out + in * out)};
}

static fx_status linear_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_linear_attr *a = attr;
  int64_t w_in = in[1]->dim[a->in_out ? 0 : 1], w_out = in[1]->dim[a->in_out ? 1 : 0];
  bool fits = in[0]->ndim >= 2 && in[1]->ndim == 2 && fx_type_cols(in[0]) == w_in &&
              fx_type_contiguous(in[0]) && fx_type_contiguous(in[1]) && in[0]->dtype == FX_F32 &&
              in[1]->dtype == FX_F32;
  FX_TRY(need(fits, in[0], in[1], "input and weight"));
  if (in[2]) FX_TRY(need(fx_type_numel(in[2]) == w_out, in[1], in[2], "weight and bias"));
  out[0] = out[1] = with_cols(in[0], w_out);
  return FX_OK;
}

static fx_cost linear_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  return gemm_cost((double)fx_type_rows(in[0]), (double)fx_type_cols(in[0]), (double)fx_type_cols(&out[0]));
}

/* ---- backward ops ---- */

static fx_status dx_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_linear_attr *a = attr;
  FX_TRY(need(fx_type_cols(in[0]) == in[1]->dim[a->in_out ? 1 : 0], in[0], in[1], "gradient and weight"));
  out[0] = with_cols(in[0], in[1]->dim[a->in_out ? 0 : 1]);
  return FX_OK;
}

static const fx_op g_linear_dx = {
    .name = "linear_dx", /* dy [.., O], W -> dx [.., I] */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_linear_attr),
    .can_accumulate = 1,
    .infer = dx_infer,
    .cost = linear_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_linear_dx_cpu, [FX_BACKEND_CUDA] = fx_linear_dx_cuda},
};

static fx_status dw_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_linear_attr *a = attr;
  FX_TRY(need(fx_type_rows(in[0]) == fx_type_rows(in[1]), in[0], in[1], "gradient and input"));
  int64_t width_out = fx_type_cols(in[0]), width_in = fx_type_cols(in[1]);
  out[0] = a->in_out ? fx_type_2d(FX_F32, width_in, width_out) : fx_type_2d(FX_F32, width_out, width_in);
  return FX_OK;
}

static fx_cost dw_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  return gemm_cost((double)fx_type_rows(in[0]), (double)fx_type_cols(in[0]), (double)fx_type_cols(in[1]));
}

static const fx_op g_linear_dw = {
    .name = "linear_dw", /* dy [.., O], x [.., I] -> dW, shaped as W */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_linear_attr),
    .can_accumulate = 1,
    .infer = dw_infer,
    .cost = dw_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_linear_dw_cpu, [FX_BACKEND_CUDA] = fx_linear_dw_cuda},
};

static fx_status bias_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = fx_type_1d(FX_F32, fx_type_cols(in[0]));
  return FX_OK;
}

static const fx_op g_bias_grad = {
    .name = "bias_grad", /* dy [.., O] -> [O], summed over rows in fixed chunks */
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .can_accumulate = 1,
    .infer = bias_grad_infer,
    .workspace = fx_bias_grad_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_bias_grad_cpu, [FX_BACKEND_CUDA] = fx_bias_grad_cuda},
};

static fx_status act_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  FX_TRY(need(fx_type_same_shape(in[0], in[1]), in[0], in[1], "gradient and input"));
  out[0] = *in[0];
  return FX_OK;
}

static const fx_op g_act_grad = {
    .name = "act_grad", /* dy, pre -> dy * act'(pre) */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_linear_attr),
    .may_alias = {1},
    .infer = act_grad_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_act_grad_cpu, [FX_BACKEND_CUDA] = fx_act_grad_cuda},
};

static fx_status linear_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const fx_linear_attr *a = node->attr;
  fx_value dpre = dout[0];
  if (a->activation != FX_ACT_NONE)
    dpre = fx_graph_record(graph, &g_act_grad, a, (fx_value[]){dout[0], node->out[1]}, NULL);
  din[0] = fx_graph_record(graph, &g_linear_dx, a, (fx_value[]){dpre, node->in[1]}, NULL);
  din[1] = fx_graph_record(graph, &g_linear_dw, a, (fx_value[]){dpre, node->in[0]}, NULL);
  if (node->in[2] != FX_NONE) din[2] = fx_graph_record(graph, &g_bias_grad, NULL, (fx_value[]){dpre}, NULL);
  return fx_graph_status(graph);
}

static const fx_op g_linear = {
    .name = "linear",
    .min_in = 2,
    .max_in = 3,
    .num_out = 2,
    .attr_bytes = sizeof(fx_linear_attr),
    .optional_out = 2,
    .infer = linear_infer,
    .vjp = linear_vjp,
    .cost = linear_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_linear_cpu, [FX_BACKEND_CUDA] = fx_linear_cuda},
};

fx_value fx_linear(fx_graph *graph, fx_value x, fx_value weight, fx_value bias, fx_linear_attr attr) {
  return fx_graph_record(graph, &g_linear, &attr, (fx_value[]){x, weight, bias}, NULL);
}

/* ---- SwiGLU ---- */

static fx_status swiglu_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  char text[96];
  int64_t cols = fx_type_cols(in[0]);
  if (cols % 2 || !fx_type_contiguous(in[0]))
    return fx_error(FX_ERR_SHAPE, "%s is not gate | up", fx_type_text(in[0], text, sizeof text));
  out[0] = with_cols(in[0], cols / 2);
  return FX_OK;
}

static fx_status swiglu_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  FX_TRY(need(fx_type_cols(in[0]) * 2 == fx_type_cols(in[1]), in[0], in[1], "gradient and input"));
  out[0] = *in[1];
  return FX_OK;
}

static const fx_op g_swiglu_grad = {
    .name = "swiglu_grad", /* dy [.., F], x [.., 2F] -> dx [.., 2F] */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .may_alias = {2},
    .infer = swiglu_grad_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_swiglu_grad_cpu, [FX_BACKEND_CUDA] = fx_swiglu_grad_cuda},
};

static fx_status swiglu_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  din[0] = fx_graph_record(graph, &g_swiglu_grad, NULL, (fx_value[]){dout[0], node->in[0]}, NULL);
  return fx_graph_status(graph);
}

static const fx_op g_swiglu = {
    .name = "swiglu",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .infer = swiglu_infer,
    .vjp = swiglu_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_swiglu_cpu, [FX_BACKEND_CUDA] = fx_swiglu_cuda},
};

fx_value fx_swiglu(fx_graph *graph, fx_value x) {
  return fx_graph_record(graph, &g_swiglu, NULL, (fx_value[]){x}, NULL);
}
