/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "parallel/watchdog.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/comm/missing.h"

enum {
  LONGEST_PAUSE_MS = 1000,
  SHORTEST_PAUSE_MS = 50,
  GRACE_MS = 2000, /* for the rank that prints, before others end the job */
  ABORT_MS = 2000, /* for communicators to abort, before the job ends without */
  MOST_ROWS = 64,  /* of the table */
  ROW_BYTES = 1024
};

/* A collective, as a rank last knew it. */
typedef struct seen_call {
  int32_t pending, begun; /* is not done; it is the last that a GPU has begun */
  int32_t comm_id, kind, dtype;
  int64_t number, count, waited_ms;
  char comm[16];
} seen_call;

/* What a rank brings to a meeting. */
typedef struct report {
  int32_t leaving, alarm;
  int32_t calls;         /* the one that has waited longest, or of each communicator of a GPU the last */
  int64_t step, step_ms; /* step -1: between steps */
  seen_call call[FX_WATCHDOG_COMMS];
  char error[160];
} report;

struct fx_watchdog {
  fx_control *control; /* its own */
  fx_watchdog_options options;
  pthread_t thread;
  pthread_mutex_t mutex; /* guards the next five */
  pthread_cond_t changed;
  bool leaving, abandoned, aborted;
  int64_t step, step_ns;
  bool alarmed; /* accessed atomically */
  report *reports;
  bool *here;
};

/* ---- what this rank does ---- */

static void look_at(fx_watchdog *w, fx_comm *comm, int64_t now, report *out) {
  fx_comm_progress p = fx_comm_progress_get(comm);
  seen_call c = {.pending = !p.begun && p.issued > p.done,
                 .begun = p.begun,
                 .comm_id = comm->id,
                 .kind = p.kind,
                 .dtype = p.dtype,
                 .number = (int64_t)p.issued,
                 .count = p.count,
                 .waited_ms = (now - p.began_ns) / 1000000};
  memcpy(c.comm, comm->name, sizeof c.comm);
  if ((p.issued || p.begun) && fx_comm_poll(comm) != FX_OK) {
    out->alarm = 1;
    snprintf(out->error, sizeof out->error, "%s", fx_error_text());
  }
  if (!p.issued) return;
  const seen_call *held = &out->call[0];
  bool better = c.pending > held->pending || (c.pending == held->pending && c.waited_ms < held->waited_ms);
  if (p.begun)
    out->call[out->calls++] = c;
  else if (out->calls == 0 || better)
    out->call[0] = c, out->calls = 1;
  if (c.pending && c.waited_ms > w->options.timeout_ms) out->alarm = 1;
}

static report look(fx_watchdog *w) {
  report out;
  int64_t now = fx_now_ns();
  bool queued = false;
  memset(&out, 0, sizeof out);
  for (int i = 0; i < FX_WATCHDOG_COMMS; i++) {
    fx_comm *comm = w->options.comm[i];
    if (!comm) continue;
    queued = queued || comm->vtable->on_device;
    if (comm->size > 1) look_at(w, comm, now, &out);
  }
  pthread_mutex_lock(&w->mutex);
  out.leaving = w->leaving;
  out.step = w->step;
  out.step_ms = (now - w->step_ns) / 1000000;
  pthread_mutex_unlock(&w->mutex);
  if (queued && out.step >= 0 && out.step_ms > w->options.timeout_ms) out.alarm = 1;
  return out;
}

/* ---- what all ranks did ---- */

static void add_call(const seen_call *c, char text[ROW_BYTES]) {
  size_t used = strlen(text);
  snprintf(text + used, ROW_BYTES - used, "; collective %lld of %s#%d, %s %s x %lld (%lld bytes)",
           (long long)c->number, c->comm, c->comm_id, fx_collective_name((fx_collective)c->kind),
           fx_dtype_name((fx_dtype)c->dtype), (long long)c->count,
           (long long)(c->count * (int64_t)fx_dtype_bytes((fx_dtype)c->dtype)));
  used = strlen(text);
  if (c->begun)
    snprintf(text + used, ROW_BYTES - used, ", was the last to begin on its GPU");
  else
    snprintf(text + used, ROW_BYTES - used, ", %s %.1f s%s", c->pending ? "not complete for" : "issued",
             (double)c->waited_ms / 1000, c->pending ? "" : " ago");
}

static const char *row(const report *r, bool here, char text[ROW_BYTES]) {
  if (!here) return "does not answer";
  if (r->step >= 0)
    snprintf(text, ROW_BYTES, "in step %lld for %.1f s", (long long)r->step, (double)r->step_ms / 1000);
  else
    snprintf(text, ROW_BYTES, "between steps");
  for (int32_t i = 0; i < r->calls; i++) add_call(&r->call[i], text);
  size_t used = strlen(text);
  snprintf(text + used, ROW_BYTES - used, "%s%s%s", r->calls ? "" : ", no collective yet",
           r->error[0] ? ": " : "", r->error);
  return text;
}

/* From the lowest rank that is here. */
static void print_table(const fx_watchdog *w) {
  int size = w->control->size, speaker = 0, absent = 0, late = 0;
  char text[ROW_BYTES], list[256];
  while (speaker < size && !w->here[speaker]) speaker++;
  if (speaker != w->control->rank || !w->options.log) return;
  for (int r = 0; r < size; r++) {
    absent += !w->here[r];
    late += w->here[r] && w->reports[r].alarm;
  }
  const fx_log *log = w->options.log;
  if (absent)
    fx_log_line(log, FX_LOG_ERROR,
                "watchdog: no answer from rank %s within %.1f s; the job ends. When asked:",
                fx_rank_list(w->here, false, size, list, sizeof list), w->options.timeout_ms / 1000.0);
  else
    fx_log_line(log, FX_LOG_ERROR,
                "watchdog: on %d of %d ranks a collective has failed or not come to its end within %.1f s; "
                "the job ends",
                late, size, w->options.timeout_ms / 1000.0);
  for (int r = 0; r < size && r < MOST_ROWS; r++)
    fx_log_line(log, FX_LOG_ERROR, "watchdog: rank %d %s", r, row(&w->reports[r], w->here[r], text));
}

static bool is_abandoned(fx_watchdog *w) {
  pthread_mutex_lock(&w->mutex);
  bool abandoned = w->abandoned;
  pthread_mutex_unlock(&w->mutex);
  return abandoned;
}

/* Once this rank is given up its communicators may be gone. */
static void *abort_comms(void *arg) {
  fx_watchdog *w = arg;
  for (int i = 0; i < FX_WATCHDOG_COMMS && !is_abandoned(w); i++) fx_comm_abort(w->options.comm[i]);
  pthread_mutex_lock(&w->mutex);
  w->aborted = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->mutex);
  return NULL;
}

/* Aborts, but only for a while: NCCL waits for an answer there, and the rank that stands still gives none. */
static void abort_and_end(fx_watchdog *w) {
  pthread_t aborter;
  struct timespec until = fx_time_after_ms(ABORT_MS);
  bool started = pthread_create(&aborter, NULL, abort_comms, w) == 0;
  pthread_mutex_lock(&w->mutex);
  while (started && !w->aborted)
    if (pthread_cond_timedwait(&w->changed, &w->mutex, &until) != 0) break;
  pthread_mutex_unlock(&w->mutex);
  w->options.fatal(w->options.ctx, FX_ERR_COMM);
  if (started) pthread_join(aborter, NULL);
}

/* The others have aborted their communicators, perhaps before this rank got here, and the table is still to
 * be printed. */
static void end_job(fx_watchdog *w) {
  if (!is_abandoned(w)) w->reports[w->control->rank] = look(w); /* not as old as the meeting */
  __atomic_store_n(&w->alarmed, true, __ATOMIC_RELEASE);
  print_table(w);
  int speaker = 0;
  while (speaker < w->control->size && !w->here[speaker]) speaker++;
  if (speaker != w->control->rank && w->options.fatal)
    nanosleep(&(struct timespec){GRACE_MS / 1000, 0}, NULL);
  if (w->options.fatal)
    abort_and_end(w);
  else
    abort_comms(w);
}

/* ---- the thread ---- */

/* Between meetings; false: this rank is given up. */
static bool pause_a_while(fx_watchdog *w) {
  int ms = w->options.timeout_ms / 5;
  ms = ms > LONGEST_PAUSE_MS ? LONGEST_PAUSE_MS : ms < SHORTEST_PAUSE_MS ? SHORTEST_PAUSE_MS : ms;
  struct timespec until = fx_time_after_ms(ms);
  pthread_mutex_lock(&w->mutex);
  while (!w->leaving && !w->abandoned)
    if (pthread_cond_timedwait(&w->changed, &w->mutex, &until) != 0) break;
  bool goes_on = !w->abandoned;
  pthread_mutex_unlock(&w->mutex);
  return goes_on;
}

static void *watch(void *arg) {
  fx_watchdog *w = arg;
  int size = w->control->size;
  while (pause_a_while(w)) {
    report mine = look(w);
    if (fx_control_meet(w->control, &mine, sizeof mine, w->reports, w->here, w->options.timeout_ms) != FX_OK)
      break; /* the connection itself has failed, and so have collectives */
    int here = 0, leaving = 0, alarms = 0;
    for (int r = 0; r < size; r++) {
      here += w->here[r];
      leaving += w->here[r] && w->reports[r].leaving;
      alarms += w->here[r] && w->reports[r].alarm;
    }
    if (here < size || alarms) {
      end_job(w);
      break;
    }
    if (leaving == size) break;
  }
  return NULL;
}

static void destroy(fx_watchdog *w) {
  fx_control_destroy(w->control);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->mutex);
  free(w->reports);
  free(w->here);
  free(w);
}

static void init_locks(fx_watchdog *w) {
  pthread_condattr_t monotonic;
  pthread_mutex_init(&w->mutex, NULL);
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&w->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

fx_status fx_watchdog_start(fx_control *control, fx_watchdog_options options, fx_watchdog **out) {
  fx_watchdog *w = NULL;
  fx_control *own = NULL;
  fx_status status = FX_OK;
  sigset_t every, before;
  FX_TRY(fx_control_duplicate(control, &own));
  FX_TRY_GOTO(fx_calloc(&w, 1, sizeof *w), destroy_control);
  w->control = own;
  w->options = options;
  w->step = -1;
  init_locks(w);
  FX_TRY_GOTO(fx_calloc(&w->reports, (size_t)own->size, sizeof *w->reports), destroy_watchdog);
  FX_TRY_GOTO(fx_calloc(&w->here, (size_t)own->size, sizeof *w->here), destroy_watchdog);
  sigfillset(&every); /* signals are for the others */
  pthread_sigmask(SIG_SETMASK, &every, &before);
  int code = pthread_create(&w->thread, NULL, watch, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code == 0) {
    *out = w;
    return FX_OK;
  }
  status = fx_error(FX_ERR_DEVICE, "cannot start the watchdog's thread; check the limit on processes");
destroy_watchdog:
  destroy(w);
  return status;
destroy_control:
  fx_control_destroy(own);
  return status;
}

static void set_step(fx_watchdog *w, int64_t step) {
  if (!w) return;
  pthread_mutex_lock(&w->mutex);
  w->step = step;
  w->step_ns = fx_now_ns();
  pthread_mutex_unlock(&w->mutex);
}

void fx_watchdog_begin(fx_watchdog *watchdog, int64_t step) {
  set_step(watchdog, step);
}

void fx_watchdog_end(fx_watchdog *watchdog) {
  set_step(watchdog, -1);
}

bool fx_watchdog_alarmed(const fx_watchdog *watchdog) {
  return watchdog && __atomic_load_n(&watchdog->alarmed, __ATOMIC_ACQUIRE);
}

void fx_watchdog_stop(fx_watchdog *w, bool together) {
  if (!w) return;
  pthread_mutex_lock(&w->mutex);
  w->leaving = together;
  w->abandoned = !together;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->mutex);
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += together ? w->options.timeout_ms / 1000 + 1 : (2 * GRACE_MS + ABORT_MS) / 1000;
  if (pthread_timedjoin_np(w->thread, NULL, &until) == 0) {
    destroy(w);
    return;
  }
  pthread_mutex_lock(&w->mutex); /* it sits in its last meeting, and keeps its memory */
  w->abandoned = true;
  pthread_mutex_unlock(&w->mutex);
}
