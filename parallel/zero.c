/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/zero.h"

#include <string.h>

#include "dynamo_rt/base/memory.h"

static int size_of(const fx_params *params) {
  return params->zero ? params->zero_size : 1;
}

static bool masters_packed(const fx_params *params) {
  return params->zero && params->compute;
}

fx_zero_slice fx_zero_slice_of(const fx_params *params, const fx_param_bucket *bucket) {
  int64_t count = (bucket->end - bucket->begin) / size_of(params);
  int64_t skip = params->zero ? count * params->zero_rank : 0;
  return (fx_zero_slice){count, bucket->begin + skip, bucket->begin / size_of(params), bucket->place + skip};
}

int64_t fx_zero_rest(const fx_params *params, int64_t flat) {
  return flat - (params->numel - params->num_own);
}

int64_t fx_zero_weight_rest(const fx_params *params, int64_t flat) {
  return masters_packed(params) ? fx_zero_rest(params, flat) : flat;
}

int64_t fx_zero_master(const fx_params *params, const fx_zero_slice *slice) {
  return masters_packed(params) ? slice->packed : slice->flat;
}

static const fx_param_bucket *bucket_of(const fx_params *params, int64_t flat) {
  for (int64_t b = 0; b < params->num_buckets; b++)
    if (flat < params->bucket[b].end) return &params->bucket[b];
  return NULL;
}

/* Where the local part of a parameter lies in the flat layout. */
typedef struct area {
  int64_t offset, pitch, rows, cols;
} area;

int fx_zero_boxes(const fx_params *params, const fx_param *param, fx_zero_box box[FX_ZERO_BOXES]) {
  area a = {fx_param_offset(params, param), fx_param_pitch(params, param), param->count[0],
            param->ndim == 2 ? param->count[1] : 1};
  const fx_param_bucket *bucket = bucket_of(params, a.offset);
  if (!bucket) {
    box[0] = (fx_zero_box){.rows = a.rows,
                           .cols = a.cols,
                           .packed = fx_zero_rest(params, a.offset),
                           .master = fx_zero_weight_rest(params, a.offset),
                           .pitch = a.pitch,
                           .shared = true};
    return a.rows > 0;
  }
  fx_zero_slice slice = fx_zero_slice_of(params, bucket);
  int64_t from = slice.flat - a.offset, to = from + slice.count; /* of the area: what the slice covers */
  int64_t first = from < a.cols ? 0 : (from - a.cols) / a.pitch + 1;
  int64_t end = to <= 0 ? 0 : fx_min_i64(a.rows, fx_ceil_div(to, a.pitch));
  if (first >= end) return 0;
  int64_t left = fx_max_i64(0, from - first * a.pitch),
          right = fx_min_i64(a.cols, to - (end - 1) * a.pitch); /* of the first row, of the last one */
  int64_t master = fx_zero_master(params, &slice);
  int count = 0;
  for (int64_t row = first; row < end;) {
    int64_t col = row == first ? left : 0, cols = (row == end - 1 ? right : a.cols) - col, rows = 1;
    if (cols == a.cols) rows = (right == a.cols ? end : end - 1) - row;
    int64_t at = row * a.pitch + col - from;
    box[count++] =
        (fx_zero_box){row, rows, col, cols, slice.packed + at, master + at, a.pitch, !params->zero};
    row += rows;
  }
  return count;
}

void fx_zero_pack(const fx_params *params, float *host) {
  if (!params->zero) return;
  for (int64_t b = 0; b < params->num_buckets; b++) { /* to lower addresses, in order: nothing is lost */
    fx_zero_slice slice = fx_zero_slice_of(params, &params->bucket[b]);
    memmove(host + slice.packed, host + slice.flat, (size_t)slice.count * sizeof *host);
  }
  memmove(host + fx_zero_rest(params, params->num_sharded), host + params->num_sharded,
          (size_t)(params->numel - params->num_sharded) * sizeof *host);
}

static fx_status copy_masters(const fx_params *params, float *host, int64_t packed, int64_t master,
                              int64_t count, bool to_host) {
  float *mine = params->weight + master, *theirs = host + packed;
  void *to = to_host ? theirs : mine;
  const void *from = to_host ? mine : theirs;
  size_t bytes = (size_t)count * sizeof(float);
  if (params->device) return fx_device_copy(params->device, FX_LANE_COMPUTE, to, from, bytes);
  memcpy(to, from, bytes);
  return FX_OK;
}

fx_status fx_zero_copy_masters(const fx_params *params, float *host, bool to_host) {
  int64_t rest = params->num_sharded;
  for (int64_t b = 0; b < params->num_buckets; b++) {
    fx_zero_slice slice = fx_zero_slice_of(params, &params->bucket[b]);
    FX_TRY(copy_masters(params, host, slice.packed, fx_zero_master(params, &slice), slice.count, to_host));
  }
  if (params->numel > rest)
    FX_TRY(copy_masters(params, host, fx_zero_rest(params, rest), fx_zero_weight_rest(params, rest),
                        params->numel - rest, to_host));
  return params->device ? fx_device_sync(params->device) : FX_OK;
}
