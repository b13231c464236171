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
#define FX_CUDA_KERNEL_LIST(X)                                     \
  X(ADD, "elementwise.cu", "add", TYPED)                           \
  X(SCALE, "elementwise.cu", "scale", TYPED)                       \
  X(FILL, "convert.cu", "fill", SINGLE)                            \
  X(TELL_HOST, "convert.cu", "tell_host", SINGLE)                  \
  X(COPY_VIEW, "convert.cu", "copy_view", SINGLE)                  \
  X(CAST, "convert.cu", "cast", SINGLE)                            \
  X(CAST_VIEW, "convert.cu", "cast_view", SINGLE)                  \
  X(TAKE_BLOCKS, "convert.cu", "take_blocks", SINGLE)              \
  X(ADD_BLOCKS, "convert.cu", "add_blocks", SINGLE)                \
  X(BIAS_ACT, "linear.cu", "bias_act", TYPED)                      \
  X(ACT_GRAD, "linear.cu", "act_grad", TYPED)                      \
  X(SWIGLU, "linear.cu", "swiglu", TYPED)                          \
  X(SWIGLU_GRAD, "linear.cu", "swiglu_grad", TYPED)                \
  X(SUM_ROWS_PARTIAL, "linear.cu", "sum_rows_partial", TYPED)      \
  X(SUM_PARTIALS, "reduce.cu", "sum_partials", SINGLE)             \
  X(NORM, "norm.cu", "norm_forward", TYPED)                        \
  X(ADD_NORM, "norm.cu", "add_norm", TYPED)                        \
  X(RMS_RING_2, "norm.cu", "rms_ring_2", TYPED)                    \
  X(RMS_RING_3, "norm.cu", "rms_ring_3", TYPED)                    \
  X(LAYER_RING_2, "norm.cu", "layer_ring_2", TYPED)                \
  X(LAYER_RING_3, "norm.cu", "layer_ring_3", TYPED)                \
  X(NORM_GRAD, "norm_grad.cu", "norm_grad", TYPED)                 \
  X(RMS_GRAD_RING_2, "norm_grad.cu", "rms_grad_ring_2", TYPED)     \
  X(RMS_GRAD_RING_3, "norm_grad.cu", "rms_grad_ring_3", TYPED)     \
  X(LAYER_GRAD_RING_2, "norm_grad.cu", "layer_grad_ring_2", TYPED) \
  X(LAYER_GRAD_RING_3, "norm_grad.cu", "layer_grad_ring_3", TYPED) \
  X(ROPE_TABLE, "rope.cu", "rope_table", SINGLE)                   \
  X(ROPE, "rope.cu", "rope", TYPED)                                \
  X(EMBEDDING, "embedding.cu", "embedding", TYPED)                 \
  X(INDEX_SORT, "index.cu", "index_sort_range", SINGLE)            \
  X(EMBEDDING_GRAD, "embedding.cu", "embedding_grad", TYPED)       \
  X(DROPOUT, "dropout.cu", "dropout", TYPED)                       \
  X(DROPOUT_ROWS, "dropout.cu", "dropout_rows", TYPED)             \
  X(CROSS_ENTROPY, "head.cu", "cross_entropy", TYPED)              \
  X(VOCAB_NUMBERS, "head.cu", "vocab_numbers", TYPED)              \
  X(VOCAB_MERGE, "head.cu", "vocab_merge", TYPED)                  \
  X(SUM_NLL, "reduce.cu", "sum_nll", SINGLE)                       \
  X(SQUARE_PARTIAL, "reduce.cu", "square_partial", SINGLE)         \
  X(SUM_SQUARES, "reduce.cu", "sum_squares", SINGLE)               \
  X(CLIP_FACTOR, "reduce.cu", "clip_factor", SINGLE)               \
  X(ADAMW, "optimizer.cu", "adamw", SINGLE)

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
/* The block for rows of `cols` columns by groups of threads, powers of two from a warp to `most`, that hold
 * at most `held` columns each where that is possible: (group, groups that fill FX_CUDA_BLOCK). */
fx_cuda_dim fx_cuda_row_block(int64_t cols, int held, unsigned most);
/* Such blocks, with groups of at most FX_CUDA_BLOCK: at most `resident` a multiprocessor, as many as stay
 * there at a time; each takes several rows. */
fx_status fx_cuda_run_rows(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, int64_t rows,
                           int64_t cols, int held, int resident, void **params);
/* Whether every one of `count` addresses is a multiple of 16 bytes (NULL is) and a row of cols elements too.
 */
bool fx_cuda_rows_fit_vectors(fx_dtype dtype, int64_t cols, const void *const *address, int count);
/* to[0] and to[1], of pinned memory of the host, when the stream comes to it. */
fx_status fx_cuda_tell_host(const fx_kernel_args *args, uint32_t *to, const uint32_t word[2]);
/* fx_cuda_run with dynamic shared memory, at most fx_cuda_shared_limit bytes. */
fx_status fx_cuda_run_shared(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype,
                             fx_cuda_dim grid, fx_cuda_dim block, unsigned shared_bytes, void **params);
unsigned fx_cuda_shared_limit(const fx_kernel_args *args);
/* bytes from one address to another, of host or device, on the op's stream. */
fx_status fx_cuda_run_copy(const fx_kernel_args *args, void *to, const void *from, size_t bytes);
/* Second stage of sums over rows: sum[cols] (+)= the chunks of partial[chunks, cols], in a fixed order. */
fx_status fx_cuda_run_sum_partials(const fx_kernel_args *args, float *partial, float *sum, int chunks,
                                   int64_t cols, int add);
/* Two at once; bit 0 of add is for the first. A sum that is NULL is left out. */
fx_status fx_cuda_run_sum_partials2(const fx_kernel_args *args, float *const partial[2], float *const sum[2],
                                    int chunks, int64_t cols, int add);

/* sum[cols] (+)= the rows of x, by at most `chunks` chunks of them in partial[chunks, cols]. */
fx_status fx_cuda_run_sum_rows(const fx_kernel_args *args, const fx_tensor *x, float *partial, int chunks,
                               float *sum, int add);

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
fx_status fx_add_bias_cuda(const fx_kernel_args *args);
fx_status fx_act_grad_cuda(const fx_kernel_args *args);
fx_status fx_swiglu_cuda(const fx_kernel_args *args);
fx_status fx_swiglu_grad_cuda(const fx_kernel_args *args);
fx_status fx_norm_cuda(const fx_kernel_args *args);
/* y = norm(a + b), sum = a + b rounded to its type: the same bits as add, then norm.
 * in {a, b [.., cols] T, weight [cols] F32, bias [cols] F32 or absent}, attr fx_norm_attr,
 * out {y T, mean [rows], rstd [rows] F32, sum T; all but y may be absent; y and sum may lie where a or b
 * does}. */
fx_status fx_add_norm_cuda(const fx_kernel_args *args);
fx_status fx_norm_grad_cuda(const fx_kernel_args *args);
fx_status fx_rope_table_cuda(const fx_kernel_args *args);
fx_status fx_rope_cuda(const fx_kernel_args *args);
fx_status fx_embedding_cuda(const fx_kernel_args *args);
fx_status fx_embedding_grad_cuda(const fx_kernel_args *args);
fx_status fx_head_ce_cuda(const fx_kernel_args *args);
/* Its cross-entropy alone: the logits [rows, V] of rows [begin, begin + rows) lie in args->workspace. */
fx_status fx_head_ce_rows_cuda(const fx_kernel_args *args, int64_t begin, int64_t rows);
/* fx_head_chunk_rows of GPUs. */
int64_t fx_head_chunk_rows_cuda(int64_t rows, int64_t vocab, fx_dtype dtype);
fx_status fx_vocab_embedding_cuda(const fx_kernel_args *args);
fx_status fx_vocab_embedding_grad_cuda(const fx_kernel_args *args);
fx_status fx_vocab_numbers_cuda(const fx_kernel_args *args);
fx_status fx_vocab_merge_cuda(const fx_kernel_args *args);
fx_status fx_vocab_loss_cuda(const fx_kernel_args *args);
fx_status fx_dropout_cuda(const fx_kernel_args *args);
fx_status fx_take_blocks_cuda(const fx_kernel_args *args);
fx_status fx_add_blocks_cuda(const fx_kernel_args *args);
fx_status fx_squares_cuda(const fx_kernel_args *args);
fx_status fx_clip_cuda(const fx_kernel_args *args);
fx_status fx_adamw_cuda(const fx_kernel_args *args);

size_t fx_norm_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                   int threads);
size_t fx_embedding_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                        int threads);
size_t fx_head_ce_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr, int threads);

#ifdef __cplusplus
}
#endif
#endif
