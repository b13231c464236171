/* SPDX-License-Identifier: Apache-2.0 */
/* Replay: walk the steps, wait where the schedule says so, launch. Allocates nothing. */
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/plan/plan_internal.h"

/* A span where the host's clock is not the device's comes from launch_traced. */
fx_status fx_step_run(void *arg, void *stream) {
  fx_step *step = arg;
  const fx_plan *plan = step->plan;
  const fx_node *node = &plan->graph->nodes[step->node];
  bool traced = plan->trace && !plan->device->vtable->launch_timed;
  int64_t begin = traced ? fx_now_ns() : 0;
  step->args.stream = stream;
  fx_status status = node->op->kernel[plan->device->backend](&step->args);
  if (traced)
    fx_trace_add(plan->trace,
                 (fx_trace_span){node->op->name, (int32_t)step->lane, node->layer, begin, fx_now_ns()});
  return status == FX_OK
             ? FX_OK
             : fx_error_prefix(status, "%s (recorded at %s:%d)", node->op->name, node->file, node->line);
}

/* Alone on the device: its time is right, the overlap of lanes is lost. */
static fx_status launch_traced(fx_plan *plan, fx_step *step) {
  const fx_node *node = &plan->graph->nodes[step->node];
  int64_t begin = fx_now_ns(), took = 0;
  FX_TRY(plan->device->vtable->launch_timed(plan->device, step->lane, fx_step_run, step, &took));
  fx_trace_add(plan->trace,
               (fx_trace_span){node->op->name, (int32_t)step->lane, node->layer, begin, begin + took});
  return FX_OK;
}

/* Blocks whose last step this was. A communication step may still be running: it is waited for, so poisoning
 * costs overlap; it is a mode for tests. */
static fx_status poison_dead(fx_plan *plan, int32_t step) {
  bool last = step == plan->num_steps - 1;
  if (last || plan->steps[step].lane != FX_LANE_COMPUTE) FX_TRY(fx_device_sync(plan->device));
  for (int64_t b = 0; b < plan->num_blocks; b++)
    if (plan->blocks[b].bytes && plan->blocks[b].last == step)
      FX_TRY(fx_device_fill(plan->device, FX_LANE_COMPUTE, plan->arena + plan->blocks[b].offset, 0xFF,
                            plan->blocks[b].bytes));
  return FX_OK;
}

fx_status fx_exec_launch(fx_plan *plan, int slot) {
  fx_device *device = plan->device;
  const void *inputs = plan->graph->inputs ? fx_inputs_slot(plan->graph->inputs, slot) : NULL;
  if (plan->begin) FX_TRY(device->vtable->event_record(device, FX_LANE_COMPUTE, plan->begin));
  for (int l = 0; l < FX_LANE_COUNT; l++)
    if (plan->begin_wait[l]) FX_TRY(device->vtable->event_wait(device, (fx_lane)l, plan->begin));
  for (int32_t i = 0; i < plan->num_steps; i++) {
    fx_step *step = &plan->steps[i];
    for (int l = 0; l < FX_LANE_COUNT; l++)
      if (step->wait[l] >= 0)
        FX_TRY(device->vtable->event_wait(device, step->lane, plan->steps[step->wait[l]].event));
    step->args.slot = inputs;
    if (plan->trace && device->vtable->launch_timed)
      FX_TRY(launch_traced(plan, step));
    else
      FX_TRY(device->vtable->launch(device, step->lane, fx_step_run, step));
    if (step->event) FX_TRY(device->vtable->event_record(device, step->lane, step->event));
    if (plan->options.poison) FX_TRY(poison_dead(plan, i));
  }
  for (int l = 0; l < FX_LANE_COUNT; l++)
    if (plan->final_wait[l] >= 0)
      FX_TRY(device->vtable->event_wait(device, FX_LANE_COMPUTE, plan->steps[plan->final_wait[l]].event));
  return FX_OK;
}
