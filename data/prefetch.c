/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of slots. The thread fills slot `head`, the consumer takes slot `tail`; both go round. A slot is
 * free -> filling -> ready (or failed) -> held -> free. Everything is under one lock except the batch of a
 * slot that is being filled (the thread's) or held (the consumer's). */
#include "data/prefetch.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"

enum { ERROR_BYTES = 2048 };

typedef enum slot_state { FREE, FILLING, READY, FAILED, HELD } slot_state;

typedef struct ring_slot {
  fx_batch *batch;
  slot_state state;
} ring_slot;

struct fx_prefetch {
  fx_sampler *sampler;
  fx_batch_layout layout;
  fx_batch_stage *stages; /* [n_stages] */
  int n_stages;
  ring_slot *slots; /* [depth] */
  int depth;

  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* any slot, quit or seek */

  /* under lock */
  int head, tail;
  int64_t consumed_samples, micro, global_valid; /* what is filled next; global_valid -1: not counted yet */
  bool quit, resting; /* resting: after a failure, until a seek; and while one is under way */
  fx_status error_status;
  char error_text[ERROR_BYTES];
  fx_prefetch_stats stats;
};

static double seconds_since(int64_t start_ns) {
  return 1e-9 * (double)(fx_now_ns() - start_ns);
}

static fx_status run_stages(const fx_prefetch *prefetch, fx_batch *batch) {
  for (int i = 0; i < prefetch->n_stages; i++) {
    const fx_batch_stage *stage = &prefetch->stages[i];
    fx_status status = stage->fn(stage->ctx, batch);
    if (status != FX_OK) return fx_error_prefix(status, "data stage \"%s\"", stage->name);
  }
  return FX_OK;
}

/* Under the lock: steps to the micro-batch after the one just filled. */
static void advance(fx_prefetch *prefetch, const fx_batch *filled) {
  prefetch->head = (prefetch->head + 1) % prefetch->depth;
  prefetch->global_valid = filled->global_valid;
  if (++prefetch->micro == filled->n_micro) {
    prefetch->micro = 0;
    prefetch->consumed_samples = filled->consumed_end;
    prefetch->global_valid = -1;
  }
}

static void *thread_main(void *argument) {
  fx_prefetch *prefetch = argument;
  pthread_mutex_lock(&prefetch->lock);
  for (;;) {
    ring_slot *slot = &prefetch->slots[prefetch->head];
    if (prefetch->quit) break;
    if (prefetch->resting || slot->state != FREE) {
      pthread_cond_wait(&prefetch->changed, &prefetch->lock);
      continue;
    }
    slot->state = FILLING;
    int64_t consumed = prefetch->consumed_samples, micro = prefetch->micro, valid = prefetch->global_valid;
    pthread_mutex_unlock(&prefetch->lock);

    int64_t start = fx_now_ns();
    fx_batch_fill(slot->batch, prefetch->sampler, &prefetch->layout, consumed, micro, valid);
    fx_status status = run_stages(prefetch, slot->batch);
    double spent = seconds_since(start);

    pthread_mutex_lock(&prefetch->lock);
    prefetch->stats.fill_seconds += spent;
    slot->state = status == FX_OK ? READY : FAILED;
    if (status != FX_OK) {
      prefetch->resting = true;
      prefetch->error_status = status;
      strncpy(prefetch->error_text, fx_error_text(), ERROR_BYTES - 1);
    } else {
      advance(prefetch, slot->batch);
    }
    pthread_cond_broadcast(&prefetch->changed);
  }
  pthread_mutex_unlock(&prefetch->lock);
  return NULL;
}

static fx_status check_options(const fx_prefetch_options *options) {
  FX_TRY(fx_batch_layout_check(&options->layout));
  if (options->depth < 1 || options->consumed_samples < 0)
    return fx_error(FX_ERR_CONFIG,
                    "prefetch depth %d from sample %lld; expected a depth of at least 1 and a sample of at "
                    "least 0",
                    options->depth, (long long)options->consumed_samples);
  return FX_OK;
}

/* The thread starts with every signal blocked, so that handlers run on the caller's threads. */
static fx_status start_thread(fx_prefetch *prefetch) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&prefetch->thread, NULL, thread_main, prefetch);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code != 0)
    return fx_error(FX_ERR_MEMORY, "cannot start the data thread (%s); check the limit on processes",
                    strerror(code));
  return FX_OK;
}

static void free_ring(fx_prefetch *prefetch) {
  for (int i = 0; prefetch->slots && i < prefetch->depth; i++) fx_batch_destroy(prefetch->slots[i].batch);
  free(prefetch->slots);
  free(prefetch->stages);
  pthread_mutex_destroy(&prefetch->lock);
  pthread_cond_destroy(&prefetch->changed);
  free(prefetch);
}

fx_status fx_prefetch_create(const fx_prefetch_options *options, fx_prefetch **out) {
  FX_TRY(check_options(options));
  fx_prefetch *prefetch;
  fx_status status;
  FX_TRY(fx_calloc(&prefetch, 1, sizeof *prefetch));
  prefetch->sampler = options->sampler;
  prefetch->layout = options->layout;
  prefetch->depth = options->depth;
  prefetch->n_stages = options->n_stages;
  prefetch->consumed_samples = options->consumed_samples;
  prefetch->global_valid = -1;
  pthread_mutex_init(&prefetch->lock, NULL);
  pthread_cond_init(&prefetch->changed, NULL);
  FX_TRY_GOTO(fx_calloc(&prefetch->stages, (size_t)options->n_stages, sizeof *prefetch->stages), free_ring);
  if (options->n_stages)
    memcpy(prefetch->stages, options->stages, (size_t)options->n_stages * sizeof *prefetch->stages);
  FX_TRY_GOTO(fx_calloc(&prefetch->slots, (size_t)options->depth, sizeof *prefetch->slots), free_ring);
  for (int i = 0; i < options->depth; i++)
    FX_TRY_GOTO(fx_batch_create(options->layout.micro_batch_size, fx_sampler_seq_length(options->sampler),
                                options->fields, options->n_fields, options->allocator,
                                &prefetch->slots[i].batch),
                free_ring);
  FX_TRY_GOTO(start_thread(prefetch), free_ring);
  *out = prefetch;
  return FX_OK;
free_ring:
  free_ring(prefetch);
  return status;
}

void fx_prefetch_destroy(fx_prefetch *prefetch) {
  if (!prefetch) return;
  pthread_mutex_lock(&prefetch->lock);
  prefetch->quit = true;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->lock);
  pthread_join(prefetch->thread, NULL);
  free_ring(prefetch);
}

fx_status fx_prefetch_next(fx_prefetch *prefetch, fx_batch **batch) {
  fx_status status = FX_OK;
  pthread_mutex_lock(&prefetch->lock);
  ring_slot *slot = &prefetch->slots[prefetch->tail];
  if (slot->state == FREE || slot->state == FILLING) {
    int64_t start = fx_now_ns();
    while (slot->state == FREE || slot->state == FILLING)
      pthread_cond_wait(&prefetch->changed, &prefetch->lock);
    prefetch->stats.waits++;
    prefetch->stats.wait_seconds += seconds_since(start);
  }
  if (slot->state == HELD) {
    status =
        fx_error(FX_ERR_INTERNAL, "all %d batches are held; release one before the next", prefetch->depth);
  } else if (slot->state == FAILED) {
    status = fx_error(prefetch->error_status, "%s", prefetch->error_text);
  } else {
    slot->state = HELD;
    prefetch->tail = (prefetch->tail + 1) % prefetch->depth;
    prefetch->stats.batches++;
    *batch = slot->batch;
  }
  pthread_mutex_unlock(&prefetch->lock);
  return status;
}

void fx_prefetch_release(fx_prefetch *prefetch, fx_batch *batch) {
  pthread_mutex_lock(&prefetch->lock);
  int i = 0;
  while (i < prefetch->depth && prefetch->slots[i].batch != batch) i++;
  FX_ASSERT(i < prefetch->depth && prefetch->slots[i].state == HELD);
  prefetch->slots[i].state = FREE;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->lock);
}

/* Under the lock. */
static bool in_state(const fx_prefetch *prefetch, slot_state state) {
  for (int i = 0; i < prefetch->depth; i++)
    if (prefetch->slots[i].state == state) return true;
  return false;
}

fx_status fx_prefetch_seek(fx_prefetch *prefetch, int64_t consumed_samples) {
  FX_ASSERT(consumed_samples >= 0);
  pthread_mutex_lock(&prefetch->lock);
  if (in_state(prefetch, HELD)) {
    pthread_mutex_unlock(&prefetch->lock);
    return fx_error(FX_ERR_INTERNAL, "a batch is still held; release it before a seek");
  }
  prefetch->resting = true; /* no new fill while the one under way ends */
  while (in_state(prefetch, FILLING)) pthread_cond_wait(&prefetch->changed, &prefetch->lock);
  for (int i = 0; i < prefetch->depth; i++) prefetch->slots[i].state = FREE;
  prefetch->head = prefetch->tail = 0;
  prefetch->consumed_samples = consumed_samples;
  prefetch->micro = 0;
  prefetch->global_valid = -1;
  prefetch->resting = false;
  pthread_cond_broadcast(&prefetch->changed);
  pthread_mutex_unlock(&prefetch->lock);
  return FX_OK;
}

fx_prefetch_stats fx_prefetch_get_stats(fx_prefetch *prefetch) {
  pthread_mutex_lock(&prefetch->lock);
  fx_prefetch_stats stats = prefetch->stats;
  pthread_mutex_unlock(&prefetch->lock);
  return stats;
}
