/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise ops; bound by memory. */

KERNEL(add, FLAT)(const T *a, const T *b, T *y, i64 n) {
  follow();
  map(a, b, y, n, [](float u, float v) { return u + v; });
}

KERNEL(scale, FLAT)(const T *x, const float *s, T *y, i64 n) {
  follow();
  float factor = *s;
  map(x, y, n, [factor](float u) { return u * factor; });
}
