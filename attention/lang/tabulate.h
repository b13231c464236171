/* SPDX-License-Identifier: Apache-2.0 */
/* Constant tables from expressions over their indices. */
#ifndef FX_ATTENTION_LANG_TABULATE_H
#define FX_ATTENTION_LANG_TABULATE_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* values[i, j, k] = node with h = i, q = j, kv = k for all indices below dim[0..ndim), row-major; int32 or
 * float as the node's type is. The node uses no other variables, no parameters and no loads: FX_ERR_CONFIG.
 */
fx_status fx_ex_tabulate(const fx_ex_pool *pool, fx_ex node, int32_t ndim, const int32_t *dim,
                         fx_ex_value *values);

#ifdef __cplusplus
}
#endif
#endif
