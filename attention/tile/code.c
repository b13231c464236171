/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/code.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

typedef struct range {
  int64_t lo, hi; /* within int32; ints and bools only */
} range;

static const range g_all = {INT32_MIN, INT32_MAX};

static range bounded(int64_t lo, int64_t hi) { /* everything when it may have wrapped */
  return lo >= INT32_MIN && hi <= INT32_MAX ? (range){lo, hi} : g_all;
}

static range range_of_variable(const fx_ex_ranges *global, int32_t var) {
  switch ((fx_ex_var)var) {
  case FX_EX_H:
    return (range){0, (int64_t)global->H - 1};
  case FX_EX_Q:
    return (range){0, (int64_t)global->T - 1};
  case FX_EX_KV:
    return (range){0, (int64_t)global->T_kv - 1};
  default:
    return g_all;
  }
}

/* The range of an operation whose arguments' ranges are a, b, c. */
static range range_of_op(const fx_ex_node *n, range a, range b, range c) {
  switch ((fx_ex_op)n->op) {
  case FX_EX_ADD:
    return bounded(a.lo + b.lo, a.hi + b.hi);
  case FX_EX_SUB:
    return bounded(a.lo - b.hi, a.hi - b.lo);
  case FX_EX_MUL:
    return a.lo >= 0 && b.lo >= 0 ? bounded(a.lo * b.lo, a.hi * b.hi) : g_all;
  case FX_EX_DIV:
    return a.lo >= 0 && b.lo > 0 ? (range){a.lo / b.hi, a.hi / b.lo} : g_all;
  case FX_EX_MOD:
    return b.lo > 0 ? (range){0, b.hi - 1} : g_all;
  case FX_EX_MIN:
    return (range){a.lo < b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi};
  case FX_EX_MAX:
    return (range){a.lo > b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi};
  case FX_EX_ABS:
    return a.lo >= 0 ? a : a.lo > INT32_MIN ? (range){0, -a.lo > a.hi ? -a.lo : a.hi} : g_all;
  case FX_EX_BIT_AND:
    return a.lo >= 0 && b.lo >= 0 ? (range){0, a.hi < b.hi ? a.hi : b.hi} : g_all;
  case FX_EX_SELECT:
    return (range){b.lo < c.lo ? b.lo : c.lo, b.hi > c.hi ? b.hi : c.hi};
  default:
    return n->type == FX_EX_BOOL ? (range){0, 1} : g_all;
  }
}

/* Whether an int node's values are known to lie in [*lo, *hi]; `known` holds the ranges of smaller nodes. */
static range range_of_node(const fx_ex_pool *pool, const range *known, fx_ex node) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  if (n->type == FX_EX_FLOAT) return g_all;
  if (n->op == FX_EX_CONST) return (range){n->value.i, n->value.i};
  if (n->op == FX_EX_VAR) return range_of_variable(fx_ex_pool_ranges(pool), n->index);
  if (n->op == FX_EX_LOAD) {
    const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, n->index);
    return (range){buffer->lo, buffer->hi};
  }
  range arg[3] = {g_all, g_all, g_all};
  for (int i = 0; i < n->num_args; i++) arg[i] = known[n->arg[i]];
  if (n->op == FX_EX_TO_INT) return fx_ex_get(pool, n->arg[0])->type == FX_EX_BOOL ? (range){0, 1} : g_all;
  return range_of_op(n, arg[0], arg[1], arg[2]);
}

static fx_code_rate rate_of(uint8_t depends) {
  bool q = (depends >> FX_EX_Q) & 1, kv = (depends >> FX_EX_KV) & 1;
  if ((depends >> FX_EX_SCORE) & 1 || (q && kv)) return FX_CODE_BOTH;
  return q ? FX_CODE_Q : kv ? FX_CODE_KV : FX_CODE_UNIFORM;
}

/* number[node] of the arguments is known. */
static fx_code_instr instruction_of(const fx_ex_pool *pool, const range *known, const int32_t *number,
                                    fx_ex node) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  fx_code_instr instr = {.op = n->op,
                         .type = n->type,
                         .num_args = n->num_args,
                         .rate = (uint8_t)rate_of(n->depends),
                         .arg = {-1, -1, -1},
                         .index = n->index,
                         .value = n->value};
  for (int i = 0; i < n->num_args; i++) instr.arg[i] = number[n->arg[i]];
  if (n->num_args) instr.arg_type = fx_ex_get(pool, n->arg[n->op == FX_EX_SELECT ? 1 : 0])->type;
  if ((n->op == FX_EX_DIV || n->op == FX_EX_MOD) && n->type == FX_EX_INT)
    instr.natural = known[n->arg[0]].lo >= 0 && known[n->arg[1]].lo > 0;
  for (int i = 0; n->op == FX_EX_LOAD && i < n->num_args; i++) {
    range index = known[n->arg[i]];
    instr.in_range[i] = index.lo >= 0 && index.hi < fx_ex_buffer_at(pool, n->index)->dim[i];
  }
  return instr;
}

static fx_status declarations(fx_code *code, const fx_ex_pool *pool) {
  code->num_params = fx_ex_num_params(pool);
  code->num_buffers = fx_ex_num_buffers(pool);
  FX_TRY(fx_calloc(&code->param, (size_t)code->num_params + 1, sizeof *code->param));
  FX_TRY(fx_calloc(&code->buffer, (size_t)code->num_buffers + 1, sizeof *code->buffer));
  for (int i = 0; i < code->num_params; i++) code->param[i] = *fx_ex_param_at(pool, i);
  for (int i = 0; i < code->num_buffers; i++) code->buffer[i] = *fx_ex_buffer_at(pool, i);
  return FX_OK;
}

static fx_status instructions(fx_code *code, const fx_ex_pool *pool, const fx_ex *outputs, const bool *needed,
                              fx_ex last) {
  range *known = NULL;
  int32_t *number = NULL, count = 0;
  fx_status status;
  for (fx_ex i = 0; i <= last; i++) count += needed[i];
  FX_TRY_GOTO(fx_calloc(&known, (size_t)last + 1, sizeof *known), free_all);
  FX_TRY_GOTO(fx_calloc(&number, (size_t)last + 1, sizeof *number), free_all);
  FX_TRY_GOTO(fx_calloc(&code->instr, (size_t)count, sizeof *code->instr), free_all);
  for (fx_ex i = 0; i <= last; i++) {
    if (!needed[i]) continue;
    known[i] = range_of_node(pool, known, i);
    number[i] = code->num_instrs;
    code->instr[code->num_instrs++] = instruction_of(pool, known, number, i);
  }
  for (int i = 0; i < code->num_outputs; i++) {
    code->output[i] = number[outputs[i]];
    code->depends |= fx_ex_get(pool, outputs[i])->depends;
  }
free_all:
  free(number);
  free(known);
  return status;
}

fx_status fx_code_create(const fx_ex_pool *pool, const fx_ex *outputs, int num_outputs, fx_code **out) {
  FX_ASSERT(num_outputs > 0);
  fx_ex last = 0;
  for (int i = 0; i < num_outputs; i++) last = outputs[i] > last ? outputs[i] : last;
  fx_code *code;
  FX_TRY(fx_calloc(&code, 1, sizeof *code));
  code->num_outputs = num_outputs;
  fx_status status;
  bool *needed = fx_ex_reachable(pool, outputs, num_outputs);
  FX_TRY_GOTO(needed ? FX_OK : FX_ERR_MEMORY, destroy_code);
  FX_TRY_GOTO(fx_calloc(&code->output, (size_t)num_outputs, sizeof *code->output), destroy_code);
  FX_TRY_GOTO(declarations(code, pool), destroy_code);
  FX_TRY_GOTO(instructions(code, pool, outputs, needed, last), destroy_code);
  free(needed);
  *out = code;
  return FX_OK;
destroy_code:
  free(needed);
  fx_code_destroy(code);
  return status;
}

void fx_code_destroy(fx_code *code) {
  if (!code) return;
  free(code->instr);
  free(code->output);
  free(code->param);
  free(code->buffer);
  free(code);
}
