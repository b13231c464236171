/* SPDX-License-Identifier: Apache-2.0 */
/* What a run tells: the console line and `metrics.jsonl` in checkpoint.dir. Only rank 0 has one. */
#ifndef FX_CORE_TRAIN_METRICS_H
#define FX_CORE_TRAIN_METRICS_H

#include "dynamo_rt/base/log.h"
#include "dynamo_rt/base/status.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_metrics fx_metrics;

/* One training step, as logged. */
typedef struct fx_metrics_row {
  int64_t step, iters;  /* steps done, steps to do */
  double loss;          /* mean over the valid targets of this step's global batch, nats */
  double lr, grad_norm; /* norm before clipping */
  double tokens_per_s;  /* over the steps since the last row, all ranks */
  double step_ms;       /* likewise; the ETA is what it gives for the steps left */
  double mfu;           /* model FLOPs utilisation, 0 to 1; NaN: the peak is not known */
  int64_t consumed_samples;
  int64_t skipped; /* steps left out so far for a gradient that was not finite */
} fx_metrics_row;

/* Opens dir/metrics.jsonl for appending; rows of steps after `resumed_step` (left by a run that went further
 * than its last checkpoint) are dropped first. FX_ERR_IO when the directory cannot be written. */
fx_status fx_metrics_open(const char *dir, int64_t resumed_step, const fx_log *log, fx_metrics **out);
void fx_metrics_close(fx_metrics *metrics); /* NULL is fine */
fx_status fx_metrics_train(fx_metrics *metrics, const fx_metrics_row *row);
fx_status fx_metrics_valid(fx_metrics *metrics, int64_t step, double valid_loss, int64_t valid_targets);

#ifdef __cplusplus
}
#endif
#endif
