/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators of the language mean, one scalar function each. Constant folding, the interpreter and
 * the generated C share this very text (FX_SEMANTICS is expanded here and stringised by the C generator), so
 * that they agree bit for bit; all are compiled with -ffp-contract=off. Branch-free, so that loops over them
 * vectorise.
 *
 * Integers are 32 bits and wrap. Division and remainder floor, as PyTorch's; a divisor of 0 gives 0. Shift
 * counts are taken modulo 32, >> keeps the sign. Conversion to int truncates and saturates, NaN gives 0. min
 * and max are `a < b ? a : b` and `a < b ? b : a`. */
#ifndef FX_ATTENTION_LANG_SEMANTICS_H
#define FX_ATTENTION_LANG_SEMANTICS_H

#include <math.h>
#include <stdint.h>

/* clang-format off */
#define FX_SEMANTICS(KEEP) KEEP( \
static inline int32_t fx_sem_add(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); } \
static inline int32_t fx_sem_sub(int32_t a, int32_t b) { return (int32_t)((uint32_t)a - (uint32_t)b); } \
static inline int32_t fx_sem_mul(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); } \
static inline int32_t fx_sem_neg(int32_t a) { return (int32_t)(0u - (uint32_t)a); } \
static inline int32_t fx_sem_div(int32_t a, int32_t b) { \
  if (b == 0) return 0; \
  if (b == -1) return fx_sem_neg(a); \
  int32_t quotient = a / b; \
  return quotient - (quotient * b != a && (a < 0) != (b < 0)); \
} \
static inline int32_t fx_sem_mod(int32_t a, int32_t b) { \
  if (b == 0 || b == -1) return 0; \
  int32_t rest = a % b; \
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest; \
} \
static inline int32_t fx_sem_shl(int32_t a, int32_t b) { return (int32_t)((uint32_t)a << (b & 31)); } \
static inline int32_t fx_sem_shr(int32_t a, int32_t b) { return a >> (b & 31); } \
static inline int32_t fx_sem_absi(int32_t a) { return a < 0 ? fx_sem_neg(a) : a; } \
static inline int32_t fx_sem_to_int(float a) { \
  float low = a < -2147483648.0f ? -2147483648.0f : a; \
  return low >= 2147483648.0f ? INT32_MAX : low == low ? (int32_t)low : 0; \
} \
static inline float fx_sem_absf(float a) { return fabsf(a); } \
static inline float fx_sem_minf(float a, float b) { return a < b ? a : b; } \
static inline float fx_sem_maxf(float a, float b) { return a < b ? b : a; } \
static inline float fx_sem_exp(float a) { return expf(a); } \
static inline float fx_sem_log(float a) { return logf(a); } \
static inline float fx_sem_tanh(float a) { return tanhf(a); } \
static inline float fx_sem_sqrt(float a) { return sqrtf(a); } \
static inline float fx_sem_sigmoid(float a) { return 1.0f / (1.0f + fx_sem_exp(-a)); } \
static inline float fx_sem_floor(float a) { return floorf(a); } \
)
/* clang-format on */
#define FX_SEMANTICS_CODE(...) __VA_ARGS__
FX_SEMANTICS(FX_SEMANTICS_CODE)
#undef FX_SEMANTICS_CODE

#endif
