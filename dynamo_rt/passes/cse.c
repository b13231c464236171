/* SPDX-License-Identifier: Apache-2.0 */
/* Common subexpressions, by a hash table over (op, attributes, inputs). Nodes that read a storage which some
 * node mutates are left alone: their value depends on when they run. So are nodes that make one: two equal
 * fills may be the beginnings of two sums. */
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"

static uint64_t node_hash(const fx_node *node) {
  uint64_t hash = fx_hash64(&node->op, sizeof node->op, 0);
  hash = fx_hash64(node->in, sizeof(fx_value) * (size_t)node->op->max_in, hash);
  return node->op->attr_bytes ? fx_hash64(node->attr, node->op->attr_bytes, hash) : hash;
}

static bool same(const fx_node *a, const fx_node *b) {
  return a->op == b->op && memcmp(a->in, b->in, sizeof(fx_value) * (size_t)a->op->max_in) == 0 &&
         (!a->op->attr_bytes || memcmp(a->attr, b->attr, a->op->attr_bytes) == 0);
}

static bool mergeable(const fx_graph *graph, const fx_node *node, const bool *mutated) {
  if (node->dead || node->accumulate || (node->op->effects & ~FX_EFFECT_VIEW)) return false;
  for (int i = 0; i < node->op->max_in; i++)
    if (node->in[i] != FX_NONE && mutated[graph->values[node->in[i]].storage]) return false;
  for (int i = 0; i < node->op->num_out; i++) { /* part of an assembled value: must be written where it is */
    if (node->out[i] == FX_NONE)
      return false; /* after dead-code elimination the twin may lack what this one makes */
    const fx_value_info *out = &graph->values[node->out[i]];
    if (mutated[out->storage]) return false;
    bool own = out->offset == 0 && graph->storages[out->storage].bytes == fx_type_bytes(&out->type);
    if (!own && !(node->op->effects & FX_EFFECT_VIEW)) return false;
  }
  return true;
}

/* Other looks at the twin's storage go with it; a view has its input's. */
static void replace(fx_graph *graph, fx_value twin, fx_value first) {
  int32_t from = graph->values[twin].storage, to = graph->values[first].storage;
  fx_graph_replace_uses(graph, twin, first);
  if (from != to) fx_graph_merge_storage(graph, from, to, graph->values[first].offset);
}

int fx_pass_cse(fx_graph *graph) {
  int merged = 0;
  size_t size = 16;
  while (size < (size_t)graph->num_nodes * 2) size *= 2;
  int32_t *table = calloc(size, sizeof *table); /* node index + 1 */
  bool *mutated = calloc((size_t)graph->num_storages + 1, sizeof *mutated);
  if (!table || !mutated) goto done; /* an optimisation: without memory it does nothing */
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    const fx_node *node = &graph->nodes[n];
    for (int i = 0; (node->op->effects & FX_EFFECT_MUTATES) && i < node->op->num_out; i++)
      if (node->out[i] != FX_NONE) mutated[graph->values[node->out[i]].storage] = true;
  }
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    fx_node *node = &graph->nodes[n];
    if (!mergeable(graph, node, mutated)) continue;
    size_t slot = (size_t)node_hash(node) & (size - 1);
    while (table[slot] && !same(node, &graph->nodes[table[slot] - 1])) slot = (slot + 1) & (size - 1);
    if (!table[slot]) {
      table[slot] = (int32_t)n + 1;
      continue;
    }
    const fx_node *first = &graph->nodes[table[slot] - 1];
    for (int i = 0; i < node->op->num_out; i++) replace(graph, node->out[i], first->out[i]);
    node->dead = true;
    merged++;
  }
done:
  free(mutated);
  free(table);
  return merged;
}
