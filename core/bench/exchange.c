/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides are plans of the same recording (layer.h). Operands of the whole sequence come from fixed seeds
 * on every rank, and each takes its rows, so that results can be compared where they are. A step times one
 * after the other, so that what disturbs the machine disturbs both. Ranks share the memory of a CPU, so there
 * rank 0 alone is timed with the whole sequence and the others make its results afterwards. */
#include "core/bench/exchange.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/context.h"
#include "core/bench/machine.h"
#include "core/train/device.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/exec/trace.h"
#include "parallel/topology.h"

enum { TIMEOUT_MS = 600000, WARM_RUNS = 2, MAX_REPEATS = 1000 };
/* Of a timed step at least. Attention draws all the power that a GPU may have, and for some tenths of a
 * second after the pause at a barrier the clock swings about what that allows: the shorter the run, the
 * slower. */
static const double GPU_SPAN_S = 1.0;

typedef struct side {
  fx_bench_layer layer;
  int repeats; /* runs of a timed step, back to back */
} side;

typedef struct bench {
  const fx_config *config;
  const fx_bench_layer_options *options;
  fx_control *control;
  fx_device *device;
  fx_topology *topology;
  side single, shared;
} bench;

/* ---- set-up ---- */

static fx_status check(const fx_config *config, const fx_control *control,
                       const fx_bench_layer_options *options, int64_t length) {
  long long unit = (long long)FX_LIMITS_ALIGN * control->size;
  if (control->size < 2)
    return fx_error(FX_ERR_USAGE, "bench context needs at least 2 ranks to share a sequence; start it as "
                                  "launch/run.sh -np 2 bench context CONFIG");
  FX_TRY(fx_bench_layer_check(config, options, length, unit));
  if (length % unit)
    return fx_error(FX_ERR_USAGE,
                    "%lld positions cannot be dealt to %d ranks in blocks of %d; give --length or "
                    "train.seq_length a multiple of %lld",
                    (long long)length, control->size, FX_LIMITS_ALIGN, unit);
  return FX_OK;
}

static fx_status fill(fx_bench_layer *layer) {
  fx_attention_batch batch = fx_bench_layer_batch(layer);
  return fx_attention_fill_slot(layer->setup, &batch, layer->inputs, 0);
}

/* All that a rank does without the others. */
static fx_status prepare(bench *b, int64_t length) {
  fx_bench_layer *single = &b->single.layer, *shared = &b->shared.layer;
  int ranks = b->control->size, rank = b->control->rank;
  FX_TRY(fx_bench_layer_init(b->config, b->device, b->options, length, 1, 0, true, single));
  FX_TRY(fx_bench_layer_randomize(single));
  FX_TRY(fill(single));
  FX_TRY(fx_bench_layer_plan(single, NULL));
  FX_TRY(fx_bench_layer_init(b->config, b->device, b->options, length, ranks, rank, true, shared));
  FX_TRY(fill(shared));
  fx_bench_layer_fit(shared);
  FX_TRY(fx_bench_layer_take(shared, single));
  return fx_bench_layer_plan(shared, b->topology->comm.cp);
}

static fx_status build(bench *b, int64_t length) {
  FX_TRY(fx_device_choose_job(b->config, b->control, NULL, &b->device));
  FX_TRY(fx_topology_create_on(b->control, b->device, 1, b->control->size, &b->topology));
  FX_TRY(fx_control_agree_status(b->control, prepare(b, length), TIMEOUT_MS));
  fx_status status = fx_plan_bind(b->single.layer.plan, b->single.layer.arena);
  if (status == FX_OK) status = fx_plan_bind(b->shared.layer.plan, b->shared.layer.arena);
  return fx_control_agree_status(b->control, status, TIMEOUT_MS);
}

/* ---- time ---- */

static fx_status run(const bench *b, const side *s, int times) {
  for (int i = 0; i < times; i++) FX_TRY(fx_plan_run(s->layer.plan, 0));
  return fx_device_sync(b->device);
}

static bool takes_part(const bench *b, const side *s) {
  return s == &b->shared || b->device->backend != FX_BACKEND_CPU || b->control->rank == 0;
}

/* Seconds of one run on the slowest rank that takes part. */
static fx_status time_side(const bench *b, const side *s, int times, double *seconds) {
  double mine = 0;
  fx_status status = FX_OK;
  FX_TRY(fx_control_barrier(b->control, TIMEOUT_MS));
  if (takes_part(b, s)) {
    int64_t begin = fx_now_ns();
    status = run(b, s, times);
    mine = (double)(fx_now_ns() - begin) * 1e-9 / times;
  }
  FX_TRY(fx_control_agree_status(b->control, status, TIMEOUT_MS));
  return fx_control_largest(b->control, mine, seconds, TIMEOUT_MS);
}

/* The first run loads what is loaded late, the second makes the recording where there is one. */
static fx_status warm_up(const bench *b, side *s) {
  double seconds;
  for (int i = 0; i < WARM_RUNS; i++) FX_TRY(time_side(b, s, 1, &seconds));
  s->repeats = 1;
  if (b->device->backend == FX_BACKEND_CPU) return FX_OK;
  FX_TRY(time_side(b, s, 1, &seconds));
  s->repeats = (int)fmin(fmax(ceil(GPU_SPAN_S / seconds), 1), MAX_REPEATS);
  return FX_OK;
}

static fx_status time_steps(bench *b, fx_bench_exchange_report *r) {
  int steps = b->options->steps;
  double *seconds = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&seconds, 2 * (size_t)steps, sizeof *seconds));
  FX_TRY_GOTO(warm_up(b, &b->single), free_times);
  FX_TRY_GOTO(warm_up(b, &b->shared), free_times);
  for (int i = 0; i < steps; i++) {
    FX_TRY_GOTO(time_side(b, &b->single, b->single.repeats, &seconds[i]), free_times);
    FX_TRY_GOTO(time_side(b, &b->shared, b->shared.repeats, &seconds[steps + i]), free_times);
  }
  r->single_ms = 1e3 * fx_median(seconds, steps);
  r->shared_ms = 1e3 * fx_median(seconds + steps, steps);
free_times:
  free(seconds);
  return status;
}

/* One run of both sides, each kernel alone, so that their times are right. */
static fx_status save_trace(const bench *b) {
  enum { MOST_SPANS = 1 << 16 };
  const side *const sides[] = {&b->single, &b->shared};
  fx_trace *trace = NULL;
  double unused;
  fx_status status = fx_trace_create(MOST_SPANS, &trace);
  status = fx_control_agree_status(b->control, status, TIMEOUT_MS);
  for (int i = 0; i < 2 && status == FX_OK; i++) {
    fx_plan_set_trace(sides[i]->layer.plan, trace);
    status = time_side(b, sides[i], 1, &unused);
    fx_plan_set_trace(sides[i]->layer.plan, NULL);
  }
  if (status == FX_OK)
    status = fx_control_agree_status(b->control, fx_trace_save(trace, b->options->trace, b->control->rank),
                                     TIMEOUT_MS);
  fx_trace_destroy(trace);
  return status;
}

/* ---- the same numbers? ---- */

/* Float32: gradients of keys are sums over all queries in another order, whose roundings walk at random.
 * Causal sums of T H / K = 16,384 terms differ by 3.1e-6 on a CPU, and by twice that for four times as many.
 * Bfloat16: sums are float32, results are rounded once or twice (2^-9 each, 3e-3 measured). */
static double bound_of(const fx_bench_exchange_report *r) {
  double terms = (double)(r->T * r->H) / (double)r->K;
  return r->dtype == FX_BF16 ? 2e-2 : 1e-5 * sqrt(fmax(terms / 16384, 1));
}

static double element(const void *x, int64_t i, fx_dtype dtype) {
  return dtype == FX_BF16 ? (double)fx_bf16_to_f32(((const uint16_t *)x)[i]) : (double)((const float *)x)[i];
}

/* Relative L2 difference of columns [begin, end); infinite when a number is not finite. */
static double difference(const void *got, const void *want, fx_dtype dtype, int64_t rows, int64_t width,
                         int64_t begin, int64_t end) {
  double error = 0, norm = 0;
#pragma omp parallel for schedule(static) reduction(+ : error, norm)
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = row * width + begin; i < row * width + end; i++) {
      double x = element(got, i, dtype), y = element(want, i, dtype);
      error += (x - y) * (x - y);
      norm += y * y;
    }
  double relative = norm > 0 ? sqrt(error / norm) : sqrt(error);
  return isfinite(relative) ? relative : INFINITY;
}

/* This rank's rows of both sides, in memory of the host. */
static fx_status fetch(const bench *b, int64_t width, const void *local, const void *whole, void *got,
                       void *want) {
  const fx_bench_layer *l = &b->shared.layer;
  size_t bytes = (size_t)(l->B * l->rows * width) * fx_dtype_bytes(l->dtype);
  FX_TRY(fx_device_copy(b->device, FX_LANE_COMPUTE, got, local, bytes));
  FX_TRY(fx_bench_layer_copy_rows(l, width, whole, want));
  return fx_device_sync(b->device);
}

static fx_status compare_rows(const bench *b, double mine[FX_BENCH_RESULTS]) {
  const fx_bench_layer *single = &b->single.layer, *l = &b->shared.layer;
  int64_t H = l->H * l->D, K = l->K * l->D, width = H + 2 * K, rows = l->B * l->rows;
  const int64_t columns[] = {0, H, H + K, width};
  void *got = NULL, *want = NULL;
  fx_status status = FX_OK;
  if (!takes_part(b, &b->single)) FX_TRY(run(b, &b->single, 1));
  FX_TRY_GOTO(fx_alloc_aligned(&got, (size_t)(rows * width) * fx_dtype_bytes(l->dtype)), free_rows);
  FX_TRY_GOTO(fx_alloc_aligned(&want, (size_t)(rows * width) * fx_dtype_bytes(l->dtype)), free_rows);
  FX_TRY_GOTO(fetch(b, H, l->out, single->out, got, want), free_rows);
  mine[FX_BENCH_OUT] = difference(got, want, l->dtype, rows, H, 0, H);
  FX_TRY_GOTO(fetch(b, width, l->dqkv, single->dqkv, got, want), free_rows);
  for (int i = 0; i < 3; i++)
    mine[FX_BENCH_DQ + i] = difference(got, want, l->dtype, rows, width, columns[i], columns[i + 1]);
free_rows:
  free(want);
  free(got);
  return status;
}

static fx_status compare(const bench *b, fx_bench_exchange_report *r) {
  static const char *const names[] = {"out", "dq", "dk", "dv"};
  double mine[FX_BENCH_RESULTS] = {0};
  r->bound = bound_of(r);
  FX_TRY(fx_control_agree_status(b->control, compare_rows(b, mine), TIMEOUT_MS));
  for (int i = 0; i < FX_BENCH_RESULTS; i++) {
    FX_TRY(fx_control_largest(b->control, mine[i], &r->difference[i], TIMEOUT_MS));
    r->worst = fmax(r->worst, r->difference[i]);
  }
  for (int i = 0; i < FX_BENCH_RESULTS; i++)
    if (r->difference[i] > r->bound)
      return fx_error(FX_ERR_INTERNAL,
                      "%s of %d ranks that share %lld positions by %s differs from %s of one rank by %.3g "
                      "(relative L2); expected at most %.1e in %s; report this configuration, and train "
                      "with parallel.context=1 until it is solved",
                      names[i], r->ranks, (long long)r->T, r->exchange, names[i], r->difference[i], r->bound,
                      fx_dtype_name(r->dtype));
  return FX_OK;
}

/* ---- the report ---- */

/* Of the layer alone, whatever the others attend to. */
static fx_status find_imbalance(const fx_bench_layer *shared, double *imbalance) {
  fx_attention_setup setup = *shared->setup;
  void *memory[FX_ATTENTION_MAX_FIELDS];
  fx_bench_context context;
  for (int32_t k = 0; k < setup.num_kinds; k++) setup.kind[k].layers = k == shared->index;
  fx_bench_layer_fields(shared, memory);
  FX_TRY(fx_bench_context_measure(&setup, memory, &context));
  *imbalance = context.imbalance;
  fx_bench_context_fini(&context);
  return FX_OK;
}

static fx_status describe(const bench *b, fx_bench_exchange_report *r) {
  const fx_bench_layer *l = &b->shared.layer;
  r->ranks = b->control->size;
  r->B = l->B, r->T = l->T, r->H = l->H, r->K = l->K, r->D = l->D;
  r->documents = l->documents;
  r->dtype = l->dtype;
  r->gpu = b->device->backend != FX_BACKEND_CPU;
  r->recorded = fx_plan_records(l->plan);
  r->threads = b->device->threads;
  r->exchange = fx_context_exchange_name(l->setup->exchange);
  r->room = l->setup->room;
  r->blocks = (int)(l->rows / FX_LIMITS_ALIGN);
  r->steps = b->options->steps;
  snprintf(r->device, sizeof r->device, "%.60s", b->device->name);
  snprintf(r->transport, sizeof r->transport, "%s", b->topology->comm.cp->vtable->transport);
  snprintf(r->variant, sizeof r->variant, "%s", l->kind->flex->variant->name);
  FX_TRY(fx_bench_layer_pairs(&b->single.layer, &r->visible_pairs, &r->pairs_exact));
  return find_imbalance(l, &r->imbalance);
}

static void rate(fx_bench_exchange_report *r) {
  double tflop = 14e-12 * r->visible_pairs * (double)(r->H * r->D);
  r->single_tflops = 1e3 * tflop / r->single_ms;
  r->shared_tflops = 1e3 * tflop / r->ranks / r->shared_ms;
  r->efficiency = r->single_ms / (r->ranks * r->shared_ms);
}

fx_status fx_bench_exchange(const fx_config *config, fx_control *control,
                            const fx_bench_layer_options *options, fx_bench_exchange_report *r) {
  bench b = {.config = config, .options = options, .control = control};
  int64_t length = options->length ? options->length : config->train.seq_length;
  memset(r, 0, sizeof *r);
  FX_TRY(check(config, control, options, length));
  fx_status status = build(&b, length);
  if (status == FX_OK) status = fx_control_agree_status(control, describe(&b, r), TIMEOUT_MS);
  if (status == FX_OK) status = time_steps(&b, r);
  if (status == FX_OK && options->trace) status = save_trace(&b);
  if (status == FX_OK) status = compare(&b, r);
  if (status == FX_OK) rate(r);
  fx_bench_layer_fini(&b.shared.layer);
  fx_bench_layer_fini(&b.single.layer);
  fx_topology_destroy(b.topology);
  fx_device_destroy(b.device);
  return status;
}
