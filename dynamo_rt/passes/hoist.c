/* SPDX-License-Identifier: Apache-2.0 */
/* Moves each in-place collective to right behind the last node that touches its bytes, so that gradient
 * buckets are reduced while the backward of earlier layers still computes. Every rank records the same graph,
 * so every rank arrives at the same order. */
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"

static bool movable(const fx_node *node) {
  return !node->dead && (node->op->effects & FX_EFFECT_COLLECTIVE) && (node->op->effects & FX_EFFECT_MUTATES);
}

static int64_t last_touch(const fx_graph *graph, int64_t n) {
  fx_range range = fx_value_range(graph, graph->nodes[n].in[0]);
  int64_t producer = graph->values[graph->nodes[n].in[0]].node, last = n - 1;
  while (last >= 0 && last != producer &&
         (graph->nodes[last].dead || !fx_node_touches(graph, &graph->nodes[last], range, false)))
    last--;
  return last;
}

typedef struct placed {
  int64_t key, index;
} placed;

static int by_key(const void *x, const void *y) {
  const placed *a = x, *b = y;
  if (a->key != b->key) return a->key < b->key ? -1 : 1;
  return a->index < b->index ? -1 : a->index > b->index;
}

int fx_pass_hoist(fx_graph *graph) {
  int moved = 0;
  placed *order = calloc((size_t)graph->num_nodes + 1, sizeof *order);
  fx_node *nodes = calloc((size_t)graph->node_capacity + 1, sizeof *nodes);
  if (!order || !nodes) goto free_scratch;
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    order[n] = (placed){2 * n, n};
    if (!movable(&graph->nodes[n])) continue;
    int64_t last = last_touch(graph, n);
    moved += last != n - 1;
    order[n].key = 2 * last + 1;
  }
  qsort(order, (size_t)graph->num_nodes, sizeof *order, by_key);
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    nodes[n] = graph->nodes[order[n].index];
    for (int i = 0; i < nodes[n].op->num_out; i++)
      if (nodes[n].out[i] != FX_NONE) graph->values[nodes[n].out[i]].node = (int32_t)n;
  }
  fx_node *old = graph->nodes;
  graph->nodes = nodes;
  nodes = old;
free_scratch:
  free(nodes);
  free(order);
  return moved;
}
