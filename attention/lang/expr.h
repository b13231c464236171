/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions of the attention language: typed, hash-consed DAGs.
 *
 * A pool holds all expressions of one variant (mask, score, their derivatives, bounds, index conditions).
 * Equal expressions are one node, constants are folded and trivial identities removed while nodes are made,
 * so a pool is always in SSA form after CSE. The parser makes nodes, and so may C code: a variant is a
 * function of symbolic values. Arguments always have smaller numbers than the node that uses them.
 *
 * Failures are sticky: a function that is given FX_EX_NONE, or arguments of wrong types, returns FX_EX_NONE;
 * the first failure's sentence is fx_error_text().
 *
 * Must not know: text positions (parser.h), tiles, tensors, devices. */
#ifndef FX_ATTENTION_LANG_EXPR_H
#define FX_ATTENTION_LANG_EXPR_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t fx_ex; /* number of a node in its pool */
enum { FX_EX_NONE = -1, FX_EX_MAX_NODES = 20000, FX_EX_MAX_BUFFERS = 32, FX_EX_MAX_PARAMS = 32 };

typedef enum fx_ex_type { FX_EX_BOOL, FX_EX_INT, FX_EX_FLOAT, FX_EX_TYPE_COUNT } fx_ex_type;

/* The variables: the score before this expression, and global indices. */
typedef enum fx_ex_var { FX_EX_SCORE, FX_EX_H, FX_EX_Q, FX_EX_KV, FX_EX_VAR_COUNT } fx_ex_var;

/* X(NAME, spelling, arity, kind). Kinds: LEAF; ARITH takes int, int or float, float and gives that type (a
 * bool becomes int, an int beside a float becomes float); INTS takes and gives ints; FLOATS takes and gives
 * floats (ints are converted); BITS takes ints or bools and gives that type; COMPARE takes what ARITH takes
 * and gives a bool; LOGIC takes and gives bools; OTHER is checked by hand. a > b is stored as b < a, a >= b
 * as b <= a. */
#define FX_EX_OPS(X)               \
  X(CONST, "", 0, LEAF)            \
  X(VAR, "", 0, LEAF)              \
  X(PARAM, "", 0, LEAF)            \
  X(LOAD, "[]", 3, OTHER)          \
  X(NEG, "-", 1, ARITH)            \
  X(ABS, "abs", 1, ARITH)          \
  X(ADD, "+", 2, ARITH)            \
  X(SUB, "-", 2, ARITH)            \
  X(MUL, "*", 2, ARITH)            \
  X(DIV, "/", 2, ARITH)            \
  X(MOD, "%", 2, INTS)             \
  X(MIN, "min", 2, ARITH)          \
  X(MAX, "max", 2, ARITH)          \
  X(BIT_NOT, "~", 1, BITS)         \
  X(BIT_AND, "&", 2, BITS)         \
  X(BIT_OR, "|", 2, BITS)          \
  X(BIT_XOR, "^", 2, BITS)         \
  X(SHL, "<<", 2, INTS)            \
  X(SHR, ">>", 2, INTS)            \
  X(NOT, "!", 1, LOGIC)            \
  X(AND, "&&", 2, LOGIC)           \
  X(OR, "||", 2, LOGIC)            \
  X(LT, "<", 2, COMPARE)           \
  X(LE, "<=", 2, COMPARE)          \
  X(EQ, "==", 2, COMPARE)          \
  X(NE, "!=", 2, COMPARE)          \
  X(SELECT, "where", 3, OTHER)     \
  X(EXP, "exp", 1, FLOATS)         \
  X(LOG, "log", 1, FLOATS)         \
  X(TANH, "tanh", 1, FLOATS)       \
  X(SQRT, "sqrt", 1, FLOATS)       \
  X(SIGMOID, "sigmoid", 1, FLOATS) \
  X(FLOOR, "floor", 1, FLOATS)     \
  X(TO_INT, "int", 1, OTHER)       \
  X(TO_FLOAT, "float", 1, OTHER)

typedef enum fx_ex_op {
#define FX_EX_ENUM(name, spelling, arity, kind) FX_EX_##name,
  FX_EX_OPS(FX_EX_ENUM)
#undef FX_EX_ENUM
      FX_EX_OP_COUNT
} fx_ex_op;

typedef union fx_ex_value {
  int32_t i; /* int, or bool as 0 and 1 */
  float f;
} fx_ex_value;

typedef struct fx_ex_node {
  uint8_t op;   /* fx_ex_op */
  uint8_t type; /* fx_ex_type */
  uint8_t num_args;
  uint8_t depends;   /* bit 1 << fx_ex_var for every variable it depends on */
  int32_t index;     /* VAR: fx_ex_var; PARAM, LOAD: number in the pool */
  fx_ex_value value; /* CONST */
  fx_ex arg[3];      /* the unused ones FX_EX_NONE */
  uint64_t hash; /* of the structure: equal in any pool with the same declarations, in any order of making */
} fx_ex_node;

/* A float parameter: a run-time uniform. (Int parameters are constants: a kernel is made for them.) */
typedef struct fx_ex_param {
  char name[32];
  float value;
} fx_ex_param;

/* Something indexed. All extents are known when the pool is made. */
typedef struct fx_ex_buffer {
  char name[32];
  fx_ex_type type; /* FX_EX_INT or FX_EX_FLOAT (int32, float32) */
  int32_t ndim;    /* 1..3 indices in an expression; per_batch adds an implicit first one, the sample */
  int32_t dim[3];
  bool per_batch;
  bool learnable;   /* a float parameter of the model: has a gradient, no mask may read it */
  bool monotone;    /* ints, one index: x[i] <= x[i + 1] */
  bool segment;     /* ints, one index: x[x[i]] == x[i] <= i, and monotone: starts of segments */
  bool segment_end; /* ints, one index: one past the end of i's segment: i < x[i], constant on [i, x[i]),
                       monotone */
  int32_t lo, hi;   /* ints: values lie in [lo, hi]; INT32_MIN, INT32_MAX when nothing is known */
  const void
      *constant; /* NULL: an input of the run; else a constant table of int32 or float, owned by the pool */
} fx_ex_buffer;

typedef struct fx_ex_pool fx_ex_pool;

/* What the global indices can be: 0 <= h < H, 0 <= q < T, 0 <= kv < T_kv. */
typedef struct fx_ex_ranges {
  int32_t H, T, T_kv;
} fx_ex_ranges;

/* NULL with a sentence when memory is short. */
fx_ex_pool *fx_ex_pool_create(const fx_ex_ranges *ranges);
void fx_ex_pool_destroy(fx_ex_pool *pool);
const fx_ex_ranges *fx_ex_pool_ranges(const fx_ex_pool *pool);
/* Number of nodes; and one of them, valid until the next node is made. */
int32_t fx_ex_pool_count(const fx_ex_pool *pool);
const fx_ex_node *fx_ex_get(const fx_ex_pool *pool, fx_ex node);

/* Declarations; the number, or -1 with a sentence (a bad or known name, too many, an impossible shape). The
 * structure is copied, a constant's values too. Names are C identifiers that the language does not use. */
int32_t fx_ex_declare_param(fx_ex_pool *pool, const char *name, float value);
int32_t fx_ex_declare_buffer(fx_ex_pool *pool, const fx_ex_buffer *buffer);
int32_t fx_ex_num_params(const fx_ex_pool *pool);
int32_t fx_ex_num_buffers(const fx_ex_pool *pool);
const fx_ex_param *fx_ex_param_at(const fx_ex_pool *pool, int32_t index);
const fx_ex_buffer *fx_ex_buffer_at(const fx_ex_pool *pool, int32_t index);

/* ---- making nodes ---- */
fx_ex fx_ex_int(fx_ex_pool *pool, int32_t value);
fx_ex fx_ex_float(fx_ex_pool *pool, float value);
fx_ex fx_ex_bool(fx_ex_pool *pool, bool value);
fx_ex fx_ex_variable(fx_ex_pool *pool, fx_ex_var var);
fx_ex fx_ex_parameter(fx_ex_pool *pool, int32_t index);
/* index[ndim] ints; the implicit sample is not among them. */
fx_ex fx_ex_load(fx_ex_pool *pool, int32_t buffer, const fx_ex *index);
/* Any other operator; conversions as the table says. */
fx_ex fx_ex_unary(fx_ex_pool *pool, fx_ex_op op, fx_ex a);
fx_ex fx_ex_binary(fx_ex_pool *pool, fx_ex_op op, fx_ex a, fx_ex b);
fx_ex fx_ex_greater(fx_ex_pool *pool, fx_ex a, fx_ex b);       /* a > b */
fx_ex fx_ex_greater_equal(fx_ex_pool *pool, fx_ex a, fx_ex b); /* a >= b */
fx_ex fx_ex_select(fx_ex_pool *pool, fx_ex condition, fx_ex a, fx_ex b);
/* `node` as `type`: bool to int to float; int to bool is != 0; float to int and float to bool are refused. */
fx_ex fx_ex_convert(fx_ex_pool *pool, fx_ex node, fx_ex_type type);

/* `node` with every occurrence of a variable replaced (FX_EX_NONE: kept). with[FX_EX_VAR_COUNT] are of the
 * variables' types. How a bound over q becomes one over kv, or a score goes into another. */
fx_ex fx_ex_substitute(fx_ex_pool *pool, fx_ex node, const fx_ex with[FX_EX_VAR_COUNT]);

/* needed[i] for 0 <= i <= the largest root: whether node i is one of the roots or what they use. The caller
 * frees it; NULL with a sentence when memory is short. */
bool *fx_ex_reachable(const fx_ex_pool *pool, const fx_ex *roots, int num_roots);

/* ---- facts about the operators and types ---- */
const char *fx_ex_op_name(fx_ex_op op);     /* "ADD" */
const char *fx_ex_op_spelling(fx_ex_op op); /* "+" */
const char *fx_ex_type_name(fx_ex_type type);
const char *fx_ex_var_name(fx_ex_var var); /* "score", "h", "q", "kv" */
/* True for names that expressions cannot declare: variables, functions, b, T, H, true, false, ... */
bool fx_ex_is_reserved(const char *name);

static inline bool fx_ex_depends(const fx_ex_pool *pool, fx_ex node, fx_ex_var var) {
  return (fx_ex_get(pool, node)->depends >> var) & 1;
}
/* True and *value when the node is a constant int. */
static inline bool fx_ex_is_int(const fx_ex_pool *pool, fx_ex node, int32_t *value) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  if (n->op != FX_EX_CONST || n->type != FX_EX_INT) return false;
  *value = n->value.i;
  return true;
}

#ifdef __cplusplus
}
#endif
#endif
