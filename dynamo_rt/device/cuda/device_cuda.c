/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device. A lane is a stream; tasks run at once on the calling thread and put their kernels on it,
 * so a task's own failure is its return value (and names its op). What fails later, on the GPU, comes out of
 * the next sync: bad data through the fault record that kernels fill, anything else as the driver's error.
 * The primary context is used, so that other libraries of the process share it; every entry makes it current,
 * because in-process ranks are threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/device/cuda/recording_cuda.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/ops/cuda/gemm.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

typedef struct cuda_device {
  fx_device base;
  fx_cuda_context context;
  fx_cuda_late late;
  void *stream[FX_LANE_COUNT];
  void *clock[2]; /* events with times */
  void *fork;     /* event at which a recording's lanes leave the compute lane */
  bool forks;     /* the recording under way has several lanes */
} cuda_device;

static fx_status enter(fx_device *base) {
  const fx_cuda_context *context = &((cuda_device *)base)->context;
  int result = context->driver->context_set(context->handle);
  return result == 0 ? FX_OK : fx_cuda_check(context->driver, result, "the context of the GPU");
}

/* To give something back: what fails then is not told, for it would take the place of the failure before. */
static bool enter_quietly(fx_device *base) {
  const fx_cuda_context *context = &((cuda_device *)base)->context;
  return context->driver->context_set(context->handle) == 0;
}

static fx_status cuda_alloc(fx_device *base, size_t bytes, void **out) {
  const fx_cuda_driver *driver = ((cuda_device *)base)->context.driver;
  uint64_t address = 0;
  char what[96];
  snprintf(what, sizeof what, "%.1f MiB of GPU memory", (double)bytes / 1048576.0);
  FX_TRY(enter(base));
  FX_TRY(fx_cuda_check(driver, driver->memory_alloc(&address, bytes ? bytes : 1), what));
  *out = (void *)(uintptr_t)address;
  return FX_OK;
}

static void cuda_release(fx_device *base, void *memory) {
  if (enter_quietly(base))
    ((cuda_device *)base)->context.driver->memory_free((uint64_t)(uintptr_t)memory); /* waits for its users */
}

static fx_status cuda_alloc_host(fx_device *base, size_t bytes, void **out) {
  const fx_cuda_driver *driver = ((const cuda_device *)base)->context.driver;
  FX_TRY(enter(base));
  return fx_cuda_check(driver, driver->memory_alloc_host(out, bytes ? bytes : 1, FX_CU_HOST_PORTABLE),
                       "pinned memory of the host");
}

static void cuda_release_host(fx_device *base, void *memory) {
  if (enter_quietly(base)) ((cuda_device *)base)->context.driver->memory_free_host(memory);
}

static fx_status cuda_memory_info(fx_device *base, size_t *used, size_t *total) {
  const fx_cuda_driver *driver = ((cuda_device *)base)->context.driver;
  size_t left = 0, all = 0;
  FX_TRY(enter(base));
  FX_TRY(fx_cuda_check(driver, driver->memory_info(&left, &all), "the memory of the GPU"));
  *used = all - left;
  *total = all;
  return FX_OK;
}

static fx_status cuda_launch(fx_device *base, fx_lane lane, fx_task_fn task, void *arg) {
  FX_TRY(enter(base));
  return task(arg, ((cuda_device *)base)->stream[lane]);
}

static fx_status cuda_launch_timed(fx_device *base, fx_lane lane, fx_task_fn task, void *arg, int64_t *ns) {
  const cuda_device *device = (const cuda_device *)base;
  const fx_cuda_driver *driver = device->context.driver;
  void *stream = device->stream[lane];
  float ms = 0;
  FX_TRY(enter(base));
  FX_TRY(fx_cuda_check(driver, driver->event_record(device->clock[0], stream), "the record of an event"));
  FX_TRY(task(arg, stream));
  FX_TRY(fx_cuda_check(driver, driver->event_record(device->clock[1], stream), "the record of an event"));
  FX_TRY(base->vtable->sync(base));
  FX_TRY(fx_cuda_check(driver, driver->event_elapsed(&ms, device->clock[0], device->clock[1]),
                       "the time between two events"));
  *ns = (int64_t)(1e6 * (double)ms);
  return FX_OK;
}

/* ---- events: the driver's own handles ---- */

static fx_status cuda_event_create(fx_device *base, fx_event **out) {
  const fx_cuda_driver *driver = ((cuda_device *)base)->context.driver;
  void *event = NULL;
  FX_TRY(enter(base));
  FX_TRY(fx_cuda_check(driver, driver->event_create(&event, FX_CU_EVENT_DISABLE_TIMING), "an event"));
  *out = event;
  return FX_OK;
}

static void cuda_event_destroy(fx_device *base, fx_event *event) {
  if (enter_quietly(base)) ((cuda_device *)base)->context.driver->event_destroy(event);
}

static fx_status cuda_event_record(fx_device *base, fx_lane lane, fx_event *event) {
  const cuda_device *device = (const cuda_device *)base;
  return fx_cuda_check(device->context.driver,
                       device->context.driver->event_record(event, device->stream[lane]),
                       "the record of an event");
}

static fx_status cuda_event_wait(fx_device *base, fx_lane lane, fx_event *event) {
  const cuda_device *device = (const cuda_device *)base;
  return fx_cuda_check(device->context.driver,
                       device->context.driver->stream_wait(device->stream[lane], event, 0),
                       "the wait for an event");
}

static fx_status cuda_event_sync(fx_device *base, fx_event *event) {
  const cuda_device *device = (const cuda_device *)base;
  FX_TRY(enter(base));
  return fx_cuda_check(device->context.driver, device->context.driver->event_sync(event),
                       "GPU (runtime.mode=eager names the op)");
}

/* ---- recordings: CUDA graphs, captured thread-locally ---- */

static fx_status cuda_record_begin(fx_device *base, unsigned lanes) {
  cuda_device *device = (cuda_device *)base;
  const fx_cuda_driver *driver = device->context.driver;
  FX_TRY(enter(base));
  device->forks = (lanes & ~(1u << FX_LANE_COMPUTE)) != 0;
  FX_TRY(fx_cuda_check(driver,
                       driver->capture_begin(device->stream[FX_LANE_COMPUTE], FX_CU_CAPTURE_THREAD_LOCAL),
                       "the start of a capture"));
  FX_TRY(fx_cuda_check(driver, driver->event_record(device->fork, device->stream[FX_LANE_COMPUTE]),
                       "the record of an event"));
  for (int l = 0; l < FX_LANE_COUNT; l++)
    if (l != FX_LANE_COMPUTE && lanes >> l & 1)
      FX_TRY(fx_cuda_check(driver, driver->stream_wait(device->stream[l], device->fork, 0),
                           "the wait for an event"));
  return FX_OK;
}

static fx_status cuda_record_end(fx_device *base, fx_recording **out) {
  const cuda_device *device = (const cuda_device *)base;
  const fx_cuda_driver *driver = device->context.driver;
  void *graph = NULL, *exec = NULL;
  FX_TRY(enter(base));
  int result = driver->capture_end(device->stream[FX_LANE_COMPUTE], &graph);
  if (out && result == 0) {
    fx_cuda_fill_by_kernels(&device->context, graph);
    result = driver->graph_instantiate(&exec, graph, device->forks ? FX_CU_GRAPH_USE_NODE_PRIORITY : 0);
  }
  if (graph) driver->graph_destroy(graph);
  if (!out) return FX_OK;
  *out = exec;
  return fx_cuda_check(driver, result, "the capture of a CUDA graph");
}

static fx_status cuda_recording_run(fx_device *base, fx_recording *recording) {
  const cuda_device *device = (const cuda_device *)base;
  FX_TRY(enter(base));
  return fx_cuda_check(device->context.driver,
                       device->context.driver->graph_launch(recording, device->stream[FX_LANE_COMPUTE]),
                       "the launch of a CUDA graph");
}

static void cuda_recording_destroy(fx_device *base, fx_recording *recording) {
  if (enter_quietly(base)) ((cuda_device *)base)->context.driver->graph_exec_destroy(recording);
}

/* Empties the record. Nothing runs meanwhile. */
static fx_status clear_fault(const cuda_device *device) {
  const fx_cuda_driver *driver = device->context.driver;
  fx_cuda_fault *fault = device->context.fault;
  *fault = (fx_cuda_fault){.claimed = fault->claimed};
  void *stream = device->stream[FX_LANE_COMPUTE];
  FX_TRY(fx_cuda_check(
      driver, driver->memory_fill((uint64_t)(uintptr_t)fault->claimed, 0, sizeof *fault->claimed, stream),
      "a fill"));
  return fx_cuda_check(driver, driver->stream_sync(stream), "a fill");
}

/* Takes the record, so that the next one can be written. */
static fx_status report_fault(const cuda_device *device) {
  fx_cuda_fault f = *device->context.fault;
  if (f.kind == 0) return FX_OK;
  FX_TRY(clear_fault(device));
  if (f.kind == 3)
    return fx_error(FX_ERR_DATA,
                    "an index in the score of this attention variant leaves its buffer for a pair that "
                    "the mask lets through; bound it with min and max, or mask the pair");
  if (f.kind == 1)
    return fx_error(
        FX_ERR_DATA,
        "id %d at place %lld of the batch is outside the embedding's %lld rows; check model.vocab_size and "
        "model.max_position_embeddings against the tokenizer and train.seq_length",
        f.id, (long long)f.place, (long long)f.limit);
  if (f.kind == 2)
    return fx_error(FX_ERR_DATA, "target %d is outside the vocabulary of %lld; check model.vocab_size", f.id,
                    (long long)f.limit);
  return FX_OK;
}

static fx_status cuda_sync(fx_device *base) {
  cuda_device *device = (cuda_device *)base;
  const fx_cuda_driver *driver = device->context.driver;
  FX_TRY(enter(base));
  for (int l = 0; l < FX_LANE_COUNT; l++) {
    int result = driver->stream_sync(device->stream[l]);
    if (result != 0)
      return fx_error_prefix(fx_cuda_check(driver, result, "a kernel failed"),
                             "GPU (runtime.mode=eager names the op)");
  }
  return report_fault(device);
}

/* Waits when either side is memory of the host that the driver does not know: it is staged then. */
static fx_status cuda_copy(fx_device *base, fx_lane lane, void *to, const void *from, size_t bytes) {
  const cuda_device *device = (const cuda_device *)base;
  FX_TRY(enter(base));
  if (bytes == 0) return FX_OK;
  return fx_cuda_check(device->context.driver,
                       device->context.driver->copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes,
                                                    device->stream[lane]),
                       "a copy");
}

static fx_status cuda_fill(fx_device *base, fx_lane lane, void *memory, int byte, size_t bytes) {
  const cuda_device *device = (const cuda_device *)base;
  FX_TRY(enter(base));
  if (bytes == 0) return FX_OK;
  return fx_cuda_check(device->context.driver,
                       device->context.driver->memory_fill((uint64_t)(uintptr_t)memory, (unsigned char)byte,
                                                           bytes, device->stream[lane]),
                       "a fill");
}

static void cuda_autotune(fx_device *base, bool on) {
  fx_cuda_gemm_autotune(((cuda_device *)base)->context.gemm, on);
}

static void cuda_destroy(fx_device *base) {
  cuda_device *device = (cuda_device *)base;
  const fx_cuda_driver *driver = device->context.driver;
  if (enter_quietly(base)) {
    driver->context_sync();
    fx_cuda_gemm_close(device->context.gemm);
    if (device->late.kernels) device->late.destroy(device->late.kernels);
    fx_cuda_kernels_unload(device->context.kernels);
    if (device->context.fault) {
      driver->memory_free((uint64_t)(uintptr_t)device->context.fault->claimed);
      driver->memory_free_host(device->context.fault);
    }
    void *events[] = {device->fork, device->clock[0], device->clock[1]};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
      if (events[i]) driver->event_destroy(events[i]);
    for (int l = 0; l < FX_LANE_COUNT; l++)
      if (device->stream[l]) driver->stream_destroy(device->stream[l]);
    driver->context_release(device->context.device);
  }
  free(device);
}

static const fx_device_vtable g_cuda_vtable = {
    .name = "cuda",
    .alloc = cuda_alloc,
    .release = cuda_release,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
    .memory_info = cuda_memory_info,
    .launch = cuda_launch,
    .launch_timed = cuda_launch_timed,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .sync = cuda_sync,
    .record_begin = cuda_record_begin,
    .record_end = cuda_record_end,
    .recording_run = cuda_recording_run,
    .recording_destroy = cuda_recording_destroy,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .autotune = cuda_autotune,
    .destroy = cuda_destroy,
};

/* ---- creation ---- */

static fx_status choose(int ordinal, fx_cuda_context *context) {
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) return fx_error(FX_ERR_DEVICE, "no GPU: %s", probe.reason);
  if (ordinal == FX_DEVICE_BY_RANK) ordinal = fx_cuda_ordinal_by_rank(probe.count);
  if (ordinal < 0 || ordinal >= probe.count)
    return fx_error(FX_ERR_DEVICE, "there is no GPU number %d; the driver shows %d", ordinal, probe.count);
  context->info = probe.device[ordinal];
  if (context->info.major < 8)
    return fx_error(FX_ERR_DEVICE, "GPU %d (%s) is sm_%d%d; flexion needs sm_80 or later", ordinal,
                    context->info.name, context->info.major, context->info.minor);
  FX_TRY(fx_cuda_arch_choose(getenv("FLEXION_CUDA_ARCH"), context->info.major, context->info.minor,
                             context->arch));
  FX_TRY(fx_cuda_driver_open(&context->driver));
  return fx_cuda_check(context->driver, context->driver->device_get(&context->device, ordinal), "the GPU");
}

/* Kernels of exchanges come first where a multiprocessor becomes free: they are few and short, and what waits
 * for them is long. */
static fx_status create_streams(cuda_device *device) {
  const fx_cuda_driver *driver = device->context.driver;
  int least = 0, greatest = 0;
  FX_TRY(fx_cuda_check(driver, driver->stream_priorities(&least, &greatest), "priorities of streams"));
  for (int l = 0; l < FX_LANE_COUNT; l++) {
    bool exchanges = l == FX_LANE_COMM_CRITICAL || l == FX_LANE_COMM_BULK;
    FX_TRY(fx_cuda_check(
        driver,
        driver->stream_create(&device->stream[l], FX_CU_STREAM_NON_BLOCKING, exchanges ? greatest : least),
        "a stream"));
  }
  return FX_OK;
}

static fx_status fill_context(cuda_device *device) {
  fx_cuda_context *context = &device->context;
  const fx_cuda_driver *driver = context->driver;
  context->late = &device->late;
  FX_TRY(enter(&device->base));
  FX_TRY(create_streams(device));
  FX_TRY(fx_cuda_check(driver, driver->event_create(&device->fork, FX_CU_EVENT_DISABLE_TIMING), "an event"));
  for (int i = 0; i < 2; i++)
    FX_TRY(fx_cuda_check(driver, driver->event_create(&device->clock[i], 0), "an event"));
  FX_TRY(cuda_alloc_host(&device->base, sizeof *context->fault, (void **)&context->fault));
  context->fault->claimed = NULL;
  FX_TRY(cuda_alloc(&device->base, sizeof *context->fault->claimed, (void **)&context->fault->claimed));
  FX_TRY(clear_fault(device));
  FX_TRY(fx_cuda_kernels_load(driver, context->arch, &context->kernels));
  return fx_cuda_gemm_open(driver, &context->gemm);
}

fx_status fx_device_create_cuda(int ordinal, fx_device **out) {
  cuda_device *device = NULL;
  FX_TRY(fx_calloc(&device, 1, sizeof *device));
  fx_cuda_context *context = &device->context;
  fx_status status = choose(ordinal, context);
  if (status == FX_OK)
    status =
        fx_cuda_check(context->driver, context->driver->context_retain(&context->handle, context->device),
                      "the context of the GPU");
  if (status != FX_OK) {
    free(device);
    return status;
  }
  device->base = (fx_device){.vtable = &g_cuda_vtable,
                             .backend = FX_BACKEND_CUDA,
                             .threads = 1,
                             .isa = context->arch,
                             .gemm = context,
                             .name = context->info.name};
  status = fill_context(device);
  if (status != FX_OK) {
    cuda_destroy(&device->base);
    return status;
  }
  device->base.gemm_name = fx_cuda_gemm_name(context->gemm);
  *out = &device->base;
  return FX_OK;
}
