/* SPDX-License-Identifier: Apache-2.0 */
/* Constants, copies of strided views, conversions between types. */

SINGLE_KERNEL(fill, FLAT)(float *y, float number, i64 n) {
  i64 vectors = aligned(y) ? n / 4 : 0;
  float4 four = make_float4(number, number, number, number);
  for (i64 i = grid_index(); i < vectors; i += grid_stride()) ((float4 *)y)[i] = four;
  for (i64 i = 4 * vectors + grid_index(); i < n; i += grid_stride()) y[i] = number;
}

/* A strided view to a strided view of the same shape; strides count units, the largest power of two bytes
 * that lies together in both. */
struct view {
  i64 dim[5], stride_from[5], stride_to[5];
  int first; /* dimension that counts; those before it are 1 */
};

template <typename U> __device__ inline void copy_units(const U *x, U *y, const view &v, i64 n) {
  enum { AT_ONCE = 4 };
  for (i64 first = (i64)blockIdx.x * FLAT * AT_ONCE + threadIdx.x; first < n;
       first += (i64)gridDim.x * FLAT * AT_ONCE) {
    U unit[AT_ONCE];
    i64 place[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      i64 rest = first + j * FLAT, from = 0, to = 0;
      if (rest >= n) continue;
#pragma unroll
      for (int d = 4; d >= 0; d--) {
        if (d < v.first) continue;
        i64 above = d == v.first ? 0 : rest / v.dim[d], at = rest - above * v.dim[d];
        rest = above;
        from += at * v.stride_from[d];
        to += at * v.stride_to[d];
      }
      unit[j] = x[from];
      place[j] = to;
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
      if (first + j * FLAT < n) y[place[j]] = unit[j];
  }
}

SINGLE_KERNEL(copy_view, FLAT)(const char *x, char *y, view v, int size, i64 n) {
  if (size == 16)
    copy_units((const uint4 *)x, (uint4 *)y, v, n);
  else if (size == 8)
    copy_units((const u64 *)x, (u64 *)y, v, n);
  else if (size == 4)
    copy_units((const u32 *)x, (u32 *)y, v, n);
  else if (size == 2)
    copy_units((const unsigned short *)x, (unsigned short *)y, v, n);
  else
    copy_units(x, y, v, n);
}

/* fx_dtype of casts: the order of FX_DTYPE_LIST */
enum { F32 = 0, BF16 = 1, F64 = 3 };

__device__ inline void cast_one(const void *x, void *y, int from, int to, i64 i) {
  double number = from == F32    ? (double)((const float *)x)[i]
                  : from == BF16 ? (double)low_bf16(((const unsigned short *)x)[i])
                                 : ((const double *)x)[i];
  if (to == F32)
    ((float *)y)[i] = (float)number;
  else if (to == BF16)
    ((unsigned short *)y)[i] = (unsigned short)pack_bf16((float)number, 0.0f);
  else
    ((double *)y)[i] = number;
}

/* Eight elements a thread between fp32 and bfloat16, two loads under way. */
SINGLE_KERNEL(cast, FLAT)(const void *x, void *y, int from, int to, i64 n) {
  bool fast = aligned(x, y) && from != to && from != F64 && to != F64;
  i64 eights = fast ? n / 8 : 0;
  for (i64 i = grid_index(); i < eights; i += grid_stride()) {
    if (from == F32) {
      float4 a = ((const float4 *)x)[2 * i], b = ((const float4 *)x)[2 * i + 1];
      ((uint4 *)y)[i] =
          make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
    } else {
      uint4 v = ((const uint4 *)x)[i];
      float4 *out = (float4 *)y + 2 * i;
      out[0] = make_float4(low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y));
      out[1] = make_float4(low_bf16(v.z), high_bf16(v.z), low_bf16(v.w), high_bf16(v.w));
    }
  }
  for (i64 i = 8 * eights + grid_index(); i < n; i += grid_stride()) cast_one(x, y, from, to, i);
}
