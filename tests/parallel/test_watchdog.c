/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog on in-process ranks: quiet while all goes well, however slow; and what it says when a rank
 * does not come to a collective, when its watchdog is silent, and when a transport has met an error. */
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/clock.h"
#include "parallel/comm/local/local.h"
#include "parallel/topology.h"
#include "parallel/watchdog.h"
#include "tests/harness.h"

/* A time that is to pass is short; one that must not pass is so long that a busy machine keeps within it. */
enum { RANKS = 3, COUNT = 1000, SHORT_MS = 1000, LONG_MS = 30000 };

typedef enum trouble { NONE, SLOW, ABSENT, SILENT, FAULT, LEFT, STUCK } trouble;

typedef struct job {
  trouble trouble;
  int timeout_ms;
  bool fatal; /* every rank's fatal is to be called */
  fx_status ended[RANKS], got[RANKS];
  double seconds[RANKS]; /* until the collective came back */
  int over;              /* ranks whose work has come to its end */
  FILE *log;
  char *text;
  size_t bytes;
} job;

static int g_ended; /* ranks whose fatal has been called */
static const fx_comm_vtable *g_sound;

static void on_fatal(void *ctx, fx_status status) {
  *(fx_status *)ctx = status;
  __atomic_add_fetch(&g_ended, 1, __ATOMIC_RELEASE);
}

static fx_status sum(fx_comm *comm, float *data) {
  fx_comm_call call = {.kind = FX_ALL_REDUCE, .dtype = FX_F32, .count = COUNT, .src = data, .dst = data};
  return fx_comm_issue(comm, &call);
}

static fx_status faulty_poll(fx_comm *comm) {
  return comm->rank == 2 ? fx_error(FX_ERR_COMM, "the cable is out") : FX_OK;
}

/* As NCCL's: it does not come back before the job has ended. */
static void stuck_abort(fx_comm *comm) {
  while (__atomic_load_n(&g_ended, __ATOMIC_ACQUIRE) < RANKS) fx_sleep_ms(5);
  g_sound->abort(comm);
}

/* Until as many ranks are counted. */
static void wait_for(const int *counter, int ranks) {
  for (int64_t end = fx_now_ms() + LONG_MS; fx_now_ms() < end; fx_sleep_ms(5))
    if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) >= ranks) return;
}

static fx_status silent_rank(job *j, fx_control *control) {
  fx_control *own = NULL;
  FX_TRY(fx_control_duplicate(control, &own)); /* and never comes to a meeting */
  wait_for(&j->over, RANKS - 1);
  fx_control_destroy(own);
  return FX_OK;
}

static fx_status work(job *j, fx_comm *comm, float *data, int rank) {
  fx_status status = FX_OK;
  for (int i = 0; i < 20 && status == FX_OK; i++) {
    if (rank == 1 && i == 10 && j->trouble == SLOW) fx_sleep_ms(j->timeout_ms / 2);
    if (rank == 1 && i == 10 && (j->trouble == ABSENT || j->trouble == STUCK)) {
      wait_for(&g_ended, 1);
      return FX_OK; /* without the ten that the others wait for */
    }
    if (rank == 1 && i == 10 && j->trouble == LEFT)
      return fx_error(FX_ERR_IO, "a disk is full"); /* of this rank alone */
    status = sum(comm, data);
  }
  while (j->trouble == FAULT && status == FX_OK) { /* until somebody notices */
    fx_sleep_ms(10);
    status = sum(comm, data);
  }
  return status;
}

static fx_status run_rank(fx_control *control, void *ctx) {
  job *j = ctx;
  fx_topology *topology = NULL;
  fx_watchdog *watchdog = NULL;
  fx_log log = {.stream = j->log, .level = FX_LOG_INFO, .rank = control->rank, .size = control->size};
  float data[COUNT] = {1};
  int rank = control->rank;
  FX_TRY(fx_topology_create(control, 1, 1, &topology));
  fx_comm *comm = topology->comm.dp_cp;
  fx_comm_vtable faulty = *comm->vtable;
  const fx_comm_vtable *sound = comm->vtable;
  if (j->trouble == FAULT) faulty.poll = faulty_poll;
  faulty.abort = j->trouble == STUCK ? stuck_abort : sound->abort;
  __atomic_store_n(&g_sound, sound, __ATOMIC_RELEASE);
  if (j->trouble == FAULT || j->trouble == STUCK) comm->vtable = &faulty;
  fx_watchdog_options options = {.timeout_ms = j->timeout_ms, .comm = {comm}, .log = &log};
  if (j->fatal) options.fatal = on_fatal;
  options.ctx = &j->ended[rank];
  int64_t begin = fx_now_ns();
  if (j->trouble == SILENT && rank == 1) {
    j->got[rank] = silent_rank(j, control);
  } else {
    FX_TRY(fx_watchdog_start(control, options, &watchdog));
    j->got[rank] = work(j, comm, data, rank);
    j->seconds[rank] = (double)(fx_now_ns() - begin) / 1e9;
    __atomic_add_fetch(&j->over, 1, __ATOMIC_RELEASE);
    fx_watchdog_stop(watchdog, j->got[rank] == FX_OK && j->trouble != ABSENT && j->trouble != STUCK);
  }
  comm->vtable = sound;
  (void)fx_control_barrier(control, 20000); /* nobody takes the communicator from under the others */
  fx_topology_destroy(topology);
  return FX_OK;
}

static void run(job *j) {
  __atomic_store_n(&g_ended, 0, __ATOMIC_RELEASE);
  j->log = open_memstream(&j->text, &j->bytes);
  CHECK_OK(fx_local_run(RANKS, run_rank, j));
  fclose(j->log);
}

static int lines_with(const char *text, const char *part) {
  int count = 0;
  for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) count++;
  return count;
}

static void quiet(void) {
  for (trouble t = NONE; t <= SLOW; t++) {
    job j = {.trouble = t, .timeout_ms = 4000, .fatal = true};
    run(&j);
    for (int r = 0; r < RANKS; r++)
      CHECK(j.got[r] == FX_OK && j.ended[r] == FX_OK && j.seconds[r] < LONG_MS / 1e3);
    CHECK_STR(j.text, "");
    free(j.text);
  }
}

static void absent(void) {
  job j = {.trouble = ABSENT, .timeout_ms = SHORT_MS, .fatal = true};
  run(&j);
  for (int r = 0; r < RANKS; r++) CHECK_INT(j.ended[r], FX_ERR_COMM);
  CHECK(j.got[0] == FX_ERR_COMM && j.got[2] == FX_ERR_COMM);
  CHECK_MSG(j.seconds[0] > 1 && j.seconds[0] < 10, "after %.2f s", j.seconds[0]);
  /* both that wait, or the first, where the other had not waited for so long yet */
  const char *late = "ranks a collective has failed or not come to its end within 1.0 s";
  CHECK_HAS(j.text, late);
  CHECK_MSG(strstr(j.text, "on 2 of 3 ") || strstr(j.text, "on 1 of 3 "), "%s", j.text);
  CHECK_INT(
      lines_with(j.text, "collective 11 of dp_cp#4, all_reduce float32 x 1000 (4000 bytes), not complete"),
      2);
  CHECK_INT(
      lines_with(
          j.text,
          "rank 1 between steps; collective 10 of dp_cp#4, all_reduce float32 x 1000 (4000 bytes), issued"),
      1);
  CHECK_INT(lines_with(j.text, "the job ends"), 1); /* one rank speaks */
  free(j.text);
}

/* The job ends all the same, the others' waits too. */
static void stuck(void) {
  job j = {.trouble = STUCK, .timeout_ms = SHORT_MS, .fatal = true};
  run(&j);
  for (int r = 0; r < RANKS; r++) CHECK_INT(j.ended[r], FX_ERR_COMM);
  CHECK(j.got[0] == FX_ERR_COMM && j.got[2] == FX_ERR_COMM);
  CHECK_MSG(j.seconds[0] > 3 && j.seconds[0] < 15, "after %.2f s", j.seconds[0]);
  free(j.text);
}

static void silent(void) {
  job j = {.trouble = SILENT, .timeout_ms = SHORT_MS};
  run(&j);
  CHECK(j.got[0] == FX_ERR_COMM && j.got[2] == FX_ERR_COMM);
  CHECK_MSG(j.seconds[0] > 1 && j.seconds[0] < 10, "after %.2f s", j.seconds[0]);
  CHECK_HAS(j.text, "no answer from rank 1 within 1.0 s");
  CHECK_HAS(j.text, "rank 1 does not answer");
  CHECK_INT(lines_with(j.text, "collective 1 of dp_cp#4, all_reduce float32 x 1000"), 2);
  free(j.text);
}

static void fault(void) {
  job j = {.trouble = FAULT, .timeout_ms = LONG_MS};
  run(&j);
  for (int r = 0; r < RANKS; r++) CHECK_INT(j.got[r], FX_ERR_COMM);
  CHECK_MSG(j.seconds[0] < 15, "after %.2f s", j.seconds[0]); /* at a meeting, long before the timeout */
  CHECK_HAS(j.text, "on 1 of 3 ranks");
  CHECK_HAS(j.text, ": the cable is out");
  free(j.text);
}

/* A rank that fails by itself leaves at once; the others notice. */
static void left(void) {
  job j = {.trouble = LEFT, .timeout_ms = SHORT_MS, .fatal = true};
  run(&j);
  CHECK(j.got[1] == FX_ERR_IO && j.ended[1] == FX_OK);
  CHECK(j.ended[0] == FX_ERR_COMM && j.ended[2] == FX_ERR_COMM);
  CHECK_HAS(j.text, "no answer from rank 1");
  free(j.text);
}

/* ---- the words of a device ---- */

static void words_tell_a_call(void) {
  static const int64_t counts[] = {0, 1, 1000, UINT32_MAX, (int64_t)1 << 40};
  static const uint64_t numbers[] = {1, 2, (1 << 24) - 1, 1 << 24, 123456789};
  uint32_t words[FX_COMM_BEGUN] = {0};
  fx_comm comm = {.begun = words};
  CHECK(fx_comm_progress_get(&comm).issued == 0 && fx_comm_progress_get(&comm).begun);
  for (int kind = 0; kind < FX_COLLECTIVE_COUNT; kind++)
    for (int dtype = 0; dtype < FX_DTYPE_COUNT; dtype++)
      for (int i = 0; i < 5; i++) {
        fx_comm_call call = {.kind = (fx_collective)kind, .dtype = (fx_dtype)dtype, .count = counts[i]};
        comm.progress.issued = numbers[i];
        fx_comm_begun_words(&comm, &call, words);
        fx_comm_progress p = fx_comm_progress_get(&comm);
        uint64_t number = numbers[i] < 1 << 24 ? numbers[i] : (numbers[i] - 1) % ((1 << 24) - 1) + 1;
        CHECK(p.kind == kind && p.dtype == dtype && p.issued == number && p.issued > 0);
        CHECK(p.count == (counts[i] < UINT32_MAX ? counts[i] : UINT32_MAX));
      }
}

static const fx_test tests[] = {
    {"quiet while all is well", quiet},      {"a rank does not come to a collective", absent},
    {"an abort does not come back", stuck},  {"a rank does not answer", silent},
    {"a transport has met an error", fault}, {"a rank has left", left},
    {"words tell a call", words_tell_a_call}};
FX_TEST_MAIN("watchdog", tests)
