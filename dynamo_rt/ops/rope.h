/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split layout of Hugging Face's Llama:
 * lane i of the first half pairs with lane i of the second half. */
#ifndef FX_DYNAMO_RT_OPS_ROPE_H
#define FX_DYNAMO_RT_OPS_ROPE_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_rope_table_attr {
  int64_t head_dim;
  double theta; /* base of the frequencies theta^(-2i/D) */
} fx_rope_table_attr;

typedef struct fx_rope_attr {
  int64_t heads, head_dim; /* the first heads * head_dim columns are rotated, the rest pass through */
  int64_t sign;            /* +1 forward, -1 backward (the inverse rotation) */
} fx_rope_attr;

/* positions [B, T] int32 -> [B, T, D]: cos of the D/2 angles, then their sin. Once a micro-batch. */
fx_value fx_rope_table(fx_graph *graph, fx_value positions, fx_rope_table_attr attr);
/* x [B, T, C] F32 or BF16, table [B, T, D] F32 -> x with its first `heads` heads rotated. */
fx_value fx_rope(fx_graph *graph, fx_value x, fx_value table, fx_rope_attr attr);

#ifdef __cplusplus
}
#endif
#endif
