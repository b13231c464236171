/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/comm/cuda/peer_copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

enum {
  LEAST_BYTES = 512 << 10 /* unless FLEXION_PEER_COPIES says so */,
  STAGING_BYTES = 64 << 20,
  MOST_RANKS = 16
};

/* Words of this rank that the others write: one a rank and meaning. */
enum { READY, DONE, MEANINGS };

/* Where a buffer of another process lies. */
typedef struct place {
  fx_cuda_ipc_handle handle; /* of the allocation around it */
  uint64_t offset;
  uint64_t host;
  int64_t process, least;
  int32_t able;
} place;
_Static_assert(sizeof(place) <= FX_PEER_RECORD, "a record holds a place");

typedef struct mapping {
  fx_cuda_ipc_handle handle;
  uint64_t address;
} mapping;

typedef struct bound_call {
  fx_comm_call call;
  uint64_t from[MOST_RANKS]; /* the others' src */
} bound_call;

struct fx_peer_copy {
  fx_peer_group group;
  const fx_cuda_driver *driver;
  uint64_t host;                 /* its number */
  int64_t least;                 /* bytes of a call; INT64_MAX: this rank takes none */
  uint32_t *words;               /* [MEANINGS][size] */
  uint64_t of_other[MOST_RANKS]; /* their words */
  void *staging;                 /* STAGING_BYTES, from the first reduce_scatter on */
  mapping *mappings;
  bound_call *calls; /* ticket - 1 */
  int64_t num_mappings, mappings_capacity, num_calls, calls_capacity;
};

static uint64_t address_of(const void *memory) {
  return (uint64_t)(uintptr_t)memory;
}

/* ---- places of other processes ---- */

/* The same in all processes of one running host. */
static uint64_t host_number(void) {
  char text[256] = "";
  FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (boot && !fgets(text, 64, boot)) text[0] = '\0';
  if (boot) fclose(boot);
  size_t used = strlen(text);
  if (gethostname(text + used, sizeof text - used - 1) != 0) text[used] = '\0';
  return fx_hash64_text(text);
}

static fx_status choose_least(const fx_cuda_driver *driver, int64_t *least) {
  const char *own = getenv("FLEXION_PEER_COPIES"), *nccl = getenv("NCCL_P2P_DISABLE");
  bool off = (own && strcmp(own, "off") == 0) || (nccl && strcmp(nccl, "1") == 0), able;
  int end = 0;
  *least = LEAST_BYTES;
  if (own && *own && !off && (sscanf(own, "%18" SCNd64 "%n", least, &end) != 1 || own[end] || *least < 1))
    return fx_error(FX_ERR_CONFIG,
                    "FLEXION_PEER_COPIES is \"%.32s\"; expected off, or from how many bytes on copy engines "
                    "move what GPUs exchange, or unset it",
                    own);
  able = driver->memory_range && driver->ipc_get && driver->ipc_open && driver->ipc_close &&
         driver->stream_words;
  if (off || !able) *least = INT64_MAX;
  return FX_OK;
}

/* able 0: it cannot be named. */
static place place_of(const fx_peer_copy *p, const void *memory) {
  place out;
  uint64_t base = 0;
  size_t bytes = 0;
  memset(&out, 0, sizeof out);
  out.host = p->host;
  out.process = p->group.process;
  out.least = p->least;
  out.able = p->least < INT64_MAX && p->driver->memory_range(&base, &bytes, address_of(memory)) == 0 &&
             p->driver->ipc_get(&out.handle, base) == 0;
  out.offset = address_of(memory) - base;
  return out;
}

/* The address here of another process's buffer; 0: it cannot be reached. */
static uint64_t reach(fx_peer_copy *p, const place *from) {
  uint64_t address = 0;
  for (int64_t i = 0; i < p->num_mappings; i++)
    if (memcmp(&p->mappings[i].handle, &from->handle, sizeof from->handle) == 0)
      return p->mappings[i].address + from->offset;
  if (fx_grow(&p->mappings, &p->mappings_capacity, p->num_mappings + 1, sizeof *p->mappings) != FX_OK ||
      p->driver->ipc_open(&address, from->handle, FX_CU_IPC_LAZY_PEER_ACCESS) != 0)
    return 0;
  p->mappings[p->num_mappings++] = (mapping){from->handle, address};
  return address + from->offset;
}

/* Where every other rank's buffer is for this one. *all: every rank reaches every other. */
static fx_status find_others(fx_peer_copy *p, const void *memory, uint64_t *of_other, bool *all) {
  place mine = place_of(p, memory), theirs[MOST_RANKS];
  int32_t able = mine.able, everybody[MOST_RANKS];
  FX_TRY(p->group.gather(p->group.comm, &mine, sizeof mine, theirs));
  for (int r = 0; r < p->group.size; r++) {
    if (r == p->group.rank) continue;
    able = able && theirs[r].able && theirs[r].least == mine.least && theirs[r].host == mine.host &&
           theirs[r].process != mine.process;
    of_other[r] = able ? reach(p, &theirs[r]) : 0;
    able = able && of_other[r] != 0;
  }
  FX_TRY(p->group.gather(p->group.comm, &able, sizeof able, everybody));
  *all = true;
  for (int r = 0; r < p->group.size; r++) *all = *all && everybody[r];
  return FX_OK;
}

static fx_status make_words(fx_peer_copy *p, bool *all) {
  size_t bytes = (size_t)(MEANINGS * p->group.size) * sizeof *p->words;
  FX_TRY(fx_device_alloc(p->group.device, bytes, (void **)&p->words));
  FX_TRY(fx_device_fill(p->group.device, FX_LANE_COMPUTE, p->words, 0, bytes));
  FX_TRY(fx_device_sync(p->group.device)); /* before another rank's first write */
  return find_others(p, p->words, p->of_other, all);
}

fx_status fx_peer_copy_create(const fx_peer_group *group, fx_peer_copy **out) {
  fx_peer_copy *p = NULL;
  bool all = false;
  *out = NULL;
  if (group->size > MOST_RANKS) return FX_OK;
  FX_TRY(fx_calloc(&p, 1, sizeof *p));
  p->group = *group;
  p->driver = ((const fx_cuda_context *)group->device->gemm)->driver;
  p->host = host_number();
  fx_status chosen = choose_least(p->driver, &p->least);
  if (chosen != FX_OK) p->least = INT64_MAX; /* the others are told all the same */
  fx_status status = make_words(p, &all);
  if (status == FX_OK) status = chosen;
  if (status == FX_OK && all) {
    *out = p;
    return FX_OK;
  }
  fx_peer_copy_destroy(p);
  return status;
}

void fx_peer_copy_destroy(fx_peer_copy *p) {
  if (!p) return;
  for (int64_t i = 0; i < p->num_mappings; i++) p->driver->ipc_close(p->mappings[i].address);
  fx_device_release(p->group.device, p->staging);
  fx_device_release(p->group.device, p->words);
  free(p->mappings);
  free(p->calls);
  free(p);
}

/* ---- calls ---- */

static size_t bytes_of(const fx_comm_call *call) {
  return (size_t)call->count * fx_dtype_bytes(call->dtype);
}

static bool takes(const fx_peer_copy *p, const fx_comm_call *call) {
  bool adds = call->reduce == FX_REDUCE_SUM && (call->dtype == FX_F32 || call->dtype == FX_BF16);
  if ((int64_t)bytes_of(call) < p->least) return false;
  return call->kind == FX_ALL_GATHER || call->kind == FX_SEND_RECV ||
         (call->kind == FX_REDUCE_SCATTER && p->group.size == 2 && adds);
}

fx_status fx_peer_copy_bind(fx_peer_copy *p, fx_comm_call *call) {
  bound_call bound = {.call = *call};
  bool all = false;
  if (!takes(p, call)) return FX_OK;
  FX_TRY(find_others(p, call->src, bound.from, &all));
  if (!all) return FX_OK;
  if (call->kind == FX_REDUCE_SCATTER && !p->staging)
    FX_TRY(fx_device_alloc(p->group.device, STAGING_BYTES, &p->staging));
  FX_TRY(fx_grow(&p->calls, &p->calls_capacity, p->num_calls + 1, sizeof *p->calls));
  p->calls[p->num_calls++] = bound;
  call->ticket = (int32_t)p->num_calls;
  return FX_OK;
}

/* Words of one batch: what a stream writes and waits for, in order. */
typedef struct batch {
  fx_cuda_word word[3 * MOST_RANKS];
  unsigned count;
} batch;

static void add_word(batch *b, uint32_t operation, uint64_t address, uint32_t value) {
  b->word[b->count++] = (fx_cuda_word){.operation = operation, .address = address, .value = value};
}

static uint64_t word_at(uint64_t words, const fx_peer_copy *p, int meaning, int rank) {
  return words + (uint64_t)(meaning * p->group.size + rank) * sizeof(uint32_t);
}

static void tell(const fx_peer_copy *p, int other, int meaning, batch *b) {
  add_word(b, FX_CU_WORD_WRITE, word_at(p->of_other[other], p, meaning, p->group.rank), 1);
}

static void hear(const fx_peer_copy *p, int other, int meaning, batch *b) {
  uint64_t own = word_at(address_of(p->words), p, meaning, other);
  add_word(b, FX_CU_WORD_WAIT_AT_LEAST, own, 1);
  add_word(b, FX_CU_WORD_WRITE, own, 0);
}

/* With the ranks that read from this one: a word to each. With those that it reads from: waits for theirs.
 * The same list where all exchange with all. */
typedef struct partners {
  int readers[MOST_RANKS], sources[MOST_RANKS], count;
} partners;

static partners partners_of(const fx_peer_copy *p, const fx_comm_call *call) {
  partners out = {.count = 0};
  if (call->kind == FX_SEND_RECV) return (partners){{call->peer}, {call->peer_from}, 1};
  for (int i = 1; i < p->group.size; i++) {
    out.readers[out.count] = out.sources[out.count] = (p->group.rank + i) % p->group.size;
    out.count++;
  }
  return out;
}

static fx_status flush(const fx_peer_copy *p, batch *b, void *stream) {
  int result = p->driver->stream_words(stream, b->count, b->word, 0);
  b->count = 0;
  return fx_cuda_check(p->driver, result, "words between GPUs");
}

static fx_status copy(const fx_peer_copy *p, void *to, uint64_t from, size_t bytes, void *stream) {
  return fx_cuda_check(p->driver, p->driver->copy(address_of(to), from, bytes, stream),
                       "a copy from another GPU");
}

/* dst = own + the other's block of this rank, by what fits into the staging memory. */
static fx_status add_block(const fx_peer_copy *p, const fx_comm_call *call, uint64_t from) {
  size_t size = fx_dtype_bytes(call->dtype), at = bytes_of(call) * (size_t)p->group.rank;
  int64_t step = STAGING_BYTES / (int64_t)size;
  const char *own = (const char *)call->src + at;
  for (int64_t done = 0; done < call->count; done += step) {
    int64_t n = fx_min_i64(step, call->count - done);
    size_t behind = (size_t)done * size;
    fx_type type = fx_type_1d(call->dtype, n);
    fx_tensor a = {(void *)(uintptr_t)(own + behind), type}, b = {p->staging, type},
              y = {(char *)call->dst + behind, type};
    fx_kernel_args args = {
        .in = {&a, &b}, .out = {&y}, .gemm = p->group.device->gemm, .stream = call->stream};
    FX_TRY(copy(p, p->staging, from + at + behind, (size_t)n * size, call->stream));
    FX_TRY(fx_add_cuda(&args));
  }
  return FX_OK;
}

/* What this rank reads of rank `other`, whose src is at `from`. */
static fx_status read_other(const fx_peer_copy *p, const fx_comm_call *call, int other, uint64_t from) {
  if (call->kind == FX_REDUCE_SCATTER) return add_block(p, call, from);
  size_t bytes = bytes_of(call), at = call->kind == FX_ALL_GATHER ? bytes * (size_t)other : 0;
  return copy(p, (char *)call->dst + at, from, bytes, call->stream);
}

fx_status fx_peer_copy_issue(fx_peer_copy *p, const fx_comm_call *call) {
  const bound_call *bound = &p->calls[call->ticket - 1];
  partners with = partners_of(p, call);
  batch b = {.count = 0};
  FX_ASSERT(call->ticket <= p->num_calls && bound->call.kind == call->kind && bound->call.src == call->src &&
            bound->call.count == call->count);
  for (int i = 0; i < with.count; i++) tell(p, with.readers[i], READY, &b);
  if (call->kind == FX_ALL_GATHER) {
    char *own = (char *)call->dst + bytes_of(call) * (size_t)p->group.rank;
    if (own != call->src) {
      FX_TRY(flush(p, &b, call->stream));
      FX_TRY(copy(p, own, address_of(call->src), bytes_of(call), call->stream));
    }
  }
  for (int i = 0; i < with.count; i++) hear(p, with.sources[i], READY, &b);
  FX_TRY(flush(p, &b, call->stream));
  for (int i = 0; i < with.count; i++)
    FX_TRY(read_other(p, call, with.sources[i], bound->from[with.sources[i]]));
  for (int i = 0; i < with.count; i++) tell(p, with.sources[i], DONE, &b);
  for (int i = 0; i < with.count; i++) hear(p, with.readers[i], DONE, &b);
  return flush(p, &b, call->stream);
}
