/* SPDX-License-Identifier: Apache-2.0 */
/* Forward mode: one pass in the order of the nodes, one derivative a node. No derivative (FX_EX_NONE) stands
 * for a zero that the structure guarantees, so that nothing is ever multiplied by it. */
#include "attention/lang/derive.h"

#include <stdlib.h>
#include <string.h>

static fx_ex two(fx_ex_pool *pool, fx_ex_op op, fx_ex a, fx_ex b) {
  return fx_ex_binary(pool, op, a, b);
}

static fx_ex or_zero(fx_ex_pool *pool, fx_ex d) {
  return d == FX_EX_NONE ? fx_ex_float(pool, 0.0f) : d;
}

static fx_ex negated(fx_ex_pool *pool, fx_ex d) {
  return fx_ex_unary(pool, FX_EX_NEG, d);
}

/* a' b + a b' */
static fx_ex product(fx_ex_pool *pool, const fx_ex_node *n, fx_ex da, fx_ex db) {
  fx_ex left = da == FX_EX_NONE ? FX_EX_NONE : two(pool, FX_EX_MUL, da, n->arg[1]);
  fx_ex right = db == FX_EX_NONE ? FX_EX_NONE : two(pool, FX_EX_MUL, n->arg[0], db);
  return left == FX_EX_NONE ? right : right == FX_EX_NONE ? left : two(pool, FX_EX_ADD, left, right);
}

/* (a' - (a / b) b') / b */
static fx_ex quotient(fx_ex_pool *pool, const fx_ex_node *n, fx_ex self, fx_ex da, fx_ex db) {
  fx_ex above = da;
  if (db != FX_EX_NONE) {
    fx_ex part = two(pool, FX_EX_MUL, self, db);
    above = da == FX_EX_NONE ? negated(pool, part) : two(pool, FX_EX_SUB, da, part);
  }
  return two(pool, FX_EX_DIV, above, n->arg[1]);
}

/* a < b ? x : b < a ? y : (x + y) / 2 */
static fx_ex nearer(fx_ex_pool *pool, const fx_ex_node *n, fx_ex x, fx_ex y) {
  if (x == y) return x;
  x = or_zero(pool, x);
  y = or_zero(pool, y);
  fx_ex half = two(pool, FX_EX_MUL, fx_ex_float(pool, 0.5f), two(pool, FX_EX_ADD, x, y));
  fx_ex rest = fx_ex_select(pool, two(pool, FX_EX_LT, n->arg[1], n->arg[0]), y, half);
  return fx_ex_select(pool, two(pool, FX_EX_LT, n->arg[0], n->arg[1]), x, rest);
}

static fx_ex absolute(fx_ex_pool *pool, const fx_ex_node *n, fx_ex da) {
  fx_ex zero = fx_ex_float(pool, 0.0f);
  fx_ex rest = fx_ex_select(pool, two(pool, FX_EX_LT, zero, n->arg[0]), da, zero);
  return fx_ex_select(pool, two(pool, FX_EX_LT, n->arg[0], zero), negated(pool, da), rest);
}

/* d self / d a for functions of one float, by their own value where that helps. */
static fx_ex outer(fx_ex_pool *pool, const fx_ex_node *n, fx_ex self, fx_ex da) {
  fx_ex one = fx_ex_float(pool, 1.0f);
  switch ((fx_ex_op)n->op) {
  case FX_EX_EXP:
    return two(pool, FX_EX_MUL, da, self);
  case FX_EX_LOG:
    return two(pool, FX_EX_DIV, da, n->arg[0]);
  case FX_EX_TANH:
    return two(pool, FX_EX_MUL, da, two(pool, FX_EX_SUB, one, two(pool, FX_EX_MUL, self, self)));
  case FX_EX_SQRT:
    return two(pool, FX_EX_DIV, da, two(pool, FX_EX_MUL, fx_ex_float(pool, 2.0f), self));
  case FX_EX_SIGMOID:
    return two(pool, FX_EX_MUL, da, two(pool, FX_EX_MUL, self, two(pool, FX_EX_SUB, one, self)));
  default:
    return FX_EX_NONE; /* FLOOR */
  }
}

/* FX_EX_NONE: zero. The node's arguments have their derivatives in `d`. */
static fx_ex derive_node(fx_ex_pool *pool, fx_ex self, const fx_ex *d) {
  fx_ex_node n = *fx_ex_get(pool, self); /* making nodes moves the pool */
  if (n.type != FX_EX_FLOAT || n.num_args == 0 || n.op == FX_EX_LOAD) return FX_EX_NONE;
  fx_ex da = d[n.arg[0]], db = n.num_args > 1 ? d[n.arg[1]] : FX_EX_NONE;
  fx_ex dc = n.num_args > 2 ? d[n.arg[2]] : FX_EX_NONE;
  if (da == FX_EX_NONE && db == FX_EX_NONE && dc == FX_EX_NONE) return FX_EX_NONE;
  switch ((fx_ex_op)n.op) {
  case FX_EX_NEG:
    return negated(pool, da);
  case FX_EX_ABS:
    return absolute(pool, &n, da);
  case FX_EX_ADD:
    return da == FX_EX_NONE ? db : db == FX_EX_NONE ? da : two(pool, FX_EX_ADD, da, db);
  case FX_EX_SUB:
    return da == FX_EX_NONE ? negated(pool, db) : db == FX_EX_NONE ? da : two(pool, FX_EX_SUB, da, db);
  case FX_EX_MUL:
    return product(pool, &n, da, db);
  case FX_EX_DIV:
    return quotient(pool, &n, self, da, db);
  case FX_EX_MIN:
    return nearer(pool, &n, da, db);
  case FX_EX_MAX:
    return nearer(pool, &n, db, da);
  case FX_EX_SELECT:
    return fx_ex_select(pool, n.arg[0], or_zero(pool, db), or_zero(pool, dc));
  default:
    return outer(pool, &n, self, da);
  }
}

fx_ex fx_ex_derivative(fx_ex_pool *pool, fx_ex node, fx_ex target) {
  FX_ASSERT(fx_ex_get(pool, node)->type == FX_EX_FLOAT && fx_ex_get(pool, target)->type == FX_EX_FLOAT);
  fx_ex *d = malloc(((size_t)node + 1) * sizeof *d);
  bool *needed = fx_ex_reachable(pool, &node, 1);
  fx_ex result = FX_EX_NONE;
  if (!d || !needed) {
    fx_error(FX_ERR_MEMORY, "no memory for a derivative");
    goto free_all;
  }
  memset(d, 0xff, ((size_t)node + 1) * sizeof *d);
  fx_error_clear();
  for (fx_ex i = 0; i <= node; i++) {
    if (!needed[i]) continue;
    d[i] = i == target ? fx_ex_float(pool, 1.0f) : derive_node(pool, i, d);
  }
  if (!*fx_error_text()) result = or_zero(pool, d[node]); /* a full pool has left its sentence */
free_all:
  free(needed);
  free(d);
  return result;
}
