/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/ops.h"

const char *fx_tile_c_type(fx_ex_type type) {
  static const char *const names[FX_EX_TYPE_COUNT] = {"int32_t", "int32_t", "float"};
  return names[type];
}

const char *fx_tile_op_text(fx_ex_op op, fx_ex_type arg_type) {
  static const char *const table[FX_EX_OP_COUNT][FX_EX_TYPE_COUNT] = {
#define FX_EMIT_ENTRY(op, of, in, out, value) [FX_EX_##op][FX_EX_##of] = #value,
      FX_TILE_OPS(FX_EMIT_ENTRY)
#undef FX_EMIT_ENTRY
  };
  return table[op][arg_type];
}

void fx_tile_int_literal(FILE *out, int32_t value) {
  if (value == INT32_MIN)
    fputs("(-2147483647 - 1)", out);
  else
    fprintf(out, value < 0 ? "(%d)" : "%d", value);
}
