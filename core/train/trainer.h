/* SPDX-License-Identifier: Apache-2.0 */
/* A pretraining run from a configuration: topology, model, plans, data, the loop, evaluation, checkpoints. */
#ifndef FX_CORE_TRAIN_TRAINER_H
#define FX_CORE_TRAIN_TRAINER_H

#include "core/config/config.h"
#include "dynamo_rt/comm/control.h"
#include "parallel/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an observer of a run sees between the backward and the update of a step: reduced gradients, weights
 * before the update, the loss. Everything is borrowed. Under ZeRO a rank has its part of the gradient
 * (parallel/zero.h says which), and only the slices of weights that it keeps are sure to be new. */
typedef struct fx_step_view {
  int64_t iteration; /* from 0 */
  double loss;
  const fx_params *params;
} fx_step_view;

/* What launch hands to a run. */
typedef struct fx_job {
  fx_control *control; /* borrowed; its ranks have the same configuration (core/config/agree.h) */
  const fx_log *log;
  const char *trace_path; /* NULL, or a Chrome trace of one step: "%d" in it becomes the rank */
  int64_t trace_step;     /* which step, counted from 1 */
  const volatile int
      *stop;      /* NULL, or a flag that a signal handler sets: all ranks finish the step, save and return */
  bool restarted; /* a run that died before goes on: a NaN without a save in between discredits its checkpoint
                   */
  void (*fatal)(void *ctx, fx_status status); /* NULL, or ends all ranks of the job; the watchdog's thread
                                                 calls it when a collective stands still */
  void (*on_gradients)(void *ctx, const fx_step_view *view); /* NULL, or called on every rank at every step */
  void *ctx;
} fx_job;

typedef struct fx_train_report {
  int64_t steps, skipped, consumed_samples;
  bool stopped;        /* by job->stop, after a save */
  double loss;         /* of the last step */
  double valid_loss;   /* of the last evaluation; NaN without one */
  double tokens_per_s; /* over all steps of this process but the first */
  double capture_ms;   /* recording, planning and agreement of all plans */
  int64_t arena_bytes, arena_bound_bytes;
  bool agreed; /* a failure is known to every rank: all return it, nobody waits for this one */
} fx_train_report;

/* Collective over job->control. Trains to train.iters and leaves a checkpoint of the last step. Errors of the
 * set-up are agreed (report->agreed): every rank returns the same status. FX_ERR_DIVERGED, agreed too, after
 * ten steps in a row without a finite gradient, when ranks have different configurations or data (nothing is
 * written then), and when they recorded different collectives. A save that fails for the disk is agreed as
 * well. */
fx_status fx_train(const fx_config *config, const fx_job *job, fx_train_report *report);

#ifdef __cplusplus
}
#endif
#endif
