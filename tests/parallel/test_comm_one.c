/* SPDX-License-Identifier: Apache-2.0 */
/* One rank with a GPU, without a GPU here: a driver that copies at once and remembers the stream. NCCL is not
 * opened for groups of one rank, and their collectives are copies on the stream of the call. */
#include <dlfcn.h>
#include <string.h>

#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "parallel/comm/cuda/comm_nccl.h"
#include "parallel/comm/local/local.h"
#include "parallel/topology.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

enum { COUNT = 37, GUARD = 3 };

/* ---- the GPU ---- */

static _Thread_local void *t_stream; /* of the latest copy */
static _Thread_local int t_copies;

static int fake_copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  t_stream = stream;
  t_copies++;
  return 0;
}

static const fx_cuda_driver g_driver = {.copy = fake_copy};
static const fx_cuda_context g_context = {.driver = &g_driver};
static const fx_device_vtable g_vtable = {.name = "fake"};

static fx_device fake_device(void) {
  return (fx_device){.vtable = &g_vtable, .backend = FX_BACKEND_CUDA, .gemm = &g_context};
}

/* Whatever folder it came from. */
static bool nccl_is_open(void) {
  return dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD) != NULL;
}

/* ---- tests ---- */

static fx_status topology_rank(fx_control *control, void *ctx) {
  fx_device device = fake_device();
  fx_topology *topology = NULL;
  (void)ctx;
  FX_TRY(fx_topology_create_on(control, &device, 1, 1, &topology));
  const fx_comm *comms[] = {topology->comm.world, topology->comm.tp, topology->comm.cp, topology->comm.dp,
                            topology->comm.dp_cp};
  for (size_t i = 0; i < sizeof comms / sizeof comms[0]; i++)
    CHECK(comms[i]->size == 1 && comms[i]->rank == 0 && comms[i]->vtable->on_device);
  CHECK_STR(topology->comm.dp->name, "dp");
  CHECK_INT(topology->comm.dp->id, comms[3]->id);
  fx_topology_destroy(topology);
  return FX_OK;
}

static void a_job_of_one(void) {
  CHECK_OK(fx_local_run(1, topology_rank, NULL));
  CHECK(!nccl_is_open());
}

static fx_status alone_rank(fx_control *control, void *ctx) {
  fx_device device = fake_device();
  fx_comm *comm = NULL;
  bool joins = control->rank != 1; /* one of them joins no group */
  (void)ctx;
  FX_TRY(fx_nccl_split(control, &device, "tp", 4, &control->rank, joins ? 1 : 0, &comm));
  REQUIRE((comm != NULL) == joins, "rank %d: a group that it did not ask for, or none", control->rank);
  REQUIRE(!comm || (comm->size == 1 && comm->rank == 0 && comm->id == 4), "rank %d: not its group",
          control->rank);
  fx_comm_destroy(comm);
  return FX_OK;
}

static void groups_of_one(void) {
  CHECK_OK(fx_local_run(3, alone_rank, NULL));
  CHECK(!nccl_is_open());
}

/* One call on memory with guards behind it, moved or in place; `moves`: it has a source. */
static void issue(fx_comm *comm, fx_collective kind, bool in_place, bool moves) {
  float src[COUNT + GUARD], dst[COUNT + GUARD];
  int stream = 0;
  for (int i = 0; i < COUNT + GUARD; i++) src[i] = (float)(i + 1), dst[i] = -1;
  fx_comm_call call = {.kind = kind,
                       .dtype = FX_F32,
                       .count = COUNT,
                       .src = src,
                       .dst = in_place ? src : dst,
                       .stream = &stream};
  bool copied = moves && !in_place;
  t_stream = NULL;
  t_copies = 0;
  CHECK_OK(fx_comm_open(comm));
  CHECK_OK(fx_comm_bind(comm, &call));
  CHECK_OK(fx_comm_issue(comm, &call));
  CHECK_INT(t_copies, copied);
  CHECK_MSG(t_stream == (copied ? &stream : NULL), "%s: on another stream", fx_collective_name(kind));
  for (int i = 0; i < COUNT + GUARD; i++) {
    float want = copied && i < COUNT ? src[i] : -1;
    CHECK_MSG(dst[i] == want && src[i] == (float)(i + 1), "%s%s, element %d: expected %g, got %g",
              fx_collective_name(kind), in_place ? " in place" : "", i, (double)want, (double)dst[i]);
  }
}

static fx_status collectives_rank(fx_control *control, void *ctx) {
  static const fx_collective moving[] = {FX_ALL_REDUCE, FX_REDUCE_SCATTER, FX_ALL_GATHER, FX_SEND_RECV};
  fx_device device = fake_device();
  fx_comm *comm = NULL;
  (void)ctx;
  FX_TRY(fx_nccl_split(control, &device, "dp", 3, &control->rank, 1, &comm));
  for (size_t i = 0; i < sizeof moving / sizeof moving[0]; i++) issue(comm, moving[i], false, true);
  for (size_t i = 0; i < 3; i++) issue(comm, moving[i], true, true);
  issue(comm, FX_BROADCAST, false, false);
  issue(comm, FX_BARRIER, false, false);
  for (int i = 0; i < 2; i++) {
    fx_comm_call call = {.kind = i ? FX_SEND : FX_RECV, .dtype = FX_F32, .count = 1};
    CHECK_STATUS(fx_comm_issue(comm, &call), FX_ERR_COMM);
    CHECK_HAS(fx_error_text(), "communicator dp of one rank has no partner");
  }
  CHECK_OK(fx_comm_poll(comm));
  fx_comm_abort(comm);
  fx_comm_destroy(comm);
  return FX_OK;
}

static void collectives(void) {
  CHECK_OK(fx_local_run(1, collectives_rank, NULL));
  CHECK(!nccl_is_open());
}

static const fx_test g_tests[] = {{"a job of one rank opens no NCCL", a_job_of_one},
                                  {"nor do groups of one rank in a larger job", groups_of_one},
                                  {"collectives of one rank are copies on the stream", collectives}};
FX_TEST_MAIN("parallel/comm_one", g_tests)
