/* SPDX-License-Identifier: Apache-2.0 */
/* A model with its step on one CPU rank, from a few lines of YAML: what the suites of core share. */
#ifndef FX_TESTS_CORE_FIXTURE_H
#define FX_TESTS_CORE_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "core/train/step.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

typedef struct fixture {
  fx_config *config;
  fx_device *device;
  fx_model *model;
  fx_inputs *inputs;
  fx_attention_setup *attention;
  fx_stepper *stepper;
  int64_t B, T;
} fixture;

typedef struct fixture_options {
  int threads;
  fx_exec_mode mode;
  bool poison, keep_logits, cuda;
  bool pretend_cuda;           /* plans as for a GPU, to be prepared but not run */
  const fx_topology *topology; /* gradients are summed over its dp_cp, sequences shared over its cp */
} fixture_options;

static inline void fixture_inputs(const fx_attention_setup *attention, fx_device *device, fx_inputs **out) {
  CHECK_OK(fx_inputs_create(2, out));
  CHECK_OK(fx_step_declare_inputs(*out, attention));
  CHECK_OK(fx_inputs_allocate_on(*out, device));
}

static inline bool fixture_init(fixture *f, const char *yaml, int64_t B, int64_t T, fixture_options options) {
  memset(f, 0, sizeof *f);
  f->B = B;
  f->T = T;
  if (!CHECK_OK(fx_config_parse(yaml, "fixture", &f->config))) return false;
  if (!CHECK_OK(options.cuda
                    ? fx_device_create_cuda(0, &f->device)
                    : fx_device_create_cpu(options.threads ? options.threads : 1, "auto", &f->device)))
    return false;
  if (options.pretend_cuda) f->device->backend = FX_BACKEND_CUDA;
  if (!CHECK_OK(fx_model_create_on(f->config, f->device, options.topology, &f->model))) return false;
  int ranks = options.topology ? options.topology->cp : 1, rank = ranks > 1 ? options.topology->cp_rank : 0;
  if (!CHECK_OK(
          fx_attention_setup_create_for(f->config, f->device->backend, B, T, ranks, rank, &f->attention)))
    return false;
  fixture_inputs(f->attention, f->device, &f->inputs);
  fx_step_config step = {.model = f->model,
                         .B = B,
                         .T = f->attention->rows,
                         .attention = f->attention,
                         .inputs = f->inputs,
                         .device = f->device,
                         .mode = options.mode,
                         .poison = options.poison,
                         .keep_logits = options.keep_logits,
                         .dp = options.topology ? options.topology->comm.dp_cp : NULL};
  return CHECK_OK(fx_stepper_create(&step, &f->stepper));
}

static inline void fixture_fini(fixture *f) {
  fx_stepper_destroy(f->stepper);
  fx_inputs_destroy(f->inputs);
  fx_attention_setup_destroy(f->attention);
  fx_model_destroy(f->model);
  fx_device_destroy(f->device);
  fx_config_destroy(f->config);
}

/* Fills slot 0: tokens, targets [B, T]; one document a sample unless doc_start is given. */
static inline void fixture_fill(fixture *f, const int32_t *tokens, const int32_t *targets,
                                const int32_t *doc_start, float loss_factor) {
  int64_t n = f->B * f->T;
  int32_t *positions = fx_inputs_data(f->inputs, 0, "positions");
  int32_t *start = calloc((size_t)n, sizeof *start), *end = calloc((size_t)n, sizeof *end);
  memcpy(fx_inputs_data(f->inputs, 0, "tokens"), tokens, (size_t)n * sizeof(int32_t));
  memcpy(fx_inputs_data(f->inputs, 0, "targets"), targets, (size_t)n * sizeof(int32_t));
  for (int64_t i = n - 1; i >= 0; i--) {
    int32_t t = (int32_t)(i % f->T);
    start[i] = doc_start ? doc_start[i] : 0;
    bool last = t == f->T - 1 || (doc_start && doc_start[i + 1] > t);
    end[i] = last ? t + 1 : end[i + 1];
    positions[i] = t - start[i];
  }
  for (int64_t b = 0; b < f->B; b++) ((int64_t *)fx_inputs_data(f->inputs, 0, "sample_ordinal"))[b] = b;
  *(float *)fx_inputs_data(f->inputs, 0, "loss_factor") = loss_factor;
  fx_attention_batch batch = {tokens, positions, start, end};
  CHECK_OK(fx_attention_fill_slot(f->attention, &batch, f->inputs, 0));
  free(start);
  free(end);
}

static inline void fixture_optimizer(fixture *f, float lr, int64_t step) {
  *(float *)fx_inputs_data(f->inputs, 0, "lr") = lr;
  *(int64_t *)fx_inputs_data(f->inputs, 0, "optimizer_step") = step;
  *(int64_t *)fx_inputs_data(f->inputs, 0, "iteration") = step - 1;
}

/* Prepares and binds; phases are an array literal. */
static inline bool fixture_prepare(fixture *f, const fx_phase *phases, int count) {
  return CHECK_OK(fx_stepper_prepare(f->stepper, phases, count)) && CHECK_OK(fx_stepper_bind(f->stepper));
}

#endif
