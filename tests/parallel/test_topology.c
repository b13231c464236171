/* SPDX-License-Identifier: Apache-2.0 */
/* Topology strings, rank arithmetic and the communicators of every group, against brute force. */
#include <stdio.h>
#include <stdlib.h>

#include "parallel/comm/local/local.h"
#include "parallel/topology.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

static void parses(void) {
  static const struct {
    const char *text, *canonical;
  } rows[] = {
      {"tp:2 cp:2 dp:2", "tp:2 cp:2 dp:2"}, {"dp:4 tp:2", "tp:2 cp:1 dp:4"},  {"", "tp:1 cp:1 dp:1"},
      {"  cp:16\t", "tp:1 cp:16 dp:1"},     {"dp:1000", "tp:1 cp:1 dp:1000"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    fx_topology_shape shape = {0, 0, 0};
    char text[64];
    CHECK_OK(fx_topology_parse(rows[i].text, &shape));
    CHECK_STR(fx_topology_text(shape, text, sizeof text), rows[i].canonical);
  }
}

static void rejects(void) {
  static const struct {
    const char *text, *part;
  } rows[] = {
      {"tp:0", "number from 1"},         {"tp:", "number from 1"},        {"tp:2x", "number from 1"},
      {"tp:-1", "number from 1"},        {"pp:2", "none of tp:N"},        {"tp:2 tp:2", "given twice"},
      {"tp:1 tp:1", "given twice"},      {"2x2", "\"2x2\" is none of"},   {"tp:2,cp:2", "number from 1"},
      {"tp:99999999999", "number from"}, {"cp 2", "\"cp 2\" is none of"}, {"tp:2cp:2", "number from 1"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    fx_topology_shape shape = {7, 7, 7};
    CHECK_STATUS(fx_topology_parse(rows[i].text, &shape), FX_ERR_CONFIG);
    CHECK_HAS(fx_error_text(), rows[i].part);
    CHECK_INT(shape.tp, 7); /* outputs only on success */
  }
}

static void rank_arithmetic(void) {
  fx_topology_shape shape = {2, 3, 4};
  int expected = 0;
  for (int d = 0; d < shape.dp; d++)
    for (int c = 0; c < shape.cp; c++)
      for (int t = 0; t < shape.tp; t++, expected++) {
        int tp_rank, cp_rank, dp_rank;
        CHECK_INT(fx_topology_rank(shape, t, c, d), expected);
        fx_topology_coordinates(shape, expected, &tp_rank, &cp_rank, &dp_rank);
        CHECK(tp_rank == t && cp_rank == c && dp_rank == d);
      }
}

/* The world ranks of a communicator, by gathering them over it, are `want`. */
static fx_status check_members(fx_comm *comm, int world_rank, const int *want, int count, const char *name) {
  int64_t mine = world_rank, got[64] = {0};
  REQUIRE(comm && comm->size == count, "%s: expected %d members", name, count);
  REQUIRE(strcmp(comm->name, name) == 0, "expected the name %s, got %s", name, comm->name);
  REQUIRE(want[comm->rank] == world_rank, "%s: rank %d sits at %d", name, world_rank, comm->rank);
  FX_TRY(fx_comm_issue(
      comm, &(fx_comm_call){.kind = FX_ALL_GATHER, .dtype = FX_I64, .count = 1, .src = &mine, .dst = got}));
  for (int i = 0; i < count; i++)
    REQUIRE(got[i] == want[i], "%s member %d: expected rank %d, got %d", name, i, want[i], (int)got[i]);
  return FX_OK;
}

static fx_status check_groups(const fx_topology *t) {
  int world[64], tp[64], cp[64], dp[64], dp_cp[64], n = 0;
  for (int r = 0; r < t->size; r++) world[r] = r;
  for (int i = 0; i < t->tp; i++) tp[i] = i + t->tp * (t->cp_rank + t->cp * t->dp_rank);
  for (int i = 0; i < t->cp; i++) cp[i] = t->tp_rank + t->tp * (i + t->cp * t->dp_rank);
  for (int i = 0; i < t->dp; i++) dp[i] = t->tp_rank + t->tp * (t->cp_rank + t->cp * i);
  for (int d = 0; d < t->dp; d++)
    for (int c = 0; c < t->cp; c++) dp_cp[n++] = t->tp_rank + t->tp * (c + t->cp * d);
  FX_TRY(check_members(t->comm.world, t->rank, world, t->size, "world"));
  FX_TRY(check_members(t->comm.tp, t->rank, tp, t->tp, "tp"));
  FX_TRY(check_members(t->comm.cp, t->rank, cp, t->cp, "cp"));
  FX_TRY(check_members(t->comm.dp, t->rank, dp, t->dp, "dp"));
  FX_TRY(check_members(t->comm.dp_cp, t->rank, dp_cp, n, "dp_cp"));
  return FX_OK;
}

/* Ids: one a kind on all ranks of the job, different between kinds. */
static fx_status check_ids(const fx_topology *t) {
  int64_t ids[5] = {t->comm.world->id, t->comm.tp->id, t->comm.cp->id, t->comm.dp->id, t->comm.dp_cp->id};
  int64_t all[5 * 64];
  FX_TRY(fx_comm_issue(
      t->comm.world,
      &(fx_comm_call){.kind = FX_ALL_GATHER, .dtype = FX_I64, .count = 5, .src = ids, .dst = all}));
  for (int r = 0; r < t->size; r++)
    REQUIRE(memcmp(ids, &all[5 * (size_t)r], sizeof ids) == 0, "rank %d has other ids", r);
  for (int i = 0; i < 5; i++)
    for (int j = 0; j < i; j++) REQUIRE(ids[i] != ids[j], "two kinds share the id %d", (int)ids[i]);
  return FX_OK;
}

static fx_status shape_rank(fx_control *control, void *ctx) {
  const fx_topology_shape *shape = ctx;
  fx_topology *t = NULL;
  FX_TRY(fx_topology_create(control, shape->tp, shape->cp, &t));
  fx_status status = FX_OK;
  if (t->tp != shape->tp || t->cp != shape->cp || t->dp != shape->dp || t->rank != control->rank)
    status = fx_error(FX_ERR_INTERNAL, "sizes or rank are wrong");
  if (status == FX_OK) status = check_groups(t);
  if (status == FX_OK) status = check_ids(t);
  fx_topology_destroy(t);
  return status;
}

static void communicators(void) {
  static const char *const rows[] = {"tp:1",           "tp:3",      "dp:2",          "cp:4",
                                     "tp:2 cp:2 dp:2", "tp:2 dp:3", "tp:3 cp:2 dp:2"};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    fx_topology_shape shape;
    CHECK_OK(fx_topology_parse(rows[i], &shape));
    CHECK_OK(fx_local_run(shape.tp * shape.cp * shape.dp, shape_rank, &shape));
  }
}

static fx_status refuse_rank(fx_control *control, void *ctx) {
  (void)ctx;
  static const struct {
    int tp, cp;
    const char *part;
  } rows[] = {{4, 1, "parallel.tensor: 4 does not divide the 6 ranks"},
              {2, 2, "parallel.context: 2 does not divide the 3 ranks that parallel.tensor: 2 leaves"},
              {0, 1, "parallel.tensor: 0"},
              {12, 1, "parallel.tensor: 12"},
              {1, -1, "parallel.context: -1"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    fx_topology *t = NULL;
    fx_status status = fx_topology_create(control, rows[i].tp, rows[i].cp, &t);
    REQUIRE(status == FX_ERR_CONFIG && !t, "tp %d cp %d was accepted", rows[i].tp, rows[i].cp);
    REQUIRE(strstr(fx_error_text(), rows[i].part), "expected \"%s\" within \"%s\"", rows[i].part,
            fx_error_text());
  }
  return FX_OK;
}

static void does_not_divide(void) {
  CHECK_OK(fx_local_run(6, refuse_rank, NULL));
}

static const fx_test g_tests[] = {
    {"strings are read in any order and printed canonically", parses},
    {"bad strings get a sentence", rejects},
    {"tp is innermost", rank_arithmetic},
    {"groups, order and ids of the communicators", communicators},
    {"sizes that do not divide name the key", does_not_divide},
};
FX_TEST_MAIN("parallel/topology", g_tests)
