/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/linear.h"

enum { TILE = 32, LANES = 8 }; /* of sum_rows_partial */

static fx_cuda_gemm *gemm_of(const fx_kernel_args *args) {
  return ((const fx_cuda_context *)args->gemm)->gemm;
}

fx_status fx_linear_cuda(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  void *y = args->out[0]->data;
  void *bias = args->in[2] ? args->in[2]->data : NULL, *pre = args->out[1] ? args->out[1]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[0]->type), width_in = fx_type_cols(&args->in[0]->type);
  int64_t width_out = fx_type_cols(&args->out[0]->type), n = rows * width_out;
  int activation = attr->activation;
  fx_cuda_product product = {.transpose_b = !attr->in_out,
                             .m = rows,
                             .n = width_out,
                             .k = width_in,
                             .in = args->in[0]->type.dtype,
                             .out = args->out[0]->type.dtype,
                             .a = args->in[0]->data,
                             .lda = width_in,
                             .b = args->in[1]->data,
                             .ldb = attr->in_out ? width_out : width_in,
                             .c = y,
                             .ldc = width_out};
  FX_TRY(fx_cuda_gemm_run(gemm_of(args), &product, args->stream));
  if (activation == FX_ACT_NONE) pre = NULL; /* y is its own pre-activation */
  if (activation == FX_ACT_NONE && !bias) return FX_OK;
  return fx_cuda_run_flat(args, FX_CUDA_BIAS_ACT, FX_F32, n,
                          FX_CUDA_ARGS(&y, &bias, &pre, &activation, &n, &width_out));
}

fx_status fx_linear_dx_cuda(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  int64_t rows = fx_type_rows(&args->in[0]->type), width_out = fx_type_cols(&args->in[0]->type);
  int64_t width_in = fx_type_cols(&args->out[0]->type);
  fx_cuda_product product = {.transpose_b = attr->in_out,
                             .m = rows,
                             .n = width_in,
                             .k = width_out,
                             .in = args->in[0]->type.dtype,
                             .out = args->out[0]->type.dtype,
                             .a = args->in[0]->data,
                             .lda = width_out,
                             .b = args->in[1]->data,
                             .ldb = attr->in_out ? width_out : width_in,
                             .c = args->out[0]->data,
                             .ldc = width_in,
                             .beta = args->accumulate & 1 ? 1.0f : 0.0f};
  return fx_cuda_gemm_run(gemm_of(args), &product, args->stream);
}

/* dW is x^T dy where the weight is stored [I, O], dy^T x where it is [O, I]. */
fx_status fx_linear_dw_cuda(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  const fx_tensor *dy = args->in[0], *x = args->in[1];
  const fx_tensor *a = attr->in_out ? x : dy, *b = attr->in_out ? dy : x;
  int64_t height = fx_type_cols(&a->type), width = fx_type_cols(&b->type);
  fx_cuda_product product = {.transpose_a = true,
                             .m = height,
                             .n = width,
                             .k = fx_type_rows(&dy->type),
                             .in = dy->type.dtype,
                             .out = args->out[0]->type.dtype,
                             .a = a->data,
                             .lda = height,
                             .b = b->data,
                             .ldb = width,
                             .c = args->out[0]->data,
                             .ldc = width,
                             .beta = args->accumulate & 1 ? 1.0f : 0.0f};
  return fx_cuda_gemm_run(gemm_of(args), &product, args->stream);
}

fx_status fx_bias_grad_cuda(const fx_kernel_args *args) {
  float *dy = args->in[0]->data, *partial = args->workspace;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t step = fx_ceil_div(rows, FX_REDUCE_CHUNKS), chunks = fx_ceil_div(rows, step);
  fx_cuda_dim grid = {(unsigned)fx_ceil_div(cols, TILE), (unsigned)chunks, 1};
  FX_TRY(fx_cuda_run(args, FX_CUDA_SUM_ROWS_PARTIAL, FX_F32, grid, (fx_cuda_dim){TILE, LANES, 1},
                     FX_CUDA_ARGS(&dy, &partial, &rows, &cols, &step)));
  return fx_cuda_run_sum_partials(args, partial, args->out[0]->data, (int)chunks, cols,
                                  (int)(args->accumulate & 1));
}

fx_status fx_act_grad_cuda(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  void *dy = args->in[0]->data, *pre = args->in[1]->data, *dx = args->out[0]->data;
  int activation = attr->activation;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_ACT_GRAD, FX_F32, n, FX_CUDA_ARGS(&dy, &pre, &dx, &activation, &n));
}

fx_status fx_swiglu_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type), cols = fx_type_cols(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_SWIGLU, FX_F32, n, FX_CUDA_ARGS(&x, &y, &n, &cols));
}

fx_status fx_swiglu_grad_cuda(const fx_kernel_args *args) {
  void *dy = args->in[0]->data, *x = args->in[1]->data, *dx = args->out[0]->data;
  int64_t n = fx_type_numel(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_SWIGLU_GRAD, FX_F32, n, FX_CUDA_ARGS(&dy, &x, &dx, &n, &cols));
}
