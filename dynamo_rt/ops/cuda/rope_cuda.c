/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/rope.h"

fx_status fx_rope_table_cuda(const fx_kernel_args *args) {
  const fx_rope_table_attr *attr = args->attr;
  void *positions = args->in[0]->data, *table = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[0]->type), half = attr->head_dim / 2;
  double theta = attr->theta;
  return fx_cuda_run_flat(args, FX_CUDA_ROPE_TABLE, FX_F32, rows * half,
                          FX_CUDA_ARGS(&positions, &table, &theta, &rows, &half));
}

fx_status fx_rope_cuda(const fx_kernel_args *args) {
  const fx_rope_attr *attr = args->attr;
  void *x = args->in[0]->data, *table = args->in[1]->data, *y = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t rotated = attr->heads * attr->head_dim, half = attr->head_dim / 2;
  float sign = (float)attr->sign;
  return fx_cuda_run_flat(args, FX_CUDA_ROPE, args->in[0]->type.dtype, rows * (cols - rotated / 2),
                          FX_CUDA_ARGS(&x, &table, &y, &sign, &rows, &cols, &rotated, &half));
}
