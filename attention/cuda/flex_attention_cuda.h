/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels of the flex_attention ops: from resolved tensors to the flash kernels' arguments.
 *
 * What differs from the CPU: limits may have R = 2 intervals; D is 64, 96, 128 or 256; an index of the score
 * that leaves its buffer is reported by the next sync of the device; gradients of learnable
 * tables are sums of fp32 atomics, so their last bits differ from run to run, everything else is the same bit
 * for bit. Kernels are compiled at their first use: run once before a graph is captured. */
#ifndef FX_ATTENTION_CUDA_FLEX_ATTENTION_CUDA_H
#define FX_ATTENTION_CUDA_FLEX_ATTENTION_CUDA_H

#include "attention/flex_attention.h"

fx_status fx_flex_attention_cuda(const fx_kernel_args *args);
fx_status fx_flex_attention_grad_cuda(const fx_kernel_args *args);
fx_status fx_flex_attention_prepare_cuda(const fx_kernel_args *args);
fx_status fx_flex_attention_grad_add_cuda(const fx_kernel_args *args);
fx_status fx_flex_attention_partial_cuda(const fx_kernel_args *args);
fx_status fx_flex_attention_finish_cuda(const fx_kernel_args *args);
size_t fx_flex_attention_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                        int threads);
size_t fx_flex_attention_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                             int threads);
void fx_flex_attention_tile_cuda(bool backward, int32_t D, int32_t tile[2]);
bool fx_flex_attention_runs_on_cuda(int32_t D);

#endif
