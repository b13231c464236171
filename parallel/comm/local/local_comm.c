/* SPDX-License-Identifier: Apache-2.0 */
/* In-process communicators. A collective: every rank posts its call, all meet, each does its share directly
 * on the others' buffers (ranks share one address space), all meet again. Point to point: the sender posts
 * its buffer in the channel of the pair and waits until the receiver has copied it.
 *
 * Nobody's buffer may be read after its owner has left with an error: `reading` counts the ranks that may
 * still look at posted buffers, and a rank that leaves a dead group waits until it is 0. Sections counted
 * there never block. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "parallel/comm/local/local_internal.h"
#include "parallel/comm/reduce.h"

typedef enum channel_state { CHANNEL_EMPTY, CHANNEL_POSTED, CHANNEL_COPYING } channel_state;

typedef struct channel {
  channel_state state;
  const fx_comm_call *call; /* the sender's */
} channel;

struct local_group {
  local_group *next;
  int64_t key;
  int first; /* world rank of group rank 0: tells the groups of one split apart */
  int size;
  int members_left; /* ranks that have not destroyed their communicator; some may not have joined yet */
  pthread_cond_t changed;
  bool dead;
  char why[512];
  int arrived;
  uint64_t generation; /* meetings so far */
  int reading;
  const fx_comm_call **calls; /* [size] posted calls of the collective in progress */
  channel *channels;          /* [size * size], from * size + to */
};

typedef struct local_comm {
  fx_comm base;
  fx_local_world *world;
  local_group *group;
  const void **sources; /* [size] scratch of the sums */
} local_comm;

/* Functions named here down to `issue` are called with the world's mutex held, unless they say otherwise. */

static void kill_group(local_group *group, const char *why) {
  if (!group->dead) snprintf(group->why, sizeof group->why, "%s", why);
  group->dead = true;
  pthread_cond_broadcast(&group->changed);
}

static fx_status leave_dead(local_comm *comm) {
  local_group *group = comm->group;
  while (group->reading > 0) pthread_cond_wait(&group->changed, &comm->world->mutex);
  return fx_error(FX_ERR_COMM, "communicator %s#%d: %s", comm->base.name, comm->base.id, group->why);
}

/* Waits until every rank is here; the last one sets `reading` for the section that follows. */
static fx_status meet(local_comm *comm, int reading) {
  local_group *group = comm->group;
  uint64_t generation = group->generation;
  if (group->dead) return leave_dead(comm);
  if (++group->arrived == group->size) {
    group->arrived = 0;
    group->generation++;
    group->reading = reading;
    pthread_cond_broadcast(&group->changed);
    return FX_OK;
  }
  while (group->generation == generation && !group->dead)
    pthread_cond_wait(&group->changed, &comm->world->mutex);
  return group->generation != generation ? FX_OK : leave_dead(comm);
}

static const char *call_text(const fx_comm_call *call, char *text, size_t capacity) {
  snprintf(text, capacity, "%s %s %s x %lld root %d", fx_collective_name(call->kind),
           call->reduce == FX_REDUCE_MAX ? "max" : "sum", fx_dtype_name(call->dtype), (long long)call->count,
           call->kind == FX_BROADCAST ? call->peer : 0);
  return text;
}

/* All ranks issued the same call: a transport over a network could only hang here. */
static bool calls_match(local_comm *comm) {
  local_group *group = comm->group;
  const fx_comm_call *a = group->calls[0];
  for (int r = 1; r < group->size; r++) {
    const fx_comm_call *b = group->calls[r];
    bool same = a->kind == b->kind;
    if (same && a->kind != FX_BARRIER)
      same = a->dtype == b->dtype && a->count == b->count &&
             (a->kind != FX_BROADCAST || a->peer == b->peer) && a->reduce == b->reduce;
    if (same) continue;
    char mine[96], theirs[96], why[256];
    snprintf(why, sizeof why, "rank 0 issued %s, rank %d issued %s", call_text(a, mine, sizeof mine), r,
             call_text(b, theirs, sizeof theirs));
    kill_group(group, why);
    return false;
  }
  return true;
}

static char *at(const void *base, const fx_comm_call *call, int64_t index) {
  return (char *)base + (size_t)index * fx_dtype_bytes(call->dtype);
}

static void copy(void *dst, const void *src, const fx_comm_call *call, int64_t count) {
  if (count > 0 && dst != src) memcpy(dst, src, (size_t)count * fx_dtype_bytes(call->dtype));
}

/* Each rank sums its chunk and hands it to everybody: nobody else touches that chunk of any buffer. */
static void do_all_reduce(local_comm *comm, const fx_comm_call *call) {
  int size = comm->base.size, rank = comm->base.rank;
  int64_t chunk = fx_ceil_div(call->count, size);
  int64_t begin = fx_min_i64(chunk * rank, call->count), end = fx_min_i64(begin + chunk, call->count);
  for (int r = 0; r < size; r++) comm->sources[r] = at(comm->group->calls[r]->src, call, begin);
  char *mine = at(call->dst, call, begin);
  fx_reduce_ranks(call->dtype, call->reduce, comm->sources, size, mine, end - begin);
  for (int r = 0; r < size; r++)
    if (r != rank) copy(at(comm->group->calls[r]->dst, call, begin), mine, call, end - begin);
}

static void do_reduce_scatter(local_comm *comm, const fx_comm_call *call) {
  int size = comm->base.size;
  for (int r = 0; r < size; r++)
    comm->sources[r] = at(comm->group->calls[r]->src, call, call->count * comm->base.rank);
  fx_reduce_ranks(call->dtype, call->reduce, comm->sources, size, call->dst, call->count);
}

static void do_all_gather(local_comm *comm, const fx_comm_call *call) {
  for (int r = 0; r < comm->base.size; r++)
    copy(at(call->dst, call, call->count * r), comm->group->calls[r]->src, call, call->count);
}

/* Called without the mutex, between two meetings. */
static void do_share(local_comm *comm, const fx_comm_call *call) {
  switch (call->kind) {
  case FX_ALL_REDUCE:
    do_all_reduce(comm, call);
    break;
  case FX_REDUCE_SCATTER:
    do_reduce_scatter(comm, call);
    break;
  case FX_ALL_GATHER:
    do_all_gather(comm, call);
    break;
  case FX_BROADCAST:
    copy(call->dst, comm->group->calls[call->peer]->dst, call, call->count);
    break;
  default:
    break;
  }
}

static fx_status collective(local_comm *comm, const fx_comm_call *call) {
  local_group *group = comm->group;
  group->calls[comm->base.rank] = call;
  FX_TRY(meet(comm, group->size));
  bool match = calls_match(comm);
  if (match) {
    pthread_mutex_unlock(&comm->world->mutex);
    do_share(comm, call);
    pthread_mutex_lock(&comm->world->mutex);
  }
  if (--group->reading == 0 && group->dead) pthread_cond_broadcast(&group->changed);
  return meet(comm, 0);
}

static fx_status wait_taken(local_comm *comm, channel *ch) {
  while (ch->state == CHANNEL_COPYING || (ch->state == CHANNEL_POSTED && !comm->group->dead))
    pthread_cond_wait(&comm->group->changed, &comm->world->mutex);
  if (ch->state == CHANNEL_EMPTY) return FX_OK;
  ch->state = CHANNEL_EMPTY; /* nobody took it and nobody will */
  return leave_dead(comm);
}

static fx_status receive(local_comm *comm, const fx_comm_call *call, int from) {
  local_group *group = comm->group;
  channel *ch = &group->channels[from * group->size + comm->base.rank];
  while (ch->state != CHANNEL_POSTED && !group->dead) pthread_cond_wait(&group->changed, &comm->world->mutex);
  if (group->dead) return leave_dead(comm);
  if (ch->call->count != call->count || ch->call->dtype != call->dtype) {
    char why[256];
    snprintf(why, sizeof why, "rank %d sends %s x %lld, rank %d expects %s x %lld", from,
             fx_dtype_name(ch->call->dtype), (long long)ch->call->count, comm->base.rank,
             fx_dtype_name(call->dtype), (long long)call->count);
    kill_group(group, why);
    return leave_dead(comm);
  }
  ch->state = CHANNEL_COPYING;
  pthread_mutex_unlock(&comm->world->mutex);
  copy(call->dst, ch->call->src, call, call->count);
  pthread_mutex_lock(&comm->world->mutex);
  ch->state = CHANNEL_EMPTY;
  pthread_cond_broadcast(&group->changed);
  return FX_OK;
}

static fx_status point_to_point(local_comm *comm, const fx_comm_call *call) {
  local_group *group = comm->group;
  channel *out = &group->channels[comm->base.rank * group->size + call->peer];
  fx_status status = FX_OK;
  if (group->dead) return leave_dead(comm);
  if (call->kind != FX_RECV) {
    FX_ASSERT(out->state == CHANNEL_EMPTY);
    out->state = CHANNEL_POSTED;
    out->call = call;
    pthread_cond_broadcast(&group->changed);
  }
  if (call->kind != FX_SEND)
    status = receive(comm, call, call->kind == FX_RECV ? call->peer : call->peer_from);
  if (call->kind != FX_RECV) {
    fx_status sent = wait_taken(comm, out);
    if (status == FX_OK) status = sent;
  }
  return status;
}

static fx_status local_issue(fx_comm *base, const fx_comm_call *call) {
  local_comm *comm = (local_comm *)base;
  FX_TRY(fx_reduce_check(base, call));
  bool pairwise = call->kind == FX_SEND || call->kind == FX_RECV || call->kind == FX_SEND_RECV;
  pthread_mutex_lock(&comm->world->mutex);
  fx_status status = pairwise ? point_to_point(comm, call) : collective(comm, call);
  pthread_mutex_unlock(&comm->world->mutex);
  return status;
}

static void local_abort(fx_comm *base) {
  local_comm *comm = (local_comm *)base;
  pthread_mutex_lock(&comm->world->mutex);
  kill_group(comm->group, "aborted");
  pthread_mutex_unlock(&comm->world->mutex);
}

static void group_free(local_group *group) {
  pthread_cond_destroy(&group->changed);
  free(group->channels);
  free(group->calls);
  free(group);
}

static void local_destroy(fx_comm *base) {
  local_comm *comm = (local_comm *)base;
  local_group *group = comm->group;
  pthread_mutex_lock(&comm->world->mutex);
  if (--group->members_left == 0) {
    local_group **link = &comm->world->groups;
    while (*link != group) link = &(*link)->next;
    *link = group->next;
    group_free(group);
  }
  pthread_mutex_unlock(&comm->world->mutex);
  free(comm->sources);
  free(comm);
}

static const fx_comm_vtable g_local_vtable = {
    .transport = "local",
    .issue = local_issue,
    .abort = local_abort,
    .destroy = local_destroy,
};

static fx_status group_get(fx_local_world *world, int64_t key, int first, int size, local_group **out) {
  for (local_group *g = world->groups; g; g = g->next)
    if (g->key == key && g->first == first) {
      *out = g;
      return FX_OK;
    }
  local_group *group = NULL;
  FX_TRY(fx_calloc(&group, 1, sizeof *group));
  pthread_cond_init(&group->changed, NULL);
  group->key = key;
  group->first = first;
  group->size = group->members_left = size;
  fx_status status = fx_calloc(&group->calls, (size_t)size, sizeof(void *));
  if (status == FX_OK)
    status = fx_calloc(&group->channels, (size_t)size * (size_t)size, sizeof *group->channels);
  if (status != FX_OK) {
    group_free(group);
    return status;
  }
  if (world->aborted) kill_group(group, "another rank of this job failed");
  group->next = world->groups;
  world->groups = group;
  *out = group;
  return FX_OK;
}

fx_status fx_local_group_join(fx_local_world *world, const char *name, int id, const int *ranks, int count,
                              int group_rank, int64_t key, fx_comm **out) {
  local_comm *comm = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&comm, 1, sizeof *comm));
  comm->base = (fx_comm){.vtable = &g_local_vtable, .rank = group_rank, .size = count, .id = id};
  strncpy(comm->base.name, name, sizeof comm->base.name - 1);
  comm->world = world;
  FX_TRY_GOTO(fx_calloc(&comm->sources, (size_t)count, sizeof *comm->sources), free_comm);
  pthread_mutex_lock(&world->mutex);
  status = group_get(world, key, ranks[0], count, &comm->group);
  pthread_mutex_unlock(&world->mutex);
  if (status != FX_OK) goto free_comm;
  *out = &comm->base;
  return FX_OK;
free_comm:
  free(comm->sources);
  free(comm);
  return status;
}

void fx_local_groups_abort(fx_local_world *world) {
  for (local_group *g = world->groups; g; g = g->next) kill_group(g, "another rank of this job failed");
}

void fx_local_groups_free(fx_local_world *world) {
  while (world->groups) {
    local_group *group = world->groups;
    world->groups = group->next;
    group_free(group);
  }
}
