/* SPDX-License-Identifier: Apache-2.0 */
/* Replay through recordings (CUDA graphs) where the device can: the first run of a plan launches its kernels
 * one by one, which loads and chooses whatever is loaded and chosen late; from the second run on, each slot
 * of runtime inputs has a recording of the same walk, because a recording holds addresses. The kernels, their
 * order and their arguments are the same, so the bits are. */
#include "dynamo_rt/plan/plan_internal.h"

static bool records(const fx_plan *plan, int slot) {
  return plan->device->vtable->record_begin && !plan->launched && !plan->options.poison && !plan->trace &&
         slot < FX_PLAN_SLOTS;
}

static fx_status record(fx_plan *plan, int slot) {
  fx_device *device = plan->device;
  unsigned lanes = 0;
  for (int32_t i = 0; i < plan->num_steps; i++) lanes |= 1u << plan->steps[i].lane;
  FX_TRY(device->vtable->record_begin(device, lanes));
  fx_status status = fx_exec_launch(plan, slot);
  if (status == FX_OK) return device->vtable->record_end(device, &plan->recording[slot]);
  (void)device->vtable->record_end(device, NULL); /* the failure before it is the one to report */
  return status;
}

fx_status fx_exec_replay(fx_plan *plan, int slot) {
  if (!plan->warm || !records(plan, slot)) {
    FX_TRY(fx_exec_launch(plan, slot));
    plan->warm = true;
    return FX_OK;
  }
  if (!plan->recording[slot]) FX_TRY(record(plan, slot));
  return plan->device->vtable->recording_run(plan->device, plan->recording[slot]);
}

void fx_exec_forget(fx_plan *plan) {
  for (int slot = 0; slot < FX_PLAN_SLOTS; slot++) {
    if (plan->recording[slot]) plan->device->vtable->recording_destroy(plan->device, plan->recording[slot]);
    plan->recording[slot] = NULL;
  }
}
