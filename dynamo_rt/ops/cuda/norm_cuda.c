/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/norm.h"

enum { TILE = 32, LANES = 8 }; /* of norm_dw_partial */

fx_status fx_norm_cuda(const fx_kernel_args *args) {
  const fx_norm_attr *attr = args->attr;
  void *x = args->in[0]->data, *w = args->in[1]->data, *b = args->in[2] ? args->in[2]->data : NULL;
  void *y = args->out[0]->data, *mean = args->out[1] ? args->out[1]->data : NULL;
  void *rstd = args->out[2] ? args->out[2]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int layer = attr->kind == FX_NORM_LAYER;
  float eps = attr->eps;
  return fx_cuda_run_rows(args, FX_CUDA_NORM, FX_F32, rows, cols,
                          FX_CUDA_ARGS(&x, &w, &b, &y, &mean, &rstd, &layer, &eps, &cols));
}

fx_status fx_add_norm_cuda(const fx_kernel_args *args) {
  void *a = args->in[0]->data, *b = args->in[1]->data;
  fx_tensor *sum = args->out[3] ? args->out[3] : args->out[0];
  int64_t n = fx_type_numel(&sum->type);
  fx_kernel_args norm = *args;
  norm.in[0] = sum;
  norm.in[1] = args->in[2];
  norm.in[2] = args->in[3];
  FX_TRY(fx_cuda_run_flat(args, FX_CUDA_ADD, sum->type.dtype, n, FX_CUDA_ARGS(&a, &b, &sum->data, &n)));
  return fx_norm_cuda(&norm);
}

/* The workspace is the CPU's: [2, FX_REDUCE_CHUNKS, cols]. */
fx_status fx_norm_grad_cuda(const fx_kernel_args *args) {
  const fx_norm_attr *attr = args->attr;
  void *dy = args->in[0]->data, *x = args->in[1]->data, *w = args->in[2]->data;
  void *mean = args->in[3] ? args->in[3]->data : NULL, *rstd = args->in[4]->data;
  int64_t rows = fx_type_rows(&args->in[1]->type), cols = fx_type_cols(&args->in[1]->type);
  int64_t step = fx_ceil_div(rows, FX_REDUCE_CHUNKS), chunks = fx_ceil_div(rows, step);
  float *dw = args->workspace, *db = args->out[2] ? dw + FX_REDUCE_CHUNKS * cols : NULL;
  int layer = attr->kind == FX_NORM_LAYER, add = (int)(args->accumulate & 1);
  if (args->out[1] || args->out[2]) { /* before dx, which may be where dy is */
    fx_cuda_dim grid = {(unsigned)fx_ceil_div(cols, TILE), (unsigned)chunks, 1};
    FX_TRY(fx_cuda_run(args, FX_CUDA_NORM_DW_PARTIAL, FX_F32, grid, (fx_cuda_dim){TILE, LANES, 1},
                       FX_CUDA_ARGS(&dy, &x, &mean, &rstd, &dw, &db, &rows, &cols, &step)));
  }
  if (args->out[0]) {
    void *dx = args->out[0]->data;
    FX_TRY(fx_cuda_run_rows(args, FX_CUDA_NORM_DX, FX_F32, rows, cols,
                            FX_CUDA_ARGS(&dy, &x, &w, &mean, &rstd, &dx, &layer, &add, &cols)));
  }
  if (args->out[1])
    FX_TRY(fx_cuda_run_sum_partials(args, dw, args->out[1]->data, (int)chunks, cols,
                                    (args->accumulate & 2) != 0));
  if (args->out[2])
    FX_TRY(fx_cuda_run_sum_partials(args, db, args->out[2]->data, (int)chunks, cols,
                                    (args->accumulate & 4) != 0));
  return FX_OK;
}
