/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/elementwise.h"

#include <string.h>

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

static fx_status same_shapes(const fx_type *a, const fx_type *b) {
  char left[96], right[96];
  if (fx_type_same_shape(a, b) && a->dtype == b->dtype) return FX_OK;
  return fx_error(FX_ERR_SHAPE, "%s does not match %s", fx_type_text(a, left, sizeof left),
                  fx_type_text(b, right, sizeof right));
}

static fx_status check_type(const fx_type *type) {
  if (fx_is_activation(type->dtype)) return FX_OK;
  return fx_error(FX_ERR_SHAPE, "expected float32 or bfloat16, got %s", fx_dtype_name(type->dtype));
}

static fx_type contiguous(const fx_type *type) {
  return fx_type_of(type->dtype, type->ndim, type->dim);
}

static fx_cost one_flop(const fx_type *const *in, const fx_type *out, const void *attr) {
  (void)attr;
  double n = (double)fx_type_numel(&out[0]), bytes = n * (double)fx_dtype_bytes(out[0].dtype);
  return (fx_cost){n, bytes * (in[1] ? 3 : 2)};
}

/* ---- add ---- */

static fx_status add_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  FX_TRY(same_shapes(in[0], in[1]));
  FX_TRY(check_type(in[0]));
  out[0] = contiguous(in[0]);
  return FX_OK;
}

static fx_status add_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  (void)graph, (void)node;
  din[0] = din[1] = dout[0];
  return FX_OK;
}

static const fx_op g_add = {
    .name = "add",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .may_alias = {1},
    .infer = add_infer,
    .vjp = add_vjp,
    .cost = one_flop,
    .kernel = {[FX_BACKEND_CPU] = fx_add_cpu, [FX_BACKEND_CUDA] = fx_add_cuda},
};

fx_value fx_add(fx_graph *graph, fx_value a, fx_value b) {
  return fx_graph_record(graph, &g_add, NULL, (fx_value[]){a, b}, NULL);
}

bool fx_is_add(const fx_node *node) {
  return node->op == &g_add;
}

/* ---- scale ---- */

static fx_status scale_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (fx_type_numel(in[1]) != 1 || in[1]->dtype != FX_F32)
    return fx_error(FX_ERR_SHAPE, "the factor must be one float32");
  FX_TRY(check_type(in[0]));
  out[0] = contiguous(in[0]);
  return FX_OK;
}

static fx_status scale_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  din[0] = fx_scale(graph, dout[0], node->in[1]);
  return fx_graph_status(graph);
}

static const fx_op g_scale = {
    .name = "scale",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .may_alias = {1},
    .infer = scale_infer,
    .vjp = scale_vjp,
    .cost = one_flop,
    .kernel = {[FX_BACKEND_CPU] = fx_scale_cpu, [FX_BACKEND_CUDA] = fx_scale_cuda},
};

fx_value fx_scale(fx_graph *graph, fx_value x, fx_value s) {
  return fx_graph_record(graph, &g_scale, NULL, (fx_value[]){x, s}, NULL);
}

/* ---- copy, cast ---- */

static fx_status copy_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = contiguous(in[0]);
  return FX_OK;
}

static fx_status copy_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  (void)graph, (void)node;
  din[0] = dout[0];
  return FX_OK;
}

static const fx_op g_copy = {
    .name = "copy",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .bf16_cpu = true,
    .strided_out = 1,
    .infer = copy_infer,
    .vjp = copy_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_copy_cpu, [FX_BACKEND_CUDA] = fx_copy_cuda},
};

fx_value fx_copy(fx_graph *graph, fx_value x) {
  return fx_graph_record(graph, &g_copy, NULL, (fx_value[]){x}, NULL);
}

bool fx_is_copy(const fx_node *node) {
  return node->op == &g_copy;
}

static fx_status cast_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  fx_dtype to = (fx_dtype) * (const int32_t *)attr, from = in[0]->dtype;
  bool known = (from == FX_F32 || from == FX_BF16 || from == FX_F64) &&
               (to == FX_F32 || to == FX_BF16 || to == FX_F64);
  if (!known || !fx_type_contiguous(in[0]))
    return fx_error(FX_ERR_SHAPE, "no conversion from %s to %s", fx_dtype_name(from), fx_dtype_name(to));
  out[0] = fx_type_of(to, in[0]->ndim, in[0]->dim);
  return FX_OK;
}

static fx_status cast_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  din[0] = fx_cast(graph, dout[0], fx_graph_type(graph, node->in[0])->dtype);
  return fx_graph_status(graph);
}

static const fx_op g_cast = {
    .name = "cast",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .bf16_cpu = true,
    .strided_out = 1,
    .attr_bytes = sizeof(int32_t),
    .infer = cast_infer,
    .vjp = cast_vjp,
    .kernel = {[FX_BACKEND_CPU] = fx_cast_cpu, [FX_BACKEND_CUDA] = fx_cast_cuda},
};

fx_value fx_cast(fx_graph *graph, fx_value x, fx_dtype dtype) {
  int32_t attr = (int32_t)dtype;
  return fx_graph_record(graph, &g_cast, &attr, (fx_value[]){x}, NULL);
}

/* ---- fill ---- */

static fx_status fill_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in;
  out[0] = ((const fx_fill_attr *)attr)->type;
  if (out[0].dtype != FX_F32)
    return fx_error(FX_ERR_SHAPE, "expected float32, got %s", fx_dtype_name(out[0].dtype));
  return FX_OK;
}

static fx_status fill_kernel_cpu(const fx_kernel_args *args) {
  float number = ((const fx_fill_attr *)args->attr)->number, *y = args->out[0]->data;
  for (int64_t i = 0, n = fx_type_numel(&args->out[0]->type); i < n; i++) y[i] = number;
  return FX_OK;
}

static fx_status fill_kernel_cuda(const fx_kernel_args *args) {
  return fx_fill_cuda(args, ((const fx_fill_attr *)args->attr)->number);
}

static const fx_op g_fill = {
    .name = "fill",
    .num_out = 1,
    .attr_bytes = sizeof(fx_fill_attr),
    .infer = fill_infer,
    .kernel = {[FX_BACKEND_CPU] = fill_kernel_cpu, [FX_BACKEND_CUDA] = fill_kernel_cuda},
};

fx_value fx_fill(fx_graph *graph, fx_type type, float number) {
  fx_fill_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.type = type;
  attr.number = number;
  return fx_graph_record(graph, &g_fill, &attr, (fx_value[FX_MAX_IN]){FX_NONE}, NULL);
}

fx_value fx_zeros_like(fx_graph *graph, fx_value x) {
  if (graph->status != FX_OK) return FX_NONE;
  fx_type type = *fx_graph_type(graph, x);
  fx_value zeros = fx_fill(graph, fx_type_of(FX_F32, type.ndim, type.dim), 0.0f);
  return type.dtype == FX_F32 ? zeros : fx_cast(graph, zeros, type.dtype);
}

/* ---- empty ---- */

static fx_status empty_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in;
  out[0] = *(const fx_type *)attr;
  return FX_OK;
}

static fx_status empty_kernel(const fx_kernel_args *args) {
  (void)args;
  return FX_OK;
}

static const fx_op g_empty = {
    .name = "empty",
    .num_out = 1,
    .attr_bytes = sizeof(fx_type),
    .bf16_cpu = true,
    .infer = empty_infer,
    .kernel = {[FX_BACKEND_CPU] = empty_kernel, [FX_BACKEND_CUDA] = empty_kernel},
};

fx_value fx_empty(fx_graph *graph, fx_type type) {
  return fx_graph_record(graph, &g_empty, &type, (fx_value[FX_MAX_IN]){FX_NONE}, NULL);
}

bool fx_is_fill(const fx_graph *graph, fx_value value, float number) {
  int32_t node = fx_value_is(graph, value) ? graph->values[value].node : -1;
  return node >= 0 && graph->nodes[node].op == &g_fill &&
         ((const fx_fill_attr *)graph->nodes[node].attr)->number == number;
}

/* ---- store, accumulate ---- */

static fx_status store_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  char left[96], right[96];
  if (fx_type_numel(in[0]) != fx_type_numel(in[1]) || in[0]->dtype != in[1]->dtype ||
      !fx_type_contiguous(in[0]) || !fx_type_contiguous(in[1]))
    return fx_error(FX_ERR_SHAPE, "%s cannot take %s", fx_type_text(in[0], left, sizeof left),
                    fx_type_text(in[1], right, sizeof right));
  out[0] = *in[0];
  return FX_OK;
}

static const fx_op g_store = {
    .name = "store",
    .bf16_cpu = true,
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .effects = FX_EFFECT_MUTATES,
    .must_alias = {1},
    .infer = store_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_store_cpu, [FX_BACKEND_CUDA] = fx_store_cuda},
};

static const fx_op g_accumulate = {
    .name = "accumulate",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .effects = FX_EFFECT_MUTATES,
    .must_alias = {1},
    .infer = store_infer,
    .cost = one_flop,
    .kernel = {[FX_BACKEND_CPU] = fx_add_cpu, [FX_BACKEND_CUDA] = fx_add_cuda},
};

fx_value fx_store(fx_graph *graph, fx_value dst, fx_value src) {
  return fx_graph_record(graph, &g_store, NULL, (fx_value[]){dst, src}, NULL);
}

fx_value fx_accumulate(fx_graph *graph, fx_value dst, fx_value src) {
  return fx_graph_record(graph, &g_accumulate, NULL, (fx_value[]){dst, src}, NULL);
}

bool fx_is_store(const fx_node *node) {
  return node->op == &g_store;
}
bool fx_is_accumulate(const fx_node *node) {
  return node->op == &g_accumulate;
}
