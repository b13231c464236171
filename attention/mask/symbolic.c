/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/symbolic.h"

#include "dynamo_rt/base/memory.h"

enum { UNBOUNDED = -2, MAX_LIST = 16, MAX_GUARD = 6, MAX_QUOTIENTS = 4, MAX_DEPTH = 100, MAX_STEPS = 4096 };

/* A condition on the row, or its opposite. */
typedef struct literal {
  fx_bound condition;
  bool negated;
} literal;

/* [lo, hi) where all guards hold; UNBOUNDED ends reach the end of the keys. */
typedef struct interval {
  fx_bound lo, hi;
  int guards;
  literal guard[MAX_GUARD];
} interval;

typedef struct list {
  int count;
  bool failed;
  interval v[MAX_LIST];
} list;

typedef struct solver {
  fx_bounds *bounds;
  const fx_ex_pool *pool;
  int64_t T_kv;
  int steps, depth;
} solver;

static const list g_failed = {.failed = true};
static const list g_nothing = {0};
static const list g_everything = {.count = 1, .v = {{.lo = UNBOUNDED, .hi = UNBOUNDED}}};

/* ---- intervals ---- */

static const fx_bound_term *term(const solver *s, fx_bound a) {
  return &s->bounds->term[a];
}

static fx_bound constant(const solver *s, int64_t value) {
  return fx_bound_const(s->bounds, value);
}

/* a = base + offset */
static fx_bound base_of(const solver *s, fx_bound a, int64_t *offset) {
  const fx_bound_term *t = term(s, a);
  *offset = 0;
  if (t->op != FX_BOUND_ADD || term(s, t->arg[1])->op != FX_BOUND_CONST) return a;
  *offset = term(s, t->arg[1])->value;
  return t->arg[0];
}

/* Whether lo >= hi in every row: some part of lo's maximum is never below some part of hi's minimum. */
static bool never_below(const solver *s, fx_bound lo, fx_bound hi) {
  const fx_bound_term *l = term(s, lo), *h = term(s, hi);
  if (l->lo >= h->hi) return true;
  if (l->op == FX_BOUND_MAX_OF) return never_below(s, l->arg[0], hi) || never_below(s, l->arg[1], hi);
  if (h->op == FX_BOUND_MIN) return never_below(s, lo, h->arg[0]) || never_below(s, lo, h->arg[1]);
  int64_t lo_offset, hi_offset;
  return base_of(s, lo, &lo_offset) == base_of(s, hi, &hi_offset) && lo_offset >= hi_offset;
}

/* Ends that cut nothing become UNBOUNDED; false: the interval is empty in every row. */
static bool tidy(const solver *s, interval *x) {
  if (x->lo != UNBOUNDED && term(s, x->lo)->hi <= 0) x->lo = UNBOUNDED;
  if (x->hi != UNBOUNDED && term(s, x->hi)->lo >= s->T_kv) x->hi = UNBOUNDED;
  if (x->lo != UNBOUNDED && term(s, x->lo)->lo >= s->T_kv) return false;
  if (x->hi != UNBOUNDED && term(s, x->hi)->hi <= 0) return false;
  return x->lo == UNBOUNDED || x->hi == UNBOUNDED || !never_below(s, x->lo, x->hi);
}

/* 1: added; 0: never holds together with what is there; -1: no room. */
static int add_guard(const solver *s, interval *x, literal guard) {
  const fx_bound_term *t = term(s, guard.condition);
  while (t->op == FX_BOUND_SUB) { /* 1 - x: the opposite of x */
    guard = (literal){t->arg[1], !guard.negated};
    t = term(s, guard.condition);
  }
  if (t->lo == t->hi) return (t->lo != 0) != guard.negated;
  for (int i = 0; i < x->guards; i++)
    if (x->guard[i].condition == guard.condition) return x->guard[i].negated == guard.negated;
  if (x->guards == MAX_GUARD) return -1;
  int at = x->guards++;
  for (; at > 0 && x->guard[at - 1].condition > guard.condition; at--) x->guard[at] = x->guard[at - 1];
  x->guard[at] = guard;
  return 1;
}

static bool same_guards(const interval *a, const interval *b) {
  bool same = a->guards == b->guards;
  for (int i = 0; same && i < a->guards; i++)
    same = a->guard[i].condition == b->guard[i].condition && a->guard[i].negated == b->guard[i].negated;
  return same;
}

static void append(const solver *s, list *to, const interval *x) {
  interval tidied = *x;
  if (to->failed || !tidy(s, &tidied)) return;
  for (int i = 0; i < to->count; i++)
    if (to->v[i].lo == tidied.lo && to->v[i].hi == tidied.hi && same_guards(&to->v[i], &tidied)) return;
  if (to->count == MAX_LIST)
    to->failed = true;
  else
    to->v[to->count++] = tidied;
}

static list either(const solver *s, const list *a, const list *b) {
  if (a->failed || b->failed) return g_failed;
  list result = *a;
  for (int i = 0; i < b->count; i++) append(s, &result, &b->v[i]);
  return result;
}

static fx_bound greater(const solver *s, fx_bound a, fx_bound b) {
  return a == UNBOUNDED ? b : b == UNBOUNDED ? a : fx_bound_make(s->bounds, FX_BOUND_MAX_OF, a, b);
}
static fx_bound lesser(const solver *s, fx_bound a, fx_bound b) {
  return a == UNBOUNDED ? b : b == UNBOUNDED ? a : fx_bound_make(s->bounds, FX_BOUND_MIN, a, b);
}

static list both(const solver *s, const list *a, const list *b) {
  if (a->failed || b->failed) return g_failed;
  list result = g_nothing;
  for (int i = 0; i < a->count; i++)
    for (int j = 0; j < b->count; j++) {
      interval x = a->v[i];
      x.lo = greater(s, a->v[i].lo, b->v[j].lo);
      x.hi = lesser(s, a->v[i].hi, b->v[j].hi);
      int held = x.lo == FX_BOUND_NONE || x.hi == FX_BOUND_NONE ? -1 : 1;
      for (int k = 0; k < b->v[j].guards && held > 0; k++) held = add_guard(s, &x, b->v[j].guard[k]);
      if (held < 0) return g_failed;
      if (held > 0) append(s, &result, &x);
    }
  return result;
}

static list guarded(const solver *s, fx_bound condition, bool negated) {
  if (condition == FX_BOUND_NONE) return g_failed;
  list result = g_nothing;
  interval x = g_everything.v[0];
  if (add_guard(s, &x, (literal){condition, negated}) > 0) append(s, &result, &x);
  return result;
}

static list between(const solver *s, fx_bound lo, fx_bound hi) {
  if (lo == FX_BOUND_NONE || hi == FX_BOUND_NONE) return g_failed;
  list result = g_nothing;
  append(s, &result, &(interval){.lo = lo, .hi = hi});
  return result;
}

/* ---- solving lo <= f(kv) < hi ---- */

static list solve(solver *s, fx_ex f, fx_bound lo, fx_bound hi);
static list truth(solver *s, fx_ex node, bool negate);

static fx_interval domain(const solver *s, fx_ex node) {
  return fx_interval_domain(s->bounds->code, node);
}
static bool on_keys(const solver *s, fx_ex node) {
  return fx_ex_depends(s->pool, node, FX_EX_KV);
}

/* An end through an operation on it; UNBOUNDED stays. */
static fx_bound end_by(const solver *s, fx_bound_op op, fx_bound end, fx_bound other) {
  return end == UNBOUNDED ? end : fx_bound_make(s->bounds, op, end, other);
}
static fx_bound end_up(const solver *s, fx_bound end, fx_bound by) { /* ceil(end / by) */
  return end == UNBOUNDED ? end : fx_bound_ceil_div(s->bounds, end, by);
}
/* [lo, hi) of -f as an interval of f: [1 - hi, 1 - lo) */
static void negate_ends(const solver *s, fx_bound *lo, fx_bound *hi) {
  fx_bound one = constant(s, 1), low = *lo;
  *lo = *hi == UNBOUNDED ? UNBOUNDED : fx_bound_make(s->bounds, FX_BOUND_SUB, one, *hi);
  *hi = low == UNBOUNDED ? UNBOUNDED : fx_bound_make(s->bounds, FX_BOUND_SUB, one, low);
}
/* Ends beyond f's own range say nothing more: keeps later products small. */
static fx_bound clamp_end(const solver *s, fx_ex f, fx_bound end) {
  if (end == UNBOUNDED || end == FX_BOUND_NONE) return end;
  fx_interval range = domain(s, f);
  end = fx_bound_make(s->bounds, FX_BOUND_MAX_OF, end, constant(s, range.lo.i));
  return fx_bound_make(s->bounds, FX_BOUND_MIN, end, constant(s, range.hi.i + 1));
}

/* Whether the int64 result of + - * on the operands' ranges stays within int32. */
static bool stays(const solver *s, fx_ex_op op, fx_ex a, fx_ex b) {
  fx_interval x = domain(s, a), y = domain(s, b);
  int64_t lo, hi;
  if (op == FX_EX_ADD) {
    lo = x.lo.i + y.lo.i, hi = x.hi.i + y.hi.i;
  } else if (op == FX_EX_SUB) {
    lo = x.lo.i - y.hi.i, hi = x.hi.i - y.lo.i;
  } else {
    int64_t p = x.lo.i * y.lo.i, q = x.lo.i * y.hi.i, r = x.hi.i * y.lo.i, t = x.hi.i * y.hi.i;
    lo = fx_min_i64(fx_min_i64(p, q), fx_min_i64(r, t)), hi = fx_max_i64(fx_max_i64(p, q), fx_max_i64(r, t));
  }
  return lo >= INT32_MIN && hi <= INT32_MAX;
}

static list solve_sum(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  fx_ex a = n->arg[0], b = n->arg[1];
  if (n->op == FX_EX_SUB && on_keys(s, a) && on_keys(s, b)) { /* a - a % c, a multiple of c */
    const fx_ex_node *rest = fx_ex_get(s->pool, b);
    int32_t c;
    if (rest->op != FX_EX_MOD || rest->arg[0] != a || !fx_ex_is_int(s->pool, rest->arg[1], &c) || c < 1)
      return g_failed;
    if (domain(s, a).lo.i < 0) return g_failed; /* below 0 it could wrap */
    fx_bound size = constant(s, c), first = end_up(s, lo, size), last = end_up(s, hi, size);
    return solve(s, a, end_by(s, FX_BOUND_MUL, first, size), end_by(s, FX_BOUND_MUL, last, size));
  }
  if ((on_keys(s, a) && on_keys(s, b)) || !stays(s, (fx_ex_op)n->op, a, b)) return g_failed;
  if (on_keys(s, a)) {
    fx_bound other = fx_bound_row(s->bounds, b);
    fx_bound_op back = n->op == FX_EX_ADD ? FX_BOUND_SUB : FX_BOUND_ADD;
    return solve(s, a, end_by(s, back, lo, other), end_by(s, back, hi, other));
  }
  if (n->op == FX_EX_SUB) negate_ends(s, &lo, &hi); /* b - a */
  fx_bound other = fx_bound_row(s->bounds, a);
  fx_bound_op back = n->op == FX_EX_ADD ? FX_BOUND_SUB : FX_BOUND_ADD;
  return solve(s, b, end_by(s, back, lo, other), end_by(s, back, hi, other));
}

/* f * c for the constant c. */
static list solve_product(solver *s, fx_ex f, int64_t c, fx_bound lo, fx_bound hi) {
  if (c < 0) negate_ends(s, &lo, &hi);
  fx_bound size = constant(s, c < 0 ? -c : c);
  if (c == 0) return g_failed;
  return solve(s, f, end_up(s, lo, size), end_up(s, hi, size));
}

/* floor(f / size), size a term above 0; `whole` is the quotient's node. */
static list solve_quotient(solver *s, fx_ex whole, fx_ex f, fx_bound size, fx_bound lo, fx_bound hi) {
  lo = clamp_end(s, whole, lo), hi = clamp_end(s, whole, hi);
  return solve(s, f, end_by(s, FX_BOUND_MUL, lo, size), end_by(s, FX_BOUND_MUL, hi, size));
}

static list solve_division(solver *s, fx_ex node, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  fx_ex a = n->arg[0], b = n->arg[1];
  int32_t c;
  if (on_keys(s, b)) return g_failed;
  if (!fx_ex_is_int(s->pool, b, &c) || c > 0)
    return domain(s, b).lo.i < 1 ? g_failed : solve_quotient(s, node, a, fx_bound_row(s->bounds, b), lo, hi);
  if (c == 0 || domain(s, a).lo.i == INT32_MIN) return g_failed;
  lo = clamp_end(s, node, lo), hi = clamp_end(s, node, hi); /* floor(a / c) = floor(-a / -c) */
  fx_bound size = constant(s, -(int64_t)c);
  lo = end_by(s, FX_BOUND_MUL, lo, size), hi = end_by(s, FX_BOUND_MUL, hi, size);
  negate_ends(s, &lo, &hi);
  return solve(s, a, lo, hi);
}

/* a % c over few quotients k: a lies in [k c + lo, k c + hi), cut to [k c, k c + c). */
static list solve_rest(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  int32_t c;
  if (!fx_ex_is_int(s->pool, n->arg[1], &c) || c < 1) return g_failed;
  fx_interval range = domain(s, n->arg[0]);
  if (range.lo.i < 0 || range.hi.i / c - range.lo.i / c >= MAX_QUOTIENTS) return g_failed;
  fx_bound low = greater(s, lo, constant(s, 0)), high = lesser(s, hi, constant(s, c));
  list result = g_nothing;
  for (int64_t k = range.lo.i / c; k <= range.hi.i / c; k++) {
    list part =
        solve(s, n->arg[0], fx_bound_plus(s->bounds, low, k * c), fx_bound_plus(s->bounds, high, k * c));
    result = either(s, &result, &part);
  }
  return result;
}

static list solve_bits(solver *s, fx_ex node, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  int32_t c;
  fx_ex a = n->arg[0];
  if (n->op == FX_EX_BIT_AND) { /* with high ones: a multiple of -c */
    if (!fx_ex_is_int(s->pool, n->arg[1], &c)) {
      a = n->arg[1];
      if (!fx_ex_is_int(s->pool, n->arg[0], &c)) return g_failed;
    }
    int64_t size = -(int64_t)c;
    if (size < 1 || (size & (size - 1)) != 0) return g_failed;
    fx_bound by = constant(s, size), first = end_up(s, clamp_end(s, node, lo), by),
             last = end_up(s, clamp_end(s, node, hi), by);
    return solve(s, a, end_by(s, FX_BOUND_MUL, first, by), end_by(s, FX_BOUND_MUL, last, by));
  }
  if (!fx_ex_is_int(s->pool, n->arg[1], &c)) return g_failed;
  int64_t size = (int64_t)1 << (c & 31);
  if (n->op == FX_EX_SHR) return solve_quotient(s, node, a, constant(s, size), lo, hi);
  fx_interval range = domain(s, a);
  if (range.lo.i * size < INT32_MIN || range.hi.i * size > INT32_MAX) return g_failed;
  return solve_product(s, a, size, lo, hi);
}

/* min(a, b) >= lo: both are; min(a, b) < hi: either is. max the other way round. */
static list solve_extreme(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  list result = g_everything;
  for (int upper = 0; upper < 2; upper++) {
    if ((upper ? hi : lo) == UNBOUNDED) continue;
    list a = solve(s, n->arg[0], upper ? UNBOUNDED : lo, upper ? hi : UNBOUNDED),
         b = solve(s, n->arg[1], upper ? UNBOUNDED : lo, upper ? hi : UNBOUNDED);
    list half = (n->op == FX_EX_MIN) == (upper == 0) ? both(s, &a, &b) : either(s, &a, &b);
    result = both(s, &result, &half);
  }
  return result;
}

static list solve_abs(solver *s, fx_ex a, fx_bound lo, fx_bound hi) {
  list result = g_everything;
  if (domain(s, a).lo.i == INT32_MIN) return g_failed;
  if (hi != UNBOUNDED) {
    result = solve(s, a, fx_bound_make(s->bounds, FX_BOUND_SUB, constant(s, 1), hi), hi);
  }
  if (lo != UNBOUNDED && term(s, lo)->hi > 0) {
    list below = solve(s, a, UNBOUNDED, fx_bound_make(s->bounds, FX_BOUND_SUB, constant(s, 1), lo)),
         above = solve(s, a, lo, UNBOUNDED), outside = either(s, &below, &above);
    result = both(s, &result, &outside);
  }
  return result;
}

/* c ? a : b with lists that the caller made of the branches. */
static list solve_select(solver *s, fx_ex condition, const list *a, const list *b) {
  list yes = truth(s, condition, false), no = truth(s, condition, true);
  list first = both(s, &yes, a), second = both(s, &no, b);
  return either(s, &first, &second);
}

/* FIRST(key) of a monotone buffer; segments know some answers. */
static fx_bound first_of(const solver *s, int32_t number, fx_bound key) {
  if (key == UNBOUNDED || key == FX_BOUND_NONE) return key;
  const fx_ex_buffer *buffer = fx_ex_buffer_at(s->pool, number);
  int64_t offset;
  fx_bound base = base_of(s, key, &offset);
  const fx_bound_term *t = term(s, base);
  if (t->op == FX_BOUND_ROW) {
    const fx_ex_node *row = fx_ex_get(s->pool, (fx_ex)t->value);
    bool own = row->op == FX_EX_LOAD && row->index == number;
    if (own && buffer->segment && offset == 0) return base;     /* x[q] is where its segment starts */
    if (own && buffer->segment_end && offset == 1) return base; /* and where the next one does */
  }
  return fx_bound_first(s->bounds, number, key);
}

static list solve_load(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  const fx_ex_buffer *buffer = fx_ex_buffer_at(s->pool, n->index);
  fx_interval index = domain(s, n->arg[0]);
  if (!buffer->monotone || index.lo.i < 0 || index.hi.i >= buffer->dim[0]) return g_failed;
  return solve(s, n->arg[0], first_of(s, n->index, lo), first_of(s, n->index, hi));
}

/* The rows whose `value` lies in [lo, hi). */
static list inside(const solver *s, fx_bound value, fx_bound lo, fx_bound hi) {
  list result = g_everything;
  if (lo != UNBOUNDED) {
    list low = guarded(s, fx_bound_less(s->bounds, value, lo), true);
    result = both(s, &result, &low);
  }
  if (hi != UNBOUNDED) {
    list high = guarded(s, fx_bound_less(s->bounds, value, hi), false);
    result = both(s, &result, &high);
  }
  return result;
}

static list solve_operation(solver *s, fx_ex f, fx_bound lo, fx_bound hi) {
  fx_ex_node n = *fx_ex_get(s->pool, f);
  int32_t c;
  list a, b;
  switch ((fx_ex_op)n.op) {
  case FX_EX_VAR:
    return between(s, lo, hi);
  case FX_EX_NEG:
    if (domain(s, n.arg[0]).lo.i == INT32_MIN) return g_failed;
    negate_ends(s, &lo, &hi);
    return solve(s, n.arg[0], lo, hi);
  case FX_EX_ADD:
  case FX_EX_SUB:
    return solve_sum(s, &n, lo, hi);
  case FX_EX_MUL:
    if (!stays(s, FX_EX_MUL, n.arg[0], n.arg[1])) return g_failed;
    if (fx_ex_is_int(s->pool, n.arg[0], &c)) return solve_product(s, n.arg[1], c, lo, hi);
    return fx_ex_is_int(s->pool, n.arg[1], &c) ? solve_product(s, n.arg[0], c, lo, hi) : g_failed;
  case FX_EX_DIV:
    return solve_division(s, f, &n, lo, hi);
  case FX_EX_MOD:
    return solve_rest(s, &n, lo, hi);
  case FX_EX_BIT_AND:
  case FX_EX_SHL:
  case FX_EX_SHR:
    return solve_bits(s, f, &n, lo, hi);
  case FX_EX_MIN:
  case FX_EX_MAX:
    return solve_extreme(s, &n, lo, hi);
  case FX_EX_ABS:
    return solve_abs(s, n.arg[0], lo, hi);
  case FX_EX_SELECT:
    a = solve(s, n.arg[1], lo, hi), b = solve(s, n.arg[2], lo, hi);
    return solve_select(s, n.arg[0], &a, &b);
  case FX_EX_TO_INT: /* of a condition: 1 where it holds, else 0 */
    if (fx_ex_get(s->pool, n.arg[0])->type != FX_EX_BOOL) return g_failed;
    a = inside(s, constant(s, 1), lo, hi), b = inside(s, constant(s, 0), lo, hi);
    return solve_select(s, n.arg[0], &a, &b);
  case FX_EX_LOAD:
    return solve_load(s, &n, lo, hi);
  default:
    return g_failed;
  }
}

static list solve(solver *s, fx_ex f, fx_bound lo, fx_bound hi) {
  if (lo == FX_BOUND_NONE || hi == FX_BOUND_NONE || s->depth >= MAX_DEPTH || ++s->steps > MAX_STEPS)
    return g_failed;
  if (lo == UNBOUNDED && hi == UNBOUNDED) return g_everything;
  if (fx_ex_get(s->pool, f)->type == FX_EX_FLOAT) return g_failed;
  if (!on_keys(s, f)) return inside(s, fx_bound_row(s->bounds, f), lo, hi);
  s->depth++;
  list result = solve_operation(s, f, lo, hi);
  s->depth--;
  return result;
}

/* ---- conditions ---- */

/* a < b or a <= b on ints; either side may hold kv. */
static list order(solver *s, fx_ex a, fx_ex b, bool or_equal) {
  if (on_keys(s, a) && on_keys(s, b)) return g_failed;
  if (on_keys(s, a))
    return solve(s, a, UNBOUNDED, fx_bound_plus(s->bounds, fx_bound_row(s->bounds, b), or_equal));
  return solve(s, b, fx_bound_plus(s->bounds, fx_bound_row(s->bounds, a), !or_equal), UNBOUNDED);
}

static list equality(solver *s, fx_ex a, fx_ex b, bool negate) {
  if (on_keys(s, a) && on_keys(s, b)) return g_failed;
  if (!on_keys(s, a)) {
    fx_ex first = a;
    a = b, b = first;
  }
  fx_bound lo = fx_bound_row(s->bounds, b), hi = fx_bound_plus(s->bounds, lo, 1);
  if (!negate) return solve(s, a, lo, hi);
  list below = solve(s, a, UNBOUNDED, lo), above = solve(s, a, hi, UNBOUNDED);
  return either(s, &below, &above);
}

/* a == b of conditions: both or neither. */
static list agreement(solver *s, fx_ex a, fx_ex b, bool negate) {
  list yes = truth(s, b, negate), no = truth(s, b, !negate);
  return solve_select(s, a, &yes, &no);
}

/* The condition under a TO_INT, or FX_EX_NONE. */
static fx_ex as_condition(const solver *s, fx_ex node) {
  const fx_ex_node *n = fx_ex_get(s->pool, node);
  if (n->type == FX_EX_BOOL) return node;
  bool wraps = n->op == FX_EX_TO_INT && fx_ex_get(s->pool, n->arg[0])->type == FX_EX_BOOL;
  return wraps ? n->arg[0] : FX_EX_NONE;
}

static list compare(solver *s, const fx_ex_node *n, bool negate) {
  fx_ex a = n->arg[0], b = n->arg[1], x = as_condition(s, a), y = as_condition(s, b);
  bool equality_op = n->op == FX_EX_EQ || n->op == FX_EX_NE;
  if (fx_ex_get(s->pool, a)->type == FX_EX_FLOAT) return g_failed;
  if (equality_op && x != FX_EX_NONE && y != FX_EX_NONE)
    return agreement(s, x, y, negate != (n->op == FX_EX_NE));
  if (equality_op) return equality(s, a, b, negate != (n->op == FX_EX_NE));
  if (negate) return order(s, b, a, n->op == FX_EX_LT);
  return order(s, a, b, n->op == FX_EX_LE);
}

/* A condition that kv does not enter: comparisons of ints in one form, so that opposites are recognised. */
static list fixed_condition(solver *s, fx_ex node, const fx_ex_node *n, bool negate) {
  bool ints = n->num_args == 2 && fx_ex_get(s->pool, n->arg[0])->type == FX_EX_INT;
  if (ints && (n->op == FX_EX_LT || n->op == FX_EX_LE)) {
    fx_bound a = fx_bound_row(s->bounds, n->arg[0]), b = fx_bound_row(s->bounds, n->arg[1]);
    if (n->op == FX_EX_LT) return guarded(s, fx_bound_less(s->bounds, a, b), negate);
    return guarded(s, fx_bound_less(s->bounds, b, a), !negate);
  }
  if (ints && (n->op == FX_EX_EQ || n->op == FX_EX_NE)) {
    fx_bound a = fx_bound_row(s->bounds, n->arg[0]), b = fx_bound_row(s->bounds, n->arg[1]);
    if (a > b) {
      fx_bound first = a;
      a = b, b = first;
    }
    fx_bound apart = fx_bound_make(s->bounds, FX_BOUND_MAX_OF, fx_bound_less(s->bounds, a, b),
                                   fx_bound_less(s->bounds, b, a));
    return guarded(s, apart, negate == (n->op == FX_EX_NE));
  }
  return guarded(s, fx_bound_row(s->bounds, node), negate);
}

static list condition(solver *s, fx_ex node, const fx_ex_node *n, bool negate) {
  list a, b;
  if (n->op == FX_EX_NOT) return truth(s, n->arg[0], !negate);
  bool conjunction = (n->op == FX_EX_AND && !negate) || (n->op == FX_EX_OR && negate);
  if (conjunction || ((n->op == FX_EX_AND || n->op == FX_EX_OR) && on_keys(s, node))) {
    a = truth(s, n->arg[0], negate), b = truth(s, n->arg[1], negate);
    return conjunction ? both(s, &a, &b) : either(s, &a, &b);
  }
  if (!on_keys(s, node)) return fixed_condition(s, node, n, negate);
  switch ((fx_ex_op)n->op) {
  case FX_EX_LT:
  case FX_EX_LE:
  case FX_EX_EQ:
  case FX_EX_NE:
    return compare(s, n, negate);
  case FX_EX_SELECT:
    a = truth(s, n->arg[1], negate), b = truth(s, n->arg[2], negate);
    return solve_select(s, n->arg[0], &a, &b);
  default:
    return g_failed;
  }
}

static list truth(solver *s, fx_ex node, bool negate) {
  fx_interval range = domain(s, node);
  if (range.lo.i == range.hi.i) return (range.lo.i != 0) != negate ? g_everything : g_nothing;
  if (s->depth >= MAX_DEPTH || ++s->steps > MAX_STEPS) return g_failed;
  fx_ex_node n = *fx_ex_get(s->pool, node);
  s->depth++;
  list result = condition(s, node, &n, negate);
  s->depth--;
  return result;
}

/* ---- fewer intervals ---- */

/* All guards of an interval as one condition. */
static fx_bound guards_of(const solver *s, const interval *x) {
  fx_bound all = constant(s, 1);
  for (int i = 0; i < x->guards; i++) {
    fx_bound one = x->guard[i].condition;
    if (x->guard[i].negated) one = fx_bound_make(s->bounds, FX_BOUND_SUB, constant(s, 1), one);
    all = fx_bound_make(s->bounds, FX_BOUND_AND, all, one);
  }
  return all;
}

/* Intervals with an end in common: one. With `across`, under different guards too, which then move into the
 * other end. True when two became one. */
static bool join_ends(const solver *s, list *all, bool across) {
  fx_bound least = constant(s, 0), most = constant(s, s->T_kv);
  for (int i = 0; i < all->count; i++)
    for (int j = i + 1; j < all->count; j++) {
      interval a = all->v[i], b = all->v[j];
      bool same = same_guards(&a, &b);
      if ((a.lo != b.lo && a.hi != b.hi) || (!same && !across)) continue;
      if (!same) {
        fx_bound first = guards_of(s, &a), second = guards_of(s, &b);
        if (a.hi == b.hi) {
          a.lo = fx_bound_select(s->bounds, first, a.lo == UNBOUNDED ? least : a.lo, most);
          b.lo = fx_bound_select(s->bounds, second, b.lo == UNBOUNDED ? least : b.lo, most);
        } else {
          a.hi = fx_bound_select(s->bounds, first, a.hi == UNBOUNDED ? most : a.hi, least);
          b.hi = fx_bound_select(s->bounds, second, b.hi == UNBOUNDED ? most : b.hi, least);
        }
        a.guards = b.guards = 0;
      }
      a.lo = a.lo == UNBOUNDED || b.lo == UNBOUNDED ? UNBOUNDED : lesser(s, a.lo, b.lo);
      a.hi = a.hi == UNBOUNDED || b.hi == UNBOUNDED ? UNBOUNDED : greater(s, a.hi, b.hi);
      if (a.lo == FX_BOUND_NONE || a.hi == FX_BOUND_NONE) continue;
      all->v[i] = a;
      all->v[j] = all->v[--all->count];
      return true;
    }
  return false;
}

static bool exclude(const interval *a, const interval *b) {
  for (int i = 0; i < a->guards; i++)
    for (int j = 0; j < b->guards; j++)
      if (a->guard[i].condition == b->guard[j].condition && a->guard[i].negated != b->guard[j].negated)
        return true;
  return false;
}

/* Adds to `result`, as one interval without guards, interval `first` and later ones that exclude each other.
 */
static void add_group(const solver *s, const list *all, bool *used, int first, list *result) {
  int member[MAX_LIST], members = 0;
  for (int i = first; i < all->count; i++) {
    bool fits = !used[i];
    for (int k = 0; k < members && fits; k++) fits = exclude(&all->v[i], &all->v[member[k]]);
    if (fits) member[members++] = i, used[i] = true;
  }
  interval group = {.lo = constant(s, 0), .hi = constant(s, 0)};
  for (int k = members - 1; k >= 0; k--) {
    const interval *x = &all->v[member[k]];
    fx_bound holds = guards_of(s, x), lo = x->lo == UNBOUNDED ? constant(s, 0) : x->lo,
             hi = x->hi == UNBOUNDED ? constant(s, s->T_kv) : x->hi;
    /* the last one's lo matters only where its guards hold; elsewhere hi is 0 */
    group.lo = k == members - 1 ? lo : fx_bound_select(s->bounds, holds, lo, group.lo);
    group.hi = fx_bound_select(s->bounds, holds, hi, group.hi);
  }
  result->failed = result->failed || group.lo == FX_BOUND_NONE || group.hi == FX_BOUND_NONE;
  result->v[result->count++] = group;
}

/* The list as few intervals without guards. */
static list reduce(const solver *s, list all, bool across) {
  bool used[MAX_LIST] = {false};
  list groups = g_nothing;
  while (join_ends(s, &all, across)) {
  }
  for (int i = 0; i < all.count; i++)
    if (!used[i]) add_group(s, &all, used, i, &groups);
  while (!groups.failed && join_ends(s, &groups, false)) {
  }
  return groups;
}

bool fx_symbolic_limits(fx_bounds *bounds, fx_ex mask, fx_symbolic *result) {
  solver s = {.bounds = bounds, .pool = bounds->pool, .T_kv = fx_ex_pool_ranges(bounds->pool)->T_kv};
  list all = truth(&s, mask, false);
  if (all.failed) return false;
  list groups = reduce(&s, all, false), other = reduce(&s, all, true);
  if (groups.failed || (!other.failed && other.count < groups.count)) groups = other;
  if (groups.failed || groups.count > FX_SYMBOLIC_MAX) return false;
  result->count = groups.count;
  for (int i = 0; i < groups.count; i++) result->lo[i] = groups.v[i].lo, result->hi[i] = groups.v[i].hi;
  return true;
}
