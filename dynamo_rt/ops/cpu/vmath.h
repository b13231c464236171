/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions that the compiler can vectorise: straight-line float code, no branches, no table.
 * Errors are measured against libm in tests/dynamo_rt/test_vmath.c. */
#ifndef FX_DYNAMO_RT_OPS_CPU_VMATH_H
#define FX_DYNAMO_RT_OPS_CPU_VMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FX_INLINE static inline __attribute__((always_inline))

/* exp(x) = 2^n p(f), n = round(x log2 e) by the magic number 1.5 * 2^23, f = x - n ln 2 in two parts (Cody
 * and Waite). At most 2 ulp; exactly 0 below -87.33 (results under 2^-126), inf above 88.73. */
FX_INLINE float fx_vexp(float x) {
  const float magic = 12582912.0f;
  float above = x > -87.33f ? x : -87.33f; /* NaN too: its bits must not reach the shifts below */
  float clamped = above < 88.72f ? above : 88.72f;
  float shifted = fmaf(clamped, 1.44269504088896341f, magic);
  float n = shifted - magic;
  float f = fmaf(n, -0.693359375f, clamped);
  f = fmaf(n, 2.12194440e-4f, f);
  float p =
      1.9875691500e-4f; /* minimax polynomial of (exp(f) - 1 - f) / f^2 on |f| <= ln 2 / 2 (Cephes expf) */
  p = fmaf(p, f, 1.3981999507e-3f);
  p = fmaf(p, f, 8.3334519073e-3f);
  p = fmaf(p, f, 4.1665795894e-2f);
  p = fmaf(p, f, 1.6666665459e-1f);
  p = fmaf(p, f, 5.0000001201e-1f);
  p = fmaf(p, f * f, f) + 1.0f;
  /* 2^n in two factors, so that n = 128 does not overflow the exponent field on its own */
  int32_t bits, half;
  memcpy(&bits, &shifted, sizeof bits);
  int32_t whole = bits - 0x4B400000;
  half = whole >> 1;
  int32_t a = (half + 127) * (1 << 23), b = (whole - half + 127) * (1 << 23);
  float scale_a, scale_b;
  memcpy(&scale_a, &a, sizeof a);
  memcpy(&scale_b, &b, sizeof b);
  float y = p * scale_a * scale_b;
  y = x < -87.33f ? 0.0f : y;
  y = x > 88.72f ? INFINITY : y;
  return x != x ? x : y;
}

/* tanh(x) = 1 - 2 / (exp(2x) + 1); absolute error below 2e-7. */
FX_INLINE float fx_vtanh(float x) {
  return 1.0f - 2.0f / (fx_vexp(2.0f * x) + 1.0f);
}

FX_INLINE float fx_vsigmoid(float x) {
  return 1.0f / (1.0f + fx_vexp(-x));
}

/* Standard normal distribution function Phi(x) = erfc(-x / sqrt 2) / 2 with the Chebyshev fit of erfc in
 * Numerical Recipes (section 6.2, relative error 1.2e-7). */
FX_INLINE float fx_vphi(float x) {
  float z = fabsf(x) * 0.70710678118654752f;
  float t = 1.0f / fmaf(0.5f, z, 1.0f);
  float p = 0.17087277f;
  p = fmaf(p, t, -0.82215223f);
  p = fmaf(p, t, 1.48851587f);
  p = fmaf(p, t, -1.13520398f);
  p = fmaf(p, t, 0.27886807f);
  p = fmaf(p, t, -0.18628806f);
  p = fmaf(p, t, 0.09678418f);
  p = fmaf(p, t, 0.37409196f);
  p = fmaf(p, t, 1.00002368f);
  p = fmaf(p, t, -1.26551223f);
  float half_erfc = 0.5f * t * fx_vexp(fmaf(-z, z, p));
  return x < 0.0f ? half_erfc : 1.0f - half_erfc;
}

#endif
