/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding, half-split. The angle is rounded to float before its sine, as on the CPU. */

/* positions [rows] -> table [rows, 2 half]: cosines, then sines */
extern "C" __global__ void rope_table(const int *positions, float *table, double theta, i64 rows, i64 half) {
  i64 n = rows * half;
  for (i64 k = grid_index(); k < n; k += grid_stride()) {
    i64 r = k / half, i = k - r * half;
    float frequency = (float)(1.0 / pow(theta, (double)(2 * i) / (double)(2 * half)));
    float angle = (float)positions[r] * frequency;
    table[r * 2 * half + i] = cosf(angle);
    table[r * 2 * half + half + i] = sinf(angle);
  }
}

/* The first `rotated` columns of x [rows, cols] are heads of 2 half columns; a thread turns one pair or
 * copies one of the columns behind them. y may be x. */
extern "C" __global__ void rope(const float *x, const float *table, float *y, float sign, i64 rows, i64 cols,
                                i64 rotated, i64 half) {
  i64 pairs = rotated / 2, work = pairs + (cols - rotated), n = rows * work;
  for (i64 k = grid_index(); k < n; k += grid_stride()) {
    i64 r = k / work, j = k - r * work;
    if (j >= pairs) {
      i64 at = r * cols + rotated + (j - pairs);
      y[at] = x[at];
      continue;
    }
    i64 head = j / half, i = j - head * half, at = r * cols + head * 2 * half + i;
    float cosine = table[r * 2 * half + i], sine = sign * table[r * 2 * half + half + i];
    float a = x[at], b = x[at + half];
    y[at] = a * cosine - b * sine;
    y[at + half] = b * cosine + a * sine;
  }
}
