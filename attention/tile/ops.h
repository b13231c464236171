/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as C expressions: the interpreter makes its loops of them, the generators write them down.
 * Private to attention/. */
#ifndef FX_ATTENTION_TILE_OPS_H
#define FX_ATTENTION_TILE_OPS_H

#include <stdint.h>
#include <stdio.h>

#include "attention/lang/expr.h"
#include "attention/lang/semantics.h"

/* X(op, type of the arguments, C type of the arguments, C type of the result, value by a and b). Bools are
 * the ints 0 and 1. SELECT and LOAD, whose arguments differ in type, are written out by both. */
#define FX_TILE_OPS(X)                               \
  X(NEG, INT, int32_t, int32_t, fx_sem_neg(a))       \
  X(NEG, FLOAT, float, float, -a)                    \
  X(ABS, INT, int32_t, int32_t, fx_sem_absi(a))      \
  X(ABS, FLOAT, float, float, fx_sem_absf(a))        \
  X(ADD, INT, int32_t, int32_t, fx_sem_add(a, b))    \
  X(ADD, FLOAT, float, float, a + b)                 \
  X(SUB, INT, int32_t, int32_t, fx_sem_sub(a, b))    \
  X(SUB, FLOAT, float, float, a - b)                 \
  X(MUL, INT, int32_t, int32_t, fx_sem_mul(a, b))    \
  X(MUL, FLOAT, float, float, (a)*b)                 \
  X(DIV, INT, int32_t, int32_t, fx_sem_div(a, b))    \
  X(DIV, FLOAT, float, float, a / b)                 \
  X(MOD, INT, int32_t, int32_t, fx_sem_mod(a, b))    \
  X(MIN, INT, int32_t, int32_t, a < b ? a : b)       \
  X(MIN, FLOAT, float, float, fx_sem_minf(a, b))     \
  X(MAX, INT, int32_t, int32_t, a < b ? b : a)       \
  X(MAX, FLOAT, float, float, fx_sem_maxf(a, b))     \
  X(BIT_NOT, INT, int32_t, int32_t, ~a)              \
  X(BIT_AND, INT, int32_t, int32_t, (a)&b)           \
  X(BIT_OR, INT, int32_t, int32_t, a | b)            \
  X(BIT_XOR, INT, int32_t, int32_t, a ^ b)           \
  X(SHL, INT, int32_t, int32_t, fx_sem_shl(a, b))    \
  X(SHR, INT, int32_t, int32_t, fx_sem_shr(a, b))    \
  X(NOT, BOOL, int32_t, int32_t, a ^ 1)              \
  X(AND, BOOL, int32_t, int32_t, (a)&b)              \
  X(OR, BOOL, int32_t, int32_t, a | b)               \
  X(NE, BOOL, int32_t, int32_t, a ^ b)               \
  X(LT, INT, int32_t, int32_t, a < b)                \
  X(LT, FLOAT, float, int32_t, a < b)                \
  X(LE, INT, int32_t, int32_t, a <= b)               \
  X(LE, FLOAT, float, int32_t, a <= b)               \
  X(EQ, INT, int32_t, int32_t, a == b)               \
  X(EQ, FLOAT, float, int32_t, a == b)               \
  X(NE, INT, int32_t, int32_t, a != b)               \
  X(NE, FLOAT, float, int32_t, a != b)               \
  X(EXP, FLOAT, float, float, fx_sem_exp(a))         \
  X(LOG, FLOAT, float, float, fx_sem_log(a))         \
  X(TANH, FLOAT, float, float, fx_sem_tanh(a))       \
  X(SQRT, FLOAT, float, float, fx_sem_sqrt(a))       \
  X(SIGMOID, FLOAT, float, float, fx_sem_sigmoid(a)) \
  X(FLOOR, FLOAT, float, float, fx_sem_floor(a))     \
  X(TO_INT, BOOL, int32_t, int32_t, a)               \
  X(TO_INT, FLOAT, float, int32_t, fx_sem_to_int(a)) \
  X(TO_FLOAT, BOOL, int32_t, float, (float)a)        \
  X(TO_FLOAT, INT, int32_t, float, (float)a)

const char *fx_tile_c_type(fx_ex_type type);
/* The value of an operator by the names a and b; NULL for SELECT and leaves. */
const char *fx_tile_op_text(fx_ex_op op, fx_ex_type arg_type);
void fx_tile_int_literal(FILE *out, int32_t value);

#endif
