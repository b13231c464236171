/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a rank as boxes of tensors. Under ZeRO a rank keeps a flat range of a matrix: a piece of a
 * row, whole rows, and a piece of a row again. */
#include <stdlib.h>
#include <string.h>

#include "core/train/state.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/zero.h"

void fx_regions_fini(fx_region_list *list) {
  free(list->region);
  free(list->path);
  memset(list, 0, sizeof *list);
}

static void add_box(fx_region_list *list, const char *prefix, const fx_param *p, const fx_zero_box *box,
                    float *data) {
  fx_ckpt_region *region = &list->region[list->count];
  snprintf(list->path[list->count], FX_CKPT_PATH_BYTES, "%s%s", prefix, p->name);
  *region = (fx_ckpt_region){.path = list->path[list->count], .dtype = FX_F32, .ndim = p->ndim};
  region->start[0] = p->start[0] + box->row;
  region->count[0] = box->rows;
  if (p->ndim == 2) region->start[1] = p->start[1] + box->col;
  if (p->ndim == 2) region->count[1] = box->cols;
  for (int d = 0; d < p->ndim; d++) region->dim[d] = p->dim[d];
  region->data = data;
  region->pitch = box->pitch;
  list->count++;
}

fx_status fx_trainer_regions(const fx_trainer *run, float *copy, bool save, fx_region_list *list) {
  const fx_params *params = &run->model->params;
  FX_ASSERT(copy || fx_params_on_host(params));
  const struct {
    const char *prefix;
    float *packed;
  } parts[] = {{"/model/", copy},
               {"/optimizer/exp_avg/", copy ? copy + params->num_own : params->exp_avg},
               {"/optimizer/exp_avg_sq/", copy ? copy + 2 * params->num_own : params->exp_avg_sq}};
  memset(list, 0, sizeof *list);
  size_t capacity = FX_ZERO_BOXES * sizeof parts / sizeof parts[0] * (size_t)params->num_params;
  FX_TRY(fx_calloc(&list->region, capacity, sizeof *list->region));
  FX_TRY(fx_calloc(&list->path, capacity, sizeof *list->path));
  for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
    for (int64_t i = 0; i < params->num_params; i++) {
      const fx_param *p = &params->param[i];
      fx_zero_box box[FX_ZERO_BOXES];
      int boxes = fx_zero_boxes(params, p, box);
      for (int j = 0; j < boxes; j++) {
        bool others = params->zero && box[j].shared && i % params->zero_size != params->zero_rank;
        if (save && (!p->owner || others)) continue;
        float *data = parts[k].packed ? parts[k].packed + box[j].packed : params->weight + box[j].master;
        add_box(list, parts[k].prefix, p, &box[j], data);
      }
    }
  return FX_OK;
}

fx_status fx_trainer_copy_state(const fx_trainer *run, float *copy, bool to_host) {
  const fx_params *params = &run->model->params;
  float *flat[] = {params->exp_avg, params->exp_avg_sq};
  FX_TRY(fx_zero_copy_masters(params, copy, to_host));
  for (int i = 0; i < 2; i++) {
    float *part = copy + (i + 1) * params->num_own;
    FX_TRY(to_host ? fx_params_download(params, flat[i], part) : fx_params_upload(params, flat[i], part));
  }
  return FX_OK;
}
