/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/graph_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/ops/elementwise.h"
#include "tests/double_reference.h"
#include "tests/harness.h"

/* ---- building ---- */

fx_world_buffer *fx_world_new_buffer(fx_world *w, const char *name, fx_type type, bool output) {
  fx_world_buffer *b = &w->buffer[w->count++];
  FX_ASSERT(w->count <= FX_WORLD_BUFFERS);
  *b = (fx_world_buffer){.name = name, .type = type, .output = output};
  CHECK_OK(fx_device_alloc_host(w->device, fx_type_bytes(&type), &b->data));
  memset(b->data, 0xFF, fx_type_bytes(&type));
  return b;
}

/* Past the first 99,991, a prime, the numbers come again: drawing millions would take longer than the test,
 * and no two rows of one tensor are alike. */
fx_value fx_world_normals(fx_world *w, const char *name, fx_type type, float sigma, bool output) {
  enum { PERIOD = 99991 };
  uint64_t seed = 0;
  for (const char *c = name; *c; c++) seed = seed * 31 + (uint64_t)*c;
  fx_world_buffer *b = fx_world_new_buffer(w, name, type, output);
  float *data = b->data;
  int64_t n = fx_type_numel(&type);
  fx_fill_normal(data, fx_min_i64(n, PERIOD), seed, sigma);
  for (int64_t i = PERIOD; i < n; i++) data[i] = data[i - PERIOD];
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, type);
}

fx_value fx_world_halved(fx_world *w, fx_value x) {
  if (!w->half) return x;
  fx_value half = fx_cast(FX_AT(w->graph), x, FX_BF16);
  return w->device->backend == FX_BACKEND_CPU ? fx_cast(FX_AT(w->graph), half, FX_F32) : half;
}

fx_value fx_world_elements(fx_world *w, const char *name, fx_type type, float sigma) {
  return fx_world_halved(w, fx_world_normals(w, name, type, sigma, false));
}

fx_value fx_world_integers(fx_world *w, const char *name, fx_type type, int32_t low, int32_t high) {
  fx_world_buffer *b = fx_world_new_buffer(w, name, type, false);
  for (int64_t i = 0; i < fx_type_numel(&type); i++)
    ((int32_t *)b->data)[i] =
        low + (int32_t)(fx_philox_at(7, 8, (uint64_t)i, 0).word[0] % (uint32_t)(high - low));
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, type);
}

fx_value fx_world_number(fx_world *w, const char *name, float number) {
  fx_world_buffer *b = fx_world_new_buffer(w, name, fx_type_1d(FX_F32, 1), false);
  *(float *)b->data = number;
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, b->type);
}

fx_value fx_world_count(fx_world *w, const char *name, int64_t number) {
  fx_world_buffer *b = fx_world_new_buffer(w, name, fx_type_1d(FX_I64, 1), false);
  *(int64_t *)b->data = number;
  return fx_graph_persistent(FX_AT(w->graph), name, b->data, b->type);
}

void fx_world_output(fx_world *w, const char *name, fx_value value) {
  if (!CHECK_MSG(value != FX_NONE, "%s was not recorded: %s", name, fx_error_text())) return;
  if (w->half && fx_graph_type(w->graph, value)->dtype == FX_BF16)
    value = fx_cast(FX_AT(w->graph), value, FX_F32);
  const fx_type *type = fx_graph_type(w->graph, value);
  fx_type flat = fx_type_of(type->dtype, type->ndim, type->dim);
  fx_world_buffer *b = fx_world_new_buffer(w, name, flat, true);
  fx_store(FX_AT(w->graph), fx_graph_persistent(FX_AT(w->graph), name, b->data, flat), value);
}

void fx_world_gradient(fx_world *w, const char *name, fx_value grad) {
  if (!CHECK_MSG(grad != FX_NONE, "%s was not recorded: %s", name, fx_error_text())) return;
  w->gradients++;
  if (!w->add) fx_world_output(w, name, grad);
  fx_value total = fx_world_normals(w, name, *fx_graph_type(w->graph, grad), 1, true);
  fx_accumulate(FX_AT(w->graph), total, grad);
}

/* ---- running ---- */

static bool run_plan(fx_device *device, fx_graph *graph, fx_exec_mode mode) {
  fx_plan *plan = NULL;
  void *arena = NULL;
  fx_plan_options options = {.name = "case", .mode = mode, .poison = true};
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

/* Of the recorded graph, which no pass has seen yet: what passes do to it is tested too. */
static double *reference_of(const fx_world *w) {
  const void *data[FX_WORLD_BUFFERS];
  double *result[FX_WORLD_BUFFERS], *all = NULL;
  int64_t total = 1, at = 0;
  int count = 0;
  for (int i = 0; i < w->count; i++)
    if (w->buffer[i].output) total += fx_type_numel(&w->buffer[i].type);
  if (!CHECK_OK(fx_calloc(&all, (size_t)total, sizeof *all))) return NULL;
  for (int i = 0; i < w->count; i++) {
    if (!w->buffer[i].output) continue;
    data[count] = w->buffer[i].data;
    result[count++] = all + at;
    at += fx_type_numel(&w->buffer[i].type);
  }
  if (CHECK_OK(fx_double_reference_run(w->graph, data, result, count))) return all;
  free(all);
  return NULL;
}

/* Takes the world's memory. */
static char *take_outputs(fx_world *w, bool good) {
  char *outputs = NULL;
  size_t bytes = 0, at = 0;
  for (int i = 0; i < w->count; i++)
    if (w->buffer[i].output) bytes += fx_type_bytes(&w->buffer[i].type);
  if (good) outputs = malloc(bytes);
  for (int i = 0; i < w->count; i++) {
    size_t size = fx_type_bytes(&w->buffer[i].type);
    if (outputs && w->buffer[i].output) {
      memcpy(outputs + at, w->buffer[i].data, size);
      at += size;
    }
    fx_device_release_host(w->device, w->buffer[i].data);
    w->buffer[i].data = NULL;
  }
  return outputs;
}

char *fx_world_run(const fx_graph_case *c, fx_device *device, fx_exec_mode mode, fx_world *shape,
                   double **want) {
  fx_world w = {.device = device,
                .graph = fx_graph_create(NULL),
                .half = c->half,
                .add = c->add,
                .rows = c->rows,
                .cols = c->cols};
  if (want) *want = NULL;
  c->build(&w);
  bool good = CHECK_OK(fx_graph_status(w.graph));
  if (good && want) good = (*want = reference_of(&w)) != NULL;
  if (good)
    good = run_plan(device, w.graph, mode);
  else
    fx_graph_destroy(w.graph);
  char *outputs = take_outputs(&w, good);
  if (shape) *shape = w;
  return outputs;
}

/* ---- comparing ---- */

/* A dropped element moves the norm of a large tensor by less than its bound, so each is looked at too.
 * element: the largest difference, relative to its size and the root mean square of all. A number that is not
 * finite, on either side, is infinitely far off. */
typedef struct distance {
  double norm, element;
} distance;

/* The outputs are packed, so that one behind bfloat16 need not be aligned. */
static double float_at(const char *data, int64_t i) {
  float number;
  memcpy(&number, data + (size_t)i * sizeof number, sizeof number);
  return (double)number;
}

static distance distance_of(const char *got, const double *want, int64_t n) {
  double square = 0, off = 0, worst = 0;
  for (int64_t i = 0; i < n; i++) {
    double d = float_at(got, i) - want[i];
    square += want[i] * want[i];
    off += d * d;
  }
  double root = sqrt(square / (double)n);
  for (int64_t i = 0; i < n; i++) {
    double d = fabs(float_at(got, i) - want[i]) / (fabs(want[i]) + root + 1e-300);
    worst = d <= worst ? worst : isnan(d) ? INFINITY : d;
  }
  double norm = sqrt(off) / (sqrt(square) + 1e-300);
  return (distance){isnan(norm) ? INFINITY : norm, worst};
}

static void compare(const fx_graph_case *c, const fx_world_buffer *b, const char *got, const double *want) {
  enum { ELEMENT = 32 };
  int64_t n = fx_type_numel(&b->type), differ = 0;
  if (c->bound <= 0 || b->type.dtype != FX_F32) {
    for (int64_t i = 0; i < n; i++)
      differ += !(fx_double_load(got, b->type.dtype, i) == fx_double_round(want[i], b->type.dtype));
    CHECK_MSG(differ == 0, "%s (%lld x %lld): %lld of %lld elements of %s are not the rounded reference",
              c->name, (long long)c->rows, (long long)c->cols, (long long)differ, (long long)n, b->name);
    return;
  }
  distance d = distance_of(got, want, n);
  if (getenv("FX_SHOW"))
    printf("%-28s %s %5lld x %-5lld %-10s %.2g, an element %.2g, of %.2g\n", c->name,
           c->half ? "bf16" : "f32 ", (long long)c->rows, (long long)c->cols, b->name, d.norm, d.element,
           c->bound);
  CHECK_MSG(d.norm <= c->bound && d.element <= ELEMENT * c->bound,
            "%s (%s%s, %lld x %lld): %s is off by %.3g, an element by %.3g, expected at most %.3g", c->name,
            c->half ? "bfloat16" : "float32", c->add ? ", added" : "", (long long)c->rows, (long long)c->cols,
            b->name, d.norm, d.element, c->bound);
}

void fx_world_compare(const fx_graph_case *c, const fx_world *shape, const char *got, const double *want) {
  for (int i = 0; i < shape->count; i++) {
    const fx_world_buffer *b = &shape->buffer[i];
    if (!b->output) continue;
    compare(c, b, got, want);
    got += fx_type_bytes(&b->type);
    want += fx_type_numel(&b->type);
  }
}
