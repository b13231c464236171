/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a job and this rank's place in it. Ranks are numbered with tensor parallelism innermost, so
 * that the group that talks most sits on neighbouring ranks:
 *
 *   rank = tp_rank + tp * (cp_rank + cp * dp_rank)
 *
 * One communicator a kind is made here, once; everybody else borrows them. */
#ifndef FX_PARALLEL_TOPOLOGY_H
#define FX_PARALLEL_TOPOLOGY_H

#include <stddef.h>

#include "dynamo_rt/comm/control.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(field, name): the communicators. The position is the communicator's id, so all tp groups of a job share
 * one id and ledgers of ranks of different groups compare equal.
 * - world: all ranks
 * - tp: same cp and dp coordinate; activations of one layer
 * - cp: same tp and dp coordinate; the sequence; rank of the group = cp_rank
 * - dp: same tp and cp coordinate; samples; rank of the group = dp_rank
 * - dp_cp: same tp coordinate; gradients and ZeRO; rank of the group = cp_rank + cp * dp_rank (the ranks of
 * dp when cp is 1) */
#define FX_TOPOLOGY_COMM_LIST(X) X(world, "world") X(tp, "tp") X(cp, "cp") X(dp, "dp") X(dp_cp, "dp_cp")

typedef enum fx_topology_kind {
#define FX_TOPOLOGY_KIND(field, name) FX_TOPOLOGY_KIND_##field,
  FX_TOPOLOGY_COMM_LIST(FX_TOPOLOGY_KIND)
#undef FX_TOPOLOGY_KIND
      FX_TOPOLOGY_KINDS
} fx_topology_kind;

typedef struct fx_topology_shape {
  int tp, cp, dp; /* at least 1 each */
} fx_topology_shape;

typedef struct fx_topology_comms {
#define FX_TOPOLOGY_COMM_FIELD(field, name) fx_comm *field;
  FX_TOPOLOGY_COMM_LIST(FX_TOPOLOGY_COMM_FIELD)
#undef FX_TOPOLOGY_COMM_FIELD
} fx_topology_comms;

typedef struct fx_topology {
  int rank, size;                /* of the job; size = tp * cp * dp */
  int tp, cp, dp;                /* sizes */
  int tp_rank, cp_rank, dp_rank; /* coordinates */
  fx_topology_comms comm;        /* owned, never NULL (a group of one is a communicator of one) */
  fx_comm *kv; /* owned; neighbours of tp that hold the same key heads, NULL where none do */
} fx_topology;

/* Reads "tp:2 cp:2 dp:2": any order, each at most once, what is missing is 1, blanks between. FX_ERR_CONFIG
 * with one sentence otherwise. */
fx_status fx_topology_parse(const char *text, fx_topology_shape *out);
/* The canonical form "tp:2 cp:2 dp:2" into text (at most `capacity` bytes); returns text. */
const char *fx_topology_text(fx_topology_shape shape, char *text, size_t capacity);

/* Coordinates of a rank and back; pure arithmetic. */
void fx_topology_coordinates(fx_topology_shape shape, int rank, int *tp_rank, int *cp_rank, int *dp_rank);
int fx_topology_rank(fx_topology_shape shape, int tp_rank, int cp_rank, int dp_rank);
/* The ranks of the job that are in `rank`'s group of a kind, in the group's order, into ranks[at most all];
 * returns how many. */
int fx_topology_group(fx_topology_shape shape, fx_topology_kind kind, int rank, int *ranks);
const char *fx_topology_kind_name(fx_topology_kind kind);

/* Takes all ranks of the control channel: dp = size / (tp * cp). Collective over them. FX_ERR_CONFIG, naming
 * parallel.tensor and parallel.context, when they do not divide the ranks; nothing was made then. The control
 * channel is borrowed for the call only. */
fx_status fx_topology_create(fx_control *control, int tp, int cp, fx_topology **out);
/* The same with communicators for buffers of `device` (borrowed, outlives the topology): NCCL's on a GPU. */
fx_status fx_topology_create_on(fx_control *control, fx_device *device, int tp, int cp, fx_topology **out);
/* Makes topology->kv of each `share` neighbouring tp ranks (share divides tp; 1: none is needed). Collective
 * over all ranks of the control channel, as create. */
fx_status fx_topology_share_heads(fx_control *control, fx_device *device, fx_topology *topology, int share);
/* Destroys the communicators too: collective in effect, call it on every rank. NULL is fine. */
void fx_topology_destroy(fx_topology *topology);

#ifdef __cplusplus
}
#endif
#endif
