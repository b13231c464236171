/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as ops of the graph. They run on a communication lane; what they read or write orders them
 * against compute by the schedule's events. The same calls are recorded on every rank of the communicator, in
 * the same order. */
#ifndef FX_PARALLEL_COLLECTIVE_H
#define FX_PARALLEL_COLLECTIVE_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x := sum (or max) over the group, in place, in rank order. x contiguous; returns its value after the sum.
 */
fx_value fx_all_reduce(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, fx_reduce reduce);
/* The sum over the group as a new value, the same on every rank; x stays. Its backward passes the gradient
 * on as it is: what follows is replicated, so every rank has all of it. */
fx_value fx_sum_ranks(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x);
/* x := x of rank `root`, in place. */
fx_value fx_broadcast(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, int root);
/* x [size * n, ...] -> the summed block of this rank [n, ...]. Its backward is all_gather. */
fx_value fx_reduce_scatter(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x);
/* x [n, ...] -> all blocks in rank order [size * n, ...]. Its backward is reduce_scatter. */
fx_value fx_all_gather(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x);
/* The same where the backward gathers once more rather than keep all blocks until then: 1 / size of the
 * memory between the two. */
fx_value fx_all_gather_again(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x);
/* x [size * n, ...] whose block of this rank is set -> all blocks, in place. Not differentiable. */
fx_value fx_all_gather_in_place(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x);
/* Sends x to rank `to`, returns what came from rank `from`, of the same type. Its backward shifts the other
 * way. */
fx_value fx_send_recv(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, int to, int from);
/* One-sided halves for pipelines; not differentiable. */
void fx_send(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, int to);
fx_value fx_recv(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value into,
                 int from); /* overwrites `into` */

#ifdef __cplusplus
}
#endif
#endif
