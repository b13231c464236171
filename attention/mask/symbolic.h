/* SPDX-License-Identifier: Apache-2.0 */
/* Recognition of limits: a mask as at most a few intervals of keys a row, whose ends are terms over q.
 *
 * Comparisons are solved for kv: through +, -, multiplication, division, shifts and rounding down by
 * constants, min, max, abs, conditions, and values of monotone buffers (whose inverse is a search). What does
 * not depend on kv becomes a guard. Negation is pushed down, conjunctions multiply and disjunctions
 * concatenate lists of intervals; the provably empty ones go, those with an end in common or with guards that
 * exclude each other share one. The mask's own arithmetic wraps: a step that inverts an operation is taken
 * only where ranges prove that it does not.
 *
 * Must not know: samples, tiles, how limits are stored. */
#ifndef FX_ATTENTION_MASK_SYMBOLIC_H
#define FX_ATTENTION_MASK_SYMBOLIC_H

#include "attention/mask/bound.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_SYMBOLIC_MAX = 4 };

/* Row q sees the union of [lo, hi) over `count`, cut to [0, T_kv). They may overlap and come in any order. */
typedef struct fx_symbolic {
  int32_t count;
  fx_bound lo[FX_SYMBOLIC_MAX], hi[FX_SYMBOLIC_MAX];
} fx_symbolic;

/* False: the mask is not of this form (or too long a list). `mask` is the root of bounds->code. */
bool fx_symbolic_limits(fx_bounds *bounds, fx_ex mask, fx_symbolic *result);

#ifdef __cplusplus
}
#endif
#endif
