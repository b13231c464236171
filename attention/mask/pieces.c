/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/pieces.h"

#include "dynamo_rt/base/memory.h"

const fx_pieces fx_pieces_failed = {.failed = true};
const fx_pieces fx_pieces_nothing = {0};
const fx_pieces fx_pieces_everything = {.count = 1,
                                        .v = {{.lo = FX_PIECE_UNBOUNDED, .hi = FX_PIECE_UNBOUNDED}}};

static int64_t keys_of(const fx_bounds *bounds) {
  return fx_ex_pool_ranges(bounds->pool)->T_kv;
}

static const fx_bound_term *term(fx_bounds *bounds, fx_bound a) {
  return &bounds->term[a];
}

static fx_bound constant(fx_bounds *bounds, int64_t value) {
  return fx_bound_const(bounds, value);
}

/* Whether lo >= hi in every row: some part of lo's maximum is never below some part of hi's minimum. */
static bool never_below(fx_bounds *bounds, fx_bound lo, fx_bound hi) {
  const fx_bound_term *l = term(bounds, lo), *h = term(bounds, hi);
  if (l->lo >= h->hi) return true;
  if (l->op == FX_BOUND_MAX_OF)
    return never_below(bounds, l->arg[0], hi) || never_below(bounds, l->arg[1], hi);
  if (h->op == FX_BOUND_MIN) return never_below(bounds, lo, h->arg[0]) || never_below(bounds, lo, h->arg[1]);
  int64_t lo_offset, hi_offset;
  return fx_bound_base(bounds, lo, &lo_offset) == fx_bound_base(bounds, hi, &hi_offset) &&
         lo_offset >= hi_offset;
}

/* Ends that cut nothing become FX_PIECE_UNBOUNDED; false: the interval is empty in every row. */
static bool tidy(fx_bounds *bounds, fx_piece *x) {
  if (x->lo != FX_PIECE_UNBOUNDED && term(bounds, x->lo)->hi <= 0) x->lo = FX_PIECE_UNBOUNDED;
  if (x->hi != FX_PIECE_UNBOUNDED && term(bounds, x->hi)->lo >= keys_of(bounds)) x->hi = FX_PIECE_UNBOUNDED;
  if (x->lo != FX_PIECE_UNBOUNDED && term(bounds, x->lo)->lo >= keys_of(bounds)) return false;
  if (x->hi != FX_PIECE_UNBOUNDED && term(bounds, x->hi)->hi <= 0) return false;
  return x->lo == FX_PIECE_UNBOUNDED || x->hi == FX_PIECE_UNBOUNDED || !never_below(bounds, x->lo, x->hi);
}

/* 1: added; 0: never holds together with what is there; -1: no room. */
static int add_guard(fx_bounds *bounds, fx_piece *x, fx_guard guard) {
  const fx_bound_term *t = term(bounds, guard.condition);
  while (t->op == FX_BOUND_SUB) { /* 1 - x: the opposite of x */
    guard = (fx_guard){t->arg[1], !guard.negated};
    t = term(bounds, guard.condition);
  }
  if (t->lo == t->hi) return (t->lo != 0) != guard.negated;
  for (int i = 0; i < x->guards; i++)
    if (x->guard[i].condition == guard.condition) return x->guard[i].negated == guard.negated;
  if (x->guards == FX_PIECE_GUARDS) return -1;
  int at = x->guards++;
  for (; at > 0 && x->guard[at - 1].condition > guard.condition; at--) x->guard[at] = x->guard[at - 1];
  x->guard[at] = guard;
  return 1;
}

static bool same_guards(const fx_piece *a, const fx_piece *b) {
  bool same = a->guards == b->guards;
  for (int i = 0; same && i < a->guards; i++)
    same = a->guard[i].condition == b->guard[i].condition && a->guard[i].negated == b->guard[i].negated;
  return same;
}

static void append(fx_bounds *bounds, fx_pieces *to, const fx_piece *x) {
  fx_piece tidied = *x;
  if (to->failed || !tidy(bounds, &tidied)) return;
  for (int i = 0; i < to->count; i++)
    if (to->v[i].lo == tidied.lo && to->v[i].hi == tidied.hi && same_guards(&to->v[i], &tidied)) return;
  if (to->count == FX_PIECES_MAX)
    to->failed = true;
  else
    to->v[to->count++] = tidied;
}

fx_pieces fx_pieces_either(fx_bounds *bounds, const fx_pieces *a, const fx_pieces *b) {
  if (a->failed || b->failed) return fx_pieces_failed;
  fx_pieces result = *a;
  for (int i = 0; i < b->count; i++) append(bounds, &result, &b->v[i]);
  return result;
}

fx_bound fx_piece_greater(fx_bounds *bounds, fx_bound a, fx_bound b) {
  return a == FX_PIECE_UNBOUNDED   ? b
         : b == FX_PIECE_UNBOUNDED ? a
                                   : fx_bound_make(bounds, FX_BOUND_MAX_OF, a, b);
}
fx_bound fx_piece_lesser(fx_bounds *bounds, fx_bound a, fx_bound b) {
  return a == FX_PIECE_UNBOUNDED   ? b
         : b == FX_PIECE_UNBOUNDED ? a
                                   : fx_bound_make(bounds, FX_BOUND_MIN, a, b);
}

fx_pieces fx_pieces_both(fx_bounds *bounds, const fx_pieces *a, const fx_pieces *b) {
  if (a->failed || b->failed) return fx_pieces_failed;
  fx_pieces result = fx_pieces_nothing;
  for (int i = 0; i < a->count; i++)
    for (int j = 0; j < b->count; j++) {
      fx_piece x = a->v[i];
      x.lo = fx_piece_greater(bounds, a->v[i].lo, b->v[j].lo);
      x.hi = fx_piece_lesser(bounds, a->v[i].hi, b->v[j].hi);
      int held = x.lo == FX_BOUND_NONE || x.hi == FX_BOUND_NONE ? -1 : 1;
      for (int k = 0; k < b->v[j].guards && held > 0; k++) held = add_guard(bounds, &x, b->v[j].guard[k]);
      if (held < 0) return fx_pieces_failed;
      if (held > 0) append(bounds, &result, &x);
    }
  return result;
}

fx_pieces fx_pieces_guarded(fx_bounds *bounds, fx_bound condition, bool negated) {
  if (condition == FX_BOUND_NONE) return fx_pieces_failed;
  fx_pieces result = fx_pieces_nothing;
  fx_piece x = fx_pieces_everything.v[0];
  if (add_guard(bounds, &x, (fx_guard){condition, negated}) > 0) append(bounds, &result, &x);
  return result;
}

fx_pieces fx_pieces_between(fx_bounds *bounds, fx_bound lo, fx_bound hi) {
  if (lo == FX_BOUND_NONE || hi == FX_BOUND_NONE) return fx_pieces_failed;
  fx_pieces result = fx_pieces_nothing;
  append(bounds, &result, &(fx_piece){.lo = lo, .hi = hi});
  return result;
}

/* ---- fewer intervals ---- */

/* All guards of an fx_piece as one condition. */
static fx_bound guards_of(fx_bounds *bounds, const fx_piece *x) {
  fx_bound all = constant(bounds, 1);
  for (int i = 0; i < x->guards; i++) {
    fx_bound one = x->guard[i].condition;
    if (x->guard[i].negated) one = fx_bound_make(bounds, FX_BOUND_SUB, constant(bounds, 1), one);
    all = fx_bound_make(bounds, FX_BOUND_AND, all, one);
  }
  return all;
}

/* Intervals with an end in common: one. With `across`, under different guards too, which then move into the
 * other end. True when two became one. */
static bool join_ends(fx_bounds *bounds, fx_pieces *all, bool across) {
  fx_bound least = constant(bounds, 0), most = constant(bounds, keys_of(bounds));
  for (int i = 0; i < all->count; i++)
    for (int j = i + 1; j < all->count; j++) {
      fx_piece a = all->v[i], b = all->v[j];
      bool same = same_guards(&a, &b);
      if ((a.lo != b.lo && a.hi != b.hi) || (!same && !across)) continue;
      if (!same) {
        fx_bound first = guards_of(bounds, &a), second = guards_of(bounds, &b);
        if (a.hi == b.hi) {
          a.lo = fx_bound_select(bounds, first, a.lo == FX_PIECE_UNBOUNDED ? least : a.lo, most);
          b.lo = fx_bound_select(bounds, second, b.lo == FX_PIECE_UNBOUNDED ? least : b.lo, most);
        } else {
          a.hi = fx_bound_select(bounds, first, a.hi == FX_PIECE_UNBOUNDED ? most : a.hi, least);
          b.hi = fx_bound_select(bounds, second, b.hi == FX_PIECE_UNBOUNDED ? most : b.hi, least);
        }
        a.guards = b.guards = 0;
      }
      a.lo = a.lo == FX_PIECE_UNBOUNDED || b.lo == FX_PIECE_UNBOUNDED ? FX_PIECE_UNBOUNDED
                                                                      : fx_piece_lesser(bounds, a.lo, b.lo);
      a.hi = a.hi == FX_PIECE_UNBOUNDED || b.hi == FX_PIECE_UNBOUNDED ? FX_PIECE_UNBOUNDED
                                                                      : fx_piece_greater(bounds, a.hi, b.hi);
      if (a.lo == FX_BOUND_NONE || a.hi == FX_BOUND_NONE) continue;
      all->v[i] = a;
      all->v[j] = all->v[--all->count];
      return true;
    }
  return false;
}

static bool exclude(const fx_piece *a, const fx_piece *b) {
  for (int i = 0; i < a->guards; i++)
    for (int j = 0; j < b->guards; j++)
      if (a->guard[i].condition == b->guard[j].condition && a->guard[i].negated != b->guard[j].negated)
        return true;
  return false;
}

/* Adds to `result`, as one interval without guards, interval `first` and later ones that exclude each other.
 */
static void add_group(fx_bounds *bounds, const fx_pieces *all, bool *used, int first, fx_pieces *result) {
  int member[FX_PIECES_MAX], members = 0;
  for (int i = first; i < all->count; i++) {
    bool fits = !used[i];
    for (int k = 0; k < members && fits; k++) fits = exclude(&all->v[i], &all->v[member[k]]);
    if (fits) member[members++] = i, used[i] = true;
  }
  fx_piece group = {.lo = constant(bounds, 0), .hi = constant(bounds, 0)};
  for (int k = members - 1; k >= 0; k--) {
    const fx_piece *x = &all->v[member[k]];
    fx_bound holds = guards_of(bounds, x), lo = x->lo == FX_PIECE_UNBOUNDED ? constant(bounds, 0) : x->lo,
             hi = x->hi == FX_PIECE_UNBOUNDED ? constant(bounds, keys_of(bounds)) : x->hi;
    /* the last one's lo matters only where its guards hold; elsewhere hi is 0 */
    group.lo = k == members - 1 ? lo : fx_bound_select(bounds, holds, lo, group.lo);
    group.hi = fx_bound_select(bounds, holds, hi, group.hi);
  }
  result->failed = result->failed || group.lo == FX_BOUND_NONE || group.hi == FX_BOUND_NONE;
  result->v[result->count++] = group;
}

/* The list as few intervals without guards. */
fx_pieces fx_pieces_reduce(fx_bounds *bounds, fx_pieces all, bool across) {
  bool used[FX_PIECES_MAX] = {false};
  fx_pieces groups = fx_pieces_nothing;
  while (join_ends(bounds, &all, across)) {
  }
  for (int i = 0; i < all.count; i++)
    if (!used[i]) add_group(bounds, &all, used, i, &groups);
  while (!groups.failed && join_ends(bounds, &groups, false)) {
  }
  return groups;
}
