/* SPDX-License-Identifier: Apache-2.0 */
/* Permutations and draws without generator state: each is a pure function of (seed, site, epoch). */
#ifndef FX_DATA_SHUFFLE_H
#define FX_DATA_SHUFFLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A number in [0, bound), bound >= 1, from Philox(seed, site, index, epoch): the high half of a 64-bit word
 * times bound (bias below bound / 2^64). */
int64_t fx_draw_below(uint64_t seed, const char *site, int64_t index, int64_t epoch, int64_t bound);

/* order [count]: overwritten with a permutation of 0..count-1. Fisher-Yates from the end; the exchange of
 * place i draws at index i. */
void fx_shuffle(int64_t *order, int64_t count, uint64_t seed, const char *site, int64_t epoch);

#ifdef __cplusplus
}
#endif
#endif
