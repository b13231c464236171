/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of a micro-batch, and what becomes of its gradients:
 *
 *   no ZeRO   stored in the flat buffer; the last micro-batch sums it over dp in place, bucket by bucket
 *   ZeRO 1    stored in a whole buffer; the last micro-batch sums a bucket as soon as it is complete, and
 *             each rank keeps its slice of the sum
 *   ZeRO 2    a bucket lives in the arena while the backward fills it; every micro-batch sums it and adds the
 *             slice to what this rank has
 *
 * Buckets become complete in the order of the layout, so all ranks record the same collectives in the same
 * order, and most of them run beside the backward of the layers in front. */
#include <stdlib.h>

#include "core/train/record.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "parallel/collective.h"
#include "parallel/zero.h"

typedef struct sink {
  const fx_step_config *c;
  fx_graph *graph;
  bool add, last;
  fx_value *grads; /* [storages], FX_NONE until complete */
  struct {
    const fx_param_bucket *bucket; /* whose slice of the sum waits to be added; NULL: none */
    fx_value sum;
  } late;
} sink;

static fx_value flat_value(const sink *s, const char *name, float *flat, int64_t begin, int64_t count) {
  return fx_graph_persistent(FX_AT(s->graph), name, flat + begin, fx_type_1d(FX_F32, count));
}

/* The gradient of a storage to its place in a flat buffer. */
static void put(const sink *s, int64_t storage, float *place) {
  fx_value to =
      fx_graph_persistent(FX_AT(s->graph), "gradients", place, s->c->model->params.storage[storage].type);
  (s->add ? fx_accumulate : fx_store)(FX_AT(s->graph), to, s->grads[storage]);
}

static void put_slice(const sink *s, const fx_param_bucket *bucket, fx_value sum, bool add) {
  const fx_params *p = &s->c->model->params;
  fx_zero_slice slice = fx_zero_slice_of(p, bucket);
  fx_value to = flat_value(s, "gradients", p->grad, slice.packed, slice.count);
  (add ? fx_accumulate : fx_store)(FX_AT(s->graph), to, sum);
}

/* Adding is work of the compute lane, which would wait for the sum: it is put off until the next bucket is
 * complete. */
static void add_late(sink *s) {
  if (s->late.bucket) put_slice(s, s->late.bucket, s->late.sum, true);
  s->late.bucket = NULL;
}

static void add_part(fx_value part, int64_t at, fx_value *parts, int64_t *offsets, int *count) {
  FX_ASSERT(*count < FX_MAX_IN);
  parts[*count] = part;
  offsets[(*count)++] = at;
}

/* The bucket's gradients as one buffer; padding is zero, for it is summed and counted in the norm. */
static fx_value join(sink *s, const fx_param_bucket *bucket) {
  const fx_params *p = &s->c->model->params;
  fx_value parts[FX_MAX_IN];
  int64_t offsets[FX_MAX_IN], at = bucket->begin;
  int count = 0;
  for (int64_t i = p->num_storages - 1; i >= 0; i--) {
    const fx_param_storage *storage = &p->storage[i];
    if (storage->offset < bucket->begin || storage->offset >= bucket->end) continue;
    int64_t end = storage->offset + fx_type_numel(&storage->type);
    if (storage->offset > at)
      add_part(fx_fill(FX_AT(s->graph), fx_type_1d(FX_F32, storage->offset - at), 0), at - bucket->begin,
               parts, offsets, &count);
    add_part(s->grads[i], storage->offset - bucket->begin, parts, offsets, &count);
    at = end;
  }
  if (bucket->end > at)
    add_part(fx_fill(FX_AT(s->graph), fx_type_1d(FX_F32, bucket->end - at), 0), at - bucket->begin, parts,
             offsets, &count);
  return fx_join(FX_AT(s->graph), parts, offsets, count, bucket->end - bucket->begin);
}

static void reduce_bucket(sink *s, const fx_param_bucket *bucket) {
  const fx_params *p = &s->c->model->params;
  fx_value whole = p->zero == 1 ? flat_value(s, "whole gradients", p->grad_whole, bucket->begin,
                                             bucket->end - bucket->begin)
                                : join(s, bucket);
  add_late(s);
  fx_value sum = fx_reduce_scatter(FX_AT(s->graph), s->c->dp, FX_LANE_COMM_BULK, whole);
  if (p->zero == 1 || !s->add) {
    put_slice(s, bucket, sum, false);
    return;
  }
  s->late.bucket = bucket;
  s->late.sum = sum;
}

static bool complete(const sink *s, const fx_param_bucket *bucket) {
  const fx_params *p = &s->c->model->params;
  for (int64_t i = 0; i < p->num_storages; i++)
    if (p->storage[i].offset >= bucket->begin && p->storage[i].offset < bucket->end && s->grads[i] == FX_NONE)
      return false;
  return true;
}

static void on_ready(void *ctx, int index, fx_value grad) {
  sink *s = ctx;
  const fx_params *p = &s->c->model->params;
  int64_t offset = p->storage[index].offset;
  s->grads[index] = grad;
  if (offset >= p->num_sharded) {
    put(s, index, p->grad + fx_zero_rest(p, offset));
    return;
  }
  if (p->zero == 1) put(s, index, p->grad_whole + offset);
  if (p->zero == 1 && !s->last) return;
  for (int64_t b = 0; b < p->num_buckets; b++) {
    const fx_param_bucket *bucket = &p->bucket[b];
    if (offset >= bucket->begin && offset < bucket->end && complete(s, bucket)) reduce_bucket(s, bucket);
  }
}

/* Sums [begin, end) of the flat gradient over dp. */
static void reduce_in_place(const sink *s, int64_t begin, int64_t end) {
  if (begin == end) return;
  fx_value range = flat_value(s, "gradients", s->c->model->params.grad, begin, end - begin);
  fx_all_reduce(FX_AT(s->graph), s->c->dp, FX_LANE_COMM_BULK, range, FX_REDUCE_SUM);
}

/* Sums over tensor-parallel ranks what each has a part of: gradients of shared key heads, and of what all
 * have alike where they come from rows of a sequence shard or from one rank's heads. None lies in a bucket.
 */
static void reduce_over_tensor(const sink *s) {
  const fx_params *p = &s->c->model->params;
  const fx_tensor_parallel *tp = &s->c->model->share.tp;
  if (!tp->comm) return;
  for (int part = 0; part < 2; part++) {
    const int64_t *begin = p->group_begin[part];
    int64_t heads = begin[FX_GROUP_SHARED_HEADS], same = begin[FX_GROUP_REPLICATED];
    int64_t partial = tp->sequence ? same : begin[FX_GROUP_PARTIAL], end = begin[FX_GROUP_COUNT];
    if (heads < same)
      fx_all_reduce(FX_AT(s->graph), s->c->model->topology->kv, FX_LANE_COMM_CRITICAL,
                    flat_value(s, "gradients", p->grad, fx_zero_rest(p, heads), same - heads), FX_REDUCE_SUM);
    if (partial < end)
      fx_all_reduce(FX_AT(s->graph), tp->comm, FX_LANE_COMM_CRITICAL,
                    flat_value(s, "gradients", p->grad, fx_zero_rest(p, partial), end - partial),
                    FX_REDUCE_SUM);
  }
}

static fx_status record_whole(sink *s, const fx_value *weights, fx_value loss) {
  const fx_params *p = &s->c->model->params;
  FX_TRY(fx_autograd(s->graph, loss, weights, (int)p->num_storages, s->grads));
  for (int64_t i = 0; i < p->num_storages; i++) put(s, i, p->grad + p->storage[i].offset);
  bool sum = s->last && s->c->dp && s->c->dp->size > 1;
  for (int64_t b = 0; sum && b < p->num_buckets; b++)
    reduce_in_place(s, p->bucket[b].begin, p->bucket[b].end);
  return fx_graph_status(s->graph);
}

static fx_status record_shared(sink *s, const fx_value *weights, fx_value loss) {
  const fx_params *p = &s->c->model->params;
  FX_ASSERT(s->c->dp && s->c->dp->size == p->zero_size && s->c->dp->rank == p->zero_rank);
  if (p->zero == 1) flat_value(s, "whole gradients", p->grad_whole, 0, p->num_sharded);
  FX_TRY(fx_autograd_each(s->graph, loss, weights, (int)p->num_storages, on_ready, s));
  add_late(s);
  return fx_graph_status(s->graph);
}

fx_status fx_record_gradients(const fx_step_config *c, fx_graph *graph, const fx_model_values *values,
                              fx_value loss, bool add, bool last) {
  const fx_params *p = &c->model->params;
  sink s = {.c = c, .graph = graph, .add = add, .last = last};
  FX_TRY(fx_calloc(&s.grads, (size_t)p->num_storages, sizeof *s.grads));
  for (int64_t i = 0; i < p->num_storages; i++) s.grads[i] = FX_NONE;
  flat_value(&s, "gradients", p->grad, 0, p->num_own);
  fx_status status = (p->zero ? record_shared : record_whole)(&s, values->weight, loss);
  if (status == FX_OK && last) reduce_over_tensor(&s);
  if (status == FX_OK && last && c->dp && c->dp->size > 1) {
    reduce_in_place(&s, fx_zero_rest(p, p->num_sharded), p->num_own);
    status = fx_graph_status(graph);
  }
  free(s.grads);
  return status;
}
