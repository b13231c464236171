/* SPDX-License-Identifier: Apache-2.0 */
/* The world of in-process ranks, its control channel and the runner of rank threads. */
#include "parallel/comm/local/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/comm/local/local_internal.h"
#include "parallel/comm/missing.h"
#include "parallel/comm/split_check.h"

enum { DUPLICATE_MS = 120000 };

typedef struct local_control {
  fx_control base;
  fx_local_world *world;
  int64_t channel; /* 0: the first one; the same on every rank */
  int64_t round;   /* of the next all_gather */
  bool dead;       /* after a missed deadline rounds no longer match */
} local_control;

static void round_free(fx_local_world *world, local_round *round) {
  for (int r = 0; round->data && r < world->size; r++) free(round->data[r]);
  free(round->data);
  free(round->bytes);
  free(round->here);
  free(round);
}

/* Finds or makes the round at hand; the caller holds the mutex. */
static fx_status round_get(const local_control *control, local_round **out) {
  fx_local_world *world = control->world;
  for (local_round *r = world->rounds; r; r = r->next)
    if (r->channel == control->channel && r->number == control->round) {
      *out = r;
      return FX_OK;
    }
  local_round *round = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&round, 1, sizeof *round));
  round->channel = control->channel;
  round->number = control->round;
  FX_TRY_GOTO(fx_calloc(&round->here, (size_t)world->size, sizeof *round->here), free_round);
  FX_TRY_GOTO(fx_calloc(&round->data, (size_t)world->size, sizeof *round->data), free_round);
  FX_TRY_GOTO(fx_calloc(&round->bytes, (size_t)world->size, sizeof *round->bytes), free_round);
  round->next = world->rounds;
  world->rounds = round;
  *out = round;
  return FX_OK;
free_round:
  round_free(world, round);
  return status;
}

/* The last reader of a complete round frees it. The caller holds the mutex. */
static void round_leave(fx_local_world *world, local_round *round) {
  if (++round->departed < world->size) return;
  local_round **link = &world->rounds;
  while (*link != round) link = &(*link)->next;
  *link = round->next;
  round_free(world, round);
}

static fx_status round_read(const fx_local_world *world, const local_round *round, char **all,
                            int64_t *offsets) {
  int64_t total = 0;
  for (int r = 0; r < world->size; r++) total += round->bytes[r];
  char *text = malloc((size_t)total + 1);
  if (!text) return fx_error(FX_ERR_MEMORY, "no memory for %lld bytes of messages", (long long)total);
  offsets[0] = 0;
  for (int r = 0; r < world->size; r++) {
    if (round->bytes[r]) memcpy(text + offsets[r], round->data[r], (size_t)round->bytes[r]);
    offsets[r + 1] = offsets[r] + round->bytes[r];
  }
  text[total] = '\0';
  *all = text;
  return FX_OK;
}

/* Waits until everybody is in the round. The caller holds the mutex. */
static fx_status round_wait(local_control *control, const local_round *round, int timeout_ms) {
  fx_local_world *world = control->world;
  struct timespec deadline = fx_time_after_ms(timeout_ms);
  int error = 0;
  FX_ASSERT(round);
  while (round->arrived < world->size && !world->aborted && error == 0)
    error = pthread_cond_timedwait(&world->control_changed, &world->mutex, &deadline);
  if (round->arrived == world->size) return FX_OK;
  control->dead = true;
  if (world->aborted) return fx_error(FX_ERR_COMM, "another rank of this job failed");
  return fx_missing_error(round->here, world->size, timeout_ms);
}

/* Puts this rank's message into the round at hand, which it returns, and moves to the next one. The caller
 * holds the mutex. */
static fx_status round_enter(local_control *control, const void *mine, int64_t bytes, local_round **out) {
  local_round *round = NULL;
  if (control->dead) return fx_error(FX_ERR_COMM, "the control channel is dead after an earlier failure");
  char *copy = malloc((size_t)bytes + 1);
  if (!copy) return fx_error(FX_ERR_MEMORY, "no memory for %lld bytes of messages", (long long)bytes);
  if (bytes) memcpy(copy, mine, (size_t)bytes);
  fx_status status = round_get(control, &round);
  if (status != FX_OK) {
    free(copy);
    return status;
  }
  int rank = control->base.rank;
  control->round++;
  round->data[rank] = copy;
  round->bytes[rank] = bytes;
  round->here[rank] = true;
  if (++round->arrived == control->world->size) pthread_cond_broadcast(&control->world->control_changed);
  *out = round;
  return FX_OK;
}

static fx_status local_all_gather(fx_control *base, const void *mine, int64_t bytes, char **all,
                                  int64_t *offsets, int timeout_ms) {
  local_control *control = (local_control *)base;
  fx_local_world *world = control->world;
  local_round *round = NULL;
  pthread_mutex_lock(&world->mutex);
  fx_status status = round_enter(control, mine, bytes, &round);
  if (status == FX_OK) status = round_wait(control, round, timeout_ms);
  if (status == FX_OK) {
    status = round_read(world, round, all, offsets);
    round_leave(world, round);
  }
  pthread_mutex_unlock(&world->mutex);
  return status;
}

static fx_status local_meet(fx_control *base, const void *mine, int64_t bytes, void *all, bool *here,
                            int timeout_ms) {
  local_control *control = (local_control *)base;
  fx_local_world *world = control->world;
  local_round *round = NULL;
  pthread_mutex_lock(&world->mutex);
  fx_status status = round_enter(control, mine, bytes, &round);
  if (status == FX_OK) {
    status = round_wait(control, round, timeout_ms);
    bool complete = status == FX_OK;
    for (int r = 0; r < world->size; r++) {
      here[r] = round->here[r];
      if (here[r]) memcpy((char *)all + r * bytes, round->data[r], (size_t)bytes);
    }
    if (complete) round_leave(world, round);
    if (!world->aborted) status = FX_OK; /* who is missing is no error here */
  }
  pthread_mutex_unlock(&world->mutex);
  return status;
}

static fx_status local_duplicate(fx_control *base, fx_control **out) {
  local_control *control = (local_control *)base;
  FX_TRY(fx_control_barrier(base, DUPLICATE_MS));
  FX_TRY(fx_local_control(control->world, base->rank, out));
  ((local_control *)*out)->channel = (control->channel << 32) + control->round; /* past the barrier: > 0 */
  return FX_OK;
}

static fx_status local_split(fx_control *base, const char *name, int id, const int *ranks, int count,
                             fx_comm **out) {
  local_control *control = (local_control *)base;
  int group_rank = -1;
  FX_TRY(fx_split_check(base, name, id, ranks, count, &group_rank));
  if (count == 0) {
    *out = NULL;
    return FX_OK;
  }
  return fx_local_group_join(control->world, name, id, ranks, count, group_rank, control->round, out);
}

static void local_control_destroy(fx_control *base) {
  free(base);
}

static const fx_control_vtable g_local_control_vtable = {
    .transport = "local",
    .all_gather = local_all_gather,
    .split = local_split,
    .destroy = local_control_destroy,
    .duplicate = local_duplicate,
    .meet = local_meet,
};

fx_status fx_local_world_create(int size, fx_local_world **out) {
  FX_ASSERT(size >= 1);
  fx_local_world *world = NULL;
  pthread_condattr_t monotonic;
  FX_TRY(fx_calloc(&world, 1, sizeof *world));
  world->size = size;
  pthread_mutex_init(&world->mutex, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&world->control_changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  *out = world;
  return FX_OK;
}

void fx_local_world_destroy(fx_local_world *world) {
  if (!world) return;
  while (world->rounds) {
    local_round *round = world->rounds;
    world->rounds = round->next;
    round_free(world, round);
  }
  fx_local_groups_free(world);
  pthread_cond_destroy(&world->control_changed);
  pthread_mutex_destroy(&world->mutex);
  free(world);
}

fx_status fx_local_control(fx_local_world *world, int rank, fx_control **out) {
  FX_ASSERT(rank >= 0 && rank < world->size);
  local_control *control = NULL;
  FX_TRY(fx_calloc(&control, 1, sizeof *control));
  control->base = (fx_control){&g_local_control_vtable, rank, world->size};
  control->world = world;
  *out = &control->base;
  return FX_OK;
}

void fx_local_world_abort(fx_local_world *world) {
  pthread_mutex_lock(&world->mutex);
  world->aborted = true;
  pthread_cond_broadcast(&world->control_changed);
  fx_local_groups_abort(world);
  pthread_mutex_unlock(&world->mutex);
}

/* What the threads of one fx_local_run share. */
typedef struct local_job {
  fx_local_world *world;
  fx_local_rank_fn fn;
  void *ctx;
  pthread_mutex_t mutex; /* guards the first failure */
  fx_status failed;
  char failed_text[2048];
} local_job;

typedef struct local_thread {
  local_job *job;
  int rank;
  pthread_t thread;
} local_thread;

static void *rank_main(void *arg) {
  local_thread *self = arg;
  local_job *job = self->job;
  fx_control *control = NULL;
  fx_status status = fx_local_control(job->world, self->rank, &control);
  if (status == FX_OK) status = job->fn(control, job->ctx);
  fx_control_destroy(control);
  if (status == FX_OK) return NULL;
  pthread_mutex_lock(&job->mutex);
  if (job->failed == FX_OK) {
    job->failed = status;
    snprintf(job->failed_text, sizeof job->failed_text, "rank %d: %.2000s", self->rank, fx_error_text());
  }
  pthread_mutex_unlock(&job->mutex);
  fx_local_world_abort(job->world);
  return NULL;
}

fx_status fx_local_run(int size, fx_local_rank_fn fn, void *ctx) {
  local_job job = {.fn = fn, .ctx = ctx, .failed = FX_OK};
  local_thread *threads = NULL;
  fx_status status = FX_OK;
  int started = 0;
  FX_TRY(fx_calloc(&threads, (size_t)size, sizeof *threads));
  FX_TRY_GOTO(fx_local_world_create(size, &job.world), free_threads);
  pthread_mutex_init(&job.mutex, NULL);
  for (; started < size; started++) {
    threads[started].job = &job;
    threads[started].rank = started;
    if (pthread_create(&threads[started].thread, NULL, rank_main, &threads[started]) != 0) break;
  }
  if (started < size) fx_local_world_abort(job.world);
  for (int r = 0; r < started; r++) pthread_join(threads[r].thread, NULL);
  if (started < size)
    status = fx_error(FX_ERR_DEVICE, "cannot start %d rank threads; check the limit on processes", size);
  else if (job.failed != FX_OK)
    status = fx_error(job.failed, "%s", job.failed_text);
  pthread_mutex_destroy(&job.mutex);
  fx_local_world_destroy(job.world);
free_threads:
  free(threads);
  return status;
}
