/* SPDX-License-Identifier: Apache-2.0 */
/* Random expressions over the whole grammar, with declarations and data, from a seed. */
#ifndef FX_TESTS_ATTENTION_RANDOM_EXPR_H
#define FX_TESTS_ATTENTION_RANDOM_EXPR_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/lang/expr.h"
#include "tests/harness.h"

enum { RANDOM_BUFFERS = 7, RANDOM_PARAMS = 3 };

typedef struct random_expr {
  uint64_t state; /* of the generator */
  fx_ex_pool *pool;
  fx_ex_ranges ranges;
  void *data[RANDOM_BUFFERS];         /* [3] and [4], constant tables, too */
  int64_t count[RANDOM_BUFFERS];      /* elements */
  const void *buffer[RANDOM_BUFFERS]; /* the same, as functions take them */
  float uniform[RANDOM_PARAMS];
} random_expr;

static inline uint64_t random_next(random_expr *r) { /* splitmix64 */
  uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
static inline int32_t random_below(random_expr *r, int32_t n) {
  return (int32_t)(random_next(r) % (uint64_t)n);
}
static inline float random_float(random_expr *r) { /* mostly of order 1, some large, small and special */
  static const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 1e-40f, 3e38f, -3e38f, 1e6f, -20.0f};
  if (random_below(r, 8) == 0) return special[random_below(r, 10)];
  float unit = (float)(int32_t)random_next(r) * 0x1p-31f;
  return random_below(r, 4) ? 4.0f * unit : ldexpf(unit, random_below(r, 40) - 20);
}
static inline int32_t random_int(random_expr *r) {
  static const int32_t special[] = {0, 1, -1, 2, 7, 16, 64, -3, INT32_MAX, INT32_MIN};
  if (random_below(r, 2)) return special[random_below(r, 10)];
  return random_below(r, 4) ? random_below(r, 41) - 20 : (int32_t)random_next(r);
}

static inline void random_buffer(random_expr *r, int number, fx_ex_buffer declared) {
  int64_t count = 1;
  for (int i = 0; i < declared.ndim; i++) count *= declared.dim[i];
  r->count[number] = count;
  r->data[number] = malloc((size_t)count * 4);
  for (int64_t i = 0; i < count; i++) {
    int32_t *ints = r->data[number];
    float *floats = r->data[number];
    if (declared.type == FX_EX_FLOAT)
      floats[i] = declared.learnable ? 2.0f * (float)(int32_t)random_next(r) * 0x1p-31f : random_float(r);
    else if (declared.hi < INT32_MAX)
      ints[i] = declared.lo + random_below(r, declared.hi - declared.lo + 1);
    else
      ints[i] = random_int(r);
  }
  if (declared.constant) declared.constant = r->data[number];
  snprintf(declared.name, sizeof declared.name, "buffer%u", (unsigned)number % 100);
  CHECK_INT(fx_ex_declare_buffer(r->pool, &declared), number);
  r->buffer[number] = r->data[number];
}

static inline void random_create(random_expr *r, uint64_t seed) {
  memset(r, 0, sizeof *r);
  r->state = seed;
  r->ranges = (fx_ex_ranges){1 + random_below(r, 12), 40 + random_below(r, 300), 40 + random_below(r, 300)};
  r->pool = fx_ex_pool_create(&r->ranges);
  for (int i = 0; i < RANDOM_PARAMS; i++) {
    char name[32];
    snprintf(name, sizeof name, "param%d", i);
    r->uniform[i] = random_float(r);
    CHECK_INT(fx_ex_declare_param(r->pool, name, r->uniform[i]), i);
  }
  int32_t T = r->ranges.T, H = r->ranges.H;
  const int constant = 1; /* replaced by the data */
  const fx_ex_buffer declared[RANDOM_BUFFERS] = {
      {.type = FX_EX_INT, .ndim = 1, .dim = {T}, .hi = T - 1, .per_batch = true},
      {.type = FX_EX_INT, .ndim = 1, .dim = {1 + random_below(r, 50)}, .lo = INT32_MIN, .hi = INT32_MAX},
      {.type = FX_EX_FLOAT, .ndim = 1, .dim = {H}},
      {.type = FX_EX_INT,
       .ndim = 2,
       .dim = {3, 1 + random_below(r, 9)},
       .lo = -5,
       .hi = 9,
       .constant = &constant},
      {.type = FX_EX_FLOAT, .ndim = 3, .dim = {H, 2, 1 + random_below(r, 20)}, .constant = &constant},
      {.type = FX_EX_FLOAT, .ndim = 2, .dim = {H, 1 + random_below(r, 30)}, .learnable = true},
      {.type = FX_EX_FLOAT, .ndim = 1, .dim = {7}, .learnable = true}};
  for (int i = 0; i < RANDOM_BUFFERS; i++) random_buffer(r, i, declared[i]);
}

static inline void random_destroy(random_expr *r) {
  for (int i = 0; i < RANDOM_BUFFERS; i++) free(r->data[i]);
  fx_ex_pool_destroy(r->pool);
}

static inline fx_ex random_make(random_expr *r, fx_ex_type type, int depth, bool score);

static inline fx_ex random_load(random_expr *r, fx_ex_type type, int depth, bool score) {
  static const int floats[] = {2, 4, 5, 6}, ints[] = {0, 1, 3};
  int number = type == FX_EX_INT ? ints[random_below(r, 3)] : floats[random_below(r, score ? 4 : 2)];
  fx_ex index[3];
  for (int i = 0; i < 3; i++) index[i] = random_make(r, FX_EX_INT, depth - 1, score);
  return fx_ex_load(r->pool, number, index);
}

static inline fx_ex random_leaf(random_expr *r, fx_ex_type type, bool score) {
  fx_ex_pool *pool = r->pool;
  if (type == FX_EX_BOOL) return fx_ex_bool(pool, random_below(r, 2));
  if (type == FX_EX_INT) {
    int pick = random_below(r, 5);
    return pick < 3 ? fx_ex_variable(pool, FX_EX_H + pick) : fx_ex_int(pool, random_int(r));
  }
  int pick = random_below(r, 4);
  if (pick == 0) return fx_ex_float(pool, random_float(r));
  if (pick == 1) return fx_ex_parameter(pool, random_below(r, RANDOM_PARAMS));
  if (pick == 2 && score) return fx_ex_variable(pool, FX_EX_SCORE);
  return fx_ex_convert(pool, fx_ex_variable(pool, FX_EX_H + random_below(r, 3)), FX_EX_FLOAT);
}

/* A node of the type. `score`: the score and learnable buffers may be read. */
static inline fx_ex random_make(random_expr *r, fx_ex_type type, int depth, bool score) {
  static const uint8_t bools[] = {FX_EX_NOT, FX_EX_AND, FX_EX_OR, FX_EX_LT, FX_EX_LE, FX_EX_EQ, FX_EX_NE};
  static const uint8_t ints[] = {FX_EX_NEG,     FX_EX_ABS,    FX_EX_ADD, FX_EX_SUB,     FX_EX_MUL,
                                 FX_EX_DIV,     FX_EX_MOD,    FX_EX_MIN, FX_EX_MAX,     FX_EX_BIT_NOT,
                                 FX_EX_BIT_AND, FX_EX_BIT_OR, FX_EX_SHL, FX_EX_BIT_XOR, FX_EX_SHR,
                                 FX_EX_TO_INT,  FX_EX_DIV,    FX_EX_MOD};
  static const uint8_t floats[] = {FX_EX_NEG,  FX_EX_ABS,  FX_EX_ADD,     FX_EX_SUB,   FX_EX_MUL,
                                   FX_EX_DIV,  FX_EX_MIN,  FX_EX_MAX,     FX_EX_EXP,   FX_EX_LOG,
                                   FX_EX_TANH, FX_EX_SQRT, FX_EX_SIGMOID, FX_EX_FLOOR, FX_EX_TO_FLOAT,
                                   FX_EX_ADD,  FX_EX_MUL};
  fx_ex_pool *pool = r->pool;
  if (depth <= 0 || random_below(r, 12) == 0) return random_leaf(r, type, score);
  int pick = random_below(r, 10);
  if (pick == 0)
    return fx_ex_select(pool, random_make(r, FX_EX_BOOL, depth - 1, score),
                        random_make(r, type, depth - 1, score), random_make(r, type, depth - 1, score));
  if (pick < 3 && type != FX_EX_BOOL) return random_load(r, type, depth, score);
  fx_ex_op op = type == FX_EX_BOOL  ? bools[random_below(r, sizeof bools)]
                : type == FX_EX_INT ? ints[random_below(r, sizeof ints)]
                                    : floats[random_below(r, sizeof floats)];
  fx_ex_type takes = type;
  if (type == FX_EX_BOOL && op >= FX_EX_LT) takes = (fx_ex_type)random_below(r, 3);
  if (op == FX_EX_TO_INT) takes = random_below(r, 2) ? FX_EX_FLOAT : FX_EX_BOOL;
  if (op == FX_EX_TO_FLOAT) takes = random_below(r, 2) ? FX_EX_INT : FX_EX_BOOL;
  fx_ex a = random_make(r, takes, depth - 1, score);
  bool unary =
      op == FX_EX_NOT || op == FX_EX_NEG || op == FX_EX_ABS || op == FX_EX_BIT_NOT || op >= FX_EX_EXP;
  if (unary) return fx_ex_unary(pool, op, a);
  return fx_ex_binary(pool, op, a, random_make(r, takes, depth - 1, score));
}

#endif
