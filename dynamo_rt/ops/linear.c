/* SPDX-License-Identifier: Apache-2.0 */
/* linear is y = act(pre), pre = x W^T + b; `pre` is its second output, dropped when no backward reads it. The
 * backward is separate ops so that unused ones vanish and each can add straight into its gradient; both
 * parameters' gradients are one op, which leaves to the backend whether dy is read once or twice for them.
 *
 * Activations and weights are of one type T, float32 or bfloat16; gradients of parameters are float32. */
#include "dynamo_rt/ops/linear.h"

#include "dynamo_rt/graph/autograd.h"
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

/* All of these are contiguous and of one type T. */
static fx_status need_floats(const char *const *what, const fx_type *const *type, int count) {
  char text[96];
  fx_dtype first = type[0]->dtype;
  for (int i = 0; i < count; i++) {
    if (i > 0 && !type[i]) continue;
    if (type[i]->dtype != FX_F32 && type[i]->dtype != FX_BF16)
      return fx_error(FX_ERR_SHAPE, "%s %s must be float32 or bfloat16", what[i],
                      fx_type_text(type[i], text, sizeof text));
    if (type[i]->dtype != first)
      return fx_error(FX_ERR_SHAPE, "%s %s must be %s, as %s is", what[i],
                      fx_type_text(type[i], text, sizeof text), fx_dtype_name(first), what[0]);
    if (!fx_type_contiguous(type[i]))
      return fx_error(FX_ERR_SHAPE, "%s %s must be contiguous", what[i],
                      fx_type_text(type[i], text, sizeof text));
  }
  return FX_OK;
}

/* flops, and every present input and output moved once. */
static fx_cost cost_of(double flops, const fx_type *const *in, int num_in, const fx_type *out, int num_out) {
  double bytes = 0;
  for (int i = 0; i < num_in; i++)
    if (in[i]) bytes += (double)fx_type_bytes(in[i]);
  for (int i = 0; i < num_out; i++)
    if (out[i].ndim) bytes += (double)fx_type_bytes(&out[i]);
  return (fx_cost){flops, bytes};
}

static double product_flops(const fx_type *rows, double in, double out) {
  return 2 * (double)fx_type_rows(rows) * in * out;
}

static fx_status linear_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the input", "the weight", "the bias"};
  const fx_linear_attr *a = attr;
  FX_TRY(need_floats(what, in, 3));
  FX_TRY(need(in[0]->ndim >= 2 && in[1]->ndim == 2, in[0], in[1], "input and weight"));
  int64_t w_in = in[1]->dim[a->in_out ? 0 : 1], w_out = in[1]->dim[a->in_out ? 1 : 0];
  FX_TRY(need(fx_type_cols(in[0]) == w_in, in[0], in[1], "input and weight"));
  if (in[2]) FX_TRY(need(fx_type_numel(in[2]) == w_out, in[1], in[2], "weight and bias"));
  out[0] = out[1] = with_cols(in[0], w_out);
  return FX_OK;
}

static fx_cost linear_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  double flops = product_flops(in[0], (double)fx_type_cols(in[0]), (double)fx_type_cols(&out[0]));
  return cost_of(flops, in, 3, out, 2);
}

/* ---- backward ops ---- */

static fx_status dx_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the gradient", "the weight"};
  const fx_linear_attr *a = attr;
  FX_TRY(need_floats(what, in, 2));
  FX_TRY(need(in[1]->ndim == 2 && fx_type_cols(in[0]) == in[1]->dim[a->in_out ? 1 : 0], in[0], in[1],
              "gradient and weight"));
  out[0] = with_cols(in[0], in[1]->dim[a->in_out ? 0 : 1]);
  return FX_OK;
}

static fx_cost dx_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  double flops = product_flops(in[0], (double)fx_type_cols(in[0]), (double)fx_type_cols(&out[0]));
  return cost_of(flops, in, 2, out, 1);
}

static const fx_op g_linear_dx = {
    .name = "linear_dx", /* dy [.., O], W -> dx [.., I]; the activation is not looked at */
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_linear_attr),
    .can_accumulate = 1,
    .infer = dx_infer,
    .cost = dx_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_linear_dx_cpu, [FX_BACKEND_CUDA] = fx_linear_dx_cuda},
};

static fx_status dx_act_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the gradient", "the weight", "the pre-activation"};
  FX_TRY(need_floats(what, in, 3));
  FX_TRY(dx_infer(in, attr, out));
  return need(fx_type_same_shape(&out[0], in[2]), &out[0], in[2], "gradient and pre-activation");
}

static fx_cost dx_act_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  double flops = product_flops(in[0], (double)fx_type_cols(in[0]), (double)fx_type_cols(&out[0]));
  return cost_of(flops, in, 3, out, 1);
}

/* Made by passes/fuse.c alone. Its attributes: the layout of W, the activation that made pre's successor. */
static const fx_op g_linear_dx_act = {
    .name = "linear_dx_act", /* dy [.., O], W, pre [.., I] -> (dy W) act'(pre) [.., I] */
    .min_in = 3,
    .max_in = 3,
    .num_out = 1,
    .attr_bytes = sizeof(fx_linear_attr),
    .infer = dx_act_infer,
    .cost = dx_act_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_linear_dx_act_cpu, [FX_BACKEND_CUDA] = fx_linear_dx_act_cuda},
};

static fx_status dw_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the gradient", "the input"};
  const fx_linear_attr *a = attr;
  FX_TRY(need_floats(what, in, 2));
  FX_TRY(need(fx_type_rows(in[0]) == fx_type_rows(in[1]), in[0], in[1], "gradient and input"));
  int64_t width_out = fx_type_cols(in[0]), width_in = fx_type_cols(in[1]);
  out[0] = a->in_out ? fx_type_2d(FX_F32, width_in, width_out) : fx_type_2d(FX_F32, width_out, width_in);
  out[1] = fx_type_1d(FX_F32, width_out);
  return FX_OK;
}

static fx_cost dw_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  double flops = product_flops(in[0], (double)fx_type_cols(in[0]), (double)fx_type_cols(in[1]));
  return cost_of(out[0].ndim ? flops : 0, in, 2, out, 2);
}

static const fx_op g_linear_dw = {
    .name = "linear_dw", /* dy [.., O], x [.., I] -> dW, shaped as W, and db [O], summed in fixed chunks */
    .min_in = 2,
    .max_in = 2,
    .num_out = 2,
    .attr_bytes = sizeof(fx_linear_attr),
    .can_accumulate = 3,
    .optional_out = 3,
    .infer = dw_infer,
    .cost = dw_cost,
    .workspace = fx_linear_dw_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_linear_dw_cpu, [FX_BACKEND_CUDA] = fx_linear_dw_cuda},
};

static fx_status act_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the gradient", "the pre-activation"};
  (void)attr;
  FX_TRY(need_floats(what, in, 2));
  FX_TRY(need(fx_type_same_shape(in[0], in[1]), in[0], in[1], "gradient and pre-activation"));
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
  fx_linear_attr layout = {a->in_out, FX_ACT_NONE};
  fx_value dpre = dout[0], grads[2], x = fx_autograd_saved(graph, node->in[0]);
  if (a->activation != FX_ACT_NONE)
    dpre = fx_graph_record(graph, &g_act_grad, a, (fx_value[]){dout[0], node->out[1]}, NULL);
  din[0] = fx_graph_record(graph, &g_linear_dx, &layout, (fx_value[]){dpre, node->in[1]}, NULL);
  fx_graph_record(graph, &g_linear_dw, &layout, (fx_value[]){dpre, x}, grads);
  din[1] = grads[0];
  if (node->in[2] != FX_NONE) din[2] = grads[1];
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

fx_value fx_linear_dx(fx_graph *graph, fx_value dy, fx_value weight, fx_linear_attr attr) {
  fx_linear_attr layout = {attr.in_out, FX_ACT_NONE};
  return fx_graph_record(graph, &g_linear_dx, &layout, (fx_value[]){dy, weight}, NULL);
}

fx_value fx_linear_dw(fx_graph *graph, fx_value dy, fx_value x, fx_linear_attr attr) {
  fx_linear_attr layout = {attr.in_out, FX_ACT_NONE};
  return fx_graph_record(graph, &g_linear_dw, &layout, (fx_value[]){dy, x}, NULL);
}

/* ---- a bias of its own ---- */

static fx_status add_bias_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the input", "the bias"};
  (void)attr;
  FX_TRY(need_floats(what, in, 2));
  FX_TRY(need(fx_type_numel(in[1]) == fx_type_cols(in[0]), in[0], in[1], "input and bias"));
  out[0] = *in[0];
  return FX_OK;
}

static fx_status add_bias_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  fx_value grads[2];
  (void)node;
  fx_graph_record(graph, &g_linear_dw, &(fx_linear_attr){0, FX_ACT_NONE}, (fx_value[]){dout[0], dout[0]},
                  grads); /* for db alone: dW is dropped */
  din[0] = dout[0];
  din[1] = grads[1];
  return fx_graph_status(graph);
}

static const fx_op g_add_bias = {
    .name = "add_bias",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .may_alias = {1},
    .infer = add_bias_infer,
    .vjp = add_bias_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_add_bias_cpu, [FX_BACKEND_CUDA] = fx_add_bias_cuda},
};

fx_value fx_add_bias(fx_graph *graph, fx_value x, fx_value bias) {
  return fx_graph_record(graph, &g_add_bias, NULL, (fx_value[]){x, bias}, NULL);
}

bool fx_is_linear_dx(const fx_node *node) {
  return node->op == &g_linear_dx;
}
bool fx_is_act_grad(const fx_node *node) {
  return node->op == &g_act_grad;
}
const fx_op *fx_linear_dx_act_op(void) {
  return &g_linear_dx_act;
}

/* ---- SwiGLU ---- */

static fx_status swiglu_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the input"};
  (void)attr;
  char text[96];
  int64_t cols = fx_type_cols(in[0]);
  FX_TRY(need_floats(what, in, 1));
  if (cols % 2) return fx_error(FX_ERR_SHAPE, "%s is not gate | up", fx_type_text(in[0], text, sizeof text));
  out[0] = with_cols(in[0], cols / 2);
  return FX_OK;
}

static fx_status swiglu_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  static const char *const what[] = {"the gradient", "the input"};
  (void)attr;
  FX_TRY(need_floats(what, in, 2));
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
