/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/points.h"

#include <stdlib.h>
#include <string.h>

#include "attention/lang/semantics.h"
#include "dynamo_rt/base/memory.h"

#define FX_POINTS_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))

typedef struct instr {
  uint8_t op, type, arg_type; /* fx_ex_op; of the result; of the first argument (of a branch for SELECT) */
  int32_t arg[3];             /* registers */
  int32_t index;
  fx_ex_value value;
  int32_t dim[3], ndim; /* LOAD */
} instr;

struct fx_points {
  int32_t count, num_roots;
  instr *code;
  int32_t *root; /* registers */
};

typedef fx_ex_value lanes[FX_POINTS_LANES];

static void translate(const fx_ex_pool *pool, fx_ex node, const int32_t *reg, instr *to) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  *to = (instr){.op = n->op, .type = n->type, .index = n->index, .value = n->value};
  for (int k = 0; k < n->num_args; k++) to->arg[k] = reg[n->arg[k]];
  for (int k = n->num_args; k < 3; k++) to->arg[k] = to->arg[0];
  to->arg_type = n->num_args ? fx_ex_get(pool, n->arg[n->op == FX_EX_SELECT])->type : n->type;
  if (n->op != FX_EX_LOAD) return;
  const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, n->index);
  to->ndim = buffer->ndim;
  memcpy(to->dim, buffer->dim, sizeof to->dim);
}

fx_status fx_points_create(const fx_ex_pool *pool, const fx_ex *roots, int num_roots, fx_points **points) {
  fx_ex last = 0;
  for (int i = 0; i < num_roots; i++) last = roots[i] > last ? roots[i] : last;
  bool *needed = fx_ex_reachable(pool, roots, num_roots);
  int32_t *reg = NULL;
  fx_points *made = NULL;
  fx_status status = needed ? FX_OK : FX_ERR_MEMORY;
  if (status == FX_OK) status = fx_calloc(&reg, (size_t)last + 1, sizeof *reg);
  if (status == FX_OK) status = fx_calloc(&made, 1, sizeof *made);
  if (status == FX_OK) status = fx_calloc(&made->code, (size_t)last + 1, sizeof *made->code);
  if (status == FX_OK) status = fx_calloc(&made->root, (size_t)num_roots + 1, sizeof *made->root);
  if (status == FX_OK) {
    for (fx_ex i = 0; num_roots > 0 && i <= last; i++) {
      if (!needed[i]) continue;
      reg[i] = made->count;
      translate(pool, i, reg, &made->code[made->count++]);
    }
    for (int i = 0; i < num_roots; i++) made->root[i] = reg[roots[i]];
    made->num_roots = num_roots;
    *points = made;
  } else {
    fx_points_destroy(made);
  }
  free(reg);
  free(needed);
  return status;
}

void fx_points_destroy(fx_points *points) {
  if (!points) return;
  free(points->code);
  free(points->root);
  free(points);
}

size_t fx_points_scratch(const fx_points *points) {
  return (size_t)points->count * sizeof(lanes);
}

static inline __attribute__((always_inline)) void load(const instr *in, const void *data, const lanes *reg,
                                                       int n, fx_ex_value *to) {
  const fx_ex_value *values = data;
  const fx_ex_value *first = reg[in->arg[0]], *second = reg[in->arg[1]], *third = reg[in->arg[2]];
  int64_t inner = in->ndim > 1 ? in->dim[in->ndim - 1] : 1;
  for (int i = 0; i < n; i++) {
    int32_t x = first[i].i < 0 ? 0 : first[i].i < in->dim[0] ? first[i].i : in->dim[0] - 1;
    int64_t at = x;
    if (in->ndim > 1) {
      int32_t y = second[i].i < 0 ? 0 : second[i].i < in->dim[1] ? second[i].i : in->dim[1] - 1;
      at = in->ndim == 2 ? at * inner + y : (at * in->dim[1] + y) * inner;
    }
    if (in->ndim > 2) at += third[i].i < 0 ? 0 : third[i].i < in->dim[2] ? third[i].i : in->dim[2] - 1;
    to[i] = values[at];
  }
}

#define EACH_INT(expression)        \
  for (int i = 0; i < n; i++) {     \
    int32_t a = x[i].i, b = y[i].i; \
    (void)a, (void)b;               \
    to[i].i = (expression);         \
  }                                 \
  break
#define EACH_FLOAT(field, expression) \
  for (int i = 0; i < n; i++) {       \
    float a = x[i].f, b = y[i].f;     \
    (void)a, (void)b;                 \
    to[i].field = (expression);       \
  }                                   \
  break

static inline __attribute__((always_inline)) void run_int(fx_ex_op op, int n, const fx_ex_value *x,
                                                          const fx_ex_value *y, fx_ex_value *to) {
  switch (op) {
  case FX_EX_NEG:
    EACH_INT(fx_sem_neg(a));
  case FX_EX_ABS:
    EACH_INT(fx_sem_absi(a));
  case FX_EX_ADD:
    EACH_INT(fx_sem_add(a, b));
  case FX_EX_SUB:
    EACH_INT(fx_sem_sub(a, b));
  case FX_EX_MUL:
    EACH_INT(fx_sem_mul(a, b));
  case FX_EX_DIV:
    EACH_INT(fx_sem_div(a, b));
  case FX_EX_MOD:
    EACH_INT(fx_sem_mod(a, b));
  case FX_EX_MIN:
    EACH_INT(a < b ? a : b);
  case FX_EX_MAX:
    EACH_INT(a < b ? b : a);
  case FX_EX_BIT_NOT:
    EACH_INT(~a);
  case FX_EX_BIT_AND:
  case FX_EX_AND:
    EACH_INT(a & b);
  case FX_EX_BIT_OR:
  case FX_EX_OR:
    EACH_INT(a | b);
  case FX_EX_BIT_XOR:
    EACH_INT(a ^ b);
  case FX_EX_SHL:
    EACH_INT(fx_sem_shl(a, b));
  case FX_EX_SHR:
    EACH_INT(fx_sem_shr(a, b));
  case FX_EX_NOT:
    EACH_INT(!a);
  case FX_EX_LT:
    EACH_INT(a < b);
  case FX_EX_LE:
    EACH_INT(a <= b);
  case FX_EX_EQ:
    EACH_INT(a == b);
  case FX_EX_NE:
    EACH_INT(a != b);
  case FX_EX_TO_FLOAT:
    for (int i = 0; i < n; i++) to[i].f = (float)x[i].i;
    break;
  default:
    EACH_INT(a); /* TO_INT */
  }
}

static inline __attribute__((always_inline)) void run_float(fx_ex_op op, int n, const fx_ex_value *x,
                                                            const fx_ex_value *y, fx_ex_value *to) {
  switch (op) {
  case FX_EX_NEG:
    EACH_FLOAT(f, -a);
  case FX_EX_ABS:
    EACH_FLOAT(f, fx_sem_absf(a));
  case FX_EX_ADD:
    EACH_FLOAT(f, a + b);
  case FX_EX_SUB:
    EACH_FLOAT(f, a - b);
  case FX_EX_MUL:
    EACH_FLOAT(f, a * b);
  case FX_EX_DIV:
    EACH_FLOAT(f, a / b);
  case FX_EX_MIN:
    EACH_FLOAT(f, fx_sem_minf(a, b));
  case FX_EX_MAX:
    EACH_FLOAT(f, fx_sem_maxf(a, b));
  case FX_EX_LT:
    EACH_FLOAT(i, a < b);
  case FX_EX_LE:
    EACH_FLOAT(i, a <= b);
  case FX_EX_EQ:
    EACH_FLOAT(i, a == b);
  case FX_EX_NE:
    EACH_FLOAT(i, a != b);
  case FX_EX_EXP:
    EACH_FLOAT(f, fx_sem_exp(a));
  case FX_EX_LOG:
    EACH_FLOAT(f, fx_sem_log(a));
  case FX_EX_TANH:
    EACH_FLOAT(f, fx_sem_tanh(a));
  case FX_EX_SQRT:
    EACH_FLOAT(f, fx_sem_sqrt(a));
  case FX_EX_SIGMOID:
    EACH_FLOAT(f, fx_sem_sigmoid(a));
  case FX_EX_FLOOR:
    EACH_FLOAT(f, fx_sem_floor(a));
  case FX_EX_TO_INT:
    EACH_FLOAT(i, fx_sem_to_int(a));
  default:
    EACH_FLOAT(f, a); /* TO_FLOAT */
  }
}

FX_POINTS_CLONES static void run(const fx_points *points, const fx_sample *sample, int n, lanes *reg) {
  for (int32_t k = 0; k < points->count; k++) {
    const instr *in = &points->code[k];
    fx_ex_value *to = reg[k];
    const fx_ex_value *x = reg[in->arg[0]], *y = reg[in->arg[1]], *z = reg[in->arg[2]];
    switch ((fx_ex_op)in->op) {
    case FX_EX_VAR:
      break;
    case FX_EX_CONST:
      for (int i = 0; i < n; i++) to[i] = in->value;
      break;
    case FX_EX_PARAM:
      for (int i = 0; i < n; i++) to[i].f = sample->uniform[in->index];
      break;
    case FX_EX_LOAD:
      load(in, sample->buffer[in->index], (const lanes *)reg, n, to);
      break;
    case FX_EX_SELECT:
      for (int i = 0; i < n; i++) to[i].i = x[i].i ? y[i].i : z[i].i;
      break;
    default:
      if (in->arg_type == FX_EX_FLOAT)
        run_float((fx_ex_op)in->op, n, x, y, to);
      else
        run_int((fx_ex_op)in->op, n, x, y, to);
    }
  }
}

void fx_points_run(const fx_points *points, const fx_sample *sample, int32_t h, int n, const int32_t *q,
                   const int32_t *kv, void *scratch, const fx_ex_value **out) {
  lanes *reg = scratch;
  for (int32_t k = 0; k < points->count; k++)
    if (points->code[k].op == FX_EX_VAR)
      for (int i = 0; i < n; i++)
        reg[k][i].i = points->code[k].index == FX_EX_Q ? q[i] : points->code[k].index == FX_EX_KV ? kv[i] : h;
  run(points, sample, n, reg);
  for (int i = 0; i < points->num_roots; i++) out[i] = reg[points->root[i]];
}
