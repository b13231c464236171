/* SPDX-License-Identifier: Apache-2.0 */
/* A few expressions of a pool as one straight list of typed instructions: what the interpreter plans its
 * registers from and the C generator writes down.
 *
 * Only what the outputs use is listed, each value once, arguments before their users. Every instruction knows
 * how often it changes (its rate), what its arguments' types are, and what range analysis proved of it.
 *
 * The pool is read while the code is made and not kept, except for the values of its constant tables. */
#ifndef FX_ATTENTION_TILE_CODE_H
#define FX_ATTENTION_TILE_CODE_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an instruction's value depends on, so how often it is computed. */
typedef enum fx_code_rate {
  FX_CODE_UNIFORM, /* constants, parameters, h */
  FX_CODE_Q,
  FX_CODE_KV,
  FX_CODE_BOTH, /* q and kv, or the score */
  FX_CODE_RATE_COUNT
} fx_code_rate;

typedef struct fx_code_instr {
  uint8_t op;       /* fx_ex_op */
  uint8_t type;     /* fx_ex_type of the result */
  uint8_t arg_type; /* of the first argument; of the branches for SELECT */
  uint8_t rate;     /* fx_code_rate */
  uint8_t num_args;
  bool natural;      /* DIV, MOD of ints: neither operand is below 0 and the divisor is above it */
  bool in_range[3];  /* LOAD: this index cannot leave its extent */
  int32_t arg[3];    /* numbers of instructions */
  int32_t index;     /* VAR: fx_ex_var; PARAM, LOAD: number in the pool */
  fx_ex_value value; /* CONST */
} fx_code_instr;

typedef struct fx_code {
  int32_t num_instrs, num_outputs, num_params, num_buffers;
  fx_code_instr *instr; /* [num_instrs] */
  int32_t *output;      /* [num_outputs] numbers of instructions; one may stand twice */
  fx_ex_param *param;   /* [num_params], of the whole pool */
  fx_ex_buffer *buffer; /* [num_buffers], of the whole pool */
  uint8_t depends;      /* bit 1 << fx_ex_var for what any output depends on */
} fx_code;

/* outputs[num_outputs] are nodes of the pool, none FX_EX_NONE. *code is the caller's to destroy.
 * FX_ERR_MEMORY. */
fx_status fx_code_create(const fx_ex_pool *pool, const fx_ex *outputs, int num_outputs, fx_code **code);
void fx_code_destroy(fx_code *code);

/* A constant int above 0. */
static inline bool fx_code_is_positive(const fx_code_instr *instr) {
  return instr->op == FX_EX_CONST && instr->type == FX_EX_INT && instr->value.i > 0;
}

#ifdef __cplusplus
}
#endif
#endif
