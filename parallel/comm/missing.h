/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence about ranks that did not come in time; one wording for all transports. */
#ifndef FX_PARALLEL_COMM_MISSING_H
#define FX_PARALLEL_COMM_MISSING_H

#include <stdbool.h>
#include <stddef.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "0 2 3" into text: the ranks r < size with here[r] == value, the first ones only ("0 1 2 and 5 more") when
 * they are many or text is short. Returns text. */
const char *fx_rank_list(const bool *here, bool value, int size, char *text, size_t capacity);

/* FX_ERR_COMM: how many of `size` ranks answered within timeout_ms, and which did not. */
fx_status fx_missing_error(const bool *here, int size, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
