/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU kernels of the flex_attention ops: from resolved tensors to the flash kernels' arguments. */
#ifndef FX_ATTENTION_CPU_FLEX_ATTENTION_CPU_H
#define FX_ATTENTION_CPU_FLEX_ATTENTION_CPU_H

#include "attention/flex_attention.h"

/* Inputs that all these ops have, in this order; an op's own come behind them. */
enum {
  FX_FLEX_Q,
  FX_FLEX_K,
  FX_FLEX_V,
  FX_FLEX_LIMITS,
  FX_FLEX_RUNS,
  FX_FLEX_Q_BASE,
  FX_FLEX_KV_BASE,
  FX_FLEX_BUFFERS,
  FX_FLEX_SINKS,
  FX_FLEX_TABLE,
  FX_FLEX_OWN = FX_FLEX_TABLE + FX_VARIANT_MAX_TABLES
};

typedef struct fx_attention_partial_attr {
  fx_attention_attr attention;
  int64_t first;
} fx_attention_partial_attr;

typedef struct fx_attention_add_attr {
  fx_attention_attr attention;
  int32_t parts, first;
} fx_attention_add_attr;

fx_status fx_flex_attention_cpu(const fx_kernel_args *args);
fx_status fx_flex_attention_grad_cpu(const fx_kernel_args *args);
/* Only delta is defined, and holds what the CPU's kernels do not take from out, lse and dout: dlse, or 0. */
fx_status fx_flex_attention_prepare_cpu(const fx_kernel_args *args);
/* Computes all parts and adds those that are wanted: of use where dq does not come apart. */
fx_status fx_flex_attention_grad_add_cpu(const fx_kernel_args *args);
fx_status fx_flex_attention_partial_cpu(const fx_kernel_args *args);
fx_status fx_flex_attention_finish_cpu(const fx_kernel_args *args);
size_t fx_flex_attention_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                       int threads);
size_t fx_flex_attention_grad_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                            int threads);
size_t fx_flex_attention_grad_add_workspace_cpu(const fx_type *const *in, const fx_type *out,
                                                const void *attr, int threads);
void fx_flex_attention_tile_cpu(bool backward, int32_t D, int32_t tile[2]);

#endif
