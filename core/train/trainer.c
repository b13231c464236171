/* SPDX-License-Identifier: Apache-2.0 */
/* Building a run and driving it. Set-up is collective and its errors are agreed, so that a rank with a
 * missing file takes all ranks down with one sentence. So are saves. Elsewhere in the loop a failing rank
 * returns at once: its peers may sit in a collective, and launch ends the job. */
#include "core/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/agree.h"
#include "core/train/device.h"
#include "core/train/schedule.h"
#include "core/train/state.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/peak.h"
#include "dynamo_rt/plan/ledger.h"
#include "parallel/agree.h"

enum { BAD_STEPS_LIMIT = 10, SLOTS = 2 };
enum { FLAG_STOP, FLAG_WRITTEN }; /* the flags of a step, see fx_step_results */

/* ---- control channel through the service thread ---- */

typedef struct gather_call {
  fx_control *control;
  const void *mine;
  int64_t bytes;
  char **all;
  int64_t *offsets;
} gather_call;

static fx_status run_gather(void *arg, void *stream) {
  gather_call *call = arg;
  (void)stream;
  return fx_control_all_gather(call->control, call->mine, call->bytes, call->all, call->offsets,
                               FX_CONTROL_TIMEOUT_MS);
}

fx_status fx_trainer_gather(fx_trainer *run, const void *mine, int64_t bytes, char **all, int64_t *offsets) {
  gather_call call = {run->job->control, mine, bytes, all, offsets};
  return fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_gather, &call);
}

typedef struct status_call {
  fx_control *control;
  fx_status mine;
  char text[2048];
} status_call;

static fx_status run_status(void *arg, void *stream) {
  status_call *call = arg;
  (void)stream;
  if (call->mine != FX_OK) fx_error(call->mine, "%s", call->text); /* this thread's record */
  return fx_control_agree_status(call->control, call->mine, FX_CONTROL_TIMEOUT_MS);
}

fx_status fx_trainer_barrier_status(fx_trainer *run, fx_status mine) {
  status_call call = {.control = run->job->control, .mine = mine};
  if (mine != FX_OK) strncpy(call.text, fx_error_text(), sizeof call.text - 1);
  return fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_status, &call);
}

/* ---- set-up ---- */

static bool saves_beside(const fx_trainer *run) {
  const fx_config_checkpoint *c = &run->config->checkpoint;
  return c->async && c->interval > 0 && c->interval < run->config->train.iters;
}

/* Where the compiler failed the interpreter does the same work, slower. */
static void warn_of_interpreters(const fx_trainer *run) {
  for (int32_t k = 0; k < run->attention->num_kinds; k++) {
    const fx_flex_variant *flex = run->attention->kind[k].flex;
    const char *reason = flex->kernel ? fx_tile_kernel_reason(flex->kernel) : "";
    if (*reason && run->job->control->rank == 0)
      fx_warn(run->job->log, "the attention variant \"%s\" is interpreted, which is slower: %s",
              flex->variant->name, reason);
  }
}

static fx_status create_stepper(void *trainer) {
  fx_trainer *run = trainer;
  const fx_config *config = run->config;
  int64_t B = config->train.micro_batch_size, T = config->train.seq_length;
  FX_TRY(fx_attention_setup_create_for(config, run->device->backend, B, T, run->topology->cp,
                                       run->topology->cp_rank, &run->attention));
  FX_TRY(fx_attention_check_deterministic(config, run->attention, run->device->backend));
  warn_of_interpreters(run);
  FX_TRY(fx_inputs_create(SLOTS, &run->inputs));
  FX_TRY(fx_step_declare_inputs(run->inputs, run->attention));
  FX_TRY(fx_inputs_allocate_on(run->inputs, run->device));
  if (saves_beside(run)) FX_TRY(fx_step_snapshot_create(run->model, &run->snapshot));
  fx_step_config step = {.model = run->model,
                         .B = B,
                         .T = run->attention->rows,
                         .attention = run->attention,
                         .topology = run->topology_text,
                         .dp = run->topology->comm.dp_cp,
                         .inputs = run->inputs,
                         .device = run->device,
                         .mode =
                             config->runtime.mode == FX_RUNTIME_MODE_EAGER ? FX_EXEC_EAGER : FX_EXEC_REPLAY,
                         .snapshot = run->snapshot,
                         .log = run->job->log};
  return fx_stepper_create(&step, &run->stepper);
}

static int64_t micro_steps(const fx_trainer *run) {
  const fx_config_train *train = &run->config->train;
  return train->global_batch_size / (train->micro_batch_size * run->topology->dp);
}

static bool evaluates(const fx_trainer *run) {
  return run->config->train.eval_interval > 0 && fx_pipeline_valid_tokens(run->pipeline) > 0;
}

static int needed_phases(const fx_trainer *run, fx_phase phases[FX_PHASE_COUNT]) {
  int count = fx_step_micro_phases(micro_steps(run), phases);
  phases[count++] = FX_PHASE_UPDATE;
  if (run->snapshot) phases[count++] = FX_PHASE_UPDATE_SNAPSHOT;
  if (evaluates(run)) phases[count++] = FX_PHASE_EVAL;
  if (run->model->params.zero) phases[count++] = FX_PHASE_GATHER;
  return count;
}

typedef struct agree_call {
  fx_control *control;
  const char *names[FX_STEP_MAX_PLANS];
  char *ledgers[FX_STEP_MAX_PLANS];
  int count;
} agree_call;

static fx_status run_agree(void *arg, void *stream) {
  agree_call *call = arg;
  (void)stream;
  return fx_agree_plans(call->control, call->names, (const char *const *)call->ledgers, call->count,
                        FX_CONTROL_TIMEOUT_MS);
}

static fx_status prepare(void *trainer) {
  fx_trainer *run = trainer;
  fx_phase phases[FX_PHASE_COUNT];
  return fx_stepper_prepare(run->stepper, phases, needed_phases(run, phases));
}

static fx_status capture(fx_trainer *run) {
  fx_phase phases[FX_PHASE_COUNT];
  const fx_plan *plans[FX_STEP_MAX_PLANS];
  agree_call call = {.control = run->job->control};
  int num_phases = needed_phases(run, phases);
  FX_TRY(fx_agree_compiled(run->job->control, prepare, run, run->job->log));
  fx_status status = FX_OK;
  call.count = fx_stepper_list(run->stepper, phases, num_phases, plans);
  for (int i = 0; i < call.count; i++) {
    call.names[i] = fx_plan_name(plans[i]);
    call.ledgers[i] = fx_plan_ledger(plans[i]);
    if (!call.ledgers[i]) status = fx_error(FX_ERR_MEMORY, "out of host memory");
  }
  if (status == FX_OK) status = fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_agree, &call);
  for (int i = 0; i < call.count; i++) free(call.ledgers[i]);
  if (status != FX_OK) return status;
  int64_t before = fx_device_memory_used(run->device);
  status = fx_stepper_bind(run->stepper);
  if (status == FX_OK) status = fx_stepper_refresh(run->stepper);
  int64_t grown = fx_device_memory_used(run->device) - before - (int64_t)fx_stepper_arena_bytes(run->stepper);
  run->memory.gpu_comm = run->job->control->size > 1 && grown > 0 ? grown : 0;
  fx_trainer_recording_begin(run);
  return fx_trainer_barrier_status(run, status);
}

static void describe(fx_trainer *run) {
  const fx_config_train *train = &run->config->train;
  char memory[FX_MEMORY_TEXT];
  char compute[96];
  if (run->device->backend == FX_BACKEND_CPU)
    snprintf(compute, sizeof compute, "%d threads a rank", run->device->threads);
  else
    snprintf(compute, sizeof compute, "%.60s, %s", run->device->name,
             fx_dtype_name(run->model->params.dtype));
  fx_info(run->job->log,
          "%lld parameters | %s | %s, %s, %s | %lld x %lld tokens a step in %lld micro-batches",
          (long long)fx_model_num_params(run->model), run->topology_text, compute, run->device->isa,
          run->device->gemm_name, (long long)train->global_batch_size, (long long)train->seq_length,
          (long long)micro_steps(run));
  fx_info(run->job->log, "%lld training tokens (%lld samples an epoch), %lld validation tokens, attention %s",
          (long long)fx_pipeline_train_tokens(run->pipeline),
          (long long)fx_pipeline_samples_per_epoch(run->pipeline),
          (long long)fx_pipeline_valid_tokens(run->pipeline), run->attention->text);
  if (run->peak_flops > 0)
    fx_info(run->job->log, "MFU is of %.0f TFLOP/s a GPU (%s, %s)", run->peak_flops / 1e12, run->device->name,
            fx_dtype_name(run->model->params.dtype));
  else if (run->device->backend != FX_BACKEND_CPU)
    fx_info(run->job->log, "MFU n/a: the peak of %s in %s is not known", run->device->name,
            fx_dtype_name(run->model->params.dtype));
  fx_stepper_account(run->stepper, &run->memory);
  run->memory.data = fx_pipeline_bytes(run->pipeline);
  fx_memory_print(&run->memory, memory);
  fx_info(run->job->log, "memory planned for this rank, %s", memory);
}

static void describe_peak(const fx_trainer *run) {
  int64_t peak = fx_memory_peak();
  size_t used = 0, total = 0;
  if (run->job->control->rank != 0) return;
  if (fx_device_memory_info(run->device, &used, &total) == FX_OK && total > 0)
    fx_info(run->job->log, "GPU memory in use %.1f of %.1f MiB, %+.1f%% of what was planned",
            (double)used / 1048576.0, (double)total / 1048576.0,
            fx_memory_excess_percent(fx_memory_planned_gpu(&run->memory), (int64_t)used));
  else if (peak > 0)
    fx_info(run->job->log, "memory at most resident (VmHWM) %.1f MiB, %+.1f%% of what was planned",
            (double)peak / 1048576.0, fx_memory_excess_percent(fx_memory_planned(&run->memory), peak));
}

static fx_status create_data(fx_trainer *run) {
  fx_pipeline_options options = {.config = run->config,
                                 .attention = run->attention,
                                 .dp_rank = run->topology->dp_rank,
                                 .dp_size = run->topology->dp,
                                 .consumed_samples = run->consumed_samples,
                                 .log = run->job->control->rank == 0 ? run->job->log : NULL};
  return fx_pipeline_create(&options, &run->pipeline);
}

static fx_status run_data_agree(void *arg, void *stream) {
  const fx_trainer *run = arg;
  (void)stream;
  return fx_pipeline_agree(run->pipeline, run->job->control, FX_CONTROL_TIMEOUT_MS);
}

static fx_status open_outputs(fx_trainer *run) {
  if (run->job->trace_path) FX_TRY(fx_trace_create(1 << 16, &run->trace));
  if (run->job->control->rank != 0) return FX_OK;
  return fx_metrics_open(run->config->checkpoint.dir, fx_trainer_iteration(run), run->job->log,
                         &run->metrics);
}

static fx_status run_watchdog_start(void *arg, void *stream) {
  fx_trainer *run = arg;
  const fx_topology_comms *comm = &run->topology->comm;
  (void)stream;
  fx_watchdog_options options = {
      .timeout_ms = (int)fx_min_i64(1000 * run->config->parallel.watchdog, INT32_MAX),
      .comm = {comm->world, comm->tp, comm->cp, comm->dp, comm->dp_cp, run->topology->kv},
      .log = run->job->log,
      .fatal = run->job->fatal,
      .ctx = run->job->ctx};
  return fx_watchdog_start(run->job->control, options, &run->watchdog);
}

static fx_status start_watchdog(fx_trainer *run) {
  if (run->job->control->size == 1 || run->config->parallel.watchdog == 0) return FX_OK;
  return fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_watchdog_start, run);
}

static fx_status build(fx_trainer *run, double *capture_ms) {
  fx_control *control = run->job->control;
  FX_TRY(fx_config_agree(run->config, control, FX_CONTROL_TIMEOUT_MS));
  fx_status status = fx_control_agree_status(control, fx_config_check_ranks(run->config, control->size),
                                             FX_CONTROL_TIMEOUT_MS);
  if (status != FX_OK) return status;
  FX_TRY(fx_device_choose_job(run->config, control, control->rank == 0 ? run->job->log : NULL, &run->device));
  run->memory.gpu_start = fx_device_memory_used(run->device);
  FX_TRY(fx_topology_create_on(control, run->device, (int)run->config->parallel.tensor,
                               (int)run->config->parallel.context, &run->topology));
  FX_TRY(fx_topology_share_heads(control, run->device, run->topology, fx_model_kv_ranks(run->config)));
  fx_topology_shape shape = {run->topology->tp, run->topology->cp, run->topology->dp};
  fx_topology_text(shape, run->topology_text, sizeof run->topology_text);
  FX_TRY(fx_trainer_barrier_status(run,
                                   fx_model_create_on(run->config, run->device, run->topology, &run->model)));
  if (run->model->params.zero)
    snprintf(run->topology_text + strlen(run->topology_text),
             sizeof run->topology_text - strlen(run->topology_text), " zero:%d", run->model->params.zero);
  run->peak_flops = run->device->backend == FX_BACKEND_CPU
                        ? 0
                        : fx_device_peak(run->device->name, run->model->params.dtype);
  FX_TRY(fx_trainer_restore(run));
  FX_TRY(fx_agree_compiled(control, create_stepper, run, run->job->log));
  FX_TRY(fx_trainer_barrier_status(run, create_data(run)));
  FX_TRY(fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_data_agree, run));
  int64_t begin = fx_now_ns();
  FX_TRY(capture(run));
  *capture_ms = (double)(fx_now_ns() - begin) / 1e6;
  FX_TRY(fx_trainer_barrier_status(run, open_outputs(run)));
  FX_TRY(fx_trainer_barrier_status(run, start_watchdog(run)));
  if (control->rank == 0) describe(run);
  return FX_OK;
}

/* ---- the loop ---- */

/* The step that is about to be done will be saved beside training (the last one is saved at once). A skipped
 * step counts as an iteration too, so the number is known before the gradient is. */
static bool snapshots(const fx_trainer *run) {
  int64_t step = fx_trainer_iteration(run) + 1, interval = run->config->checkpoint.interval;
  return run->snapshot && step % interval == 0 && step < run->config->train.iters;
}

/* What this rank tells the others with the loss of this step. */
static void set_flags(const fx_trainer *run, float flags[FX_STEP_FLAGS]) {
  flags[FLAG_STOP] = run->job->stop && *run->job->stop ? 1.0f : 0.0f;
  flags[FLAG_WRITTEN] = fx_trainer_save_written(run) ? 1.0f : 0.0f;
}

static fx_status run_step(fx_trainer *run, double lr) {
  int64_t micros = micro_steps(run), valid = 0;
  for (int64_t m = 0; m < micros; m++) {
    int slot = (int)(m % SLOTS);
    FX_TRY(fx_stepper_wait_slot(run->stepper, slot));
    FX_TRY(fx_pipeline_next(run->pipeline, run->inputs, slot, &valid));
    *(float *)fx_inputs_data(run->inputs, slot, "lr") = (float)lr;
    *(int64_t *)fx_inputs_data(run->inputs, slot, "iteration") = fx_trainer_iteration(run);
    *(int64_t *)fx_inputs_data(run->inputs, slot, "optimizer_step") = run->optimizer_step + 1;
    set_flags(run, fx_inputs_data(run->inputs, slot, "flags"));
    fx_phase phase = micros == 1       ? FX_PHASE_MICRO_ONLY
                     : m == 0          ? FX_PHASE_MICRO_FIRST
                     : m == micros - 1 ? FX_PHASE_MICRO_LAST
                                       : FX_PHASE_MICRO_MID;
    FX_TRY(fx_stepper_launch(run->stepper, phase, slot));
  }
  if (run->job->on_gradients) {
    FX_TRY(fx_stepper_wait(run->stepper));
    fx_step_view view = {fx_trainer_iteration(run), (double)*fx_stepper_results(run->stepper)->loss,
                         &run->model->params};
    run->job->on_gradients(run->job->ctx, &view);
  }
  /* The snapshot is about to be overwritten: what is still being written of it comes first. */
  if (snapshots(run)) FX_TRY(fx_trainer_save_finish(run));
  fx_phase update = snapshots(run) ? FX_PHASE_UPDATE_SNAPSHOT : FX_PHASE_UPDATE;
  FX_TRY(fx_stepper_launch(run->stepper, update, (int)((micros - 1) % SLOTS)));
  FX_TRY(fx_stepper_wait(run->stepper));
  run->consumed_samples += run->config->train.global_batch_size;
  run->last_loss = (double)*fx_stepper_results(run->stepper)->loss;
  if (isfinite(*fx_stepper_results(run->stepper)->grad_norm)) {
    run->optimizer_step++;
    run->bad_in_a_row = 0;
    return FX_OK;
  }
  run->skipped++;
  if (++run->bad_in_a_row >= BAD_STEPS_LIMIT)
    return fx_error(FX_ERR_DIVERGED,
                    "the gradient was not finite in %d steps in a row, up to step %lld: lower optimizer.lr, "
                    "check the data, or "
                    "resume from an earlier checkpoint",
                    BAD_STEPS_LIMIT, (long long)fx_trainer_iteration(run));
  return FX_OK;
}

/* Sum of nll and number of targets over the split; terms are added in rank order. Tensor-parallel ranks have
 * the same terms. */
static fx_status evaluate(fx_trainer *run, double *loss, int64_t *targets) {
  const fx_step_results *results = fx_stepper_results(run->stepper);
  int64_t tokens = run->config->train.micro_batch_size * run->attention->rows;
  double mine[2] = {0, 0}, total[2] = {0, 0};
  if (run->model->params.zero) FX_TRY(fx_stepper_run(run->stepper, FX_PHASE_GATHER, 0));
  for (int64_t i = 0; i < fx_pipeline_valid_batches(run->pipeline); i++) {
    int64_t valid = 0;
    FX_TRY(fx_pipeline_valid_batch(run->pipeline, i, run->inputs, 0, &valid));
    fx_watchdog_begin(run->watchdog, fx_trainer_iteration(run));
    FX_TRY(fx_stepper_run(run->stepper, FX_PHASE_EVAL, 0));
    fx_watchdog_end(run->watchdog);
    for (int64_t t = 0; t < tokens; t++) mine[0] += (double)results->nll[t];
    mine[1] += (double)valid;
  }
  int size = run->job->control->size;
  char *all = NULL;
  int64_t *offsets = NULL;
  FX_TRY(fx_calloc(&offsets, (size_t)size + 1, sizeof *offsets));
  fx_status status = fx_trainer_gather(run, mine, sizeof mine, &all, offsets);
  for (int r = 0; status == FX_OK && r < size; r += run->topology->tp) {
    double theirs[2];
    memcpy(theirs, all + offsets[r], sizeof theirs);
    total[0] += theirs[0];
    total[1] += theirs[1];
  }
  free(all);
  free(offsets);
  *loss = total[1] > 0 ? total[0] / total[1] : NAN;
  *targets = (int64_t)total[1];
  return status;
}

static fx_status log_step(fx_trainer *run, double lr, int64_t steps, double seconds) {
  const fx_config *config = run->config;
  const fx_step_results *results = fx_stepper_results(run->stepper);
  double tokens = (double)(steps * config->train.global_batch_size * config->train.seq_length);
  fx_metrics_row row = {.step = fx_trainer_iteration(run),
                        .iters = config->train.iters,
                        .loss = run->last_loss,
                        .lr = lr,
                        .grad_norm = (double)*results->grad_norm,
                        .tokens_per_s = seconds > 0 ? tokens / seconds : 0,
                        .step_ms = 1000 * seconds / (double)steps,
                        .mfu = NAN,
                        .consumed_samples = run->consumed_samples,
                        .skipped = run->skipped};
  if (run->peak_flops > 0)
    row.mfu = fx_model_flops_per_token(run->model, config->train.seq_length) * row.tokens_per_s /
              (run->peak_flops * run->job->control->size);
  return run->metrics ? fx_metrics_train(run->metrics, &row) : FX_OK;
}

/* Evaluation and checkpoint after a step; *stop: the run ends here. */
static fx_status after_step(fx_trainer *run, bool *stop) {
  const fx_config *config = run->config;
  const float *flags = fx_stepper_results(run->stepper)->flags;
  int64_t step = fx_trainer_iteration(run), interval = config->checkpoint.interval;
  bool last = step >= config->train.iters, due = interval > 0 && step % interval == 0;
  bool everybody_wrote = (int)flags[FLAG_WRITTEN] == run->job->control->size;
  *stop = last || flags[FLAG_STOP] > 0;
  if (run->saver.writer && (everybody_wrote || *stop)) FX_TRY(fx_trainer_save_finish(run));
  if (due && !last && run->snapshot) FX_TRY(fx_trainer_save_start(run));
  if (evaluates(run) && (last || step % config->train.eval_interval == 0)) {
    int64_t targets = 0;
    FX_TRY(evaluate(run, &run->last_valid_loss, &targets));
    if (run->metrics) FX_TRY(fx_metrics_valid(run->metrics, step, run->last_valid_loss, targets));
  }
  if (*stop && run->saver.writer)
    return fx_trainer_save_finish(run); /* this very step is the one in flight */
  return *stop || (due && !run->snapshot) ? fx_trainer_save(run) : FX_OK;
}

static fx_status save_trace(fx_trainer *run) {
  fx_status status = fx_trace_save(run->trace, run->job->trace_path, run->job->control->rank);
  fx_stepper_set_trace(run->stepper, NULL);
  return status;
}

static fx_status loop(fx_trainer *run) {
  const fx_config_train *train = &run->config->train;
  double tokens = (double)(train->global_batch_size * train->seq_length), seconds = 0;
  int64_t steps = 0, done = 0;
  bool stop = fx_trainer_iteration(run) >= train->iters;
  while (!stop) {
    double lr = fx_learning_rate(run->config, fx_trainer_iteration(run));
    bool traced = run->trace && done + 1 == run->job->trace_step;
    if (traced) fx_stepper_set_trace(run->stepper, run->trace);
    int64_t begin = fx_now_ns();
    fx_watchdog_begin(run->watchdog, fx_trainer_iteration(run) + 1);
    FX_TRY(run_step(run, lr));
    fx_watchdog_end(run->watchdog);
    double took = (double)(fx_now_ns() - begin) / 1e9;
    if (traced) FX_TRY(save_trace(run));
    seconds += took;
    steps++;
    if (done++ > 0) {
      run->tokens += tokens;
      run->seconds += took;
    }
    FX_TRY(fx_trainer_recording_step(run, done, took));
    int64_t step = fx_trainer_iteration(run);
    if (step % train->log_interval == 0 || step == train->iters || run->bad_in_a_row > 0) {
      FX_TRY(log_step(run, lr, steps, seconds));
      steps = 0;
      seconds = 0;
    }
    FX_TRY(after_step(run, &stop));
  }
  run->stopped = fx_trainer_iteration(run) < train->iters;
  if (run->stopped && run->job->control->rank == 0)
    fx_info(run->job->log,
            "stopped by a signal after step %lld; the step is saved, the same command goes on from it",
            (long long)fx_trainer_iteration(run));
  describe_peak(run);
  return FX_OK;
}

/* A restarted run that diverges before it saves anything would do so for ever: its checkpoint is put aside.
 */
static void discredit_checkpoint(const fx_trainer *run) {
  if (!run->job->restarted || !run->resumed_from || run->saved_since_start || run->job->control->rank != 0)
    return;
  char *bad = fx_strfmt("%s.bad", run->resumed_from);
  if (bad && rename(run->resumed_from, bad) == 0)
    fx_warn(run->job->log,
            "%s led to a gradient that is not finite; it is now %s, a restart takes the one before",
            run->resumed_from, bad);
  free(bad);
}

static void destroy(fx_trainer *run) {
  fx_trainer_save_abandon(run);
  fx_step_snapshot_destroy(run->model, run->snapshot);
  free(run->resumed_from);
  fx_metrics_close(run->metrics);
  fx_pipeline_destroy(run->pipeline);
  fx_stepper_destroy(run->stepper);
  fx_trace_destroy(run->trace);
  fx_inputs_destroy(run->inputs);
  fx_attention_setup_destroy(run->attention);
  fx_model_destroy(run->model);
  fx_topology_destroy(run->topology);
  fx_device_destroy(run->device);
}

fx_status fx_train(const fx_config *config, const fx_job *job, fx_train_report *report) {
  fx_trainer run = {.config = config, .job = job, .last_valid_loss = NAN};
  memset(report, 0, sizeof *report);
  run.memory.libraries = fx_memory_resident();
  fx_status status = build(&run, &report->capture_ms);
  report->agreed = true;
  if (status == FX_OK) {
    status = loop(&run);
    report->agreed = status == FX_ERR_DIVERGED || run.failed_together;
    if (status == FX_ERR_DIVERGED) discredit_checkpoint(&run);
  }
  fx_watchdog_stop(run.watchdog, status == FX_OK || report->agreed);
  if (run.stepper) {
    report->arena_bytes = (int64_t)fx_stepper_arena_bytes(run.stepper);
    report->arena_bound_bytes = (int64_t)fx_stepper_arena_bound(run.stepper);
  }
  report->loss = run.last_loss;
  report->steps = fx_trainer_iteration(&run);
  report->skipped = run.skipped;
  report->stopped = run.stopped;
  report->consumed_samples = run.consumed_samples;
  report->valid_loss = run.last_valid_loss;
  report->tokens_per_s = run.seconds > 0 ? run.tokens / run.seconds : 0;
  destroy(&run);
  return status;
}
