/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"
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

typedef struct rope_params { /* of rope.cu */
  float sign;
  int64_t rows, cols;
  int32_t heads, half;
} rope_params;

fx_status fx_rope_cuda(const fx_kernel_args *args) {
  enum { MAX_Z = 64 }; /* the most of a block */
  const fx_rope_attr *attr = args->attr;
  void *x = args->in[0]->data, *table = args->in[1]->data, *y = args->out[0]->data;
  fx_dtype dtype = args->in[0]->type.dtype;
  rope_params p = {.sign = (float)attr->sign,
                   .rows = fx_type_rows(&args->in[0]->type),
                   .cols = fx_type_cols(&args->in[0]->type),
                   .heads = (int32_t)attr->heads,
                   .half = (int32_t)(attr->head_dim / 2)};
  int64_t places = p.half * (int64_t)fx_dtype_bytes(dtype) / 16; /* vectors of half a head */
  int vectors = fx_cuda_rows_fit_vectors(dtype, p.half, NULL, 0) && places <= FX_CUDA_BLOCK &&
                fx_cuda_rows_fit_vectors(dtype, p.cols, (const void *[]){x, y, table}, 3);
  fx_cuda_dim block = {32, FX_CUDA_BLOCK / 32, 1};
  if (vectors) {
    int64_t heads = fx_max_i64(1, p.heads), turns = fx_ceil_div(heads, FX_CUDA_BLOCK / places);
    block.x = (unsigned)places;
    block.y = (unsigned)fx_ceil_div(heads, turns); /* equally many a turn */
    block.z = (unsigned)fx_min_i64(MAX_Z, FX_CUDA_BLOCK / (block.x * block.y));
  }
  fx_cuda_dim grid = {(unsigned)fx_ceil_div(p.rows, block.z), 1, 1};
  return fx_cuda_run(args, FX_CUDA_ROPE, dtype, grid, block, FX_CUDA_ARGS(&x, &table, &y, &p, &vectors));
}
