/* SPDX-License-Identifier: Apache-2.0 */
/* Between the state of a run and a checkpoint: weights and both moments as regions under their Hugging Face
 * names. */
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint/checkpoint.h"
#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"

typedef struct region_list {
  fx_ckpt_region *region;
  char (*path)[FX_CKPT_PATH_BYTES];
  int64_t count;
} region_list;

static void regions_fini(region_list *list) {
  free(list->region);
  free(list->path);
}

static fx_status make_regions(const fx_trainer *run, region_list *list) {
  const fx_params *params = &run->model->params;
  const struct {
    const char *prefix;
    float *flat;
  } parts[] = {{"/model/", params->weight},
               {"/optimizer/exp_avg/", params->exp_avg},
               {"/optimizer/exp_avg_sq/", params->exp_avg_sq}};
  memset(list, 0, sizeof *list);
  size_t capacity = 3 * (size_t)params->num_params;
  FX_TRY(fx_calloc(&list->region, capacity, sizeof *list->region));
  FX_TRY(fx_calloc(&list->path, capacity, sizeof *list->path));
  for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
    for (int64_t i = 0; i < params->num_params; i++) {
      const fx_param *p = &params->param[i];
      fx_ckpt_region *region = &list->region[list->count];
      snprintf(list->path[list->count], FX_CKPT_PATH_BYTES, "%s%s", parts[k].prefix, p->name);
      *region = (fx_ckpt_region){.path = list->path[list->count], .dtype = FX_F32, .ndim = p->ndim};
      for (int d = 0; d < p->ndim; d++) {
        region->dim[d] = p->dim[d];
        region->start[d] = p->start[d];
        region->count[d] = p->count[d];
      }
      region->data = fx_param_data(params, p, parts[k].flat);
      list->count++;
    }
  return FX_OK;
}

/* ---- save ---- */

typedef struct save_call {
  fx_trainer *run;
  const region_list *list;
  const char *config_text;
} save_call;

static fx_status run_save(void *arg, void *stream) {
  save_call *call = arg;
  fx_trainer *run = call->run;
  (void)stream;
  fx_ckpt_state state = {.step = fx_trainer_iteration(run),
                         .consumed_samples = run->consumed_samples,
                         .optimizer_step = run->optimizer_step,
                         .skipped = run->skipped,
                         .loss_scale = 1.0};
  return fx_ckpt_save(run->job->control, run->config->checkpoint.dir, &state, call->config_text,
                      call->list->region, call->list->count, run->topology->dp_rank, run->topology->dp,
                      (int)run->config->checkpoint.keep, run->job->log, NULL);
}

fx_status fx_trainer_save(fx_trainer *run) {
  region_list list = {0};
  int64_t begin = fx_now_ns();
  char *config_text = fx_config_print(run->config);
  fx_status status = config_text ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory");
  if (status == FX_OK) status = make_regions(run, &list);
  save_call call = {run, &list, config_text};
  if (status == FX_OK) status = fx_device_call(run->device, FX_LANE_COMM_CRITICAL, run_save, &call);
  if (status == FX_OK && run->job->control->rank == 0)
    fx_info(run->job->log, "step %lld | checkpoint %s/step_%08lld in %.2f s",
            (long long)fx_trainer_iteration(run), run->config->checkpoint.dir,
            (long long)fx_trainer_iteration(run), (double)(fx_now_ns() - begin) / 1e9);
  regions_fini(&list);
  free(config_text);
  return status;
}

/* ---- restore ---- */

/* Rank 0 decides which step; everybody learns its path ("" for a fresh start). */
static fx_status choose(fx_trainer *run, char **path) {
  fx_control *control = run->job->control;
  const fx_config_checkpoint *c = &run->config->checkpoint;
  fx_ckpt *ckpt = NULL;
  char *all = NULL;
  int64_t *offsets = NULL;
  fx_status status = control->rank == 0 ? fx_ckpt_resume(c->dir, c->resume, run->job->log, &ckpt) : FX_OK;
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
  region_list list = {0};
  fx_status status = FX_OK;
  FX_TRY(fx_ckpt_open(path, &ckpt));
  FX_TRY_GOTO(make_regions(run, &list), close_ckpt);
  FX_TRY_GOTO(fx_ckpt_read(ckpt, list.region, list.count), close_ckpt);
  const fx_ckpt_state *state = fx_ckpt_state_get(ckpt);
  run->consumed_samples = state->consumed_samples;
  run->optimizer_step = state->optimizer_step;
  run->skipped = state->skipped;
close_ckpt:
  regions_fini(&list);
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
    fx_params_initialize(&run->model->params, (uint64_t)run->config->train.seed);
  }
  free(path);
  return fx_trainer_barrier_status(run, status);
}
