/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/symbolic.h"

#include "attention/mask/pieces.h"
#include "dynamo_rt/base/memory.h"

enum { MAX_QUOTIENTS = 4, MAX_DEPTH = 100, MAX_STEPS = 4096 };

typedef struct solver {
  fx_bounds *bounds;
  const fx_ex_pool *pool;
  int steps, depth;
} solver;

static const fx_bound_term *term(const solver *s, fx_bound a) {
  return &s->bounds->term[a];
}
static fx_bound constant(const solver *s, int64_t value) {
  return fx_bound_const(s->bounds, value);
}

/* ---- solving lo <= f(kv) < hi ---- */

static fx_pieces solve(solver *s, fx_ex f, fx_bound lo, fx_bound hi);
static fx_pieces truth(solver *s, fx_ex node, bool negate);

static fx_interval domain(const solver *s, fx_ex node) {
  return fx_interval_domain(s->bounds->code, node);
}
static bool on_keys(const solver *s, fx_ex node) {
  return fx_ex_depends(s->pool, node, FX_EX_KV);
}

/* An end through an operation on it; FX_PIECE_UNBOUNDED stays. */
static fx_bound end_by(const solver *s, fx_bound_op op, fx_bound end, fx_bound other) {
  return end == FX_PIECE_UNBOUNDED ? end : fx_bound_make(s->bounds, op, end, other);
}
static fx_bound end_up(const solver *s, fx_bound end, fx_bound by) { /* ceil(end / by) */
  return end == FX_PIECE_UNBOUNDED ? end : fx_bound_ceil_div(s->bounds, end, by);
}
/* [lo, hi) of -f as an interval of f: [1 - hi, 1 - lo) */
static void negate_ends(const solver *s, fx_bound *lo, fx_bound *hi) {
  fx_bound one = constant(s, 1), low = *lo;
  *lo = *hi == FX_PIECE_UNBOUNDED ? FX_PIECE_UNBOUNDED : fx_bound_make(s->bounds, FX_BOUND_SUB, one, *hi);
  *hi = low == FX_PIECE_UNBOUNDED ? FX_PIECE_UNBOUNDED : fx_bound_make(s->bounds, FX_BOUND_SUB, one, low);
}
/* Ends beyond f's own range say nothing more: keeps later products small. */
static fx_bound clamp_end(const solver *s, fx_ex f, fx_bound end) {
  if (end == FX_PIECE_UNBOUNDED || end == FX_BOUND_NONE) return end;
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

static fx_pieces solve_sum(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  fx_ex a = n->arg[0], b = n->arg[1];
  if (n->op == FX_EX_SUB && on_keys(s, a) && on_keys(s, b)) { /* a - a % c, a multiple of c */
    const fx_ex_node *rest = fx_ex_get(s->pool, b);
    int32_t c;
    if (rest->op != FX_EX_MOD || rest->arg[0] != a || !fx_ex_is_int(s->pool, rest->arg[1], &c) || c < 1)
      return fx_pieces_failed;
    if (domain(s, a).lo.i < 0) return fx_pieces_failed; /* below 0 it could wrap */
    fx_bound size = constant(s, c), first = end_up(s, lo, size), last = end_up(s, hi, size);
    return solve(s, a, end_by(s, FX_BOUND_MUL, first, size), end_by(s, FX_BOUND_MUL, last, size));
  }
  if ((on_keys(s, a) && on_keys(s, b)) || !stays(s, (fx_ex_op)n->op, a, b)) return fx_pieces_failed;
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
static fx_pieces solve_product(solver *s, fx_ex f, int64_t c, fx_bound lo, fx_bound hi) {
  if (c < 0) negate_ends(s, &lo, &hi);
  fx_bound size = constant(s, c < 0 ? -c : c);
  if (c == 0) return fx_pieces_failed;
  return solve(s, f, end_up(s, lo, size), end_up(s, hi, size));
}

/* floor(f / size), size a term above 0; `whole` is the quotient's node. */
static fx_pieces solve_quotient(solver *s, fx_ex whole, fx_ex f, fx_bound size, fx_bound lo, fx_bound hi) {
  lo = clamp_end(s, whole, lo), hi = clamp_end(s, whole, hi);
  return solve(s, f, end_by(s, FX_BOUND_MUL, lo, size), end_by(s, FX_BOUND_MUL, hi, size));
}

static fx_pieces solve_division(solver *s, fx_ex node, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  fx_ex a = n->arg[0], b = n->arg[1];
  int32_t c;
  if (on_keys(s, b)) return fx_pieces_failed;
  if (!fx_ex_is_int(s->pool, b, &c) || c > 0)
    return domain(s, b).lo.i < 1 ? fx_pieces_failed
                                 : solve_quotient(s, node, a, fx_bound_row(s->bounds, b), lo, hi);
  if (c == 0 || domain(s, a).lo.i == INT32_MIN) return fx_pieces_failed;
  lo = clamp_end(s, node, lo), hi = clamp_end(s, node, hi); /* floor(a / c) = floor(-a / -c) */
  fx_bound size = constant(s, -(int64_t)c);
  lo = end_by(s, FX_BOUND_MUL, lo, size), hi = end_by(s, FX_BOUND_MUL, hi, size);
  negate_ends(s, &lo, &hi);
  return solve(s, a, lo, hi);
}

/* a % c over few quotients k: a lies in [k c + lo, k c + hi), cut to [k c, k c + c). */
static fx_pieces solve_rest(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  int32_t c;
  if (!fx_ex_is_int(s->pool, n->arg[1], &c) || c < 1) return fx_pieces_failed;
  fx_interval range = domain(s, n->arg[0]);
  if (range.lo.i < 0 || range.hi.i / c - range.lo.i / c >= MAX_QUOTIENTS) return fx_pieces_failed;
  fx_bound low = fx_piece_greater(s->bounds, lo, constant(s, 0)),
           high = fx_piece_lesser(s->bounds, hi, constant(s, c));
  fx_pieces result = fx_pieces_nothing;
  for (int64_t k = range.lo.i / c; k <= range.hi.i / c; k++) {
    fx_pieces part =
        solve(s, n->arg[0], fx_bound_plus(s->bounds, low, k * c), fx_bound_plus(s->bounds, high, k * c));
    result = fx_pieces_either(s->bounds, &result, &part);
  }
  return result;
}

static fx_pieces solve_bits(solver *s, fx_ex node, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  int32_t c;
  fx_ex a = n->arg[0];
  if (n->op == FX_EX_BIT_AND) { /* with high ones: a multiple of -c */
    if (!fx_ex_is_int(s->pool, n->arg[1], &c)) {
      a = n->arg[1];
      if (!fx_ex_is_int(s->pool, n->arg[0], &c)) return fx_pieces_failed;
    }
    int64_t size = -(int64_t)c;
    if (size < 1 || (size & (size - 1)) != 0) return fx_pieces_failed;
    fx_bound by = constant(s, size), first = end_up(s, clamp_end(s, node, lo), by),
             last = end_up(s, clamp_end(s, node, hi), by);
    return solve(s, a, end_by(s, FX_BOUND_MUL, first, by), end_by(s, FX_BOUND_MUL, last, by));
  }
  if (!fx_ex_is_int(s->pool, n->arg[1], &c)) return fx_pieces_failed;
  int64_t size = (int64_t)1 << (c & 31);
  if (n->op == FX_EX_SHR) return solve_quotient(s, node, a, constant(s, size), lo, hi);
  fx_interval range = domain(s, a);
  if (range.lo.i * size < INT32_MIN || range.hi.i * size > INT32_MAX) return fx_pieces_failed;
  return solve_product(s, a, size, lo, hi);
}

/* min(a, b) >= lo: both are; min(a, b) < hi: either is. max the other way round. */
static fx_pieces solve_extreme(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  fx_pieces result = fx_pieces_everything;
  for (int upper = 0; upper < 2; upper++) {
    if ((upper ? hi : lo) == FX_PIECE_UNBOUNDED) continue;
    fx_pieces a = solve(s, n->arg[0], upper ? FX_PIECE_UNBOUNDED : lo, upper ? hi : FX_PIECE_UNBOUNDED),
              b = solve(s, n->arg[1], upper ? FX_PIECE_UNBOUNDED : lo, upper ? hi : FX_PIECE_UNBOUNDED);
    fx_pieces half = (n->op == FX_EX_MIN) == (upper == 0) ? fx_pieces_both(s->bounds, &a, &b)
                                                          : fx_pieces_either(s->bounds, &a, &b);
    result = fx_pieces_both(s->bounds, &result, &half);
  }
  return result;
}

static fx_pieces solve_abs(solver *s, fx_ex a, fx_bound lo, fx_bound hi) {
  fx_pieces result = fx_pieces_everything;
  if (domain(s, a).lo.i == INT32_MIN) return fx_pieces_failed;
  if (hi != FX_PIECE_UNBOUNDED) {
    result = solve(s, a, fx_bound_make(s->bounds, FX_BOUND_SUB, constant(s, 1), hi), hi);
  }
  if (lo != FX_PIECE_UNBOUNDED && term(s, lo)->hi > 0) {
    fx_pieces below =
                  solve(s, a, FX_PIECE_UNBOUNDED, fx_bound_make(s->bounds, FX_BOUND_SUB, constant(s, 1), lo)),
              above = solve(s, a, lo, FX_PIECE_UNBOUNDED),
              outside = fx_pieces_either(s->bounds, &below, &above);
    result = fx_pieces_both(s->bounds, &result, &outside);
  }
  return result;
}

/* c ? a : b with lists that the caller made of the branches. */
static fx_pieces solve_select(solver *s, fx_ex condition, const fx_pieces *a, const fx_pieces *b) {
  fx_pieces yes = truth(s, condition, false), no = truth(s, condition, true);
  fx_pieces first = fx_pieces_both(s->bounds, &yes, a), second = fx_pieces_both(s->bounds, &no, b);
  return fx_pieces_either(s->bounds, &first, &second);
}

/* FIRST(key) of a monotone buffer; segments know some answers. */
static fx_bound first_of(const solver *s, int32_t number, fx_bound key) {
  if (key == FX_PIECE_UNBOUNDED || key == FX_BOUND_NONE) return key;
  const fx_ex_buffer *buffer = fx_ex_buffer_at(s->pool, number);
  int64_t offset;
  fx_bound base = fx_bound_base(s->bounds, key, &offset);
  const fx_bound_term *t = term(s, base);
  if (t->op == FX_BOUND_ROW) {
    const fx_ex_node *row = fx_ex_get(s->pool, (fx_ex)t->value);
    bool own = row->op == FX_EX_LOAD && row->index == number;
    if (own && buffer->segment && offset == 0) return base;     /* x[q] is where its segment starts */
    if (own && buffer->segment_end && offset == 1) return base; /* and where the next one does */
  }
  return fx_bound_first(s->bounds, number, key);
}

static fx_pieces solve_load(solver *s, const fx_ex_node *n, fx_bound lo, fx_bound hi) {
  const fx_ex_buffer *buffer = fx_ex_buffer_at(s->pool, n->index);
  fx_interval index = domain(s, n->arg[0]);
  if (!buffer->monotone || index.lo.i < 0 || index.hi.i >= buffer->dim[0]) return fx_pieces_failed;
  return solve(s, n->arg[0], first_of(s, n->index, lo), first_of(s, n->index, hi));
}

/* The rows whose `value` lies in [lo, hi). */
static fx_pieces inside(const solver *s, fx_bound value, fx_bound lo, fx_bound hi) {
  fx_pieces result = fx_pieces_everything;
  if (lo != FX_PIECE_UNBOUNDED) {
    fx_pieces low = fx_pieces_guarded(s->bounds, fx_bound_less(s->bounds, value, lo), true);
    result = fx_pieces_both(s->bounds, &result, &low);
  }
  if (hi != FX_PIECE_UNBOUNDED) {
    fx_pieces high = fx_pieces_guarded(s->bounds, fx_bound_less(s->bounds, value, hi), false);
    result = fx_pieces_both(s->bounds, &result, &high);
  }
  return result;
}

static fx_pieces solve_operation(solver *s, fx_ex f, fx_bound lo, fx_bound hi) {
  fx_ex_node n = *fx_ex_get(s->pool, f);
  int32_t c;
  fx_pieces a, b;
  switch ((fx_ex_op)n.op) {
  case FX_EX_VAR:
    return fx_pieces_between(s->bounds, lo, hi);
  case FX_EX_NEG:
    if (domain(s, n.arg[0]).lo.i == INT32_MIN) return fx_pieces_failed;
    negate_ends(s, &lo, &hi);
    return solve(s, n.arg[0], lo, hi);
  case FX_EX_ADD:
  case FX_EX_SUB:
    return solve_sum(s, &n, lo, hi);
  case FX_EX_MUL:
    if (!stays(s, FX_EX_MUL, n.arg[0], n.arg[1])) return fx_pieces_failed;
    if (fx_ex_is_int(s->pool, n.arg[0], &c)) return solve_product(s, n.arg[1], c, lo, hi);
    return fx_ex_is_int(s->pool, n.arg[1], &c) ? solve_product(s, n.arg[0], c, lo, hi) : fx_pieces_failed;
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
    if (fx_ex_get(s->pool, n.arg[0])->type != FX_EX_BOOL) return fx_pieces_failed;
    a = inside(s, constant(s, 1), lo, hi), b = inside(s, constant(s, 0), lo, hi);
    return solve_select(s, n.arg[0], &a, &b);
  case FX_EX_LOAD:
    return solve_load(s, &n, lo, hi);
  default:
    return fx_pieces_failed;
  }
}

static fx_pieces solve(solver *s, fx_ex f, fx_bound lo, fx_bound hi) {
  if (lo == FX_BOUND_NONE || hi == FX_BOUND_NONE || s->depth >= MAX_DEPTH || ++s->steps > MAX_STEPS)
    return fx_pieces_failed;
  if (lo == FX_PIECE_UNBOUNDED && hi == FX_PIECE_UNBOUNDED) return fx_pieces_everything;
  if (fx_ex_get(s->pool, f)->type == FX_EX_FLOAT) return fx_pieces_failed;
  if (!on_keys(s, f)) return inside(s, fx_bound_row(s->bounds, f), lo, hi);
  s->depth++;
  fx_pieces result = solve_operation(s, f, lo, hi);
  s->depth--;
  return result;
}

/* ---- conditions ---- */

/* a < b or a <= b on ints; either side may hold kv. */
static fx_pieces order(solver *s, fx_ex a, fx_ex b, bool or_equal) {
  if (on_keys(s, a) && on_keys(s, b)) return fx_pieces_failed;
  if (on_keys(s, a))
    return solve(s, a, FX_PIECE_UNBOUNDED, fx_bound_plus(s->bounds, fx_bound_row(s->bounds, b), or_equal));
  return solve(s, b, fx_bound_plus(s->bounds, fx_bound_row(s->bounds, a), !or_equal), FX_PIECE_UNBOUNDED);
}

static fx_pieces equality(solver *s, fx_ex a, fx_ex b, bool negate) {
  if (on_keys(s, a) && on_keys(s, b)) return fx_pieces_failed;
  if (!on_keys(s, a)) {
    fx_ex first = a;
    a = b, b = first;
  }
  fx_bound lo = fx_bound_row(s->bounds, b), hi = fx_bound_plus(s->bounds, lo, 1);
  if (!negate) return solve(s, a, lo, hi);
  fx_pieces below = solve(s, a, FX_PIECE_UNBOUNDED, lo), above = solve(s, a, hi, FX_PIECE_UNBOUNDED);
  return fx_pieces_either(s->bounds, &below, &above);
}

/* a == b of conditions: both or neither. */
static fx_pieces agreement(solver *s, fx_ex a, fx_ex b, bool negate) {
  fx_pieces yes = truth(s, b, negate), no = truth(s, b, !negate);
  return solve_select(s, a, &yes, &no);
}

/* The condition under a TO_INT, or FX_EX_NONE. */
static fx_ex as_condition(const solver *s, fx_ex node) {
  const fx_ex_node *n = fx_ex_get(s->pool, node);
  if (n->type == FX_EX_BOOL) return node;
  bool wraps = n->op == FX_EX_TO_INT && fx_ex_get(s->pool, n->arg[0])->type == FX_EX_BOOL;
  return wraps ? n->arg[0] : FX_EX_NONE;
}

static fx_pieces compare(solver *s, const fx_ex_node *n, bool negate) {
  fx_ex a = n->arg[0], b = n->arg[1], x = as_condition(s, a), y = as_condition(s, b);
  bool equality_op = n->op == FX_EX_EQ || n->op == FX_EX_NE;
  if (fx_ex_get(s->pool, a)->type == FX_EX_FLOAT) return fx_pieces_failed;
  if (equality_op && x != FX_EX_NONE && y != FX_EX_NONE)
    return agreement(s, x, y, negate != (n->op == FX_EX_NE));
  if (equality_op) return equality(s, a, b, negate != (n->op == FX_EX_NE));
  if (negate) return order(s, b, a, n->op == FX_EX_LT);
  return order(s, a, b, n->op == FX_EX_LE);
}

/* A condition that kv does not enter: comparisons of ints in one form, so that opposites are recognised. */
static fx_pieces fixed_condition(solver *s, fx_ex node, const fx_ex_node *n, bool negate) {
  bool ints = n->num_args == 2 && fx_ex_get(s->pool, n->arg[0])->type == FX_EX_INT;
  if (ints && (n->op == FX_EX_LT || n->op == FX_EX_LE)) {
    fx_bound a = fx_bound_row(s->bounds, n->arg[0]), b = fx_bound_row(s->bounds, n->arg[1]);
    if (n->op == FX_EX_LT) return fx_pieces_guarded(s->bounds, fx_bound_less(s->bounds, a, b), negate);
    return fx_pieces_guarded(s->bounds, fx_bound_less(s->bounds, b, a), !negate);
  }
  if (ints && (n->op == FX_EX_EQ || n->op == FX_EX_NE)) {
    fx_bound a = fx_bound_row(s->bounds, n->arg[0]), b = fx_bound_row(s->bounds, n->arg[1]);
    if (a > b) {
      fx_bound first = a;
      a = b, b = first;
    }
    fx_bound apart = fx_bound_make(s->bounds, FX_BOUND_MAX_OF, fx_bound_less(s->bounds, a, b),
                                   fx_bound_less(s->bounds, b, a));
    return fx_pieces_guarded(s->bounds, apart, negate == (n->op == FX_EX_NE));
  }
  return fx_pieces_guarded(s->bounds, fx_bound_row(s->bounds, node), negate);
}

static fx_pieces condition(solver *s, fx_ex node, const fx_ex_node *n, bool negate) {
  fx_pieces a, b;
  if (n->op == FX_EX_NOT) return truth(s, n->arg[0], !negate);
  bool conjunction = (n->op == FX_EX_AND && !negate) || (n->op == FX_EX_OR && negate);
  if (conjunction || ((n->op == FX_EX_AND || n->op == FX_EX_OR) && on_keys(s, node))) {
    a = truth(s, n->arg[0], negate), b = truth(s, n->arg[1], negate);
    return conjunction ? fx_pieces_both(s->bounds, &a, &b) : fx_pieces_either(s->bounds, &a, &b);
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
    return fx_pieces_failed;
  }
}

static fx_pieces truth(solver *s, fx_ex node, bool negate) {
  fx_interval range = domain(s, node);
  if (range.lo.i == range.hi.i) return (range.lo.i != 0) != negate ? fx_pieces_everything : fx_pieces_nothing;
  if (s->depth >= MAX_DEPTH || ++s->steps > MAX_STEPS) return fx_pieces_failed;
  fx_ex_node n = *fx_ex_get(s->pool, node);
  s->depth++;
  fx_pieces result = condition(s, node, &n, negate);
  s->depth--;
  return result;
}

bool fx_symbolic_limits(fx_bounds *bounds, fx_ex mask, fx_symbolic *result) {
  solver s = {.bounds = bounds, .pool = bounds->pool};
  fx_pieces all = truth(&s, mask, false);
  if (all.failed) return false;
  fx_pieces groups = fx_pieces_reduce(bounds, all, false), other = fx_pieces_reduce(bounds, all, true);
  if (groups.failed || (!other.failed && other.count < groups.count)) groups = other;
  if (groups.failed || groups.count > FX_SYMBOLIC_MAX) return false;
  result->count = groups.count;
  for (int i = 0; i < groups.count; i++) result->lo[i] = groups.v[i].lo, result->hi[i] = groups.v[i].hi;
  return true;
}
