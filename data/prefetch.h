/* SPDX-License-Identifier: Apache-2.0 */
/* Batches made ahead of time: one background thread fills a ring of micro-batches in order (all micro steps
 * of a global batch, then the next one, without end) and runs the registered stages on each.
 *
 * Nothing is allocated after create. One consumer thread calls next, release, seek and destroy. The thread
 * blocks all signals, so handlers run elsewhere. */
#ifndef FX_DATA_PREFETCH_H
#define FX_DATA_PREFETCH_H

#include <stdint.h>

#include "data/batch.h"
#include "data/sampler.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs on the background thread after the fill, in order of registration; may write any field of the batch.
 * A failure calls fx_error as usual: the sentence reaches the caller of next. */
typedef struct fx_batch_stage {
  const char *name;
  fx_status (*fn)(void *ctx, fx_batch *batch);
  void *ctx;
} fx_batch_stage;

typedef struct fx_prefetch_options {
  fx_sampler *sampler; /* borrowed, must outlive the prefetch */
  fx_batch_layout layout;
  int64_t consumed_samples;     /* where the first global batch begins */
  int depth;                    /* batches in the ring, >= 1; 2 or more to overlap */
  const fx_batch_field *fields; /* [n_fields] further buffers of each batch, copied */
  int n_fields;
  const fx_batch_stage *stages; /* [n_stages], copied; names and ctx are borrowed */
  int n_stages;
  const fx_batch_allocator *allocator; /* of the batches; NULL for host memory; copied */
} fx_prefetch_options;

typedef struct fx_prefetch_stats {
  int64_t batches;     /* handed out */
  int64_t waits;       /* calls of next that found no batch ready */
  double wait_seconds; /* time spent in them */
  double fill_seconds; /* time the thread spent on fill and stages */
} fx_prefetch_stats;

typedef struct fx_prefetch fx_prefetch;

/* Allocates the ring and starts the thread. *out is owned by the caller. FX_ERR_CONFIG: a bad layout, depth
 * or consumed_samples. FX_ERR_SHAPE: a bad field. FX_ERR_MEMORY: no memory or no thread. */
fx_status fx_prefetch_create(const fx_prefetch_options *options, fx_prefetch **out);
/* At any time, batches in hand included; joins the thread (it finishes the stage it is in) and frees the
 * batches. */
void fx_prefetch_destroy(fx_prefetch *prefetch);

/* Blocks until the next batch is ready; it is borrowed until release (up to `depth` may be held). An error of
 * the thread surfaces here, after the good batches before it, and then every time until a seek.
 * FX_ERR_INTERNAL: all batches are held already. */
fx_status fx_prefetch_next(fx_prefetch *prefetch, fx_batch **batch);
/* Gives a batch back, in any order. */
void fx_prefetch_release(fx_prefetch *prefetch, fx_batch *batch);

/* Starts over at a global batch that begins at consumed_samples: batches not handed out yet are dropped, an
 * error is forgotten, nothing is allocated. Every batch must have been released (else FX_ERR_INTERNAL). */
fx_status fx_prefetch_seek(fx_prefetch *prefetch, int64_t consumed_samples);

fx_prefetch_stats fx_prefetch_get_stats(fx_prefetch *prefetch);

#ifdef __cplusplus
}
#endif
#endif
