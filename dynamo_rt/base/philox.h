/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based
 * generator, so every random number is a pure function of (key, counter) and no generator state exists.
 * flexion's convention: key = (seed, site), counter = (global index, step). */
#ifndef FX_DYNAMO_RT_BASE_PHILOX_H
#define FX_DYNAMO_RT_BASE_PHILOX_H

#include <stdint.h>

typedef struct fx_philox {
  uint32_t word[4];
} fx_philox;

/* seed, site: mixed into the 64-bit key. index, step: the 128-bit counter. */
static inline fx_philox fx_philox_at(uint64_t seed, uint64_t site, uint64_t index, uint64_t step) {
  uint64_t key = seed * 0x9E3779B97F4A7C15ull ^ site;
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)step,
           c3 = (uint32_t)(step >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return (fx_philox){{c0, c1, c2, c3}};
}

/* [0, 1) with 24 bits */
static inline float fx_philox_uniform(uint32_t word) {
  return (float)(word >> 8) * 0x1p-24f;
}
/* (0, 1) with 32 bits, for logarithms */
static inline double fx_philox_open(uint32_t word) {
  return ((double)word + 0.5) * 0x1p-32;
}

#endif
