/* SPDX-License-Identifier: Apache-2.0 */
/* From data.* of the configuration to batches in the slots of a step: corpora, split, samplers, the prefetch
 * thread with its mask stage, and the walk over the validation split. */
#ifndef FX_CORE_TRAIN_PIPELINE_H
#define FX_CORE_TRAIN_PIPELINE_H

#include "core/model/attention.h"
#include "data/prefetch.h"
#include "dynamo_rt/comm/control.h"
#include "dynamo_rt/graph/inputs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_pipeline fx_pipeline;

typedef struct fx_pipeline_options {
  const fx_config *config;
  const fx_attention_setup *attention; /* borrowed */
  int64_t dp_rank, dp_size;
  int64_t consumed_samples; /* where training goes on */
  const fx_log *log;
} fx_pipeline_options;

/* Reads the corpora. FX_ERR_DATA with a sentence when they are missing, empty or binary. Not collective:
 * every rank reads the same files in the same order. */
fx_status fx_pipeline_create(const fx_pipeline_options *options, fx_pipeline **out);
void fx_pipeline_destroy(fx_pipeline *pipeline); /* NULL is fine */

/* Whether all ranks have read the same documents; fx_corpus_agree. */
fx_status fx_pipeline_agree(const fx_pipeline *pipeline, fx_control *control, int timeout_ms);

int64_t fx_pipeline_train_tokens(const fx_pipeline *pipeline);
int64_t fx_pipeline_valid_tokens(const fx_pipeline *pipeline); /* 0: no validation split */
int64_t fx_pipeline_samples_per_epoch(const fx_pipeline *pipeline);

/* Takes the next training micro-batch into `slot`: all per-batch inputs (ranks that share a sequence draw the
 * same samples, and each takes its rows of them) and the loss factor (1 / valid
 * targets of the global batch, 0 when there are none). *valid: targets of the global batch. */
fx_status fx_pipeline_next(fx_pipeline *pipeline, fx_inputs *inputs, int slot, int64_t *valid);

/* Validation, dealt over dp in the same way: batch `index` of this rank into `slot`, loss factor 1. Samples
 * past the end of the split are masked. count: how many batches every rank walks, from eval_iters (global
 * batches; 0: the whole split). *valid: targets of this rank's rows. */
int64_t fx_pipeline_valid_batches(const fx_pipeline *pipeline);
fx_status fx_pipeline_valid_batch(fx_pipeline *pipeline, int64_t index, fx_inputs *inputs, int slot,
                                  int64_t *valid);

/* What the pipeline holds: tokens, the samplers' tables, the ring of batches. */
int64_t fx_pipeline_bytes(const fx_pipeline *pipeline);

/* Seconds the training loop has waited for batches. */
double fx_pipeline_wait_seconds(const fx_pipeline *pipeline);

#ifdef __cplusplus
}
#endif
#endif
