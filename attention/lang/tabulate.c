/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/lang/tabulate.h"

#include <stdlib.h>

#include "attention/lang/fold.h"

static fx_ex_value evaluate(const fx_ex_pool *pool, fx_ex node, const bool *needed, const int32_t index[3],
                            fx_ex_value *made) {
  for (fx_ex i = 0; i <= node; i++) {
    if (!needed[i]) continue;
    const fx_ex_node *n = fx_ex_get(pool, i);
    fx_ex_type types[3] = {FX_EX_INT, FX_EX_INT, FX_EX_INT};
    fx_ex_value arg[3] = {{0}, {0}, {0}};
    for (int k = 0; k < n->num_args; k++) {
      types[k] = (fx_ex_type)fx_ex_get(pool, n->arg[k])->type;
      arg[k] = made[n->arg[k]];
    }
    if (n->op == FX_EX_CONST)
      made[i] = n->value;
    else if (n->op == FX_EX_VAR)
      made[i].i = index[n->index - FX_EX_H];
    else
      made[i] = fx_ex_evaluate(n, types, arg);
  }
  return made[node];
}

static bool is_closed(const fx_ex_pool *pool, fx_ex node, const bool *needed, int32_t ndim) {
  for (fx_ex i = 0; i <= node; i++) {
    const fx_ex_node *n = fx_ex_get(pool, i);
    bool foreign = n->op == FX_EX_LOAD || n->op == FX_EX_PARAM;
    if (n->op == FX_EX_VAR) foreign = n->index == FX_EX_SCORE || n->index - FX_EX_H >= ndim;
    if (needed[i] && foreign) return false;
  }
  return true;
}

fx_status fx_ex_tabulate(const fx_ex_pool *pool, fx_ex node, int32_t ndim, const int32_t *dim,
                         fx_ex_value *values) {
  int32_t size[3] = {dim[0], ndim > 1 ? dim[1] : 1, ndim > 2 ? dim[2] : 1}, index[3];
  bool *needed = fx_ex_reachable(pool, &node, 1);
  fx_ex_value *made = malloc(((size_t)node + 1) * sizeof *made);
  fx_status status = FX_OK;
  if (!needed || !made) {
    status = fx_error(FX_ERR_MEMORY, "no memory for a table");
  } else if (!is_closed(pool, node, needed, ndim)) {
    status =
        fx_error(FX_ERR_CONFIG, "a constant table is computed from its indices alone (i, then j, then k)");
  } else {
    for (index[0] = 0; index[0] < size[0]; index[0]++)
      for (index[1] = 0; index[1] < size[1]; index[1]++)
        for (index[2] = 0; index[2] < size[2]; index[2]++)
          *values++ = evaluate(pool, node, needed, index, made);
  }
  free(needed);
  free(made);
  return status;
}
