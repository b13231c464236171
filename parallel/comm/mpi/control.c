/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel over MPI: every rank sends its message to every other one, point to point and
 * nonblocking, first the length, then the bytes. So each rank knows by itself who is missing, and no
 * collective of the library, which could not be given up, is ever entered. Messages are small and few; the
 * number of them (ranks squared) does not matter beside a step. */
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/comm/missing.h"
#include "parallel/comm/mpi/mpi_internal.h"
#include "parallel/comm/split_check.h"

enum { TAG_LENGTH = 1, TAG_BYTES = 2, TAG_MEET = 3, TAG_GROUP = 16 /* plus the communicator's id */ };
enum { DUPLICATE_MS = 120000 };

typedef struct mpi_control {
  fx_control base;
  fx_mpi_context *context;
  MPI_Comm comm; /* of this channel; freed by MPI_Finalize */
  bool dead;     /* after a missed deadline messages no longer match */
} mpi_control;

/* The buffers of one all_gather. They belong to MPI while requests are pending. */
typedef struct exchange {
  MPI_Request *requests; /* [2 * size]: from rank r at r, to rank r at size + r */
  int *finished;         /* [2 * size] scratch of MPI_Testsome */
  int64_t *lengths;      /* [size] */
  int64_t *offsets;      /* [size + 1] of the phase in progress */
  char *mine;            /* copy of the caller's message */
  char *all;
  bool *here; /* [size] */
} exchange;

static void exchange_free(exchange *x) {
  free(x->requests);
  free(x->finished);
  free(x->lengths);
  free(x->offsets);
  free(x->mine);
  free(x->all);
  free(x->here);
}

static fx_status exchange_init(exchange *x, int size, const void *mine, int64_t bytes) {
  size_t n = (size_t)size;
  memset(x, 0, sizeof *x);
  FX_TRY(fx_calloc(&x->requests, 2 * n, sizeof(MPI_Request)));
  FX_TRY(fx_calloc(&x->finished, 2 * n, sizeof *x->finished));
  FX_TRY(fx_calloc(&x->lengths, n, sizeof *x->lengths));
  FX_TRY(fx_calloc(&x->offsets, n + 1, sizeof *x->offsets));
  FX_TRY(fx_calloc(&x->here, n, sizeof *x->here));
  FX_TRY(fx_calloc(&x->mine, (size_t)bytes + 1, 1));
  if (bytes) memcpy(x->mine, mine, (size_t)bytes);
  return FX_OK;
}

/* Posts one phase: `bytes` of `message` to all, the span of x->offsets of `into` from each. */
static fx_status post(mpi_control *control, exchange *x, const void *message, int64_t bytes, char *into,
                      int tag) {
  int rank = control->base.rank, size = control->base.size;
  fx_mpi_context *context = control->context;
  int code = MPI_SUCCESS;
  for (int i = 0; i < 2 * size; i++) x->requests[i] = MPI_REQUEST_NULL;
  if (bytes && message != into + x->offsets[rank]) memcpy(into + x->offsets[rank], message, (size_t)bytes);
  pthread_mutex_lock(&context->mutex);
  for (int i = 1; i < size && code == MPI_SUCCESS; i++) {
    int from = (rank + size - i) % size, to = (rank + i) % size;
    int64_t theirs = x->offsets[from + 1] - x->offsets[from];
    if (theirs)
      code = MPI_Irecv(into + x->offsets[from], (int)theirs, MPI_BYTE, from, tag, control->comm,
                       &x->requests[from]);
    if (bytes && code == MPI_SUCCESS)
      code = MPI_Isend(message, (int)bytes, MPI_BYTE, to, tag, control->comm, &x->requests[size + to]);
  }
  pthread_mutex_unlock(&context->mutex);
  return fx_mpi_check(code, "control channel: MPI_Isend, MPI_Irecv");
}

/* Polls until every request of the phase is done or the deadline is over. */
static fx_status finish(mpi_control *control, exchange *x, int64_t deadline, int timeout_ms) {
  int size = control->base.size, count = 0;
  fx_mpi_pause pause = {0};
  for (;;) {
    pthread_mutex_lock(&control->context->mutex);
    int code = MPI_Testsome(2 * size, x->requests, &count, x->finished, MPI_STATUSES_IGNORE);
    pthread_mutex_unlock(&control->context->mutex);
    FX_TRY(fx_mpi_check(code, "control channel: MPI_Testsome"));
    bool done = true;
    for (int r = 0; r < size; r++) {
      x->here[r] = x->requests[r] == MPI_REQUEST_NULL && x->requests[size + r] == MPI_REQUEST_NULL;
      done = done && x->here[r];
    }
    if (done) return FX_OK;
    if (fx_now_ms() >= deadline) return fx_missing_error(x->here, size, timeout_ms);
    fx_mpi_pause_pass(&pause);
  }
}

static fx_status run_exchange(mpi_control *control, exchange *x, int64_t bytes, int timeout_ms) {
  int size = control->base.size, rank = control->base.rank;
  int64_t deadline = fx_now_ms() + timeout_ms;
  for (int r = 0; r <= size; r++) x->offsets[r] = r * (int64_t)sizeof(int64_t);
  x->lengths[rank] = bytes;
  FX_TRY(post(control, x, &x->lengths[rank], sizeof(int64_t), (char *)x->lengths, TAG_LENGTH));
  FX_TRY(finish(control, x, deadline, timeout_ms));
  x->offsets[0] = 0;
  for (int r = 0; r < size; r++) x->offsets[r + 1] = x->offsets[r] + x->lengths[r];
  FX_TRY(fx_calloc(&x->all, (size_t)x->offsets[size] + 1, 1));
  FX_TRY(post(control, x, x->mine, bytes, x->all, TAG_BYTES));
  return finish(control, x, deadline, timeout_ms);
}

static fx_status mpi_all_gather(fx_control *base, const void *mine, int64_t bytes, char **all,
                                int64_t *offsets, int timeout_ms) {
  mpi_control *control = (mpi_control *)base;
  exchange x;
  if (control->dead) return fx_error(FX_ERR_COMM, "the control channel is dead after an earlier failure");
  if (bytes > INT_MAX)
    return fx_error(FX_ERR_COMM, "a control message of %lld bytes; the limit is 2 GiB", (long long)bytes);
  fx_status status = exchange_init(&x, base->size, mine, bytes);
  if (status != FX_OK) {
    exchange_free(&x);
    return status;
  }
  status = run_exchange(control, &x, bytes, timeout_ms);
  if (status != FX_OK) {
    /* Requests may be pending, and a send cannot be taken back: the buffers stay with MPI until the process
     * ends, which is what comes next. */
    control->dead = true;
    return status;
  }
  memcpy(offsets, x.offsets, ((size_t)base->size + 1) * sizeof *offsets);
  *all = x.all;
  x.all = NULL;
  exchange_free(&x);
  return FX_OK;
}

/* All ranks are here (fx_split_check), so the blocking calls below only wait for ranks that are on their way.
 */
static fx_status mpi_split(fx_control *base, const char *name, int id, const int *ranks, int count,
                           fx_comm **out) {
  mpi_control *control = (mpi_control *)base;
  fx_mpi_context *context = control->context;
  MPI_Comm comm = MPI_COMM_NULL;
  int group_rank = -1;
  FX_TRY(fx_split_check(base, name, id, ranks, count, &group_rank));
  if (count == 0) {
    *out = NULL;
    return FX_OK;
  }
  if (count > 1) {
    MPI_Group everybody = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    pthread_mutex_lock(&context->mutex);
    int code = MPI_Comm_group(context->comm, &everybody);
    if (code == MPI_SUCCESS) code = MPI_Group_incl(everybody, count, ranks, &members);
    if (code == MPI_SUCCESS) code = MPI_Comm_create_group(context->comm, members, TAG_GROUP + id, &comm);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
    if (everybody != MPI_GROUP_NULL) MPI_Group_free(&everybody);
    pthread_mutex_unlock(&context->mutex);
    FX_TRY(fx_mpi_check(code, "MPI_Comm_create_group"));
  }
  return fx_mpi_comm_create(context, comm, name, id, group_rank, count, out);
}

static fx_status mpi_meet(fx_control *base, const void *mine, int64_t bytes, void *all, bool *here,
                          int timeout_ms) {
  mpi_control *control = (mpi_control *)base;
  exchange x;
  if (control->dead) return fx_error(FX_ERR_COMM, "the control channel is dead after an earlier failure");
  fx_status status = exchange_init(&x, base->size, mine, bytes);
  if (status == FX_OK) status = fx_calloc(&x.all, (size_t)(base->size * bytes), 1);
  if (status != FX_OK) {
    exchange_free(&x);
    return status;
  }
  for (int r = 0; r <= base->size; r++) x.offsets[r] = r * bytes;
  status = post(control, &x, x.mine, bytes, x.all, TAG_MEET);
  if (status == FX_OK) status = finish(control, &x, fx_now_ms() + timeout_ms, timeout_ms);
  memcpy(here, x.here, (size_t)base->size * sizeof *here);
  memcpy(all, x.all, (size_t)(base->size * bytes));
  control->dead = status != FX_OK;
  if (!control->dead) exchange_free(&x); /* else requests may be pending in it */
  for (int r = 0; r < base->size; r++)
    if (!here[r]) return FX_OK;
  return status;
}

static fx_status create(fx_mpi_context *context, MPI_Comm comm, fx_control **out);

/* As in mpi_split, all ranks are here. */
static fx_status mpi_duplicate(fx_control *base, fx_control **out) {
  mpi_control *control = (mpi_control *)base;
  MPI_Comm comm = MPI_COMM_NULL;
  FX_TRY(fx_control_barrier(base, DUPLICATE_MS));
  pthread_mutex_lock(&control->context->mutex);
  int code = MPI_Comm_dup(control->comm, &comm);
  if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  pthread_mutex_unlock(&control->context->mutex);
  FX_TRY(fx_mpi_check(code, "MPI_Comm_dup"));
  return create(fx_mpi_context_ref(control->context), comm, out);
}

static void mpi_control_destroy(fx_control *base) {
  fx_mpi_context_unref(((mpi_control *)base)->context);
  free(base);
}

static const fx_control_vtable g_mpi_control_vtable = {
    .transport = "mpi",
    .all_gather = mpi_all_gather,
    .split = mpi_split,
    .destroy = mpi_control_destroy,
    .duplicate = mpi_duplicate,
    .meet = mpi_meet,
};

static fx_status create(fx_mpi_context *context, MPI_Comm comm, fx_control **out) {
  mpi_control *control = NULL;
  FX_TRY(fx_calloc(&control, 1, sizeof *control));
  control->base = (fx_control){&g_mpi_control_vtable, context->rank, context->size};
  control->context = context;
  control->comm = comm;
  *out = &control->base;
  return FX_OK;
}

fx_status fx_mpi_control_create(fx_mpi_context *context, fx_control **out) {
  return create(context, context->comm, out);
}
