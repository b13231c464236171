/* SPDX-License-Identifier: Apache-2.0 */
/* The leaves with 8 lanes: 6 x 16 register tiles (12 of 16 registers accumulate). */
#include "attention/cpu/leaf.h"

#include <stddef.h>

#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#include <immintrin.h>

#define LANES 8
#define ROWS 6
typedef __m256 vec;
typedef __m256i ivec;
typedef __m256 vmask;
#define LOAD(p) _mm256_loadu_ps(p)
#define STORE(p, x) _mm256_storeu_ps(p, x)
#define LOAD8(p) _mm256_loadu_ps(p)
#define STORE8(p, x) _mm256_storeu_ps(p, x)
#define ILOAD(p) _mm256_loadu_si256((const __m256i_u *)(p))
#define SPLAT(x) _mm256_set1_ps(x)
#define ISPLAT(x) _mm256_set1_epi32(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define MAX(a, b) _mm256_max_ps(a, b)
#define EXP2_SCALE(p, n, bits)                            \
  _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32( \
                       _mm256_add_epi32(_mm256_castps_si256(bits), _mm256_set1_epi32(127)), 23)))
#define IN_RANGE(n, lo, hi) \
  _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(lo, n), _mm256_cmpgt_epi32(hi, n)))
#define LANE_BITS _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128)
#define HAS_BITS(word, v)                 \
  _mm256_castsi256_ps(_mm256_cmpeq_epi32( \
      _mm256_and_si256(_mm256_set1_epi32((int)((word) >> (8 * (v)))), LANE_BITS), LANE_BITS))
#define LESS(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define EQUAL(a, b) _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define SELECT(mask, a, b) _mm256_blendv_ps(b, a, mask)
#define LEAF_NAME "avx2"
#define LEAF_GET fx_leaf_avx2
#include "attention/cpu/leaf_body.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const fx_leaf *fx_leaf_avx2(void) {
  return NULL;
}
#endif
