/* SPDX-License-Identifier: Apache-2.0 */
/* Constants, copies of strided views, conversions between types. */

SINGLE_KERNEL(fill, FLAT)(float *y, float number, i64 n) {
  follow();
  i64 vectors = aligned(y) ? n / 4 : 0;
  float4 four = make_float4(number, number, number, number);
  for (i64 i = grid_index(); i < vectors; i += grid_stride()) ((float4 *)y)[i] = four;
  for (i64 i = 4 * vectors + grid_index(); i < n; i += grid_stride()) y[i] = number;
}

/* Words of pinned memory, for who watches there; the second is seen first. A kernel, since a graph of nothing
 * but kernels is launched fastest (recording_cuda.c). */
SINGLE_KERNEL(tell_host, WARP)(volatile u32 *to, u32 first, u32 second) {
  follow();
  if (threadIdx.x > 0) return;
  to[1] = second;
  __threadfence_system();
  to[0] = first;
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
  follow();
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

/* ---- blocks of 128 rows by number ---- */

enum { BLOCK_ROWS = 128 };

/* Units of 16 bytes; strides of both sides count them. */
struct block_view {
  i64 batch_from, row_from, head_from, batch_to, row_to, head_to;
  i64 count, heads, units; /* blocks, heads, units of a head's row */
};

SINGLE_KERNEL(take_blocks, FLAT)(const uint4 *x, const int *index, uint4 *y, block_view v, i64 n) {
  follow();
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    i64 rest = i / v.units, unit = i - rest * v.units, rows = v.count * BLOCK_ROWS;
    i64 above = rest / v.heads, head = rest - above * v.heads, b = above / rows, row = above - b * rows;
    i64 from = index[row / BLOCK_ROWS];
    uint4 value = make_uint4(0, 0, 0, 0);
    if (from >= 0)
      value = x[b * v.batch_from + (from * BLOCK_ROWS + row % BLOCK_ROWS) * v.row_from + head * v.head_from +
                unit];
    y[b * v.batch_to + row * v.row_to + head * v.head_to + unit] = value;
  }
}

/* fours: float4 of a block; rows of the sum: `blocks` blocks a sample. */
SINGLE_KERNEL(add_blocks, FLAT)
(float4 *sum, const float4 *x, const int *index, i64 fours, i64 count, i64 blocks, i64 n) {
  follow();
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    i64 rest = i / fours, at = i - rest * fours, b = rest / count, block = rest - b * count,
        to = index[block];
    if (to < 0) continue;
    float4 *place = sum + (b * blocks + to) * fours + at, old = *place, more = x[i];
    *place = make_float4(old.x + more.x, old.y + more.y, old.z + more.z, old.w + more.w);
  }
}

/* ---- between types ---- */

/* fx_dtype of casts: the order of FX_DTYPE_LIST */
enum { F32 = 0, BF16 = 1, F64 = 3 };

__device__ inline void cast_one(const void *x, void *y, int from, int to, i64 i, i64 place) {
  double number = from == F32    ? (double)((const float *)x)[i]
                  : from == BF16 ? (double)low_bf16(((const unsigned short *)x)[i])
                                 : ((const double *)x)[i];
  if (to == F32)
    ((float *)y)[place] = (float)number;
  else if (to == BF16)
    ((unsigned short *)y)[place] = (unsigned short)pack_bf16((float)number, 0.0f);
  else
    ((double *)y)[place] = number;
}

/* Eight elements a thread between fp32 and bfloat16, two loads under way. */
SINGLE_KERNEL(cast, FLAT)(const void *x, void *y, int from, int to, i64 n) {
  follow();
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
  for (i64 i = 8 * eights + grid_index(); i < n; i += grid_stride()) cast_one(x, y, from, to, i, i);
}

/* Contiguous to a strided view. wide: from fp32 to bfloat16, and the view counts eight elements. */
SINGLE_KERNEL(cast_view, FLAT)(const void *x, void *y, view v, int from, int to, int wide, i64 n) {
  follow();
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    i64 rest = i, place = 0;
#pragma unroll
    for (int d = 4; d >= 0; d--) {
      if (d < v.first) continue;
      i64 above = d == v.first ? 0 : rest / v.dim[d];
      place += (rest - above * v.dim[d]) * v.stride_to[d];
      rest = above;
    }
    if (wide) {
      float4 a = ((const float4 *)x)[2 * i], b = ((const float4 *)x)[2 * i + 1];
      ((uint4 *)y)[place] =
          make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
    } else {
      cast_one(x, y, from, to, i, place);
    }
  }
}
