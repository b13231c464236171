/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"

/* Row `row` of block `block`, all heads. */
static char *row_at(const fx_tensor *x, int64_t b, int64_t block, int64_t row) {
  int64_t at = b * x->type.stride[0] + (block * FX_BLOCK_ROWS + row) * x->type.stride[1];
  return (char *)x->data + at * (int64_t)fx_dtype_bytes(x->type.dtype);
}

fx_status fx_take_blocks_cpu(const fx_kernel_args *args) {
  const fx_tensor *x = args->in[0], *y = args->out[0];
  const int32_t *index = args->in[1]->data;
  int64_t count = y->type.dim[1] / FX_BLOCK_ROWS, heads = x->type.dim[2];
  int64_t element = (int64_t)fx_dtype_bytes(x->type.dtype);
  size_t bytes = (size_t)(x->type.dim[3] * element);
#pragma omp parallel for schedule(static) num_threads(args->threads) collapse(2)
  for (int64_t b = 0; b < x->type.dim[0]; b++)
    for (int64_t n = 0; n < count; n++)
      for (int64_t row = 0; row < FX_BLOCK_ROWS; row++) {
        const char *from = index[n] < 0 ? NULL : row_at(x, b, index[n], row);
        char *to = row_at(y, b, n, row);
        for (int64_t h = 0; h < heads; h++) {
          if (from)
            memcpy(to + h * y->type.stride[2] * element, from + h * x->type.stride[2] * element, bytes);
          else
            memset(to + h * y->type.stride[2] * element, 0, bytes);
        }
      }
  return FX_OK;
}

fx_status fx_add_blocks_cpu(const fx_kernel_args *args) {
  const fx_tensor *sum = args->out[0], *x = args->in[1];
  const int32_t *index = args->in[2]->data;
  int64_t count = x->type.dim[1] / FX_BLOCK_ROWS, floats = FX_BLOCK_ROWS * x->type.stride[1];
#pragma omp parallel for schedule(static) num_threads(args->threads) collapse(2)
  for (int64_t b = 0; b < x->type.dim[0]; b++)
    for (int64_t n = 0; n < count; n++) {
      if (index[n] < 0) continue;
      float *to = (float *)(void *)row_at(sum, b, index[n], 0);
      const float *from = (const float *)(void *)row_at(x, b, n, 0);
      for (int64_t i = 0; i < floats; i++) to[i] += from[i];
    }
  return FX_OK;
}
