/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/bound.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/base/memory.h"

enum { LANES = FX_BOUND_LANES };
#define FX_BOUND_LIMIT ((int64_t)1 << 62)

void fx_bounds_init(fx_bounds *bounds, const fx_ex_pool *pool, const fx_interval_code *code) {
  bounds->pool = pool;
  bounds->code = code;
  bounds->count = 0;
}

static fx_bound intern(fx_bounds *bounds, fx_bound_term term) {
  if (term.lo == term.hi && term.op != FX_BOUND_CONST) return fx_bound_const(bounds, term.lo);
  for (fx_bound i = 0; i < bounds->count; i++) {
    const fx_bound_term *t = &bounds->term[i];
    if (t->op == term.op && t->value == term.value && memcmp(t->arg, term.arg, sizeof t->arg) == 0) return i;
  }
  if (bounds->count == FX_BOUND_MAX) return FX_BOUND_NONE;
  bounds->term[bounds->count] = term;
  return bounds->count++;
}

fx_bound fx_bound_const(fx_bounds *bounds, int64_t value) {
  return intern(
      bounds,
      (fx_bound_term){.op = FX_BOUND_CONST, .arg = {-1, -1, -1}, .value = value, .lo = value, .hi = value});
}

fx_bound fx_bound_row(fx_bounds *bounds, fx_ex node) {
  fx_interval range = fx_interval_domain(bounds->code, node);
  return intern(
      bounds,
      (fx_bound_term){
          .op = FX_BOUND_ROW, .arg = {-1, -1, -1}, .value = node, .lo = range.lo.i, .hi = range.hi.i});
}

static int64_t floor_div(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return quotient - (a % b < 0);
}

/* Range of the result; false: it could pass 2^62, or a divisor 0. */
static bool range_of(fx_bounds *bounds, fx_bound_term *made) {
  const fx_bound_term *a = &bounds->term[made->arg[0]], *b = &bounds->term[made->arg[1]];
  double corner[4];
  switch (made->op) {
  case FX_BOUND_ADD:
    made->lo = a->lo + b->lo, made->hi = a->hi + b->hi;
    break;
  case FX_BOUND_SUB:
    made->lo = a->lo - b->hi, made->hi = a->hi - b->lo;
    break;
  case FX_BOUND_MUL:
    corner[0] = (double)a->lo * (double)b->lo, corner[1] = (double)a->lo * (double)b->hi;
    corner[2] = (double)a->hi * (double)b->lo, corner[3] = (double)a->hi * (double)b->hi;
    for (int i = 0; i < 4; i++)
      if (corner[i] > 0x1p61 || corner[i] < -0x1p61) return false;
    made->lo = fx_min_i64(fx_min_i64(a->lo * b->lo, a->lo * b->hi), fx_min_i64(a->hi * b->lo, a->hi * b->hi));
    made->hi = fx_max_i64(fx_max_i64(a->lo * b->lo, a->lo * b->hi), fx_max_i64(a->hi * b->lo, a->hi * b->hi));
    break;
  case FX_BOUND_DIV:
    if (b->lo <= 0) return false;
    made->lo = fx_min_i64(floor_div(a->lo, b->lo), floor_div(a->lo, b->hi));
    made->hi = fx_max_i64(floor_div(a->hi, b->lo), floor_div(a->hi, b->hi));
    break;
  case FX_BOUND_MIN:
    made->lo = fx_min_i64(a->lo, b->lo), made->hi = fx_min_i64(a->hi, b->hi);
    break;
  case FX_BOUND_MAX_OF:
    made->lo = fx_max_i64(a->lo, b->lo), made->hi = fx_max_i64(a->hi, b->hi);
    break;
  case FX_BOUND_LESS:
    made->lo = a->hi < b->lo, made->hi = a->lo < b->hi;
    break;
  default: /* AND */
    made->lo = a->lo & b->lo, made->hi = a->hi & b->hi;
  }
  return made->lo > -FX_BOUND_LIMIT && made->hi < FX_BOUND_LIMIT;
}

static bool is_const(const fx_bounds *bounds, fx_bound a, int64_t value) {
  return bounds->term[a].op == FX_BOUND_CONST && bounds->term[a].value == value;
}

/* An argument or a simpler term, where the result is one; FX_BOUND_NONE where not. */
static fx_bound simpler(fx_bounds *bounds, fx_bound_op op, fx_bound a, fx_bound b) {
  const fx_bound_term *x = &bounds->term[a], *y = &bounds->term[b];
  switch (op) {
  case FX_BOUND_ADD:
    if (is_const(bounds, a, 0)) return b;
    if (is_const(bounds, b, 0)) return a;
    if (y->op == FX_BOUND_CONST && x->op == FX_BOUND_ADD && bounds->term[x->arg[1]].op == FX_BOUND_CONST)
      return fx_bound_plus(bounds, x->arg[0], y->value + bounds->term[x->arg[1]].value);
    return x->op == FX_BOUND_CONST ? fx_bound_make(bounds, op, b, a) : FX_BOUND_NONE;
  case FX_BOUND_SUB:
    if (a == b) return fx_bound_const(bounds, 0);
    return y->op == FX_BOUND_CONST ? fx_bound_plus(bounds, a, -y->value) : FX_BOUND_NONE;
  case FX_BOUND_MUL:
  case FX_BOUND_DIV:
    if (is_const(bounds, b, 1)) return a;
    return op == FX_BOUND_MUL && is_const(bounds, a, 1) ? b : FX_BOUND_NONE;
  case FX_BOUND_MIN:
    return a == b || x->hi <= y->lo ? a : y->hi <= x->lo ? b : FX_BOUND_NONE;
  case FX_BOUND_MAX_OF:
    return a == b || x->lo >= y->hi ? a : y->lo >= x->hi ? b : FX_BOUND_NONE;
  case FX_BOUND_LESS:
    return a == b ? fx_bound_const(bounds, 0) : FX_BOUND_NONE;
  default: /* AND */
    return a == b || is_const(bounds, b, 1) ? a : is_const(bounds, a, 1) ? b : FX_BOUND_NONE;
  }
}

fx_bound fx_bound_make(fx_bounds *bounds, fx_bound_op op, fx_bound a, fx_bound b) {
  if (a == FX_BOUND_NONE || b == FX_BOUND_NONE) return FX_BOUND_NONE;
  fx_bound_term made = {.op = op, .arg = {a, b, -1}};
  if (!range_of(bounds, &made)) return FX_BOUND_NONE;
  if (made.lo == made.hi) return fx_bound_const(bounds, made.lo);
  fx_bound known = simpler(bounds, op, a, b);
  if (known != FX_BOUND_NONE) return known;
  bool commutes = op == FX_BOUND_MIN || op == FX_BOUND_MAX_OF || op == FX_BOUND_MUL || op == FX_BOUND_AND ||
                  (op == FX_BOUND_ADD && bounds->term[b].op != FX_BOUND_CONST);
  if (commutes && a > b) made.arg[0] = b, made.arg[1] = a;
  return intern(bounds, made);
}

fx_bound fx_bound_select(fx_bounds *bounds, fx_bound condition, fx_bound a, fx_bound b) {
  if (condition == FX_BOUND_NONE || a == FX_BOUND_NONE || b == FX_BOUND_NONE) return FX_BOUND_NONE;
  if (a == b || is_const(bounds, condition, 1)) return a;
  if (is_const(bounds, condition, 0)) return b;
  const fx_bound_term *x = &bounds->term[a], *y = &bounds->term[b];
  return intern(bounds, (fx_bound_term){.op = FX_BOUND_SELECT,
                                        .arg = {condition, a, b},
                                        .lo = fx_min_i64(x->lo, y->lo),
                                        .hi = fx_max_i64(x->hi, y->hi)});
}

fx_bound fx_bound_base(const fx_bounds *bounds, fx_bound a, int64_t *offset) {
  const fx_bound_term *t = &bounds->term[a];
  bool sum = t->op == FX_BOUND_ADD && bounds->term[t->arg[1]].op == FX_BOUND_CONST;
  *offset = sum ? bounds->term[t->arg[1]].value : 0;
  return sum ? t->arg[0] : a;
}

/* x < y + k; where x is the later term, or y a constant, as not (y + k < x + 1). */
fx_bound fx_bound_less(fx_bounds *bounds, fx_bound a, fx_bound b) {
  if (a == FX_BOUND_NONE || b == FX_BOUND_NONE) return FX_BOUND_NONE;
  int64_t x_offset, y_offset;
  fx_bound x = fx_bound_base(bounds, a, &x_offset), y = fx_bound_base(bounds, b, &y_offset);
  const fx_bound_term *t = &bounds->term[x], *u = &bounds->term[y];
  int64_t k = y_offset - x_offset;
  if (t->op == FX_BOUND_CONST) { /* c < y */
    int64_t c = t->value - k;
    if (c == 0 && u->lo >= 0 && u->hi <= 1) return y;
    return fx_bound_make(bounds, FX_BOUND_LESS, fx_bound_const(bounds, c), y);
  }
  fx_bound one = fx_bound_const(bounds, 1);
  if (u->op == FX_BOUND_CONST) /* x < c: not (c - 1 < x) */
    return fx_bound_make(bounds, FX_BOUND_SUB, one,
                         fx_bound_less(bounds, fx_bound_const(bounds, u->value + k - 1), x));
  if (x <= y) return fx_bound_make(bounds, FX_BOUND_LESS, x, fx_bound_plus(bounds, y, k));
  return fx_bound_make(bounds, FX_BOUND_SUB, one,
                       fx_bound_make(bounds, FX_BOUND_LESS, y, fx_bound_plus(bounds, x, 1 - k)));
}

fx_bound fx_bound_first(fx_bounds *bounds, int32_t buffer, fx_bound a) {
  if (a == FX_BOUND_NONE) return a;
  const fx_ex_buffer *declared = fx_ex_buffer_at(bounds->pool, buffer);
  int64_t length = declared->dim[0];
  const fx_bound_term *x = &bounds->term[a];
  fx_bound_term made = {.op = FX_BOUND_FIRST, .arg = {a, -1, -1}, .value = buffer, .lo = 0, .hi = length};
  if (x->hi <= declared->lo) made.hi = 0;
  if (x->lo > declared->hi) made.lo = length;
  return intern(bounds, made);
}

fx_bound fx_bound_ceil_div(fx_bounds *bounds, fx_bound a, fx_bound b) {
  return fx_bound_make(bounds, FX_BOUND_DIV,
                       fx_bound_make(bounds, FX_BOUND_ADD, a, fx_bound_plus(bounds, b, -1)), b);
}

/* ---- evaluation ---- */

typedef struct instr {
  fx_bound_op op;
  int32_t arg[3]; /* columns */
  int32_t index;  /* ROW: number among the roots of rows; FIRST: the buffer */
  int32_t finger; /* FIRST: number of its search */
  int64_t value;  /* CONST; FIRST: length of the buffer */
} instr;

enum { MAX_INTERPS = FX_BOUND_MAX / FX_INTERP_MAX_OUTPUTS };

struct fx_bound_code {
  int32_t count, num_outputs, num_fingers;
  instr *code;
  int32_t *output;
  fx_interp *interp[MAX_INTERPS]; /* of the rows' nodes, up to 16 each */
  int32_t num_rows;
};

static fx_status make_rows(const fx_bounds *bounds, const bool *needed, fx_bound_code *made) {
  fx_ex nodes[FX_BOUND_MAX];
  for (fx_bound i = 0; i < bounds->count; i++)
    if (needed[i] && bounds->term[i].op == FX_BOUND_ROW)
      nodes[made->num_rows++] = (fx_ex)bounds->term[i].value;
  for (int32_t i = 0; i < made->num_rows; i += FX_INTERP_MAX_OUTPUTS)
    FX_TRY(fx_interp_create(bounds->pool, nodes + i,
                            (int)fx_min_i64(FX_INTERP_MAX_OUTPUTS, made->num_rows - i),
                            &made->interp[i / FX_INTERP_MAX_OUTPUTS]));
  return FX_OK;
}

fx_status fx_bound_code_create(const fx_bounds *bounds, const fx_bound *outputs, int num_outputs,
                               fx_bound_code **code) {
  bool needed[FX_BOUND_MAX] = {false};
  int32_t column[FX_BOUND_MAX];
  for (int i = 0; i < num_outputs; i++) needed[outputs[i]] = true;
  for (fx_bound i = bounds->count - 1; i >= 0; i--)
    for (int k = 0; needed[i] && k < 3; k++)
      if (bounds->term[i].arg[k] >= 0) needed[bounds->term[i].arg[k]] = true;
  fx_bound_code *made = NULL;
  fx_status status = fx_calloc(&made, 1, sizeof *made);
  if (status == FX_OK) status = fx_calloc(&made->code, (size_t)bounds->count + 1, sizeof *made->code);
  if (status == FX_OK) status = fx_calloc(&made->output, (size_t)num_outputs + 1, sizeof *made->output);
  if (status == FX_OK) status = make_rows(bounds, needed, made);
  if (status != FX_OK) {
    fx_bound_code_destroy(made);
    return status;
  }
  int32_t rows = 0;
  for (fx_bound i = 0; i < bounds->count; i++) {
    const fx_bound_term *t = &bounds->term[i];
    if (!needed[i]) continue;
    instr *to = &made->code[made->count];
    *to = (instr){.op = t->op, .value = t->value};
    for (int k = 0; k < 3; k++) to->arg[k] = t->arg[k] >= 0 ? column[t->arg[k]] : 0;
    if (t->op == FX_BOUND_ROW) to->index = rows++;
    if (t->op == FX_BOUND_FIRST) {
      to->index = (int32_t)t->value;
      to->value = fx_ex_buffer_at(bounds->pool, to->index)->dim[0];
      to->finger = made->num_fingers++;
    }
    column[i] = made->count++;
  }
  for (int i = 0; i < num_outputs; i++) made->output[i] = column[outputs[i]];
  made->num_outputs = num_outputs;
  *code = made;
  return FX_OK;
}

void fx_bound_code_destroy(fx_bound_code *code) {
  if (!code) return;
  free(code->code);
  free(code->output);
  for (int i = 0; i < MAX_INTERPS; i++) fx_interp_destroy(code->interp[i]);
  free(code);
}

typedef int64_t column[LANES];

static size_t fingers_bytes(const fx_bound_code *code) {
  return fx_align_up((size_t)code->num_fingers * sizeof(int64_t), FX_ALIGN);
}

typedef int32_t row[LANES];

size_t fx_bound_scratch(const fx_bound_code *code) {
  return fingers_bytes(code) + (size_t)code->count * sizeof(column) + (size_t)code->num_rows * sizeof(row);
}

void fx_bound_begin(const fx_bound_code *code, void *scratch) {
  memset(scratch, 0, fingers_bytes(code));
}

/* The first index with x[index] >= key: doubling steps from `at`, then halving. Rows come in order, so the
 * next row's answer is mostly where the last one's was. */
static int64_t search(const int32_t *x, int64_t length, int64_t key, int64_t at) {
  int64_t below = at - 1, above = at, step = 1; /* x[below] < key <= x[above], once found */
  if (at < length && x[at] < key) {
    do {
      below = above;
      above = fx_min_i64(above + step, length);
      step *= 2;
    } while (above < length && x[above] < key);
  } else {
    while (below >= 0 && x[below] >= key) {
      above = below;
      below = fx_max_i64(below - step, -1);
      step *= 2;
    }
  }
  while (above - below > 1) {
    int64_t middle = below + (above - below) / 2;
    if (x[middle] < key)
      below = middle;
    else
      above = middle;
  }
  return above;
}

static void run_first(const instr *in, const int32_t *x, int n, const int64_t *key, int64_t *finger,
                      int64_t *to) {
  int64_t at = *finger;
  for (int i = 0; i < n; i++) {
    if (i == 0 || key[i] != key[i - 1]) at = search(x, in->value, key[i], at);
    to[i] = at;
  }
  *finger = at;
}

FX_ISA_CLONES static void run_columns(const fx_bound_code *code, const fx_interp_inputs *inputs, int n,
                                      const row *rows, int64_t *fingers, column *col) {
  for (int32_t c = 0; c < code->count; c++) {
    const instr *in = &code->code[c];
    int64_t *to = col[c];
    const int64_t *a = col[in->arg[0]], *b = col[in->arg[1]], *d = col[in->arg[2]];
    switch (in->op) {
    case FX_BOUND_CONST:
      for (int i = 0; i < n; i++) to[i] = in->value;
      break;
    case FX_BOUND_ROW:
      for (int i = 0; i < n; i++) to[i] = rows[in->index][i];
      break;
    case FX_BOUND_ADD:
      for (int i = 0; i < n; i++) to[i] = a[i] + b[i];
      break;
    case FX_BOUND_SUB:
      for (int i = 0; i < n; i++) to[i] = a[i] - b[i];
      break;
    case FX_BOUND_MUL:
      for (int i = 0; i < n; i++) to[i] = a[i] * b[i];
      break;
    case FX_BOUND_DIV:
      for (int i = 0; i < n; i++) to[i] = floor_div(a[i], b[i]);
      break;
    case FX_BOUND_MIN:
      for (int i = 0; i < n; i++) to[i] = a[i] < b[i] ? a[i] : b[i];
      break;
    case FX_BOUND_MAX_OF:
      for (int i = 0; i < n; i++) to[i] = a[i] > b[i] ? a[i] : b[i];
      break;
    case FX_BOUND_LESS:
      for (int i = 0; i < n; i++) to[i] = a[i] < b[i];
      break;
    case FX_BOUND_AND:
      for (int i = 0; i < n; i++) to[i] = a[i] & b[i];
      break;
    case FX_BOUND_SELECT:
      for (int i = 0; i < n; i++) to[i] = a[i] ? b[i] : d[i];
      break;
    default:
      run_first(in, inputs->buffer[in->index], n, a, &fingers[in->finger], to);
    }
  }
}

void fx_bound_run(const fx_bound_code *code, const fx_interp_inputs *inputs, int32_t h, int n,
                  const int32_t *q, void *scratch, const int64_t **out) {
  int64_t *fingers = scratch;
  column *col = (column *)(void *)((char *)scratch + fingers_bytes(code));
  row *rows = (row *)(void *)(col + code->count);
  for (int32_t i = 0; i < code->num_rows; i += FX_INTERP_MAX_OUTPUTS) {
    void *output[FX_INTERP_MAX_OUTPUTS];
    for (int32_t k = 0; k < FX_INTERP_MAX_OUTPUTS && i + k < code->num_rows; k++) output[k] = rows[i + k];
    fx_interp_run(code->interp[i / FX_INTERP_MAX_OUTPUTS], inputs, h, n, q, NULL, NULL, output);
  }
  run_columns(code, inputs, n, (const row *)rows, fingers, col);
  for (int i = 0; i < code->num_outputs; i++) out[i] = col[code->output[i]];
}
