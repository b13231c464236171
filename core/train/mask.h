/* SPDX-License-Identifier: Apache-2.0 */
/* From the documents of a batch to the mask inputs of a step: limits and run lists, in memory the caller
 * owns. Runs on the prefetch thread while the step before computes. */
#ifndef FX_CORE_TRAIN_MASK_H
#define FX_CORE_TRAIN_MASK_H

#include "core/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_mask_builder {
  const fx_mask_variant *variant;
  int32_t B, T, window;
  bool needs_limits;  /* false: every row sees every key, and there is nothing to build */
  int32_t tile[2][2]; /* [forward, backward][rows, keys] */
  char text[96];      /* canonical variant, for plan keys: "sliding_window(window=64)" */
} fx_mask_builder;

/* What one batch's mask needs, int32 words. Zero without limits. */
typedef struct fx_mask_sizes {
  int64_t limits, runs, runs_backward;
} fx_mask_sizes;

fx_status fx_mask_builder_init(fx_mask_builder *builder, const fx_config *config, fx_backend backend,
                               int64_t B, int64_t T);
fx_mask_sizes fx_mask_builder_sizes(const fx_mask_builder *builder);
/* What the recorder has to know of it. */
fx_model_mask fx_mask_builder_model(const fx_mask_builder *builder);
/* doc_start, doc_end [B, T] int32. Outputs of the sizes above; allocates nothing. */
fx_status fx_mask_build(const fx_mask_builder *builder, const int32_t *doc_start, const int32_t *doc_end,
                        int32_t *limits, int32_t *runs, int32_t *runs_backward);

#ifdef __cplusplus
}
#endif
#endif
