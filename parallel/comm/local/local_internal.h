/* SPDX-License-Identifier: Apache-2.0 */
/* What the in-process control channel and its communicators share. One mutex a world guards everything; each
 * group and the control channel wait on conditions of their own. Copies and sums run outside the mutex. */
#ifndef FX_PARALLEL_COMM_LOCAL_LOCAL_INTERNAL_H
#define FX_PARALLEL_COMM_LOCAL_LOCAL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "parallel/comm/local/local.h"

typedef struct local_group local_group;

/* One all_gather of the control channel. Messages are copied in, so a rank may leave before the others have
 * read. */
typedef struct local_round {
  struct local_round *next;
  int64_t channel, number;
  int arrived, departed;
  bool *here;     /* [size] */
  char **data;    /* [size], owned */
  int64_t *bytes; /* [size] */
} local_round;

struct fx_local_world {
  int size;
  pthread_mutex_t mutex;
  pthread_cond_t control_changed; /* rounds, aborted; monotonic clock */
  bool aborted;
  local_round *rounds;
  local_group *groups;
};

/* local_comm.c. `key` tells groups of different splits apart (a round number, the same on all members). */
fx_status fx_local_group_join(fx_local_world *world, const char *name, int id, const int *ranks, int count,
                              int group_rank, int64_t key, fx_comm **out);
/* The caller holds the mutex. */
void fx_local_groups_abort(fx_local_world *world);
void fx_local_groups_free(fx_local_world *world);

#endif
