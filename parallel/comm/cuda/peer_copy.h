/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange between the GPUs of one host by their copy engines, under a communicator: each rank reads what it
 * needs straight from the other's buffer (CUDA IPC). No multiprocessor works for it, so it takes nothing from
 * the kernels beside it but some of the memory's time, where a kernel that copies is slowed to a third by a
 * product and slows it in turn (tests/bench/RESULTS.md).
 *
 * Ranks wait for each other by words in the GPU's memory that streams write and wait for: before a copy for
 * the data to be there, after it for the reader to be done. A word is 0 again once it has been waited for, so
 * calls can be recorded into a CUDA graph and run any number of times. */
#ifndef FX_PARALLEL_COMM_CUDA_PEER_COPY_H
#define FX_PARALLEL_COMM_CUDA_PEER_COPY_H

#include <stdbool.h>

#include "dynamo_rt/comm/comm.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_peer_copy fx_peer_copy;

/* What a group needs to agree: all_gather of `bytes` (at most FX_PEER_RECORD) of host memory a rank. */
enum { FX_PEER_RECORD = 128 };
typedef struct fx_peer_group {
  fx_device *device;
  int rank, size;
  int64_t process; /* number of this one on its host */
  fx_status (*gather)(void *comm, const void *mine, size_t bytes, void *all);
  void *comm;
} fx_peer_group;

/* *out: NULL where not all ranks can reach each other so: they are on several hosts or in one process, a
 * driver lacks what is needed or does not open another's memory (tried out, since which GPUs a process sees
 * says nothing: CUDA reaches those that CUDA_VISIBLE_DEVICES hides, but not those that a container or Slurm
 * keeps from it), or the environment says FLEXION_PEER_COPIES=off (a number instead: from how many bytes on;
 * FX_ERR_CONFIG: anything else) or NCCL_P2P_DISABLE=1. The group is copied; its device and comm are borrowed.
 * Collective; every rank gets the same answer. */
fx_status fx_peer_copy_create(const fx_peer_group *group, fx_peer_copy **out);
void fx_peer_copy_destroy(fx_peer_copy *peers); /* waits for nothing; NULL is fine */

/* fx_comm_bind: sets call->ticket (0: the call is not for copy engines). all_gather, send_recv, and
 * reduce_scatter sums of float32 or bfloat16 between two ranks, whose result has the same bits whoever adds
 * them; from half a MiB on, or what FLEXION_PEER_COPIES says. */
fx_status fx_peer_copy_bind(fx_peer_copy *peers, fx_comm_call *call);
/* A bound call, onto call->stream. */
fx_status fx_peer_copy_issue(fx_peer_copy *peers, const fx_comm_call *call);

#ifdef __cplusplus
}
#endif
#endif
