/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/linear.h"

static fx_status multiply(const fx_kernel_args *args, const fx_cuda_product *product) {
  return fx_cuda_gemm_run(((const fx_cuda_context *)args->gemm)->gemm, product, args->stream);
}

/* The library's GELU is the tanh form, and what it keeps or reads beside the product has rows of a multiple
 * of eight elements. */
static bool gelu_in_product(int activation, int64_t cols) {
  return activation == FX_ACT_GELU_TANH && cols % 8 == 0;
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
  bool gelu = gelu_in_product(activation, width_out);
  if (gelu || (activation == FX_ACT_NONE && bias)) {
    product.epilogue = gelu ? FX_CUDA_EPILOGUE_GELU : FX_CUDA_EPILOGUE_BIAS;
    product.bias = bias;
    product.aux = gelu ? pre : NULL; /* without an activation y is its own pre-activation */
  }
  FX_TRY(multiply(args, &product));
  if (gelu || activation == FX_ACT_NONE) return FX_OK;
  return fx_cuda_run_flat(args, FX_CUDA_BIAS_ACT, product.out, n,
                          FX_CUDA_ARGS(&y, &y, &bias, &pre, &activation, &n, &width_out));
}

fx_status fx_add_bias_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *bias = args->in[1]->data, *y = args->out[0]->data, *pre = NULL;
  int activation = FX_ACT_NONE;
  int64_t n = fx_type_numel(&args->out[0]->type), cols = fx_type_cols(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_BIAS_ACT, args->out[0]->type.dtype, n,
                          FX_CUDA_ARGS(&x, &y, &bias, &pre, &activation, &n, &cols));
}

static fx_cuda_product input_grad(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  int64_t width_out = fx_type_cols(&args->in[0]->type), width_in = fx_type_cols(&args->out[0]->type);
  return (fx_cuda_product){.transpose_b = attr->in_out,
                           .m = fx_type_rows(&args->in[0]->type),
                           .n = width_in,
                           .k = width_out,
                           .in = args->in[0]->type.dtype,
                           .out = args->out[0]->type.dtype,
                           .a = args->in[0]->data,
                           .lda = width_out,
                           .b = args->in[1]->data,
                           .ldb = attr->in_out ? width_out : width_in,
                           .c = args->out[0]->data,
                           .ldc = width_in};
}

fx_status fx_linear_dx_cuda(const fx_kernel_args *args) {
  fx_cuda_product product = input_grad(args);
  product.beta = args->accumulate & 1 ? 1.0f : 0.0f;
  return multiply(args, &product);
}

static fx_status act_grad(const fx_kernel_args *args, void *dy, void *pre, void *dx) {
  const fx_linear_attr *attr = args->attr;
  int activation = attr->activation;
  int64_t n = fx_type_numel(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_ACT_GRAD, args->out[0]->type.dtype, n,
                          FX_CUDA_ARGS(&dy, &pre, &dx, &activation, &n));
}

fx_status fx_linear_dx_act_cuda(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  fx_cuda_product product = input_grad(args);
  if (gelu_in_product(attr->activation, product.n)) {
    product.epilogue = FX_CUDA_EPILOGUE_GELU_GRAD;
    product.aux = args->in[2]->data;
    return multiply(args, &product);
  }
  FX_TRY(multiply(args, &product));
  return act_grad(args, product.c, args->in[2]->data, product.c);
}

/* ---- gradients of the parameters ---- */

/* dW is x^T dy where the weight is stored [I, O], dy^T x where it is [O, I]. */
static fx_status weight_grad(const fx_kernel_args *args) {
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
  return multiply(args, &product);
}

/* In two stages of its own: the library's sum of an operand beside the product takes longer, and exists for
 * half of the transpositions only (tests/bench/RESULTS.md). */
static fx_status bias_grad(const fx_kernel_args *args) {
  return fx_cuda_run_sum_rows(args, args->in[0], args->workspace, FX_REDUCE_CHUNKS, args->out[1]->data,
                              (args->accumulate & 2) != 0);
}

fx_status fx_linear_dw_cuda(const fx_kernel_args *args) {
  if (args->out[0]) FX_TRY(weight_grad(args));
  return args->out[1] ? bias_grad(args) : FX_OK;
}

/* ---- activations ---- */

fx_status fx_act_grad_cuda(const fx_kernel_args *args) {
  return act_grad(args, args->in[0]->data, args->in[1]->data, args->out[0]->data);
}

fx_status fx_swiglu_cuda(const fx_kernel_args *args) {
  void *x = args->in[0]->data, *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type), cols = fx_type_cols(&args->out[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_SWIGLU, args->out[0]->type.dtype, n, FX_CUDA_ARGS(&x, &y, &n, &cols));
}

fx_status fx_swiglu_grad_cuda(const fx_kernel_args *args) {
  void *dy = args->in[0]->data, *x = args->in[1]->data, *dx = args->out[0]->data;
  int64_t n = fx_type_numel(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  return fx_cuda_run_flat(args, FX_CUDA_SWIGLU_GRAD, args->out[0]->type.dtype, n,
                          FX_CUDA_ARGS(&dy, &x, &dx, &n, &cols));
}
