/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dynamo_rt/device/cuda/driver_api.h"
#include "tests/standin/standin.h"

enum { MAX_BLOCKS = 4096, MAX_STREAMS = 64, MAX_NODES = 1 << 16 };
enum { KERNEL_NODE = 0, COPY_NODE = 1, FILL_NODE = 2, EMPTY_NODE = 5, WORD_NODE = 8, COLLECTIVE_NODE = 9 };

/* Device memory is an address that nobody can read, and what it holds elsewhere. */
typedef struct block {
  uint64_t address;
  size_t bytes;
  char *held; /* the address itself for pinned memory */
  bool pinned;
} block;

typedef struct node {
  int type, byte;
  uint64_t to, from;
  size_t bytes;
} node;

typedef struct graph {
  node **node;
  size_t count;
} graph;

/* How far of each stream of a capture something comes behind. */
typedef struct reached {
  const graph *of;
  int upto[MAX_STREAMS];
} reached;

typedef struct stream {
  int index;
  graph *captured; /* NULL: what comes is done at once */
  bool origin;
  reached behind;
} stream;

typedef struct event {
  bool timed, recorded;
  reached behind;
} event;

static pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static block g_block[MAX_BLOCKS];
static stream *g_stream[MAX_STREAMS];
static size_t g_used;
static long g_allocations, g_kernels, g_graphs, g_collectives;
static bool g_stuck; /* accessed atomically */
static __thread int t_capturing;

int standin_fault(int code, const char *format, ...) {
  va_list args;
  char text[256];
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "stand-in: %s\n", text);
  return code;
}

/* ---- memory ---- */

/* NULL: memory of the host that no allocation knows. Locked. */
static const block *find(uint64_t address) {
  for (int i = 0; i < MAX_BLOCKS; i++)
    if (g_block[i].address && address >= g_block[i].address &&
        address - g_block[i].address < g_block[i].bytes)
      return &g_block[i];
  return NULL;
}

/* Where the bytes are; NULL: not inside one allocation. Locked. */
static char *held(const char *what, uint64_t address, size_t bytes, bool known) {
  const block *b = find(address);
  if (!b && !known) return (char *)(uintptr_t)address;
  if (!b) {
    standin_fault(0, "%s of %zu bytes at %p, which is not allocated", what, bytes,
                  (void *)(uintptr_t)address);
    return NULL;
  }
  size_t at = address - b->address;
  if (bytes <= b->bytes - at) return b->held + at;
  standin_fault(0, "%s of %zu bytes at byte %zu of an allocation of %zu", what, bytes, at, b->bytes);
  return NULL;
}

int standin_check(const char *what, const void *address, size_t bytes) {
  pthread_mutex_lock(&g_mutex);
  bool fits = bytes == 0 || held(what, (uint64_t)(uintptr_t)address, bytes, true);
  pthread_mutex_unlock(&g_mutex);
  return fits ? STANDIN_OK : STANDIN_INVALID;
}

int standin_not_in_capture(const char *what) {
  return t_capturing ? standin_fault(STANDIN_IN_CAPTURE, "%s while a graph is captured", what) : STANDIN_OK;
}

static int add_block(uint64_t *address, size_t bytes, bool pinned) {
  int result = STANDIN_MEMORY;
  char *memory = NULL;
  void *mapped = MAP_FAILED;
  if (standin_not_in_capture("an allocation")) return STANDIN_IN_CAPTURE;
  pthread_mutex_lock(&g_mutex);
  block *b = g_block;
  while (b < g_block + MAX_BLOCKS && b->address) b++;
  bool room = b < g_block + MAX_BLOCKS && g_used + bytes <= (size_t)STANDIN_MIB << 20;
  if (room && posix_memalign((void **)&memory, 256, bytes) == 0) {
    if (!pinned) mapped = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *address = (uint64_t)(uintptr_t)(pinned ? memory : (char *)mapped);
    if (pinned || mapped != MAP_FAILED) {
      memset(memory, 0, bytes);
      *b = (block){*address, bytes, memory, pinned};
      g_used += pinned ? 0 : bytes;
      g_allocations++;
      result = STANDIN_OK;
    }
  }
  pthread_mutex_unlock(&g_mutex);
  return result;
}

static int remove_block(uint64_t address, bool pinned) {
  if (address == 0) return STANDIN_OK;
  if (standin_not_in_capture("a release")) return STANDIN_IN_CAPTURE;
  pthread_mutex_lock(&g_mutex);
  block *b = (block *)(uintptr_t)find(address);
  bool there = b && b->address == address && b->pinned == pinned;
  if (there) {
    if (!pinned) munmap((void *)(uintptr_t)address, b->bytes);
    free(b->held);
    g_used -= pinned ? 0 : b->bytes;
    b->address = 0;
  }
  pthread_mutex_unlock(&g_mutex);
  return there ? STANDIN_OK : standin_fault(STANDIN_INVALID, "a release of what is not allocated");
}

STANDIN_EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  return add_block(address, bytes, false);
}
STANDIN_EXPORT int cuMemFree_v2(uint64_t address) {
  return remove_block(address, false);
}
STANDIN_EXPORT int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  uint64_t at = 0;
  (void)flags;
  int result = add_block(&at, bytes, true);
  *address = (void *)(uintptr_t)at;
  return result;
}
STANDIN_EXPORT int cuMemFreeHost(void *address) {
  return remove_block((uint64_t)(uintptr_t)address, true);
}
STANDIN_EXPORT int cuMemGetInfo_v2(size_t *left, size_t *total) {
  *total = (size_t)STANDIN_MIB << 20;
  *left = *total - g_used;
  return STANDIN_OK;
}
/* ---- streams, events, captures ---- */

static stream *stream_of(void *handle) {
  for (int i = 0; i < MAX_STREAMS; i++)
    if (g_stream[i] && g_stream[i] == handle) return g_stream[i];
  standin_fault(0, "%p is no stream", handle);
  return NULL;
}

static void take_time(void) {
  const char *text = getenv("FLEXION_STANDIN_LAUNCH_US");
  if (text) usleep((useconds_t)atoi(text));
}

/* ---- a collective that never ends ---- */

static bool hangs(long number) {
  const char *text = getenv("FLEXION_STANDIN_HANG"), *rank = getenv("OMPI_COMM_WORLD_RANK");
  char *rest = NULL;
  if (!text || !rank) return false;
  return strtol(text, &rest, 10) == atoi(rank) && *rest == ':' && atol(rest + 1) == number;
}
static bool stuck(void) {
  return __atomic_load_n(&g_stuck, __ATOMIC_ACQUIRE);
}
void standin_abort(void) {
  __atomic_store_n(&g_stuck, false, __ATOMIC_RELEASE);
}

static void run(const node *what, char *to, const char *from) {
  uint32_t word = (uint32_t)what->from;
  g_kernels += what->type == KERNEL_NODE;
  if (what->type == COPY_NODE) memmove(to, from, what->bytes);
  if (what->type == FILL_NODE) memset(to, what->byte, what->bytes);
  if (what->type == WORD_NODE) memcpy(to, &word, sizeof word);
  if (what->type == COLLECTIVE_NODE && hangs(++g_collectives))
    __atomic_store_n(&g_stuck, true, __ATOMIC_RELEASE);
}

/* Does it, or records it. Behind what never ends nothing is done. */
static int put(void *handle, node what) {
  int result = STANDIN_OK;
  pthread_mutex_lock(&g_mutex);
  stream *s = stream_of(handle);
  char *to = NULL, *from = NULL;
  if (!s) result = STANDIN_INVALID;
  if (!result && what.bytes && !(to = held("a write", what.to, what.bytes, s->captured != NULL)))
    result = STANDIN_INVALID;
  if (!result && what.type == COPY_NODE &&
      !(from = held("a read", what.from, what.bytes, s->captured != NULL)))
    result = STANDIN_INVALID;
  bool recorded = !result && s->captured;
  if (recorded) {
    graph *g = s->captured;
    node *n = g->count < MAX_NODES ? malloc(sizeof *n) : NULL;
    if (n) *n = what, g->node[g->count++] = n, s->behind.upto[s->index]++;
    if (!n) result = STANDIN_MEMORY;
  } else if (!result && !stuck()) {
    run(&what, to, from);
  }
  pthread_mutex_unlock(&g_mutex);
  if (!result && what.type == KERNEL_NODE && !recorded) take_time();
  return result;
}

int standin_copy(const void *to, const void *from, size_t bytes, void *on) {
  uint64_t a = (uint64_t)(uintptr_t)to, b = (uint64_t)(uintptr_t)from;
  return bytes ? put(on, (node){COPY_NODE, 0, a, b, bytes}) : STANDIN_OK;
}
int standin_fill(const void *to, int byte, size_t bytes, void *on) {
  return bytes ? put(on, (node){FILL_NODE, byte, (uint64_t)(uintptr_t)to, 0, bytes}) : STANDIN_OK;
}
int standin_collective(void *on) {
  return put(on, (node){COLLECTIVE_NODE, 0, 0, 0, 0});
}
int standin_word(uint64_t to, uint32_t word, void *on) {
  return put(on, (node){WORD_NODE, 0, to, word, sizeof word});
}
int standin_kernel(void *on) {
  return put(on, (node){KERNEL_NODE, 0, 0, 0, 0});
}

STANDIN_EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *on) {
  return standin_copy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, on);
}
STANDIN_EXPORT int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t count, void *on) {
  return standin_fill((void *)(uintptr_t)to, byte, count, on);
}

STANDIN_EXPORT int cuStreamCreateWithPriority(void **out, unsigned flags, int priority) {
  (void)flags;
  if (priority > 0 || priority < -5) return standin_fault(STANDIN_INVALID, "a priority of %d", priority);
  pthread_mutex_lock(&g_mutex);
  int i = 0;
  while (i < MAX_STREAMS && g_stream[i]) i++;
  stream *s = i < MAX_STREAMS ? calloc(1, sizeof *s) : NULL;
  if (s) s->index = i, g_stream[i] = s;
  pthread_mutex_unlock(&g_mutex);
  *out = s;
  return s ? STANDIN_OK : STANDIN_MEMORY;
}
STANDIN_EXPORT int cuStreamDestroy_v2(void *handle) {
  pthread_mutex_lock(&g_mutex);
  stream *s = stream_of(handle);
  bool captured = s && s->captured;
  if (s) g_stream[s->index] = NULL;
  free(s);
  pthread_mutex_unlock(&g_mutex);
  if (captured) return standin_fault(STANDIN_IN_CAPTURE, "a stream that is captured is destroyed");
  return s ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0, *greatest = -5;
  return STANDIN_OK;
}

static int wait_for(void *handle) {
  pthread_mutex_lock(&g_mutex);
  const stream *s = stream_of(handle);
  bool captured = s && s->captured;
  pthread_mutex_unlock(&g_mutex);
  if (captured) return standin_fault(STANDIN_IN_CAPTURE, "a wait for a stream that is captured");
  while (stuck()) usleep(1000);
  return s ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int cuStreamSynchronize(void *handle) {
  return wait_for(handle);
}
STANDIN_EXPORT int cuCtxSynchronize(void) {
  while (stuck()) usleep(1000);
  return standin_not_in_capture("a wait for the GPU");
}
STANDIN_EXPORT int cuStreamIsCapturing(void *handle, int *status) {
  pthread_mutex_lock(&g_mutex);
  const stream *s = stream_of(handle);
  *status = s && s->captured;
  pthread_mutex_unlock(&g_mutex);
  return s ? STANDIN_OK : STANDIN_INVALID;
}

STANDIN_EXPORT int cuEventCreate(void **out, unsigned flags) {
  event *e = calloc(1, sizeof *e);
  if (e) e->timed = !(flags & FX_CU_EVENT_DISABLE_TIMING);
  *out = e;
  return e ? STANDIN_OK : STANDIN_MEMORY;
}
STANDIN_EXPORT int cuEventDestroy_v2(void *handle) {
  free(handle);
  return STANDIN_OK;
}
STANDIN_EXPORT int cuEventRecord(void *handle, void *on) {
  event *e = handle;
  pthread_mutex_lock(&g_mutex);
  const stream *s = stream_of(on);
  if (s) e->behind = s->behind, e->behind.of = s->captured, e->recorded = true;
  pthread_mutex_unlock(&g_mutex);
  return s ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int cuEventSynchronize(void *handle) {
  const event *e = handle;
  while (stuck()) usleep(1000);
  return e->behind.of ? standin_fault(STANDIN_IN_CAPTURE, "a wait for an event of a capture") : STANDIN_OK;
}
STANDIN_EXPORT int cuEventElapsedTime(float *ms, void *begin, void *end) {
  const event *a = begin, *b = end;
  if (!a->timed || !b->timed || !a->recorded || !b->recorded)
    return standin_fault(STANDIN_INVALID, "the time between events that have none");
  *ms = 0.5f;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuStreamWaitEvent(void *on, void *handle, unsigned flags) {
  const event *e = handle;
  int result = STANDIN_OK;
  (void)flags;
  pthread_mutex_lock(&g_mutex);
  stream *s = stream_of(on);
  if (!s) result = STANDIN_INVALID;
  if (!result && s->captured && s->captured != e->behind.of)
    result = standin_fault(STANDIN_IN_CAPTURE, "a captured stream waits for what is outside of its capture");
  if (!result && e->behind.of) {
    if (!s->captured) memset(&s->behind, 0, sizeof s->behind);
    s->captured = (graph *)(uintptr_t)e->behind.of; /* joins */
    for (int i = 0; i < MAX_STREAMS; i++)
      if (e->behind.upto[i] > s->behind.upto[i]) s->behind.upto[i] = e->behind.upto[i];
  }
  pthread_mutex_unlock(&g_mutex);
  return result;
}

static void free_graph(graph *g) {
  for (size_t i = 0; g && i < g->count; i++) free(g->node[i]);
  if (g) free(g->node);
  free(g);
}

STANDIN_EXPORT int cuStreamBeginCapture_v2(void *on, int mode) {
  (void)mode;
  graph *g = calloc(1, sizeof *g);
  if (g) g->node = calloc(MAX_NODES, sizeof(node *));
  pthread_mutex_lock(&g_mutex);
  stream *s = stream_of(on);
  bool free_to = s && !s->captured && g && g->node;
  if (free_to) {
    memset(&s->behind, 0, sizeof s->behind);
    s->captured = g, s->origin = true;
  }
  pthread_mutex_unlock(&g_mutex);
  if (!free_to) {
    free_graph(g);
    return standin_fault(STANDIN_IN_CAPTURE, "a capture of a stream that is captured");
  }
  t_capturing++;
  return STANDIN_OK;
}

STANDIN_EXPORT int cuStreamEndCapture(void *on, void **out) {
  int unjoined = 0;
  *out = NULL;
  pthread_mutex_lock(&g_mutex);
  stream *s = stream_of(on);
  graph *g = s && s->origin ? s->captured : NULL;
  for (int i = 0; g && i < MAX_STREAMS; i++) {
    stream *other = g_stream[i];
    if (!other || other->captured != g) continue;
    unjoined += other->behind.upto[i] > s->behind.upto[i];
    other->captured = NULL, other->origin = false;
  }
  pthread_mutex_unlock(&g_mutex);
  if (!g) return standin_fault(STANDIN_IN_CAPTURE, "the end of a capture that was not begun");
  t_capturing--;
  if (unjoined) {
    free_graph(g);
    return standin_fault(STANDIN_UNJOINED, "%d streams of a capture are not joined at its end", unjoined);
  }
  *out = g;
  return STANDIN_OK;
}

/* ---- graphs ---- */

STANDIN_EXPORT int cuGraphInstantiateWithFlags(void **exec, void *handle, unsigned long long flags) {
  const graph *g = handle;
  graph *copy = calloc(1, sizeof *copy);
  (void)flags;
  if (standin_not_in_capture("the making of a graph")) return STANDIN_IN_CAPTURE;
  if (copy) copy->node = calloc(g->count + 1, sizeof(node *));
  for (size_t i = 0; copy && copy->node && i < g->count; i++) {
    if (!g->node[i]) continue;
    copy->node[copy->count] = malloc(sizeof(node));
    *copy->node[copy->count++] = *g->node[i];
  }
  *exec = copy;
  return copy ? STANDIN_OK : STANDIN_MEMORY;
}
STANDIN_EXPORT int cuGraphDestroy(void *handle) {
  free_graph(handle);
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGraphExecDestroy(void *handle) {
  free_graph(handle);
  return STANDIN_OK;
}

static void write_log(size_t nodes) {
  const char *path = getenv("FLEXION_STANDIN_LOG"), *rank = getenv("OMPI_COMM_WORLD_RANK");
  char name[512], line[160];
  if (!path) return;
  snprintf(name, sizeof name, "%s.%s", path, rank ? rank : "0");
  int length = snprintf(line, sizeof line, "graphs %ld nodes %zu allocations %ld kernels %ld\n", g_graphs,
                        nodes, g_allocations, g_kernels);
  int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, line, (size_t)length) != length) standin_fault(0, "%s cannot be written", name);
  if (fd >= 0) close(fd);
}

STANDIN_EXPORT int cuGraphLaunch(void *exec, void *on) {
  const graph *g = exec;
  int result = STANDIN_OK;
  for (size_t i = 0; i < g->count && !result; i++)
    if (g->node[i]->type != KERNEL_NODE && g->node[i]->type != EMPTY_NODE) result = put(on, *g->node[i]);
  pthread_mutex_lock(&g_mutex);
  g_graphs++;
  write_log(g->count);
  pthread_mutex_unlock(&g_mutex);
  return result;
}

STANDIN_EXPORT int cuGraphGetNodes(void *handle, void **nodes, size_t *count) {
  const graph *g = handle;
  size_t found = 0;
  for (size_t i = 0; i < g->count; i++)
    if (g->node[i]) {
      if (nodes && found < *count) nodes[found] = g->node[i];
      found++;
    }
  *count = found;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGraphNodeGetType(void *handle, int *type) {
  *type = ((const node *)handle)->type;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGraphMemsetNodeGetParams(void *handle, void *params) {
  const node *n = handle;
  struct {
    uint64_t to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
  } out = {n->to, 0, (unsigned)n->byte, 1, n->bytes, 1};
  memcpy(params, &out, sizeof out);
  return STANDIN_OK;
}
/* Edges are not kept: a graph runs in the order of its capture. */
STANDIN_EXPORT int cuGraphNodeGetDependencies(void *handle, void **nodes, size_t *count) {
  (void)handle, (void)nodes;
  *count = 0;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGraphNodeGetDependentNodes(void *handle, void **nodes, size_t *count) {
  (void)handle, (void)nodes;
  *count = 0;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGraphAddKernelNode_v2(void **out, void *handle, void *const *before, size_t count,
                                           const void *params) {
  graph *g = handle;
  (void)before, (void)count;
  node *n = params && g->count < MAX_NODES ? calloc(1, sizeof *n) : NULL;
  if (!n) return STANDIN_INVALID;
  g->node[g->count++] = *out = n;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGraphAddDependencies(void *handle, void *const *from, void *const *to, size_t count) {
  (void)handle, (void)from, (void)to, (void)count;
  return STANDIN_OK;
}
/* The node may be of any graph, which keeps its place empty; it stays in memory till the process ends. */
STANDIN_EXPORT int cuGraphDestroyNode(void *handle) {
  ((node *)handle)->type = EMPTY_NODE; /* does nothing */
  return STANDIN_OK;
}
