/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/cuts.h"

#include "dynamo_rt/base/memory.h"

/* node = var + *offset */
static bool is_shifted(const fx_ex_pool *pool, fx_ex node, fx_ex_var var, int32_t *offset) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  *offset = 0;
  int side = 0;
  if (n->op == FX_EX_ADD || n->op == FX_EX_SUB) {
    side = n->op == FX_EX_ADD && fx_ex_get(pool, n->arg[0])->op == FX_EX_CONST;
    if (!fx_ex_is_int(pool, n->arg[1 - side], offset) || *offset == INT32_MIN) return false;
    if (n->op == FX_EX_SUB) *offset = -*offset;
    n = fx_ex_get(pool, n->arg[side]);
  }
  return n->op == FX_EX_VAR && n->index == (int32_t)var;
}

/* The distance of the node's jumps; 0: it has none. */
static int64_t period_of(const fx_ex_pool *pool, const fx_ex_node *n) {
  int32_t c = 0;
  if (n->num_args != 2 || !fx_ex_is_int(pool, n->arg[1], &c)) return 0;
  switch ((fx_ex_op)n->op) {
  case FX_EX_DIV:
  case FX_EX_MOD:
    return c > 0 ? c : -(int64_t)c;
  case FX_EX_SHR:
    return (int64_t)1 << (c & 31);
  default:
    return 0;
  }
}

void fx_cut_rules_find(const fx_ex_pool *pool, const bool *needed, fx_ex last, fx_ex_var var,
                       fx_cut_rules *rules) {
  rules->count = 0;
  for (fx_ex i = 0; i <= last && rules->count < FX_CUT_MAX_RULES; i++) {
    const fx_ex_node *n = fx_ex_get(pool, i);
    int32_t offset;
    if (!needed[i] || n->type != FX_EX_INT) continue;
    int64_t period = period_of(pool, n);
    if (period < 2 || period > INT32_MAX || !is_shifted(pool, n->arg[0], var, &offset)) continue;
    bool known = false;
    for (int k = 0; k < rules->count; k++)
      known = known || (rules->rule[k].divisor == period && rules->rule[k].offset == offset);
    if (!known) rules->rule[rules->count++] = (fx_cut_rule){(int32_t)period, offset};
  }
}

/* Ascending places between `from` and `to`; more than three say nothing and are forgotten. */
typedef struct places {
  int count;
  int64_t at[FX_CUT_PARTS - 1];
} places;

static bool add_place(places *p, int64_t at) {
  int i = 0;
  while (i < p->count && p->at[i] < at) i++;
  if (i < p->count && p->at[i] == at) return true;
  if (p->count == FX_CUT_PARTS - 1) return false;
  for (int k = p->count++; k > i; k--) p->at[k] = p->at[k - 1];
  p->at[i] = at;
  return true;
}

/* Jumps of one rule within [from, to), where positions are contiguous. */
static bool add_jumps(places *p, const fx_cut_rule *rule, const fx_positions *positions, int64_t from,
                      int64_t to) {
  int64_t rest = ((int64_t)fx_position(positions, from) + rule->offset) % rule->divisor;
  if (rest < 0) rest += rule->divisor;
  bool fits = true;
  for (int64_t at = from + rule->divisor - rest; at < to && fits; at += rule->divisor)
    fits = add_place(p, at);
  return fits;
}

static bool add_segments(places *p, const fx_positions *positions, int64_t from, int64_t to) {
  for (int64_t at = (from / FX_LIMITS_ALIGN + 1) * FX_LIMITS_ALIGN; positions->base && at < to;
       at += FX_LIMITS_ALIGN)
    if (fx_position(positions, at) != (int64_t)fx_position(positions, at - 1) + 1 && !add_place(p, at))
      return false;
  return true;
}

/* Between the jumps from one segment to the next. */
static bool add_rule(places *p, const fx_cut_rule *rule, const fx_positions *positions, int64_t from,
                     int64_t to) {
  if (!positions->base) return add_jumps(p, rule, positions, from, to);
  for (int64_t at = from; at < to;) {
    int64_t next = fx_min_i64((at / FX_LIMITS_ALIGN + 1) * FX_LIMITS_ALIGN, to);
    if (!add_jumps(p, rule, positions, at, next)) return false;
    if (at > from && (fx_position(positions, at) + (int64_t)rule->offset) % rule->divisor == 0 &&
        !add_place(p, at))
      return false;
    at = next;
  }
  return true;
}

void fx_cuts_make(const fx_cut_rules *rules, const fx_positions *positions, int64_t from, int64_t to,
                  fx_cuts *cuts) {
  places p = {.count = 0}, tried = {.count = 0};
  if (add_segments(&tried, positions, from, to)) p = tried;
  for (int32_t i = 0; i < rules->count; i++) {
    tried = p;
    if (add_rule(&tried, &rules->rule[i], positions, from, to)) p = tried;
  }
  cuts->jump = p.count == 1 ? p.at[0] : from;
  while (p.count < FX_CUT_PARTS - 1) { /* halve the longest */
    int64_t longest = 0, middle = to;
    for (int k = 0; k <= p.count; k++) {
      int64_t begin = k ? p.at[k - 1] : from, end = k < p.count ? p.at[k] : to;
      if (end - begin > longest) longest = end - begin, middle = begin + (longest + 1) / 2;
    }
    if (longest < 2) break;
    add_place(&p, middle);
  }
  cuts->at[0] = from;
  for (int k = 1; k <= FX_CUT_PARTS; k++) cuts->at[k] = k <= p.count ? p.at[k - 1] : to;
  cuts->pieces = 0;
  for (int k = 0; k < FX_CUT_PARTS * FX_CUT_PARTS; k++)
    if (fx_span_exists(fx_cut_piece(cuts, k))) cuts->pieces |= 1u << k;
}
