/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm (Zhang and Sennrich, arXiv:1910.07467) and LayerNorm (Ba et al., arXiv:1607.06450) over the last
 * dimension. */
#ifndef FX_DYNAMO_RT_OPS_NORM_H
#define FX_DYNAMO_RT_OPS_NORM_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_norm_kind { FX_NORM_RMS, FX_NORM_LAYER } fx_norm_kind;

typedef struct fx_norm_attr {
  int32_t kind; /* fx_norm_kind */
  float eps;    /* inside the square root */
} fx_norm_attr;

/* x [..., E] F32 or BF16, weight [E] and bias [E] (or FX_NONE; RMSNorm takes none) F32 -> as x. */
fx_value fx_norm(fx_graph *graph, fx_value x, fx_value weight, fx_value bias, fx_norm_attr attr);

/* What passes/fuse.c merges: norm(add(a, b), weight, bias), into the op returned last. */
bool fx_is_norm(const fx_node *node);
const fx_op *fx_add_norm_op(void); /* in: a, b, weight, bias; out: y, mean, rstd, sum; fx_norm_attr */

#ifdef __cplusplus
}
#endif
#endif
