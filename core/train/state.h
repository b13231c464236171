/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a run, private to core/train: trainer.c builds and drives them, resume.c saves and restores
 * them. */
#ifndef FX_CORE_TRAIN_STATE_H
#define FX_CORE_TRAIN_STATE_H

#include "core/train/metrics.h"
#include "core/train/pipeline.h"
#include "core/train/step.h"
#include "core/train/trainer.h"
#include "parallel/topology.h"

enum { FX_CONTROL_TIMEOUT_MS = 120000 }; /* a rank that says nothing for this long is taken for dead */

typedef struct fx_trainer {
  const fx_config *config;
  const fx_job *job;
  fx_device *device;
  fx_topology *topology;
  char topology_text[64];
  fx_model *model;
  fx_mask_builder mask;
  fx_inputs *inputs;
  fx_stepper *stepper;
  fx_pipeline *pipeline;
  fx_metrics *metrics; /* rank 0 */
  fx_trace *trace;
  int64_t consumed_samples, optimizer_step, skipped; /* with the weights: the state of training */
  int64_t bad_in_a_row;
  double tokens, seconds, last_loss, last_valid_loss;
} fx_trainer;

static inline int64_t fx_trainer_iteration(const fx_trainer *run) {
  return run->optimizer_step + run->skipped;
}

/* Control-channel calls are MPI calls: they go through the service thread, as every one does. */
fx_status fx_trainer_barrier_status(fx_trainer *run, fx_status mine);
fx_status fx_trainer_gather(fx_trainer *run, const void *mine, int64_t bytes, char **all, int64_t *offsets);

/* resume.c: fills weights and state from checkpoint.resume, or initialises them. Collective. */
fx_status fx_trainer_restore(fx_trainer *run);
/* resume.c: writes a step. Collective. */
fx_status fx_trainer_save(fx_trainer *run);

#endif
