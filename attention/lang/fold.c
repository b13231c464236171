/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/lang/fold.h"

#include <string.h>

#include "attention/lang/pool.h"
#include "attention/lang/semantics.h"

typedef fx_ex_value value;

static value of_int(int32_t i) {
  return (value){.i = i};
}
static value of_float(float f) {
  return (value){.f = f != f ? __builtin_nanf("") : f};
}

static value evaluate_int(fx_ex_op op, int32_t a, int32_t b) {
  switch (op) {
  case FX_EX_NEG:
    return of_int(fx_sem_neg(a));
  case FX_EX_ABS:
    return of_int(fx_sem_absi(a));
  case FX_EX_ADD:
    return of_int(fx_sem_add(a, b));
  case FX_EX_SUB:
    return of_int(fx_sem_sub(a, b));
  case FX_EX_MUL:
    return of_int(fx_sem_mul(a, b));
  case FX_EX_DIV:
    return of_int(fx_sem_div(a, b));
  case FX_EX_MOD:
    return of_int(fx_sem_mod(a, b));
  case FX_EX_MIN:
    return of_int(a < b ? a : b);
  case FX_EX_MAX:
    return of_int(a < b ? b : a);
  case FX_EX_BIT_NOT:
    return of_int(~a);
  case FX_EX_BIT_AND:
    return of_int(a & b);
  case FX_EX_BIT_OR:
    return of_int(a | b);
  case FX_EX_BIT_XOR:
    return of_int(a ^ b);
  case FX_EX_SHL:
    return of_int(fx_sem_shl(a, b));
  case FX_EX_SHR:
    return of_int(fx_sem_shr(a, b));
  case FX_EX_NOT:
    return of_int(!a);
  case FX_EX_AND:
    return of_int(a && b);
  case FX_EX_OR:
    return of_int(a || b);
  case FX_EX_LT:
    return of_int(a < b);
  case FX_EX_LE:
    return of_int(a <= b);
  case FX_EX_EQ:
    return of_int(a == b);
  case FX_EX_NE:
    return of_int(a != b);
  case FX_EX_TO_INT:
    return of_int(a);
  default:
    return of_float((float)a); /* TO_FLOAT */
  }
}

static value evaluate_float(fx_ex_op op, float a, float b) {
  switch (op) {
  case FX_EX_NEG:
    return of_float(-a);
  case FX_EX_ABS:
    return of_float(fx_sem_absf(a));
  case FX_EX_ADD:
    return of_float(a + b);
  case FX_EX_SUB:
    return of_float(a - b);
  case FX_EX_MUL:
    return of_float(a * b);
  case FX_EX_DIV:
    return of_float(a / b);
  case FX_EX_MIN:
    return of_float(fx_sem_minf(a, b));
  case FX_EX_MAX:
    return of_float(fx_sem_maxf(a, b));
  case FX_EX_LT:
    return of_int(a < b);
  case FX_EX_LE:
    return of_int(a <= b);
  case FX_EX_EQ:
    return of_int(a == b);
  case FX_EX_NE:
    return of_int(a != b);
  case FX_EX_EXP:
    return of_float(fx_sem_exp(a));
  case FX_EX_LOG:
    return of_float(fx_sem_log(a));
  case FX_EX_TANH:
    return of_float(fx_sem_tanh(a));
  case FX_EX_SQRT:
    return of_float(fx_sem_sqrt(a));
  case FX_EX_SIGMOID:
    return of_float(fx_sem_sigmoid(a));
  case FX_EX_FLOOR:
    return of_float(fx_sem_floor(a));
  case FX_EX_TO_INT:
    return of_int(fx_sem_to_int(a));
  default:
    return of_float(a); /* TO_FLOAT */
  }
}

fx_ex_value fx_ex_evaluate(const fx_ex_node *node, const fx_ex_type arg_type[3], const fx_ex_value arg[3]) {
  fx_ex_op op = node->op;
  if (op == FX_EX_SELECT) return arg[0].i ? arg[1] : arg[2];
  value b = node->num_args > 1 ? arg[1] : arg[0];
  if (arg_type[0] == FX_EX_FLOAT) return evaluate_float(op, arg[0].f, b.f);
  return evaluate_int(op, arg[0].i, b.i);
}

static bool is_constant(const fx_ex_pool *pool, fx_ex a) {
  return pool->nodes[a].op == FX_EX_CONST;
}

/* A constant int or bool equal to `i`. */
static bool is(const fx_ex_pool *pool, fx_ex a, int32_t i) {
  const fx_ex_node *n = &pool->nodes[a];
  return n->op == FX_EX_CONST && n->type != FX_EX_FLOAT && n->value.i == i;
}

static bool is_float(const fx_ex_pool *pool, fx_ex a, float f) {
  const fx_ex_node *n = &pool->nodes[a];
  return n->op == FX_EX_CONST && n->type == FX_EX_FLOAT && n->value.f == f;
}

/* The argument itself or a constant, where an identity says so; FX_EX_NONE where none does. */
static fx_ex identity(fx_ex_pool *pool, const fx_ex_node *node) {
  fx_ex a = node->arg[0], b = node->arg[1];
  bool floats = node->num_args && pool->nodes[a].type == FX_EX_FLOAT;
  switch ((fx_ex_op)node->op) {
  case FX_EX_NEG:
  case FX_EX_NOT:
  case FX_EX_BIT_NOT:
    return pool->nodes[a].op == node->op ? pool->nodes[a].arg[0] : FX_EX_NONE;
  case FX_EX_ADD:
    return floats ? FX_EX_NONE : is(pool, a, 0) ? b : is(pool, b, 0) ? a : FX_EX_NONE;
  case FX_EX_SUB:
    if (floats) return is_float(pool, b, 0.0f) && !__builtin_signbit(pool->nodes[b].value.f) ? a : FX_EX_NONE;
    return is(pool, b, 0) ? a : a == b ? fx_ex_int(pool, 0) : FX_EX_NONE;
  case FX_EX_MUL:
    if (floats) return is_float(pool, a, 1.0f) ? b : is_float(pool, b, 1.0f) ? a : FX_EX_NONE;
    if (is(pool, a, 0) || is(pool, b, 0)) return fx_ex_int(pool, 0);
    return is(pool, a, 1) ? b : is(pool, b, 1) ? a : FX_EX_NONE;
  case FX_EX_DIV:
    if (floats) return is_float(pool, b, 1.0f) ? a : FX_EX_NONE;
    return is(pool, b, 1) ? a : is(pool, b, 0) ? fx_ex_int(pool, 0) : FX_EX_NONE;
  case FX_EX_MOD:
    return is(pool, b, 1) || is(pool, b, 0) || is(pool, b, -1) ? fx_ex_int(pool, 0) : FX_EX_NONE;
  case FX_EX_MIN:
  case FX_EX_MAX:
  case FX_EX_BIT_AND:
  case FX_EX_BIT_OR:
    return a == b ? a : FX_EX_NONE;
  case FX_EX_AND:
    if (is(pool, a, 0) || is(pool, b, 0)) return fx_ex_bool(pool, false);
    return is(pool, a, 1) || a == b ? b : is(pool, b, 1) ? a : FX_EX_NONE;
  case FX_EX_OR:
    if (is(pool, a, 1) || is(pool, b, 1)) return fx_ex_bool(pool, true);
    return is(pool, a, 0) || a == b ? b : is(pool, b, 0) ? a : FX_EX_NONE;
  case FX_EX_LE:
  case FX_EX_EQ:
    return !floats && a == b ? fx_ex_bool(pool, true) : FX_EX_NONE;
  case FX_EX_LT:
  case FX_EX_NE:
    return !floats && a == b ? fx_ex_bool(pool, false) : FX_EX_NONE;
  case FX_EX_SELECT:
    if (is(pool, a, 1) || b == node->arg[2]) return b;
    return is(pool, a, 0) ? node->arg[2] : FX_EX_NONE;
  default:
    return FX_EX_NONE;
  }
}

static bool commutes(const fx_ex_node *node) {
  switch ((fx_ex_op)node->op) {
  case FX_EX_ADD:
  case FX_EX_MUL:
  case FX_EX_BIT_AND:
  case FX_EX_BIT_OR:
  case FX_EX_BIT_XOR:
  case FX_EX_EQ:
  case FX_EX_NE:
    return true; /* but not && and ||: what stands first decides whether the second one's indices count */
  case FX_EX_MIN:
  case FX_EX_MAX:
    return node->type == FX_EX_INT; /* a NaN and a signed zero have their sides */
  default:
    return false;
  }
}

/* !(a < b) and the like on ints, as one comparison; FX_EX_NONE on floats, where NaN makes both false. */
static fx_ex negated_comparison(fx_ex_pool *pool, fx_ex a) {
  fx_ex_node n = pool->nodes[a];
  if (n.num_args != 2 || pool->nodes[n.arg[0]].type == FX_EX_FLOAT) return FX_EX_NONE;
  switch ((fx_ex_op)n.op) {
  case FX_EX_LT:
    return fx_ex_binary(pool, FX_EX_LE, n.arg[1], n.arg[0]);
  case FX_EX_LE:
    return fx_ex_binary(pool, FX_EX_LT, n.arg[1], n.arg[0]);
  case FX_EX_EQ:
    return fx_ex_binary(pool, FX_EX_NE, n.arg[0], n.arg[1]);
  case FX_EX_NE:
    return fx_ex_binary(pool, FX_EX_EQ, n.arg[0], n.arg[1]);
  default:
    return FX_EX_NONE;
  }
}

static fx_ex constant_of(fx_ex_pool *pool, fx_ex_type type, value v) {
  if (type == FX_EX_FLOAT) return fx_ex_float(pool, v.f);
  return type == FX_EX_INT ? fx_ex_int(pool, v.i) : fx_ex_bool(pool, v.i != 0);
}

fx_ex fx_ex_simplify(fx_ex_pool *pool, fx_ex_node node) {
  bool constants = node.num_args > 0 && node.op != FX_EX_LOAD;
  fx_ex_type types[3] = {FX_EX_INT, FX_EX_INT, FX_EX_INT};
  value values[3] = {{0}, {0}, {0}};
  for (int i = 0; i < node.num_args; i++) {
    if (node.arg[i] == FX_EX_NONE) return FX_EX_NONE;
    constants = constants && is_constant(pool, node.arg[i]);
    types[i] = pool->nodes[node.arg[i]].type;
    values[i] = pool->nodes[node.arg[i]].value;
  }
  if (constants) return constant_of(pool, node.type, fx_ex_evaluate(&node, types, values));
  fx_ex simpler = identity(pool, &node);
  if (simpler != FX_EX_NONE) return simpler;
  if (node.op == FX_EX_NOT) {
    simpler = negated_comparison(pool, node.arg[0]);
    if (simpler != FX_EX_NONE) return simpler;
  }
  if (commutes(&node)) {
    const fx_ex_node *a = &pool->nodes[node.arg[0]], *b = &pool->nodes[node.arg[1]];
    if (a->hash > b->hash || (a->hash == b->hash && node.arg[0] > node.arg[1])) {
      fx_ex first = node.arg[0];
      node.arg[0] = node.arg[1];
      node.arg[1] = first;
    }
  }
  return fx_ex_intern(pool, node);
}
