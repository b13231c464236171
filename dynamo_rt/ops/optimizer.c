/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/optimizer.h"

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

static fx_status squares_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  for (int i = 0; i < FX_MAX_SQUARES; i++)
    if (in[i] && (!fx_type_contiguous(in[i]) || in[i]->dtype != FX_F32))
      return fx_error(FX_ERR_SHAPE, "the gradient must be contiguous float32");
  out[0] = fx_type_1d(FX_F64, 1);
  return FX_OK;
}

static fx_cost squares_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  double n = 0;
  for (int i = 0; i < FX_MAX_SQUARES; i++)
    if (in[i]) n += (double)fx_type_numel(in[i]);
  return (fx_cost){2 * n, 4 * n};
}

static const fx_op g_squares = {
    .name = "squares",
    .min_in = 1,
    .max_in = FX_MAX_SQUARES,
    .num_out = 1,
    .infer = squares_infer,
    .cost = squares_cost,
    .workspace = fx_squares_workspace_cpu,
    .kernel = {[FX_BACKEND_CPU] = fx_squares_cpu, [FX_BACKEND_CUDA] = fx_squares_cuda},
};

fx_value fx_squares(fx_graph *graph, const fx_value *grads, int count) {
  fx_value in[FX_MAX_SQUARES];
  FX_ASSERT(count > 0 && count <= FX_MAX_SQUARES);
  for (int i = 0; i < FX_MAX_SQUARES; i++) in[i] = i < count ? grads[i] : FX_NONE;
  return fx_graph_record(graph, &g_squares, NULL, in, NULL);
}

static fx_status clip_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (fx_type_numel(in[0]) != 1 || in[0]->dtype != FX_F64)
    return fx_error(FX_ERR_SHAPE, "the sum of squares must be one float64");
  out[0] = out[1] = fx_type_1d(FX_F32, 1);
  return FX_OK;
}

static const fx_op g_clip = {
    .name = "clip",
    .min_in = 1,
    .max_in = 1,
    .num_out = 2,
    .attr_bytes = sizeof(fx_clip_attr),
    .infer = clip_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_clip_cpu, [FX_BACKEND_CUDA] = fx_clip_cuda},
};

fx_value fx_clip(fx_graph *graph, fx_value squares, fx_clip_attr attr, fx_value *factor) {
  fx_value out[2];
  fx_graph_record(graph, &g_clip, &attr, (fx_value[]){squares}, out);
  *factor = out[1];
  return out[0];
}

enum { SNAPSHOT = 8, COMPUTE = 11 }; /* inputs of adamw that may be absent, and then the outputs are */

static fx_status adamw_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  for (int i = 0; i < 4; i++)
    if (fx_type_numel(in[i]) != fx_type_numel(in[0]) || !fx_type_contiguous(in[i]) || in[i]->dtype != FX_F32)
      return fx_error(FX_ERR_SHAPE, "parameter, gradient and moments must be float32 of one length");
  out[0] = *in[0];
  out[1] = *in[2];
  out[2] = *in[3];
  for (int i = SNAPSHOT; i <= COMPUTE; i++) {
    if (i < COMPUTE && !in[i] != !in[SNAPSHOT]) return fx_error(FX_ERR_SHAPE, "a snapshot has three parts");
    if (!in[i]) continue;
    if (fx_type_numel(in[i]) != fx_type_numel(in[0]) || !fx_type_contiguous(in[i]) ||
        in[i]->dtype != (i == COMPUTE ? FX_BF16 : FX_F32))
      return fx_error(FX_ERR_SHAPE, "%s must be %s of the parameter's length",
                      i == COMPUTE ? "the rounded copy" : "a snapshot",
                      i == COMPUTE ? "bfloat16" : "float32");
    out[i - SNAPSHOT + 3] = *in[i];
  }
  return FX_OK;
}

static fx_cost adamw_cost(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)out, (void)attr;
  double n = (double)fx_type_numel(in[0]);
  return (fx_cost){12 * n, (28 + (in[SNAPSHOT] ? 12 : 0) + (in[COMPUTE] ? 2 : 0)) * n};
}

static const fx_op g_adamw = {
    .name = "adamw",
    .bf16_cpu = true,
    .min_in = SNAPSHOT,
    .max_in = COMPUTE + 1,
    .num_out = 7,
    .attr_bytes = sizeof(fx_adamw_attr),
    .effects = FX_EFFECT_MUTATES,
    .optional_out = 0x78,
    .must_alias = {1, 3, 4, 1 + SNAPSHOT, 2 + SNAPSHOT, 3 + SNAPSHOT, 1 + COMPUTE},
    .infer = adamw_infer,
    .cost = adamw_cost,
    .kernel = {[FX_BACKEND_CPU] = fx_adamw_cpu, [FX_BACKEND_CUDA] = fx_adamw_cuda},
};

void fx_adamw(fx_graph *graph, const fx_adamw_values *v, const fx_value snapshot[3], fx_adamw_attr attr) {
  fx_value in[FX_MAX_IN] = {v->param, v->grad, v->exp_avg, v->exp_avg_sq, v->lr, v->step, v->norm, v->factor};
  for (int i = 0; i < 3; i++) in[SNAPSHOT + i] = snapshot ? snapshot[i] : FX_NONE;
  in[COMPUTE] = v->compute;
  fx_graph_record(graph, &g_adamw, &attr, in, NULL);
}
