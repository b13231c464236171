/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps whose gradient is not finite: an observer between backward and update breaks it on every
 * rank. What such a step changes, what the log and metrics.jsonl say of it, and when the run gives up. */
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
  uint32_t changed; /* bit i: iteration i moved weights or moments; of all but the last */
  float *before;    /* [3 * numel]: weights and moments as of the last call */
  fx_status status;
  fx_train_report report;
  char said[512];
} witness;

typedef struct training {
  const char *dir;
  int ranks, iters;
  uint32_t bad;
  witness rank[MAX_RANKS];
  char *log; /* of all ranks, in turn */
  size_t log_bytes;
  FILE *stream;
} training;

/* ---- a run ---- */

static void break_gradient(void *ctx, const fx_step_view *view) {
  witness *w = ctx;
  const fx_params *p = view->params;
  size_t bytes = (size_t)p->numel * sizeof(float);
  const float *now[3] = {p->weight, p->exp_avg, p->exp_avg_sq};
  bool first = !w->before;
  if (first && !(w->before = malloc(3 * bytes))) abort();
  for (int64_t i = 0; i < 3; i++) {
    if (!first && memcmp(w->before + i * p->numel, now[i], bytes) != 0)
      w->changed |= 1u << (view->iteration - 1);
    memcpy(w->before + i * p->numel, now[i], bytes);
  }
  if (w->bad >> view->iteration & 1) p->grad[7] = g_broken[view->iteration % 3];
}

static fx_status train_rank(fx_control *control, void *ctx) {
  training *t = ctx;
  witness *w = &t->rank[control->rank];
  fx_config *config = NULL;
  char text[2048];
  fx_log log = {.stream = t->stream, .level = FX_LOG_INFO, .rank = control->rank, .size = control->size};
  fx_job job = {.control = control, .log = &log, .on_gradients = break_gradient, .ctx = w};
  *w = (witness){.bad = t->bad};
  snprintf(text, sizeof text,
           "model: {vocab_size: 256, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}\n"
           "train: {seq_length: 16, micro_batch_size: 1, global_batch_size: 6, iters: %d, "
           "log_interval: 1000, eval_interval: 0}\n"
           "schedule: {warmup_iters: 0}\n"
           "runtime: {threads: 1, device: cpu}\n"
           "checkpoint: {dir: \"%s\"}\n"
           "data: {train: [\"lines:%s/corpus.txt\"]}\n",
           t->iters, t->dir, t->dir);
  FX_TRY(fx_config_parse(text, "skipped", &config));
  w->status = fx_train(config, &job, &w->report);
  snprintf(w->said, sizeof w->said, "%s", w->status == FX_OK ? "" : fx_error_text());
  fx_config_destroy(config);
  free(w->before);
  return FX_OK;
}

/* A folder of checkpoints that no other run has, with a corpus. */
static const char *fresh_dir(void) {
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

static bool train(training *t, const char *dir, int ranks, int iters, uint32_t bad) {
  *t = (training){.dir = dir, .ranks = ranks, .iters = iters, .bad = bad};
  t->stream = open_memstream(&t->log, &t->log_bytes);
  if (!CHECK(t->stream != NULL)) return false;
  bool ran = CHECK_OK(fx_local_run(ranks, train_rank, t));
  fclose(t->stream);
  return ran;
}

/* The line of `text` that holds `part`, in static storage; "" where there is none. */
static const char *line_with(const char *text, const char *part) {
  static char line[600];
  const char *at = strstr(text, part);
  line[0] = '\0';
  if (!at) return line;
  while (at > text && at[-1] != '\n') at--;
  snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
  return line;
}

static int count_of(const char *text, const char *part) {
  int count = 0;
  for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) count++;
  return count;
}

static const char *metrics_of(const char *dir) {
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
static void step_is_told(const training *t, int step, int skipped) {
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

/* ---- tests ---- */

/* Iterations 2, 3 and 7 are steps 3, 4 and 8. They are told although log_interval is far away. */
static void bad_steps_are_skipped_and_told(void) {
  static training t;
  const uint32_t bad = 1u << 2 | 1u << 3 | 1u << 7, all = (1u << 11) - 1;
  for (int ranks = 1; ranks <= MAX_RANKS; ranks += 2) {
    const char *dir = fresh_dir();
    if (!train(&t, dir, ranks, 12, bad)) return;
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
    if (!train(&t, dir, ranks, 14, 1u << 12)) return;
    step_is_told(&t, 13, 4);
    CHECK_INT(t.rank[0].report.skipped, 4);
    free(t.log);
  }
}

static void good_runs_tell_of_none(void) {
  static training t;
  const char *dir = fresh_dir();
  if (!train(&t, dir, 1, 3, 0)) return;
  CHECK_INT(t.rank[0].report.skipped, 0);
  CHECK_INT(count_of(t.log, "skipped"), 0);
  CHECK_INT(count_of(metrics_of(dir), "skipped"), 0);
  free(t.log);
}

static void ten_in_a_row_end_the_run(void) {
  static training t;
  const uint32_t ten = (1u << 10) - 1;
  for (int ranks = 1; ranks <= MAX_RANKS; ranks += 2) {
    if (!train(&t, fresh_dir(), ranks, 30, ten << 2)) return;
    for (int r = 0; r < ranks; r++) {
      const witness *w = &t.rank[r];
      CHECK_STATUS(w->status, FX_ERR_DIVERGED);
      CHECK_INT(fx_status_exit_code(w->status), 5);
      CHECK_STR(w->said,
                "the gradient was not finite in 10 steps in a row, up to step 12: lower optimizer.lr, "
                "check the data, or resume from an earlier checkpoint");
      CHECK(w->report.agreed);
      CHECK_INT(w->report.steps, 12);
      CHECK_INT(w->report.skipped, 10);
      CHECK_INT(w->changed, 3);
    }
    step_is_told(&t, 11, 9);
    free(t.log);
  }
}

/* A good step between them starts the count anew. */
static void nine_in_a_row_do_not(void) {
  static training t;
  const uint32_t nine = (1u << 9) - 1;
  if (!train(&t, fresh_dir(), 1, 24, nine << 2 | nine << 12)) return;
  CHECK_STR(t.rank[0].said, "");
  CHECK_INT(t.rank[0].report.skipped, 18);
  step_is_told(&t, 21, 18);
  free(t.log);
}

static const fx_test tests[] = {{"bad steps are skipped and told", bad_steps_are_skipped_and_told},
                                {"good runs tell of none", good_runs_tell_of_none},
                                {"ten in a row end the run", ten_in_a_row_end_the_run},
                                {"nine in a row do not", nine_in_a_row_do_not}};
FX_TEST_MAIN("skipped steps", tests)
