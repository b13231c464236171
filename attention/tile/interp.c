/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/interp.h"

#include <stdlib.h>

#include "attention/tile/lane_plan.h"
#include "dynamo_rt/base/memory.h"

struct fx_interp {
  fx_lane_plan *plan;
};

fx_status fx_interp_create(const fx_ex_pool *pool, const fx_ex *outputs, int num_outputs, fx_interp **out) {
  FX_ASSERT(num_outputs <= FX_INTERP_MAX_OUTPUTS);
  fx_code *code;
  FX_TRY(fx_code_create(pool, outputs, num_outputs, &code));
  fx_lane_plan *plan;
  FX_TRY(fx_lane_plan_create(code, false, &plan));
  fx_interp *interp;
  fx_status status = fx_calloc(&interp, 1, sizeof *interp);
  if (status != FX_OK) {
    fx_lane_plan_destroy(plan);
    return status;
  }
  interp->plan = plan;
  *out = interp;
  return FX_OK;
}

void fx_interp_destroy(fx_interp *interp) {
  if (!interp) return;
  fx_lane_plan_destroy(interp->plan);
  free(interp);
}

void fx_interp_run(const fx_interp *interp, const fx_interp_inputs *inputs, int32_t h, int64_t n,
                   const int32_t *q, const int32_t *kv, const float *score, void *const *output) {
  const fx_lane_plan *plan = interp->plan;
  if (n < 1) return;
  fx_lane_plan_frame frame;
  fx_lane_plan_begin(plan, &frame, inputs->uniform, inputs->buffer, h);
  fx_lane_plan_run(&frame, FX_LANE_PLAN_IN_U, 1, 0);
  fx_lane_plan_run(&frame, FX_LANE_PLAN_B_ONCE, n < FX_LANE_PLAN_WIDTH ? n : FX_LANE_PLAN_WIDTH, 0);
  for (int64_t at = 0; at < n; at += FX_LANE_PLAN_WIDTH) {
    int64_t lanes = n - at < FX_LANE_PLAN_WIDTH ? n - at : FX_LANE_PLAN_WIDTH;
    if (q) frame.reg[FX_LANE_PLAN_Q] = (int32_t *)(uintptr_t)(q + at);
    if (kv) frame.reg[FX_LANE_PLAN_KV] = (int32_t *)(uintptr_t)(kv + at);
    if (score) frame.reg[FX_LANE_PLAN_SCORE] = (int32_t *)(uintptr_t)(score + at);
    for (int k = 0; k < plan->code->num_outputs; k++)
      frame.reg[FX_LANE_PLAN_OUTPUT + k] = (int32_t *)output[k] + at;
    fx_lane_plan_run(&frame, FX_LANE_PLAN_IN_B, lanes, 0);
  }
}
