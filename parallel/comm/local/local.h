/* SPDX-License-Identifier: Apache-2.0 */
/* In-process ranks: each rank is a thread (and its device's service thread) of one process. The transport of
 * unit tests and of single-process runs: the same contract as MPI, with cluster shapes of any size on one
 * laptop. Nothing is process-global: worlds are independent. */
#ifndef FX_PARALLEL_COMM_LOCAL_LOCAL_H
#define FX_PARALLEL_COMM_LOCAL_LOCAL_H

#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_local_world fx_local_world;

fx_status fx_local_world_create(int size, fx_local_world **out);
/* After every control channel and communicator of the world is destroyed and their threads are joined. NULL
 * is fine. */
void fx_local_world_destroy(fx_local_world *world);
/* The control channel of `rank`: one a rank, used by one thread at a time. */
fx_status fx_local_control(fx_local_world *world, int rank, fx_control **out);
/* What the death of a rank means to the others: every call in progress and every later one, on the control
 * channel and on all communicators, ends with FX_ERR_COMM. Any thread. */
void fx_local_world_abort(fx_local_world *world);

typedef fx_status (*fx_local_rank_fn)(fx_control *control, void *ctx);

/* Starts `size` threads, each runs fn(control, ctx) with the control channel of its rank (destroyed
 * afterwards), joins them. A rank that fails aborts the world, so that the others do not wait for it. Returns
 * the failure that came first in time, its sentence (prefixed with the rank) as the caller's error text. */
fx_status fx_local_run(int size, fx_local_rank_fn fn, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
