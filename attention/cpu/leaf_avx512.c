/* SPDX-License-Identifier: Apache-2.0 */
/* The leaves with 16 lanes: 8 x 32 register tiles, mask registers for limits and for tails of 8. */
#include "attention/cpu/leaf.h"

#include <stddef.h>

#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")
#endif
#include <immintrin.h>

#define LANES 16
#define ROWS 8
typedef __m512 vec;
typedef __m512i ivec;
typedef __mmask16 vmask;
#define LOAD(p) _mm512_loadu_ps(p)
#define STORE(p, x) _mm512_storeu_ps(p, x)
#define LOAD8(p) _mm512_maskz_loadu_ps(0xff, p)
#define STORE8(p, x) _mm512_mask_storeu_ps(p, 0xff, x)
#define ILOAD(p) _mm512_loadu_si512(p)
#define SPLAT(x) _mm512_set1_ps(x)
#define ISPLAT(x) _mm512_set1_epi32(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MAX(a, b) _mm512_max_ps(a, b)
#define EXP2_SCALE(p, n, bits) _mm512_scalef_ps(p, n)
#define IN_RANGE(n, lo, hi) _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(lo, n), hi, n)
#define HAS_BITS(word, v) ((__mmask16)((word) >> (16 * (v))))
#define LESS(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define EQUAL(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define SELECT(mask, a, b) _mm512_mask_blend_ps(mask, b, a)
#define LEAF_NAME "avx512"
#define LEAF_GET fx_leaf_avx512
#include "attention/cpu/leaf_body.h"
#ifdef __clang__
#pragma clang attribute pop
#endif
#else
const fx_leaf *fx_leaf_avx512(void) {
  return NULL;
}
#endif
