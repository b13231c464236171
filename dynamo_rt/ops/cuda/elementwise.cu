/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise ops in fp32, one element a thread and grid stride; bound by memory. */

extern "C" __global__ void add_f32(const float *a, const float *b, float *y, i64 n) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) y[i] = a[i] + b[i];
}

extern "C" __global__ void scale_f32(const float *x, const float *s, float *y, i64 n) {
  float factor = *s;
  for (i64 i = grid_index(); i < n; i += grid_stride()) y[i] = x[i] * factor;
}

extern "C" __global__ void fill_f32(float *y, float number, i64 n) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) y[i] = number;
}

/* A strided view to a strided view of the same shape; strides count elements of `size` bytes. */
struct view {
  i64 dim[5], stride_from[5], stride_to[5];
};

extern "C" __global__ void copy_view(const char *x, char *y, view v, int size, i64 n) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    i64 rest = i, from = 0, to = 0;
    for (int d = 4; d >= 0; d--) {
      i64 at = rest % v.dim[d];
      rest /= v.dim[d];
      from += at * v.stride_from[d];
      to += at * v.stride_to[d];
    }
    if (size == 4)
      ((u32 *)y)[to] = ((const u32 *)x)[from];
    else if (size == 8)
      ((u64 *)y)[to] = ((const u64 *)x)[from];
    else if (size == 2)
      ((unsigned short *)y)[to] = ((const unsigned short *)x)[from];
    else
      y[to] = x[from];
  }
}

/* fx_dtype of casts: the order of FX_DTYPE_LIST */
enum { F32 = 0, BF16 = 1, F64 = 3 };

__device__ inline unsigned short to_bf16(float value) {
  u32 bits = __float_as_uint(value);
  if (value != value) return (unsigned short)((bits >> 16) | 0x40u);
  return (unsigned short)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16); /* to nearest even */
}

extern "C" __global__ void cast(const void *x, void *y, int from, int to, i64 n) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    double number = from == F32    ? (double)((const float *)x)[i]
                    : from == BF16 ? (double)__uint_as_float((u32)((const unsigned short *)x)[i] << 16)
                                   : ((const double *)x)[i];
    if (to == F32)
      ((float *)y)[i] = (float)number;
    else if (to == BF16)
      ((unsigned short *)y)[i] = to_bf16((float)number);
    else
      ((double *)y)[i] = number;
  }
}
