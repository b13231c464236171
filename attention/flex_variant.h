/* SPDX-License-Identifier: Apache-2.0 */
/* A variant made ready to run: its tile functions, the values of its float parameters, and where its buffers
 * come from at run time.
 *
 * Buffers of a variant are of three kinds: constant tables, held here; learnable tables, inputs of the op
 * with a gradient; and the batch's own (documents, turns, ...), which travel in one int32 blob, a runtime
 * input: all samples of the first, then all samples of the next, each aligned to 16 words. */
#ifndef FX_ATTENTION_FLEX_VARIANT_H
#define FX_ATTENTION_FLEX_VARIANT_H

#include "attention/tile/kernel.h"
#include "attention/variant/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_flex_input {
  int32_t buffer; /* number in the variant's pool */
  int64_t words;  /* of one sample, or of all when the buffer is not per batch */
  bool per_batch;
} fx_flex_input;

typedef struct fx_flex_variant {
  fx_variant *variant;    /* owned */
  fx_tile_kernel *kernel; /* NULL: nothing of it is evaluated inside tiles */
  float uniform[FX_EX_MAX_PARAMS];
  fx_flex_input input[FX_EX_MAX_BUFFERS]; /* the batch's buffers, in the order of the blob */
  int32_t num_inputs;
} fx_flex_variant;

/* Takes the variant over, on failure too. asks_mask: kernels will ask its mask inside tiles
 * (fx_attention_attr); a mask that limits represent needs no function, and a variant without a score then
 * none at all. options may be NULL. Errors: fx_tile_kernel_create's. */
fx_status fx_flex_variant_create(fx_variant *variant, bool asks_mask, const fx_tile_options *options,
                                 fx_flex_variant **out);
void fx_flex_variant_destroy(fx_flex_variant *flex); /* NULL is fine */

/* int32 words of the blob for B samples, and where input i begins in it. */
int64_t fx_flex_blob_words(const fx_flex_variant *flex, int64_t B);
int64_t fx_flex_blob_offset(const fx_flex_variant *flex, int32_t i, int64_t B);

/* Number of learnable tables, and how many floats the op's input for table t must hold. */
static inline int32_t fx_flex_num_tables(const fx_flex_variant *flex) {
  return flex ? flex->variant->num_tables : 0;
}
int64_t fx_flex_table_floats(const fx_flex_variant *flex, int32_t t);

#ifdef __cplusplus
}
#endif
#endif
