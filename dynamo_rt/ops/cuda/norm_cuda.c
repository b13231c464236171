/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/norm.h"

/* Of ops/cuda/norm.cu: columns that a thread holds in the forward kernels and the longest row that is held;
 * vectors that it holds in the backward one, and that one's largest group. CHUNKS: blocks of norm_grad, two
 * for each multiprocessor of an H200; a constant, so that the bits do not depend on the GPU. */
enum { FORWARD = 32, MAX_HELD = 8192, BACKWARD = 2, MAX_GROUP = 512, CHUNKS = 264 };

typedef struct row_norm { /* of norm.cu */
  void *w, *b, *mean, *rstd;
  int32_t layer;
  float eps;
  int64_t cols;
} row_norm;

static void *data_of(const fx_tensor *tensor) {
  return tensor ? tensor->data : NULL;
}

static row_norm row_norm_of(const fx_kernel_args *args, int weight) {
  const fx_norm_attr *attr = args->attr;
  return (row_norm){.w = args->in[weight]->data,
                    .b = data_of(args->in[weight + 1]),
                    .mean = data_of(args->out[1]),
                    .rstd = data_of(args->out[2]),
                    .layer = attr->kind == FX_NORM_LAYER,
                    .eps = attr->eps,
                    .cols = fx_type_cols(&args->in[0]->type)};
}

/* Columns a thread holds, for fx_cuda_run_rows; rows that are not held are a block's. */
static int columns(int held, int most) {
  return held ? most : 1;
}

fx_status fx_norm_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *y = args->out[0]->data;
  fx_dtype dtype = args->in[0]->type.dtype;
  int64_t rows = fx_type_rows(&args->in[0]->type);
  row_norm n = row_norm_of(args, 1);
  int held =
      n.cols <= MAX_HELD && fx_cuda_rows_fit_vectors(dtype, n.cols, (const void *[]){x, y, n.w, n.b}, 4);
  return fx_cuda_run_rows(args, FX_CUDA_NORM, dtype, rows, n.cols, columns(held, FORWARD),
                          dtype == FX_BF16 ? 3 : 2, FX_CUDA_ARGS(&x, &y, &n, &held, &rows));
}

fx_status fx_add_norm_cuda(const fx_kernel_args *args) {
  void *a = args->in[0]->data, *b = args->in[1]->data, *y = args->out[0]->data, *sum = data_of(args->out[3]);
  fx_dtype dtype = args->in[0]->type.dtype;
  int64_t rows = fx_type_rows(&args->in[0]->type);
  row_norm n = row_norm_of(args, 2);
  int held = n.cols <= MAX_HELD &&
             fx_cuda_rows_fit_vectors(dtype, n.cols, (const void *[]){a, b, y, sum, n.w, n.b}, 6);
  fx_cuda_dim block = fx_cuda_row_block(n.cols, columns(held, FORWARD), FX_CUDA_BLOCK);
  return fx_cuda_run(args, FX_CUDA_ADD_NORM, dtype, (fx_cuda_dim){(unsigned)fx_ceil_div(rows, block.y), 1, 1},
                     block, FX_CUDA_ARGS(&a, &b, &sum, &y, &n, &held, &rows));
}

/* ---- backward ---- */

typedef struct norm_back { /* of norm.cu */
  void *dy, *x, *w, *mean, *rstd, *dx;
  float *dw, *db;
  int32_t layer, add;
  int64_t rows, cols, step;
} norm_back;

/* [2, CHUNKS, cols]: partial sums of dweight and dbias. */
size_t fx_norm_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                   int threads) {
  (void)out, (void)attr, (void)threads;
  return (size_t)(2 * CHUNKS * fx_type_cols(in[1])) * sizeof(float);
}

fx_status fx_norm_grad_cuda(const fx_kernel_args *args) {
  const fx_norm_attr *attr = args->attr;
  fx_dtype dtype = args->in[1]->type.dtype;
  norm_back n = {.dy = args->in[0]->data,
                 .x = args->in[1]->data,
                 .w = args->in[2]->data,
                 .mean = data_of(args->in[3]),
                 .rstd = args->in[4]->data,
                 .dx = data_of(args->out[0]),
                 .layer = attr->kind == FX_NORM_LAYER,
                 .add = args->out[0] ? (int)(args->accumulate & 1) : 0,
                 .rows = fx_type_rows(&args->in[1]->type),
                 .cols = fx_type_cols(&args->in[1]->type)};
  float *partial[2] = {args->workspace, (float *)args->workspace + CHUNKS * n.cols};
  float *sum[2] = {data_of(args->out[1]), data_of(args->out[2])};
  int columns_held = BACKWARD * 16 / (int)fx_dtype_bytes(dtype);
  int held = n.cols <= (int64_t)MAX_GROUP * columns_held &&
             fx_cuda_rows_fit_vectors(dtype, n.cols, (const void *[]){n.dy, n.x, n.w, n.dx}, 4);
  fx_cuda_dim block =
      held ? fx_cuda_row_block(n.cols, columns_held, MAX_GROUP) : (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1};
  n.dw = sum[0] ? partial[0] : NULL;
  n.db = sum[1] ? partial[1] : NULL;
  n.step = fx_max_i64(block.y, fx_ceil_div(n.rows, CHUNKS));
  int chunks = (int)fx_ceil_div(n.rows, n.step);
  FX_TRY(fx_cuda_run(args, FX_CUDA_NORM_GRAD, dtype, (fx_cuda_dim){(unsigned)chunks, 1, 1}, block,
                     FX_CUDA_ARGS(&n, &held)));
  if (!sum[0] && !sum[1]) return FX_OK;
  return fx_cuda_run_sum_partials2(args, partial, sum, chunks, n.cols, (int)(args->accumulate >> 1 & 3));
}
