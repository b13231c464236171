/* SPDX-License-Identifier: Apache-2.0 */
/* One graph on the CPU and on the GPU: a case declares inputs and outputs by name, the rest is the same.
 * Outputs are poisoned before each run. The GPU runs it by replay twice and by eager once: the three must
 * agree in every bit, and with the CPU within a relative norm. */
#ifndef FX_TESTS_GPU_GPU_CASE_H
#define FX_TESTS_GPU_GPU_CASE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/plan/plan.h"
#include "tests/harness.h"

enum { MAX_BUFFERS = 32 };

typedef struct gpu_buffer {
  const char *name;
  void *data; /* of the device that runs */
  fx_type type;
  bool output;
} gpu_buffer;

typedef struct gpu_world {
  fx_device *device;
  fx_graph *graph;
  gpu_buffer buffer[MAX_BUFFERS];
  int count;
  bool half;          /* of the case */
  int64_t rows, cols; /* of the case */
} gpu_world;

typedef struct gpu_case {
  const char *name;
  void (*build)(gpu_world *world);
  double bound; /* relative L2 norm of each output; 0: the same bits as the CPU */
  bool half;    /* elements are bfloat16 on the GPU, and float32 rounded to bfloat16 on the CPU */
  int64_t rows, cols;
} gpu_case;

static inline gpu_buffer *world_buffer(gpu_world *w, const char *name, fx_type type, bool output) {
  gpu_buffer *b = &w->buffer[w->count++];
  FX_ASSERT(w->count <= MAX_BUFFERS);
  *b = (gpu_buffer){.name = name, .type = type, .output = output};
  CHECK_OK(fx_device_alloc_host(w->device, fx_type_bytes(&type), &b->data));
  memset(b->data, 0xFF, fx_type_bytes(&type));
  return b;
}

/* A float32 input of normal numbers; the name seeds them. output: it is changed in place and compared. */
static inline fx_value world_normals(gpu_world *w, const char *name, fx_type type, float sigma, bool output) {
  uint64_t seed = 0;
  for (const char *c = name; *c; c++) seed = seed * 31 + (uint64_t)*c;
  gpu_buffer *b = world_buffer(w, name, type, output);
  fx_fill_normal(b->data, fx_type_numel(&type), seed, sigma);
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, type);
}

/* The same as the element type of the case. */
static inline fx_value world_halved(gpu_world *w, fx_value x) {
  if (!w->half) return x;
  fx_value half = fx_cast(FX_AT(w->graph), x, FX_BF16);
  return w->device->backend == FX_BACKEND_CPU ? fx_cast(FX_AT(w->graph), half, FX_F32) : half;
}
static inline fx_value world_elements(gpu_world *w, const char *name, fx_type type, float sigma) {
  return world_halved(w, world_normals(w, name, type, sigma, false));
}

/* An int32 input of numbers in [low, high). */
static inline fx_value world_integers(gpu_world *w, const char *name, fx_type type, int32_t low,
                                      int32_t high) {
  gpu_buffer *b = world_buffer(w, name, type, false);
  for (int64_t i = 0; i < fx_type_numel(&type); i++)
    ((int32_t *)b->data)[i] =
        low + (int32_t)(fx_philox_at(7, 8, (uint64_t)i, 0).word[0] % (uint32_t)(high - low));
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, type);
}

static inline fx_value world_number(gpu_world *w, const char *name, float number) {
  gpu_buffer *b = world_buffer(w, name, fx_type_1d(FX_F32, 1), false);
  *(float *)b->data = number;
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, b->type);
}

static inline fx_value world_count(gpu_world *w, const char *name, int64_t number) {
  gpu_buffer *b = world_buffer(w, name, fx_type_1d(FX_I64, 1), false);
  *(int64_t *)b->data = number;
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, b->type);
}

static inline bool is_half(const gpu_world *w, fx_value value) {
  return value != FX_NONE && fx_graph_type(w->graph, value)->dtype == FX_BF16;
}

/* Of float32 and bfloat16 as float32. */
static inline void world_output(gpu_world *w, const char *name, fx_value value) {
  if (w->half && is_half(w, value)) value = fx_cast(FX_AT(w->graph), value, FX_F32);
  const fx_type *type = fx_graph_type(w->graph, value);
  if (!CHECK_MSG(type != NULL && value != FX_NONE, "%s was not recorded: %s", name, fx_error_text())) return;
  fx_type flat = fx_type_of(type->dtype, type->ndim, type->dim);
  gpu_buffer *b = world_buffer(w, name, flat, true);
  fx_store(FX_AT(w->graph), fx_graph_persistent(FX_AT(w->graph), name, b->data, flat), value);
}

/* ---- running ---- */

static inline bool run_plan(fx_device *device, fx_graph *graph, fx_exec_mode mode) {
  fx_plan *plan = NULL;
  void *arena = NULL;
  fx_plan_options options = {.name = "gpu", .mode = mode, .poison = true};
  bool good = CHECK_OK(fx_plan_prepare(graph, options, device, &plan));
  if (!good) return false;
  size_t bytes = fx_plan_stats_get(plan)->arena.bytes + FX_ALIGN;
  good = CHECK_OK(fx_device_alloc(device, bytes, &arena)) &&
         CHECK_OK(fx_device_fill(device, FX_LANE_COMPUTE, arena, 0xFF, bytes)) &&
         CHECK_OK(fx_plan_bind(plan, arena)) && CHECK_OK(fx_plan_run(plan, 0)) &&
         CHECK_OK(fx_device_sync(device));
  fx_device_release(device, arena);
  fx_plan_destroy(plan);
  return good;
}

/* Copies of the outputs, one after the other as the case declared them; NULL after a failed check. */
static inline char *world_run(const gpu_case *c, fx_device *device, fx_exec_mode mode, gpu_world *shape) {
  gpu_world w = {
      .device = device, .graph = fx_graph_create(NULL), .half = c->half, .rows = c->rows, .cols = c->cols};
  char *outputs = NULL;
  size_t bytes = 0, at = 0;
  c->build(&w);
  bool good = CHECK_OK(fx_graph_status(w.graph));
  if (!good)
    fx_graph_destroy(w.graph);
  else
    good = run_plan(device, w.graph, mode);
  for (int i = 0; i < w.count; i++)
    if (w.buffer[i].output) bytes += fx_type_bytes(&w.buffer[i].type);
  if (good) outputs = malloc(bytes);
  for (int i = 0; i < w.count; i++) {
    size_t size = fx_type_bytes(&w.buffer[i].type);
    if (outputs && w.buffer[i].output) {
      memcpy(outputs + at, w.buffer[i].data, size);
      at += size;
    }
    fx_device_release_host(device, w.buffer[i].data);
  }
  if (shape) *shape = w;
  return outputs;
}

/* The largest difference of an element, relative to its size and the root mean square of all; infinite where
 * one is not finite and the other is. */
static inline double worst_element(const float *got, const float *want, int64_t n) {
  double square = 0, worst = 0;
  for (int64_t i = 0; i < n; i++) square += (double)want[i] * (double)want[i];
  double root = sqrt(square / (double)n);
  for (int64_t i = 0; i < n; i++) {
    double off = fabs((double)got[i] - (double)want[i]) / (fabs((double)want[i]) + root + 1e-300);
    worst = off <= worst ? worst : isnan(off) ? INFINITY : off;
  }
  return worst;
}

/* A dropped element moves the norm of a large tensor by less than its bound, so each is looked at too. */
static inline void compare(const gpu_case *c, const gpu_buffer *b, const char *got, const char *want) {
  enum { ELEMENT = 32 };
  size_t bytes = fx_type_bytes(&b->type);
  if (c->bound <= 0 || b->type.dtype != FX_F32) {
    CHECK_MSG(memcmp(got, want, bytes) == 0, "%s: %s differs from the CPU", c->name, b->name);
    return;
  }
  const float *left = (const float *)(const void *)got, *right = (const float *)(const void *)want;
  int64_t n = fx_type_numel(&b->type);
  double error = fx_relative_l2_f(left, right, n), worst = worst_element(left, right, n);
  if (getenv("FX_SHOW"))
    printf("%-28s %s %5lld x %-5lld %-10s %.2g, an element %.2g, of %.2g\n", c->name,
           c->half ? "bf16" : "f32 ", (long long)c->rows, (long long)c->cols, b->name, error, worst,
           c->bound);
  CHECK_MSG(error <= c->bound && worst <= ELEMENT * c->bound,
            "%s (%s, %lld x %lld): %s is off by %.3g, an element by %.3g, expected at most %.3g", c->name,
            c->half ? "bfloat16" : "float32", (long long)c->rows, (long long)c->cols, b->name, error, worst,
            c->bound);
}

static inline void run_case(const gpu_case *c, fx_device *cpu, fx_device *gpu) {
  gpu_world shape;
  char *want = world_run(c, cpu, FX_EXEC_REPLAY, &shape);
  char *got = want ? world_run(c, gpu, FX_EXEC_REPLAY, NULL) : NULL;
  char *again = got ? world_run(c, gpu, FX_EXEC_REPLAY, NULL) : NULL;
  char *eager = again ? world_run(c, gpu, FX_EXEC_EAGER, NULL) : NULL;
  size_t at = 0;
  for (int i = 0; eager && i < shape.count; i++) {
    const gpu_buffer *b = &shape.buffer[i];
    size_t bytes = fx_type_bytes(&b->type);
    if (!b->output) continue;
    compare(c, b, got + at, want + at);
    CHECK_MSG(memcmp(got + at, again + at, bytes) == 0, "%s: %s differs between two runs", c->name, b->name);
    CHECK_MSG(memcmp(got + at, eager + at, bytes) == 0, "%s: %s differs between replay and eager", c->name,
              b->name);
    at += bytes;
  }
  free(want);
  free(got);
  free(again);
  free(eager);
}

#endif
