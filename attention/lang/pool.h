/* SPDX-License-Identifier: Apache-2.0 */
/* A pool from the inside. Private to attention/lang. */
#ifndef FX_ATTENTION_LANG_POOL_H
#define FX_ATTENTION_LANG_POOL_H

#include "attention/lang/expr.h"

struct fx_ex_pool {
  fx_ex_ranges ranges;
  fx_ex_node *nodes;
  int32_t num_nodes, capacity; /* capacity is a power of two */
  int32_t *table;              /* [2 * capacity] node numbers by hash, -1 where free */
  fx_ex_param params[FX_EX_MAX_PARAMS];
  fx_ex_buffer buffers[FX_EX_MAX_BUFFERS];
  int32_t num_params, num_buffers;
};

/* The node as it is: found or added. Fills num_args' rest, depends and hash. */
fx_ex fx_ex_intern(fx_ex_pool *pool, fx_ex_node node);

#endif
