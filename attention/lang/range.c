/* SPDX-License-Identifier: Apache-2.0 */
/* Interval arithmetic in 64 bits over 32-bit values: what leaves int32 would wrap, so it is unknown. An
 * unknown value is still an int32, which min, max, %, & and comparisons make something of. */
#include "attention/lang/range.h"

#include <math.h>
#include <stdlib.h>

typedef fx_ex_interval interval;

static const interval g_unknown = {INT32_MIN, INT32_MAX, false};

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b) {
  return a < b ? b : a;
}

static interval of(int64_t lo, int64_t hi) {
  if (lo < INT32_MIN || hi > INT32_MAX) return g_unknown;
  return (interval){lo, hi, true};
}

static int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static interval of_corners(const int64_t c[4]) {
  return of(least(least(c[0], c[1]), least(c[2], c[3])), most(most(c[0], c[1]), most(c[2], c[3])));
}

/* A divisor of 0 gives 0. Quotients are monotone in both where the divisor keeps its sign. */
static interval divide(interval a, interval b) {
  if (b.lo > 0 || b.hi < 0) {
    const int64_t corners[4] = {floor_div(a.lo, b.lo), floor_div(a.lo, b.hi), floor_div(a.hi, b.lo),
                                floor_div(a.hi, b.hi)};
    return of_corners(corners);
  }
  if (b.lo == 0 && a.lo >= 0) return of(0, a.hi);
  int64_t size = most(llabs(a.lo), llabs(a.hi)) + 1;
  return of(-size, size);
}

/* The sign of the divisor; exact where both ends have one quotient. */
static interval modulo(interval a, interval b) {
  if (b.lo == b.hi && b.lo != 0 && floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo)) {
    int64_t base = floor_div(a.lo, b.lo) * b.lo;
    return of(a.lo - base, a.hi - base);
  }
  if (b.lo >= 0) return of(0, most(0, a.lo >= 0 ? least(b.hi - 1, a.hi) : b.hi - 1));
  return of(b.lo < 0 ? least(b.lo + 1, 0) : 0, b.hi > 0 ? b.hi - 1 : 0);
}

static interval bits(fx_ex_op op, interval a, interval b) {
  if (op == FX_EX_BIT_NOT) return of(-a.hi - 1, -a.lo - 1);
  if (op == FX_EX_BIT_AND && (a.lo >= 0 || b.lo >= 0))
    return of(0, a.lo >= 0 && b.lo >= 0 ? least(a.hi, b.hi) : a.lo >= 0 ? a.hi : b.hi);
  if (a.lo < 0 || b.lo < 0) return g_unknown;
  int64_t all = 1;
  while (all <= most(a.hi, b.hi)) all *= 2;
  return of(0, all - 1);
}

static interval shift(fx_ex_op op, interval a, interval b) {
  if (b.lo < 0 || b.hi > 31) return op == FX_EX_SHR ? of(least(a.lo, 0), most(a.hi, 0)) : g_unknown;
  const int64_t p = (int64_t)1 << b.lo, q = (int64_t)1 << b.hi;
  const int64_t left[4] = {a.lo * p, a.lo * q, a.hi * p, a.hi * q};
  const int64_t right[4] = {floor_div(a.lo, p), floor_div(a.lo, q), floor_div(a.hi, p), floor_div(a.hi, q)};
  return of_corners(op == FX_EX_SHL ? left : right);
}

/* 1: always, 0: never, -1: neither is sure. */
static int compare(fx_ex_op op, interval a, interval b) {
  switch (op) {
  case FX_EX_LT:
    return a.hi < b.lo ? 1 : a.lo >= b.hi ? 0 : -1;
  case FX_EX_LE:
    return a.hi <= b.lo ? 1 : a.lo > b.hi ? 0 : -1;
  default: /* EQ, NE */
    if (a.hi < b.lo || b.hi < a.lo) return op == FX_EX_NE;
    return a.lo == a.hi && b.lo == b.hi && a.lo == b.lo ? op == FX_EX_EQ : -1;
  }
}

static interval logic(fx_ex_op op, interval a, interval b) {
  if (op == FX_EX_NOT) return of(1 - a.hi, 1 - a.lo);
  return op == FX_EX_AND ? of(least(a.lo, b.lo), least(a.hi, b.hi)) : of(most(a.lo, b.lo), most(a.hi, b.hi));
}

static interval leaf(const fx_ex_pool *pool, const fx_ex_node *n) {
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(pool);
  if (n->op == FX_EX_CONST) return of(n->value.i, n->value.i);
  if (n->op == FX_EX_LOAD) {
    const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, n->index);
    return of(buffer->lo, buffer->hi);
  }
  int32_t count = n->index == FX_EX_H ? ranges->H : n->index == FX_EX_Q ? ranges->T : ranges->T_kv;
  return of(0, most(count, 1) - 1);
}

static interval arithmetic(fx_ex_op op, interval a, interval b) {
  const int64_t products[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
  switch (op) {
  case FX_EX_NEG:
    return of(-a.hi, -a.lo);
  case FX_EX_ABS:
    return of(a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, most(-a.lo, a.hi));
  case FX_EX_ADD:
    return of(a.lo + b.lo, a.hi + b.hi);
  case FX_EX_SUB:
    return of(a.lo - b.hi, a.hi - b.lo);
  case FX_EX_MUL:
    return of_corners(products);
  case FX_EX_DIV:
    return divide(a, b);
  case FX_EX_MOD:
    return modulo(a, b);
  case FX_EX_MIN:
    return of(least(a.lo, b.lo), least(a.hi, b.hi));
  case FX_EX_MAX:
    return of(most(a.lo, b.lo), most(a.hi, b.hi));
  case FX_EX_SHL:
  case FX_EX_SHR:
    return shift(op, a, b);
  case FX_EX_BIT_NOT:
  case FX_EX_BIT_AND:
  case FX_EX_BIT_OR:
  case FX_EX_BIT_XOR:
    return bits(op, a, b);
  default:
    return g_unknown;
  }
}

static interval of_node(const fx_ex_pool *pool, const fx_ex_node *n, const interval *made) {
  fx_ex_op op = (fx_ex_op)n->op;
  if (n->type == FX_EX_FLOAT) return g_unknown;
  if (n->num_args == 0 || op == FX_EX_LOAD) return leaf(pool, n);
  bool floats = fx_ex_get(pool, n->arg[0])->type == FX_EX_FLOAT;
  interval a = made[n->arg[0]], b = n->num_args > 1 ? made[n->arg[1]] : a;
  if (op == FX_EX_SELECT) {
    interval c = made[n->arg[2]];
    if (a.known && a.lo == a.hi) return a.lo ? b : c;
    return b.known && c.known ? of(least(b.lo, c.lo), most(b.hi, c.hi)) : g_unknown;
  }
  if (n->type == FX_EX_BOOL && op >= FX_EX_LT && op <= FX_EX_NE) {
    int result = floats ? -1 : compare(op, a, b);
    return result < 0 ? of(0, 1) : of(result, result);
  }
  if (n->type == FX_EX_BOOL) return logic(op, a, b);
  if (op == FX_EX_TO_INT) return floats ? g_unknown : a;
  return arithmetic(op, a, b);
}

interval *fx_ex_intervals(const fx_ex_pool *pool, const bool *needed, fx_ex last) {
  interval *made = calloc((size_t)last + 1, sizeof *made);
  for (fx_ex i = 0; made && i <= last; i++)
    made[i] = needed[i] ? of_node(pool, fx_ex_get(pool, i), made) : g_unknown;
  return made;
}

bool fx_ex_range(const fx_ex_pool *pool, fx_ex node, int64_t *lo, int64_t *hi) {
  bool *needed = fx_ex_reachable(pool, &node, 1);
  interval *made = needed ? fx_ex_intervals(pool, needed, node) : NULL;
  bool known = made && made[node].known;
  if (known) {
    *lo = made[node].lo;
    *hi = made[node].hi;
  }
  free(needed);
  free(made);
  return known;
}

bool fx_ex_index_in_range(const fx_ex_pool *pool, fx_ex load, int k) {
  const fx_ex_node *n = fx_ex_get(pool, load);
  int64_t lo, hi;
  return fx_ex_range(pool, n->arg[k], &lo, &hi) && lo >= 0 && hi < fx_ex_buffer_at(pool, n->index)->dim[k];
}

/* ---- floats ---- */

typedef struct bounds {
  double lo, hi; /* infinite ends: finite values without a known bound */
  bool blows;
} bounds;

static const bounds g_any = {-INFINITY, INFINITY, false}, g_blown = {-INFINITY, INFINITY, true};

/* 0 x infinity is 0 here: an infinite end stands for large finite values. */
static double times(double a, double b) {
  return a == 0 || b == 0 ? 0 : a * b;
}

static bounds multiply(bounds a, bounds b) {
  double c[4] = {times(a.lo, b.lo), times(a.lo, b.hi), times(a.hi, b.lo), times(a.hi, b.hi)};
  return (bounds){fmin(fmin(c[0], c[1]), fmin(c[2], c[3])), fmax(fmax(c[0], c[1]), fmax(c[2], c[3])), false};
}

static bounds unary_bounds(fx_ex_op op, bounds a) {
  switch (op) {
  case FX_EX_NEG:
    return (bounds){-a.hi, -a.lo, false};
  case FX_EX_ABS:
    return (bounds){a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, fmax(-a.lo, a.hi), false};
  case FX_EX_EXP:
    return a.hi <= 88 ? (bounds){exp(a.lo), exp(a.hi), false} : g_blown;
  case FX_EX_LOG:
    return a.lo > 1e-30 ? (bounds){log(a.lo), log(a.hi), false} : g_blown;
  case FX_EX_SQRT:
    return a.lo >= 0 ? (bounds){sqrt(a.lo), sqrt(a.hi), false} : g_blown;
  case FX_EX_TANH:
    return (bounds){-1, 1, false};
  case FX_EX_SIGMOID:
    return (bounds){0, 1, false};
  default: /* FLOOR */
    return (bounds){floor(a.lo), a.hi, false};
  }
}

static bounds binary_bounds(fx_ex_op op, bounds a, bounds b) {
  switch (op) {
  case FX_EX_ADD:
    return (bounds){a.lo + b.lo, a.hi + b.hi, false};
  case FX_EX_SUB:
    return (bounds){a.lo - b.hi, a.hi - b.lo, false};
  case FX_EX_MUL:
    return multiply(a, b);
  case FX_EX_MIN:
    return (bounds){fmin(a.lo, b.lo), fmin(a.hi, b.hi), false};
  case FX_EX_MAX:
    return (bounds){fmax(a.lo, b.lo), fmax(a.hi, b.hi), false};
  default: /* DIV */
    if (b.lo < 1e-30 && b.hi > -1e-30) return g_blown;
    return multiply(a, (bounds){1 / b.hi, 1 / b.lo, false});
  }
}

static bounds float_leaf(const fx_ex_pool *pool, const fx_ex_node *n) {
  double value = n->op == FX_EX_CONST ? (double)n->value.f : 0;
  if (n->op == FX_EX_PARAM) value = (double)fx_ex_param_at(pool, n->index)->value;
  if (n->op != FX_EX_CONST && n->op != FX_EX_PARAM) return g_any;
  return isfinite(value) ? (bounds){value, value, false} : g_blown;
}

static bounds bounds_of(const fx_ex_pool *pool, const fx_ex_node *n, const bounds *made,
                        const interval *ints) {
  fx_ex_op op = (fx_ex_op)n->op;
  if (n->type != FX_EX_FLOAT) return g_any;
  if (n->num_args == 0 || op == FX_EX_LOAD) return float_leaf(pool, n);
  if (op == FX_EX_TO_FLOAT) {
    interval i = ints[n->arg[0]];
    return (bounds){(double)i.lo, (double)i.hi, false};
  }
  int first = op == FX_EX_SELECT ? 1 : 0;
  bounds a = made[n->arg[first]], b = n->num_args > 1 ? made[n->arg[first + 1]] : a;
  if (a.blows || b.blows) return g_blown;
  if (op == FX_EX_SELECT) return (bounds){fmin(a.lo, b.lo), fmax(a.hi, b.hi), false};
  return n->num_args == 1 ? unary_bounds(op, a) : binary_bounds(op, a, b);
}

bool fx_ex_may_blow_up(const fx_ex_pool *pool, fx_ex node) {
  bool *needed = fx_ex_reachable(pool, &node, 1);
  interval *ints = needed ? fx_ex_intervals(pool, needed, node) : NULL;
  bounds *made = calloc((size_t)node + 1, sizeof *made);
  bool may = true;
  if (ints && made) {
    for (fx_ex i = 0; i <= node; i++)
      made[i] = needed[i] ? bounds_of(pool, fx_ex_get(pool, i), made, ints) : g_any;
    may = made[node].blows;
  }
  free(needed);
  free(ints);
  free(made);
  return may;
}
