/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/flex_variant.h"

#include "dynamo_rt/base/memory.h"

#include <stdlib.h>

static int64_t elements(const fx_ex_buffer *buffer) {
  int64_t count = 1;
  for (int i = 0; i < buffer->ndim; i++) count *= buffer->dim[i];
  return count;
}

static fx_status prepare(fx_flex_variant *flex, bool asks_mask, const fx_tile_options *options) {
  const fx_variant *variant = flex->variant;
  const fx_ex_pool *pool = variant->pool;
  for (int32_t i = 0; i < fx_ex_num_params(pool); i++) flex->uniform[i] = fx_ex_param_at(pool, i)->value;
  for (int32_t i = 0; i < fx_ex_num_buffers(pool); i++) {
    const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, i);
    if (!buffer->constant && !buffer->learnable)
      flex->input[flex->num_inputs++] = (fx_flex_input){i, elements(buffer), buffer->per_batch};
  }
  if (!asks_mask && variant->score == FX_EX_NONE) return FX_OK;
  return fx_tile_kernel_create(variant, options, &flex->kernel);
}

fx_status fx_flex_variant_create(fx_variant *variant, bool asks_mask, const fx_tile_options *options,
                                 fx_flex_variant **out) {
  fx_flex_variant *flex = NULL;
  fx_status status = fx_calloc(&flex, 1, sizeof *flex);
  if (status != FX_OK) {
    fx_variant_destroy(variant);
    return status;
  }
  flex->variant = variant;
  FX_TRY_GOTO(prepare(flex, asks_mask, options), destroy_flex);
  *out = flex;
  return FX_OK;
destroy_flex:
  fx_flex_variant_destroy(flex);
  return status;
}

void fx_flex_variant_destroy(fx_flex_variant *flex) {
  if (!flex) return;
  fx_tile_kernel_destroy(flex->kernel);
  fx_variant_destroy(flex->variant);
  free(flex);
}

int64_t fx_flex_blob_offset(const fx_flex_variant *flex, int32_t i, int64_t B) {
  int64_t at = 0;
  for (int32_t j = 0; j < i; j++)
    at += fx_ceil_div(flex->input[j].words * (flex->input[j].per_batch ? B : 1), 16) * 16;
  return at;
}

int64_t fx_flex_blob_words(const fx_flex_variant *flex, int64_t B) {
  return fx_flex_blob_offset(flex, flex->num_inputs, B);
}

int64_t fx_flex_table_floats(const fx_flex_variant *flex, int32_t t) {
  return elements(fx_ex_buffer_at(flex->variant->pool, flex->variant->tables[t].buffer));
}
