/* SPDX-License-Identifier: Apache-2.0 */
/* The ids by which NCCL's ranks find each other travel over the control channel when the group is made; the
 * connection itself, which takes a second and memory of the GPU, is made when a plan that uses the
 * communicator is bound, so that groups nobody uses cost nothing. */
#include "parallel/comm/cuda/comm_nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/device/cuda/library.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "parallel/comm/cuda/comm_one.h"
#include "parallel/comm/cuda/peer_copy.h"

enum { TIMEOUT_MS = 120000 };

typedef struct nccl_id {
  char bytes[128];
} nccl_id;

/* X(field, exported name, result, parameters); results are int, 0: success */
#define NCCL_LIST(X)                                                                                      \
  X(version, "ncclGetVersion", int, (int *version))                                                       \
  X(error_text, "ncclGetErrorString", const char *, (int result))                                         \
  X(last_error, "ncclGetLastError", const char *, (void *comm))                                           \
  X(unique_id, "ncclGetUniqueId", int, (nccl_id * id))                                                    \
  X(init_rank, "ncclCommInitRank", int, (void **comm, int size, nccl_id id, int rank))                    \
  X(destroy, "ncclCommDestroy", int, (void *comm))                                                        \
  X(abort, "ncclCommAbort", int, (void *comm))                                                            \
  X(async_error, "ncclCommGetAsyncError", int, (void *comm, int *result))                                 \
  X(group_start, "ncclGroupStart", int, (void))                                                           \
  X(group_end, "ncclGroupEnd", int, (void))                                                               \
  X(all_reduce, "ncclAllReduce", int,                                                                     \
    (const void *src, void *dst, size_t count, int type, int op, void *comm, void *stream))               \
  X(reduce_scatter, "ncclReduceScatter", int,                                                             \
    (const void *src, void *dst, size_t count, int type, int op, void *comm, void *stream))               \
  X(all_gather, "ncclAllGather", int,                                                                     \
    (const void *src, void *dst, size_t count, int type, void *comm, void *stream))                       \
  X(broadcast, "ncclBroadcast", int,                                                                      \
    (const void *src, void *dst, size_t count, int type, int root, void *comm, void *stream))             \
  X(send, "ncclSend", int, (const void *src, size_t count, int type, int peer, void *comm, void *stream)) \
  X(recv, "ncclRecv", int, (void *dst, size_t count, int type, int peer, void *comm, void *stream))

typedef struct nccl_table {
#define NCCL_FIELD(field, name, result, parameters) result(*field) parameters;
  NCCL_LIST(NCCL_FIELD)
#undef NCCL_FIELD
} nccl_table;

/* One library a process: written once, then constant. */
static struct {
  pthread_once_t once;
  nccl_table table;
  fx_status status;
  char reason[512];
} g_nccl = {.once = PTHREAD_ONCE_INIT};

static fx_status open_library(void) {
  static const int majors[] = {2, 0};
  static const fx_cuda_symbol symbols[] = {
#define NCCL_SYMBOL(field, name, result, parameters) {name, offsetof(nccl_table, field)},
      NCCL_LIST(NCCL_SYMBOL)
#undef NCCL_SYMBOL
  };
  void *library = NULL;
  FX_TRY(fx_cuda_library_open("nccl", majors, &library));
  return fx_cuda_library_bind(library, "nccl", symbols, (int)(sizeof symbols / sizeof symbols[0]),
                              &g_nccl.table);
}

static void open_once(void) {
  g_nccl.status = open_library();
  if (g_nccl.status != FX_OK) snprintf(g_nccl.reason, sizeof g_nccl.reason, "%s", fx_error_text());
}

static fx_status open_nccl(const nccl_table **out) {
  pthread_once(&g_nccl.once, open_once);
  *out = &g_nccl.table;
  return g_nccl.status == FX_OK ? FX_OK : fx_error(g_nccl.status, "%s", g_nccl.reason);
}

const char *fx_nccl_version(char *text, size_t capacity) {
  const nccl_table *nccl = NULL;
  int version = 0;
  if (open_nccl(&nccl) != FX_OK)
    snprintf(text, capacity, "none: %s", g_nccl.reason);
  else if (nccl->version(&version) != 0)
    snprintf(text, capacity, "NCCL of an unknown version");
  else
    snprintf(text, capacity, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  return text;
}

typedef struct nccl_comm {
  fx_comm base;
  const nccl_table *nccl;
  fx_device *device;
  nccl_id id;
  void *handle; /* NULL until it is opened, and again after an abort */
  bool dead;
  void *records;       /* of the device, FX_PEER_RECORD a rank and one */
  fx_peer_copy *peers; /* NULL: there are none */
} nccl_comm;

static fx_status check(const nccl_comm *comm, int result, const char *what) {
  if (result == 0) return FX_OK;
  const char *detail = comm->nccl->last_error(comm->handle);
  return fx_error(FX_ERR_COMM, "communicator %s#%d: %s: %s%s%.300s", comm->base.name, comm->base.id, what,
                  comm->nccl->error_text(result), detail && detail[0] ? "; " : "", detail ? detail : "");
}

/* With the device's context current. */
static fx_status connect(void *arg, void *stream) {
  nccl_comm *comm = arg;
  (void)stream;
  setenv("NCCL_RUNTIME_CONNECT", "0", 0); /* all memory is taken now, not in the first steps */
  return check(comm, comm->nccl->init_rank(&comm->handle, comm->base.size, comm->id, comm->base.rank),
               "the connection to the other ranks");
}

/* ncclDataType_t; -1: none */
static int type_of(fx_dtype dtype) {
  static const int types[FX_DTYPE_COUNT] = {
      [FX_F32] = 7, [FX_BF16] = 9, [FX_F16] = 6, [FX_F64] = 8, [FX_I32] = 2, [FX_I64] = 4, [FX_U8] = 1};
  return types[dtype];
}

/* Host memory of every rank, by way of the device's; waits. */
typedef struct gathering {
  nccl_comm *comm;
  const void *mine;
  void *all;
  size_t bytes;
} gathering;

static fx_status run_gathering(void *arg, void *stream) {
  const gathering *g = arg;
  const fx_cuda_driver *driver = ((const fx_cuda_context *)g->comm->device->gemm)->driver;
  uint64_t all = (uint64_t)(uintptr_t)g->comm->records, from = (uint64_t)(uintptr_t)g->mine,
           mine = all + FX_PEER_RECORD * (uint64_t)g->comm->base.size, to = (uint64_t)(uintptr_t)g->all;
  const char *what = "a record of a communicator";
  FX_TRY(fx_cuda_check(driver, driver->copy(mine, from, g->bytes, stream), what));
  FX_TRY(check(g->comm,
               g->comm->nccl->all_gather((void *)(uintptr_t)mine, g->comm->records, g->bytes, type_of(FX_U8),
                                         g->comm->handle, stream),
               what));
  FX_TRY(fx_cuda_check(driver, driver->copy(to, all, g->bytes * (size_t)g->comm->base.size, stream), what));
  return fx_cuda_check(driver, driver->stream_sync(stream), what);
}

static fx_status gather(void *comm, const void *mine, size_t bytes, void *all) {
  gathering g = {comm, mine, all, bytes};
  FX_ASSERT(bytes <= FX_PEER_RECORD);
  return fx_device_launch(g.comm->device, FX_LANE_COMPUTE, run_gathering, &g);
}

/* ---- which call the GPU has come to, for the watchdog ---- */

static fx_status open_begun(nccl_comm *comm) {
  void *words = NULL;
  FX_TRY(fx_device_alloc_host(comm->device, FX_COMM_BEGUN * sizeof(uint32_t), &words));
  memset(words, 0, FX_COMM_BEGUN * sizeof(uint32_t));
  __atomic_store_n(&comm->base.begun, words, __ATOMIC_RELEASE);
  return FX_OK;
}

/* By the stream, or its recording: replays, of which the host issues no call, tell it too. */
static fx_status tell_begun(const nccl_comm *comm, const fx_comm_call *call) {
  fx_kernel_args args = {.gemm = comm->device->gemm, .stream = call->stream};
  uint32_t word[FX_COMM_BEGUN];
  fx_comm_begun_words(&comm->base, call, word);
  return fx_cuda_tell_host(&args, comm->base.begun, word);
}

static const fx_comm_vtable g_peers_vtable;

static fx_status nccl_open(fx_comm *base) {
  nccl_comm *comm = (nccl_comm *)base;
  fx_peer_group group = {comm->device, base->rank, base->size, getpid(), gather, comm};
  if (comm->handle) return FX_OK;
  FX_TRY(fx_device_launch(comm->device, FX_LANE_COMPUTE, connect, comm));
  FX_TRY(fx_device_alloc(comm->device, FX_PEER_RECORD * ((size_t)base->size + 1), &comm->records));
  FX_TRY(fx_peer_copy_create(&group, &comm->peers));
  if (comm->peers) base->vtable = &g_peers_vtable;
  return open_begun(comm);
}

static fx_status nccl_bind(fx_comm *base, fx_comm_call *call) {
  nccl_comm *comm = (nccl_comm *)base;
  if (comm->dead) return fx_error(FX_ERR_COMM, "communicator %s#%d was aborted", base->name, base->id);
  FX_TRY(nccl_open(base));
  return comm->peers ? fx_peer_copy_bind(comm->peers, call) : FX_OK;
}

static fx_status issue_pair(const nccl_comm *comm, const fx_comm_call *call) {
  const nccl_table *nccl = comm->nccl;
  int type = type_of(call->dtype);
  size_t count = (size_t)call->count;
  FX_TRY(check(comm, nccl->group_start(), "ncclGroupStart"));
  int sent = nccl->send(call->src, count, type, call->peer, comm->handle, call->stream);
  int received = nccl->recv(call->dst, count, type, call->peer_from, comm->handle, call->stream);
  int ended = nccl->group_end();
  return check(comm, sent ? sent : received ? received : ended, "send_recv");
}

static fx_status nccl_issue(fx_comm *base, const fx_comm_call *call) {
  static const int ops[] = {[FX_REDUCE_SUM] = 0, [FX_REDUCE_MAX] = 2}; /* ncclRedOp_t */
  nccl_comm *comm = (nccl_comm *)base;
  const nccl_table *nccl = comm->nccl;
  int type = type_of(call->dtype), result = 0;
  size_t count = (size_t)call->count;
  if (comm->dead) return fx_error(FX_ERR_COMM, "communicator %s#%d was aborted", base->name, base->id);
  FX_TRY(nccl_open(base));
  FX_TRY(tell_begun(comm, call));
  if (call->ticket) return fx_peer_copy_issue(comm->peers, call);
  switch (call->kind) {
  case FX_ALL_REDUCE:
    result =
        nccl->all_reduce(call->src, call->dst, count, type, ops[call->reduce], comm->handle, call->stream);
    break;
  case FX_REDUCE_SCATTER:
    result = nccl->reduce_scatter(call->src, call->dst, count, type, ops[call->reduce], comm->handle,
                                  call->stream);
    break;
  case FX_ALL_GATHER:
    result = nccl->all_gather(call->src, call->dst, count, type, comm->handle, call->stream);
    break;
  case FX_BROADCAST:
    result = nccl->broadcast(call->dst, call->dst, count, type, call->peer, comm->handle, call->stream);
    break;
  case FX_SEND:
    result = nccl->send(call->src, count, type, call->peer, comm->handle, call->stream);
    break;
  case FX_RECV:
    result = nccl->recv(call->dst, count, type, call->peer, comm->handle, call->stream);
    break;
  case FX_SEND_RECV:
    return issue_pair(comm, call);
  default:
    return fx_error(FX_ERR_UNSUPPORTED, "communicator %s#%d: NCCL has no %s", base->name, base->id,
                    fx_collective_name(call->kind));
  }
  return check(comm, result, fx_collective_name(call->kind));
}

static fx_status nccl_poll(fx_comm *base) {
  enum { SUCCESS = 0, IN_PROGRESS = 7 }; /* ncclResult_t */
  nccl_comm *comm = (nccl_comm *)base;
  void *handle = __atomic_load_n(&comm->handle, __ATOMIC_ACQUIRE);
  int state = SUCCESS;
  if (!handle || comm->nccl->async_error(handle, &state) != SUCCESS || state == IN_PROGRESS) return FX_OK;
  return check(comm, state, "a call that was under way");
}

static void nccl_abort(fx_comm *base) {
  nccl_comm *comm = (nccl_comm *)base;
  void *handle = __atomic_exchange_n(&comm->handle, NULL, __ATOMIC_ACQ_REL);
  comm->dead = true;
  if (handle) comm->nccl->abort(handle);
}

static fx_status disconnect(void *arg, void *stream) {
  nccl_comm *comm = arg;
  (void)stream;
  fx_peer_copy_destroy(comm->peers);
  fx_device_release(comm->device, comm->records);
  fx_device_release_host(comm->device, comm->base.begun);
  if (comm->handle) comm->nccl->destroy(comm->handle);
  return FX_OK;
}

static void nccl_destroy(fx_comm *base) {
  nccl_comm *comm = (nccl_comm *)base;
  (void)fx_device_launch(comm->device, FX_LANE_COMPUTE, disconnect, comm);
  free(comm);
}

#define NCCL_VTABLE(name)                                                                              \
  {                                                                                                    \
    .transport = (name), .on_device = true, .open = nccl_open, .issue = nccl_issue, .bind = nccl_bind, \
    .poll = nccl_poll, .abort = nccl_abort, .destroy = nccl_destroy                                    \
  }
static const fx_comm_vtable g_nccl_vtable = NCCL_VTABLE("nccl");
static const fx_comm_vtable g_peers_vtable = NCCL_VTABLE("nccl and copy engines");
#undef NCCL_VTABLE

/* Every rank sends the id of the group of several that it leads; each takes its leader's. */
static fx_status exchange_ids(fx_control *control, const nccl_table *nccl, const int *ranks, int count,
                              nccl_id *id) {
  nccl_id mine;
  char *all = NULL;
  int64_t *offsets = NULL;
  bool leads = count > 1 && ranks[0] == control->rank;
  memset(&mine, 0, sizeof mine);
  int result = leads ? nccl->unique_id(&mine) : 0;
  fx_status status =
      result == 0 ? FX_OK : fx_error(FX_ERR_COMM, "ncclGetUniqueId: %s", nccl->error_text(result));
  FX_TRY(fx_control_agree_status(control, status, TIMEOUT_MS));
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  status = fx_control_all_gather(control, &mine, sizeof mine, &all, offsets, TIMEOUT_MS);
  if (status == FX_OK && count > 1) memcpy(id, all + offsets[ranks[0]], sizeof *id);
  free(all);
  free(offsets);
  return status;
}

fx_status fx_nccl_split(fx_control *control, fx_device *device, const char *name, int id, const int *ranks,
                        int count, fx_comm **out) {
  const nccl_table *nccl = NULL;
  double largest = 0; /* of the groups that are made */
  nccl_id unique;
  memset(&unique, 0, sizeof unique);
  FX_TRY(fx_control_largest(control, count, &largest, TIMEOUT_MS));
  if (largest > 1) {
    FX_TRY(fx_control_agree_status(control, count > 1 ? open_nccl(&nccl) : FX_OK, TIMEOUT_MS));
    FX_TRY(exchange_ids(control, nccl, ranks, count, &unique));
  }
  *out = NULL;
  if (count == 0) return FX_OK;
  if (count == 1) return fx_comm_one_create(device, name, id, out);
  nccl_comm *comm = NULL;
  FX_TRY(fx_calloc(&comm, 1, sizeof *comm));
  comm->base = (fx_comm){.vtable = &g_nccl_vtable, .size = count, .id = id};
  while (ranks[comm->base.rank] != control->rank) comm->base.rank++;
  snprintf(comm->base.name, sizeof comm->base.name, "%s", name);
  comm->nccl = nccl;
  comm->device = device;
  comm->id = unique;
  *out = &comm->base;
  return FX_OK;
}
