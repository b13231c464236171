/* SPDX-License-Identifier: Apache-2.0 */
/* Where transient storages live: first and last step, in-place merges, offsets.
 *
 * A step on a communication lane may still run while later compute steps do, so what it touches stays alive
 * until the first later compute step that depends on it (which will wait for it), or until the next step of
 * its lane: by then it is most likely done, and should it not be, whoever takes the memory over waits for it
 * (schedule.c). Thus two buffers serve a row of reductions whose results nobody reads in this plan.
 */
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/range.h"
#include "dynamo_rt/plan/plan_internal.h"

typedef void (*visit_fn)(fx_plan *plan, int32_t step, fx_value value, bool write);

static void for_values(fx_plan *plan, int32_t step, visit_fn visit) {
  const fx_node *node = &plan->graph->nodes[plan->steps[step].node];
  for (int i = 0; i < node->op->max_in; i++)
    if (node->in[i] != FX_NONE) visit(plan, step, node->in[i], false);
  for (int i = 0; i < node->op->num_out; i++)
    if (node->out[i] != FX_NONE) visit(plan, step, node->out[i], true);
}

static void extend(fx_plan *plan, int32_t step, fx_value value, bool write) {
  (void)write;
  int32_t storage = plan->graph->values[value].storage, index = plan->block_of[storage];
  if (index < 0) return;
  fx_block *block = &plan->blocks[index];
  if (block->bytes == 0) {
    block->bytes = plan->graph->storages[storage].bytes;
    block->first = step;
  }
  if (step > block->last) block->last = step;
}

/* First later compute step that must wait for step i, or step of its lane, or the last step of the plan. */
static int32_t completion(const fx_plan *plan, int32_t i) {
  const fx_graph *graph = plan->graph;
  const fx_node *node = &graph->nodes[plan->steps[i].node];
  for (int32_t j = i + 1; j < plan->num_steps; j++) {
    const fx_node *later = &graph->nodes[plan->steps[j].node];
    if (plan->steps[j].lane == plan->steps[i].lane) return j;
    if (plan->steps[j].lane != FX_LANE_COMPUTE) continue;
    for (int k = 0; k < node->op->num_out; k++)
      if (node->out[k] != FX_NONE &&
          fx_node_touches(graph, later, fx_value_range(graph, node->out[k]), false))
        return j;
    for (int k = 0; k < node->op->max_in; k++)
      if (node->in[k] != FX_NONE && fx_node_touches(graph, later, fx_value_range(graph, node->in[k]), true))
        return j;
  }
  return plan->num_steps - 1;
}

/* Output k takes over the memory of an input that dies here, where the op's kernels allow it. */
static void merge_in_place(fx_plan *plan, int32_t i, int k) {
  const fx_graph *graph = plan->graph;
  const fx_step *step = &plan->steps[i];
  const fx_node *node = &graph->nodes[step->node];
  int alias = node->op->may_alias[k];
  if (!alias || node->accumulate || step->lane != FX_LANE_COMPUTE || node->out[k] == FX_NONE) return;
  const fx_value_info *in = &graph->values[node->in[alias - 1]], *out = &graph->values[node->out[k]];
  int32_t from = plan->block_of[out->storage], to = plan->block_of[in->storage];
  if (from < 0 || to < 0 || from == to) return;
  for (int j = 0; j < k; j++) /* two outputs of one input that is given twice */
    if (node->out[j] != FX_NONE && plan->block_of[graph->values[node->out[j]].storage] == to) return;
  fx_block *old = &plan->blocks[to], *fresh = &plan->blocks[from];
  bool fits = old->last == i && fresh->first == i && old->bytes == fresh->bytes && in->offset == 0 &&
              out->offset == 0 && fx_type_bytes(&in->type) == old->bytes &&
              fx_type_bytes(&out->type) == old->bytes && fx_type_contiguous(&in->type) &&
              fx_type_contiguous(&out->type);
  if (!fits) return;
  old->last = fresh->last;
  fresh->bytes = 0;
  for (int64_t s = 0; s < graph->num_storages; s++)
    if (plan->block_of[s] == from) plan->block_of[s] = to;
}

fx_status fx_plan_place(fx_plan *plan) {
  const fx_graph *graph = plan->graph;
  plan->num_blocks = graph->num_storages + plan->num_steps;
  FX_TRY(fx_calloc(&plan->blocks, (size_t)plan->num_blocks, sizeof *plan->blocks));
  FX_TRY(fx_calloc(&plan->block_of, (size_t)graph->num_storages, sizeof *plan->block_of));
  for (int64_t s = 0; s < graph->num_storages; s++) {
    plan->block_of[s] = graph->storages[s].persistent ? -1 : (int32_t)s;
    plan->blocks[s].last = -1;
  }
  for (int32_t i = 0; i < plan->num_steps; i++) {
    fx_step *step = &plan->steps[i];
    for_values(plan, i, extend);
    if (step->lane != FX_LANE_COMPUTE) {
      int32_t until = completion(plan, i);
      const fx_node *node = &graph->nodes[step->node];
      for (int k = 0; k < node->op->max_in; k++)
        if (node->in[k] != FX_NONE) extend(plan, until, node->in[k], false);
      for (int k = 0; k < node->op->num_out; k++)
        if (node->out[k] != FX_NONE) extend(plan, until, node->out[k], true);
    }
    if (!step->workspace_bytes) continue;
    step->workspace_block = (int32_t)graph->num_storages + i;
    plan->blocks[step->workspace_block] = (fx_block){.bytes = step->workspace_bytes, .first = i, .last = i};
  }
  if (plan->options.mode == FX_EXEC_EAGER) return FX_OK; /* every storage is its own buffer there */
  for (int32_t i = 0; i < plan->num_steps; i++)
    for (int k = 0; k < FX_MAX_OUT; k++) merge_in_place(plan, i, k);
  return fx_arena_plan_blocks(plan->blocks, plan->num_blocks, &plan->stats.arena);
}
