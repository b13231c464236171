/* SPDX-License-Identifier: Apache-2.0 */
/* A pool with a bit of everything, and an evaluator in double precision that shares nothing with the
 * language's own folding. */
#ifndef FX_TESTS_ATTENTION_LANG_CASE_H
#define FX_TESTS_ATTENTION_LANG_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/lang/parser.h"
#include "attention/variant/inputs.h"
#include "tests/harness.h"

enum { H = 4, T = 40, BUCKETS = 8 };

static float g_bias[H * BUCKETS];
static int32_t g_signed[T]; /* -3..3 */

/* Parameters cap = 2.5, rate = 0.75; tables bias [H, 8] (learnable), sign [T], cube [2, 3, 4]; inputs. */
static inline fx_ex_pool *make_pool(void) {
  fx_ex_pool *pool = fx_ex_pool_create(&(fx_ex_ranges){H, T, T});
  for (int i = 0; i < T; i++) g_signed[i] = i * 5 % 7 - 3;
  fx_fill_normal(g_bias, H * BUCKETS, 7, 1.0f);
  fx_ex_buffer bias = {
      .name = "bias", .type = FX_EX_FLOAT, .ndim = 2, .dim = {H, BUCKETS}, .learnable = true};
  fx_ex_buffer sign = {
      .name = "sign", .type = FX_EX_INT, .ndim = 1, .dim = {T}, .lo = -3, .hi = 3, .constant = g_signed};
  fx_ex_buffer cube = {.name = "cube", .type = FX_EX_FLOAT, .ndim = 3, .dim = {2, 3, 4}};
  CHECK_INT(fx_ex_declare_param(pool, "cap", 2.5f), 0);
  CHECK_INT(fx_ex_declare_param(pool, "rate", 0.75f), 1);
  CHECK_INT(fx_ex_declare_buffer(pool, &bias), 0);
  CHECK_INT(fx_ex_declare_buffer(pool, &sign), 1);
  CHECK_INT(fx_ex_declare_buffer(pool, &cube), 2);
  for (int32_t i = 0; i < FX_VARIANT_NUM_INPUTS; i++) {
    fx_ex_buffer input = fx_variant_input(i, T);
    CHECK(fx_ex_declare_buffer(pool, &input) >= 0);
  }
  return pool;
}

static inline fx_ex parse(fx_ex_pool *pool, const char *text) {
  fx_ex node = fx_ex_parse(pool, &(fx_ex_text){.text = text}, NULL);
  CHECK_MSG(node != FX_EX_NONE, "%s: %s", text, fx_error_text());
  return node;
}

/* ---- an evaluator of its own: ints exactly, floats in double ---- */

typedef struct point {
  double score;
  int h, q, kv;
} point;

static inline double int_op(fx_ex_op op, int64_t a, int64_t b) {
  switch (op) {
  case FX_EX_DIV:
    return b == 0 ? 0 : floor((double)a / (double)b);
  case FX_EX_MOD:
    return b == 0 ? 0 : (double)a - floor((double)a / (double)b) * (double)b;
  case FX_EX_BIT_NOT:
    return (double)~a;
  case FX_EX_BIT_AND:
    return (double)(a & b);
  case FX_EX_BIT_OR:
    return (double)(a | b);
  case FX_EX_BIT_XOR:
    return (double)(a ^ b);
  case FX_EX_SHL:
    return (double)(a << b);
  case FX_EX_SHR:
    return floor((double)a / pow(2, (double)b));
  default:
    return NAN;
  }
}

static inline double apply(fx_ex_op op, double a, double b) {
  switch (op) {
  case FX_EX_NEG:
    return -a;
  case FX_EX_ABS:
    return fabs(a);
  case FX_EX_ADD:
    return a + b;
  case FX_EX_SUB:
    return a - b;
  case FX_EX_MUL:
    return a * b;
  case FX_EX_DIV:
    return a / b;
  case FX_EX_MIN:
    return a < b ? a : b;
  case FX_EX_MAX:
    return a < b ? b : a;
  case FX_EX_NOT:
    return a == 0;
  case FX_EX_AND:
    return a != 0 && b != 0;
  case FX_EX_OR:
    return a != 0 || b != 0;
  case FX_EX_LT:
    return a < b;
  case FX_EX_LE:
    return a <= b;
  case FX_EX_EQ:
    return a == b;
  case FX_EX_NE:
    return a != b;
  case FX_EX_EXP:
    return exp(a);
  case FX_EX_LOG:
    return log(a);
  case FX_EX_TANH:
    return tanh(a);
  case FX_EX_SQRT:
    return sqrt(a);
  case FX_EX_SIGMOID:
    return 1 / (1 + exp(-a));
  case FX_EX_FLOOR:
    return floor(a);
  default:
    return op == FX_EX_TO_INT ? trunc(a) : a;
  }
}

/* What a LOAD reads; a suite with other tables sets its own. Of the pool above: clamped, inputs read 0. */
static inline double read_own(const fx_ex_pool *pool, const fx_ex_node *n, const double *index) {
  int last = n->index == 0 ? BUCKETS - 1 : T - 1,
      i = index[n->index == 0] < 0 ? 0 : (int)index[n->index == 0];
  (void)pool;
  i = i > last ? last : i;
  return n->index == 0 ? (double)g_bias[(int)index[0] * BUCKETS + i] : n->index == 1 ? g_signed[i] : 0;
}
static double (*g_read)(const fx_ex_pool *pool, const fx_ex_node *n, const double *index) = read_own;

/* bumped, bump: a LOAD whose value is raised, for differences. */
static inline double evaluate(const fx_ex_pool *pool, fx_ex node, const point *at, fx_ex bumped,
                              double bump) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  fx_ex_op op = (fx_ex_op)n->op;
  double a[3] = {0, 0, 0};
  if (op == FX_EX_CONST) return n->type == FX_EX_FLOAT ? (double)n->value.f : n->value.i;
  if (op == FX_EX_PARAM) return (double)fx_ex_param_at(pool, n->index)->value;
  if (op == FX_EX_VAR) {
    const double vars[] = {at->score, at->h, at->q, at->kv};
    return vars[n->index];
  }
  for (int i = 0; i < n->num_args; i++) a[i] = evaluate(pool, n->arg[i], at, bumped, bump);
  if (op == FX_EX_SELECT) return a[0] != 0 ? a[1] : a[2];
  if (op == FX_EX_LOAD) return g_read(pool, n, a) + (node == bumped ? bump : 0);
  bool ints = fx_ex_get(pool, n->arg[0])->type == FX_EX_INT;
  if (ints && (op == FX_EX_DIV || op == FX_EX_MOD || (op >= FX_EX_BIT_NOT && op <= FX_EX_SHR)))
    return int_op(op, (int64_t)a[0], (int64_t)a[1]);
  return apply(op, a[0], a[1]);
}

static inline double value_at(const fx_ex_pool *pool, fx_ex node, const point *at) {
  return evaluate(pool, node, at, FX_EX_NONE, 0);
}

#endif
