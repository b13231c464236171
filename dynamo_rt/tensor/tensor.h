/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor types (dtype, shape, strides) and tensors (a type plus an address). Both are plain data, copied by
 * value; neither owns memory. Strides count elements. Row-major unless a view says otherwise. */
#ifndef FX_DYNAMO_RT_TENSOR_TENSOR_H
#define FX_DYNAMO_RT_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_MAX_DIMS = 5 };

typedef struct fx_type {
  fx_dtype dtype;
  int ndim; /* 0: a scalar of one element */
  int64_t dim[FX_MAX_DIMS];
  int64_t stride[FX_MAX_DIMS];
} fx_type;

typedef struct fx_tensor {
  void *data; /* device address of element [0, 0, ...]; 64-byte aligned when the tensor is no view */
  fx_type type;
} fx_tensor;

/* Contiguous type; unused dims are 0, so that two equal types are equal bytes. */
fx_type fx_type_of(fx_dtype dtype, int ndim, const int64_t *dim);
fx_type fx_type_1d(fx_dtype dtype, int64_t n);
fx_type fx_type_2d(fx_dtype dtype, int64_t rows, int64_t cols);
fx_type fx_type_3d(fx_dtype dtype, int64_t a, int64_t b, int64_t c);

int64_t fx_type_numel(const fx_type *type);
bool fx_type_contiguous(const fx_type *type);
bool fx_type_equal(const fx_type *a, const fx_type *b); /* dtype, shape and strides */
bool fx_type_same_shape(const fx_type *a, const fx_type *b);
/* Elements from the first to one past the last in memory: what a tensor can touch. */
int64_t fx_type_span(const fx_type *type);
size_t fx_type_bytes(const fx_type *type); /* span times element size */
/* Product of all dims but the last, and the last (1 for a scalar): how row-wise kernels see a tensor. */
int64_t fx_type_rows(const fx_type *type);
int64_t fx_type_cols(const fx_type *type);
/* "float32[2, 64, 128]" into text (at most `capacity` bytes); returns text. */
const char *fx_type_text(const fx_type *type, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
