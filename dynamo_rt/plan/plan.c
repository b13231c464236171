/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"
#include "dynamo_rt/plan/plan_internal.h"

/* An op without a cost of its own is taken to move its inputs and outputs once. */
static fx_cost cost_of(const fx_node *node, const fx_type *const *in, const fx_type *out) {
  if (node->op->cost) return node->op->cost(in, out, node->attr);
  fx_cost cost = {0, 0};
  for (int i = 0; i < node->op->max_in; i++)
    if (in[i]) cost.bytes += (double)fx_type_numel(in[i]) * (double)fx_dtype_bytes(in[i]->dtype);
  for (int i = 0; i < node->op->num_out; i++)
    if (node->out[i] != FX_NONE)
      cost.bytes += (double)fx_type_numel(&out[i]) * (double)fx_dtype_bytes(out[i].dtype);
  return cost;
}

static bool has_bf16(const fx_graph *graph, const fx_value *values, int count) {
  bool found = false;
  for (int i = 0; i < count; i++)
    found = found || (values[i] != FX_NONE && graph->values[values[i]].type.dtype == FX_BF16);
  return found;
}

static fx_status check_kernel(const fx_plan *plan, const fx_node *node) {
  const fx_op *op = node->op;
  if (!op->kernel[plan->device->backend])
    return fx_error(FX_ERR_UNSUPPORTED, "op %s has no kernel for the %s backend", op->name,
                    plan->device->vtable->name);
  bool bf16 = has_bf16(plan->graph, node->in, op->max_in) || has_bf16(plan->graph, node->out, op->num_out);
  if (bf16 && plan->device->backend == FX_BACKEND_CPU && !op->bf16_cpu)
    return fx_error(FX_ERR_UNSUPPORTED, "op %s has no bfloat16 kernel on the CPU; use float32 there",
                    op->name);
  return FX_OK;
}

/* Everything of a step but its addresses. */
static fx_status make_step(fx_plan *plan, int64_t n, fx_step *step) {
  const fx_graph *graph = plan->graph;
  const fx_node *node = &graph->nodes[n];
  const fx_type *in[FX_MAX_IN] = {0};
  fx_type out[FX_MAX_OUT];
  memset(out, 0, sizeof out);
  *step = (fx_step){.node = (int32_t)n, .workspace_block = -1, .plan = plan};
  for (int l = 0; l < FX_LANE_COUNT; l++) step->wait[l] = -1;
  FX_TRY(check_kernel(plan, node));
  if (node->op->effects & FX_EFFECT_COLLECTIVE) {
    step->lane = (fx_lane)((const fx_collective_attr *)node->attr)->lane;
    plan->stats.collectives++;
  }
  for (int i = 0; i < node->op->max_in; i++) {
    if (node->in[i] == FX_NONE) continue;
    step->in[i].type = graph->values[node->in[i]].type;
    step->args.in[i] = &step->in[i];
    in[i] = &step->in[i].type;
  }
  for (int i = 0; i < node->op->num_out; i++) {
    if (node->out[i] == FX_NONE) continue;
    out[i] = step->out[i].type = graph->values[node->out[i]].type;
    step->args.out[i] = &step->out[i];
  }
  bool own = plan->device->backend == FX_BACKEND_CUDA && node->op->workspace_cuda;
  if (own)
    step->workspace_bytes = node->op->workspace_cuda(in, out, node->attr, plan->device->threads);
  else if (node->op->workspace)
    step->workspace_bytes = node->op->workspace(in, out, node->attr, plan->device->threads);
  if (step->workspace_bytes > plan->stats.workspace_bytes)
    plan->stats.workspace_bytes = step->workspace_bytes;
  step->args.attr = node->attr;
  step->args.accumulate = node->accumulate;
  step->args.threads = plan->device->threads;
  step->args.layer = node->layer;
  step->args.gemm = plan->device->gemm;
  step->cost = cost_of(node, in, out);
  plan->stats.cost.flops += step->cost.flops;
  plan->stats.cost.bytes += step->cost.bytes;
  return FX_OK;
}

static fx_status make_steps(fx_plan *plan) {
  FX_TRY(fx_calloc(&plan->steps, (size_t)plan->graph->num_nodes, sizeof *plan->steps));
  for (int64_t n = 0; n < plan->graph->num_nodes; n++) {
    if (!fx_node_runs(&plan->graph->nodes[n])) continue;
    FX_TRY(make_step(plan, n, &plan->steps[plan->num_steps]));
    plan->num_steps++;
  }
  plan->stats.nodes = plan->num_steps;
  return FX_OK;
}

fx_status fx_plan_prepare(fx_graph *graph, fx_plan_options options, fx_device *device, fx_plan **out) {
  fx_plan *plan = NULL;
  fx_status status = fx_calloc(&plan, 1, sizeof *plan);
  if (status != FX_OK) {
    fx_graph_destroy(graph);
    return status;
  }
  plan->graph = graph;
  plan->device = device;
  plan->options = options;
  FX_TRY_GOTO(fx_graph_optimize(graph, !options.unfused), destroy_plan);
  FX_TRY_GOTO(make_steps(plan), destroy_plan);
  FX_TRY_GOTO(fx_plan_place(plan), destroy_plan);
  FX_TRY_GOTO(fx_plan_order(plan), destroy_plan);
  *out = plan;
  return FX_OK;
destroy_plan:
  fx_plan_destroy(plan);
  return fx_error_prefix(status, "plan %s", options.name);
}

static void *address(const fx_plan *plan, fx_value value) {
  const fx_value_info *info = &plan->graph->values[value];
  const fx_storage *storage = &plan->graph->storages[info->storage];
  if (storage->persistent) return (char *)storage->data + info->offset;
  return plan->arena + plan->blocks[plan->block_of[info->storage]].offset + info->offset;
}

/* Agreed with the other ranks, so they open the same communicators in the same order. */
static fx_status open_comms(const fx_plan *plan) {
  for (int32_t i = 0; i < plan->num_steps; i++) {
    const fx_node *node = &plan->graph->nodes[plan->steps[i].node];
    if (node->op->effects & FX_EFFECT_COLLECTIVE)
      FX_TRY(fx_comm_open(((const fx_collective_attr *)node->attr)->comm));
  }
  return FX_OK;
}

fx_status fx_plan_bind(fx_plan *plan, void *arena) {
  FX_TRY(open_comms(plan));
  if (plan->options.mode == FX_EXEC_EAGER) return FX_OK;
  if (plan->arena != arena) fx_exec_forget(plan);
  plan->arena = arena;
  for (int32_t i = 0; i < plan->num_steps; i++) {
    fx_step *step = &plan->steps[i];
    const fx_node *node = &plan->graph->nodes[step->node];
    for (int k = 0; k < node->op->max_in; k++)
      if (node->in[k] != FX_NONE) step->in[k].data = address(plan, node->in[k]);
    for (int k = 0; k < node->op->num_out; k++)
      if (node->out[k] != FX_NONE) step->out[k].data = address(plan, node->out[k]);
    if (step->workspace_block >= 0)
      step->args.workspace = plan->arena + plan->blocks[step->workspace_block].offset;
    if (node->op->bind) FX_TRY(node->op->bind(&step->args));
  }
  return FX_OK;
}

fx_status fx_plan_run(fx_plan *plan, int slot) {
  fx_status status =
      plan->options.mode == FX_EXEC_EAGER ? fx_exec_eager(plan, slot) : fx_exec_replay(plan, slot);
  return status == FX_OK ? FX_OK : fx_error_prefix(status, "plan %s", plan->options.name);
}

void fx_plan_destroy(fx_plan *plan) {
  if (!plan) return;
  fx_exec_forget(plan);
  for (int32_t i = 0; i < plan->num_steps; i++)
    if (plan->steps[i].event) plan->device->vtable->event_destroy(plan->device, plan->steps[i].event);
  if (plan->begin) plan->device->vtable->event_destroy(plan->device, plan->begin);
  free(plan->steps);
  free(plan->blocks);
  free(plan->block_of);
  fx_graph_destroy(plan->graph);
  free(plan);
}

const char *fx_plan_name(const fx_plan *plan) {
  return plan->options.name;
}
const fx_plan_stats *fx_plan_stats_get(const fx_plan *plan) {
  return &plan->stats;
}
fx_cost fx_plan_step_cost(const fx_plan *plan, int index, const char **name) {
  *name = plan->graph->nodes[plan->steps[index].node].op->name;
  return plan->steps[index].cost;
}

const fx_graph *fx_plan_graph(const fx_plan *plan) {
  return plan->graph;
}
bool fx_plan_records(const fx_plan *plan) {
  return plan->options.mode == FX_EXEC_REPLAY && plan->device->vtable->record_begin && !plan->launched;
}
void fx_plan_launch_kernels(fx_plan *plan, bool launched) {
  plan->launched = launched;
}
void fx_plan_set_trace(fx_plan *plan, fx_trace *trace) {
  plan->trace = trace;
}
