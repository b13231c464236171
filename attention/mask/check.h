/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a buffer's values keep what was declared of them. Private to attention/mask. */
#ifndef FX_ATTENTION_MASK_CHECK_H
#define FX_ATTENTION_MASK_CHECK_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* values[count] of sample b. FX_ERR_DATA: the first position that breaks a promise. */
fx_status fx_mask_check_buffer(const fx_ex_buffer *declared, const int32_t *values, int64_t count, int32_t b);

#ifdef __cplusplus
}
#endif
#endif
