/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"

/* Something outside the plan sees this node: another rank, or memory that outlives it. */
static bool observable(const fx_graph *graph, const fx_node *node) {
  if (node->op->effects & (FX_EFFECT_MUTATES | FX_EFFECT_COLLECTIVE)) return true;
  if (node->op->effects & FX_EFFECT_VIEW) return false;
  for (int i = 0; i < node->op->num_out; i++)
    if (node->out[i] != FX_NONE && graph->storages[graph->values[node->out[i]].storage].persistent)
      return true;
  return false;
}

/* What a node adds onto is read by it, though it is no input: fold made another node's output its place. */
static void use_what_it_adds_to(const fx_graph *graph, const fx_node *node, bool *used) {
  for (int i = 0; i < node->op->num_out; i++) {
    if (!(node->accumulate >> i & 1) || node->out[i] == FX_NONE) continue;
    fx_range range = fx_value_range(graph, node->out[i]);
    for (int64_t v = 0; v < graph->num_values; v++)
      used[v] |= fx_range_overlap(fx_value_range(graph, (fx_value)v), range);
  }
}

int fx_pass_dce(fx_graph *graph) {
  int died = 0;
  bool *used = calloc((size_t)graph->num_values + 1, sizeof *used);
  if (!used) return 0;
  for (int64_t n = graph->num_nodes - 1; n >= 0; n--) {
    fx_node *node = &graph->nodes[n];
    if (node->dead) continue;
    bool live = observable(graph, node);
    for (int i = 0; i < node->op->num_out; i++) live |= node->out[i] != FX_NONE && used[node->out[i]];
    if (!live) {
      node->dead = true;
      died++;
      continue;
    }
    for (int i = 0; i < node->op->max_in; i++)
      if (node->in[i] != FX_NONE) used[node->in[i]] = true;
    use_what_it_adds_to(graph, node, used);
    for (int i = 0; i < node->op->num_out; i++) {
      if (node->out[i] == FX_NONE || used[node->out[i]] || !(node->op->optional_out >> i & 1)) continue;
      if (!graph->storages[graph->values[node->out[i]].storage].persistent) node->out[i] = FX_NONE;
    }
  }
  free(used);
  return died;
}
