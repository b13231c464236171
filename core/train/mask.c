/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/mask.h"

#include <stdio.h>
#include <string.h>

fx_status fx_mask_builder_init(fx_mask_builder *builder, const fx_config *config, fx_backend backend,
                               int64_t B, int64_t T) {
  memset(builder, 0, sizeof *builder);
  builder->variant = fx_mask_variant_find(config->attention.variant);
  if (!builder->variant)
    return fx_error(FX_ERR_CONFIG, "%s: no kernel knows the attention variant \"%s\"",
                    fx_config_where(config, "attention.variant"), config->attention.variant);
  builder->B = (int32_t)B;
  builder->T = (int32_t)T;
  builder->window = (int32_t)fx_config_attention_param(config, "window", 0);
  builder->needs_limits = strcmp(builder->variant->name, "full") != 0;
  for (int backward = 0; backward < 2; backward++)
    fx_flex_attention_tile(backend, backward, (int32_t)config->model.head_dim, builder->tile[backward]);
  if (builder->variant->needs_window)
    snprintf(builder->text, sizeof builder->text, "%s(window=%d)", builder->variant->name, builder->window);
  else
    snprintf(builder->text, sizeof builder->text, "%s", builder->variant->name);
  return FX_OK;
}

static fx_mask_inputs inputs_of(const fx_mask_builder *builder, const int32_t *doc_start,
                                const int32_t *doc_end) {
  return (fx_mask_inputs){.B = builder->B,
                          .T = builder->T,
                          .T_kv = builder->T,
                          .doc_start = doc_start,
                          .doc_end = doc_end,
                          .window = builder->window};
}

static fx_limits plan_limits(const fx_mask_builder *builder) {
  fx_mask_inputs in = inputs_of(builder, NULL, NULL);
  return fx_limits_plan(builder->variant, &in);
}

static fx_runs plan_runs(const fx_mask_builder *builder, const fx_limits *limits, int backward) {
  return fx_runs_plan(limits->Bm, builder->T, builder->T, builder->tile[backward][0],
                      builder->tile[backward][1], fx_runs_capacity(limits->R));
}

fx_mask_sizes fx_mask_builder_sizes(const fx_mask_builder *builder) {
  if (!builder->needs_limits) return (fx_mask_sizes){0, 0, 0};
  fx_limits limits = plan_limits(builder);
  fx_runs forward = plan_runs(builder, &limits, 0), backward = plan_runs(builder, &limits, 1);
  return (fx_mask_sizes){2 * (int64_t)limits.R * limits.Bm * limits.Tpad,
                         (int64_t)(fx_runs_bytes(&forward) / sizeof(int32_t)),
                         (int64_t)(fx_runs_bytes(&backward) / sizeof(int32_t))};
}

fx_model_mask fx_mask_builder_model(const fx_mask_builder *builder) {
  fx_model_mask mask = {.limits = builder->needs_limits, .runs = builder->needs_limits};
  if (!builder->needs_limits) return mask;
  fx_limits limits = plan_limits(builder);
  mask.attr.R = limits.R;
  mask.attr.Bm = limits.Bm;
  mask.attr.Hm = mask.attr.runs_Hm = 1;
  mask.attr.runs_Bm = limits.Bm;
  mask.attr.capacity = mask.attr.capacity_backward = fx_runs_capacity(limits.R);
  mask.attr.T_total = builder->T;
  return mask;
}

fx_status fx_mask_build(const fx_mask_builder *builder, const int32_t *doc_start, const int32_t *doc_end,
                        int32_t *limits_memory, int32_t *runs, int32_t *runs_backward) {
  if (!builder->needs_limits) return FX_OK;
  fx_mask_inputs in = inputs_of(builder, doc_start, doc_end);
  fx_limits limits = plan_limits(builder);
  fx_limits_bind(&limits, limits_memory);
  FX_TRY(fx_limits_compute(builder->variant, &in, &limits));
  for (int backward = 0; backward < 2; backward++) {
    fx_runs lists = plan_runs(builder, &limits, backward);
    fx_runs_bind(&lists, backward ? runs_backward : runs);
    FX_TRY(fx_runs_build(&limits, &lists));
  }
  return FX_OK;
}
