/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer without a vocabulary: id = byte value. */
#ifndef FX_DATA_TOKENIZER_BYTE_H
#define FX_DATA_TOKENIZER_BYTE_H

#include "data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const fx_tokenizer_kind fx_tokenizer_byte;

#ifdef __cplusplus
}
#endif
#endif
