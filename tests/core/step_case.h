/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training steps of two small models on one device, CPU or GPU: batches, a step, the state it leaves,
 * and a count of what the device is asked for meanwhile. */
#ifndef FX_TESTS_CORE_STEP_CASE_H
#define FX_TESTS_CORE_STEP_CASE_H

#include <stdio.h>

#include "dynamo_rt/base/philox.h"
#include "tests/core/fixture.h"

enum { STEP_B = 2, STEP_T = 160, STEP_MICROS = 2, STEP_VOCAB = 300 };
static const fx_phase g_step_phases[] = {FX_PHASE_MICRO_FIRST, FX_PHASE_MICRO_LAST, FX_PHASE_UPDATE};
enum { STEP_PHASES = sizeof g_step_phases / sizeof g_step_phases[0] };

/* Heads of 64, the least that GPUs attend to. */
static const char *const g_step_models[] = {
    "model: {model_type: llama, vocab_size: 300, hidden_size: 256, num_hidden_layers: 2, "
    "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 344, max_position_embeddings: 160}\n"
    "attention: {variant: document_causal}\n"
    "train: {seq_length: 160, micro_batch_size: 2, global_batch_size: 4, seed: 3}\n",
    "model: {model_type: gpt2, vocab_size: 300, hidden_size: 128, num_hidden_layers: 2, "
    "num_attention_heads: 2, max_position_embeddings: 160, bias: true, dropout: 0.1}\n"
    "attention: {variant: sliding_window, params: {window: 50}}\n"
    "train: {seq_length: 160, micro_batch_size: 2, global_batch_size: 4, seed: 3}\n"};
static const char *const g_step_names[] = {"llama", "gpt2"};
enum { STEP_LLAMA, STEP_GPT2, STEP_MODELS };

/* How plans run. */
typedef struct step_way {
  const char *name;
  fixture_options options;
  bool launched; /* kernel by kernel */
  bool autotune; /* products of a GPU are timed in the first step */
} step_way;

static inline bool step_begin(fixture *f, const char *yaml, const step_way *way, const fx_phase *phases,
                              int count) {
  if (!fixture_init(f, yaml, STEP_B, STEP_T, way->options)) return false;
  if (way->autotune && f->device->vtable->autotune) f->device->vtable->autotune(f->device, true);
  if (!fixture_prepare(f, phases, count) || !CHECK_OK(fx_params_initialize(&f->model->params, 3)) ||
      !CHECK_OK(fx_stepper_refresh(f->stepper)))
    return false;
  fx_stepper_launch_kernels(f->stepper, way->launched);
  for (int i = 0; i < count; i++)
    CHECK_INT(fx_plan_records(fx_stepper_plan(f->stepper, phases[i])),
              way->options.cuda && way->options.mode == FX_EXEC_REPLAY && !way->launched);
  return true;
}

/* Batch number `batch` into slot 0, but for the token and the target at one place where they are given. */
static inline void step_fill_but(fixture *f, int64_t batch, float loss_factor, int place,
                                 const int32_t *token, const int32_t *target) {
  enum { COUNT = STEP_B * STEP_T };
  static int32_t tokens[COUNT], targets[COUNT], start[COUNT];
  for (int64_t i = 0; i < COUNT; i++) {
    fx_philox r = fx_philox_at(17, 4, (uint64_t)i, (uint64_t)batch);
    tokens[i] = (int32_t)(r.word[0] % STEP_VOCAB);
    targets[i] = r.word[1] % 7 == 0 ? -1 : (int32_t)(r.word[0] % STEP_VOCAB * 7 % STEP_VOCAB);
    bool begins = i % STEP_T == 0 || r.word[3] % 40 == 0;
    start[i] = begins ? (int32_t)(i % STEP_T) : start[i - 1];
  }
  if (token) tokens[place] = *token;
  if (target) targets[place] = *target;
  fixture_fill(f, tokens, targets, start, loss_factor);
}

static inline void step_fill(fixture *f, int64_t batch, float loss_factor) {
  step_fill_but(f, batch, loss_factor, 0, NULL, NULL);
}

typedef struct step_numbers {
  float loss, norm;
} step_numbers;

/* Step `step` (from 0) of batches `batch`, batch + 1. */
static inline step_numbers step_run(fixture *f, int step, int64_t batch) {
  for (int m = 0; m < STEP_MICROS; m++) {
    step_fill(f, batch + m, 1.0f / (STEP_B * STEP_T * STEP_MICROS));
    fixture_optimizer(f, 1e-3f, step + 1);
    CHECK_OK(fx_stepper_run(f->stepper, g_step_phases[m], 0));
  }
  CHECK_OK(fx_stepper_run(f->stepper, FX_PHASE_UPDATE, 0));
  const fx_step_results *results = fx_stepper_results(f->stepper);
  return (step_numbers){*results->loss, *results->grad_norm};
}

/* ---- the state that steps change ---- */

enum { STATE_WEIGHTS, STATE_EXP_AVG, STATE_EXP_AVG_SQ, STATE_COMPUTE, STATE_PARTS };
static const char *const g_state_parts[] = {"weights", "exp_avg", "exp_avg_sq", "bfloat16 weights"};

typedef struct step_state {
  void *part[STATE_PARTS]; /* copies on the host; NULL: there is none */
  size_t bytes[STATE_PARTS];
} step_state;

static inline step_state step_state_take(const fixture *f) {
  const fx_params *p = &f->model->params;
  const void *from[STATE_PARTS] = {p->weight, p->exp_avg, p->exp_avg_sq, p->compute};
  step_state s;
  memset(&s, 0, sizeof s);
  CHECK_INT(p->num_own, p->numel);
  for (int i = 0; i < STATE_PARTS; i++) {
    if (!from[i]) continue;
    s.bytes[i] = (size_t)p->numel * (i == STATE_COMPUTE ? sizeof *p->compute : sizeof *p->weight);
    s.part[i] = malloc(s.bytes[i]);
    CHECK_OK(fx_device_copy(f->device, FX_LANE_COMPUTE, s.part[i], from[i], s.bytes[i]));
  }
  CHECK_OK(fx_device_sync(f->device));
  return s;
}

static inline void step_state_free(step_state *s) {
  for (int i = 0; i < STATE_PARTS; i++) free(s->part[i]);
}

/* Bit i: part i is not the same, bit for bit. */
static inline unsigned step_state_differs(const step_state *a, const step_state *b) {
  unsigned parts = 0;
  for (int i = 0; i < STATE_PARTS; i++)
    if (a->bytes[i] != b->bytes[i] || (a->bytes[i] && memcmp(a->part[i], b->part[i], a->bytes[i]) != 0))
      parts |= 1u << i;
  return parts;
}

static inline void step_state_check_same(const step_state *got, const step_state *want, const char *what,
                                         const char *where) {
  unsigned parts = step_state_differs(got, want);
  for (int i = 0; i < STATE_PARTS; i++)
    CHECK_MSG(!(parts >> i & 1), "%s: %s: %s are not the same bits", where, what, g_state_parts[i]);
}

/* ---- what a device is asked for ---- */

typedef struct step_watch {
  int allocations, recordings_run;
} step_watch;
static step_watch g_watch;
static fx_device_vtable g_watched;
static const fx_device_vtable *g_unwatched;

static inline fx_status watch_alloc(fx_device *device, size_t bytes, void **out) {
  g_watch.allocations++;
  return g_unwatched->alloc(device, bytes, out);
}
static inline fx_status watch_alloc_host(fx_device *device, size_t bytes, void **out) {
  g_watch.allocations++;
  return g_unwatched->alloc_host(device, bytes, out);
}
static inline fx_status watch_event_create(fx_device *device, fx_event **out) {
  g_watch.allocations++;
  return g_unwatched->event_create(device, out);
}
static inline fx_status watch_recording_run(fx_device *device, fx_recording *recording) {
  g_watch.recordings_run++;
  return g_unwatched->recording_run(device, recording);
}

/* Counts, for the rest of the device's life, in g_watch. One device at a time. */
static inline void step_watch_begin(fx_device *device) {
  g_unwatched = device->vtable;
  g_watched = *device->vtable;
  g_watched.alloc = watch_alloc;
  g_watched.alloc_host = watch_alloc_host;
  g_watched.event_create = watch_event_create;
  if (g_watched.recording_run) g_watched.recording_run = watch_recording_run;
  device->vtable = &g_watched;
  g_watch = (step_watch){0, 0};
}

#endif
