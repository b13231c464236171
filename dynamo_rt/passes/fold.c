/* SPDX-License-Identifier: Apache-2.0 */
/* Folding of stores, accumulations, sums and of copies into a joined buffer into the producer of the summand.
 *
 * All of them ask the same two questions. May the storage of `src` become part of the storage of `dst`? (it
 * is transient, a whole buffer, and nobody else needs it later.) Does anyone touch dst's bytes between the
 * first write of src and the folded node? If not, the write can move there. */
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"

static bool whole_buffer(const fx_graph *graph, fx_value value) {
  const fx_value_info *info = &graph->values[value];
  const fx_storage *storage = &graph->storages[info->storage];
  return !storage->persistent && info->offset == 0 && storage->bytes == fx_type_bytes(&info->type) &&
         fx_type_contiguous(&info->type);
}

static bool touched_between(const fx_graph *graph, int64_t begin, int64_t end, fx_range range) {
  for (int64_t n = begin; n < end; n++)
    if (fx_node_runs(&graph->nodes[n]) && fx_node_touches(graph, &graph->nodes[n], range, false)) return true;
  return false;
}

static bool read_between(const fx_graph *graph, int64_t begin, int64_t end, fx_range range) {
  for (int64_t n = begin; n < end; n++) {
    const fx_node *node = &graph->nodes[n];
    for (int i = 0; fx_node_runs(node) && i < node->op->max_in; i++)
      if (node->in[i] != FX_NONE && fx_range_overlap(fx_value_range(graph, node->in[i]), range)) return true;
  }
  return false;
}

/* First running node that writes value's storage, or num_nodes. */
static int64_t first_write(const fx_graph *graph, fx_value value) {
  int32_t storage = graph->values[value].storage;
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    const fx_node *node = &graph->nodes[n];
    if (!fx_node_runs(node)) continue;
    for (int i = 0; i < node->op->num_out; i++)
      if (node->out[i] != FX_NONE && graph->values[node->out[i]].storage == storage) return n;
  }
  return graph->num_nodes;
}

static bool has_uses(const fx_graph *graph, fx_value value) {
  for (int64_t n = 0; n < graph->num_nodes; n++)
    for (int i = 0; !graph->nodes[n].dead && i < graph->nodes[n].op->max_in; i++)
      if (graph->nodes[n].in[i] == value) return true;
  return false;
}

/* Makes the first write of src's storage an addition; false when it is not one node's whole output or cannot
 * add. */
static bool make_accumulate(fx_graph *graph, fx_value src, int64_t writer) {
  fx_node *node = &graph->nodes[writer];
  fx_range range = fx_value_range(graph, src);
  for (int i = 0; i < node->op->num_out; i++) {
    if (node->out[i] == FX_NONE) continue;
    fx_range out = fx_value_range(graph, node->out[i]);
    if (out.storage != range.storage) continue;
    bool can = out.begin == range.begin && out.end == range.end && (node->op->can_accumulate >> i & 1) &&
               !(node->accumulate >> i & 1);
    if (can) node->accumulate |= 1u << i;
    return can;
  }
  return false;
}

/* store(dst, src) and accumulate(dst, src) at node n. */
static bool fold_into_persistent(fx_graph *graph, int64_t n, bool add) {
  fx_node *node = &graph->nodes[n];
  fx_value dst = node->in[0], src = node->in[1];
  if (!whole_buffer(graph, src) || has_uses(graph, node->out[0])) return false;
  int64_t writer = first_write(graph, src);
  if (writer >= n || touched_between(graph, writer, n, fx_value_range(graph, dst))) return false;
  if (touched_between(graph, n + 1, graph->num_nodes, fx_value_range(graph, src))) return false;
  /* Once src is summed onto dst, whoever reads it in between would see the sum. */
  if (add && read_between(graph, writer + 1, n, fx_value_range(graph, src))) return false;
  if (add && !make_accumulate(graph, src, writer)) return false;
  node->dead = true;
  fx_graph_merge_storage(graph, graph->values[src].storage, graph->values[dst].storage,
                         graph->values[dst].offset);
  return true;
}

/* copy(src) at node n into its place of a joined buffer: src's producer writes there. */
static bool fold_into_join(fx_graph *graph, int64_t n) {
  fx_node *node = &graph->nodes[n];
  fx_value src = node->in[0], dst = node->out[0];
  const fx_value_info *place = &graph->values[dst];
  if (graph->storages[place->storage].bytes == fx_type_bytes(&place->type)) return false; /* no part of one */
  if (!whole_buffer(graph, src) || !fx_type_contiguous(&place->type)) return false;
  int64_t writer = first_write(graph, src);
  if (writer >= n || touched_between(graph, writer, n, fx_value_range(graph, dst))) return false;
  if (touched_between(graph, n + 1, graph->num_nodes, fx_value_range(graph, src))) return false;
  node->dead = true;
  int32_t to = place->storage;
  int64_t offset = place->offset;
  fx_graph_replace_uses(graph, dst, src);
  fx_graph_merge_storage(graph, graph->values[src].storage, to, offset);
  return true;
}

/* add(a, b) at node n: b's producer adds onto a. */
static bool fold_sum(fx_graph *graph, int64_t n, fx_value a, fx_value b) {
  if (a == b || !whole_buffer(graph, a) || !whole_buffer(graph, b)) return false;
  if (!whole_buffer(graph, graph->nodes[n].out[0])) return false;
  int32_t storage_a = graph->values[a].storage, storage_b = graph->values[b].storage;
  int64_t writer = first_write(graph, b);
  if (storage_a == storage_b || first_write(graph, a) >= writer || writer >= n) return false;
  if (touched_between(graph, writer, n, fx_value_range(graph, a))) return false;
  if (touched_between(graph, writer + 1, n, fx_value_range(graph, b))) return false;
  if (touched_between(graph, n + 1, graph->num_nodes, fx_value_range(graph, a)) ||
      touched_between(graph, n + 1, graph->num_nodes, fx_value_range(graph, b)))
    return false;
  if (!make_accumulate(graph, b, writer)) return false;
  fx_value sum = graph->nodes[n].out[0];
  int32_t storage_sum = graph->values[sum].storage;
  graph->nodes[n].dead = true;
  fx_graph_replace_uses(graph, sum, b);
  fx_graph_merge_storage(graph, storage_b, storage_a, 0);
  fx_graph_merge_storage(graph, storage_sum, storage_a, 0); /* other looks at the sum go with it */
  return true;
}

int fx_pass_fold(fx_graph *graph) {
  int folded = 0;
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    const fx_node *node = &graph->nodes[n];
    if (node->dead) continue;
    if (fx_is_store(node) || fx_is_accumulate(node))
      folded += fold_into_persistent(graph, n, fx_is_accumulate(node));
    else if (fx_is_copy(node))
      folded += fold_into_join(graph, n);
    else if (fx_is_add(node))
      folded += fold_sum(graph, n, node->in[0], node->in[1]) || fold_sum(graph, n, node->in[1], node->in[0]);
  }
  return folded;
}
