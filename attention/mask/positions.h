/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rows or keys that are here lie in the whole sequence: contiguous, or in segments of multiples of
 * 128 (ring attention). */
#ifndef FX_ATTENTION_MASK_POSITIONS_H
#define FX_ATTENTION_MASK_POSITIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "attention/mask/limits.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number i lies at base[i / 128] + i % 128, or at first + i where base is NULL. base is borrowed. */
typedef struct fx_positions {
  const int32_t *base;
  int32_t first;
} fx_positions;

static inline int32_t fx_position(const fx_positions *p, int64_t i) {
  int64_t at = p->base ? p->base[i / FX_LIMITS_ALIGN] + i % FX_LIMITS_ALIGN : p->first + i;
  return (int32_t)at;
}

/* The least range [*lo, *hi] around the positions of [from, to), from < to. */
static inline void fx_positions_range(const fx_positions *p, int64_t from, int64_t to, int32_t *lo,
                                      int32_t *hi) {
  *lo = fx_position(p, from), *hi = fx_position(p, to - 1);
  if (!p->base) return;
  for (int64_t k = from / FX_LIMITS_ALIGN; k * FX_LIMITS_ALIGN < to; k++) {
    int64_t first = k * FX_LIMITS_ALIGN, last = first + FX_LIMITS_ALIGN - 1;
    int32_t low = fx_position(p, first > from ? first : from),
            high = fx_position(p, last < to ? last : to - 1);
    *lo = low < *lo ? low : *lo;
    *hi = high > *hi ? high : *hi;
  }
}

/* Whether all `count` positions lie in [0, length). */
static inline bool fx_positions_fit(const fx_positions *p, int64_t count, int64_t length) {
  if (!p->base) return p->first >= 0 && p->first + count <= length;
  for (int64_t k = 0; k * FX_LIMITS_ALIGN < count; k++) {
    int64_t here =
        count - k * FX_LIMITS_ALIGN < FX_LIMITS_ALIGN ? count - k * FX_LIMITS_ALIGN : FX_LIMITS_ALIGN;
    if (p->base[k] < 0 || p->base[k] + here > length) return false;
  }
  return true;
}

#ifdef __cplusplus
}
#endif
#endif
