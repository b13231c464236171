/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of the double reference: what a function gets, and the table of all of them. */
#ifndef FX_TESTS_DOUBLE_OPS_H
#define FX_TESTS_DOUBLE_OPS_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_double_tensor {
  double *data; /* contiguous; NULL: an absent input, or an output that nobody reads */
  fx_type type; /* as recorded; its strides do not hold here */
  int64_t n, rows, cols;
} fx_double_tensor;

/* An output that is its input's memory has its address. */
typedef struct fx_double_call {
  fx_double_tensor in[FX_MAX_IN], out[FX_MAX_OUT];
  const void *attr;
  int layer;
} fx_double_call;

typedef fx_status (*fx_double_op)(const fx_double_call *call);

/* X(name of the op), each the function fx_double_<name> */
#define FX_DOUBLE_OP_LIST(X) \
  X(add)                     \
  X(scale)                   \
  X(copy)                    \
  X(cast)                    \
  X(fill)                    \
  X(store)                   \
  X(accumulate)              \
  X(take_blocks)             \
  X(add_blocks)              \
  X(linear)                  \
  X(linear_dx)               \
  X(linear_dw)               \
  X(act_grad)                \
  X(add_bias)                \
  X(swiglu)                  \
  X(swiglu_grad)             \
  X(norm)                    \
  X(norm_grad)               \
  X(rope_table)              \
  X(rope)                    \
  X(dropout)                 \
  X(squares)                 \
  X(clip)                    \
  X(adamw)                   \
  X(embedding)               \
  X(embedding_grad)          \
  X(head_ce)                 \
  X(vocab_embedding)         \
  X(vocab_embedding_grad)    \
  X(vocab_numbers)           \
  X(vocab_merge)             \
  X(vocab_loss)

#define FX_DOUBLE_OP_DECLARE(name) fx_status fx_double_##name(const fx_double_call *call);
FX_DOUBLE_OP_LIST(FX_DOUBLE_OP_DECLARE)
#undef FX_DOUBLE_OP_DECLARE

#ifdef __cplusplus
}
#endif
#endif
