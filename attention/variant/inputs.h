/* SPDX-License-Identifier: Apache-2.0 */
/* What every batch offers to expressions, by name and without a declaration: one int32 a position, for each
 * sample
 * ([T], per batch). What is promised here is verified by whoever fills them.
 *
 *   doc_start  first position of the document of position t     doc_end  one past its last position
 *   doc_id     number of the document within the sample         position number of the token within its
 * document token      the token's id                                   turn     number of the turn within the
 * document role       turn % 2: 0 for who speaks first */
#ifndef FX_ATTENTION_VARIANT_INPUTS_H
#define FX_ATTENTION_VARIANT_INPUTS_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_VARIANT_NUM_INPUTS = 7 };

/* In the order of the table; valid for the life of the process. */
const char *fx_variant_input_name(int32_t index);
/* -1: no input has that name. */
int32_t fx_variant_input_find(const char *name);
/* The declaration for sequences of T positions. */
fx_ex_buffer fx_variant_input(int32_t index, int32_t T);

#ifdef __cplusplus
}
#endif
#endif
