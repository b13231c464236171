/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of fx_train on in-process ranks, and what an observer sees of them: what the suites of parallel
 * layouts share. */
#ifndef FX_TESTS_CORE_TRAIN_RANKS_H
#define FX_TESTS_CORE_TRAIN_RANKS_H

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/trainer.h"
#include "parallel/comm/local/local.h"
#include "tests/core/boxes.h"
#include "tests/harness.h"

enum { RUN_STEPS = 24, RUN_PARAMS = 64 };

typedef struct run {
  const char *yaml; /* the configuration without data and checkpoint */
  int ranks;
  char keys[2048]; /* more lines of YAML */
  const char *odd; /* NULL, or keys of the last rank alone */
  int64_t poison;  /* the iteration in which the last rank's gradient becomes NaN; -1: none */
  int64_t first;   /* iteration of entry 0; those before are not kept */
  pthread_mutex_t mutex;
  double loss[RUN_STEPS], squares[RUN_STEPS][RUN_PARAMS]; /* a loss that ranks see differently is NaN */
  int observers[RUN_STEPS];
  char name[RUN_PARAMS][120];
  int64_t params, steps, skipped[8], consumed;
} run;

/* Index of a named gradient; r->params where there is none of that name. */
static inline int64_t run_find(const run *r, const char *name) {
  int64_t i = 0;
  while (i < r->params && strcmp(r->name[i], name) != 0) i++;
  return i;
}

/* Adds this rank's part of every named gradient's sum of squares. */
static inline void run_observe(void *ctx, const fx_step_view *view) {
  run *r = ctx;
  const fx_params *p = view->params;
  int64_t step = view->iteration - r->first;
  if (step < 0) return;
  if (step >= RUN_STEPS) abort();
  pthread_mutex_lock(&r->mutex);
  bool same = r->observers[step]++ == 0 || r->loss[step] == view->loss;
  r->loss[step] = same ? view->loss : NAN;
  for (int64_t i = 0; i < p->num_params; i++) {
    int64_t at = run_find(r, p->param[i].name);
    if (at == RUN_PARAMS) abort();
    if (at == r->params) strcpy(r->name[r->params++], p->param[i].name);
    r->squares[step][at] += box_squares(p, &p->param[i]);
  }
  pthread_mutex_unlock(&r->mutex);
  if (view->iteration == r->poison && (!p->zero || p->zero_rank == p->zero_size - 1)) p->grad[7] = NAN;
}

static inline fx_status run_rank(fx_control *control, void *ctx) {
  run *r = ctx;
  fx_config *config = NULL;
  fx_train_report report;
  fx_log log = {.stream = stderr, .level = FX_LOG_ERROR, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = run_observe, .ctx = r};
  char text[8192];
  bool odd = r->odd && control->rank == control->size - 1;
  snprintf(text, sizeof text, "%s%s", r->yaml, odd ? r->odd : r->keys);
  FX_TRY(fx_config_parse(text, "run", &config));
  fx_status status = fx_train(config, &job, &report);
  fx_config_destroy(config);
  pthread_mutex_lock(&r->mutex);
  r->skipped[control->rank] = report.skipped;
  r->steps = report.steps;
  r->consumed = report.consumed_samples;
  pthread_mutex_unlock(&r->mutex);
  return status;
}

/* Trains; false after a failure, which was told. keys: sprintf-made YAML behind `yaml`. */
static inline bool run_train(run *r) {
  pthread_mutex_init(&r->mutex, NULL);
  memset(r->squares, 0, sizeof r->squares);
  memset(r->observers, 0, sizeof r->observers);
  r->params = 0;
  fx_status status = fx_local_run(r->ranks, run_rank, r);
  pthread_mutex_destroy(&r->mutex);
  return CHECK_MSG(status == FX_OK, "%d ranks, %s: %s", r->ranks, r->keys, fx_error_text());
}

/* Losses within 1e-5, named norms within 1e-5 plus 1e-7 of the global norm: 1 is the tolerance. Infinite
 * where something is NaN, or a gradient is missing. */
static inline double run_distance(const run *a, const run *b, int64_t steps) {
  double worst = 0;
  if (a->params != b->params) return INFINITY;
  for (int64_t s = 0; s < steps; s++) {
    double total = 0, loss = fabs(a->loss[s] - b->loss[s]) / fabs(a->loss[s]) / 1e-5;
    worst = fx_worse(worst, loss);
    for (int64_t i = 0; i < a->params; i++) total += a->squares[s][i];
    for (int64_t i = 0; i < a->params; i++) {
      int64_t other = run_find(b, a->name[i]);
      if (other == b->params) return INFINITY;
      double x = sqrt(a->squares[s][i]), y = sqrt(b->squares[s][other]);
      double norm = fabs(x - y) / (1e-5 * x + 1e-7 * sqrt(total));
      worst = fx_worse(worst, norm);
    }
  }
  return worst;
}

/* How many tensors of two steps differ in some bit; -1 after a failure. */
static inline int64_t run_different(const char *step_a, const char *step_b) {
  fx_ckpt *a = NULL, *b = NULL;
  fx_ckpt_diff *diff = NULL;
  int64_t count = 0, different = -1;
  if (CHECK_OK(fx_ckpt_open(step_a, &a)) && CHECK_OK(fx_ckpt_open(step_b, &b)) &&
      CHECK_OK(fx_ckpt_diff_tensors(a, b, &diff, &count)) && CHECK(count > 20)) {
    different = 0;
    for (int64_t i = 0; i < count; i++) different += diff[i].kind != FX_CKPT_DIFF_NONE;
  }
  free(diff);
  fx_ckpt_close(a);
  fx_ckpt_close(b);
  return different;
}

#endif
