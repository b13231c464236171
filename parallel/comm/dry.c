/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/comm/dry.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

static fx_status dry_issue(fx_comm *comm, const fx_comm_call *call) {
  return fx_error(FX_ERR_UNSUPPORTED, "%s on %s: the ranks of this job are only planned",
                  fx_collective_name(call->kind), comm->name);
}

static void dry_abort(fx_comm *comm) {
  (void)comm;
}

static void dry_destroy(fx_comm *comm) {
  free(comm);
}

static const fx_comm_vtable g_dry_comm_vtable = {
    .transport = "dry", .issue = dry_issue, .abort = dry_abort, .destroy = dry_destroy};

static fx_status nobody(const fx_control *control) {
  return fx_error(FX_ERR_UNSUPPORTED, "rank %d of %d is only planned: nobody answers its messages",
                  control->rank, control->size);
}

static fx_status dry_all_gather(fx_control *control, const void *mine, int64_t bytes, char **all,
                                int64_t *offsets, int timeout_ms) {
  (void)mine, (void)bytes, (void)all, (void)offsets, (void)timeout_ms;
  return nobody(control);
}

static fx_status dry_meet(fx_control *control, const void *mine, int64_t bytes, void *all, bool *here,
                          int timeout_ms) {
  (void)mine, (void)bytes, (void)all, (void)here, (void)timeout_ms;
  return nobody(control);
}

static fx_status dry_split(fx_control *control, const char *name, int id, const int *ranks, int count,
                           fx_comm **out) {
  fx_comm *comm = NULL;
  *out = NULL;
  if (count == 0) return FX_OK;
  FX_TRY(fx_calloc(&comm, 1, sizeof *comm));
  comm->vtable = &g_dry_comm_vtable;
  comm->size = count;
  while (comm->rank < count - 1 && ranks[comm->rank] != control->rank) comm->rank++;
  comm->id = id;
  strncpy(comm->name, name, sizeof comm->name - 1);
  *out = comm;
  return FX_OK;
}

static void dry_control_destroy(fx_control *control) {
  free(control);
}

static const fx_control_vtable g_dry_control_vtable = {
    .transport = "dry",
    .all_gather = dry_all_gather,
    .split = dry_split,
    .destroy = dry_control_destroy,
    .meet = dry_meet,
};

fx_status fx_control_create_dry(int rank, int size, fx_control **out) {
  fx_control *control = NULL;
  FX_TRY(fx_calloc(&control, 1, sizeof *control));
  *control = (fx_control){&g_dry_control_vtable, rank, size};
  *out = control;
  return FX_OK;
}
