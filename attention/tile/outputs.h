/* SPDX-License-Identifier: Apache-2.0 */
/* Which expressions of a variant each tile function evaluates; the same for the interpreter and the generated
 * C. Private to attention/tile. */
#ifndef FX_ATTENTION_TILE_OUTPUTS_H
#define FX_ATTENTION_TILE_OUTPUTS_H

#include "attention/tile/code.h"
#include "attention/variant/variant.h"

/* X(NAME, its name in C). Outputs: the mask; the score; the score and its slope; for every read of a
 * learnable table the indices and the slope; the faults there are. */
#define FX_TILE_FUNCTIONS(X)  \
  X(MASK, mask)               \
  X(SCORE, score)             \
  X(SCORE_SLOPE, score_slope) \
  X(TABLES, tables)           \
  X(IN_BOUNDS, in_bounds)

typedef enum fx_tile_function {
#define FX_TILE_ENUM(name, c) FX_TILE_##name,
  FX_TILE_FUNCTIONS(FX_TILE_ENUM)
#undef FX_TILE_ENUM
      FX_TILE_FUNCTION_COUNT
} fx_tile_function;

/* Where the outputs of a read are among those of `tables`: its indices, then the slope. */
typedef struct fx_tile_read {
  int32_t buffer;
  int32_t first_output;
} fx_tile_read;

/* *code = NULL where the variant has no such function. */
fx_status fx_tile_code(const fx_variant *variant, fx_tile_function function, fx_code **code);
/* [variant->num_reads], released with free() */
fx_status fx_tile_reads(const fx_variant *variant, fx_tile_read **reads);

#endif
