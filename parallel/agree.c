/* SPDX-License-Identifier: Apache-2.0 */
/* Texts are compared by digest; only when digests differ do they travel, those of two ranks. Every rank holds
 * the same digests and the same two texts, so every rank composes the same sentence. In plans the first place
 * is looked for where the two differ, read as a sequence of entries over all plans in order. */
#include "parallel/agree.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/comm/missing.h"

/* ---- texts ---- */

/* Second round, after digests differed: rank 0 and the first rank unlike it send their texts. */
static fx_status find_difference(fx_control *control, const fx_hash128 *digests, const char *mine,
                                 int64_t bytes, fx_agree_tell tell, int64_t deadline_left_ms) {
  int size = control->size, other = 0;
  bool *unlike = NULL;
  int64_t *offsets = NULL;
  char *all = NULL, list[200], others[256] = "";
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_calloc(&unlike, (size_t)size, sizeof *unlike), free_texts);
  FX_TRY_GOTO(fx_calloc(&offsets, (size_t)size + 1, sizeof *offsets), free_texts);
  int differing = 0;
  for (int r = size - 1; r > 0; r--) {
    unlike[r] = memcmp(&digests[r], &digests[0], sizeof *digests) != 0;
    differing += unlike[r];
    if (unlike[r]) other = r;
  }
  if (differing > 1)
    snprintf(others, sizeof others, " (unlike rank 0 are ranks %s)",
             fx_rank_list(unlike, true, size, list, sizeof list));
  bool speaks = control->rank == 0 || control->rank == other;
  FX_TRY_GOTO(fx_control_all_gather(control, mine, speaks ? bytes : 0, &all, offsets, (int)deadline_left_ms),
              free_texts);
  fx_agree_pair pair = {.rank = other,
                        .left = all,
                        .right = all + offsets[other],
                        .left_bytes = offsets[1],
                        .right_bytes = offsets[other + 1] - offsets[other],
                        .others = others};
  status = tell(&pair);
  if (status == FX_OK)
    status = fx_error(FX_ERR_DIVERGED, "rank 0 and rank %d have equal texts and different digests", other);
free_texts:
  free(all);
  free(offsets);
  free(unlike);
  return status;
}

fx_status fx_agree_text(fx_control *control, const char *text, int64_t bytes, fx_agree_tell tell,
                        int timeout_ms) {
  char *all = NULL;
  int64_t *offsets = NULL, begin = fx_now_ms();
  fx_hash128 digest = fx_hash128_of(text, (size_t)bytes);
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  FX_TRY_GOTO(fx_control_all_gather(control, &digest, sizeof digest, &all, offsets, timeout_ms),
              free_messages);
  const fx_hash128 *digests = (const fx_hash128 *)all;
  bool equal = true;
  for (int r = 1; r < control->size; r++)
    equal = equal && memcmp(&digests[r], &digests[0], sizeof digest) == 0;
  if (!equal)
    status = find_difference(control, digests, text, bytes, tell,
                             fx_max_i64(timeout_ms - (fx_now_ms() - begin), 1000));
free_messages:
  free(all);
  free(offsets);
  return status;
}

/* ---- plans ---- */

/* The plans of a rank as one message: name NUL ledger NUL, plan after plan. */
static fx_status pack_plans(const char *const *names, const char *const *ledgers, int count, char **out,
                            int64_t *bytes) {
  size_t total = 0;
  for (int i = 0; i < count; i++) total += strlen(names[i]) + strlen(ledgers[i]) + 2;
  char *text = malloc(total + 1);
  if (!text) return fx_error(FX_ERR_MEMORY, "no memory for %zu bytes of ledgers", total);
  char *p = text;
  for (int i = 0; i < count; i++) {
    p = stpcpy(p, names[i]) + 1;
    p = stpcpy(p, ledgers[i]) + 1;
  }
  *p = '\0';
  *out = text;
  *bytes = (int64_t)total;
  return FX_OK;
}

/* Reads one rank's message: the plan at hand, and in it the entry at hand. */
typedef struct reader {
  const char *name, *line, *end; /* line: rest of the ledger; end: of the message */
} reader;

/* Moves to the next plan; false when there is none. */
static bool next_plan(reader *r, const char **at) {
  if (*at >= r->end) return false;
  r->name = *at;
  r->line = r->name + strlen(r->name) + 1;
  *at = r->line + strlen(r->line) + 1;
  return true;
}

/* The entry at hand without its newline; false when the ledger is over. Moves on. */
static bool next_entry(reader *r, const char **entry, int *length) {
  if (!*r->line) return false;
  *entry = r->line;
  *length = (int)strcspn(r->line, "\n");
  r->line += *length + (r->line[*length] == '\n');
  return true;
}

/* "has ENTRY" or "has no entry N" for one side. */
static const char *side_text(bool has, const char *entry, int length, int number, char *text,
                             size_t capacity) {
  if (has)
    snprintf(text, capacity, "has \"%.*s\"", length < 480 ? length : 480, entry);
  else
    snprintf(text, capacity, "has no entry %d", number);
  return text;
}

/* The first entry of the plan at hand that differs; FX_OK when the ledgers are equal. */
static fx_status compare_ledgers(reader *a, reader *b, int rank_b, const char *others) {
  for (int number = 1;; number++) {
    const char *x = NULL, *y = NULL;
    int x_length = 0, y_length = 0;
    bool has_x = next_entry(a, &x, &x_length), has_y = next_entry(b, &y, &y_length);
    if (!has_x && !has_y) return FX_OK;
    if (has_x && has_y && x_length == y_length && memcmp(x, y, (size_t)x_length) == 0) continue;
    char left[512], right[512];
    return fx_error(
        FX_ERR_DIVERGED,
        "rank 0 and rank %d differ at entry %d of plan %.64s: rank 0 %s; rank %d %s%s; every rank "
        "must record the same collectives in the same order",
        rank_b, number, a->name, side_text(has_x, x, x_length, number, left, sizeof left), rank_b,
        side_text(has_y, y, y_length, number, right, sizeof right), others);
  }
}

static fx_status compare_plans(const fx_agree_pair *pair) {
  const char *left = pair->left, *right = pair->right;
  reader a = {.end = left + pair->left_bytes}, b = {.end = right + pair->right_bytes};
  for (int number = 1;; number++) {
    bool has_a = next_plan(&a, &left), has_b = next_plan(&b, &right);
    if (!has_a && !has_b) return FX_OK;
    if (has_a != has_b || strcmp(a.name, b.name) != 0) {
      char x[80], y[80];
      snprintf(x, sizeof x, has_a ? "plan %.64s" : "none", a.name);
      snprintf(y, sizeof y, has_b ? "plan %.64s" : "none", b.name);
      return fx_error(
          FX_ERR_DIVERGED,
          "rank 0 and rank %d differ at plan %d: rank 0 has %s; rank %d has %s%s; every rank must "
          "prepare the same plans in the same order",
          pair->rank, number, x, pair->rank, y, pair->others);
    }
    FX_TRY(compare_ledgers(&a, &b, pair->rank, pair->others));
  }
}

fx_status fx_agree_plans(fx_control *control, const char *const *plan_names, const char *const *ledgers,
                         int count, int timeout_ms) {
  char *mine = NULL;
  int64_t bytes = 0;
  FX_TRY(pack_plans(plan_names, ledgers, count, &mine, &bytes));
  fx_status status = fx_agree_text(control, mine, bytes, compare_plans, timeout_ms);
  free(mine);
  return status == FX_OK ? FX_OK : fx_error_prefix(status, "plan agreement");
}

/* ---- ready, with heartbeats ---- */

typedef enum ready_state { READY_WORKING, READY_DONE, READY_FAILED } ready_state;

/* One heartbeat. `given_up`: this rank has seen the timeout pass; all leave together after such a round. */
typedef struct heartbeat {
  int32_t state, given_up;
} heartbeat;

typedef struct ready_job {
  fx_control *control;
  fx_agree_ready_options options;
  pthread_mutex_t mutex; /* guards state */
  pthread_cond_t changed;
  ready_state state;
  fx_status result; /* of the helper */
  char text[2048];
} ready_job;

static ready_state ready_pause(ready_job *job, int wait_ms) {
  struct timespec until = fx_time_after_ms(wait_ms);
  pthread_mutex_lock(&job->mutex);
  if (wait_ms > 0)
    while (job->state == READY_WORKING)
      if (pthread_cond_timedwait(&job->changed, &job->mutex, &until) != 0) break;
  ready_state state = job->state;
  pthread_mutex_unlock(&job->mutex);
  return state;
}

/* Looks at one round: *over when nobody works any more, or somebody gave up. */
static fx_status ready_look(const ready_job *job, const heartbeat *beats, bool *working, int64_t waited_ms,
                            int64_t *next_log_ms, bool *over) {
  int size = job->control->size, busy = 0, given_up = 0, first_ready = size;
  char list[200];
  for (int r = size - 1; r >= 0; r--) {
    working[r] = beats[r].state == READY_WORKING;
    if (!working[r]) first_ready = r;
    busy += working[r];
    given_up += beats[r].given_up;
  }
  *over = busy == 0 || given_up > 0;
  if (busy == 0) return FX_OK;
  fx_rank_list(working, true, size, list, sizeof list);
  if (given_up)
    return fx_error(FX_ERR_COMM,
                    "rank %s not ready after %d ms, though alive; raise the timeout if that is expected",
                    list, job->options.timeout_ms);
  if (first_ready == job->control->rank && waited_ms >= *next_log_ms) {
    fx_info(job->options.log, "waiting %.1f s for rank %s to get ready", (double)waited_ms / 1000, list);
    *next_log_ms = waited_ms + 5000;
  }
  return FX_OK;
}

static fx_status ready_rounds(ready_job *job) {
  int size = job->control->size;
  int64_t *offsets = NULL, begin = fx_now_ms(), next_log_ms = 2000;
  bool *working = NULL, over = false;
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_calloc(&offsets, (size_t)size + 1, sizeof *offsets), free_scratch);
  FX_TRY_GOTO(fx_calloc(&working, (size_t)size, sizeof *working), free_scratch);
  for (int round = 0; !over; round++) {
    char *all = NULL;
    heartbeat mine = {.state = (int32_t)ready_pause(job, round ? job->options.heartbeat_ms : 0)};
    mine.given_up = fx_now_ms() - begin > job->options.timeout_ms;
    FX_TRY_GOTO(fx_control_all_gather(job->control, &mine, sizeof mine, &all, offsets,
                                      job->options.silence_ms + job->options.heartbeat_ms),
                free_scratch);
    status = ready_look(job, (const heartbeat *)all, working, fx_now_ms() - begin, &next_log_ms, &over);
    free(all);
    if (status != FX_OK) goto free_scratch;
  }
free_scratch:
  free(working);
  free(offsets);
  return status;
}

static void *ready_main(void *arg) {
  ready_job *job = arg;
  job->result = ready_rounds(job);
  if (job->result != FX_OK) snprintf(job->text, sizeof job->text, "%s", fx_error_text());
  return NULL;
}

static void ready_job_init(ready_job *job, fx_control *control, fx_agree_ready_options options) {
  pthread_condattr_t monotonic;
  memset(job, 0, sizeof *job);
  job->control = control;
  job->options = options;
  pthread_mutex_init(&job->mutex, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&job->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

static void ready_job_fini(ready_job *job) {
  pthread_cond_destroy(&job->changed);
  pthread_mutex_destroy(&job->mutex);
}

fx_status fx_agree_ready(fx_control *control, fx_agree_work work, void *ctx, fx_agree_ready_options options) {
  ready_job job;
  pthread_t helper;
  ready_job_init(&job, control, options);
  if (pthread_create(&helper, NULL, ready_main, &job) != 0) {
    ready_job_fini(&job);
    return fx_error(FX_ERR_DEVICE, "cannot start the heartbeat thread; check the limit on processes");
  }
  fx_status mine = work ? work(ctx) : FX_OK;
  pthread_mutex_lock(&job.mutex);
  job.state = mine == FX_OK ? READY_DONE : READY_FAILED;
  pthread_cond_signal(&job.changed);
  pthread_mutex_unlock(&job.mutex);
  pthread_join(helper, NULL);
  ready_job_fini(&job);
  /* work's own failure says more than what became of the others */
  if (job.result == FX_OK) return fx_control_agree_status(control, mine, options.silence_ms);
  if (mine != FX_OK) return mine;
  return fx_error_prefix(fx_error(job.result, "%s", job.text), "ready barrier");
}

fx_status fx_agree_compiled(fx_control *control, fx_agree_work work, void *ctx, const fx_log *log) {
  fx_agree_ready_options options = {
      .heartbeat_ms = 500, .silence_ms = 2 * 60 * 1000, .timeout_ms = 30 * 60 * 1000, .log = log};
  return control->size == 1 ? work(ctx) : fx_agree_ready(control, work, ctx, options);
}
