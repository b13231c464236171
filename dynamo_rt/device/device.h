/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and lanes.
 *
 * A device owns memory and four lanes. A lane is an in-order queue of tasks; lanes run beside each other and
 * are ordered only by events, with the meaning CUDA gives them: record marks a point of a lane, wait makes
 * another lane stop there until that point is passed. On a GPU a lane is a stream. On the CPU the compute and
 * copy lanes run at once on the calling thread (whose OpenMP team is the one compute pool), and both
 * communication lanes are served, in issue order, by one service thread: it makes every MPI call.
 *
 * A failing task poisons the device: later tasks are skipped and the first failure comes out of the next
 * event wait on the compute lane or fx_device_sync. Launching, recording and waiting allocate nothing. */
#ifndef FX_DYNAMO_RT_DEVICE_DEVICE_H
#define FX_DYNAMO_RT_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_backend { FX_BACKEND_CPU, FX_BACKEND_CUDA, FX_BACKEND_COUNT } fx_backend;

/* X(name, text): comm_critical carries tensor and context parallel exchange, comm_bulk data parallel
 * reduction. */
#define FX_LANE_LIST(X)             \
  X(COMPUTE, "compute")             \
  X(COMM_CRITICAL, "comm.critical") \
  X(COMM_BULK, "comm.bulk")         \
  X(COPY, "copy")

typedef enum fx_lane {
#define FX_LANE_ENUM(name, text) FX_LANE_##name,
  FX_LANE_LIST(FX_LANE_ENUM)
#undef FX_LANE_ENUM
      FX_LANE_COUNT
} fx_lane;

const char *fx_lane_name(fx_lane lane);

typedef struct fx_device fx_device;
typedef struct fx_event fx_event;
typedef struct fx_recording fx_recording; /* work of the lanes, recorded once, run as one: a CUDA graph */
typedef fx_status (*fx_task_fn)(void *arg, void *stream); /* stream: NULL on CPU */

typedef struct fx_device_vtable {
  const char *name;
  fx_status (*alloc)(fx_device *device, size_t bytes, void **out);
  void (*release)(fx_device *device, void *memory);
  fx_status (*alloc_host)(fx_device *device, size_t bytes, void **out);
  void (*release_host)(fx_device *device, void *memory);
  fx_status (*memory_info)(fx_device *device, size_t *used, size_t *total);
  fx_status (*launch)(fx_device *device, fx_lane lane, fx_task_fn task, void *arg);
  /* Launches, waits for the task alone and says how long it took by the device's clock; NULL: the host's
   * clock is right. */
  fx_status (*launch_timed)(fx_device *device, fx_lane lane, fx_task_fn task, void *arg, int64_t *ns);
  fx_status (*event_create)(fx_device *device, fx_event **out);
  void (*event_destroy)(fx_device *device, fx_event *event);
  fx_status (*event_record)(fx_device *device, fx_lane lane, fx_event *event);
  fx_status (*event_wait)(fx_device *device, fx_lane lane, fx_event *event);
  fx_status (*event_sync)(fx_device *device, fx_event *event); /* the calling thread waits */
  fx_status (*sync)(fx_device *device);
  /* Recording, NULL on a device that cannot. Between begin and end, what this thread puts on the compute lane
   * and on `lanes` (bits) is recorded and does not run; every one of them is joined with the compute lane at
   * the end. end: out NULL drops what was recorded. run puts it all behind the compute lane. */
  fx_status (*record_begin)(fx_device *device, unsigned lanes);
  fx_status (*record_end)(fx_device *device, fx_recording **out);
  fx_status (*recording_run)(fx_device *device, fx_recording *recording);
  void (*recording_destroy)(fx_device *device, fx_recording *recording);
  fx_status (*copy)(fx_device *device, fx_lane lane, void *to, const void *from, size_t bytes);
  fx_status (*fill)(fx_device *device, fx_lane lane, void *memory, int byte, size_t bytes);
  /* Whether the first product of a shape times several algorithms, so that two runs may take different ones
   * and round differently; NULL: there is nothing to choose. */
  void (*autotune)(fx_device *device, bool on);
  void (*destroy)(fx_device *device);
} fx_device_vtable;

struct fx_device {
  const fx_device_vtable *vtable;
  fx_backend backend;
  int threads;      /* of the compute pool; a plan key field */
  const char *isa;  /* "avx512", "avx2", "sse2" or "sm_90": a plan key field */
  const void *gemm; /* borrowed by kernels: the fx_gemm provider of a CPU, the fx_cuda_context of a GPU */
  const char *gemm_name; /* "oneDNN 2.6.3", "cuBLASLt 13.0.2" */
  const char *name;      /* of the product, "NVIDIA H200"; "CPU" */
  int comm_delay_us;     /* tests: sleep before every task of a communication lane */
};

/* CPU device with a compute pool of `threads` threads (of the thread that runs plans) and a GEMM provider by
 * name: "auto", "onednn" or "cblas". FX_ERR_DEVICE when no provider can be opened. */
fx_status fx_device_create_cpu(int threads, const char *gemm_provider, fx_device **out);
/* GPU number `ordinal` of those the driver shows, or the one that belongs to this process's number on its
 * host (ranks beyond the GPUs share). Compiles the kernels of the ops where the cache on disk has none for
 * it. FX_ERR_DEVICE says what is missing: driver, GPU, NVRTC or cuBLASLt. The kernels use one stream a lane
 * and one thread at a time. */
enum { FX_DEVICE_BY_RANK = -1 };
fx_status fx_device_create_cuda(int ordinal, fx_device **out);
void fx_device_destroy(fx_device *device); /* waits for the lanes; NULL is fine */

static inline fx_status fx_device_alloc(fx_device *device, size_t bytes, void **out) {
  return device->vtable->alloc(device, bytes, out); /* 64-byte aligned, content undefined */
}
static inline void fx_device_release(fx_device *device, void *memory) {
  if (memory) device->vtable->release(device, memory);
}
/* Memory of the host that kernels address too (pinned for a GPU): runtime inputs, results. Content undefined;
 * the host may touch it while no task that does is in flight. */
static inline fx_status fx_device_alloc_host(fx_device *device, size_t bytes, void **out) {
  return device->vtable->alloc_host(device, bytes, out);
}
static inline void fx_device_release_host(fx_device *device, void *memory) {
  if (memory) device->vtable->release_host(device, memory);
}
/* Bytes of the device's own memory that all its users hold, and that it has; 0 and 0 where it is the host's.
 */
static inline fx_status fx_device_memory_info(fx_device *device, size_t *used, size_t *total) {
  return device->vtable->memory_info(device, used, total);
}
/* Of these the bytes held, 0 where that cannot be said. */
static inline int64_t fx_device_memory_used(fx_device *device) {
  size_t used = 0, total = 0;
  return fx_device_memory_info(device, &used, &total) == FX_OK ? (int64_t)used : 0;
}
/* memset and memcpy on a lane; a copy's sides may be of host or device. */
static inline fx_status fx_device_fill(fx_device *device, fx_lane lane, void *memory, int byte,
                                       size_t bytes) {
  return device->vtable->fill(device, lane, memory, byte, bytes);
}
static inline fx_status fx_device_copy(fx_device *device, fx_lane lane, void *to, const void *from,
                                       size_t bytes) {
  return device->vtable->copy(device, lane, to, from, bytes);
}
static inline fx_status fx_device_launch(fx_device *device, fx_lane lane, fx_task_fn task, void *arg) {
  return device->vtable->launch(device, lane, task, arg);
}
static inline fx_status fx_device_sync(fx_device *device) {
  return device->vtable->sync(device);
}

/* Launches on a lane and waits for everything before returning its status: control-channel calls. */
fx_status fx_device_call(fx_device *device, fx_lane lane, fx_task_fn task, void *arg);

#ifdef __cplusplus
}
#endif
#endif
