/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/expression_reference.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"

typedef struct number {
  double v, err; /* err: |float evaluation - v| is at most this; INFINITY: v may be anything */
} number;

typedef struct point {
  int32_t h, q, kv;
  double score;
} point;

static const number g_unknown = {0.0, INFINITY};

/* A float result: v with the error `err` that the arguments bring and `ulps` units of its own. */
static number rounded(double v, double err, double ulps) {
  if (isnan(v) || isinf(v)) return (number){v, err == 0.0 ? 0.0 : INFINITY};
  if (fabs(v) - err > FLT_MAX * (1.0 + 1e-6)) return (number){copysign(INFINITY, v), 0.0};
  if (isnan(err) || fabs(v) + err > FLT_MAX * (1.0 - 1e-6)) return (number){v, INFINITY};
  if (err == 0.0 && ulps <= 1.0 && (double)(float)v == v) return (number){v, 0.0};
  return (number){v, err + ulps * (fabs(v) * 0x1p-23 + 0x1p-149)};
}

static number exactly(double v) {
  return (number){v, 0.0};
}

/* a < b, a <= b, a == b, a != b where a - b is known up to a sum of errors. */
static number compare(fx_ex_op op, number a, number b) {
  double err = a.err + b.err;
  if (isinf(err) || (err > 0.0 && !isnan(a.v) && !isnan(b.v) && fabs(a.v - b.v) <= err)) return g_unknown;
  if (op == FX_EX_LT) return exactly(a.v < b.v);
  if (op == FX_EX_LE) return exactly(a.v <= b.v);
  return exactly(op == FX_EX_EQ ? a.v == b.v : a.v != b.v);
}

static number extremum(bool smaller, number a, number b) {
  number less = compare(FX_EX_LT, a, b);
  if (isinf(less.err)) { /* one or the other, and they are near */
    double err = fabs(a.v - b.v) + fmax(a.err, b.err);
    return isnan(err) ? g_unknown : (number){a.v, err};
  }
  return (less.v != 0.0) == smaller ? a : b;
}

static number function(fx_ex_op op, number a) {
  if (isinf(a.err)) return g_unknown;
  double v = a.v, low = v - a.err;
  switch (op) {
  case FX_EX_EXP:
    return rounded(exp(v), a.err > 0.0 ? exp(v) * expm1(a.err) : 0.0, 2.0);
  case FX_EX_LOG:
    if (a.err > 0.0 && low <= 0.0 && v + a.err >= 0.0) return g_unknown;
    return rounded(v < 0.0 ? NAN : log(v), a.err > 0.0 && v > 0.0 ? a.err / low : 0.0, 2.0);
  case FX_EX_TANH:
    return rounded(tanh(v), a.err, 3.0);
  case FX_EX_SIGMOID:
    return rounded(v < 0.0 ? exp(v) / (1.0 + exp(v)) : 1.0 / (1.0 + exp(-v)), a.err, 4.0);
  case FX_EX_SQRT:
    if (a.err > 0.0 && low <= 0.0 && v + a.err >= 0.0) return g_unknown;
    return rounded(v < 0.0 ? NAN : sqrt(v), a.err > 0.0 && v > 0.0 ? a.err / sqrt(low) : 0.0, 1.0);
  default: /* FLOOR */
    if (a.err > 0.0 && floor(low) != floor(v + a.err)) return g_unknown;
    return exactly(floor(v));
  }
}

static number divide(number a, number b) {
  if (a.err + b.err == 0.0) return rounded(a.v / b.v, 0.0, 1.0);
  double low = fabs(b.v) - b.err;
  if (!(low > 0.0)) return g_unknown;
  double v = a.v / b.v;
  return rounded(v, (a.err + fabs(v) * b.err) / low, 1.0);
}

static number float_op(fx_ex_op op, number a, number b) {
  double err = a.err + b.err;
  switch (op) {
  case FX_EX_NEG:
    return (number){-a.v, a.err};
  case FX_EX_ABS:
    return (number){fabs(a.v), a.err};
  case FX_EX_MIN:
  case FX_EX_MAX:
    return extremum(op == FX_EX_MIN, a, b);
  case FX_EX_LT:
  case FX_EX_LE:
  case FX_EX_EQ:
  case FX_EX_NE:
    return compare(op, a, b);
  default:
    break;
  }
  if (isinf(err)) return g_unknown;
  switch (op) {
  case FX_EX_ADD:
    return rounded(a.v + b.v, err, 1.0);
  case FX_EX_SUB:
    return rounded(a.v - b.v, err, 1.0);
  case FX_EX_MUL: {
    double spread =
        a.err * b.err + (a.err > 0.0 ? a.err * fabs(b.v) : 0.0) + (b.err > 0.0 ? b.err * fabs(a.v) : 0.0);
    return rounded(a.v * b.v, spread, 1.0);
  }
  case FX_EX_DIV:
    return divide(a, b);
  case FX_EX_TO_INT:
    if (isnan(a.v)) return a.err == 0.0 ? exactly(0.0) : g_unknown;
    if (a.err > 0.0 && trunc(a.v - a.err) != trunc(a.v + a.err)) return g_unknown;
    return exactly(fmax(fmin(trunc(a.v), 2147483647.0), -2147483648.0));
  default:
    return function(op, a);
  }
}

static int32_t wrap(int64_t v) {
  return (int32_t)(uint32_t)(uint64_t)v;
}

static int64_t floored(int64_t a, int64_t b, bool remainder) {
  if (b == 0) return 0;
  int64_t quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    quotient--;
    rest += b;
  }
  return remainder ? rest : quotient;
}

static int32_t int_op(fx_ex_op op, int64_t a, int64_t b) {
  switch (op) {
  case FX_EX_NEG:
    return wrap(-a);
  case FX_EX_ABS:
    return wrap(a < 0 ? -a : a);
  case FX_EX_ADD:
    return wrap(a + b);
  case FX_EX_SUB:
    return wrap(a - b);
  case FX_EX_MUL:
    return wrap(a * b);
  case FX_EX_DIV:
  case FX_EX_MOD:
    return wrap(floored(a, b, op == FX_EX_MOD));
  case FX_EX_MIN:
    return (int32_t)(a < b ? a : b);
  case FX_EX_MAX:
    return (int32_t)(a > b ? a : b);
  case FX_EX_BIT_NOT:
    return (int32_t)(-1 - a);
  case FX_EX_BIT_AND:
  case FX_EX_AND:
    return (int32_t)(a & b);
  case FX_EX_BIT_OR:
  case FX_EX_OR:
    return (int32_t)(a | b);
  case FX_EX_BIT_XOR:
    return (int32_t)(a ^ b);
  case FX_EX_SHL:
    return wrap(a * ((int64_t)1 << ((uint64_t)b & 31)));
  case FX_EX_SHR:
    return wrap(floored(a, (int64_t)1 << ((uint64_t)b & 31), false));
  case FX_EX_NOT:
    return a == 0;
  case FX_EX_LT:
    return a < b;
  case FX_EX_LE:
    return a <= b;
  case FX_EX_EQ:
    return a == b;
  case FX_EX_NE:
    return a != b;
  default: /* TO_INT of a bool or an int */
    return (int32_t)a;
  }
}

static number load(const fx_ex_buffer *declared, const void *given, const fx_ex_node *node,
                   const number *known) {
  const void *data = given ? given : declared->constant;
  int64_t at = 0;
  for (int i = 0; i < node->num_args; i++) {
    const number *index = &known[node->arg[i]];
    if (isinf(index->err)) return g_unknown;
    double clamped = fmax(0.0, fmin(index->v, (double)declared->dim[i] - 1));
    at = at * declared->dim[i] + (int64_t)clamped;
  }
  return exactly(declared->type == FX_EX_FLOAT ? (double)((const float *)data)[at]
                                               : ((const int32_t *)data)[at]);
}

static number leaf(const fx_ex_pool *pool, const fx_ex_node *node, const fx_interp_inputs *inputs,
                   const point *at) {
  if (node->op == FX_EX_CONST)
    return exactly(node->type == FX_EX_FLOAT ? (double)node->value.f : node->value.i);
  if (node->op == FX_EX_PARAM)
    return exactly(inputs->uniform ? inputs->uniform[node->index] : fx_ex_param_at(pool, node->index)->value);
  const double value[FX_EX_VAR_COUNT] = {at->score, at->h, at->q, at->kv};
  return exactly(value[node->index]);
}

static number select_branch(const number *known, const fx_ex_node *node) {
  number condition = known[node->arg[0]], a = known[node->arg[1]], b = known[node->arg[2]];
  if (!isinf(condition.err)) return condition.v != 0.0 ? a : b;
  return a.err == 0.0 && b.err == 0.0 && a.v == b.v ? a : g_unknown;
}

static number evaluate(const fx_ex_pool *pool, const fx_ex_node *node, const fx_interp_inputs *inputs,
                       const point *at, const number *known) {
  if (node->op == FX_EX_LOAD)
    return load(fx_ex_buffer_at(pool, node->index), inputs->buffer ? inputs->buffer[node->index] : NULL, node,
                known);
  if (node->num_args == 0) return leaf(pool, node, inputs, at);
  if (node->op == FX_EX_SELECT) return select_branch(known, node);
  number a = known[node->arg[0]], b = node->num_args > 1 ? known[node->arg[1]] : exactly(0.0);
  if (fx_ex_get(pool, node->arg[0])->type == FX_EX_FLOAT) return float_op(node->op, a, b);
  if (isinf(a.err) || isinf(b.err)) { /* conditions that one side decides */
    bool decided = node->op == FX_EX_AND || node->op == FX_EX_OR;
    double by = node->op == FX_EX_OR;
    return decided && ((a.v == by && a.err == 0.0) || (b.v == by && b.err == 0.0)) ? exactly(by) : g_unknown;
  }
  if (node->op == FX_EX_TO_FLOAT) return rounded(a.v, 0.0, 1.0);
  return exactly(int_op(node->op, (int64_t)a.v, (int64_t)b.v));
}

fx_status fx_reference_run(const fx_ex_pool *pool, const fx_ex *outputs, int num_outputs,
                           const fx_interp_inputs *inputs, int32_t h, int64_t n, const int32_t *q,
                           const int32_t *kv, const double *score, double *const *value,
                           double *const *bound) {
  fx_ex last = 0;
  for (int i = 0; i < num_outputs; i++) last = outputs[i] > last ? outputs[i] : last;
  bool *needed = fx_ex_reachable(pool, outputs, num_outputs);
  if (!needed) return FX_ERR_MEMORY;
  number *known;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&known, (size_t)last + 1, sizeof *known), free_needed);
  for (int64_t p = 0; p < n; p++) {
    point at = {h, q ? q[p] : 0, kv ? kv[p] : 0, score ? score[p] : 0.0};
    for (fx_ex i = 0; i <= last; i++)
      if (needed[i]) known[i] = evaluate(pool, fx_ex_get(pool, i), inputs, &at, known);
    for (int k = 0; k < num_outputs; k++) {
      value[k][p] = known[outputs[k]].v;
      if (bound) bound[k][p] = known[outputs[k]].err;
    }
  }
  free(known);
free_needed:
  free(needed);
  return status;
}
