/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators over MPI. Everything is built from nonblocking calls and polled waits that yield.
 *
 * Sums are ours, in rank order, because MPI_Allreduce promises neither an order nor the same order for every
 * message size. Each rank owns a chunk: it receives that chunk from every peer, sums in rank order, hands the
 * result to all. Short messages skip the second round: everybody receives everything and sums it alone; the
 * bits are the same. Messages longer than the staging go in segments. Between two ranks messages of one tag
 * keep their order, and all ranks issue the same calls in the same order, so one tag is enough.
 *
 * Abort: the rank raises its own flag and sends an empty message to each peer; a wait that has lasted looks
 * for it. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "parallel/comm/mpi/mpi_internal.h"
#include "parallel/comm/reduce.h"

enum { TAG_DATA = 1, TAG_ABORT = 2 };

static const int64_t STAGING_BYTES = 8 << 20; /* of a communicator, all peers together */
static const int64_t MAX_CHUNK_BYTES = 512 << 10, MIN_CHUNK_BYTES = 16 << 10;
static const int64_t SHORT_BYTES = 8 << 10;     /* a message that goes whole to everybody */
static const int64_t MESSAGE_BYTES = 256 << 20; /* of one MPI message without staging; its count is an int */

typedef struct mpi_comm {
  fx_comm base;
  fx_mpi_context *context;
  MPI_Comm comm;
  atomic_bool aborted;
  bool dead;             /* requests may be pending in buffers of the caller: no further call */
  MPI_Request *requests; /* [2 * size] */
  int pending;
  int64_t chunk_bytes; /* staging of one peer */
  char *staging;       /* [size] chunks, the one of this rank unused */
  const void **sources;
} mpi_comm;

static fx_status post_send(mpi_comm *comm, const void *data, int64_t bytes, int peer) {
  if (bytes == 0) return FX_OK;
  pthread_mutex_lock(&comm->context->mutex);
  int code =
      MPI_Isend(data, (int)bytes, MPI_BYTE, peer, TAG_DATA, comm->comm, &comm->requests[comm->pending]);
  pthread_mutex_unlock(&comm->context->mutex);
  if (code == MPI_SUCCESS) comm->pending++;
  return fx_mpi_check(code, "MPI_Isend");
}

static fx_status post_receive(mpi_comm *comm, void *data, int64_t bytes, int peer) {
  if (bytes == 0) return FX_OK;
  pthread_mutex_lock(&comm->context->mutex);
  int code =
      MPI_Irecv(data, (int)bytes, MPI_BYTE, peer, TAG_DATA, comm->comm, &comm->requests[comm->pending]);
  pthread_mutex_unlock(&comm->context->mutex);
  if (code == MPI_SUCCESS) comm->pending++;
  return fx_mpi_check(code, "MPI_Irecv");
}

/* Whether this rank or, as far as it has heard, another one gave the communicator up. */
static bool is_aborted(mpi_comm *comm, bool listen) {
  int heard = 0;
  if (listen) {
    pthread_mutex_lock(&comm->context->mutex);
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_ABORT, comm->comm, &heard, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&comm->context->mutex);
  }
  return heard || atomic_load(&comm->aborted);
}

/* Takes back what can be taken back: receives. Sends are left to MPI. */
static void give_up(mpi_comm *comm) {
  pthread_mutex_lock(&comm->context->mutex);
  for (int i = 0; i < comm->pending; i++)
    if (comm->requests[i] != MPI_REQUEST_NULL) {
      MPI_Cancel(&comm->requests[i]);
      MPI_Request_free(&comm->requests[i]);
    }
  pthread_mutex_unlock(&comm->context->mutex);
  comm->pending = 0;
}

static fx_status fail(mpi_comm *comm, fx_status status) {
  give_up(comm);
  comm->dead = true;
  return fx_error_prefix(status, "communicator %s#%d", comm->base.name, comm->base.id);
}

static fx_status wait_all(mpi_comm *comm) {
  fx_mpi_pause pause = {0};
  bool slept = false;
  for (;;) {
    int done = 0;
    pthread_mutex_lock(&comm->context->mutex);
    int code = MPI_Testall(comm->pending, comm->requests, &done, MPI_STATUSES_IGNORE);
    pthread_mutex_unlock(&comm->context->mutex);
    if (code == MPI_SUCCESS && done) {
      comm->pending = 0;
      return FX_OK;
    }
    fx_status status = fx_mpi_check(code, "MPI_Testall");
    if (status == FX_OK && is_aborted(comm, slept)) status = fx_error(FX_ERR_COMM, "aborted");
    if (status != FX_OK) return status;
    slept = fx_mpi_pause_pass(&pause);
  }
}

static char *at(const void *base, int64_t bytes) {
  return (char *)base + bytes;
}

static char *staged(const mpi_comm *comm, int peer) {
  return comm->staging + comm->chunk_bytes * peer;
}

/* The i-th peer in the order of posting: each rank starts at its neighbour, so that nobody is addressed by
 * all. */
static int peer_to(const mpi_comm *comm, int i) {
  return (comm->base.rank + i) % comm->base.size;
}
static int peer_from(const mpi_comm *comm, int i) {
  return (comm->base.rank + comm->base.size - i) % comm->base.size;
}

/* dst := what this rank has at `mine` and the peers have sent to its staging, summed in rank order. */
static void sum_staged(mpi_comm *comm, const fx_comm_call *call, const void *mine, void *dst, int64_t bytes) {
  for (int r = 0; r < comm->base.size; r++) comm->sources[r] = r == comm->base.rank ? mine : staged(comm, r);
  fx_reduce_ranks(call->dtype, call->reduce, comm->sources, comm->base.size, dst,
                  bytes / (int64_t)fx_dtype_bytes(call->dtype));
}

static fx_status all_reduce_short(mpi_comm *comm, const fx_comm_call *call, int64_t bytes) {
  for (int i = 1; i < comm->base.size; i++) {
    FX_TRY(post_receive(comm, staged(comm, peer_from(comm, i)), bytes, peer_from(comm, i)));
    FX_TRY(post_send(comm, call->src, bytes, peer_to(comm, i)));
  }
  FX_TRY(wait_all(comm));
  sum_staged(comm, call, call->src, call->dst, bytes);
  return FX_OK;
}

/* Chunk r of a segment of `bytes` bytes: where it begins, how long it is (0 for the last ones of a short
 * segment). */
static int64_t chunk_begin(int64_t bytes, int64_t chunk, int r) {
  return fx_min_i64(bytes, chunk * r);
}
static int64_t chunk_length(int64_t bytes, int64_t chunk, int r) {
  return chunk_begin(bytes, chunk, r + 1) - chunk_begin(bytes, chunk, r);
}

static fx_status all_reduce_segment(mpi_comm *comm, const fx_comm_call *call, const char *src, char *dst,
                                    int64_t bytes) {
  int size = comm->base.size, rank = comm->base.rank;
  int64_t element = (int64_t)fx_dtype_bytes(call->dtype);
  int64_t chunk = fx_ceil_div(bytes / element, size) * element;
  int64_t own_begin = chunk_begin(bytes, chunk, rank), own = chunk_length(bytes, chunk, rank);
  for (int i = 1; i < size; i++) {
    int to = peer_to(comm, i), from = peer_from(comm, i);
    FX_TRY(post_receive(comm, staged(comm, from), own, from));
    FX_TRY(post_send(comm, src + chunk_begin(bytes, chunk, to), chunk_length(bytes, chunk, to), to));
  }
  FX_TRY(wait_all(comm));
  sum_staged(comm, call, src + own_begin, dst + own_begin, own);
  for (int i = 1; i < size; i++) {
    int to = peer_to(comm, i), from = peer_from(comm, i);
    FX_TRY(post_receive(comm, dst + chunk_begin(bytes, chunk, from), chunk_length(bytes, chunk, from), from));
    FX_TRY(post_send(comm, dst + own_begin, own, to));
  }
  return wait_all(comm);
}

static fx_status do_all_reduce(mpi_comm *comm, const fx_comm_call *call, int64_t bytes) {
  if (bytes <= SHORT_BYTES) return all_reduce_short(comm, call, bytes);
  int64_t segment = comm->chunk_bytes * comm->base.size;
  for (int64_t begin = 0; begin < bytes; begin += segment)
    FX_TRY(all_reduce_segment(comm, call, at(call->src, begin), at(call->dst, begin),
                              fx_min_i64(segment, bytes - begin)));
  return FX_OK;
}

static fx_status do_reduce_scatter(mpi_comm *comm, const fx_comm_call *call, int64_t bytes) {
  for (int64_t begin = 0; begin < bytes; begin += comm->chunk_bytes) {
    int64_t length = fx_min_i64(comm->chunk_bytes, bytes - begin);
    for (int i = 1; i < comm->base.size; i++) {
      int to = peer_to(comm, i), from = peer_from(comm, i);
      FX_TRY(post_receive(comm, staged(comm, from), length, from));
      FX_TRY(post_send(comm, at(call->src, bytes * to + begin), length, to));
    }
    FX_TRY(wait_all(comm));
    sum_staged(comm, call, at(call->src, bytes * comm->base.rank + begin), at(call->dst, begin), length);
  }
  return FX_OK;
}

static fx_status do_all_gather(mpi_comm *comm, const fx_comm_call *call, int64_t bytes) {
  char *own = at(call->dst, bytes * comm->base.rank);
  if (bytes && own != call->src) memcpy(own, call->src, (size_t)bytes);
  for (int64_t begin = 0; begin < bytes; begin += MESSAGE_BYTES) {
    int64_t length = fx_min_i64(MESSAGE_BYTES, bytes - begin);
    for (int i = 1; i < comm->base.size; i++) {
      int to = peer_to(comm, i), from = peer_from(comm, i);
      FX_TRY(post_receive(comm, at(call->dst, bytes * from + begin), length, from));
      FX_TRY(post_send(comm, own + begin, length, to));
    }
    FX_TRY(wait_all(comm));
  }
  return FX_OK;
}

/* A binomial tree: in the round of `bit`, ranks below it (counted from the root) serve the rank `bit` further
 * on. */
static fx_status do_broadcast(mpi_comm *comm, const fx_comm_call *call, int64_t bytes) {
  int size = comm->base.size, relative = (comm->base.rank - call->peer + size) % size;
  for (int64_t begin = 0; begin < bytes; begin += MESSAGE_BYTES) {
    int64_t length = fx_min_i64(MESSAGE_BYTES, bytes - begin);
    char *data = at(call->dst, begin);
    int bit = 1;
    while (bit <= relative) bit <<= 1; /* the first round in which this rank serves */
    if (relative > 0) {
      FX_TRY(post_receive(comm, data, length, (relative - bit / 2 + call->peer) % size));
      FX_TRY(wait_all(comm));
    }
    for (; relative + bit < size; bit <<= 1)
      FX_TRY(post_send(comm, data, length, (relative + bit + call->peer) % size));
    FX_TRY(wait_all(comm));
  }
  return FX_OK;
}

static fx_status do_point_to_point(mpi_comm *comm, const fx_comm_call *call, int64_t bytes) {
  int from = call->kind == FX_SEND_RECV ? call->peer_from : call->peer;
  for (int64_t begin = 0; begin < bytes; begin += MESSAGE_BYTES) {
    int64_t length = fx_min_i64(MESSAGE_BYTES, bytes - begin);
    if (call->kind != FX_SEND) FX_TRY(post_receive(comm, at(call->dst, begin), length, from));
    if (call->kind != FX_RECV) FX_TRY(post_send(comm, at(call->src, begin), length, call->peer));
    FX_TRY(wait_all(comm));
  }
  return FX_OK;
}

/* Dissemination: after round k every rank has heard, directly or not, of the 2^(k+1) - 1 ranks before it. */
static fx_status do_barrier(mpi_comm *comm) {
  char token = 0, heard = 0;
  for (int distance = 1; distance < comm->base.size; distance <<= 1) {
    FX_TRY(post_receive(comm, &heard, 1, peer_from(comm, distance)));
    FX_TRY(post_send(comm, &token, 1, peer_to(comm, distance)));
    FX_TRY(wait_all(comm));
  }
  return FX_OK;
}

static fx_status issue(mpi_comm *comm, const fx_comm_call *call) {
  int64_t bytes = call->count * (int64_t)fx_dtype_bytes(call->dtype);
  switch (call->kind) {
  case FX_ALL_REDUCE:
    return do_all_reduce(comm, call, bytes);
  case FX_REDUCE_SCATTER:
    return do_reduce_scatter(comm, call, bytes);
  case FX_ALL_GATHER:
    return do_all_gather(comm, call, bytes);
  case FX_BROADCAST:
    return do_broadcast(comm, call, bytes);
  case FX_BARRIER:
    return do_barrier(comm);
  default:
    return do_point_to_point(comm, call, bytes);
  }
}

static fx_status mpi_issue(fx_comm *base, const fx_comm_call *call) {
  mpi_comm *comm = (mpi_comm *)base;
  FX_TRY(fx_reduce_check(base, call));
  if (comm->dead || is_aborted(comm, false))
    return fail(comm, fx_error(FX_ERR_COMM, "%s", comm->dead ? "dead after an earlier failure" : "aborted"));
  fx_status status = issue(comm, call);
  return status == FX_OK ? FX_OK : fail(comm, status);
}

static void mpi_abort(fx_comm *base) {
  mpi_comm *comm = (mpi_comm *)base;
  if (atomic_exchange(&comm->aborted, true) || comm->comm == MPI_COMM_NULL) return;
  pthread_mutex_lock(&comm->context->mutex);
  for (int r = 0; r < base->size; r++) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (r == base->rank) continue;
    if (MPI_Isend(NULL, 0, MPI_BYTE, r, TAG_ABORT, comm->comm, &request) == MPI_SUCCESS)
      MPI_Request_free(&request); /* an empty message leaves at once */
  }
  pthread_mutex_unlock(&comm->context->mutex);
}

static void mpi_destroy(fx_comm *base) {
  mpi_comm *comm = (mpi_comm *)base;
  /* freeing is collective: not with ranks that may have left */
  if (comm->comm != MPI_COMM_NULL && !comm->dead && !atomic_load(&comm->aborted)) {
    pthread_mutex_lock(&comm->context->mutex);
    MPI_Comm_free(&comm->comm);
    pthread_mutex_unlock(&comm->context->mutex);
  }
  fx_mpi_context_unref(comm->context);
  free(comm->requests);
  free(comm->staging);
  free(comm->sources);
  free(comm);
}

static const fx_comm_vtable g_mpi_vtable = {
    .transport = "mpi",
    .issue = mpi_issue,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

fx_status fx_mpi_comm_create(fx_mpi_context *context, MPI_Comm handle, const char *name, int id, int rank,
                             int size, fx_comm **out) {
  mpi_comm *comm = NULL;
  fx_status status = FX_OK;
  size_t n = (size_t)size;
  FX_TRY_GOTO(fx_calloc(&comm, 1, sizeof *comm), free_handle);
  comm->base = (fx_comm){.vtable = &g_mpi_vtable, .rank = rank, .size = size, .id = id};
  strncpy(comm->base.name, name, sizeof comm->base.name - 1);
  atomic_init(&comm->aborted, false);
  comm->comm = handle;
  comm->context = fx_mpi_context_ref(context);
  if (size > 1) {
    int64_t share = STAGING_BYTES / size / FX_ALIGN * FX_ALIGN;
    comm->chunk_bytes = fx_min_i64(fx_max_i64(share, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES);
    FX_TRY_GOTO(fx_calloc(&comm->requests, 2 * n, sizeof(MPI_Request)), destroy_comm);
    FX_TRY_GOTO(fx_calloc(&comm->sources, n, sizeof *comm->sources), destroy_comm);
    FX_TRY_GOTO(fx_alloc_aligned(&comm->staging, n * (size_t)comm->chunk_bytes), destroy_comm);
    for (int i = 0; i < 2 * size; i++) comm->requests[i] = MPI_REQUEST_NULL;
  }
  *out = &comm->base;
  return FX_OK;
destroy_comm:
  mpi_destroy(&comm->base);
  return status;
free_handle:
  if (handle != MPI_COMM_NULL) MPI_Comm_free(&handle);
  return status;
}
