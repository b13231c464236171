/* SPDX-License-Identifier: Apache-2.0 */
/* CPU kernels of the ops in dynamo_rt/ops, and what they share: the attribute structs that both sides read,
 * the row-parallel loop, and the per-ISA clones of leaf functions. */
#ifndef FX_DYNAMO_RT_OPS_CPU_KERNELS_CPU_H
#define FX_DYNAMO_RT_OPS_CPU_KERNELS_CPU_H

#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/ops/op.h"

/* Reductions over rows (weight gradients of norms, biases, sums of squares) go through a fixed number of
 * chunks, summed in order, so that the result does not depend on the thread count. */
enum { FX_REDUCE_CHUNKS = 32 };

typedef struct fx_input_attr {
  int64_t offset; /* bytes from the slot's base */
  fx_type type;
} fx_input_attr;

/* op name, kernel: each reads the shapes and attributes documented at the op's public function */
fx_status fx_input_cpu(const fx_kernel_args *args);
fx_status fx_add_cpu(const fx_kernel_args *args);
fx_status fx_scale_cpu(const fx_kernel_args *args);
fx_status fx_copy_cpu(const fx_kernel_args *args);
fx_status fx_cast_cpu(const fx_kernel_args *args);
fx_status fx_store_cpu(const fx_kernel_args *args);
fx_status fx_linear_cpu(const fx_kernel_args *args);
fx_status fx_add_bias_cpu(const fx_kernel_args *args);
fx_status fx_linear_dx_cpu(const fx_kernel_args *args);
fx_status fx_linear_dx_act_cpu(const fx_kernel_args *args);
fx_status fx_linear_dw_cpu(const fx_kernel_args *args);
fx_status fx_act_grad_cpu(const fx_kernel_args *args);
fx_status fx_swiglu_cpu(const fx_kernel_args *args);
fx_status fx_swiglu_grad_cpu(const fx_kernel_args *args);
fx_status fx_norm_cpu(const fx_kernel_args *args);
fx_status fx_add_norm_cpu(const fx_kernel_args *args);
fx_status fx_norm_grad_cpu(const fx_kernel_args *args);
fx_status fx_rope_table_cpu(const fx_kernel_args *args);
fx_status fx_rope_cpu(const fx_kernel_args *args);
fx_status fx_embedding_cpu(const fx_kernel_args *args);
fx_status fx_embedding_grad_cpu(const fx_kernel_args *args);
fx_status fx_head_ce_cpu(const fx_kernel_args *args);
fx_status fx_vocab_embedding_cpu(const fx_kernel_args *args);
fx_status fx_vocab_embedding_grad_cpu(const fx_kernel_args *args);
fx_status fx_vocab_numbers_cpu(const fx_kernel_args *args);
fx_status fx_vocab_merge_cpu(const fx_kernel_args *args);
fx_status fx_vocab_loss_cpu(const fx_kernel_args *args);
fx_status fx_dropout_cpu(const fx_kernel_args *args);
fx_status fx_take_blocks_cpu(const fx_kernel_args *args);
fx_status fx_add_blocks_cpu(const fx_kernel_args *args);
fx_status fx_squares_cpu(const fx_kernel_args *args);
fx_status fx_clip_cpu(const fx_kernel_args *args);
fx_status fx_adamw_cpu(const fx_kernel_args *args);

/* Parts of a cross-entropy over one row of n logits, shared by the ops that have one: its maximum; x :=
 * exp(x - m), returning the sum; x := s x. */
float fx_row_max(const float *x, int64_t n);
float fx_row_exp(float *x, float m, int64_t n);
void fx_row_scale(float *x, float s, int64_t n);
/* fx_head_chunk_rows of the CPU. */
int64_t fx_head_chunk_rows_cpu(int64_t rows, int64_t vocab);

size_t fx_norm_grad_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                  int threads);
size_t fx_linear_dw_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                  int threads);
size_t fx_head_ce_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr, int threads);
size_t fx_squares_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr, int threads);

#endif
