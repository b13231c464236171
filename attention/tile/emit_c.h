/* SPDX-License-Identifier: Apache-2.0 */
/* The tile functions of variants as C source.
 *
 * Self-contained: the operators' text (semantics.h), the structs of tile.h, then for variant i the constant
 * `const fx_tile_functions fx_tile<i>`. What depends on neither row nor key stands at the top of a function,
 * what depends on the row is computed once a tile into arrays of 32, what depends on the key once a key; the
 * rest is a loop over the 32 rows. Float parameters are read from args->uniform, so that a new value changes
 * no text; ints are literals, and division by one is left to the compiler. Constant tables are read through
 * args->buffer. */
#ifndef FX_ATTENTION_TILE_EMIT_C_H
#define FX_ATTENTION_TILE_EMIT_C_H

#include "attention/variant/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *source is a malloc'ed text of `count` variants. `comments`: for people, with the canonical expressions
 * (which hold parameters by value) and the declared names; without, texts are equal where kernels are.
 * FX_ERR_MEMORY. */
fx_status fx_emit_c(const fx_variant *const *variants, int count, bool comments, char **source);

#ifdef __cplusplus
}
#endif
#endif
