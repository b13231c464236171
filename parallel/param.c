/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "parallel/param.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "parallel/zero.h"

enum {
  GRAIN = FX_ALIGN / sizeof(float),
  DEFAULT_BUCKET = 4 << 20 /* 16 MiB: long enough to hide latency, short enough to overlap */
};

fx_status fx_params_add_storage(fx_params *params, fx_type type, bool decay, int32_t *index) {
  FX_TRY(fx_grow(&params->storage, &params->storage_capacity, params->num_storages + 1,
                 sizeof *params->storage));
  *index = (int32_t)params->num_storages++;
  params->storage[*index] = (fx_param_storage){.type = type, .decay = decay};
  return FX_OK;
}

fx_status fx_params_add_part(fx_params *params, const fx_param *part) {
  int before = 0;
  for (int64_t i = 0; i < params->num_params; i++) before += strcmp(params->param[i].name, part->name) == 0;
  if (part->part != before) return fx_error(FX_ERR_INTERNAL, "parameter %s is declared twice", part->name);
  FX_TRY(fx_grow(&params->param, &params->param_capacity, params->num_params + 1, sizeof *params->param));
  params->param[params->num_params++] = *part;
  return FX_OK;
}

fx_status fx_params_add(fx_params *params, const char *name, int32_t storage, int64_t row, int ndim,
                        const int64_t *dim, fx_init_kind init, double init_std) {
  fx_param param = {
      .ndim = ndim, .storage = storage, .row = row, .owner = true, .init = init, .init_std = init_std};
  strncpy(param.name, name, sizeof param.name - 1);
  for (int i = 0; i < ndim; i++) param.dim[i] = param.count[i] = dim[i];
  return fx_params_add_part(params, &param);
}

/* Address space that nothing may touch. */
static fx_status reserve(fx_params *params, size_t bytes, void **out) {
  if (!params->reserved) {
    size_t all = (size_t)params->numel * (6 * sizeof(float)) + 8 * FX_ALIGN; /* more than all buffers take */
    void *memory = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return fx_error(FX_ERR_MEMORY, "no address space for %.1f GiB of parameters; check ulimit -v",
                      (double)all / 1073741824.0);
    params->reserved = memory;
    params->reserved_bytes = all;
  }
  *out = (char *)params->reserved + params->reserved_used;
  params->reserved_used += fx_align_up(bytes, FX_ALIGN);
  FX_ASSERT(params->reserved_used <= params->reserved_bytes);
  return FX_OK;
}

static fx_status allocate_zeroed(fx_params *params, size_t bytes, void **out) {
  if (params->dry) return reserve(params, bytes, out);
  if (params->device) {
    FX_TRY(fx_device_alloc(params->device, bytes, out));
    FX_TRY(fx_device_fill(params->device, FX_LANE_COMPUTE, *out, 0, bytes));
    return fx_device_sync(params->device);
  }
  FX_TRY(fx_alloc_aligned(out, bytes));
  memset(*out, 0, bytes);
  return FX_OK;
}

typedef enum part { PART_BUCKETS, PART_DECAY, PART_REST } part;

static part part_of(const fx_param_storage *storage) {
  if (!storage->decay) return PART_REST;
  return storage->compute && storage->group == FX_GROUP_SHARDED ? PART_BUCKETS : PART_DECAY;
}

/* Ends the bucket that the layout has come to. */
static fx_status close_bucket(fx_params *params, int64_t *begin, int64_t *place) {
  FX_TRY(fx_grow(&params->bucket, &params->bucket_capacity, params->num_buckets + 1, sizeof *params->bucket));
  fx_param_bucket *bucket = &params->bucket[params->num_buckets++];
  size_t unit = GRAIN * (size_t)(params->zero ? params->zero_size : 1);
  *bucket = (fx_param_bucket){*begin, *begin + (int64_t)fx_align_up((size_t)(params->numel - *begin), unit),
                              *place};
  *place += params->numel - *begin;
  *begin = params->numel = bucket->end;
  return FX_OK;
}

static void place_storage(fx_params *params, fx_param_storage *storage) {
  storage->offset = params->numel;
  params->numel += (int64_t)fx_align_up((size_t)fx_type_numel(&storage->type), GRAIN);
}

static fx_status lay_out_buckets(fx_params *params) {
  int64_t begin = 0, place = 0, storages = 0;
  int64_t want = params->bucket_elements ? params->bucket_elements : DEFAULT_BUCKET;
  for (int64_t s = params->num_storages - 1; s >= 0; s--) {
    if (part_of(&params->storage[s]) != PART_BUCKETS) continue;
    place_storage(params, &params->storage[s]);
    storages++;
    if (params->numel - begin < want && storages < FX_BUCKET_STORAGES) continue;
    FX_TRY(close_bucket(params, &begin, &place));
    storages = 0;
  }
  if (params->numel > begin) FX_TRY(close_bucket(params, &begin, &place));
  params->num_sharded = params->numel;
  params->num_padding = params->numel - place;
  return FX_OK;
}

static void lay_out_groups(fx_params *params, part p, int64_t begin[FX_GROUP_COUNT + 1]) {
  for (int group = 0; group < FX_GROUP_COUNT; group++) {
    begin[group] = params->numel;
    for (int64_t s = params->num_storages - 1; s >= 0; s--)
      if (part_of(&params->storage[s]) == p && params->storage[s].group == (fx_param_group)group)
        place_storage(params, &params->storage[s]);
  }
  begin[FX_GROUP_COUNT] = params->numel;
}

static fx_status lay_out(fx_params *params) {
  params->numel = params->num_buckets = 0;
  FX_TRY(lay_out_buckets(params));
  lay_out_groups(params, PART_DECAY, params->group_begin[0]);
  params->num_decay = params->numel;
  lay_out_groups(params, PART_REST, params->group_begin[1]);
  params->num_own = params->numel;
  if (params->zero)
    params->num_own = params->num_sharded / params->zero_size + params->numel - params->num_sharded;
  return FX_OK;
}

fx_status fx_params_allocate(fx_params *params) {
  FX_TRY(lay_out(params));
  const struct {
    float **flat;
    int64_t count;
  } flats[] = {{&params->weight, params->dtype == FX_BF16 ? params->num_own : params->numel},
               {&params->grad, params->num_own},
               {&params->exp_avg, params->num_own},
               {&params->exp_avg_sq, params->num_own},
               {&params->grad_whole, params->num_sharded}};
  size_t count = params->weights_only ? 1 : params->zero == 1 ? 5 : 4;
  for (size_t i = 0; i < count; i++) {
    void *memory = NULL;
    FX_TRY(allocate_zeroed(params, (size_t)flats[i].count * sizeof(float), &memory));
    *flats[i].flat = memory;
  }
  if (params->dtype == FX_BF16) {
    void *memory = NULL;
    FX_TRY(allocate_zeroed(params, (size_t)params->numel * sizeof(uint16_t), &memory));
    params->compute = memory;
  }
  return FX_OK;
}

bool fx_params_on_host(const fx_params *params) {
  return !params->device || params->device->backend == FX_BACKEND_CPU;
}

static fx_status copy_flat(const fx_params *params, const float *flat, void *to, const void *from) {
  bool whole = flat == params->weight && !params->compute;
  size_t bytes = (size_t)(whole ? params->numel : params->num_own) * sizeof(float);
  if (!params->device) {
    memcpy(to, from, bytes);
    return FX_OK;
  }
  FX_TRY(fx_device_copy(params->device, FX_LANE_COMPUTE, to, from, bytes));
  return fx_device_sync(params->device);
}

fx_status fx_params_download(const fx_params *params, const float *flat, float *host) {
  return copy_flat(params, flat, host, flat);
}

fx_status fx_params_upload(const fx_params *params, float *flat, const float *host) {
  return copy_flat(params, flat, flat, host);
}

/* Normal numbers 4 block .. 4 block + 3 of a tensor: Box-Muller on one Philox block. */
static void normals_at(uint64_t seed, uint64_t site, int64_t block, double std, float out[4]) {
  fx_philox r = fx_philox_at(seed, site, (uint64_t)block, 0);
  for (int pair = 0; pair < 4; pair += 2) {
    double radius = std * sqrt(-2.0 * log(fx_philox_open(r.word[pair]))),
           angle = 2.0 * M_PI * fx_philox_open(r.word[pair + 1]);
    out[pair] = (float)(radius * cos(angle));
    out[pair + 1] = (float)(radius * sin(angle));
  }
}

/* Elements `begin` on of the whole tensor, by their number there. */
static void draw_normals(float *data, int64_t count, int64_t begin, uint64_t seed, uint64_t site,
                         double std) {
  float four[4];
  int64_t drawn = -1;
  for (int64_t i = 0; i < count; i++) {
    int64_t index = begin + i;
    if (index / 4 != drawn) normals_at(seed, site, drawn = index / 4, std, four);
    data[i] = four[index % 4];
  }
}

static void initialize_param(const fx_params *params, const fx_param *param, uint64_t seed, float *weight) {
  float *data = fx_param_data(params, param, weight);
  uint64_t site = fx_hash64_text(param->name);
  int64_t cols = param->ndim == 2 ? param->count[1] : 1, global_cols = param->ndim == 2 ? param->dim[1] : 1;
  int64_t pitch = fx_param_pitch(params, param);
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < param->count[0]; r++) {
    int64_t first = (param->start[0] + r) * global_cols + param->start[1];
    if (param->init == FX_INIT_NORMAL)
      draw_normals(data + r * pitch, cols, first, seed, site, param->init_std);
    for (int64_t c = 0; param->init != FX_INIT_NORMAL && c < cols; c++)
      data[r * pitch + c] = param->init == FX_INIT_ONES       ? 1.0f
                            : param->init == FX_INIT_CONSTANT ? (float)param->init_std
                                                              : 0.0f;
  }
}

fx_status fx_params_initialize(fx_params *params, uint64_t seed) {
  float *weight = params->weight;
  fx_status status = FX_OK;
  if (!fx_params_on_host(params)) {
    FX_TRY(fx_alloc_aligned(&weight, (size_t)params->numel * sizeof *weight));
    memset(weight, 0, (size_t)params->numel * sizeof *weight); /* padding */
  }
  for (int64_t i = 0; i < params->num_params; i++) initialize_param(params, &params->param[i], seed, weight);
  if (weight != params->weight) {
    if (params->compute) fx_zero_pack(params, weight);
    status = fx_params_upload(params, params->weight, weight);
    free(weight);
  }
  return status;
}

void fx_params_fini(fx_params *params) {
  void *buffers[] = {params->weight,     params->grad,    params->exp_avg,
                     params->exp_avg_sq, params->compute, params->grad_whole};
  for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
    if (params->device && !params->dry)
      fx_device_release(params->device, buffers[i]);
    else if (!params->dry)
      free(buffers[i]);
  if (params->reserved) munmap(params->reserved, params->reserved_bytes);
  free(params->param);
  free(params->storage);
  free(params->bucket);
  memset(params, 0, sizeof *params);
}

int64_t fx_param_pitch(const fx_params *params, const fx_param *param) {
  const fx_type *type = &params->storage[param->storage].type;
  return type->ndim == 2 ? type->dim[1] : 1;
}

int64_t fx_param_offset(const fx_params *params, const fx_param *param) {
  return params->storage[param->storage].offset + param->row * fx_param_pitch(params, param) + param->col;
}

float *fx_param_data(const fx_params *params, const fx_param *param, float *flat) {
  return flat + fx_param_offset(params, param);
}

int64_t fx_param_numel(const fx_param *param) {
  return param->count[0] * (param->ndim == 2 ? param->count[1] : 1);
}

const fx_param *fx_params_find(const fx_params *params, const char *name) {
  for (int64_t i = 0; i < params->num_params; i++)
    if (strcmp(params->param[i].name, name) == 0) return &params->param[i];
  return NULL;
}
