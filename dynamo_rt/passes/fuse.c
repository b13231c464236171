/* SPDX-License-Identifier: Apache-2.0 */
/* Fusion of neighbours: the derivative of an activation into the product before it, a residual sum into the
 * norm after it. Neither changes a bit of any result on the CPU.
 *
 * A merged node stands at the place of the earlier one. Readers of either one's outputs come later anyway;
 * what has to be asked is whether the later one's other inputs are made by then, and whether anyone writes
 * them between the two places (weights that a collective gathers, for one). */
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"

/* The node that makes `value` as its output 0 and is not dead, or -1. */
static int32_t maker(const fx_graph *graph, fx_value value) {
  const fx_value_info *info = &graph->values[value];
  if (info->node < 0 || info->out != 0 || graph->nodes[info->node].dead) return -1;
  return graph->nodes[info->node].out[0] == value ? info->node : -1;
}

static int num_reads(const fx_graph *graph, fx_value value) {
  int count = 0;
  for (int64_t n = 0; n < graph->num_nodes; n++)
    for (int i = 0; !graph->nodes[n].dead && i < graph->nodes[n].op->max_in; i++)
      count += graph->nodes[n].in[i] == value;
  return count;
}

/* Whether reading `value` at node `early` gives what node `late` reads. */
static bool same_at(const fx_graph *graph, fx_value value, int32_t early, int32_t late) {
  if (value == FX_NONE) return true;
  if (graph->values[value].node >= early) return false;
  for (int32_t n = early; n < late; n++)
    if (fx_node_runs(&graph->nodes[n]) &&
        fx_node_touches(graph, &graph->nodes[n], fx_value_range(graph, value), true))
      return false;
  return true;
}

/* Output i of node n, which may be absent, becomes output `to` of node `into`. */
static void move_output(fx_graph *graph, int32_t n, int i, int32_t into, int to) {
  fx_value value = graph->nodes[n].out[i];
  graph->nodes[n].out[i] = FX_NONE;
  graph->nodes[into].out[to] = value;
  if (value == FX_NONE) return;
  graph->values[value].node = into;
  graph->values[value].out = (int8_t)to;
}

/* act_grad at node n: dy * act'(pre) with dy = linear_dx. */
static bool fuse_act_grad(fx_graph *graph, int32_t n) {
  fx_node *late = &graph->nodes[n];
  fx_value gradient = late->in[0], pre = late->in[1];
  int32_t d = maker(graph, gradient);
  if (d < 0 || !fx_is_linear_dx(&graph->nodes[d]) || num_reads(graph, gradient) != 1) return false;
  fx_node *early = &graph->nodes[d];
  if (early->accumulate || !same_at(graph, pre, d, n)) return false;
  fx_linear_attr attr = {((const fx_linear_attr *)early->attr)->in_out,
                         ((const fx_linear_attr *)late->attr)->activation};
  const void *kept = fx_graph_copy_attr(graph, &attr, sizeof attr);
  if (!kept) return false; /* an optimisation: without memory it does nothing */
  early->op = fx_linear_dx_act_op();
  early->attr = kept;
  early->in[2] = pre;
  move_output(graph, n, 0, d, 0);
  late->dead = true;
  return true;
}

/* norm at node n of a sum. */
static bool fuse_norm(fx_graph *graph, int32_t n) {
  fx_node *late = &graph->nodes[n];
  fx_value sum = late->in[0];
  int32_t s = maker(graph, sum);
  if (s < 0 || !fx_is_add(&graph->nodes[s])) return false;
  fx_node *early = &graph->nodes[s];
  if (early->accumulate || late->accumulate) return false;
  if (!same_at(graph, late->in[1], s, n) || !same_at(graph, late->in[2], s, n)) return false;
  if (!same_at(graph, sum, s + 1, n)) return false;
  bool rows = fx_type_contiguous(&graph->values[early->in[0]].type) &&
              fx_type_contiguous(&graph->values[early->in[1]].type);
  if (!rows) return false;
  early->op = fx_add_norm_op();
  early->attr = late->attr;
  early->in[2] = late->in[1];
  early->in[3] = late->in[2];
  move_output(graph, s, 0, s, 3); /* dropped by the next pass when nothing else reads it */
  for (int i = 0; i < 3; i++) move_output(graph, n, i, s, i);
  late->dead = true;
  return true;
}

int fx_pass_fuse(fx_graph *graph) {
  int fused = 0;
  for (int32_t n = 0; n < graph->num_nodes; n++) {
    if (graph->nodes[n].dead) continue;
    if (fx_is_act_grad(&graph->nodes[n]))
      fused += fuse_act_grad(graph, n);
    else if (fx_is_norm(&graph->nodes[n]))
      fused += fuse_norm(graph, n);
  }
  return fused;
}
