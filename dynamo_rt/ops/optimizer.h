/* SPDX-License-Identifier: Apache-2.0 */
/* The update of a step over flat fp32 buffers. A step whose gradient norm is not finite changes nothing. */
#ifndef FX_DYNAMO_RT_OPS_OPTIMIZER_H
#define FX_DYNAMO_RT_OPS_OPTIMIZER_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_MAX_SQUARES = 10 };
/* Sum of the squares of up to FX_MAX_SQUARES contiguous F32 ranges -> F64 [1], in double over fixed chunks in
 * order. Ranks that hold parts of a gradient add theirs up before fx_clip. */
fx_value fx_squares(fx_graph *graph, const fx_value *grads, int count);

typedef struct fx_clip_attr {
  double max_norm; /* 0: do not clip */
} fx_clip_attr;

/* Global L2 norm [1] F32 of a gradient by its sum of squares, and the factor that brings it down to max_norm:
 * min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. Returns norm. */
fx_value fx_clip(fx_graph *graph, fx_value squares, fx_clip_attr attr, fx_value *factor);

typedef struct fx_adamw_attr {
  double beta1, beta2, eps, weight_decay;
  uint64_t seed;      /* of the stochastic rounding */
  int64_t first;      /* place of element 0 in the parameters of the whole model, whatever the layout */
  int32_t stochastic; /* round `compute` up with the probability of what is cut off, not to nearest even */
  int32_t reserved;
} fx_adamw_attr;

/* AdamW (Loshchilov and Hutter, arXiv:1711.05101), the arithmetic of torch.optim.AdamW in fp32: param,
 * exp_avg, exp_avg_sq [n] F32 are updated in place from factor * grad. lr [1] F32; step [1] int64, 1 for the
 * first update. A norm that is not finite leaves them as they were.
 * compute: FX_NONE, or [n] BF16, which receives the new parameters rounded in the same pass (and is left as
 * it was where they are). Sixteen bits of Philox(seed, hash of FX_ADAMW_SITE, place / 8, step) round an
 * element stochastically, the same ones on every layout and backend. snapshot: NULL, or three buffers [n]
 * that receive param, exp_avg and exp_avg_sq after the step in the same pass: a checkpoint's copy for 12
 * bytes of writing an element, while a copy of its own would read them again.
 */
#define FX_ADAMW_SITE "adamw.round"
typedef struct fx_adamw_values {
  fx_value param, grad, exp_avg, exp_avg_sq, lr, step, norm, factor, compute;
} fx_adamw_values;
void fx_adamw(fx_graph *graph, const fx_adamw_values *values, const fx_value snapshot[3], fx_adamw_attr attr);

#ifdef __cplusplus
}
#endif
#endif
