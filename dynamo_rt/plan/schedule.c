/* SPDX-License-Identifier: Apache-2.0 */
/* Event waits. Steps stay in program order within their lane; across lanes a step must wait for every earlier
 * step it conflicts with (one of them writes bytes that the other touches: read after write, write after
 * read, write after write, reuse of arena bytes included). Waits that follow from earlier ones are left out:
 * each lane carries a clock of the latest step of every lane it knows to be done, as vector clocks do. A lane
 * that begins with a step of no such predecessor waits for the compute lane's work of earlier plans. */
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/range.h"
#include "dynamo_rt/plan/plan_internal.h"

typedef struct span {
  int32_t place; /* storage number of a persistent one, -1: the arena */
  int64_t begin, end;
  bool write;
} span;

enum { MAX_SPANS = FX_MAX_IN + FX_MAX_OUT + 1 };

typedef struct spans {
  span item[MAX_SPANS];
  int count;
} spans;

static void add_span(const fx_plan *plan, fx_value value, bool write, spans *out) {
  fx_range range = fx_value_range(plan->graph, value);
  int32_t block = plan->block_of[range.storage];
  span s = {range.storage, range.begin, range.end, write};
  if (block >= 0) {
    int64_t base = (int64_t)plan->blocks[block].offset;
    s = (span){-1, base + range.begin, base + range.end, write};
  }
  out->item[out->count++] = s;
}

static void step_spans(const fx_plan *plan, int32_t i, spans *out) {
  const fx_step *step = &plan->steps[i];
  const fx_node *node = &plan->graph->nodes[step->node];
  out->count = 0;
  for (int k = 0; k < node->op->max_in; k++)
    if (node->in[k] != FX_NONE) add_span(plan, node->in[k], false, out);
  for (int k = 0; k < node->op->num_out; k++)
    if (node->out[k] != FX_NONE) add_span(plan, node->out[k], true, out);
  if (step->workspace_block >= 0) {
    const fx_block *block = &plan->blocks[step->workspace_block];
    out->item[out->count++] =
        (span){-1, (int64_t)block->offset, (int64_t)(block->offset + block->bytes), true};
  }
}

static bool conflict(const spans *a, const spans *b) {
  for (int i = 0; i < a->count; i++)
    for (int j = 0; j < b->count; j++) {
      const span *x = &a->item[i], *y = &b->item[j];
      if ((x->write || y->write) && x->place == y->place && x->begin < y->end && y->begin < x->end)
        return true;
    }
  return false;
}

static void merge_clock(int32_t into[FX_LANE_COUNT], const int32_t from[FX_LANE_COUNT]) {
  for (int l = 0; l < FX_LANE_COUNT; l++)
    if (from[l] > into[l]) into[l] = from[l];
}

static fx_status need_event(fx_plan *plan, int32_t step) {
  if (plan->steps[step].event) return FX_OK;
  return plan->device->vtable->event_create(plan->device, &plan->steps[step].event);
}

fx_status fx_plan_order(fx_plan *plan) {
  int32_t(*clock)[FX_LANE_COUNT] = NULL; /* [steps]: what is known done once this step is */
  spans *touched = NULL;
  int32_t lane_clock[FX_LANE_COUNT][FX_LANE_COUNT], last[FX_LANE_COUNT];
  fx_status status = FX_OK;
  for (int l = 0; l < FX_LANE_COUNT; l++) {
    last[l] = -1;
    for (int k = 0; k < FX_LANE_COUNT; k++) lane_clock[l][k] = -1;
  }
  FX_TRY_GOTO(fx_calloc(&clock, (size_t)plan->num_steps, sizeof *clock), free_scratch);
  FX_TRY_GOTO(fx_calloc(&touched, (size_t)plan->num_steps, sizeof *touched), free_scratch);
  for (int32_t i = 0; i < plan->num_steps; i++) {
    fx_step *step = &plan->steps[i];
    int32_t *known = lane_clock[step->lane];
    step_spans(plan, i, &touched[i]);
    for (int32_t j = i - 1; j >= 0; j--) {
      fx_lane other = plan->steps[j].lane;
      if (other == step->lane || j <= known[other] || !conflict(&touched[i], &touched[j])) continue;
      step->wait[other] = j;
      merge_clock(known, clock[j]);
      FX_TRY_GOTO(need_event(plan, j), free_scratch);
      plan->stats.waits++;
    }
    if (step->lane != FX_LANE_COMPUTE && last[step->lane] < 0 && step->wait[FX_LANE_COMPUTE] < 0) {
      plan->begin_wait[step->lane] = true;
      if (!plan->begin)
        FX_TRY_GOTO(plan->device->vtable->event_create(plan->device, &plan->begin), free_scratch);
    }
    known[step->lane] = i;
    merge_clock(clock[i], known);
    last[step->lane] = i;
  }
  for (int l = 0; l < FX_LANE_COUNT; l++) {
    plan->final_wait[l] = -1;
    if (l == FX_LANE_COMPUTE || last[l] <= lane_clock[FX_LANE_COMPUTE][l]) continue;
    plan->final_wait[l] = last[l];
    FX_TRY_GOTO(need_event(plan, last[l]), free_scratch);
    plan->stats.waits++;
  }
free_scratch:
  free(touched);
  free(clock);
  return status;
}
