/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise ops and copies. Inputs of one op have equal shapes unless said otherwise. */
#ifndef FX_DYNAMO_RT_OPS_ELEMENTWISE_H
#define FX_DYNAMO_RT_OPS_ELEMENTWISE_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* a + b (residual add), F32 or BF16. d/da = d/db = dout. */
fx_value fx_add(fx_graph *graph, fx_value a, fx_value b);
bool fx_is_add(const fx_node *node);

/* x * s with x F32 or BF16, s [] or [1] F32, a value of the graph. Gradient for x only. */
fx_value fx_scale(fx_graph *graph, fx_value x, fx_value s);

/* Contiguous copy of x (any dtype, any strides); the result may be placed as a strided view. */
fx_value fx_copy(fx_graph *graph, fx_value x);
bool fx_is_copy(const fx_node *node);

/* dtype conversion among F32, BF16 and F64 (to nearest even). */
fx_value fx_cast(fx_graph *graph, fx_value x, fx_dtype dtype);

/* F32 tensor of one number everywhere. */
fx_value fx_fill(fx_graph *graph, fx_type type, float number);
typedef struct fx_fill_attr { /* of the op that it records */
  fx_type type;
  float number;
  int32_t reserved;
} fx_fill_attr;
/* Zeros shaped as x, contiguous and of its type. */
fx_value fx_zeros_like(fx_graph *graph, fx_value x);
/* Storage without content, for an op that defines it in place. */
fx_value fx_empty(fx_graph *graph, fx_type type);
/* Whether value is a fx_fill of exactly `number`. */
bool fx_is_fill(const fx_graph *graph, fx_value value, float number);

/* dst := src, dst := dst + src, where dst is a persistent value; the result is dst after it. F32, contiguous.
 * The fold pass makes the producer of src write there itself where it can. */
fx_value fx_store(fx_graph *graph, fx_value dst, fx_value src);
fx_value fx_accumulate(fx_graph *graph, fx_value dst, fx_value src);
bool fx_is_store(const fx_node *node);
bool fx_is_accumulate(const fx_node *node);

#ifdef __cplusplus
}
#endif
#endif
