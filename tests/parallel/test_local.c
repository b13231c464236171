/* SPDX-License-Identifier: Apache-2.0 */
/* The in-process transport: the battery at 1 to 5 ranks, order of sums, aborts, deadlines, wrong use. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/base/clock.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

/* The communicator of all ranks. */
static fx_status make_world(fx_control *control, fx_comm **out) {
  int ranks[16];
  for (int r = 0; r < control->size; r++) ranks[r] = r;
  return fx_control_split(control, "world", 3, ranks, control->size, out);
}

typedef fx_status (*comm_fn)(fx_comm *comm, fx_control *control);

/* Runs a comm_fn (as ctx) on the world communicator. */
static fx_status with_world(fx_control *control, void *ctx) {
  fx_comm *comm = NULL;
  comm_fn fn = *(comm_fn *)ctx;
  FX_TRY(make_world(control, &comm));
  fx_status status = fn(comm, control);
  fx_comm_destroy(comm);
  return status;
}

static void run_world(int size, comm_fn fn) {
  CHECK_MSG(fx_local_run(size, with_world, &fn) == FX_OK, "%d ranks: %s", size, fx_error_text());
}

static fx_status battery_rank(fx_comm *comm, fx_control *control) {
  static const int64_t counts[] = {0, 1, 2, 3, 5, 7, 64, 1023, 2049, 10007};
  (void)control;
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) FX_TRY(battery_all(comm, counts[i]));
  return battery_known_order(comm);
}

static void battery(void) {
  for (int size = 1; size <= 5; size++) run_world(size, battery_rank);
}

/* The battery can tell an order from another: summed backwards its own numbers come out differently. */
static void order_matters(void) {
  enum { N = 64 };
  float forward[N], backward[N], x[N];
  battery_fill(FX_F32, forward, 0, N);
  battery_fill(FX_F32, backward, 2, N);
  for (int r = 1; r <= 2; r++) {
    battery_fill(FX_F32, x, r, N);
    battery_combine(FX_F32, FX_REDUCE_SUM, forward, x, N);
    battery_fill(FX_F32, x, 2 - r, N);
    battery_combine(FX_F32, FX_REDUCE_SUM, backward, x, N);
  }
  int differ = 0;
  for (int i = 0; i < N; i++) differ += forward[i] != backward[i];
  CHECK(differ > 8);
}

static fx_status nan_rank(fx_comm *comm, fx_control *control) {
  (void)control;
  float x[3] = {(float)comm->rank, comm->rank == 1 ? NAN : 1.0f, -INFINITY};
  FX_TRY(fx_comm_issue(
      comm,
      &(fx_comm_call){
          .kind = FX_ALL_REDUCE, .reduce = FX_REDUCE_MAX, .dtype = FX_F32, .count = 3, .src = x, .dst = x}));
  REQUIRE(x[0] == (float)(comm->size - 1), "maximum: expected %d, got %g", comm->size - 1, (double)x[0]);
  REQUIRE(isnan(x[1]), "maximum with a NaN: expected NaN, got %g", (double)x[1]);
  REQUIRE(x[2] == -INFINITY, "maximum of -inf: got %g", (double)x[2]);
  return FX_OK;
}

static void nan_wins(void) {
  run_world(3, nan_rank);
}

static fx_status bf16_rank(fx_comm *comm, fx_control *control) {
  (void)control;
  uint16_t x[2] = {0, 0};
  fx_comm_call call = {.kind = FX_ALL_REDUCE, .dtype = FX_BF16, .count = 2, .src = x, .dst = x};
  fx_status status = fx_comm_issue(comm, &call);
  REQUIRE(status == FX_ERR_UNSUPPORTED, "a bfloat16 sum gave %s", fx_status_name(status));
  REQUIRE(strstr(fx_error_text(), "all_reduce of bfloat16"), "%s", fx_error_text());
  return fx_comm_issue(comm, &(fx_comm_call){.kind = FX_BARRIER}); /* still alive */
}

static void no_bf16_sums(void) {
  run_world(2, bf16_rank);
}

/* A token goes around the ring, each rank adding its number; then many mixed calls of changing length. */
static fx_status iterations_rank(fx_comm *comm, fx_control *control) {
  (void)control;
  int size = comm->size, rank = comm->rank;
  int64_t token = rank, next = -1;
  for (int hop = 0; hop < 50 * size; hop++) {
    fx_comm_call call = {.kind = FX_SEND_RECV,
                         .dtype = FX_I64,
                         .peer = (rank + 1) % size,
                         .peer_from = (rank + size - 1) % size,
                         .count = 1,
                         .src = &token,
                         .dst = &next};
    FX_TRY(fx_comm_issue(comm, &call));
    token = next;
    int64_t origin = ((rank - hop - 1) % size + size) % size;
    REQUIRE(token == origin, "hop %d: expected the token of %d, got %d", hop, (int)origin, (int)token);
  }
  for (int i = 0; i < 300; i++) {
    FX_TRY(battery_run(comm, (battery_case){FX_ALL_REDUCE, FX_F32, FX_REDUCE_SUM, i & 1, 1 + i * 7 % 90, 0}));
    FX_TRY(
        battery_run(comm, (battery_case){FX_ALL_GATHER, FX_BF16, FX_REDUCE_SUM, i & 1, 1 + i * 5 % 30, 0}));
    if (size > 1) FX_TRY(battery_run(comm, (battery_case){FX_SEND, FX_F16, FX_REDUCE_SUM, false, 1 + i, 0}));
  }
  return FX_OK;
}

static void many_iterations(void) {
  for (int size = 2; size <= 5; size += 3) run_world(size, iterations_rank);
}

static fx_status expect_dead(fx_comm *comm, fx_collective kind, const char *part) {
  int64_t x = 0;
  fx_comm_call call = {.kind = kind, .dtype = FX_I64, .peer = 0, .count = 1, .src = &x, .dst = &x};
  fx_status status = fx_comm_issue(comm, &call);
  REQUIRE(status == FX_ERR_COMM, "%s on a dead communicator gave %s", fx_collective_name(kind),
          fx_status_name(status));
  REQUIRE(strstr(fx_error_text(), part), "expected \"%s\" within \"%s\"", part, fx_error_text());
  return FX_OK;
}

/* Rank 0 gives up while 1 and 2 wait in a barrier and 3 in a receive. */
static fx_status abort_rank(fx_comm *comm, fx_control *control) {
  if (comm->rank == 0) {
    fx_sleep_ms(30);
    fx_comm_abort(comm);
  }
  FX_TRY(expect_dead(comm, comm->rank == 3 ? FX_RECV : FX_BARRIER, "world#3: aborted"));
  FX_TRY(expect_dead(comm, FX_ALL_REDUCE, "aborted"));
  return fx_control_barrier(control, 60000); /* the control channel lives on */
}

static void abort_wakes_all(void) {
  run_world(4, abort_rank);
}

/* A network could only hang where calls differ. */
static fx_status mismatch_rank(fx_comm *comm, fx_control *control) {
  float x[16] = {0};
  (void)control;
  int64_t count = comm->rank == 2 ? 9 : 8;
  fx_comm_call call = {.kind = FX_ALL_REDUCE, .dtype = FX_F32, .count = count, .src = x, .dst = x};
  fx_status status = fx_comm_issue(comm, &call);
  REQUIRE(status == FX_ERR_COMM, "calls that differ gave %s", fx_status_name(status));
  REQUIRE(strstr(fx_error_text(), "rank 0 issued all_reduce sum float32 x 8") &&
              strstr(fx_error_text(), "rank 2 issued all_reduce sum float32 x 9"),
          "%s", fx_error_text());
  return FX_OK;
}

static fx_status mismatch_pair_rank(fx_comm *comm, fx_control *control) {
  float x[16] = {0};
  (void)control;
  fx_comm_call call = {.kind = comm->rank ? FX_RECV : FX_SEND,
                       .dtype = FX_F32,
                       .peer = 1 - comm->rank,
                       .count = comm->rank ? 4 : 5,
                       .src = x,
                       .dst = x};
  fx_status status = fx_comm_issue(comm, &call);
  REQUIRE(status == FX_ERR_COMM, "lengths that differ gave %s", fx_status_name(status));
  REQUIRE(strstr(fx_error_text(), "rank 0 sends float32 x 5, rank 1 expects float32 x 4"), "%s",
          fx_error_text());
  return FX_OK;
}

static void mismatches_are_named(void) {
  run_world(3, mismatch_rank);
  run_world(2, mismatch_pair_rank);
}

static fx_status control_rank(fx_control *control, void *ctx) {
  (void)ctx;
  int size = control->size, rank = control->rank;
  for (int round = 0; round < 20; round++) {
    char mine[32], *all = NULL, want[256] = "";
    int64_t offsets[9];
    snprintf(mine, sizeof mine, "rank %d round %d", rank, round);
    int64_t bytes = (rank + round) % 3 ? (int64_t)strlen(mine) : 0; /* some send nothing */
    FX_TRY(fx_control_all_gather(control, mine, bytes, &all, offsets, 60000));
    for (int r = 0; r < size; r++) {
      REQUIRE(offsets[r] == (int64_t)strlen(want), "offset of rank %d", r);
      if ((r + round) % 3)
        snprintf(want + strlen(want), sizeof want - strlen(want), "rank %d round %d", r, round);
    }
    bool equal = strcmp(all, want) == 0;
    free(all);
    REQUIRE(equal, "round %d: expected \"%s\"", round, want);
  }
  int number = rank == 0 ? 42 : 0;
  FX_TRY(fx_control_broadcast(control, &number, sizeof number, 60000));
  REQUIRE(number == 42, "broadcast: expected 42, got %d", number);
  double most = 0;
  FX_TRY(fx_control_largest(control, -1.0 - rank, &most, 60000));
  REQUIRE(most == -1, "largest: expected -1, got %g", most);
  FX_TRY(fx_control_largest(control, rank == 0 ? NAN : 1, &most, 60000));
  REQUIRE(isnan(most), "largest: expected NaN, got %g", most);
  fx_status mine = rank == 1 || rank == 2 ? fx_error(FX_ERR_DATA, "file %d is missing", rank) : FX_OK;
  fx_status agreed = fx_control_agree_status(control, mine, 60000);
  REQUIRE(agreed == (size > 1 ? FX_ERR_DATA : FX_OK), "agreed on %s", fx_status_name(agreed));
  REQUIRE(size < 2 || strcmp(fx_error_text(), "rank 1: file 1 is missing") == 0, "%s", fx_error_text());
  return FX_OK;
}

static void control_channel(void) {
  for (int size = 1; size <= 5; size += 2) CHECK_OK(fx_local_run(size, control_rank, NULL));
}

static fx_status missing_rank(fx_control *control, void *ctx) {
  (void)ctx;
  if (control->rank == 2) return FX_OK;
  int64_t begin = fx_now_ms();
  fx_status status = fx_control_barrier(control, 1000);
  int64_t took = fx_now_ms() - begin;
  REQUIRE(status == FX_ERR_COMM, "a missing rank gave %s", fx_status_name(status));
  REQUIRE(strstr(fx_error_text(), "2 of 3 ranks answered within 1000 ms; missing: rank 2"), "%s",
          fx_error_text());
  REQUIRE(took >= 990 && took < 30000, "the deadline of 1000 ms took %d ms", (int)took);
  status = fx_control_barrier(control, 1000);
  REQUIRE(status == FX_ERR_COMM && strstr(fx_error_text(), "dead after"), "%s", fx_error_text());
  return FX_OK;
}

static void deadline(void) {
  CHECK_OK(fx_local_run(3, missing_rank, NULL));
}

/* Groups {0, 2}, {1, 3} and nobody for rank 4; then a wrong one. */
static fx_status split_rank(fx_control *control, void *ctx) {
  (void)ctx;
  int rank = control->rank, group[2] = {rank % 2, rank % 2 + 2};
  fx_comm *comm = NULL;
  FX_TRY(fx_control_split(control, "pair", 7, group, rank < 4 ? 2 : 0, &comm));
  REQUIRE((comm != NULL) == (rank < 4), "rank %d: wrong membership", rank);
  if (comm) {
    REQUIRE(comm->rank == rank / 2 && comm->size == 2 && comm->id == 7, "rank %d sits at %d", rank,
            comm->rank);
    fx_status status = battery_all(comm, 33);
    fx_comm_destroy(comm);
    if (status != FX_OK) return status;
  }
  comm = NULL;
  int wrong[2] = {0, rank == 0 ? 1 : 2};
  fx_status status = fx_control_split(control, "wrong", 8, wrong, rank < 3 ? 2 : 0, &comm);
  REQUIRE(status == FX_ERR_COMM && !comm, "a wrong group gave %s", fx_status_name(status));
  REQUIRE(strstr(fx_error_text(), "wrong"), "%s", fx_error_text());
  return fx_control_barrier(control, 60000);
}

static void splits(void) {
  CHECK_OK(fx_local_run(5, split_rank, NULL));
}

/* Ranks 0 and 2 wait in a barrier for rank 1, which fails: its failure is reported, theirs follow from it. */
static fx_status failing_rank(fx_comm *comm, fx_control *control) {
  (void)control;
  if (comm->rank == 1) return fx_error(FX_ERR_DATA, "the corpus is empty");
  return fx_comm_issue(comm, &(fx_comm_call){.kind = FX_BARRIER});
}

static fx_status failing_control(fx_control *control, void *ctx) {
  (void)ctx;
  if (control->rank == 1) return fx_error(FX_ERR_DATA, "the corpus is empty");
  return fx_control_barrier(control, 60000);
}

static void first_failure_is_reported(void) {
  comm_fn fn = failing_rank;
  int64_t begin = fx_now_ms();
  CHECK_STATUS(fx_local_run(3, with_world, &fn), FX_ERR_DATA);
  CHECK_STR(fx_error_text(), "rank 1: the corpus is empty");
  CHECK_STATUS(fx_local_run(3, failing_control, NULL), FX_ERR_DATA);
  CHECK_STR(fx_error_text(), "rank 1: the corpus is empty");
  CHECK(fx_now_ms() - begin < 30000);
}

/* A world inside each rank of another one: nothing is shared. */
static fx_status outer_rank(fx_comm *comm, fx_control *control) {
  comm_fn fn = battery_rank;
  (void)control;
  FX_TRY(fx_local_run(2, with_world, &fn));
  return battery_all(comm, 11);
}

static void worlds_are_independent(void) {
  run_world(3, outer_rank);
}

static const fx_test g_tests[] = {
    {"every kind, dtype and operation, 1 to 5 ranks", battery},
    {"the battery's numbers depend on the order of sums", order_matters},
    {"a NaN wins a maximum", nan_wins},
    {"bfloat16 is copied, not summed", no_bf16_sums},
    {"many calls, ring shifts", many_iterations},
    {"abort wakes every rank", abort_wakes_all},
    {"calls that differ are named", mismatches_are_named},
    {"control channel", control_channel},
    {"a missing rank is a deadline and a name", deadline},
    {"splits", splits},
    {"fx_local_run reports the first failure", first_failure_is_reported},
    {"worlds are independent", worlds_are_independent},
};
FX_TEST_MAIN("parallel/local", g_tests)
