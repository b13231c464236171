/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding, half-split. The angle is rounded to float before its sine, as on the CPU. */

#if !T_IS_BF16 /* of no type */
/* positions [rows] -> table [rows, 2 half]: cosines, then sines */
SINGLE_KERNEL(rope_table, FLAT)(const int *positions, float *table, double theta, i64 rows, i64 half) {
  follow();
  i64 n = rows * half;
  for (i64 k = grid_index(); k < n; k += grid_stride()) {
    i64 r = k / half, i = k - r * half;
    float frequency = (float)(1.0 / pow(theta, (double)(2 * i) / (double)(2 * half)));
    float angle = (float)positions[r] * frequency;
    table[r * 2 * half + i] = cosf(angle);
    table[r * 2 * half + half + i] = sinf(angle);
  }
}
#endif

struct rope_params {
  float sign;
  i64 rows, cols;
  int heads, half; /* x [rows, cols] begins with heads of 2 half columns */
};

/* Vectors threadIdx.x of both halves of heads threadIdx.y, threadIdx.y + blockDim.y ... of a row. Where there
 * are threads enough, each has one head: with two, whose angles it would read once, fewer warps wait for the
 * memory at a time. */
__device__ inline void turn_heads(const T *x, const float *angle, T *y, const rope_params &p) {
  float cosine[VEC], sine[VEC];
  for (int head = (int)threadIdx.y; head < p.heads; head += (int)blockDim.y) {
    const T *from = x + head * 2 * p.half;
    uint4 left = stream_vector(from), right = stream_vector(from + p.half);
    if (head == (int)threadIdx.y) {
      load_floats(angle, cosine), load_floats(angle + p.half, sine);
      for (int i = 0; i < VEC; i++) sine[i] *= p.sign;
    }
    float a[VEC], b[VEC];
    unpack(left, a), unpack(right, b);
    for (int i = 0; i < VEC; i++) {
      float u = a[i];
      a[i] = u * cosine[i] - b[i] * sine[i];
      b[i] = b[i] * cosine[i] + u * sine[i];
    }
    store_vector(y + head * 2 * p.half, a);
    store_vector(y + head * 2 * p.half + p.half, b);
  }
}

/* The same, element by element. */
__device__ inline void turn_row(const T *x, const float *table, T *y, const rope_params &p) {
  int threads = (int)(blockDim.x * blockDim.y);
  for (int k = (int)(threadIdx.y * blockDim.x + threadIdx.x); k < p.heads * p.half; k += threads) {
    int head = k / p.half, i = k - head * p.half, at = head * 2 * p.half + i;
    float a = get(x + at), b = get(x + at + p.half), cosine = table[i], sine = p.sign * table[i + p.half];
    put(y + at, a * cosine - b * sine);
    put(y + at + p.half, b * cosine + a * sine);
  }
}

/* table [rows, 2 half]. The columns behind the heads are copied, unless y is x. blockDim.z rows a block;
 * vectors: blockDim.x is the vectors of half a head. */
KERNEL_RESIDENT(rope, FLAT, 5)(const T *x, const float *table, T *y, rope_params p, int vectors) {
  follow();
  i64 row = (i64)blockIdx.x * blockDim.z + threadIdx.z, rotated = (i64)p.heads * 2 * p.half;
  if (row >= p.rows) return;
  x += row * p.cols, y += row * p.cols, table += row * 2 * p.half;
  if (vectors) {
    i64 at = threadIdx.x * VEC;
    turn_heads(x + at, table + at, y + at, p);
  } else {
    turn_row(x, table, y, p);
  }
  if (x == y) return;
  i64 wide = vectors ? VEC : 1, thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (i64 i = rotated + thread * wide; i < p.cols; i += blockDim.x * blockDim.y * wide)
    if (vectors)
      *(uint4 *)(y + i) = load_vector(x + i);
    else
      y[i] = x[i];
}
