/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that are launched before the kernel in front of them has ended (driver.h, `follows`) still see what
 * it wrote, and what other lanes wrote before an event: launched one by one and in a recording. */
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "tests/harness.h"

/* `slow` lets the next kernel come at once, takes its time and only then reads and writes. `pass` is as all
 * kernels of flexion are; `hasty` does not wait. */
static const char g_source[] =
    "#if __CUDA_ARCH__ >= 900\n"
    "#define LET_NEXT_COME asm volatile(\"griddepcontrol.launch_dependents;\" ::: \"memory\")\n"
    "#define WAIT asm volatile(\"griddepcontrol.wait;\" ::: \"memory\")\n"
    "#else\n"
    "#define LET_NEXT_COME\n"
    "#define WAIT\n"
    "#endif\n"
    "__device__ unsigned long long now() {\n"
    "  unsigned long long ns;\n"
    "  asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(ns));\n"
    "  return ns;\n"
    "}\n"
    "extern \"C\" __global__ void slow(const volatile int *from, int *to) {\n"
    "  unsigned long long begin = now();\n"
    "  LET_NEXT_COME;\n"
    "  while (now() - begin < 3000000) {}\n"
    "  *to = *from;\n"
    "}\n"
    "extern \"C\" __global__ void pass(const int *from, int *to) {\n"
    "  WAIT;\n"
    "  LET_NEXT_COME;\n"
    "  *to = *from;\n"
    "}\n"
    "extern \"C\" __global__ void hasty(const int *from, int *to) {\n"
    "  *to = *from;\n"
    "}\n";

enum { SLOW, PASS, HASTY, KERNELS, CELLS = 6, OLD = 100 };
static const char *const g_names[KERNELS] = {"slow", "pass", "hasty"};

static fx_device *g_device;
static fx_cuda_function g_kernel[KERNELS];
static int *g_cell; /* pinned: g_cell[i] is OLD + i before each case */

typedef struct step {
  int kernel, from, to;
} step;

static fx_status launch_step(void *arg, void *stream) {
  const step *s = arg;
  int *from = g_cell + s->from, *to = g_cell + s->to;
  void *params[] = {&from, &to};
  return fx_cuda_launch(&g_kernel[s->kernel], (fx_cuda_dim){1, 1, 1}, (fx_cuda_dim){1, 1, 1}, 0, stream,
                        params);
}

static void put(fx_lane lane, int kernel, int from, int to) {
  step s = {kernel, from, to};
  CHECK_OK(fx_device_launch(g_device, lane, launch_step, &s));
}

/* ---- cases: what they put on the lanes, and which cell has which content then ---- */

static fx_event *g_event;

static void behind_a_slow_kernel(void) {
  put(FX_LANE_COMPUTE, SLOW, 0, 1);
  put(FX_LANE_COMPUTE, PASS, 1, 2);
}
static void behind_a_kernel_that_waits_for_a_slow_one(void) {
  put(FX_LANE_COMPUTE, SLOW, 0, 1);
  put(FX_LANE_COMPUTE, PASS, 3, 4);
  put(FX_LANE_COMPUTE, PASS, 1, 2);
}
static void behind_an_event_of_another_lane(void) {
  put(FX_LANE_COMM_CRITICAL, SLOW, 0, 1);
  CHECK_OK(g_device->vtable->event_record(g_device, FX_LANE_COMM_CRITICAL, g_event));
  put(FX_LANE_COMPUTE, PASS, 3, 4);
  CHECK_OK(g_device->vtable->event_wait(g_device, FX_LANE_COMPUTE, g_event));
  put(FX_LANE_COMPUTE, PASS, 1, 2);
}
/* The event is of a kernel that came early itself. */
static void on_another_lane_behind_an_event(void) {
  put(FX_LANE_COMPUTE, SLOW, 0, 1);
  put(FX_LANE_COMPUTE, PASS, 3, 4);
  CHECK_OK(g_device->vtable->event_record(g_device, FX_LANE_COMPUTE, g_event));
  CHECK_OK(g_device->vtable->event_wait(g_device, FX_LANE_COMM_CRITICAL, g_event));
  put(FX_LANE_COMM_CRITICAL, PASS, 1, 2);
  CHECK_OK(g_device->vtable->event_record(g_device, FX_LANE_COMM_CRITICAL, g_event));
  CHECK_OK(g_device->vtable->event_wait(g_device, FX_LANE_COMPUTE, g_event));
}
static void writing_where_a_slow_kernel_reads(void) {
  put(FX_LANE_COMPUTE, SLOW, 0, 2);
  put(FX_LANE_COMPUTE, PASS, 5, 0);
}
static void without_waiting(void) {
  put(FX_LANE_COMPUTE, SLOW, 0, 1);
  put(FX_LANE_COMPUTE, HASTY, 1, 2);
}

/* Cell 2 after the case; all of it is waited for. */
static int outcome(void (*build)(void), unsigned lanes, bool recorded) {
  fx_recording *recording = NULL;
  for (int i = 0; i < CELLS; i++) g_cell[i] = OLD + i;
  if (recorded) {
    if (!CHECK_OK(g_device->vtable->record_begin(g_device, lanes))) return -1;
    build();
    if (!CHECK_OK(g_device->vtable->record_end(g_device, &recording))) return -1;
    CHECK_OK(g_device->vtable->recording_run(g_device, recording));
  } else {
    build();
  }
  CHECK_OK(fx_device_sync(g_device));
  if (recording) g_device->vtable->recording_destroy(g_device, recording);
  return g_cell[2];
}

static void results_are_waited_for(void) {
  enum { OTHER = 1u << FX_LANE_COMM_CRITICAL };
  static const struct {
    const char *name;
    void (*build)(void);
    unsigned lanes;
  } cases[] = {{"behind a slow kernel", behind_a_slow_kernel, 0},
               {"behind one that waits for a slow kernel", behind_a_kernel_that_waits_for_a_slow_one, 0},
               {"behind an event of another lane", behind_an_event_of_another_lane, OTHER},
               {"on another lane behind an event", on_another_lane_behind_an_event, OTHER},
               {"writing where a slow kernel reads", writing_where_a_slow_kernel_reads, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (int turn = 0; turn < 20; turn++)
      for (int recorded = 0; recorded < 2; recorded++) {
        int got = outcome(cases[i].build, cases[i].lanes, recorded);
        CHECK_MSG(got == OLD, "%s, %s: %d, expected %d", cases[i].name, recorded ? "recorded" : "launched",
                  got, OLD);
      }
}

/* The control: a kernel that does not wait runs while the slow one does, so the cases above could fail. */
static void kernels_do_come_early(void) {
  int early[2] = {0, 0};
  for (int turn = 0; turn < 20; turn++)
    for (int recorded = 0; recorded < 2; recorded++)
      early[recorded] += outcome(without_waiting, 0, recorded) == OLD + 1;
  printf("[early of 20: launched %d, recorded %d] ", early[0], early[1]);
  CHECK(!g_kernel[PASS].follows || (early[0] > 0 && early[1] > 0));
}

static bool prepare(void) {
  const fx_cuda_context *context = g_device->gemm;
  static fx_cuda_module *module;
  fx_cache_image image = {NULL, 0};
  bool ok = CHECK_OK(fx_nvrtc_compile(g_source, "lanes.cu", context->arch, NULL, 0, &image)) &&
            CHECK_OK(fx_cuda_module_load(context->driver, &image, &module));
  for (int k = 0; ok && k < KERNELS; k++) {
    ok = CHECK_OK(fx_cuda_module_function(module, g_names[k], &g_kernel[k]));
    g_kernel[k].follows = k != SLOW && fx_cuda_arch_number(context->arch) >= 90;
  }
  free(image.data);
  return ok && CHECK_OK(fx_device_alloc_host(g_device, CELLS * sizeof *g_cell, (void **)&g_cell)) &&
         CHECK_OK(g_device->vtable->event_create(g_device, &g_event));
}

static fx_status launch_words(void *arg, void *stream) {
  static const uint32_t words[2] = {0xF0000001u, 7};
  fx_kernel_args args = {.gemm = g_device->gemm, .stream = stream};
  return fx_cuda_tell_host(&args, arg, words);
}

/* By who watches them: launched, and again in each replay, of which nothing is launched. */
static void words_for_the_host(void) {
  uint32_t *words = (uint32_t *)(void *)g_cell;
  const fx_device_vtable *device = g_device->vtable;
  fx_recording *recording = NULL;
  words[0] = words[1] = 0;
  CHECK_OK(fx_device_launch(g_device, FX_LANE_COMPUTE, launch_words, words));
  CHECK_OK(device->sync(g_device));
  CHECK(words[0] == 0xF0000001u && words[1] == 7);
  CHECK_OK(device->record_begin(g_device, 1u << FX_LANE_COMPUTE));
  CHECK_OK(fx_device_launch(g_device, FX_LANE_COMPUTE, launch_words, words));
  if (!CHECK_OK(device->record_end(g_device, &recording))) return;
  for (int i = 0; i < 3; i++) {
    words[0] = words[1] = 0;
    CHECK_OK(device->recording_run(g_device, recording));
    CHECK_OK(device->sync(g_device));
    CHECK(words[0] == 0xF0000001u && words[1] == 7);
  }
  device->recording_destroy(g_device, recording);
}

static void everything(void) {
  if (!prepare()) return;
  words_for_the_host();
  results_are_waited_for();
  kernels_do_come_early();
  g_device->vtable->event_destroy(g_device, g_event);
  fx_device_release_host(g_device, g_cell);
}

static const fx_test g_tests[] = {{"kernels that come early wait", everything}};

int main(void) {
  if (fx_device_create_cuda(0, &g_device) != FX_OK) {
    printf("skipped: no GPU (%s)\n", fx_error_text());
    return FX_TEST_SKIPPED;
  }
  int code = fx_test_main("order of kernels on CUDA lanes", g_tests, 1);
  fx_device_destroy(g_device);
  return code;
}
