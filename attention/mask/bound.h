/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds of limits: int64 terms over a query's position.
 *
 * A term's leaves are constants and values of expressions that do not depend on kv (with the expression's own
 * wrapping arithmetic); above them int64 arithmetic that cannot overflow: every term knows its range, and one
 * that could pass 2^62 is not made. Equal terms are one term. Terms that do not hold or are not made are
 * FX_BOUND_NONE, which operators pass on.
 *
 * A table belongs to one analysis and then, sealed, to a program that evaluates it for 256 rows at a time. */
#ifndef FX_ATTENTION_MASK_BOUND_H
#define FX_ATTENTION_MASK_BOUND_H

#include <stddef.h>

#include "attention/mask/interval.h"
#include "attention/tile/interp.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t fx_bound;
enum { FX_BOUND_NONE = -1, FX_BOUND_MAX = 512, FX_BOUND_LANES = 256 };

typedef enum fx_bound_op {
  FX_BOUND_CONST,
  FX_BOUND_ROW, /* an int or bool node of the pool */
  FX_BOUND_ADD, /* a + b */
  FX_BOUND_SUB, /* a - b */
  FX_BOUND_MUL, /* a * b */
  FX_BOUND_DIV, /* floor(a / b), b > 0 */
  FX_BOUND_MIN,
  FX_BOUND_MAX_OF,
  FX_BOUND_LESS,   /* a < b: 0 or 1 */
  FX_BOUND_AND,    /* of 0 and 1 */
  FX_BOUND_SELECT, /* a ? b : c */
  FX_BOUND_FIRST   /* the first index whose value in a monotone buffer is at least a; its length if none */
} fx_bound_op;

typedef struct fx_bound_term {
  fx_bound_op op;
  fx_bound arg[3];
  int64_t value;  /* CONST; ROW: the node; FIRST: the buffer */
  int64_t lo, hi; /* range */
} fx_bound_term;

typedef struct fx_bounds {
  const fx_ex_pool *pool;
  const fx_interval_code *code; /* ranges of nodes */
  int32_t count;
  fx_bound_term term[FX_BOUND_MAX];
} fx_bounds;

void fx_bounds_init(fx_bounds *bounds, const fx_ex_pool *pool, const fx_interval_code *code);
fx_bound fx_bound_const(fx_bounds *bounds, int64_t value);
/* `node` is an int or a condition that `code` contains and that does not depend on kv. */
fx_bound fx_bound_row(fx_bounds *bounds, fx_ex node);
fx_bound fx_bound_make(fx_bounds *bounds, fx_bound_op op, fx_bound a, fx_bound b);
fx_bound fx_bound_select(fx_bounds *bounds, fx_bound condition, fx_bound a, fx_bound b);
/* a < b in one form: of a condition and its opposite, one is 1 minus the other. */
fx_bound fx_bound_less(fx_bounds *bounds, fx_bound a, fx_bound b);
/* x[FIRST - 1] < a <= x[FIRST] in the monotone buffer, which has one index. */
fx_bound fx_bound_first(fx_bounds *bounds, int32_t buffer, fx_bound a);
/* ceil(a / b), b > 0 */
fx_bound fx_bound_ceil_div(fx_bounds *bounds, fx_bound a, fx_bound b);
static inline fx_bound fx_bound_plus(fx_bounds *bounds, fx_bound a, int64_t value) {
  return fx_bound_make(bounds, FX_BOUND_ADD, a, fx_bound_const(bounds, value));
}

/* a = base + *offset, with the constant taken off. */
fx_bound fx_bound_base(const fx_bounds *bounds, fx_bound a, int64_t *offset);

/* ---- evaluation ---- */

/* Terms that outputs use, ready to run; immutable. */
typedef struct fx_bound_code fx_bound_code;

/* outputs[num_outputs] are terms; the pool must outlive the result. FX_ERR_MEMORY,
 * FX_ERR_UNSUPPORTED. */
fx_status fx_bound_code_create(const fx_bounds *bounds, const fx_bound *outputs, int num_outputs,
                               fx_bound_code **code);
void fx_bound_code_destroy(fx_bound_code *code);
/* Bytes of 64-byte aligned scratch, a multiple of 64. */
size_t fx_bound_scratch(const fx_bound_code *code);
/* Forgets where earlier rows' searches ended; before the first run on a sample. */
void fx_bound_begin(const fx_bound_code *code, void *scratch);
/* out[o][i] for rows q[i], i < n <= FX_BOUND_LANES; they lie in `scratch`. */
void fx_bound_run(const fx_bound_code *code, const fx_interp_inputs *inputs, int32_t h, int n,
                  const int32_t *q, void *scratch, const int64_t **out);

#ifdef __cplusplus
}
#endif
#endif
