/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "data/batch.h"
#include "tests/data/fixture.h"

enum { T = 64 };

static void buffers(void) {
  const fx_batch_field extra[] = {{.name = "mask limits", .dtype = FX_I32, .elements = 33},
                                  {.name = "empty", .dtype = FX_F32, .elements = 0},
                                  {.name = "weights", .dtype = FX_F32, .elements = 5}};
  fx_batch *batch = NULL;
  if (!CHECK_OK(fx_batch_create(3, T, extra, 3, NULL, &batch))) return;
  CHECK_INT(batch->n_fields, 9);
  for (int i = 0; i < batch->n_fields; i++) CHECK_INT((uintptr_t)batch->fields[i].data % 64, 0);
  /* every buffer is its own: fill each with its index, then look at all */
  for (int i = 0; i < batch->n_fields; i++)
    memset(batch->fields[i].data, i + 1,
           (size_t)batch->fields[i].elements * fx_dtype_bytes(batch->fields[i].dtype));
  int64_t wrong = 0;
  for (int i = 0; i < batch->n_fields; i++)
    for (size_t b = 0; b < (size_t)batch->fields[i].elements * fx_dtype_bytes(batch->fields[i].dtype); b++)
      wrong += ((const char *)batch->fields[i].data)[b] != i + 1;
  CHECK_INT(wrong, 0);
  void *data = NULL;
  CHECK_OK(fx_batch_buffer(batch, "mask limits", FX_I32, 33, &data));
  CHECK(data == fx_batch_find(batch, "mask limits")->data);
  CHECK_OK(fx_batch_buffer(batch, "targets", FX_I32, 3 * T, &data));
  CHECK(data == batch->targets);
  data = NULL;
  CHECK_STATUS(fx_batch_buffer(batch, "mask limits", FX_I32, 34, &data), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "33 elements");
  CHECK_STATUS(fx_batch_buffer(batch, "weights", FX_I32, 5, &data), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "float32; expected int32");
  CHECK_STATUS(fx_batch_buffer(batch, "absent", FX_I32, 1, &data), FX_ERR_SHAPE);
  CHECK(data == NULL && fx_batch_find(batch, "absent") == NULL);
  fx_batch_destroy(batch);
  fx_batch_destroy(NULL);
  batch = NULL;
  fx_batch_field twice = {.name = "tokens", .dtype = FX_I32, .elements = 1};
  CHECK_STATUS(fx_batch_create(1, T, &twice, 1, NULL, &batch), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "\"tokens\"");
  fx_batch_field nameless = {.name = "", .dtype = FX_I32, .elements = 1};
  CHECK_STATUS(fx_batch_create(1, T, &nameless, 1, NULL, &batch), FX_ERR_SHAPE);
  fx_batch_field many[FX_BATCH_MAX_FIELDS] = {{.name = ""}};
  for (int i = 0; i < FX_BATCH_MAX_FIELDS; i++) many[i].name[0] = (char)('A' + i);
  CHECK_STATUS(fx_batch_create(1, T, many, FX_BATCH_MAX_FIELDS, NULL, &batch), FX_ERR_SHAPE);
  CHECK_STATUS(fx_batch_create(0, T, NULL, 0, NULL, &batch), FX_ERR_SHAPE);
  CHECK(batch == NULL);
}

static fx_status counted_alloc(void *ctx, size_t bytes, void **out) {
  ++*(int *)ctx;
  FX_TRY(fx_alloc_aligned(out, bytes));
  memset(*out, 0xEE, bytes);
  return FX_OK;
}

static void counted_release(void *ctx, void *memory) {
  --*(int *)ctx;
  free(memory);
}

static fx_status failing_alloc(void *ctx, size_t bytes, void **out) {
  (void)ctx, (void)out;
  return fx_error(FX_ERR_MEMORY, "no %zu pinned bytes", bytes);
}

static void allocators(void) {
  int live = 0;
  fx_batch_allocator counted = {counted_alloc, counted_release, &live};
  fx_batch_field extra = {.name = "runs", .dtype = FX_I32, .elements = 7};
  fx_batch *batch = NULL;
  if (CHECK_OK(fx_batch_create(2, T, &extra, 1, &counted, &batch))) {
    CHECK_INT(live, 1);
    for (int i = 0; i < 7; i++) CHECK_INT(((int32_t *)fx_batch_find(batch, "runs")->data)[i], 0);
    fx_batch_destroy(batch);
    CHECK_INT(live, 0);
  }
  fx_batch_allocator failing = {failing_alloc, counted_release, &live};
  batch = NULL;
  CHECK_STATUS(fx_batch_create(2, T, NULL, 0, &failing, &batch), FX_ERR_MEMORY);
  CHECK(batch == NULL);
}

/* All samples of a global batch as dealt to R ranks, by ordinal: returns tokens and targets, [G, 2, T]. */
static int32_t *gather(fx_sampler *sampler, int64_t consumed, int64_t G, int64_t B, int64_t R, int64_t *valid,
                       int64_t *global_valid) {
  int32_t *all = calloc((size_t)(G * 2 * T), sizeof *all);
  char *seen = calloc((size_t)G, 1);
  *valid = 0;
  for (int64_t r = 0; r < R; r++) {
    fx_batch_layout layout = {B, G, r, R};
    CHECK_OK(fx_batch_layout_check(&layout));
    CHECK_INT(fx_batch_layout_micros(&layout), G / (B * R));
    fx_batch *batch = NULL;
    if (!CHECK_OK(fx_batch_create(B, T, NULL, 0, NULL, &batch))) break;
    for (int64_t m = 0; m < G / (B * R); m++) {
      fx_batch_fill(batch, sampler, &layout, consumed, m, -1);
      CHECK_INT(batch->consumed_samples, consumed);
      CHECK_INT(batch->consumed_end, consumed + G);
      CHECK_INT(batch->micro, m);
      CHECK_INT(batch->n_micro, G / (B * R));
      *valid += batch->valid;
      *global_valid = batch->global_valid;
      int64_t counted = 0;
      for (int64_t i = 0; i < B * T; i++) counted += batch->targets[i] != -1;
      CHECK_INT(batch->valid, counted);
      for (int64_t j = 0; j < B; j++) {
        int64_t at = batch->sample_ordinal[j] - consumed;
        CHECK_INT(at, m * (B * R) + r * B + j);
        if (!CHECK(at >= 0 && at < G && !seen[at])) continue;
        seen[at] = 1;
        memcpy(all + at * 2 * T, batch->tokens + j * T, T * sizeof *all);
        memcpy(all + at * 2 * T + T, batch->targets + j * T, T * sizeof *all);
      }
    }
    fx_batch_destroy(batch);
  }
  for (int64_t i = 0; i < G; i++) CHECK_INT(seen[i], 1);
  free(seen);
  return all;
}

static void ranks(void) {
  fixture f = fixture_make(fixture_lengths, FIXTURE_DOCUMENTS);
  fx_sampler *sampler = sampler_make(&f.documents, T, FX_PACKING_DOCUMENTS, true, true, 21);
  const int64_t G = 24, shapes[][2] = {{1, 1}, {24, 1}, {3, 2}, {4, 3}, {2, 4}, {8, 3}, {6, 4}, {12, 2}};
  bool unequal = false;
  for (int64_t consumed = 0; consumed < 4 * G; consumed += G) { /* 22 samples an epoch: crosses epochs */
    int64_t valid1 = -1, global1 = -2;
    int32_t *one = gather(sampler, consumed, G, 2, 1, &valid1, &global1);
    CHECK_INT(valid1, global1);
    CHECK_INT(fx_batch_count_valid(sampler, consumed, G), global1);
    unequal |= fx_sampler_valid(sampler, consumed) != fx_sampler_valid(sampler, consumed + 1);
    for (int s = 0; s < 8; s++) {
      int64_t valid = -1, global = -2;
      int32_t *many = gather(sampler, consumed, G, shapes[s][0], shapes[s][1], &valid, &global);
      CHECK(memcmp(one, many, (size_t)(G * 2 * T) * sizeof *one) == 0);
      CHECK_INT(valid, global1);
      CHECK_INT(global, global1);
      free(many);
    }
    free(one);
  }
  CHECK(unequal); /* equal counts would hide a mean of means */
  fx_sampler_destroy(sampler);
  fixture_free(&f);
}

static void layouts(void) {
  const fx_batch_layout bad[] = {{0, 8, 0, 1},  {2, 0, 0, 1}, {2, 8, 0, 0}, {2, 8, 2, 2},
                                 {2, 8, -1, 2}, {3, 8, 0, 1}, {2, 8, 0, 3}, {INT64_MAX / 2, 8, 0, 2}};
  for (int i = 0; i < 8; i++) CHECK_STATUS(fx_batch_layout_check(&bad[i]), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "no multiple");
}

static const fx_test tests[] = {{"named buffers", buffers},
                                {"allocators", allocators},
                                {"any number of ranks sees the same global batch", ranks},
                                {"bad layouts", layouts}};
FX_TEST_MAIN("batch", tests)
