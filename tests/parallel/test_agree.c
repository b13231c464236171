/* SPDX-License-Identifier: Apache-2.0 */
/* Rank agreement between in-process ranks: plans that differ in each possible way, and the ready barrier. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "parallel/agree.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

#define E1 "dp#3 all_reduce sum float32 x 8192 comm.bulk (core/model/step.c:88, layer 0)\n"
#define E2 "tp#1 all_gather sum float32 x 512 comm.critical (parallel/linear.c:40, layer 1)\n"
#define E3 "tp#1 reduce_scatter sum float32 x 2048 comm.critical (parallel/linear.c:52, layer 1)\n"
#define E2_SHAPE "tp#1 all_gather sum float32 x 513 comm.critical (parallel/linear.c:40, layer 1)\n"

enum { MAX_RANKS = 8, MAX_PLANS = 3 };

/* What each rank brings, and what came out. */
typedef struct agree_case {
  int ranks, timeout_ms;
  const char *names[MAX_RANKS][MAX_PLANS], *ledgers[MAX_RANKS][MAX_PLANS];
  int count[MAX_RANKS];
  fx_status status[MAX_RANKS];
  char text[MAX_RANKS][2048];
} agree_case;

static fx_status agree_rank(fx_control *control, void *ctx) {
  agree_case *c = ctx;
  int r = control->rank;
  if (c->count[r] < 0) return FX_OK; /* never arrives */
  c->status[r] = fx_agree_plans(control, c->names[r], c->ledgers[r], c->count[r], c->timeout_ms);
  snprintf(c->text[r], sizeof c->text[r], "%s", fx_error_text());
  return FX_OK;
}

/* All ranks alike: micro with E1 E2 E3, update with E1. */
static agree_case *alike(int ranks) {
  agree_case *c = calloc(1, sizeof *c);
  c->ranks = ranks;
  c->timeout_ms = 60000;
  for (int r = 0; r < ranks; r++) {
    c->names[r][0] = "micro_only";
    c->ledgers[r][0] = E1 E2 E3;
    c->names[r][1] = "update";
    c->ledgers[r][1] = E1;
    c->count[r] = 2;
  }
  return c;
}

/* Runs; every rank that arrived must end with `status` and one and the same sentence, which holds the parts.
 */
static void run_case(agree_case *c, fx_status status, const char *const parts[]) {
  CHECK_OK(fx_local_run(c->ranks, agree_rank, c));
  for (int r = 0; r < c->ranks; r++) {
    if (c->count[r] < 0) continue;
    CHECK_MSG(c->status[r] == status, "rank %d: expected %s, got %s (%s)", r, fx_status_name(status),
              fx_status_name(c->status[r]), c->text[r]);
    CHECK_STR(c->text[r], c->text[0]);
    for (int i = 0; status != FX_OK && parts[i]; i++) CHECK_HAS(c->text[r], parts[i]);
  }
  free(c);
}

static void equal_plans(void) {
  for (int ranks = 1; ranks <= 4; ranks++) run_case(alike(ranks), FX_OK, NULL);
  agree_case *none = alike(3);
  for (int r = 0; r < 3; r++) none->count[r] = 0;
  run_case(none, FX_OK, NULL);
  agree_case *quiet = alike(2);
  for (int r = 0; r < 2; r++) quiet->ledgers[r][0] = "";
  run_case(quiet, FX_OK, NULL);
}

static void dropped_entry(void) {
  agree_case *c = alike(3);
  c->ledgers[1][0] = E1 E3;
  run_case(
      c, FX_ERR_DIVERGED,
      (const char *[]){"rank 0 and rank 1 differ at entry 2 of plan micro_only",
                       "rank 0 has \"tp#1 all_gather sum float32 x 512 comm.critical (parallel/linear.c:40",
                       "rank 1 has \"tp#1 reduce_scatter sum float32 x 2048 comm.critical "
                       "(parallel/linear.c:52",
                       NULL});
  c = alike(4);
  c->ledgers[2][0] = E1 E2;
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"rank 0 and rank 2 differ at entry 3 of plan micro_only",
                            "rank 0 has \"tp#1 reduce_scatter", "rank 2 has no entry 3", NULL});
  c = alike(2);
  c->ledgers[0][1] = "";
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"entry 1 of plan update", "rank 0 has no entry 1", "rank 1 has \"dp#3", NULL});
}

static void swapped_and_reshaped(void) {
  agree_case *c = alike(3);
  c->ledgers[1][0] = E2 E1 E3;
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"differ at entry 1 of plan micro_only", "rank 0 has \"dp#3 all_reduce",
                            "core/model/step.c:88", "rank 1 has \"tp#1 all_gather", "parallel/linear.c:40",
                            NULL});
  c = alike(3);
  c->ledgers[2][0] = E1 E2_SHAPE E3;
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"rank 0 and rank 2 differ at entry 2", "x 512 ", "x 513 ", NULL});
  c = alike(4); /* the odd one is rank 0 */
  c->ledgers[0][0] = E1 E2_SHAPE E3;
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"rank 0 and rank 1 differ at entry 2", "unlike rank 0 are ranks 1 2 3", NULL});
}

static void plans_differ(void) {
  agree_case *c = alike(3);
  c->count[2] = 1;
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"differ at plan 2", "rank 0 has plan update", "rank 2 has none", NULL});
  c = alike(2);
  c->names[1][0] = "micro_first";
  run_case(c, FX_ERR_DIVERGED,
           (const char *[]){"differ at plan 1", "rank 0 has plan micro_only", "rank 1 has plan micro_first",
                            NULL});
}

static void missing_rank(void) {
  agree_case *c = alike(3);
  c->count[1] = -1;
  c->timeout_ms = 1500;
  run_case(
      c, FX_ERR_COMM,
      (const char *[]){"plan agreement", "2 of 3 ranks answered within 1500 ms", "missing: rank 1", NULL});
}

/* Lines longer than the sentence can hold are cut, the rest of the sentence stays. */
static void long_entries(void) {
  agree_case *c = alike(2);
  char *line = malloc(4001);
  memset(line, 'a', 4000);
  line[4000] = '\0';
  c->ledgers[1][0] = line;
  run_case(c, FX_ERR_DIVERGED, (const char *[]){"aaaa", "every rank must record the same collectives", NULL});
  free(line);
}

/* ---- texts ---- */

static fx_status tell_texts(const fx_agree_pair *pair) {
  if (pair->left_bytes == 0) return FX_OK;
  return fx_error(FX_ERR_DIVERGED, "%.*s, %d: %.*s%s", (int)pair->left_bytes, pair->left, pair->rank,
                  (int)pair->right_bytes, pair->right, pair->others);
}

typedef struct text_case {
  const char *text[MAX_RANKS], *said; /* NULL: they agree */
} text_case;

static fx_status text_rank(fx_control *control, void *ctx) {
  const text_case *c = ctx;
  const char *mine = c->text[control->rank];
  fx_status status = fx_agree_text(control, mine, (int64_t)strlen(mine), tell_texts, 60000);
  CHECK_STATUS(status, c->said ? FX_ERR_DIVERGED : FX_OK);
  if (c->said) CHECK_STR(fx_error_text(), c->said);
  return FX_OK;
}

static void texts(void) {
  static const text_case cases[] = {
      {{"a", "a", "a", "a"}, NULL},
      {{"", "", "", ""}, NULL},
      {{"a", "a", "bc", "a"}, "a, 2: bc"},
      {{"a", "d", "a", "bc"}, "a, 1: d (unlike rank 0 are ranks 1 3)"},
      {{"", "a", "", ""},
       "rank 0 and rank 1 have equal texts and different digests"}, /* tell finds nothing */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    text_case c = cases[i];
    CHECK_OK(fx_local_run(4, text_rank, &c));
  }
}

/* ---- ready ---- */

/* Instead of a time: a rank that never calls, and one that works until the others are through. */
enum { NEVER = -1, OTHERS_FIRST = -2 };

typedef struct ready_case {
  int work_ms[MAX_RANKS];
  fx_status fails[MAX_RANKS];
  fx_agree_ready_options options;
  fx_status status[MAX_RANKS];
  char text[MAX_RANKS][2048];
  int through; /* ranks whose call is over */
} ready_case;

typedef struct ready_work {
  int ms, ranks;
  fx_status result;
  const int *through;
} ready_work;

static fx_status ready_do(void *ctx) {
  const ready_work *w = ctx;
  if (w->ms >= 0)
    fx_sleep_ms(w->ms);
  else
    for (int i = 0; i < 6000 && __atomic_load_n(w->through, __ATOMIC_ACQUIRE) < w->ranks - 1; i++)
      fx_sleep_ms(10);
  return w->result == FX_OK ? FX_OK : fx_error(w->result, "no registers left");
}

static fx_status ready_rank(fx_control *control, void *ctx) {
  ready_case *c = ctx;
  int r = control->rank;
  if (c->work_ms[r] == NEVER) return FX_OK;
  ready_work work = {c->work_ms[r], control->size, c->fails[r], &c->through};
  c->status[r] = fx_agree_ready(control, ready_do, &work, c->options);
  __atomic_add_fetch(&c->through, 1, __ATOMIC_RELEASE);
  snprintf(c->text[r], sizeof c->text[r], "%s", fx_error_text());
  return FX_OK;
}

static const fx_agree_ready_options g_patient = {
    .heartbeat_ms = 20, .silence_ms = 60000, .timeout_ms = 60000};

static void ready_is_patient(void) {
  /* rank 2 works for longer than a silent rank would be tolerated: slow is not diverged */
  ready_case c = {.work_ms = {0, 10, 4000},
                  .options = {.heartbeat_ms = 50, .silence_ms = 3000, .timeout_ms = 60000}};
  CHECK_OK(fx_local_run(3, ready_rank, &c));
  for (int r = 0; r < 3; r++) CHECK_MSG(c.status[r] == FX_OK, "rank %d: %s", r, c.text[r]);
}

static void ready_failure_is_shared(void) {
  ready_case c = {.work_ms = {0, 50, 10}, .fails = {FX_OK, FX_ERR_UNSUPPORTED, FX_OK}, .options = g_patient};
  CHECK_OK(fx_local_run(3, ready_rank, &c));
  for (int r = 0; r < 3; r++) {
    CHECK_STATUS(c.status[r], FX_ERR_UNSUPPORTED);
    CHECK_STR(c.text[r], "rank 1: no registers left");
  }
}

static void ready_silent_rank(void) {
  ready_case c = {.work_ms = {0, 0, NEVER},
                  .options = {.heartbeat_ms = 20, .silence_ms = 1500, .timeout_ms = 60000}};
  CHECK_OK(fx_local_run(3, ready_rank, &c));
  for (int r = 0; r < 2; r++) {
    CHECK_STATUS(c.status[r], FX_ERR_COMM);
    CHECK_HAS(c.text[r], "ready barrier: 2 of 3 ranks answered");
    CHECK_HAS(c.text[r], "missing: rank 2");
  }
}

static void ready_too_slow(void) {
  ready_case c = {.work_ms = {0, OTHERS_FIRST, 0},
                  .options = {.heartbeat_ms = 20, .silence_ms = 60000, .timeout_ms = 1000}};
  CHECK_OK(fx_local_run(3, ready_rank, &c));
  for (int r = 0; r < 3; r++) {
    CHECK_STATUS(c.status[r], FX_ERR_COMM);
    CHECK_HAS(c.text[r], "rank 1 not ready after 1000 ms, though alive");
  }
}

static const fx_test g_tests[] = {
    {"equal plans", equal_plans},
    {"a dropped entry", dropped_entry},
    {"swapped and reshaped entries", swapped_and_reshaped},
    {"plans that differ", plans_differ},
    {"a rank that does not arrive", missing_rank},
    {"long entries are cut", long_entries},
    {"texts", texts},
    {"slow is not diverged", ready_is_patient},
    {"a failure of the work reaches all", ready_failure_is_shared},
    {"a silent rank is named", ready_silent_rank},
    {"a rank that is too slow is named", ready_too_slow},
};
FX_TEST_MAIN("parallel/agree", g_tests)
