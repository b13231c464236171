/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/comm/split_check.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

/* One rank's request, as it travels: fixed part, then `count` world ranks. */
typedef struct request {
  char name[16];
  int32_t id, count;
} request;

static const int *members(const request *r) {
  return (const int *)(r + 1);
}

static int position(const request *r, int rank) {
  for (int i = 0; i < r->count; i++)
    if (members(r)[i] == rank) return i;
  return -1;
}

/* Looks at the request of `rank`; `all` is what every rank asked for. The first member compares with all
 * others, they with the first alone: together that is every pair that could differ. */
static fx_status check_one(const char *all, const int64_t *offsets, int size, int rank) {
  const request *mine = (const request *)(all + offsets[rank]);
  if (mine->count == 0) return FX_OK;
  if (position(mine, rank) < 0)
    return fx_error(FX_ERR_COMM, "communicator %s: rank %d is not in the group that it asks for", mine->name,
                    rank);
  for (int i = 0; i < mine->count; i++) {
    int peer = members(mine)[i];
    if (peer < 0 || peer >= size)
      return fx_error(FX_ERR_COMM, "communicator %s: rank %d asks for member %d, the job has %d ranks",
                      mine->name, rank, peer, size);
    if (i > 0 && members(mine)[0] != rank) continue;
    const request *theirs = (const request *)(all + offsets[peer]);
    if (offsets[peer + 1] - offsets[peer] != offsets[rank + 1] - offsets[rank] ||
        memcmp(mine, theirs, (size_t)(offsets[rank + 1] - offsets[rank])) != 0)
      return fx_error(
          FX_ERR_COMM,
          "communicator %s#%d of %d ranks on rank %d: its member rank %d asks for %s#%d of %d ranks; "
          "members must ask for the same group",
          mine->name, mine->id, mine->count, rank, peer, theirs->name, theirs->id, theirs->count);
  }
  return FX_OK;
}

fx_status fx_split_check(fx_control *control, const char *name, int id, const int *ranks, int count,
                         int *group_rank) {
  fx_status status = FX_OK;
  request *mine = NULL;
  int64_t *offsets = NULL;
  char *all = NULL;
  /* a multiple of 8 bytes, so that requests stay aligned when they lie one after the other */
  size_t bytes = fx_align_up(sizeof *mine + (size_t)count * sizeof(int), 8);
  FX_TRY_GOTO(fx_calloc(&mine, 1, bytes), free_messages);
  FX_TRY_GOTO(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets), free_messages);
  strncpy(mine->name, name, sizeof mine->name - 1);
  mine->id = id;
  mine->count = count;
  if (count) memcpy(mine + 1, ranks, (size_t)count * sizeof(int));
  FX_TRY_GOTO(fx_control_all_gather(control, mine, (int64_t)bytes, &all, offsets, FX_SPLIT_TIMEOUT_MS),
              free_messages);
  for (int r = 0; status == FX_OK && r < control->size; r++)
    status = check_one(all, offsets, control->size, r);
  if (status == FX_OK) *group_rank = position(mine, control->rank);
free_messages:
  free(all);
  free(offsets);
  free(mine);
  return status;
}
