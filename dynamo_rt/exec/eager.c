/* SPDX-License-Identifier: Apache-2.0 */
/* Eager: the reference. Node by node on one lane, every storage in a buffer of its own that is poisoned when
 * it is made and again before it is freed, so that a lifetime or aliasing mistake of the planner cannot
 * repeat itself here. */
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/plan/plan_internal.h"

static fx_status get_buffer(fx_plan *plan, char **buffers, int32_t block) {
  if (buffers[block]) return FX_OK;
  void *memory = NULL;
  FX_TRY(fx_device_alloc(plan->device, plan->blocks[block].bytes, &memory));
  buffers[block] = memory;
  return fx_device_fill(plan->device, FX_LANE_COMPUTE, memory, 0xFF,
                        plan->blocks[block].bytes); /* NaN in every float type */
}

/* A fill that fails leaves the poison out; the failure behind it comes out of the next step. */
static void drop_buffer(fx_plan *plan, char **buffers, int64_t block) {
  if (!buffers[block]) return;
  (void)fx_device_fill(plan->device, FX_LANE_COMPUTE, buffers[block], 0xFF, plan->blocks[block].bytes);
  fx_device_release(plan->device, buffers[block]);
  buffers[block] = NULL;
}

static fx_status resolve(fx_plan *plan, char **buffers, fx_value value, void **out) {
  const fx_value_info *info = &plan->graph->values[value];
  const fx_storage *storage = &plan->graph->storages[info->storage];
  char *base = storage->data;
  if (!storage->persistent) {
    FX_TRY(get_buffer(plan, buffers, info->storage));
    base = buffers[info->storage];
  }
  *out = base + info->offset;
  return FX_OK;
}

static fx_status run_step(fx_plan *plan, fx_step *step, char **buffers, const void *inputs) {
  const fx_node *node = &plan->graph->nodes[step->node];
  for (int k = 0; k < node->op->max_in; k++)
    if (node->in[k] != FX_NONE) FX_TRY(resolve(plan, buffers, node->in[k], &step->in[k].data));
  for (int k = 0; k < node->op->num_out; k++)
    if (node->out[k] != FX_NONE) FX_TRY(resolve(plan, buffers, node->out[k], &step->out[k].data));
  if (step->workspace_block >= 0) {
    FX_TRY(get_buffer(plan, buffers, step->workspace_block));
    step->args.workspace = buffers[step->workspace_block];
  }
  step->args.slot = inputs;
  FX_TRY(fx_device_launch(plan->device, step->lane, fx_step_run, step));
  if (plan->device->backend == FX_BACKEND_CPU && step->lane == FX_LANE_COMPUTE) return FX_OK; /* it is done */
  fx_status status = fx_device_sync(plan->device);
  return status == FX_OK
             ? FX_OK
             : fx_error_prefix(status, "%s (recorded at %s:%d)", node->op->name, node->file, node->line);
}

fx_status fx_exec_eager(fx_plan *plan, int slot) {
  const void *inputs = plan->graph->inputs ? fx_inputs_slot(plan->graph->inputs, slot) : NULL;
  char **buffers = NULL; /* [blocks] */
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&buffers, (size_t)plan->num_blocks, sizeof *buffers));
  for (int32_t i = 0; i < plan->num_steps; i++) {
    FX_TRY_GOTO(run_step(plan, &plan->steps[i], buffers, inputs), free_buffers);
    for (int64_t b = 0; b < plan->num_blocks; b++)
      if (buffers[b] && plan->blocks[b].last <= i) drop_buffer(plan, buffers, b);
  }
  /* Without poison: on a device that has failed a fill fails too, and its sentence would be the last one. */
free_buffers:
  for (int64_t b = 0; b < plan->num_blocks; b++) fx_device_release(plan->device, buffers[b]);
  free(buffers);
  return status;
}
