/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device. Compute and copy tasks run inline; communication tasks go through one bounded ring to the
 * service thread. Events are two counters: `issued` (how often recorded, host side) and `fired` (how many of
 * those points are passed); a wait remembers the `issued` it saw, as a CUDA stream wait does. */
#include <omp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/ops/cpu/gemm.h"

enum { RING = 512 };

struct fx_event {
  uint64_t issued, fired; /* guarded by the device's mutex */
};

typedef enum command_kind { COMMAND_TASK, COMMAND_RECORD, COMMAND_WAIT } command_kind;

typedef struct command {
  command_kind kind;
  fx_task_fn task;
  void *arg;
  fx_event *event;
  uint64_t value;
} command;

typedef struct cpu_device {
  fx_device base;
  pthread_t service;
  pthread_mutex_t mutex;
  pthread_cond_t changed; /* queue, events, completion */
  command ring[RING];
  uint64_t head, tail; /* tail: next to run, finished when tail == head and !busy */
  bool busy, stop;
  fx_status failed;
  char failed_text[2048];
} cpu_device;

static bool on_service(fx_lane lane) {
  return lane == FX_LANE_COMM_CRITICAL || lane == FX_LANE_COMM_BULK;
}

static void run_command(cpu_device *device, const command *cmd) {
  fx_status status = FX_OK;
  if (cmd->kind == COMMAND_TASK && device->failed == FX_OK) {
    pthread_mutex_unlock(&device->mutex);
    if (device->base.comm_delay_us > 0) {
      struct timespec delay = {device->base.comm_delay_us / 1000000,
                               (long)(device->base.comm_delay_us % 1000000) * 1000};
      nanosleep(&delay, NULL);
    }
    status = cmd->task(cmd->arg, NULL);
    pthread_mutex_lock(&device->mutex);
  } else if (cmd->kind == COMMAND_RECORD) {
    if (cmd->value > cmd->event->fired) cmd->event->fired = cmd->value;
  } else if (cmd->kind == COMMAND_WAIT) {
    while (cmd->event->fired < cmd->value && !device->stop)
      pthread_cond_wait(&device->changed, &device->mutex);
  }
  if (status != FX_OK && device->failed == FX_OK) {
    device->failed = status;
    strncpy(device->failed_text, fx_error_text(), sizeof device->failed_text - 1);
  }
}

static void *service_main(void *arg) {
  cpu_device *device = arg;
  pthread_mutex_lock(&device->mutex);
  for (;;) {
    while (device->tail == device->head && !device->stop) pthread_cond_wait(&device->changed, &device->mutex);
    if (device->tail == device->head) break;
    command cmd = device->ring[device->tail % RING];
    device->busy = true;
    device->tail++;
    run_command(device, &cmd);
    device->busy = false;
    pthread_cond_broadcast(&device->changed);
  }
  pthread_mutex_unlock(&device->mutex);
  return NULL;
}

/* The caller holds the mutex. */
static fx_status report_failure(cpu_device *device) {
  return device->failed == FX_OK ? FX_OK : fx_error(device->failed, "%s", device->failed_text);
}

static void push(cpu_device *device, command cmd) {
  while (device->head - device->tail == RING) pthread_cond_wait(&device->changed, &device->mutex);
  device->ring[device->head++ % RING] = cmd;
  pthread_cond_broadcast(&device->changed);
}

static fx_status cpu_alloc(fx_device *base, size_t bytes, void **out) {
  (void)base;
  return fx_alloc_aligned(out, bytes);
}

static void cpu_release(fx_device *base, void *memory) {
  (void)base;
  free(memory);
}

static fx_status cpu_memory_info(fx_device *base, size_t *used, size_t *total) {
  (void)base;
  *used = *total = 0;
  return FX_OK;
}

static fx_status cpu_launch(fx_device *base, fx_lane lane, fx_task_fn task, void *arg) {
  if (!on_service(lane)) return task(arg, NULL);
  cpu_device *device = (cpu_device *)base;
  pthread_mutex_lock(&device->mutex);
  push(device, (command){.kind = COMMAND_TASK, .task = task, .arg = arg});
  pthread_mutex_unlock(&device->mutex);
  return FX_OK;
}

static fx_status cpu_event_create(fx_device *base, fx_event **out) {
  (void)base;
  return fx_calloc(out, 1, sizeof(fx_event));
}

static void cpu_event_destroy(fx_device *base, fx_event *event) {
  (void)base;
  free(event);
}

static fx_status cpu_event_record(fx_device *base, fx_lane lane, fx_event *event) {
  cpu_device *device = (cpu_device *)base;
  pthread_mutex_lock(&device->mutex);
  uint64_t value = ++event->issued;
  if (on_service(lane)) {
    push(device, (command){.kind = COMMAND_RECORD, .event = event, .value = value});
  } else {
    event->fired = value;
    pthread_cond_broadcast(&device->changed);
  }
  pthread_mutex_unlock(&device->mutex);
  return FX_OK;
}

static fx_status cpu_event_wait(fx_device *base, fx_lane lane, fx_event *event) {
  cpu_device *device = (cpu_device *)base;
  fx_status status = FX_OK;
  pthread_mutex_lock(&device->mutex);
  if (on_service(lane)) {
    push(device, (command){.kind = COMMAND_WAIT, .event = event, .value = event->issued});
  } else {
    uint64_t value = event->issued;
    while (event->fired < value) pthread_cond_wait(&device->changed, &device->mutex);
    status = report_failure(device);
  }
  pthread_mutex_unlock(&device->mutex);
  return status;
}

static fx_status cpu_event_sync(fx_device *base, fx_event *event) {
  return cpu_event_wait(base, FX_LANE_COMPUTE, event); /* the compute lane is the calling thread */
}

static fx_status cpu_sync(fx_device *base) {
  cpu_device *device = (cpu_device *)base;
  pthread_mutex_lock(&device->mutex);
  while (device->tail != device->head || device->busy) pthread_cond_wait(&device->changed, &device->mutex);
  fx_status status = report_failure(device);
  pthread_mutex_unlock(&device->mutex);
  return status;
}

static fx_status cpu_copy(fx_device *base, fx_lane lane, void *to, const void *from, size_t bytes) {
  FX_ASSERT(!on_service(lane));
  (void)base;
  memcpy(to, from, bytes);
  return FX_OK;
}

static fx_status cpu_fill(fx_device *base, fx_lane lane, void *memory, int byte, size_t bytes) {
  FX_ASSERT(!on_service(lane));
  (void)base;
  memset(memory, byte, bytes);
  return FX_OK;
}

static void cpu_destroy(fx_device *base) {
  cpu_device *device = (cpu_device *)base;
  pthread_mutex_lock(&device->mutex);
  device->stop = true;
  pthread_cond_broadcast(&device->changed);
  pthread_mutex_unlock(&device->mutex);
  pthread_join(device->service, NULL);
  pthread_cond_destroy(&device->changed);
  pthread_mutex_destroy(&device->mutex);
  fx_gemm_close((fx_gemm *)(uintptr_t)device->base.gemm);
  free(device);
}

static const fx_device_vtable g_cpu_vtable = {
    .name = "cpu",
    .alloc = cpu_alloc,
    .release = cpu_release,
    .alloc_host = cpu_alloc,
    .release_host = cpu_release,
    .memory_info = cpu_memory_info,
    .launch = cpu_launch,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .sync = cpu_sync,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .destroy = cpu_destroy,
};

static const char *detect_isa(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return "avx512";
  if (__builtin_cpu_supports("x86-64-v3")) return "avx2";
  return "sse2";
#else
  return "generic";
#endif
}

fx_status fx_device_create_cpu(int threads, const char *gemm_provider, fx_device **out) {
  fx_gemm *gemm = NULL;
  cpu_device *device = NULL;
  fx_status status = fx_gemm_open(gemm_provider, threads, &gemm);
  if (status != FX_OK) return status;
  FX_TRY_GOTO(fx_calloc(&device, 1, sizeof *device), close_gemm);
  device->base = (fx_device){.vtable = &g_cpu_vtable,
                             .backend = FX_BACKEND_CPU,
                             .threads = threads,
                             .isa = detect_isa(),
                             .gemm = gemm,
                             .name = "CPU",
                             .gemm_name = fx_gemm_name(gemm)};
  pthread_mutex_init(&device->mutex, NULL);
  pthread_cond_init(&device->changed, NULL);
  if (pthread_create(&device->service, NULL, service_main, device) != 0) {
    status = fx_error(FX_ERR_DEVICE,
                      "cannot start the communication service thread; check the limit on processes");
    goto free_device;
  }
  omp_set_num_threads(threads); /* of the calling thread: in-process ranks each have their own team */
  *out = &device->base;
  return FX_OK;
free_device:
  free(device);
close_gemm:
  fx_gemm_close(gemm);
  return status;
}
