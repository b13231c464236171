/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/comm/comm.h"

#include <string.h>

#include "dynamo_rt/base/clock.h"

const char *fx_collective_name(fx_collective kind) {
  static const char *const names[FX_COLLECTIVE_COUNT] = {
#define FX_COLLECTIVE_ROW(name, text) text,
      FX_COLLECTIVE_LIST(FX_COLLECTIVE_ROW)
#undef FX_COLLECTIVE_ROW
  };
  return (unsigned)kind < FX_COLLECTIVE_COUNT ? names[kind] : "unknown";
}

static void note_begin(fx_comm_progress *p, const fx_comm_call *call) {
  __atomic_store_n(&p->count, call->count, __ATOMIC_RELAXED);
  __atomic_store_n(&p->kind, (int32_t)call->kind, __ATOMIC_RELAXED);
  __atomic_store_n(&p->dtype, (int32_t)call->dtype, __ATOMIC_RELAXED);
  __atomic_store_n(&p->began_ns, fx_now_ns(), __ATOMIC_RELAXED);
  __atomic_store_n(&p->issued, p->issued + 1, __ATOMIC_RELEASE);
}

/* Word 0: number, kind and type; never 0, as numbers begin at 1. Word 1: the count, as far as it fits. */
enum { TYPE_BITS = 4, KIND_BITS = 4, NUMBER_BITS = 24 };
_Static_assert((int)FX_COLLECTIVE_COUNT <= 1 << KIND_BITS && (int)FX_DTYPE_COUNT <= 1 << TYPE_BITS, "bits");

void fx_comm_begun_words(const fx_comm *comm, const fx_comm_call *call, uint32_t word[FX_COMM_BEGUN]) {
  uint32_t number = (uint32_t)((comm->progress.issued - 1) % ((1u << NUMBER_BITS) - 1)) + 1;
  word[0] = (number << KIND_BITS | (uint32_t)call->kind) << TYPE_BITS | (uint32_t)call->dtype;
  word[1] = call->count < UINT32_MAX ? (uint32_t)call->count : UINT32_MAX;
}

static fx_comm_progress begun(const uint32_t *words) {
  uint32_t what = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE);
  fx_comm_progress out = {.issued = what >> (KIND_BITS + TYPE_BITS),
                          .count = __atomic_load_n(&words[1], __ATOMIC_RELAXED),
                          .kind = (int32_t)(what >> TYPE_BITS & ((1u << KIND_BITS) - 1)),
                          .dtype = (int32_t)(what & ((1u << TYPE_BITS) - 1)),
                          .begun = true};
  return out;
}

fx_comm_progress fx_comm_progress_get(const fx_comm *comm) {
  const fx_comm_progress *p = &comm->progress;
  const uint32_t *words = __atomic_load_n(&comm->begun, __ATOMIC_ACQUIRE);
  fx_comm_progress out = {.begun = false};
  if (words) return begun(words);
  out.done = __atomic_load_n(&p->done, __ATOMIC_ACQUIRE); /* first: done <= issued */
  out.issued = __atomic_load_n(&p->issued, __ATOMIC_ACQUIRE);
  out.began_ns = __atomic_load_n(&p->began_ns, __ATOMIC_RELAXED);
  out.count = __atomic_load_n(&p->count, __ATOMIC_RELAXED);
  out.kind = __atomic_load_n(&p->kind, __ATOMIC_RELAXED);
  out.dtype = __atomic_load_n(&p->dtype, __ATOMIC_RELAXED);
  return out;
}

fx_status fx_comm_issue(fx_comm *comm, const fx_comm_call *call) {
  FX_ASSERT(call->count >= 0);
  bool pairwise = call->kind == FX_SEND || call->kind == FX_RECV || call->kind == FX_SEND_RECV;
  if (pairwise || call->kind == FX_BROADCAST) FX_ASSERT(call->peer >= 0 && call->peer < comm->size);
  if (call->kind == FX_SEND_RECV) FX_ASSERT(call->peer_from >= 0 && call->peer_from < comm->size);
  if (comm->size > 1 || comm->vtable->on_device) {
    note_begin(&comm->progress, call);
    fx_status status = comm->vtable->issue(comm, call);
    __atomic_store_n(&comm->progress.done, comm->progress.issued, __ATOMIC_RELEASE);
    return status;
  }
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

fx_status fx_comm_bind(fx_comm *comm, fx_comm_call *call) {
  call->ticket = 0;
  return comm->vtable->bind && comm->size > 1 ? comm->vtable->bind(comm, call) : FX_OK;
}

fx_status fx_comm_poll(fx_comm *comm) {
  return comm->vtable->poll ? comm->vtable->poll(comm) : FX_OK;
}

void fx_comm_abort(fx_comm *comm) {
  if (comm && comm->vtable->abort) comm->vtable->abort(comm);
}

void fx_comm_destroy(fx_comm *comm) {
  if (comm) comm->vtable->destroy(comm);
}
