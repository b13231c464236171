/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cpu/leaf.h"

#include <stddef.h>

#if defined(__x86_64__)
static bool has_avx512(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
static bool has_avx2(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
static bool has_avx512(void) {
  return false;
}
static bool has_avx2(void) {
  return false;
}
#endif

const fx_leaf *fx_leaf_get(fx_attention_isa isa) {
  switch (isa) {
  case FX_ISA_AUTO:
    return has_avx512() ? fx_leaf_avx512() : has_avx2() ? fx_leaf_avx2() : fx_leaf_portable();
  case FX_ISA_AVX512:
    return has_avx512() ? fx_leaf_avx512() : NULL;
  case FX_ISA_AVX2:
    return has_avx2() ? fx_leaf_avx2() : NULL;
  case FX_ISA_PORTABLE:
    return fx_leaf_portable();
  default:
    return NULL;
  }
}
