/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#include "dynamo_rt/base/status.h"

fx_type fx_type_of(fx_dtype dtype, int ndim, const int64_t *dim) {
  FX_ASSERT(ndim >= 0 && ndim <= FX_MAX_DIMS);
  fx_type type;
  memset(&type, 0, sizeof type);
  type.dtype = dtype;
  type.ndim = ndim;
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    type.dim[i] = dim[i];
    type.stride[i] = stride;
    stride *= dim[i];
  }
  return type;
}

fx_type fx_type_1d(fx_dtype dtype, int64_t n) {
  return fx_type_of(dtype, 1, &n);
}

fx_type fx_type_2d(fx_dtype dtype, int64_t rows, int64_t cols) {
  int64_t dim[2] = {rows, cols};
  return fx_type_of(dtype, 2, dim);
}

fx_type fx_type_3d(fx_dtype dtype, int64_t a, int64_t b, int64_t c) {
  int64_t dim[3] = {a, b, c};
  return fx_type_of(dtype, 3, dim);
}

int64_t fx_type_numel(const fx_type *type) {
  int64_t numel = 1;
  for (int i = 0; i < type->ndim; i++) numel *= type->dim[i];
  return numel;
}

bool fx_type_contiguous(const fx_type *type) {
  int64_t stride = 1;
  for (int i = type->ndim - 1; i >= 0; i--) {
    if (type->dim[i] != 1 && type->stride[i] != stride) return false;
    stride *= type->dim[i];
  }
  return true;
}

bool fx_type_equal(const fx_type *a, const fx_type *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

bool fx_type_same_shape(const fx_type *a, const fx_type *b) {
  return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof(int64_t) * (size_t)a->ndim) == 0;
}

int64_t fx_type_span(const fx_type *type) {
  int64_t last = 0;
  for (int i = 0; i < type->ndim; i++) {
    if (type->dim[i] == 0) return 0;
    last += (type->dim[i] - 1) * type->stride[i];
  }
  return last + 1;
}

size_t fx_type_bytes(const fx_type *type) {
  return (size_t)fx_type_span(type) * fx_dtype_bytes(type->dtype);
}

int64_t fx_type_rows(const fx_type *type) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < type->ndim; i++) rows *= type->dim[i];
  return rows;
}

int64_t fx_type_cols(const fx_type *type) {
  return type->ndim ? type->dim[type->ndim - 1] : 1;
}

const char *fx_type_text(const fx_type *type, char *text, size_t capacity) {
  int used = snprintf(text, capacity, "%s[", fx_dtype_name(type->dtype));
  for (int i = 0; i < type->ndim && used < (int)capacity; i++)
    used += snprintf(text + used, capacity - (size_t)used, "%s%lld", i ? ", " : "", (long long)type->dim[i]);
  if (used < (int)capacity) snprintf(text + used, capacity - (size_t)used, "]");
  return text;
}
