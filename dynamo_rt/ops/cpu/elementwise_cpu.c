/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"

enum { BLOCK = 16384 }; /* elements a task: two cache-friendly pages a stream */

fx_status fx_input_cpu(const fx_kernel_args *args) {
  const fx_input_attr *attr = args->attr;
  memcpy(args->out[0]->data, (const char *)args->slot + attr->offset, fx_type_bytes(&attr->type));
  return FX_OK;
}

FX_ISA_CLONES static void add_block(const float *a, const float *b, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

fx_status fx_add_cpu(const fx_kernel_args *args) {
  const float *a = args->in[0]->data, *b = args->in[1]->data;
  float *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < n; i += BLOCK) add_block(a + i, b + i, y + i, fx_min_i64(BLOCK, n - i));
  return FX_OK;
}

FX_ISA_CLONES static void scale_block(const float *x, float s, float *y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * s;
}

fx_status fx_scale_cpu(const fx_kernel_args *args) {
  const float *x = args->in[0]->data, s = *(const float *)args->in[1]->data;
  float *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->out[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < n; i += BLOCK) scale_block(x + i, s, y + i, fx_min_i64(BLOCK, n - i));
  return FX_OK;
}

/* Where index i of a view's first `dims` dimensions, counted as one, lies, in elements. */
static int64_t place_of(const fx_type *type, int dims, int64_t i) {
  int64_t at = 0;
  for (int d = dims - 1; d >= 0; d--) {
    at += i % type->dim[d] * type->stride[d];
    i /= type->dim[d];
  }
  return at;
}

fx_status fx_copy_cpu(const fx_kernel_args *args) {
  const fx_type *from = &args->in[0]->type, *to = &args->out[0]->type;
  size_t size = fx_dtype_bytes(from->dtype);
  int64_t rows = fx_type_rows(from), cols = fx_type_cols(from);
  int64_t step_from = from->ndim ? from->stride[from->ndim - 1] : 1,
          step_to = to->ndim ? to->stride[to->ndim - 1] : 1;
  for (int64_t r = 0; r < rows; r++) {
    const char *x = (const char *)args->in[0]->data + (size_t)place_of(from, from->ndim - 1, r) * size;
    char *y = (char *)args->out[0]->data + (size_t)place_of(to, to->ndim - 1, r) * size;
    if (step_from == 1 && step_to == 1) {
      memcpy(y, x, (size_t)cols * size);
      continue;
    }
    for (int64_t c = 0; c < cols; c++)
      memcpy(y + (size_t)(c * step_to) * size, x + (size_t)(c * step_from) * size, size);
  }
  return FX_OK;
}

fx_status fx_store_cpu(const fx_kernel_args *args) {
  const char *x = args->in[1]->data;
  char *y = args->out[0]->data;
  int64_t n = (int64_t)fx_type_bytes(&args->out[0]->type), block = BLOCK * 4;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < n; i += block) memcpy(y + i, x + i, (size_t)fx_min_i64(block, n - i));
  return FX_OK;
}

static double read_number(const void *data, fx_dtype dtype, int64_t i) {
  if (dtype == FX_F32) return (double)((const float *)data)[i];
  if (dtype == FX_BF16) return (double)fx_bf16_to_f32(((const uint16_t *)data)[i]);
  return ((const double *)data)[i];
}

fx_status fx_cast_cpu(const fx_kernel_args *args) {
  const fx_tensor *x = args->in[0];
  fx_tensor *y = args->out[0];
  int64_t n = fx_type_numel(&y->type);
  bool contiguous = fx_type_contiguous(&y->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < n; i++) {
    double number = read_number(x->data, x->type.dtype, i);
    int64_t at = contiguous ? i : place_of(&y->type, y->type.ndim, i);
    if (y->type.dtype == FX_F32)
      ((float *)y->data)[at] = (float)number;
    else if (y->type.dtype == FX_BF16)
      ((uint16_t *)y->data)[at] = fx_f32_to_bf16((float)number);
    else
      ((double *)y->data)[at] = number;
  }
  return FX_OK;
}
