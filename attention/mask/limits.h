/* SPDX-License-Identifier: Apache-2.0 */
/* Mask limits: masks as data.
 *
 * Every query row sees at most R intervals [lo, hi) of key positions. mask.h fills them from an expression;
 * kernels never learn where limits came from. All positions are global: indices into the whole sequence,
 * whatever part of it a rank holds.
 *
 * Must not know: tiles (runs.h derives those), devices, the graph. */
#ifndef FX_ATTENTION_MASK_LIMITS_H
#define FX_ATTENTION_MASK_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FX_LIMITS_ALIGN = 128, /* Tpad is T rounded up to this */
  FX_LIMITS_MAX_R = 2    /* intervals a row */
};

/* T rounded up to FX_LIMITS_ALIGN: the length of a row of limits and of the log-sum-exp. */
static inline int32_t fx_attention_tpad(int32_t T) {
  return (T + FX_LIMITS_ALIGN - 1) / FX_LIMITS_ALIGN * FX_LIMITS_ALIGN;
}

/* lo, hi: int32 [R][Bm][Hm][Tpad]; row t of sample b and head h sees the union of [lo, hi) over R, global
 * positions of keys within [0, T_kv]. Rows are the T queries that are here, in their order here. Intervals of
 * one row are disjoint, do not touch, and come in ascending order, empty ones last. An empty interval, and
 * every row in T..Tpad, is lo = hi = 0. Bm is 1 where the mask does not depend on the sample, else B; Hm is 1
 * (or 0, which counts as 1) where it does not depend on the head, else the number of heads. */
typedef struct fx_limits {
  int32_t R, Bm, T, Tpad, T_kv;
  int32_t *lo, *hi; /* the caller's memory */
  int32_t Hm;
} fx_limits;

static inline int32_t fx_limits_heads(const fx_limits *limits) {
  return limits->Hm > 1 ? limits->Hm : 1;
}
/* Where the T rows of interval r, sample b and head h begin in lo and hi. */
static inline int64_t fx_limits_at(const fx_limits *limits, int32_t r, int32_t b, int32_t h) {
  int64_t list = ((int64_t)r * limits->Bm + (limits->Bm == 1 ? 0 : b)) * fx_limits_heads(limits);
  return (list + (fx_limits_heads(limits) == 1 ? 0 : h)) * limits->Tpad;
}

/* Bytes of lo and hi together, a multiple of 64. */
size_t fx_limits_bytes(const fx_limits *limits);
/* Points lo and hi into `memory` (fx_limits_bytes, borrowed). */
void fx_limits_bind(fx_limits *limits, void *memory);

#ifdef __cplusplus
}
#endif
#endif
