/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: a reference graph, scheduled on lanes and placed in memory, ready to run again and again.
 *
 *   fx_plan_prepare   passes, schedule, arena layout; touches no device memory and no network
 *   (agreement)       ranks compare ledgers: parallel/agree
 *   fx_plan_bind      gives the plan its arena; one arena serves all plans of a step, which never overlap
 *   fx_plan_run       replays; allocates nothing, and at its end every lane is joined with the compute lane
 *
 * Two executors run the same graph: `replay` on lanes in the planned arena, `eager` node by node in fresh,
 * poisoned buffers. Their results are bitwise equal. Where the device records (CUDA graphs), replay makes one
 * recording a slot in the second run and runs it from then on; fx_plan_launch_kernels goes back to kernel by
 * kernel, again with the same bits. */
#ifndef FX_DYNAMO_RT_PLAN_PLAN_H
#define FX_DYNAMO_RT_PLAN_PLAN_H

#include "dynamo_rt/base/log.h"
#include "dynamo_rt/exec/trace.h"
#include "dynamo_rt/graph/graph.h"
#include "dynamo_rt/plan/arena.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_exec_mode { FX_EXEC_REPLAY, FX_EXEC_EAGER } fx_exec_mode;

typedef struct fx_plan_options {
  const char *name; /* schedule phase, e.g. "micro_only"; borrowed */
  fx_exec_mode mode;
  bool poison;  /* replay: fill dead arena ranges with NaN bytes (tests) */
  bool unfused; /* leave apart what fx_pass_fuse would merge (tests) */
} fx_plan_options;

typedef struct fx_plan fx_plan;

typedef struct fx_plan_stats {
  int nodes, collectives, waits; /* kernels a run, collectives among them, event waits between lanes */
  fx_arena_plan arena;           /* zero in eager mode */
  size_t workspace_bytes;        /* largest kernel scratch, inside the arena */
  fx_cost cost;                  /* of all kernels of one run */
} fx_plan_stats;

/* Takes the graph, whatever comes out. The device is borrowed. */
fx_status fx_plan_prepare(fx_graph *graph, fx_plan_options options, fx_device *device, fx_plan **out);
/* Also connects the plan's communicators and binds its collectives: collective over their groups. arena:
 * fx_plan_stats.arena.bytes or more, 64-byte aligned, borrowed; ignored in eager mode. */
fx_status fx_plan_bind(fx_plan *plan, void *arena);
/* Runs on the calling thread with the runtime inputs of `slot`; on a GPU it returns when the work is queued.
 */
fx_status fx_plan_run(fx_plan *plan, int slot);
void fx_plan_destroy(fx_plan *plan); /* NULL is fine */

const char *fx_plan_name(const fx_plan *plan);
const fx_plan_stats *fx_plan_stats_get(const fx_plan *plan);
/* Arithmetic and bytes of kernel number `index` (0 .. nodes - 1, in running order); *name: its op. */
fx_cost fx_plan_step_cost(const fx_plan *plan, int index, const char **name);
const fx_graph *fx_plan_graph(const fx_plan *plan);
/* Whether replays run recordings from the second run on. */
bool fx_plan_records(const fx_plan *plan);
/* true: launch kernel by kernel from now on; false: recordings again. Their results are the same bits. */
void fx_plan_launch_kernels(fx_plan *plan, bool launched);
/* Records one span a kernel from now on (launched one by one meanwhile); NULL stops. */
void fx_plan_set_trace(fx_plan *plan, fx_trace *trace);

#ifdef __cplusplus
}
#endif
#endif
