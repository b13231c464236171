/* SPDX-License-Identifier: Apache-2.0 */
/* From a checkpoint to the state of a run: weights and both moments, under their Hugging Face names. */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"

/* ---- restore ---- */

typedef struct choice {
  fx_trainer *run;
  fx_ckpt *ckpt;
} choice;

static fx_status run_resume(void *arg, void *stream) {
  choice *c = arg;
  const fx_job *job = c->run->job;
  const fx_config_checkpoint *keys = &c->run->config->checkpoint;
  (void)stream;
  FX_TRY(fx_ckpt_resume(job->control, keys->dir, keys->resume, job->log, &c->ckpt));
  if (job->control->rank == 0) fx_ckpt_sweep(keys->dir, job->log);
  return FX_OK;
}

static fx_status load(fx_trainer *run, const fx_ckpt *ckpt) {
  fx_region_list list = {0};
  const fx_params *params = &run->model->params;
  size_t bytes = 3 * (size_t)params->num_own * sizeof(float);
  float *copy = NULL; /* of a state that the host cannot touch */
  fx_status status = FX_OK;
  if (!fx_params_on_host(params)) {
    FX_TRY(fx_alloc_aligned(&copy, bytes));
    memset(copy, 0, bytes); /* padding */
  }
  FX_TRY_GOTO(fx_trainer_regions(run, copy, false, &list), free_copy);
  FX_TRY_GOTO(fx_ckpt_read(ckpt, list.region, list.count), free_copy);
  if (copy) FX_TRY_GOTO(fx_trainer_copy_state(run, copy, false), free_copy);
  const fx_ckpt_state *state = fx_ckpt_state_get(ckpt);
  run->consumed_samples = state->consumed_samples;
  run->optimizer_step = state->optimizer_step;
  run->skipped = state->skipped;
  run->resumed_from = fx_strdup(fx_ckpt_path(ckpt));
  if (!run->resumed_from) status = fx_error(FX_ERR_MEMORY, "out of host memory for a path");
free_copy:
  free(copy);
  fx_regions_fini(&list);
  return status;
}

static fx_status report(fx_trainer *run, const fx_ckpt *ckpt) {
  const fx_control *control = run->job->control;
  int64_t mine = fx_ckpt_bytes_read(ckpt), most = 0, whole = 0, *offsets = NULL;
  char *all = NULL;
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  fx_status status = fx_trainer_gather(run, &mine, sizeof mine, &all, offsets);
  for (int r = 0; status == FX_OK && r < control->size; r++) {
    memcpy(&mine, all + offsets[r], sizeof mine);
    most = fx_max_i64(most, mine);
  }
  for (int64_t i = 0; i < fx_ckpt_tensor_count(ckpt); i++) whole += fx_ckpt_tensor_at(ckpt, i).bytes;
  if (status == FX_OK && control->rank == 0)
    fx_info(run->job->log, "resuming from %s: step %lld, %lld samples; a rank read at most %.1f MiB of %.1f",
            fx_ckpt_path(ckpt), (long long)fx_trainer_iteration(run), (long long)run->consumed_samples,
            (double)most / 1048576.0, (double)whole / 1048576.0);
  free(all);
  free(offsets);
  return status;
}

fx_status fx_trainer_restore(fx_trainer *run) {
  choice c = {.run = run};
  FX_TRY(fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_resume, &c));
  if (!c.ckpt)
    return fx_trainer_barrier_status(
        run, fx_params_initialize(&run->model->params, (uint64_t)run->config->train.seed));
  fx_status status = fx_trainer_barrier_status(run, load(run, c.ckpt));
  if (status == FX_OK) status = report(run, c.ckpt);
  fx_ckpt_close(c.ckpt);
  return status;
}
