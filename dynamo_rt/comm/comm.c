/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/comm/comm.h"

#include <string.h>

const char *fx_collective_name(fx_collective kind) {
  static const char *const names[FX_COLLECTIVE_COUNT] = {
#define FX_COLLECTIVE_ROW(name, text) text,
      FX_COLLECTIVE_LIST(FX_COLLECTIVE_ROW)
#undef FX_COLLECTIVE_ROW
  };
  return (unsigned)kind < FX_COLLECTIVE_COUNT ? names[kind] : "unknown";
}

fx_status fx_comm_issue(fx_comm *comm, const fx_comm_call *call) {
  FX_ASSERT(call->count >= 0);
  bool pairwise = call->kind == FX_SEND || call->kind == FX_RECV || call->kind == FX_SEND_RECV;
  if (pairwise || call->kind == FX_BROADCAST) FX_ASSERT(call->peer >= 0 && call->peer < comm->size);
  if (call->kind == FX_SEND_RECV) FX_ASSERT(call->peer_from >= 0 && call->peer_from < comm->size);
  if (comm->size > 1 || comm->vtable->on_device) return comm->vtable->issue(comm, call);
  if (call->kind == FX_SEND || call->kind == FX_RECV)
    return fx_error(FX_ERR_COMM, "a %s on communicator %s of one rank has no partner",
                    fx_collective_name(call->kind), comm->name);
  if (call->kind != FX_BROADCAST && call->kind != FX_BARRIER && call->src != call->dst)
    memcpy(call->dst, call->src, (size_t)call->count * fx_dtype_bytes(call->dtype));
  return FX_OK;
}

fx_status fx_comm_open(fx_comm *comm) {
  return comm->vtable->open ? comm->vtable->open(comm) : FX_OK;
}

void fx_comm_abort(fx_comm *comm) {
  if (comm && comm->vtable->abort) comm->vtable->abort(comm);
}

void fx_comm_destroy(fx_comm *comm) {
  if (comm) comm->vtable->destroy(comm);
}
