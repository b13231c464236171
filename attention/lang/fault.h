/* SPDX-License-Identifier: Apache-2.0 */
/* Where an expression reads a table outside its extents. (Loads clamp, so nothing is read out of place; but a
 * value that counts must not come from a clamped index.) */
#ifndef FX_ATTENTION_LANG_FAULT_H
#define FX_ATTENTION_LANG_FAULT_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *fault: a bool node that is true where some LOAD under `node` has an index outside its buffer and its value
 * is demanded: the branch of ?: is taken, and what stands before it with && or || does not decide. FX_EX_NONE
 * when no index can leave its buffer. FX_ERR_MEMORY, FX_ERR_CONFIG (the pool is full). */
fx_status fx_ex_fault(fx_ex_pool *pool, fx_ex node, fx_ex *fault);

#ifdef __cplusplus
}
#endif
#endif
