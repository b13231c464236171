/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding, half-split. The angle is rounded to float before its sine, as on the CPU. */

#if !T_IS_BF16 /* of no type */
/* positions [rows] -> table [rows, 2 half]: cosines, then sines */
SINGLE_KERNEL(rope_table, FLAT)(const int *positions, float *table, double theta, i64 rows, i64 half) {
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

/* `wide` elements of one half of a head and those of the other, at a and b of the row; or, behind the heads,
 * a copy. */
template <int WIDE>
__device__ inline void turn(const T *x, const float *table, T *y, float sign, i64 row, i64 cols, i64 rotated,
                            i64 half, i64 j) {
  i64 pairs = rotated / (2 * WIDE), halves = half / WIDE;
  if (j >= pairs) {
    i64 at = row * cols + rotated + (j - pairs) * WIDE;
    if constexpr (WIDE == VEC)
      *(uint4 *)(y + at) = load_vector(x + at);
    else
      y[at] = x[at];
    return;
  }
  i64 head = j / halves, i = (j - head * halves) * WIDE, at = row * cols + head * 2 * half + i;
  const float *angle = table + row * 2 * half + i;
  if constexpr (WIDE == VEC) {
    uint4 left = load_vector(x + at), right = load_vector(x + at + half);
    float a[VEC], b[VEC], cosine[VEC], sine[VEC];
    load_floats(angle, cosine), load_floats(angle + half, sine);
    unpack(left, a), unpack(right, b);
    for (int e = 0; e < VEC; e++) {
      float u = a[e], s = sign * sine[e];
      a[e] = u * cosine[e] - b[e] * s;
      b[e] = b[e] * cosine[e] + u * s;
    }
    store_vector(y + at, a), store_vector(y + at + half, b);
  } else {
    float a = get(x + at), b = get(x + at + half), cosine = angle[0], sine = sign * angle[half];
    put(y + at, a * cosine - b * sine);
    put(y + at + half, b * cosine + a * sine);
  }
}

/* The first `rotated` columns of x [rows, cols] are heads of 2 half columns; a thread turns VEC pairs (one,
 * where vectors do not fit) or copies as many of the columns behind them. y may be x: those stay. */
KERNEL(rope, FLAT)
(const T *x, const float *table, T *y, float sign, i64 rows, i64 cols, i64 rotated, i64 half) {
  bool vectors = aligned(x, y) && aligned(table) && half % VEC == 0 && cols % VEC == 0;
  i64 wide = vectors ? VEC : 1, work = (rotated / 2 + (x == y ? 0 : cols - rotated)) / wide, n = rows * work;
  for (i64 k = grid_index(); k < n; k += grid_stride()) {
    i64 row = k / work;
    if (vectors)
      turn<VEC>(x, table, y, sign, row, cols, rotated, half, k - row * work);
    else
      turn<1>(x, table, y, sign, row, cols, rotated, half, k - row * work);
  }
}
