/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators as the runtime sees them: an ordered group of ranks and one entry point that carries out a
 * collective call. Transports (MPI, NCCL, in-process threads) live in parallel/comm and fill the vtable;
 * passes, ledgers and traces only read fx_comm_call, so they know every collective without knowing a
 * transport.
 *
 * Contract of `issue`:
 * - collective over the group: every rank issues the same calls in the same order on one communicator;
 * - buffers are contiguous, borrowed until the call is complete; src == dst is in place where the kind allows
 * it;
 * - CPU transports run on the lane's service thread and return when the result is in dst (stream is NULL);
 *   device transports enqueue on `stream` and return at once;
 * - on CPU sums are taken in rank order, 0 first (((x0 + x1) + x2) + ...), bitwise the same on every rank and
 * for every message size; on GPUs in an order that one topology keeps;
 * - allocates nothing: staging is made with the communicator;
 * - FX_ERR_COMM: the communicator is dead and may only be destroyed. */
#ifndef FX_DYNAMO_RT_COMM_COMM_H
#define FX_DYNAMO_RT_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, text). Meaning of count (elements of dtype):
 * ALL_REDUCE      src[count] -> dst[count], in place allowed
 * REDUCE_SCATTER  src[size*count] -> dst[count]: dst is the sum of block `rank`; dst may be src + rank*count
 * ALL_GATHER      src[count] -> dst[size*count]; src may be dst + rank*count
 * BROADCAST       dst[count] of rank `peer` -> dst of all (src unused)
 * SEND            src[count] to rank `peer`
 * RECV            dst[count] from rank `peer`
 * SEND_RECV       src[count] to rank `peer`, dst[count] from rank `peer_from` (ring shift); buffers disjoint
 * BARRIER         no data */
#define FX_COLLECTIVE_LIST(X)         \
  X(ALL_REDUCE, "all_reduce")         \
  X(REDUCE_SCATTER, "reduce_scatter") \
  X(ALL_GATHER, "all_gather")         \
  X(BROADCAST, "broadcast")           \
  X(SEND, "send")                     \
  X(RECV, "recv")                     \
  X(SEND_RECV, "send_recv")           \
  X(BARRIER, "barrier")

typedef enum fx_collective {
#define FX_COLLECTIVE_ENUM(name, text) FX_##name,
  FX_COLLECTIVE_LIST(FX_COLLECTIVE_ENUM)
#undef FX_COLLECTIVE_ENUM
      FX_COLLECTIVE_COUNT
} fx_collective;

const char *fx_collective_name(fx_collective kind);

typedef enum fx_reduce {
  FX_REDUCE_SUM,
  FX_REDUCE_MAX
} fx_reduce; /* F32, F64, I64; I32 too for MAX and SUM */

typedef struct fx_comm_call {
  fx_collective kind;
  fx_reduce reduce;
  fx_dtype dtype;
  int peer, peer_from; /* ranks of the group */
  int64_t count;
  const void *src;
  void *dst;
  void *stream;   /* the lane's device stream, NULL on CPU */
  int32_t ticket; /* of fx_comm_bind; 0: the call was not bound */
} fx_comm_call;

typedef struct fx_comm fx_comm;

typedef struct fx_comm_vtable {
  const char *transport; /* "mpi", "local", "one rank", "nccl", "nccl and copy engines" once it is open */
  bool on_device;        /* buffers are a GPU's: a group of one is the transport's business too */
  /* Makes the connection, once; collective, before any issue. NULL: nothing is left to do. */
  fx_status (*open)(fx_comm *comm);
  fx_status (*issue)(fx_comm *comm, const fx_comm_call *call);
  /* fx_comm_bind; NULL: there is nothing to prepare. */
  fx_status (*bind)(fx_comm *comm, fx_comm_call *call);
  /* Whether calls that were only queued have failed since; NULL: none are. Any thread. */
  fx_status (*poll)(fx_comm *comm);
  /* Wakes every rank blocked in issue with FX_ERR_COMM; callable from any thread. */
  void (*abort)(fx_comm *comm);
  void (*destroy)(fx_comm *comm);
} fx_comm_vtable;

/* The latest call of a communicator, for who watches from another thread: every field is accessed atomically,
 * and `done` is written last. Where calls are only queued it is the latest that has begun on the device, by
 * the words that the device has written (`begun`), or else the latest that was queued, which is done then. */
typedef struct fx_comm_progress {
  uint64_t issued,
      done;         /* how many calls; of one that has begun its number, when it was queued or recorded */
  int64_t began_ns; /* fx_now_ns when the latest was issued */
  int64_t count;
  int32_t kind, dtype;
  bool begun; /* by the device's words, which tell neither a time nor the end */
} fx_comm_progress;

/* Transports embed it as their first member. */
struct fx_comm {
  const fx_comm_vtable *vtable;
  int rank, size;
  int id;        /* the same on every member; ledgers name it */
  char name[16]; /* "dp", "tp", "cp", "world" */
  fx_comm_progress progress;
  uint32_t *begun; /* [FX_COMM_BEGUN] of the host; NULL where no device writes them */
};
enum { FX_COMM_BEGUN = 2 };

/* Checks the arguments every transport relies on, then issues. A group of one rank copies src to dst itself.
 */
fx_status fx_comm_issue(fx_comm *comm, const fx_comm_call *call);
/* Connects what is not yet connected. Collective over the group. */
fx_status fx_comm_open(fx_comm *comm);
/* Prepares a call that will be issued many times on these very buffers, once they are there, and sets its
 * ticket, to be issued with. Collective over the group, in one order on every rank, when nothing is being
 * recorded; on one communicator bound calls are issued on one lane. */
fx_status fx_comm_bind(fx_comm *comm, fx_comm_call *call);
fx_comm_progress fx_comm_progress_get(const fx_comm *comm); /* any thread */
/* What a transport lets the device write to comm->begun before the call that is being issued. */
void fx_comm_begun_words(const fx_comm *comm, const fx_comm_call *call, uint32_t word[FX_COMM_BEGUN]);
fx_status fx_comm_poll(fx_comm *comm); /* FX_ERR_COMM: a queued call failed */
void fx_comm_abort(fx_comm *comm);
void fx_comm_destroy(fx_comm *comm); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
