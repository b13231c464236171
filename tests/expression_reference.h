/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions in double precision, point by point, straight from the pool's nodes: what the interpreter, the
 * generated code and derivatives are tested against. It shares no code with them.
 *
 * Ints and bools are the same ints; floats are doubles computed with libm. Beside every value stands a bound
 * of what float evaluation may differ by (first-order running error analysis); infinite where rounding could
 * change a comparison, a floor, an int conversion or an overflow, so that such points can be left out. */
#ifndef FX_TESTS_EXPRESSION_REFERENCE_H
#define FX_TESTS_EXPRESSION_REFERENCE_H

#include "attention/tile/interp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* value[i][p], bound[i][p] of output i at point p; bound may be NULL. score is double, the rest as in
 * fx_interp_run. FX_ERR_MEMORY. */
fx_status fx_reference_run(const fx_ex_pool *pool, const fx_ex *outputs, int num_outputs,
                           const fx_interp_inputs *inputs, int32_t h, int64_t n, const int32_t *q,
                           const int32_t *kv, const double *score, double *const *value,
                           double *const *bound);

#ifdef __cplusplus
}
#endif
#endif
