/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators of the language mean, one scalar function each. Constant folding, the interpreter and
 * the generated C share this very text (FX_SEMANTICS is expanded here and stringised by the C generator), so
 * that they agree bit for bit; all are compiled with -ffp-contract=off. Branch-free (selections only),
 * without library calls and fused multiply-adds, so that loops over them vectorise and every instruction set
 * gives the same.
 *
 * Integers are 32 bits and wrap. Division and remainder floor, as PyTorch's; a divisor of 0 gives 0. Shift
 * counts are taken modulo 32, >> keeps the sign. Conversion to int truncates and saturates, NaN gives 0. min
 * and max are `a < b ? a : b` and `a < b ? b : a`.
 *
 * Integer division goes through doubles, which vector units divide: the quotient of two 32-bit integers is at
 * least 1 / |b| from the next integer and its rounding error at most 2^-21 / |b|, so that truncation is
 * exact. fx_sem_div_by and fx_sem_mod_by are for divisors above 0, in C's own division: where the divisor is
 * a literal the compiler makes a multiplication of it.
 *
 * exp = 2^n p(f) with n = round(a log2 e) by the magic number 1.5 * 2^23 and f = a - n ln 2 in two parts
 * (Cody and Waite; polynomial of Cephes' expf); 2^n in two factors, so that results reach into the denormals
 * and to infinity by themselves. log: fdlibm's, m in [sqrt 1/2, sqrt 2). tanh: Cephes' odd polynomial below
 * 0.625, else through exp. Errors are measured in tests/attention/test_semantics.c. */
#ifndef FX_ATTENTION_LANG_SEMANTICS_H
#define FX_ATTENTION_LANG_SEMANTICS_H

#include <math.h>
#include <stdint.h>

/* clang-format off */
#define FX_SEMANTICS(KEEP) KEEP( \
static inline __attribute__((always_inline)) int32_t fx_sem_add(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); } \
static inline __attribute__((always_inline)) int32_t fx_sem_sub(int32_t a, int32_t b) { return (int32_t)((uint32_t)a - (uint32_t)b); } \
static inline __attribute__((always_inline)) int32_t fx_sem_mul(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); } \
static inline __attribute__((always_inline)) int32_t fx_sem_neg(int32_t a) { return (int32_t)(0u - (uint32_t)a); } \
static inline __attribute__((always_inline)) int32_t fx_sem_rest(int32_t a, int32_t b, int32_t quotient) { \
  return fx_sem_sub(a, fx_sem_mul(quotient, b)); \
} \
static inline __attribute__((always_inline)) int32_t fx_sem_div(int32_t a, int32_t b) { \
  int32_t divisor = b == 0 ? 1 : b == -1 ? 1 : b; \
  int32_t quotient = (int32_t)((double)a / (double)divisor); \
  int32_t rest = fx_sem_rest(a, divisor, quotient); \
  int32_t floored = quotient - ((rest != 0) & ((rest ^ divisor) < 0)); \
  return b == 0 ? 0 : b == -1 ? fx_sem_neg(a) : floored; \
} \
static inline __attribute__((always_inline)) int32_t fx_sem_mod(int32_t a, int32_t b) { \
  int32_t divisor = b == 0 ? 1 : b == -1 ? 1 : b; \
  int32_t rest = fx_sem_rest(a, divisor, (int32_t)((double)a / (double)divisor)); \
  return fx_sem_add(rest, ((rest != 0) & ((rest ^ divisor) < 0)) ? divisor : 0); \
} \
static inline __attribute__((always_inline)) int32_t fx_sem_div_by(int32_t a, int32_t b) { \
  int32_t quotient = a / b; \
  return quotient - (fx_sem_rest(a, b, quotient) < 0); \
} \
static inline __attribute__((always_inline)) int32_t fx_sem_mod_by(int32_t a, int32_t b) { \
  int32_t rest = fx_sem_rest(a, b, a / b); \
  return rest + (rest < 0 ? b : 0); \
} \
static inline __attribute__((always_inline)) int32_t fx_sem_shl(int32_t a, int32_t b) { return (int32_t)((uint32_t)a << (b & 31)); } \
static inline __attribute__((always_inline)) int32_t fx_sem_shr(int32_t a, int32_t b) { return a >> (b & 31); } \
static inline __attribute__((always_inline)) int32_t fx_sem_absi(int32_t a) { return a < 0 ? fx_sem_neg(a) : a; } \
static inline __attribute__((always_inline)) int32_t fx_sem_to_int(float a) { \
  float number = a == a ? a : 0.0f; \
  float low = number < -2147483648.0f ? -2147483648.0f : number; \
  float inside = low < 2147483648.0f ? low : 2147483520.0f; \
  int32_t whole = (int32_t)inside; \
  return low < 2147483648.0f ? whole : INT32_MAX; \
} \
static inline __attribute__((always_inline)) int32_t fx_sem_bits(float a) { union { float f; int32_t i; } cast = {a}; return cast.i; } \
static inline __attribute__((always_inline)) float fx_sem_from_bits(int32_t a) { union { int32_t i; float f; } cast = {a}; return cast.f; } \
static inline __attribute__((always_inline)) float fx_sem_absf(float a) { return __builtin_fabsf(a); } \
static inline __attribute__((always_inline)) float fx_sem_minf(float a, float b) { return a < b ? a : b; } \
static inline __attribute__((always_inline)) float fx_sem_maxf(float a, float b) { return a < b ? b : a; } \
static inline __attribute__((always_inline)) float fx_sem_exp(float a) { \
  float above = a > -104.0f ? a : -104.0f; \
  float inside = above < 89.0f ? above : 89.0f; \
  float shifted = inside * 1.44269504088896341f + 12582912.0f; \
  float n = shifted - 12582912.0f; \
  float f = (inside - n * 0.693359375f) - n * -2.12194440e-4f; \
  float p = 1.9875691500e-4f; \
  p = p * f + 1.3981999507e-3f; \
  p = p * f + 8.3334519073e-3f; \
  p = p * f + 4.1665795894e-2f; \
  p = p * f + 1.6666665459e-1f; \
  p = p * f + 5.0000001201e-1f; \
  p = p * (f * f) + f + 1.0f; \
  int32_t whole = fx_sem_bits(shifted) - 0x4B400000; \
  int32_t half = whole >> 1; \
  float first = fx_sem_from_bits((half + 127) * (1 << 23)); \
  float second = fx_sem_from_bits((whole - half + 127) * (1 << 23)); \
  float result = p * first * second; \
  return a == a ? result : a; \
} \
static inline __attribute__((always_inline)) float fx_sem_log(float a) { \
  float normal = a < 0x1p-126f ? a * 0x1p25f : a; \
  int32_t bits = fx_sem_bits(normal); \
  int32_t exponent = fx_sem_sub(bits, 0x3f3504f3) >> 23; \
  float m = fx_sem_from_bits(fx_sem_sub(bits, fx_sem_mul(exponent, 1 << 23))); \
  float k = (float)(exponent - (a < 0x1p-126f ? 25 : 0)); \
  float f = m - 1.0f; \
  float s = f / (2.0f + f); \
  float z = s * s; \
  float w = z * z; \
  float r = z * (0xaaaaaa.0p-24f + w * 0x91e9ee.0p-25f) + w * (0xccce13.0p-25f + w * 0xf89e26.0p-26f); \
  float half = 0.5f * f * f; \
  float result = s * (half + r) + k * 9.0580006145e-06f - half + f + k * 6.9313812256e-01f; \
  float positive = a < __builtin_inff() ? result : a; \
  float other = a == 0.0f ? -__builtin_inff() : __builtin_nanf(""); \
  return a > 0.0f ? positive : other; \
} \
static inline __attribute__((always_inline)) float fx_sem_tanh(float a) { \
  float x = __builtin_fabsf(a); \
  float z = x * x; \
  float p = -5.70498872745e-3f; \
  p = p * z + 2.06390887954e-2f; \
  p = p * z + -5.37397155531e-2f; \
  p = p * z + 1.33314422036e-1f; \
  p = p * z + -3.33332819422e-1f; \
  float near = p * z * x + x; \
  float far = 1.0f - 2.0f / (fx_sem_exp(x + x) + 1.0f); \
  return __builtin_copysignf(x < 0.625f ? near : far, a); \
} \
static inline __attribute__((always_inline)) float fx_sem_sqrt(float a) { return __builtin_sqrtf(a); } \
static inline __attribute__((always_inline)) float fx_sem_sigmoid(float a) { \
  float e = fx_sem_exp(-__builtin_fabsf(a)); \
  return (a < 0.0f ? e : 1.0f) / (1.0f + e); \
} \
static inline __attribute__((always_inline)) float fx_sem_floor(float a) { return __builtin_floorf(a); } \
)
/* clang-format on */
#define FX_SEMANTICS_CODE(...) __VA_ARGS__
FX_SEMANTICS(FX_SEMANTICS_CODE)
#undef FX_SEMANTICS_CODE

#endif
