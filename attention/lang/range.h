/* SPDX-License-Identifier: Apache-2.0 */
/* What values an expression can take over its whole domain: h, q, kv by the pool's ranges, tables by their
 * declared lo and hi. Conservative: sides are taken as independent. */
#ifndef FX_ATTENTION_LANG_RANGE_H
#define FX_ATTENTION_LANG_RANGE_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_ex_interval {
  int64_t lo, hi;
  bool known; /* false: nothing but that it is an int32 */
} fx_ex_interval;

/* Of an int or bool (0, 1). False: unknown, because something may overflow or memory is short. */
bool fx_ex_range(const fx_ex_pool *pool, fx_ex node, int64_t *lo, int64_t *hi);

/* The intervals of nodes 0..last, malloc'ed; of those that `needed` leaves out and of floats: unknown. NULL
 * when memory is short (no sentence). */
fx_ex_interval *fx_ex_intervals(const fx_ex_pool *pool, const bool *needed, fx_ex last);

/* Whether index k of the LOAD provably stays in [0, dim k). */
bool fx_ex_index_in_range(const fx_ex_pool *pool, fx_ex load, int k);

/* Whether a float may become infinite or NaN, given that the score, tables and parameters are finite and sums
 * and products of such numbers do not overflow: what a division, log, sqrt, exp or an infinity in the text
 * may do. Parameters count by their present value. */
bool fx_ex_may_blow_up(const fx_ex_pool *pool, fx_ex node);

#ifdef __cplusplus
}
#endif
#endif
