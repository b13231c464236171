/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of a plan, for its scheduler, the executors and the tests that break them on purpose. */
#ifndef FX_DYNAMO_RT_PLAN_PLAN_INTERNAL_H
#define FX_DYNAMO_RT_PLAN_PLAN_INTERNAL_H

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/plan/plan.h"

typedef struct fx_step {
  int32_t node; /* of the graph */
  fx_lane lane;
  int32_t wait[FX_LANE_COUNT]; /* steps of other lanes to wait for before this one, or -1 */
  fx_event *event;             /* recorded after it when another lane waits for it */
  fx_kernel_args args;
  fx_tensor in[FX_MAX_IN], out[FX_MAX_OUT];
  fx_cost cost;
  size_t workspace_bytes;
  int32_t workspace_block; /* of the arena, or -1 */
  struct fx_plan *plan;
} fx_step;

enum { FX_PLAN_SLOTS = 4 }; /* slots of runtime inputs that have a recording of their own */

struct fx_plan {
  fx_graph *graph;
  fx_device *device;
  fx_plan_options options;
  fx_plan_stats stats;
  fx_step *steps;
  int32_t num_steps;
  bool begin_wait[FX_LANE_COUNT];    /* lanes whose first step waits for nothing in the plan: for what was
                                        queued before it, then */
  fx_event *begin;                   /* or NULL: no lane does */
  int32_t final_wait[FX_LANE_COUNT]; /* steps that the end of the run joins, or -1 */
  fx_block *blocks;                  /* [storages + steps]: transient storages, then workspaces */
  int32_t *block_of; /* [storages]: the block a storage lives in (in-place merges), -1: persistent */
  int64_t num_blocks;
  char *arena;
  fx_trace *trace;
  bool warm;     /* has run */
  bool launched; /* kernels are launched one by one even where the device records */
  fx_recording *recording[FX_PLAN_SLOTS];
};

/* plan/lifetime.c: block lifetimes, in-place merges, arena offsets. Needs steps; fills blocks and block_of.
 */
fx_status fx_plan_place(fx_plan *plan);
/* plan/schedule.c: event waits between lanes, from the conflicts of the placed bytes. */
fx_status fx_plan_order(fx_plan *plan);
/* exec/record.c: replay, and dropping recordings whose addresses are no longer right; exec/replay.c: kernel
 * by kernel; exec/eager.c. */
fx_status fx_exec_replay(fx_plan *plan, int slot);
void fx_exec_forget(fx_plan *plan);
fx_status fx_exec_launch(fx_plan *plan, int slot);
fx_status fx_exec_eager(fx_plan *plan, int slot);
/* Runs a step's kernel and records its span; the task of every lane. */
fx_status fx_step_run(void *step, void *stream);

#endif
