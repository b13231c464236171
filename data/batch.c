/* SPDX-License-Identifier: Apache-2.0 */
#include "data/batch.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

static fx_status host_alloc(void *ctx, size_t bytes, void **out) {
  (void)ctx;
  return fx_alloc_aligned(out, bytes);
}

static void host_release(void *ctx, void *memory) {
  (void)ctx;
  free(memory);
}

static const fx_batch_allocator host_allocator = {host_alloc, host_release, NULL};

static fx_status add_field(fx_batch *batch, const char *name, fx_dtype dtype, int64_t elements) {
  size_t length = strnlen(name, FX_BATCH_MAX_NAME);
  if (length == 0 || length == FX_BATCH_MAX_NAME)
    return fx_error(FX_ERR_SHAPE, "a batch buffer needs a name of 1 to %d bytes", FX_BATCH_MAX_NAME - 1);
  if (elements < 0 || (unsigned)dtype >= FX_DTYPE_COUNT)
    return fx_error(FX_ERR_SHAPE, "batch buffer \"%s\": %lld elements of dtype %d", name, (long long)elements,
                    (int)dtype);
  if (fx_batch_find(batch, name))
    return fx_error(FX_ERR_SHAPE, "there are two batch buffers of the name \"%s\"", name);
  if (batch->n_fields == FX_BATCH_MAX_FIELDS)
    return fx_error(FX_ERR_SHAPE, "no room for batch buffer \"%s\": there are %d already", name,
                    FX_BATCH_MAX_FIELDS);
  fx_batch_field *field = &batch->fields[batch->n_fields++];
  memcpy(field->name, name, length + 1);
  field->dtype = dtype;
  field->elements = elements;
  return FX_OK;
}

static size_t field_bytes(const fx_batch_field *field) {
  return fx_align_up((size_t)field->elements * fx_dtype_bytes(field->dtype), FX_ALIGN);
}

/* One block for all fields, then their addresses in it. */
static fx_status place_fields(fx_batch *batch) {
  size_t bytes = 0;
  for (int i = 0; i < batch->n_fields; i++) bytes += field_bytes(&batch->fields[i]);
  FX_TRY(batch->allocator.alloc(batch->allocator.ctx, bytes, &batch->block));
  memset(batch->block, 0, bytes);
  char *at = batch->block;
  for (int i = 0; i < batch->n_fields; i++) {
    batch->fields[i].data = at;
    at += field_bytes(&batch->fields[i]);
  }
  return FX_OK;
}

fx_status fx_batch_create(int64_t rows, int64_t seq_length, const fx_batch_field *extra, int n_extra,
                          const fx_batch_allocator *allocator, fx_batch **out) {
  static const char *const names[] = {"tokens", "targets", "positions", "doc_start", "doc_end"};
  if (rows < 1 || seq_length < 1)
    return fx_error(FX_ERR_SHAPE, "a batch of %lld x %lld; expected at least 1 x 1", (long long)rows,
                    (long long)seq_length);
  fx_batch *batch;
  fx_status status;
  FX_TRY(fx_calloc(&batch, 1, sizeof *batch));
  batch->rows = rows;
  batch->seq_length = seq_length;
  batch->allocator = allocator ? *allocator : host_allocator;
  for (int i = 0; i < 5; i++) FX_TRY_GOTO(add_field(batch, names[i], FX_I32, rows * seq_length), free_batch);
  FX_TRY_GOTO(add_field(batch, "sample_ordinal", FX_I64, rows), free_batch);
  for (int i = 0; i < n_extra; i++)
    FX_TRY_GOTO(add_field(batch, extra[i].name, extra[i].dtype, extra[i].elements), free_batch);
  FX_TRY_GOTO(place_fields(batch), free_batch);
  int32_t **slots[] = {&batch->tokens, &batch->targets, &batch->positions, &batch->doc_start,
                       &batch->doc_end};
  for (int i = 0; i < 5; i++) *slots[i] = batch->fields[i].data;
  batch->sample_ordinal = batch->fields[5].data;
  *out = batch;
  return FX_OK;
free_batch:
  free(batch);
  return status;
}

void fx_batch_destroy(fx_batch *batch) {
  if (!batch) return;
  batch->allocator.release(batch->allocator.ctx, batch->block);
  free(batch);
}

const fx_batch_field *fx_batch_find(const fx_batch *batch, const char *name) {
  for (int i = 0; i < batch->n_fields; i++)
    if (strcmp(batch->fields[i].name, name) == 0) return &batch->fields[i];
  return NULL;
}

fx_status fx_batch_buffer(const fx_batch *batch, const char *name, fx_dtype dtype, int64_t elements,
                          void **data) {
  const fx_batch_field *field = fx_batch_find(batch, name);
  if (!field) return fx_error(FX_ERR_SHAPE, "the batch has no buffer \"%s\"", name);
  if (field->dtype != dtype)
    return fx_error(FX_ERR_SHAPE, "batch buffer \"%s\" is %s; expected %s", name, fx_dtype_name(field->dtype),
                    fx_dtype_name(dtype));
  if (field->elements < elements)
    return fx_error(FX_ERR_SHAPE, "batch buffer \"%s\" holds %lld elements; expected at least %lld", name,
                    (long long)field->elements, (long long)elements);
  *data = field->data;
  return FX_OK;
}

fx_status fx_batch_layout_check(const fx_batch_layout *layout) {
  int64_t b = layout->micro_batch_size, g = layout->global_batch_size, r = layout->dp_size;
  if (b < 1 || g < 1 || r < 1 || layout->dp_rank < 0 || layout->dp_rank >= r)
    return fx_error(
        FX_ERR_CONFIG,
        "micro_batch_size %lld, global_batch_size %lld, data-parallel rank %lld of %lld; expected "
        "sizes of at least 1 and a rank below its size",
        (long long)b, (long long)g, (long long)layout->dp_rank, (long long)r);
  if (g % b != 0 || g / b % r != 0)
    return fx_error(FX_ERR_CONFIG,
                    "global_batch_size %lld is no multiple of micro_batch_size %lld x %lld data-parallel "
                    "ranks; change one of them",
                    (long long)g, (long long)b, (long long)r);
  return FX_OK;
}

int64_t fx_batch_layout_micros(const fx_batch_layout *layout) {
  return layout->global_batch_size / (layout->micro_batch_size * layout->dp_size);
}

int64_t fx_batch_layout_ordinal(const fx_batch_layout *layout, int64_t consumed_samples, int64_t micro,
                                int64_t row) {
  return consumed_samples + (micro * layout->dp_size + layout->dp_rank) * layout->micro_batch_size + row;
}

int64_t fx_batch_count_valid(fx_sampler *sampler, int64_t consumed_samples, int64_t global_batch_size) {
  int64_t valid = 0;
  for (int64_t i = 0; i < global_batch_size; i++) valid += fx_sampler_valid(sampler, consumed_samples + i);
  return valid;
}

void fx_batch_fill(fx_batch *batch, fx_sampler *sampler, const fx_batch_layout *layout,
                   int64_t consumed_samples, int64_t micro, int64_t global_valid) {
  FX_ASSERT(batch->rows == layout->micro_batch_size);
  FX_ASSERT(batch->seq_length == fx_sampler_seq_length(sampler));
  FX_ASSERT(micro >= 0 && micro < fx_batch_layout_micros(layout));
  batch->consumed_samples = consumed_samples;
  batch->consumed_end = consumed_samples + layout->global_batch_size;
  batch->micro = micro;
  batch->n_micro = fx_batch_layout_micros(layout);
  batch->global_valid = global_valid >= 0
                            ? global_valid
                            : fx_batch_count_valid(sampler, consumed_samples, layout->global_batch_size);
  batch->valid = 0;
  for (int64_t j = 0; j < batch->rows; j++) {
    int64_t at = j * batch->seq_length;
    fx_sample_view view = {batch->tokens + at, batch->targets + at, batch->positions + at,
                           batch->doc_start + at, batch->doc_end + at};
    batch->sample_ordinal[j] = fx_batch_layout_ordinal(layout, consumed_samples, micro, j);
    batch->valid += fx_sampler_sample(sampler, batch->sample_ordinal[j], &view);
  }
}
