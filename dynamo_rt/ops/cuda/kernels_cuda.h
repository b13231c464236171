/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA kernels of the ops in dynamo_rt/ops: the table of __global__ functions, how one is launched, and the
 * host side of each op, which matches its CPU kernel. Private to folders named cuda/ and the op files. */
#ifndef FX_DYNAMO_RT_OPS_CUDA_KERNELS_CUDA_H
#define FX_DYNAMO_RT_OPS_CUDA_KERNELS_CUDA_H

#include "dynamo_rt/base/cache.h"
#include "dynamo_rt/codegen/cuda/source.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/ops/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, file, function, types). TYPED: the source is compiled once per element type T, float32 and
 * bfloat16, and fx_cuda_run is told which. SINGLE: one kernel, whatever the type. */
#define FX_CUDA_KERNEL_LIST(X)                                 \
  X(ADD, "elementwise.cu", "add_f32", SINGLE)                  \
  X(SCALE, "elementwise.cu", "scale_f32", SINGLE)              \
  X(FILL, "elementwise.cu", "fill_f32", SINGLE)                \
  X(COPY_VIEW, "elementwise.cu", "copy_view", SINGLE)          \
  X(CAST, "elementwise.cu", "cast", SINGLE)                    \
  X(BIAS_ACT, "linear.cu", "bias_act", SINGLE)                 \
  X(ACT_GRAD, "linear.cu", "act_grad", SINGLE)                 \
  X(SWIGLU, "linear.cu", "swiglu", SINGLE)                     \
  X(SWIGLU_GRAD, "linear.cu", "swiglu_grad", SINGLE)           \
  X(SUM_ROWS_PARTIAL, "linear.cu", "sum_rows_partial", SINGLE) \
  X(SUM_PARTIALS, "linear.cu", "sum_partials", SINGLE)         \
  X(NORM, "norm.cu", "norm_forward", SINGLE)                   \
  X(NORM_DX, "norm.cu", "norm_dx", SINGLE)                     \
  X(NORM_DW_PARTIAL, "norm.cu", "norm_dw_partial", SINGLE)     \
  X(ROPE_TABLE, "rope.cu", "rope_table", SINGLE)               \
  X(ROPE, "rope.cu", "rope", SINGLE)                           \
  X(EMBEDDING, "embedding.cu", "embedding", SINGLE)            \
  X(EMBEDDING_GRAD, "embedding.cu", "embedding_grad", SINGLE)  \
  X(DROPOUT, "embedding.cu", "dropout", SINGLE)                \
  X(CROSS_ENTROPY, "head.cu", "cross_entropy", SINGLE)         \
  X(SUM_NLL, "head.cu", "sum_nll", SINGLE)                     \
  X(SQUARE_PARTIAL, "optimizer.cu", "square_partial", SINGLE)  \
  X(CLIP_FACTOR, "optimizer.cu", "clip_factor", SINGLE)        \
  X(ADAMW, "optimizer.cu", "adamw_f32", SINGLE)

typedef enum fx_cuda_kernel {
#define FX_CUDA_KERNEL_ENUM(name, file, function, types) FX_CUDA_##name,
  FX_CUDA_KERNEL_LIST(FX_CUDA_KERNEL_ENUM)
#undef FX_CUDA_KERNEL_ENUM
      FX_CUDA_KERNEL_COUNT
} fx_cuda_kernel;

typedef struct fx_cuda_kernels fx_cuda_kernels;

/* Whether a source has TYPED kernels: it is compiled once per type. */
bool fx_cuda_op_typed(const fx_cuda_source *source);
/* Compiles one source behind the text of block.cuh with T = dtype (F32 or BF16; F32 where the source is not
 * typed); needs no GPU. image->data is the caller's. */
fx_status fx_cuda_op_compile(const fx_cuda_source *source, fx_dtype dtype, const char *arch,
                             fx_cache_image *image);
/* Compiles (or finds in the cache) all of them, on several threads, and loads them into the current context.
 */
fx_status fx_cuda_kernels_load(const fx_cuda_driver *driver, const char *arch, fx_cuda_kernels **out);
void fx_cuda_kernels_unload(fx_cuda_kernels *kernels); /* NULL is fine */
const fx_cuda_function *fx_cuda_kernels_get(const fx_cuda_kernels *kernels, fx_cuda_kernel kernel,
                                            fx_dtype dtype);

/* ---- launching, from an op's host function; dtype is the element type T of a TYPED kernel, F32 or BF16, and
 * is not looked at for a SINGLE one ---- */

enum { FX_CUDA_BLOCK = 256 };

#define FX_CUDA_ARGS(...) ((void *[]){__VA_ARGS__})

fx_status fx_cuda_run(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, fx_cuda_dim grid,
                      fx_cuda_dim block, void **params);
/* One-dimensional, grid stride: enough blocks for n elements, at most a few a multiprocessor. */
fx_status fx_cuda_run_flat(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, int64_t n,
                           void **params);
/* `rows` blocks of one row each, with threads for `cols` columns. */
fx_status fx_cuda_run_rows(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, int64_t rows,
                           int64_t cols, void **params);
/* bytes from one address to another, of host or device, on the op's stream. */
fx_status fx_cuda_run_copy(const fx_kernel_args *args, void *to, const void *from, size_t bytes);
/* Second stage of sums over rows: sum[cols] (+)= the chunks of partial[chunks, cols], in order. */
fx_status fx_cuda_run_sum_partials(const fx_kernel_args *args, float *partial, float *sum, int chunks,
                                   int64_t cols, int add);

/* ---- ops ---- */

fx_status fx_input_cuda(const fx_kernel_args *args);
fx_status fx_add_cuda(const fx_kernel_args *args);
fx_status fx_scale_cuda(const fx_kernel_args *args);
fx_status fx_fill_cuda(const fx_kernel_args *args, float number);
fx_status fx_copy_cuda(const fx_kernel_args *args);
fx_status fx_cast_cuda(const fx_kernel_args *args);
fx_status fx_store_cuda(const fx_kernel_args *args);
fx_status fx_linear_cuda(const fx_kernel_args *args);
fx_status fx_linear_dx_cuda(const fx_kernel_args *args);
fx_status fx_linear_dx_act_cuda(const fx_kernel_args *args);
fx_status fx_linear_dw_cuda(const fx_kernel_args *args);
fx_status fx_act_grad_cuda(const fx_kernel_args *args);
fx_status fx_swiglu_cuda(const fx_kernel_args *args);
fx_status fx_swiglu_grad_cuda(const fx_kernel_args *args);
fx_status fx_norm_cuda(const fx_kernel_args *args);
fx_status fx_add_norm_cuda(const fx_kernel_args *args);
fx_status fx_norm_grad_cuda(const fx_kernel_args *args);
fx_status fx_rope_table_cuda(const fx_kernel_args *args);
fx_status fx_rope_cuda(const fx_kernel_args *args);
fx_status fx_embedding_cuda(const fx_kernel_args *args);
fx_status fx_embedding_grad_cuda(const fx_kernel_args *args);
fx_status fx_head_ce_cuda(const fx_kernel_args *args);
fx_status fx_dropout_cuda(const fx_kernel_args *args);
fx_status fx_clip_cuda(const fx_kernel_args *args);
fx_status fx_adamw_cuda(const fx_kernel_args *args);

size_t fx_head_ce_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr, int threads);

#ifdef __cplusplus
}
#endif
#endif
