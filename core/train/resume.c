/* SPDX-License-Identifier: Apache-2.0 */
/* From a checkpoint to the state of a run: weights and both moments, under their Hugging Face names. */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"

/* ---- restore ---- */

/* Rank 0 decides which step; everybody learns its path ("" for a fresh start). */
static fx_status choose(fx_trainer *run, char **path) {
  fx_control *control = run->job->control;
  const fx_config_checkpoint *c = &run->config->checkpoint;
  fx_ckpt *ckpt = NULL;
  char *all = NULL;
  int64_t *offsets = NULL;
  fx_status status = control->rank == 0 ? fx_ckpt_resume(c->dir, c->resume, run->job->log, &ckpt) : FX_OK;
  if (status == FX_OK && control->rank == 0) fx_ckpt_sweep(c->dir, run->job->log);
  FX_TRY(fx_trainer_barrier_status(run, status));
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  const char *mine = ckpt ? fx_ckpt_path(ckpt) : "";
  status = fx_trainer_gather(run, mine, control->rank == 0 ? (int64_t)strlen(mine) : 0, &all, offsets);
  fx_ckpt_close(ckpt);
  free(offsets);
  *path = all; /* only rank 0 sent bytes: all of it is the path */
  return status;
}

static fx_status load(fx_trainer *run, const char *path) {
  fx_ckpt *ckpt = NULL;
  fx_region_list list = {0};
  const fx_params *params = &run->model->params;
  size_t bytes = 3 * (size_t)params->num_own * sizeof(float);
  float *copy = NULL; /* of a state that the host cannot touch */
  fx_status status = FX_OK;
  FX_TRY(fx_ckpt_open(path, &ckpt));
  if (!fx_params_on_host(params)) {
    FX_TRY_GOTO(fx_alloc_aligned(&copy, bytes), close_ckpt);
    memset(copy, 0, bytes); /* padding */
  }
  FX_TRY_GOTO(fx_trainer_regions(run, copy, false, &list), close_ckpt);
  FX_TRY_GOTO(fx_ckpt_read(ckpt, list.region, list.count), close_ckpt);
  if (copy) FX_TRY_GOTO(fx_trainer_copy_state(run, copy, false), close_ckpt);
  const fx_ckpt_state *state = fx_ckpt_state_get(ckpt);
  run->consumed_samples = state->consumed_samples;
  run->optimizer_step = state->optimizer_step;
  run->skipped = state->skipped;
close_ckpt:
  free(copy);
  fx_regions_fini(&list);
  fx_ckpt_close(ckpt);
  return status;
}

fx_status fx_trainer_restore(fx_trainer *run) {
  char *path = NULL;
  FX_TRY(choose(run, &path));
  fx_status status = FX_OK;
  if (path[0]) {
    status = load(run, path);
    if (status == FX_OK && run->job->control->rank == 0)
      fx_info(run->job->log, "resuming from %s: step %lld, %lld samples", path,
              (long long)fx_trainer_iteration(run), (long long)run->consumed_samples);
  } else {
    status = fx_params_initialize(&run->model->params, (uint64_t)run->config->train.seed);
  }
  if (status == FX_OK && path[0]) {
    run->resumed_from = path;
    path = NULL;
  }
  free(path);
  return fx_trainer_barrier_status(run, status);
}
