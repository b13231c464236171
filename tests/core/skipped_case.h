/* SPDX-License-Identifier: Apache-2.0 */
/* Runs, on CPUs or on a GPU, with steps whose gradient is not finite: an observer between backward and update
 * breaks it on every rank. What such a step changes, what the log and metrics.jsonl say of it, and when the
 * run gives up. */
#ifndef FX_TESTS_CORE_SKIPPED_CASE_H
#define FX_TESTS_CORE_SKIPPED_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/train/trainer.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"

enum { MAX_RANKS = 3, MAX_STEPS = 32 };
static const float g_broken[] = {NAN, INFINITY, -INFINITY};

/* What one rank saw. */
typedef struct witness {
  uint32_t bad;     /* bit i: the gradient of iteration i is broken */
  uint32_t changed; /* bit i: iteration i moved what is in `before`; of all but the last */
  char *before;     /* weights, moments and rounded weights as of the last call */
  fx_status status;
  fx_train_report report;
  char said[512];
} witness;

typedef struct training {
  const char *device, *dir;
  int ranks, iters;
  uint32_t bad;
  witness rank[MAX_RANKS];
  char *log; /* of all ranks, in turn */
  size_t log_bytes;
  FILE *stream;
} training;

/* ---- a run ---- */

/* Copies of the parts, one behind the other, to be freed. */
static inline char *copy_of_state(const fx_params *p, size_t *bytes) {
  size_t flat = (size_t)p->numel * sizeof(float), rounded = p->compute ? (size_t)p->numel * 2 : 0;
  char *copy = malloc(3 * flat + rounded);
  const float *from[3] = {p->weight, p->exp_avg, p->exp_avg_sq};
  if (!copy) abort();
  for (size_t i = 0; i < 3; i++)
    if (fx_params_download(p, from[i], (float *)(void *)(copy + i * flat)) != FX_OK) abort();
  if (rounded && (fx_device_copy(p->device, FX_LANE_COMPUTE, copy + 3 * flat, p->compute, rounded) != FX_OK ||
                  fx_device_sync(p->device) != FX_OK))
    abort();
  *bytes = 3 * flat + rounded;
  return copy;
}

static inline void put_gradient(const fx_params *p, int64_t at, float value) {
  if (fx_params_on_host(p))
    p->grad[at] = value;
  else if (fx_device_copy(p->device, FX_LANE_COMPUTE, p->grad + at, &value, sizeof value) != FX_OK ||
           fx_device_sync(p->device) != FX_OK)
    abort();
}

static inline void break_gradient(void *ctx, const fx_step_view *view) {
  witness *w = ctx;
  size_t bytes = 0;
  char *now = copy_of_state(view->params, &bytes);
  if (w->before && memcmp(w->before, now, bytes) != 0) w->changed |= 1u << (view->iteration - 1);
  free(w->before);
  w->before = now;
  if (w->bad >> view->iteration & 1) put_gradient(view->params, 7, g_broken[view->iteration % 3]);
}

static inline fx_status train_rank(fx_control *control, void *ctx) {
  training *t = ctx;
  witness *w = &t->rank[control->rank];
  fx_config *config = NULL;
  char text[2048];
  fx_log log = {.stream = t->stream, .level = FX_LOG_INFO, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = break_gradient, .ctx = w};
  *w = (witness){.bad = t->bad};
  bool gpu = strcmp(t->device, "cuda") == 0; /* heads of 64 are the least that GPUs attend to */
  snprintf(text, sizeof text,
           "model: {vocab_size: 256, hidden_size: %d, num_hidden_layers: 1, num_attention_heads: %d}\n"
           "train: {seq_length: 16, micro_batch_size: 1, global_batch_size: 6, iters: %d, "
           "log_interval: 1000, eval_interval: 0}\n"
           "schedule: {warmup_iters: 0}\n"
           "runtime: {threads: 1, device: %s}\n"
           "checkpoint: {dir: \"%s\"}\n"
           "data: {train: [\"lines:%s/corpus.txt\"]}\n",
           gpu ? 64 : 16, gpu ? 1 : 2, t->iters, t->device, t->dir, t->dir);
  FX_TRY(fx_config_parse(text, "skipped", &config));
  w->status = fx_train(config, &job, &w->report);
  snprintf(w->said, sizeof w->said, "%s", w->status == FX_OK ? "" : fx_error_text());
  fx_config_destroy(config);
  free(w->before);
  return FX_OK;
}

/* A folder of checkpoints that no other run has, with a corpus. */
static inline const char *fresh_dir(void) {
  static char dir[512];
  static int count;
  char text[4000];
  for (size_t i = 0; i < sizeof text; i++) text[i] = i % 90 == 89 ? '\n' : (char)('a' + i * i % 23);
  text[sizeof text - 1] = '\0';
  snprintf(dir, sizeof dir, "%s/run%d", fx_temp_dir(), count++);
  CHECK_INT(mkdir(dir, 0700), 0);
  fx_temp_file(dir, "corpus.txt", text);
  return dir;
}

static inline bool train(training *t, const char *device, const char *dir, int ranks, int iters,
                         uint32_t bad) {
  *t = (training){.device = device, .dir = dir, .ranks = ranks, .iters = iters, .bad = bad};
  t->stream = open_memstream(&t->log, &t->log_bytes);
  if (!CHECK(t->stream != NULL)) return false;
  bool ran = CHECK_OK(fx_local_run(ranks, train_rank, t));
  fclose(t->stream);
  return ran;
}

/* The line of `text` that holds `part`, in static storage; "" where there is none. */
static inline const char *line_with(const char *text, const char *part) {
  static char line[600];
  const char *at = strstr(text, part);
  line[0] = '\0';
  if (!at) return line;
  while (at > text && at[-1] != '\n') at--;
  snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
  return line;
}

static inline int count_of(const char *text, const char *part) {
  int count = 0;
  for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) count++;
  return count;
}

static inline const char *metrics_of(const char *dir) {
  static char text[16384];
  char path[600];
  snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
  FILE *file = fopen(path, "r");
  size_t length = 0;
  if (CHECK(file != NULL)) {
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
  }
  text[length] = '\0';
  return text;
}

/* Both tell of step `step` as number `skipped` that was left out. */
static inline void step_is_told(const training *t, int step, int skipped) {
  char line[64], row[64], count[80], total[40];
  snprintf(line, sizeof line, "step %d/%d | loss ", step, t->iters);
  snprintf(count, sizeof count, " | skipped, %d so far: the gradient is not finite", skipped);
  CHECK_HAS(line_with(t->log, line), count);
  snprintf(row, sizeof row, "\"step\":%d,", step);
  snprintf(total, sizeof total, "\"skipped\":%d}", skipped);
  const char *told = line_with(metrics_of(t->dir), row);
  CHECK_HAS(told, total);
  CHECK_HAS(told, "\"grad_norm\":null,");
}

/* ---- checks ---- */

/* Iterations 2, 3 and 7 are steps 3, 4 and 8. They are told although log_interval is far away. */
static inline void bad_steps_are_told(const char *device, int ranks) {
  static training t;
  const uint32_t bad = 1u << 2 | 1u << 3 | 1u << 7, all = (1u << 11) - 1;
  const char *dir = fresh_dir();
  if (!train(&t, device, dir, ranks, 12, bad)) return;
  for (int r = 0; r < ranks; r++) {
    CHECK_STR(t.rank[r].said, "");
    CHECK_MSG(t.rank[r].changed == (all & ~bad), "rank %d of %d: steps %x moved the state, expected %x", r,
              ranks, t.rank[r].changed, all & ~bad);
    CHECK_INT(t.rank[r].report.skipped, 3);
    CHECK_INT(t.rank[r].report.steps, 12);
  }
  step_is_told(&t, 3, 1);
  step_is_told(&t, 4, 2);
  step_is_told(&t, 8, 3);
  CHECK_INT(count_of(t.log, "skipped"), 3);
  CHECK_INT(count_of(t.log, " | loss "), 4); /* and the last step */
  CHECK_HAS(line_with(metrics_of(dir), "\"step\":12,"), "\"skipped\":3}");
  CHECK_INT(count_of(metrics_of(dir), "\"grad_norm\":null"), 3);
  free(t.log);
  /* the number is part of the checkpoint */
  if (!train(&t, device, dir, ranks, 14, 1u << 12)) return;
  step_is_told(&t, 13, 4);
  CHECK_INT(t.rank[0].report.skipped, 4);
  free(t.log);
}

static inline void ten_in_a_row_end_it(const char *device, int ranks) {
  static training t;
  const uint32_t ten = (1u << 10) - 1;
  if (!train(&t, device, fresh_dir(), ranks, 30, ten << 2)) return;
  for (int r = 0; r < ranks; r++) {
    const witness *w = &t.rank[r];
    CHECK_STATUS(w->status, FX_ERR_DIVERGED);
    CHECK_INT(fx_status_exit_code(w->status), 5);
    CHECK_STR(w->said, "the gradient was not finite in 10 steps in a row, up to step 12: lower optimizer.lr, "
                       "check the data, or resume from an earlier checkpoint");
    CHECK(w->report.agreed);
    CHECK_INT(w->report.steps, 12);
    CHECK_INT(w->report.skipped, 10);
    CHECK_INT(w->changed, 3);
  }
  step_is_told(&t, 11, 9);
  free(t.log);
}

#endif
