/* SPDX-License-Identifier: Apache-2.0 */
/* Derivatives of expressions, as expressions of the same pool. */
#ifndef FX_ATTENTION_LANG_DERIVE_H
#define FX_ATTENTION_LANG_DERIVE_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* d node / d target as a float node; `node` is a float, `target` the variable score or a LOAD of floats.
 * Loads of one table at different indices are different targets. 0.0 where node does not depend on the
 * target.
 *
 * Conventions are PyTorch's: where the sides of min or max tie each gets half, abs(0) gives 0, floor, int and
 * comparisons have none. A branch that is not taken gives nothing, whatever its value (PyTorch multiplies it
 * by 0 and lets an infinity through).
 *
 * FX_EX_NONE with a sentence when memory is short or the pool is full. */
fx_ex fx_ex_derivative(fx_ex_pool *pool, fx_ex node, fx_ex target);

#ifdef __cplusplus
}
#endif
#endif
