/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers: the GEMM provider, then one pass for bias and activation while the rows are in cache. */
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cpu/gemm.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cpu/vmath.h"
#include "dynamo_rt/ops/linear.h"

static const float k_sqrt_2_over_pi = 0.79788456080286536f, k_cubic = 0.044715f;

/* pre += bias; y = act(pre). Either of bias and pre_out may be NULL; y may be where the GEMM wrote. */
FX_ISA_CLONES static void epilogue_none(float *y, const float *bias, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] += bias[i];
}

FX_ISA_CLONES static void epilogue_gelu(float *y, const float *bias, float *pre, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float x = y[i] + (bias ? bias[i] : 0.0f);
    if (pre) pre[i] = x;
    y[i] = x * fx_vphi(x);
  }
}

FX_ISA_CLONES static void epilogue_gelu_tanh(float *y, const float *bias, float *pre, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float x = y[i] + (bias ? bias[i] : 0.0f);
    if (pre) pre[i] = x;
    float u = k_sqrt_2_over_pi * fmaf(k_cubic * x * x, x, x);
    y[i] = 0.5f * x * (1.0f + fx_vtanh(u));
  }
}

fx_status fx_linear_cpu(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  const float *bias = args->in[2] ? args->in[2]->data : NULL;
  float *y = args->out[0]->data, *pre = args->out[1] ? args->out[1]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[0]->type), width_in = fx_type_cols(&args->in[0]->type);
  int64_t width_out = fx_type_cols(&args->out[0]->type);
  FX_TRY(fx_gemm_f32(args->gemm, false, !attr->in_out, rows, width_out, width_in, args->in[0]->data, width_in,
                     args->in[1]->data, attr->in_out ? width_out : width_in, 0.0f, y, width_out));
  if (attr->activation == FX_ACT_NONE && !bias) return FX_OK;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    float *row = y + r * width_out, *row_pre = pre ? pre + r * width_out : NULL;
    if (attr->activation == FX_ACT_NONE)
      epilogue_none(row, bias, width_out);
    else if (attr->activation == FX_ACT_GELU)
      epilogue_gelu(row, bias, row_pre, width_out);
    else
      epilogue_gelu_tanh(row, bias, row_pre, width_out);
  }
  return FX_OK;
}

FX_ISA_CLONES static void add_row(float *y, const float *x, const float *bias, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + bias[i];
}

fx_status fx_add_bias_cpu(const fx_kernel_args *args) {
  const float *x = args->in[0]->data, *bias = args->in[1]->data;
  float *y = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) add_row(y + r * cols, x + r * cols, bias, cols);
  return FX_OK;
}

fx_status fx_linear_dx_cpu(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  int64_t rows = fx_type_rows(&args->in[0]->type), width_out = fx_type_cols(&args->in[0]->type);
  int64_t width_in = fx_type_cols(&args->out[0]->type);
  return fx_gemm_f32(args->gemm, false, attr->in_out, rows, width_in, width_out, args->in[0]->data, width_out,
                     args->in[1]->data, attr->in_out ? width_out : width_in,
                     args->accumulate & 1 ? 1.0f : 0.0f, args->out[0]->data, width_in);
}

/* ---- gradients of the parameters ---- */

static fx_status weight_grad(const fx_kernel_args *args) {
  const fx_linear_attr *attr = args->attr;
  const fx_tensor *dy = args->in[0], *x = args->in[1];
  int64_t rows = fx_type_rows(&dy->type), width_out = fx_type_cols(&dy->type),
          width_in = fx_type_cols(&x->type);
  float beta = args->accumulate & 1 ? 1.0f : 0.0f;
  if (attr->in_out)
    return fx_gemm_f32(args->gemm, true, false, width_in, width_out, rows, x->data, width_in, dy->data,
                       width_out, beta, args->out[0]->data, width_out);
  return fx_gemm_f32(args->gemm, true, false, width_out, width_in, rows, dy->data, width_out, x->data,
                     width_in, beta, args->out[0]->data, width_in);
}

FX_ISA_CLONES static void sum_rows(const float *x, int64_t rows, int64_t cols, float *sum) {
  memset(sum, 0, (size_t)cols * sizeof *sum);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) sum[c] += x[r * cols + c];
}

static void bias_grad(const fx_kernel_args *args) {
  const float *dy = args->in[0]->data;
  float *db = args->out[1]->data, *partial = args->workspace;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t step = fx_ceil_div(rows, FX_REDUCE_CHUNKS), chunks = fx_ceil_div(rows, step);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < chunks; i++)
    sum_rows(dy + i * step * cols, fx_min_i64(step, rows - i * step), cols, partial + i * cols);
  for (int64_t c = 0; c < cols; c++) {
    float sum = args->accumulate & 2 ? db[c] : 0.0f;
    for (int64_t i = 0; i < chunks; i++) sum += partial[i * cols + c];
    db[c] = sum;
  }
}

size_t fx_linear_dw_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                  int threads) {
  (void)attr, (void)threads;
  return out[1].ndim ? (size_t)(FX_REDUCE_CHUNKS * fx_type_cols(in[0])) * sizeof(float) : 0;
}

fx_status fx_linear_dw_cpu(const fx_kernel_args *args) {
  if (args->out[0]) FX_TRY(weight_grad(args));
  if (args->out[1]) bias_grad(args);
  return FX_OK;
}

/* ---- activations ---- */

FX_ISA_CLONES static void gelu_grad_row(const float *dy, const float *x, float *dx, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float density = 0.39894228040143268f * fx_vexp(-0.5f * x[i] * x[i]);
    dx[i] = dy[i] * fmaf(x[i], density, fx_vphi(x[i]));
  }
}

FX_ISA_CLONES static void gelu_tanh_grad_row(const float *dy, const float *x, float *dx, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float square = x[i] * x[i];
    float t = fx_vtanh(k_sqrt_2_over_pi * fmaf(k_cubic * square, x[i], x[i]));
    float du = k_sqrt_2_over_pi * fmaf(3.0f * k_cubic, square, 1.0f);
    dx[i] = dy[i] * (0.5f * (1.0f + t) + 0.5f * x[i] * (1.0f - t * t) * du);
  }
}

/* dx may be dy. */
static void act_grad(const fx_kernel_args *args, const float *dy, const float *pre, float *dx) {
  const fx_linear_attr *attr = args->attr;
  int64_t rows = fx_type_rows(&args->out[0]->type), cols = fx_type_cols(&args->out[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    if (attr->activation == FX_ACT_GELU)
      gelu_grad_row(dy + r * cols, pre + r * cols, dx + r * cols, cols);
    else
      gelu_tanh_grad_row(dy + r * cols, pre + r * cols, dx + r * cols, cols);
  }
}

fx_status fx_act_grad_cpu(const fx_kernel_args *args) {
  act_grad(args, args->in[0]->data, args->in[1]->data, args->out[0]->data);
  return FX_OK;
}

fx_status fx_linear_dx_act_cpu(const fx_kernel_args *args) {
  float *dx = args->out[0]->data;
  FX_TRY(fx_linear_dx_cpu(args));
  act_grad(args, dx, args->in[2]->data, dx);
  return FX_OK;
}

FX_ISA_CLONES static void swiglu_row(const float *x, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * fx_vsigmoid(x[i]) * x[n + i];
}

fx_status fx_swiglu_cpu(const fx_kernel_args *args) {
  const float *x = args->in[0]->data;
  float *y = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->out[0]->type), cols = fx_type_cols(&args->out[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) swiglu_row(x + r * 2 * cols, y + r * cols, cols);
  return FX_OK;
}

FX_ISA_CLONES static void swiglu_grad_row(const float *dy, const float *x, float *dx, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float gate = x[i], up = x[n + i], s = fx_vsigmoid(gate), silu = gate * s;
    dx[i] = dy[i] * up * fmaf(silu, 1.0f - s, s);
    dx[n + i] = dy[i] * silu;
  }
}

fx_status fx_swiglu_grad_cpu(const fx_kernel_args *args) {
  const float *dy = args->in[0]->data, *x = args->in[1]->data;
  float *dx = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++)
    swiglu_grad_row(dy + r * cols, x + r * 2 * cols, dx + r * 2 * cols, cols);
  return FX_OK;
}
