/* SPDX-License-Identifier: Apache-2.0 */
/* The graph's insides, for passes, autograd and the planner. */
#ifndef FX_DYNAMO_RT_GRAPH_GRAPH_INTERNAL_H
#define FX_DYNAMO_RT_GRAPH_GRAPH_INTERNAL_H

#include "dynamo_rt/graph/graph.h"

typedef struct fx_attr_block {
  struct fx_attr_block *next;
} fx_attr_block;

struct fx_graph {
  fx_node *nodes;
  int64_t num_nodes, node_capacity;
  fx_value_info *values;
  int64_t num_values, value_capacity;
  fx_storage *storages;
  int64_t num_storages, storage_capacity;
  fx_attr_block *attrs;
  fx_inputs *inputs;
  fx_value input_value[FX_MAX_INPUTS];
  const char *file;
  int line, layer;
  fx_status status;
  char error[1024];
};

static inline bool fx_value_is(const fx_graph *graph, fx_value value) {
  return value >= 0 && value < graph->num_values;
}

/* A copy that lives as long as the graph; NULL without memory. */
const void *fx_graph_copy_attr(fx_graph *graph, const void *attr, size_t bytes);
/* Makes every look at storage `from` a look at storage `to`, `offset` bytes further in. */
void fx_graph_merge_storage(fx_graph *graph, int32_t from, int32_t to, int64_t offset);
/* Replaces each use of `from` as an input by `to`. */
void fx_graph_replace_uses(fx_graph *graph, fx_value from, fx_value to);

#endif
