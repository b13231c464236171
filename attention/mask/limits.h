/* SPDX-License-Identifier: Apache-2.0 */
/* Mask limits: masks as data.
 *
 * Every query row sees at most R intervals [lo, hi) of key positions. Named variants fill them straight from
 * a batch's inputs (a table below); masks written as expressions will fill the same structure, so kernels
 * never learn where limits came from. All positions are global: indices into the whole sequence, whatever
 * part of it a rank holds.
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

/* What a batch offers to masks; borrowed. Fields that a variant does not need may be NULL or 0. */
typedef struct fx_mask_inputs {
  int32_t B;                /* samples */
  int32_t T, T_kv;          /* query positions, key positions */
  const int32_t *doc_start; /* [B][T] first position of the document of position t: 0 <= doc_start <= t */
  const int32_t *doc_end;   /* [B][T] one past its last position: t < doc_end <= T_kv */
  int32_t window;           /* keys a query sees, itself included; >= 1 */
} fx_mask_inputs;

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

/* A named mask. `rows` fills lo[0..T) and hi[0..T) of sample b with one interval a row, which it may leave
 * outside [0, T_kv] or inverted (the caller clamps). Adding a mask = one function and one row of the table.
 */
typedef struct fx_mask_variant {
  const char *name;
  bool needs_window, needs_doc_start, needs_doc_end; /* documents make a mask depend on the sample */
  void (*rows)(const fx_mask_inputs *in, int32_t b, int32_t *lo, int32_t *hi);
} fx_mask_variant;

/* The table: full, causal (kv <= q), sliding_window (causal and q - kv < window), document_causal
 * (doc_start[q] <= kv <= q), document (doc_start[q] <= kv < doc_end[q]). *count receives its length. */
const fx_mask_variant *fx_mask_variants(int *count);
/* NULL when no variant has that name. */
const fx_mask_variant *fx_mask_variant_find(const char *name);

/* Shape of the limits that `variant` makes of `in`; lo and hi stay NULL until fx_limits_bind. */
fx_limits fx_limits_plan(const fx_mask_variant *variant, const fx_mask_inputs *in);
/* Bytes of lo and hi together, a multiple of 64. */
size_t fx_limits_bytes(const fx_limits *limits);
/* Points lo and hi into `memory` (fx_limits_bytes, borrowed). */
void fx_limits_bind(fx_limits *limits, void *memory);

/* Fills bound limits planned for the same shapes. O(Bm * Tpad), allocates nothing, any thread.
 * FX_ERR_CONFIG: the variant needs a window and it is below 1. FX_ERR_DATA: document bounds are missing or
 * impossible (sample and position are named). FX_ERR_SHAPE: the inputs do not fit the plan. */
fx_status fx_limits_compute(const fx_mask_variant *variant, const fx_mask_inputs *in, fx_limits *limits);

#ifdef __cplusplus
}
#endif
#endif
