/* SPDX-License-Identifier: Apache-2.0 */
/* Driver under mpirun: the battery over MPI communicators, and what happens when ranks fail. First argument:
 * battery   every kind, dtype and operation, from one element to several segments of the staging; groups;
 * main and service thread at once abort     rank 0 gives up a communicator that the others wait in: all of
 * them get FX_ERR_COMM missing   the last rank stays away from a control call: the others end by their
 * deadline, with exit code 4 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "parallel/comm/mpi/bootstrap.h"
#include "parallel/topology.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

/* Counts around the short-message limit and the segment (512 KiB times ranks): 4 segments at 2 ranks. */
static fx_status long_messages(fx_comm *comm) {
  static const int64_t counts[] = {2047, 2048, 2049, 131072, 262144 + 1, 1000003};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    for (int in_place = 0; in_place < 2; in_place++) {
      int64_t n = counts[i];
      FX_TRY(battery_run(comm, (battery_case){FX_ALL_REDUCE, FX_F32, FX_REDUCE_SUM, in_place, n, 0}));
      FX_TRY(battery_run(comm, (battery_case){FX_ALL_REDUCE, FX_F64, FX_REDUCE_MAX, in_place, n, 0}));
      FX_TRY(battery_run(comm, (battery_case){FX_REDUCE_SCATTER, FX_F32, FX_REDUCE_SUM, in_place, n, 0}));
      FX_TRY(battery_run(comm, (battery_case){FX_REDUCE_SCATTER, FX_I64, FX_REDUCE_SUM, in_place, n, 0}));
      FX_TRY(battery_run(comm, (battery_case){FX_ALL_GATHER, FX_BF16, FX_REDUCE_SUM, in_place, n, 0}));
      FX_TRY(battery_run(comm, (battery_case){FX_BROADCAST, FX_F32, FX_REDUCE_SUM, false, n, (int)i}));
      FX_TRY(battery_run(comm, (battery_case){FX_SEND_RECV, FX_F32, FX_REDUCE_SUM, false, n, 1}));
      if (comm->size > 1)
        FX_TRY(battery_run(comm, (battery_case){FX_SEND, FX_F32, FX_REDUCE_SUM, false, n, 0}));
    }
  return FX_OK;
}

/* Collectives on a thread of their own, as the service thread runs them. */
typedef struct service {
  fx_comm *comm;
  fx_status status;
  char text[2048];
} service;

static void *service_main(void *arg) {
  service *s = arg;
  for (int i = 0; i < 200 && s->status == FX_OK; i++)
    s->status =
        battery_run(s->comm, (battery_case){FX_ALL_REDUCE, FX_F32, FX_REDUCE_SUM, i & 1, 1 + i * 37, 0});
  snprintf(s->text, sizeof s->text, "%s", fx_error_text());
  return NULL;
}

static fx_status two_threads(fx_control *control, fx_comm *comm) {
  service s = {.comm = comm};
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, service_main, &s) == 0, "no thread");
  fx_status status = FX_OK;
  for (int i = 0; i < 100 && status == FX_OK; i++) {
    char *all = NULL;
    int64_t offsets[65], bytes = (control->rank + i) % 3 * 1000;
    char mine[2000];
    memset(mine, 'a' + control->rank, sizeof mine);
    status = fx_control_all_gather(control, mine, bytes, &all, offsets, 20000);
    for (int r = 0; status == FX_OK && r < control->size; r++) {
      int64_t length = (r + i) % 3 * 1000;
      if (offsets[r + 1] - offsets[r] != length || (length && all[offsets[r + 1] - 1] != 'a' + r))
        status = fx_error(FX_ERR_INTERNAL, "round %d: message of rank %d is wrong", i, r);
    }
    free(all);
  }
  pthread_join(thread, NULL);
  return s.status == FX_OK ? status : fx_error(s.status, "%s", s.text);
}

static fx_status run_battery(fx_control *control) {
  static const int64_t counts[] = {0, 1, 3, 5, 1023, 10007};
  fx_topology *t = NULL;
  FX_TRY(fx_topology_create(control, control->size % 2 ? 1 : 2, 1, &t));
  fx_comm *comms[] = {t->comm.world, t->comm.tp, t->comm.dp, t->comm.dp_cp};
  fx_status status = FX_OK;
  for (int c = 0; c < 4 && status == FX_OK; c++) {
    for (size_t i = 0; i < sizeof counts / sizeof *counts && status == FX_OK; i++)
      status = battery_all(comms[c], counts[i]);
    if (status == FX_OK) status = battery_known_order(comms[c]);
  }
  if (status == FX_OK) status = long_messages(t->comm.world);
  if (status == FX_OK) status = two_threads(control, t->comm.world);
  if (status == FX_OK) status = fx_control_agree_status(control, FX_OK, 20000);
  fx_topology_destroy(t);
  return status;
}

static fx_status run_abort(fx_control *control) {
  fx_topology *t = NULL;
  int64_t x = 0;
  FX_TRY(fx_topology_create(control, 1, 1, &t));
  if (control->rank == 0) {
    fx_sleep_ms(200);
    fx_comm_abort(t->comm.world);
  }
  fx_comm_call call = {.kind = control->rank == 1 ? FX_RECV : FX_ALL_REDUCE,
                       .dtype = FX_I64,
                       .peer = 0,
                       .count = 1,
                       .src = &x,
                       .dst = &x};
  for (int i = 0; i < 2; i++) {
    fx_status status = fx_comm_issue(t->comm.world, &call);
    REQUIRE(status == FX_ERR_COMM, "an aborted communicator gave %s", fx_status_name(status));
    REQUIRE(strstr(fx_error_text(), "communicator world#0"), "%s", fx_error_text());
  }
  FX_TRY(fx_control_barrier(control, 20000)); /* the control channel lives on */
  fx_topology_destroy(t);
  return FX_OK;
}

static fx_status run_missing(fx_control *control) {
  FX_TRY(fx_control_barrier(control, 60000)); /* the others' two seconds begin together */
  if (control->rank == control->size - 1) fx_sleep_ms(60000);
  return fx_control_barrier(control, 2000);
}

static int finish(fx_control *control, fx_status status) {
  if (status != FX_OK) {
    fprintf(stderr, "flexion: rank %d: %s\n", control->rank, fx_error_text());
    fflush(stderr);
    fx_mpi_abort(fx_status_exit_code(status));
  }
  char version[256];
  if (control->rank == 0)
    printf("%d ranks passed; %s\n", control->size, fx_mpi_version(version, sizeof version));
  fx_control_destroy(control);
  fx_mpi_finalize();
  return 0;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    fx_status (*run)(fx_control *control);
  } modes[] = {{"battery", run_battery}, {"abort", run_abort}, {"missing", run_missing}};
  fx_control *control = NULL;
  if (fx_mpi_bootstrap(&argc, &argv, &control) != FX_OK) {
    fprintf(stderr, "flexion: %s\n", fx_error_text());
    return 4;
  }
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    if (argc == 2 && strcmp(argv[1], modes[i].name) == 0) return finish(control, modes[i].run(control));
  return finish(control, fx_error(FX_ERR_USAGE, "give one of: battery abort missing"));
}
