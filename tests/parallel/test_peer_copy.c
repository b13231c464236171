/* SPDX-License-Identifier: Apache-2.0 */
/* Exchange by copy engines without a GPU: a driver whose streams are the calling threads, whose memory is the
 * host's and whose handles are addresses. What is tested is who tells whom what and when: a source is
 * overwritten as soon as a call is over, ranks come late, words must be 0 again; and that all ranks do
 * without where one cannot. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "parallel/comm/cuda/peer_copy.h"
#include "parallel/comm/local/local.h"
#include "tests/harness.h"
#include "tests/parallel/battery.h"

enum { MOST_RANKS = 4, MOST_ALLOCATIONS = 64, PATIENCE_MS = 20000, FAILED = 999 };
enum { NOBODY = -1, EVERYBODY = -2 }; /* instead of a rank */

/* ---- the driver ---- */

static struct {
  pthread_mutex_t mutex;
  struct {
    uint64_t base;
    size_t bytes;
  } memory[MOST_ALLOCATIONS];
  int open; /* mappings */
} g_fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* What this rank's driver refuses. */
static _Thread_local bool t_no_open, t_no_handle;

static int fake_range(uint64_t *base, size_t *bytes, uint64_t address) {
  int result = FAILED;
  pthread_mutex_lock(&g_fake.mutex);
  for (int i = 0; i < MOST_ALLOCATIONS; i++)
    if (address >= g_fake.memory[i].base && address < g_fake.memory[i].base + g_fake.memory[i].bytes) {
      *base = g_fake.memory[i].base, *bytes = g_fake.memory[i].bytes;
      result = 0;
    }
  pthread_mutex_unlock(&g_fake.mutex);
  return result;
}

static int fake_ipc_get(fx_cuda_ipc_handle *handle, uint64_t address) {
  if (t_no_handle) return FAILED;
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &address, sizeof address);
  return 0;
}

static int fake_ipc_open(uint64_t *address, fx_cuda_ipc_handle handle, unsigned flags) {
  if (t_no_open || flags != FX_CU_IPC_LAZY_PEER_ACCESS) return FAILED;
  memcpy(address, handle.bytes, sizeof *address);
  __atomic_add_fetch(&g_fake.open, 1, __ATOMIC_RELAXED);
  return 0;
}

static int fake_ipc_close(uint64_t address) {
  __atomic_sub_fetch(&g_fake.open, 1, __ATOMIC_RELAXED);
  return address ? 0 : FAILED;
}

static int fake_copy(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  (void)stream;
  memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
  return 0;
}

static int fake_words(void *stream, unsigned count, fx_cuda_word *words, unsigned flags) {
  int64_t until = fx_now_ms() + PATIENCE_MS;
  if (stream || flags) return FAILED;
  for (unsigned i = 0; i < count; i++) {
    uint32_t *word = (uint32_t *)(uintptr_t)words[i].address, value = (uint32_t)words[i].value;
    if (words[i].operation == FX_CU_WORD_WRITE) {
      __atomic_store_n(word, value, __ATOMIC_RELEASE);
      continue;
    }
    while ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      if (fx_now_ms() > until) return FAILED;
      sched_yield();
    }
  }
  return 0;
}

static int fake_text(int result, const char **text) {
  *text = result ? "fake" : "none";
  return 0;
}

static const fx_cuda_driver g_driver = {.error_name = fake_text,
                                        .error_text = fake_text,
                                        .copy = fake_copy,
                                        .memory_range = fake_range,
                                        .ipc_get = fake_ipc_get,
                                        .ipc_open = fake_ipc_open,
                                        .ipc_close = fake_ipc_close,
                                        .stream_words = fake_words};

/* ---- the device ---- */

static fx_status fake_alloc(fx_device *device, size_t bytes, void **out) {
  (void)device;
  *out = NULL;
  pthread_mutex_lock(&g_fake.mutex);
  for (int i = 0; i < MOST_ALLOCATIONS && !*out; i++) {
    if (g_fake.memory[i].base) continue;
    *out = calloc(1, bytes);
    g_fake.memory[i].base = (uint64_t)(uintptr_t)*out, g_fake.memory[i].bytes = bytes;
  }
  pthread_mutex_unlock(&g_fake.mutex);
  return *out ? FX_OK : fx_error(FX_ERR_MEMORY, "the fake device is full");
}

static void fake_release(fx_device *device, void *memory) {
  (void)device;
  pthread_mutex_lock(&g_fake.mutex);
  for (int i = 0; i < MOST_ALLOCATIONS; i++)
    if (g_fake.memory[i].base == (uint64_t)(uintptr_t)memory)
      g_fake.memory[i].base = 0, g_fake.memory[i].bytes = 0;
  pthread_mutex_unlock(&g_fake.mutex);
  free(memory);
}

static fx_status fake_fill(fx_device *device, fx_lane lane, void *memory, int byte, size_t bytes) {
  (void)device, (void)lane;
  memset(memory, byte, bytes);
  return FX_OK;
}

static fx_status fake_sync(fx_device *device) {
  (void)device;
  return FX_OK;
}

static const fx_device_vtable g_vtable = {
    .name = "fake", .alloc = fake_alloc, .release = fake_release, .fill = fake_fill, .sync = fake_sync};

/* ---- ranks ---- */

typedef struct rank_env {
  fx_comm *comm; /* by which the group agrees */
  fx_device device;
  fx_cuda_context context;
  fx_peer_copy *peers;
  char *memory; /* of the device: [0, HALF) sources, then destinations */
} rank_env;

enum { HALF = 1 << 16 };

typedef fx_status (*env_fn)(rank_env *env);

typedef struct world {
  env_fn fn;
  bool one_process; /* all ranks say that they are the same one */
  int no_open;      /* rank that opens no handle of another's memory */
} world;

static fx_status gather(void *comm, const void *mine, size_t bytes, void *all) {
  fx_comm_call call = {
      .kind = FX_ALL_GATHER, .dtype = FX_U8, .count = (int64_t)bytes, .src = mine, .dst = all};
  return fx_comm_issue(comm, &call);
}

static fx_status with_env(fx_control *control, void *ctx) {
  const world *w = ctx;
  rank_env env = {.context = {.driver = &g_driver}};
  int ranks[MOST_RANKS];
  void *memory = NULL;
  for (int r = 0; r < control->size; r++) ranks[r] = r;
  FX_TRY(fx_control_split(control, "dp", 3, ranks, control->size, &env.comm));
  env.device = (fx_device){.vtable = &g_vtable, .backend = FX_BACKEND_CUDA, .gemm = &env.context};
  t_no_open = w->no_open == EVERYBODY || control->rank == w->no_open;
  t_no_handle = false;
  fx_peer_group group = {&env.device, control->rank, control->size, w->one_process ? 1 : control->rank,
                         gather,      env.comm};
  fx_status status = fx_device_alloc(&env.device, 2 * HALF, &memory);
  env.memory = memory;
  if (status == FX_OK) status = fx_peer_copy_create(&group, &env.peers);
  if (status == FX_OK) status = w->fn(&env);
  if (status == FX_OK) status = fx_control_barrier(control, PATIENCE_MS); /* nobody is read any more */
  fx_peer_copy_destroy(env.peers);
  fx_device_release(&env.device, memory);
  fx_comm_destroy(env.comm);
  return status;
}

static void run_env(int size, world w) {
  CHECK_MSG(fx_local_run(size, with_env, &w) == FX_OK, "%d ranks: %s", size, fx_error_text());
  CHECK_INT(g_fake.open, 0);
  for (int i = 0; i < MOST_ALLOCATIONS; i++) CHECK(g_fake.memory[i].base == 0);
}

/* ---- calls ---- */

typedef enum form { GATHER, GATHER_IN_PLACE, SHIFT, SHIFT_BACK, FORMS } form;

enum { COUNT = 1001 }; /* of floats; several calls have buffers of their own, not aligned to anything */

static fx_comm_call call_of(const rank_env *env, form f) {
  int rank = env->comm->rank, size = env->comm->size, step = f == SHIFT_BACK ? size - 1 : 1;
  float *src = (float *)(void *)env->memory + (size_t)f * COUNT,
        *dst = (float *)(void *)(env->memory + HALF) + (size_t)f * COUNT * MOST_RANKS / FORMS;
  fx_comm_call call = {.kind = f <= GATHER_IN_PLACE ? FX_ALL_GATHER : FX_SEND_RECV,
                       .dtype = FX_F32,
                       .peer = (rank + step) % size,
                       .peer_from = (rank + size - step) % size,
                       .count = COUNT / FORMS,
                       .src = src,
                       .dst = dst};
  if (f == GATHER_IN_PLACE) call.src = dst + rank * call.count;
  return call;
}

static float value_of(int rank, int round, int64_t i) {
  return (float)(rank * 100000 + round * 1000 + (int)i);
}

static void write_source(const fx_comm_call *call, int rank, int round) {
  for (int64_t i = 0; i < call->count; i++) ((float *)(uintptr_t)call->src)[i] = value_of(rank, round, i);
}

static fx_status check_result(const rank_env *env, const fx_comm_call *call, int round) {
  const float *got = call->dst;
  bool gathers = call->kind == FX_ALL_GATHER;
  for (int64_t i = 0; i < call->count * (gathers ? env->comm->size : 1); i++) {
    int from = gathers ? (int)(i / call->count) : call->peer_from;
    float want = value_of(from, round, i % call->count);
    REQUIRE(got[i] == want, "%s, round %d, element %lld: expected %g, got %g", fx_collective_name(call->kind),
            round, (long long)i, (double)want, (double)got[i]);
  }
  return FX_OK;
}

static fx_status exchange_rank(rank_env *env) {
  enum { ROUNDS = 60 };
  int rank = env->comm->rank;
  fx_comm_call call[FORMS];
  REQUIRE(env->peers != NULL, "the ranks do not reach each other");
  for (int f = 0; f < FORMS; f++) {
    call[f] = call_of(env, (form)f);
    FX_TRY(fx_peer_copy_bind(env->peers, &call[f]));
    REQUIRE(call[f].ticket > 0, "call %d got no ticket", f);
  }
  for (int round = 0; round < ROUNDS; round++)
    for (int f = 0; f < FORMS; f++) {
      write_source(&call[f], rank, round);
      if ((round + f + rank) % 7 == 0) nanosleep(&(struct timespec){0, 200000}, NULL);
      FX_TRY(fx_peer_copy_issue(env->peers, &call[f]));
      FX_TRY(check_result(env, &call[f], round));
      if (f != GATHER_IN_PLACE) write_source(&call[f], rank, -1); /* whoever has not read yet reads this */
    }
  return FX_OK;
}

static void exchanges(void) {
  setenv("FLEXION_PEER_COPIES", "1", 1);
  for (int size = 2; size <= MOST_RANKS; size++) run_env(size, (world){exchange_rank, false, NOBODY});
  unsetenv("FLEXION_PEER_COPIES");
}

/* ---- without ---- */

static fx_status without_rank(rank_env *env) {
  REQUIRE(env->peers == NULL, "rank %d would read what it cannot", env->comm->rank);
  return FX_OK;
}

/* What is not for copy engines, and a buffer that one rank cannot name. */
static fx_status chosen_rank(rank_env *env) {
  enum { LEAST = 1000 }; /* bytes, of a call's count */
  fx_comm_call call = call_of(env, SHIFT);
  REQUIRE(env->peers != NULL, "the ranks do not reach each other");
  call.count = LEAST / 4 - 1;
  FX_TRY(fx_peer_copy_bind(env->peers, &call));
  REQUIRE(call.ticket == 0, "%lld bytes are too few", (long long)call.count * 4);
  call.count++;
  FX_TRY(fx_peer_copy_bind(env->peers, &call));
  REQUIRE(call.ticket == 1, "%d bytes are enough", LEAST);
  const fx_collective others[] = {FX_ALL_REDUCE, FX_BROADCAST, FX_REDUCE_SCATTER};
  for (int i = 0; i < 3; i++) {
    fx_comm_call other = {.kind = others[i], .dtype = FX_F32, .count = LEAST, .src = call.src};
    FX_TRY(fx_peer_copy_bind(env->peers, &other)); /* reduce_scatter: of two ranks only, here are three */
    REQUIRE(other.ticket == 0, "%s has a ticket", fx_collective_name(others[i]));
  }
  t_no_handle = env->comm->rank == 1;
  call.ticket = 0;
  FX_TRY(fx_peer_copy_bind(env->peers, &call));
  REQUIRE(call.ticket == 0, "rank %d relies on a buffer without a handle", env->comm->rank);
  return FX_OK;
}

/* A buffer that one rank cannot open, after it has opened all words. */
static fx_status unopened_rank(rank_env *env) {
  fx_comm_call call = call_of(env, GATHER);
  void *memory = NULL;
  REQUIRE(env->peers != NULL, "the ranks do not reach each other");
  call.count = HALF / (int64_t)sizeof(float);
  FX_TRY(fx_device_alloc(&env->device, HALF, &memory));
  call.src = memory;
  t_no_open = env->comm->rank == 2;
  fx_status status = fx_peer_copy_bind(env->peers, &call);
  fx_device_release(&env->device, memory);
  FX_TRY(status);
  REQUIRE(call.ticket == 0, "rank %d relies on a buffer that rank 2 cannot open", env->comm->rank);
  return FX_OK;
}

static void refusals(void) {
  run_env(3, (world){without_rank, true, NOBODY});
  run_env(3, (world){without_rank, false, 2});
  run_env(3, (world){without_rank, false, EVERYBODY}); /* each is kept from the others' GPUs */
  setenv("FLEXION_PEER_COPIES", "off", 1);
  run_env(2, (world){without_rank, false, NOBODY});
  setenv("FLEXION_PEER_COPIES", "1000", 1);
  run_env(3, (world){chosen_rank, false, NOBODY});
  run_env(3, (world){unopened_rank, false, NOBODY});
  setenv("NCCL_P2P_DISABLE", "1", 1);
  run_env(2, (world){without_rank, false, NOBODY});
  unsetenv("NCCL_P2P_DISABLE");
  setenv("FLEXION_PEER_COPIES", "4k", 1);
  world w = {without_rank, false, NOBODY};
  CHECK_STATUS(fx_local_run(2, with_env, &w), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "FLEXION_PEER_COPIES is \"4k\"");
  unsetenv("FLEXION_PEER_COPIES");
}

static const fx_test g_tests[] = {{"gathers and shifts, late ranks, sources overwritten", exchanges},
                                  {"all do without where one cannot", refusals}};
FX_TEST_MAIN("parallel/peer_copy", g_tests)
