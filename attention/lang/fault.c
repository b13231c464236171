/* SPDX-License-Identifier: Apache-2.0 */
/* Demand flows from users to arguments, so nodes are visited from the last to the first. Only what leads to
 * an unproven index is followed; the rest costs no node. */
#include "attention/lang/fault.h"

#include <stdlib.h>
#include <string.h>

#include "attention/lang/range.h"

typedef struct walk {
  fx_ex_pool *pool;
  const fx_ex_interval *range; /* [last + 1] */
  bool *leads;                 /* [last + 1] to a LOAD that may leave its buffer */
  fx_ex *demand;               /* [last + 1] bool: its value is asked for; FX_EX_NONE: never */
  fx_ex fault;
} walk;

static bool in_range(const walk *w, const fx_ex_node *n, int k) {
  const fx_ex_interval *r = &w->range[n->arg[k]];
  return r->known && r->lo >= 0 && r->hi < fx_ex_buffer_at(w->pool, n->index)->dim[k];
}

static void find_unproven(walk *w, const bool *needed, fx_ex last) {
  for (fx_ex i = 0; i <= last; i++) {
    if (!needed[i]) continue;
    const fx_ex_node *n = fx_ex_get(w->pool, i);
    for (int k = 0; k < n->num_args; k++)
      w->leads[i] = w->leads[i] || w->leads[n->arg[k]] || (n->op == FX_EX_LOAD && !in_range(w, n, k));
  }
}

static void demanded(walk *w, fx_ex node, fx_ex condition) {
  if (!w->leads[node]) return;
  fx_ex *have = &w->demand[node];
  *have = *have == FX_EX_NONE ? condition : fx_ex_binary(w->pool, FX_EX_OR, *have, condition);
}

/* Condition that index k is outside; FX_EX_NONE where it is proven to be inside. */
static fx_ex outside(const walk *w, const fx_ex_node *n, int k) {
  fx_ex_pool *pool = w->pool;
  const fx_ex_interval *r = &w->range[n->arg[k]];
  int32_t dim = fx_ex_buffer_at(pool, n->index)->dim[k];
  fx_ex below = FX_EX_NONE, above = FX_EX_NONE;
  if (!r->known || r->lo < 0) below = fx_ex_binary(pool, FX_EX_LT, n->arg[k], fx_ex_int(pool, 0));
  if (!r->known || r->hi >= dim) above = fx_ex_binary(pool, FX_EX_LE, fx_ex_int(pool, dim), n->arg[k]);
  return below == FX_EX_NONE   ? above
         : above == FX_EX_NONE ? below
                               : fx_ex_binary(pool, FX_EX_OR, below, above);
}

static void visit(walk *w, fx_ex i) {
  fx_ex_node n = *fx_ex_get(w->pool, i);
  fx_ex_pool *pool = w->pool;
  fx_ex asked = w->demand[i], not_first;
  switch ((fx_ex_op)n.op) {
  case FX_EX_SELECT:
    not_first = fx_ex_unary(pool, FX_EX_NOT, n.arg[0]);
    demanded(w, n.arg[0], asked);
    demanded(w, n.arg[1], fx_ex_binary(pool, FX_EX_AND, asked, n.arg[0]));
    demanded(w, n.arg[2], fx_ex_binary(pool, FX_EX_AND, asked, not_first));
    return;
  case FX_EX_AND:
    demanded(w, n.arg[0], asked);
    demanded(w, n.arg[1], fx_ex_binary(pool, FX_EX_AND, asked, n.arg[0]));
    return;
  case FX_EX_OR:
    not_first = fx_ex_unary(pool, FX_EX_NOT, n.arg[0]);
    demanded(w, n.arg[0], asked);
    demanded(w, n.arg[1], fx_ex_binary(pool, FX_EX_AND, asked, not_first));
    return;
  default:
    for (int k = 0; k < n.num_args; k++) {
      demanded(w, n.arg[k], asked);
      fx_ex out = n.op == FX_EX_LOAD ? outside(w, &n, k) : FX_EX_NONE;
      if (out == FX_EX_NONE) continue;
      out = fx_ex_binary(pool, FX_EX_AND, asked, out);
      w->fault = w->fault == FX_EX_NONE ? out : fx_ex_binary(pool, FX_EX_OR, w->fault, out);
    }
  }
}

fx_status fx_ex_fault(fx_ex_pool *pool, fx_ex node, fx_ex *fault) {
  size_t count = (size_t)node + 1;
  bool *needed = fx_ex_reachable(pool, &node, 1);
  fx_ex_interval *range = needed ? fx_ex_intervals(pool, needed, node) : NULL;
  walk w = {pool, range, calloc(count, sizeof(bool)), malloc(count * sizeof(fx_ex)), FX_EX_NONE};
  fx_status status = FX_OK;
  if (!range || !w.leads || !w.demand) {
    status = fx_error(FX_ERR_MEMORY, "no memory for the index conditions of an expression");
    goto free_all;
  }
  memset(w.demand, 0xff, count * sizeof(fx_ex));
  find_unproven(&w, needed, node);
  fx_error_clear();
  demanded(&w, node, fx_ex_bool(pool, true));
  for (fx_ex i = node; i >= 0; i--)
    if (needed[i] && w.leads[i] && w.demand[i] != FX_EX_NONE) visit(&w, i);
  if (*fx_error_text())
    status = FX_ERR_CONFIG; /* the pool is full */
  else
    *fault = w.fault;
free_all:
  free(needed);
  free(range);
  free(w.leads);
  free(w.demand);
  return status;
}
