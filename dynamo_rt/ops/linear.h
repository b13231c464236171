/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers with a fused bias and activation epilogue, and SwiGLU. x is [..., I] and contiguous; x,
 * weight, bias and the result are all F32 or all BF16, the gradients of weight and bias are F32 either way.
 */
#ifndef FX_DYNAMO_RT_OPS_LINEAR_H
#define FX_DYNAMO_RT_OPS_LINEAR_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GELU: x Phi(x), exact through erf; GELU_TANH: its tanh form (Hendrycks and Gimpel, arXiv:1606.08415). */
typedef enum fx_activation { FX_ACT_NONE, FX_ACT_GELU, FX_ACT_GELU_TANH } fx_activation;

typedef struct fx_linear_attr {
  int32_t in_out;     /* weight stored [I, O] (GPT-2's Conv1D) instead of [O, I] */
  int32_t activation; /* fx_activation */
} fx_linear_attr;

/* act(x W^T + bias) -> [..., O]; bias [O] or FX_NONE. */
fx_value fx_linear(fx_graph *graph, fx_value x, fx_value weight, fx_value bias, fx_linear_attr attr);

/* The parts of its backward: dx [..., I] from dy [..., O] and the weight; dW (F32, shaped as the weight) from
 * dy and x. attr: the weight's layout. */
fx_value fx_linear_dx(fx_graph *graph, fx_value dy, fx_value weight, fx_linear_attr attr);
fx_value fx_linear_dw(fx_graph *graph, fx_value dy, fx_value x, fx_linear_attr attr);

/* x [..., O] + bias [O]: a bias apart from its product, where a sum over ranks lies between. */
fx_value fx_add_bias(fx_graph *graph, fx_value x, fx_value bias);

/* x [..., 2F] = gate | up -> silu(gate) * up [..., F] (Shazeer, arXiv:2002.05202). */
fx_value fx_swiglu(fx_graph *graph, fx_value x);

/* What passes/fuse.c merges: act_grad(linear_dx(dy, W), pre), into the op returned last. */
bool fx_is_linear_dx(const fx_node *node);
bool fx_is_act_grad(const fx_node *node);
const fx_op *fx_linear_dx_act_op(void); /* in: dy, W, pre; attributes: W's layout, pre's activation */

#ifdef __cplusplus
}
#endif
#endif
