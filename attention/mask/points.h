/* SPDX-License-Identifier: Apache-2.0 */
/* Values of expressions at points: what the analysis of masks asks where intervals do not decide, and how
 * bounds of limits get their numbers. Exact, up to 256 points side by side, with the operators of
 * lang/semantics.h; an index that leaves its buffer is clamped.
 *
 * Must not know: tiles, limits, samples other than the one it is given. */
#ifndef FX_ATTENTION_MASK_POINTS_H
#define FX_ATTENTION_MASK_POINTS_H

#include <stddef.h>

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_POINTS_LANES = 256 };

/* Expressions made ready for evaluation; immutable, any number of threads. */
typedef struct fx_points fx_points;

/* What one sample offers to the expressions of a pool; borrowed. */
typedef struct fx_sample {
  const float *uniform;      /* [params of the pool] */
  const void *const *buffer; /* [buffers of the pool]: int32 or float; those that nobody reads may be NULL */
} fx_sample;

/* roots[num_roots] are nodes of the pool, none FX_EX_NONE and none that depends on the score. The pool must
 * outlive the result. FX_ERR_MEMORY. */
fx_status fx_points_create(const fx_ex_pool *pool, const fx_ex *roots, int num_roots, fx_points **points);
void fx_points_destroy(fx_points *points);
/* Bytes of 64-byte aligned scratch that a run needs, a multiple of 64. */
size_t fx_points_scratch(const fx_points *points);

/* out[r][i]: value of root r at q[i], kv[i] (global positions) and head h, for i < n <= FX_POINTS_LANES; they
 * lie in `scratch`. */
void fx_points_run(const fx_points *points, const fx_sample *sample, int32_t h, int n, const int32_t *q,
                   const int32_t *kv, void *scratch, const fx_ex_value **out);

#ifdef __cplusplus
}
#endif
#endif
