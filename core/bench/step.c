/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/device.h"
#include "core/train/step.h"
#include "core/train/threads.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/device/peak.h"

enum { TRACE_SPANS = 1 << 14 };

typedef struct bench {
  const fx_config *config;
  fx_device *device;
  fx_model *model;
  fx_inputs *inputs;
  fx_attention_setup *attention;
  fx_stepper *stepper;
  fx_trace *trace;
  int64_t B, T;
  fx_phase phases[2];
  float *snapshot;   /* or NULL */
  int64_t gpu_start; /* bytes of the GPU in use before the model was made */
} bench;

static fx_status fill_inputs(bench *b) {
  int64_t n = b->B * b->T;
  int32_t *tokens = fx_inputs_data(b->inputs, 0, "tokens"),
          *targets = fx_inputs_data(b->inputs, 0, "targets");
  int32_t *positions = fx_inputs_data(b->inputs, 0, "positions"), *start = NULL, *end = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&start, (size_t)n, sizeof *start));
  FX_TRY_GOTO(fx_calloc(&end, (size_t)n, sizeof *end), free_documents);
  for (int64_t i = 0; i < n; i++) {
    fx_philox r = fx_philox_at(1, 2, (uint64_t)i, 0);
    tokens[i] = (int32_t)(r.word[0] % (uint64_t)b->config->model.vocab_size);
    targets[i] = (int32_t)(r.word[1] % (uint64_t)b->config->model.vocab_size);
    positions[i] = (int32_t)(i % b->T);
    end[i] = (int32_t)b->T;
  }
  *(float *)fx_inputs_data(b->inputs, 0, "loss_factor") = (float)(1.0 / (double)n);
  *(float *)fx_inputs_data(b->inputs, 0, "lr") = 1e-5f;
  *(int64_t *)fx_inputs_data(b->inputs, 0, "optimizer_step") = 1;
  fx_attention_batch batch = {tokens, positions, start, end};
  status = fx_attention_fill_slot(b->attention, &batch, b->inputs, 0);
  free(end);
free_documents:
  free(start);
  return status;
}

static fx_status build(bench *b) {
  const fx_config *config = b->config;
  int threads = config->runtime.threads == FX_CONFIG_AUTO ? 0 : (int)config->runtime.threads;
  b->B = config->train.micro_batch_size;
  b->T = config->train.seq_length;
  FX_TRY(fx_device_choose_alone(config, threads, &b->device));
  size_t used = 0, total = 0;
  FX_TRY(fx_device_memory_info(b->device, &used, &total));
  b->gpu_start = (int64_t)used;
  FX_TRY(fx_model_create_on(config, b->device, NULL, &b->model));
  FX_TRY(fx_params_initialize(&b->model->params, (uint64_t)config->train.seed));
  FX_TRY(fx_attention_setup_create(config, b->device->backend, b->B, b->T, &b->attention));
  FX_TRY(fx_inputs_create(2, &b->inputs));
  FX_TRY(fx_step_declare_inputs(b->inputs, b->attention));
  FX_TRY(fx_inputs_allocate_on(b->inputs, b->device));
  if (b->phases[1] == FX_PHASE_UPDATE_SNAPSHOT) FX_TRY(fx_step_snapshot_create(b->model, &b->snapshot));
  fx_step_config step = {.model = b->model,
                         .B = b->B,
                         .T = b->T,
                         .attention = b->attention,
                         .inputs = b->inputs,
                         .device = b->device,
                         .snapshot = b->snapshot,
                         .mode =
                             config->runtime.mode == FX_RUNTIME_MODE_EAGER ? FX_EXEC_EAGER : FX_EXEC_REPLAY};
  FX_TRY(fx_stepper_create(&step, &b->stepper));
  FX_TRY(fx_stepper_prepare(b->stepper, b->phases, 2));
  FX_TRY(fx_stepper_bind(b->stepper));
  FX_TRY(fx_stepper_refresh(b->stepper));
  FX_TRY(fx_trace_create(TRACE_SPANS, &b->trace));
  return fill_inputs(b);
}

static fx_status run_step(bench *b, double *seconds, double *launching) {
  int64_t begin = fx_now_ns();
  for (int p = 0; p < 2; p++) FX_TRY(fx_stepper_launch(b->stepper, b->phases[p], 0));
  *launching = (double)(fx_now_ns() - begin) / 1e9;
  FX_TRY(fx_stepper_wait(b->stepper));
  *seconds = (double)(fx_now_ns() - begin) / 1e9;
  return FX_OK;
}

static fx_bench_op *op_row(fx_bench_step_report *report, const char *name) {
  for (int i = 0; i < report->num_ops; i++)
    if (strcmp(report->ops[i].name, name) == 0) return &report->ops[i];
  if (report->num_ops == FX_BENCH_OPS) return &report->ops[FX_BENCH_OPS - 1];
  fx_bench_op *row = &report->ops[report->num_ops++];
  *row = (fx_bench_op){.name = name};
  return row;
}

static int slowest_first(const void *a, const void *b) {
  const fx_bench_op *x = a, *y = b;
  return (x->ms < y->ms) - (x->ms > y->ms);
}

static void close_step(fx_bench_step_report *report, bool first) {
  for (int i = 0; i < report->num_ops; i++) {
    fx_bench_op *row = &report->ops[i];
    row->ms += row->step_ms / report->steps;
    if (first || row->step_ms < row->best_ms) row->best_ms = row->step_ms;
    row->step_ms = 0;
  }
}

/* Kernel times of the traced steps, one sum a step in kernel_seconds; the table of ops is their mean. */
static void read_trace(const bench *b, int steps, fx_bench_step_report *report, double *kernel_seconds) {
  int64_t count = fx_trace_count(b->trace), per_step = count / steps;
  const fx_trace_span *spans = fx_trace_spans(b->trace);
  for (int s = 0; s < steps; s++) {
    kernel_seconds[s] = 0;
    for (int64_t i = s * per_step; i < (s + 1) * per_step; i++) {
      double seconds = (double)(spans[i].end_ns - spans[i].begin_ns) / 1e9;
      kernel_seconds[s] += seconds;
      fx_bench_op *row = op_row(report, spans[i].name);
      row->step_ms += 1e3 * seconds;
      row->calls += s == 0;
    }
    close_step(report, s == 0);
  }
  for (int p = 0; p < 2; p++) {
    const fx_plan *plan = fx_stepper_plan(b->stepper, b->phases[p]);
    for (int i = 0; i < fx_plan_stats_get(plan)->nodes; i++) {
      const char *name = NULL;
      fx_cost cost = fx_plan_step_cost(plan, i, &name);
      fx_bench_op *row = op_row(report, name);
      row->gflop += cost.flops / 1e9;
      row->gbyte += cost.bytes / 1e9;
    }
  }
  qsort(report->ops, (size_t)report->num_ops, sizeof report->ops[0], slowest_first);
}

/* Median of `steps` steps after two that are not counted (the second makes recordings). */
static fx_status time_steps(bench *b, int steps, double *seconds, double *launching) {
  double first, spent;
  for (int s = 0; s < 2; s++) FX_TRY(run_step(b, &first, &spent));
  for (int s = 0; s < steps; s++) FX_TRY(run_step(b, &seconds[s], &launching[s]));
  return FX_OK;
}

/* On a GPU the timed steps are not the traced ones: a traced kernel runs alone. */
static fx_status measure_gpu(bench *b, int steps, double *seconds, double *scratch,
                             fx_bench_step_report *report) {
  if (fx_plan_records(fx_stepper_plan(b->stepper, b->phases[0]))) {
    fx_stepper_launch_kernels(b->stepper, true);
    FX_TRY(time_steps(b, steps, seconds, scratch));
    report->launched_step_ms = 1e3 * fx_median(seconds, steps);
    fx_stepper_launch_kernels(b->stepper, false);
  }
  FX_TRY(time_steps(b, steps, seconds, scratch));
  report->launch_us = 1e6 * fx_median(scratch, steps);
  return FX_OK;
}

static fx_status measure(bench *b, int steps, fx_bench_step_report *report) {
  double *step_seconds = NULL, *kernel_seconds = NULL, *scratch = NULL, warm = 0, launching = 0;
  bool gpu = b->device->backend != FX_BACKEND_CPU;
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_calloc(&step_seconds, (size_t)steps, sizeof(double)), free_times);
  FX_TRY_GOTO(fx_calloc(&kernel_seconds, (size_t)steps, sizeof(double)), free_times);
  FX_TRY_GOTO(fx_calloc(&scratch, (size_t)steps, sizeof(double)), free_times);
  FX_TRY_GOTO(run_step(b, &warm, &launching), free_times);
  report->first_step_ms = 1e3 * warm;
  FX_TRY_GOTO(run_step(b, &warm, &launching), free_times);
  if (gpu) FX_TRY_GOTO(measure_gpu(b, steps, step_seconds, scratch, report), free_times);
  fx_stepper_set_trace(b->stepper, b->trace);
  for (int s = 0; s < steps; s++) {
    FX_TRY_GOTO(run_step(b, &warm, &launching), free_times);
    if (!gpu) step_seconds[s] = warm;
  }
  read_trace(b, steps, report, kernel_seconds);
  double flops = 0;
  for (int p = 0; p < 2; p++)
    flops += fx_plan_stats_get(fx_stepper_plan(b->stepper, b->phases[p]))->cost.flops;
  for (int s = 0; s < steps; s++) scratch[s] = 100 * (step_seconds[s] - kernel_seconds[s]) / step_seconds[s];
  if (!gpu) report->dispatch_percent = fx_median(scratch, steps);
  report->step_ms = 1e3 * fx_median(step_seconds, steps);
  report->best_step_ms = 1e3 * step_seconds[0]; /* sorted by now */
  report->kernel_ms = 1e3 * fx_median(kernel_seconds, steps);
  report->tokens_per_s = 1e3 * (double)report->tokens / report->step_ms;
  report->gflops = flops / 1e6 / report->step_ms;
free_times:
  free(scratch);
  free(kernel_seconds);
  free(step_seconds);
  return status;
}

/* What is known of the device beside the times. */
static fx_status describe(bench *b, fx_bench_step_report *report) {
  const fx_device *device = b->device;
  fx_dtype dtype = b->model->params.dtype;
  size_t used = 0, total = 0;
  if (device->backend == FX_BACKEND_CPU)
    snprintf(report->device, sizeof report->device, "%d threads, %s", device->threads, device->isa);
  else
    snprintf(report->device, sizeof report->device, "%.64s, %s, %s", device->name, device->isa,
             fx_dtype_name(dtype));
  report->peak_bytes = fx_memory_peak();
  FX_TRY(fx_device_memory_info(b->device, &used, &total));
  report->gpu_peak_bytes = (int64_t)used;
  FX_TRY(fx_machine_measure_device(b->device, dtype, &report->bounds));
  double peak = fx_device_peak(device->name, dtype);
  if (peak > 0)
    report->mfu_percent = 100 * fx_model_flops_per_token(b->model, b->T) * report->tokens_per_s / peak;
  return FX_OK;
}

static void destroy(bench *b) {
  fx_stepper_destroy(b->stepper);
  fx_trace_destroy(b->trace);
  fx_inputs_destroy(b->inputs);
  fx_attention_setup_destroy(b->attention);
  fx_step_snapshot_destroy(b->model, b->snapshot);
  fx_model_destroy(b->model);
  fx_device_destroy(b->device);
}

fx_status fx_bench_step(const fx_config *config, int steps, bool snapshot, fx_bench_step_report *report) {
  bench b = {.config = config,
             .phases = {FX_PHASE_MICRO_ONLY, snapshot ? FX_PHASE_UPDATE_SNAPSHOT : FX_PHASE_UPDATE}};
  memset(report, 0, sizeof *report);
  report->memory.libraries = fx_memory_resident();
  int64_t begin = fx_now_ns();
  fx_status status = build(&b);
  if (status == FX_OK) {
    report->capture_ms = (double)(fx_now_ns() - begin) / 1e6;
    report->params = fx_model_num_params(b.model);
    report->tokens = b.B * b.T;
    report->steps = steps;
    report->threads = b.device->threads;
    fx_stepper_account(b.stepper, &report->memory);
    report->memory.gpu_start = b.gpu_start;
    status = measure(&b, steps, report);
    if (status == FX_OK) status = describe(&b, report);
  }
  destroy(&b);
  return status;
}
