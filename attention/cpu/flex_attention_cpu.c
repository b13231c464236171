/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cpu/flex_attention_cpu.h"

#include "attention/cpu/flash_bwd.h"
#include "attention/cpu/flash_fwd.h"

enum { Q, K, V, LIMITS, RUNS, KV_BASE, FIRST_OWN };

/* A shape with the mask structures it points to; filled in place, so it must not be copied. */
typedef struct bound_shape {
  fx_attention_shape shape;
  fx_limits limits;
  fx_runs runs;
} bound_shape;

static fx_attention_in view_in(const fx_tensor *t) {
  return (fx_attention_in){t->data, t->type.stride[0], t->type.stride[1], t->type.stride[2], t->type.dtype};
}

static fx_attention_out view_out(const fx_tensor *t) {
  return (fx_attention_out){t->data, t->type.stride[0], t->type.stride[1], t->type.stride[2], t->type.dtype};
}

static fx_attention_shape plain_shape(const fx_type *q, const fx_type *k, float scale, int threads) {
  return (fx_attention_shape){.B = (int32_t)q->dim[0],
                              .T_q = (int32_t)q->dim[1],
                              .T_kv = (int32_t)k->dim[1],
                              .H = (int32_t)q->dim[2],
                              .K = (int32_t)k->dim[2],
                              .D = (int32_t)q->dim[3],
                              .scale = scale,
                              .threads = threads};
}

/* The CPU kernels take one contiguous chunk of keys: its blocks must follow each other. */
static fx_status read_kv_base(const fx_tensor *kv_base, int64_t *out) {
  *out = 0;
  if (!kv_base) return FX_OK;
  const int32_t *base = kv_base->data;
  for (int64_t i = 1; i < fx_type_numel(&kv_base->type); i++)
    if (base[i] != base[0] + 128 * i)
      return fx_error(FX_ERR_UNSUPPORTED,
                      "key block %lld begins at %d, not at %lld: the CPU kernels take contiguous chunks",
                      (long long)i, base[i], (long long)base[0] + 128 * (long long)i);
  *out = base[0];
  return FX_OK;
}

static fx_status bind_shape(const fx_kernel_args *args, const fx_attention_attr *attr, fx_attention_pass pass,
                            bound_shape *out) {
  const fx_tensor *limits = args->in[LIMITS], *runs = args->in[RUNS];
  out->shape = plain_shape(&args->in[Q]->type, &args->in[K]->type, attr->scale, args->threads);
  FX_TRY(read_kv_base(args->in[KV_BASE], &out->shape.kv_base));
  if (!limits) return FX_OK;
  int32_t T = out->shape.T_q;
  out->limits =
      (fx_limits){.R = attr->R, .Bm = attr->Bm, .T = T, .Tpad = fx_attention_tpad(T), .T_kv = attr->T_total};
  fx_limits_bind(&out->limits, limits->data);
  out->shape.limits = &out->limits;
  if (!runs) return FX_OK;
  fx_attention_tile tile = fx_attention_cpu_tile(pass, out->shape.D);
  out->runs = fx_runs_plan(attr->Bm, T, out->shape.T_kv, tile.q, tile.kv, fx_runs_capacity(attr->R));
  out->runs.kv_base = out->shape.kv_base;
  if (fx_runs_bytes(&out->runs) > fx_type_bytes(&runs->type))
    return fx_error(FX_ERR_SHAPE, "the run lists are smaller than this kernel's tiles need");
  fx_runs_bind(&out->runs, runs->data);
  out->shape.runs = &out->runs;
  return FX_OK;
}

fx_status fx_flex_attention_cpu(const fx_kernel_args *args) {
  bound_shape bound;
  FX_TRY(bind_shape(args, args->attr, FX_ATTENTION_FORWARD, &bound));
  fx_attention_forward forward = {.shape = bound.shape,
                                  .q = view_in(args->in[Q]),
                                  .k = view_in(args->in[K]),
                                  .v = view_in(args->in[V]),
                                  .out = view_out(args->out[0]),
                                  .lse = args->out[1]->data,
                                  .workspace = args->workspace};
  return fx_attention_cpu_forward(&forward);
}

fx_status fx_flex_attention_grad_cpu(const fx_kernel_args *args) {
  enum { OUT = FIRST_OWN, LSE, DOUT, DLSE };
  bound_shape bound;
  FX_TRY(bind_shape(args, args->attr, FX_ATTENTION_BACKWARD, &bound));
  fx_attention_backward backward = {.shape = bound.shape,
                                    .q = view_in(args->in[Q]),
                                    .k = view_in(args->in[K]),
                                    .v = view_in(args->in[V]),
                                    .out = view_in(args->in[OUT]),
                                    .dout = view_in(args->in[DOUT]),
                                    .lse = args->in[LSE]->data,
                                    .dlse = args->in[DLSE] ? args->in[DLSE]->data : NULL,
                                    .dq = view_out(args->out[0]),
                                    .dk = view_out(args->out[1]),
                                    .dv = view_out(args->out[2]),
                                    .workspace = args->workspace};
  return fx_attention_cpu_backward(&backward);
}

fx_status fx_flex_attention_partial_cpu(const fx_kernel_args *args) {
  const fx_attention_partial_attr *attr = args->attr;
  bound_shape bound;
  FX_TRY(bind_shape(args, &attr->attention, FX_ATTENTION_FORWARD, &bound));
  fx_attention_partial partial = {
      .shape = bound.shape,
      .q = view_in(args->in[Q]),
      .k = view_in(args->in[K]),
      .v = view_in(args->in[V]),
      .state = {.o = view_out(args->out[0]), .m = args->out[1]->data, .l = args->out[2]->data},
      .first = attr->first != 0,
      .workspace = args->workspace};
  return fx_attention_cpu_partial(&partial);
}

fx_status fx_flex_attention_finish_cpu(const fx_kernel_args *args) {
  const fx_type *o = &args->in[0]->type;
  fx_attention_shape shape = plain_shape(o, o, 1.0f, args->threads);
  fx_attention_state state = {.o = view_out(args->in[0]), .m = args->in[1]->data, .l = args->in[2]->data};
  return fx_attention_cpu_finalize(&shape, &state, NULL, view_out(args->out[0]), args->out[1]->data);
}

size_t fx_flex_attention_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                       int threads) {
  (void)out, (void)attr;
  fx_attention_shape shape = plain_shape(in[Q], in[K], 1.0f, threads);
  return fx_attention_cpu_workspace(FX_ATTENTION_FORWARD, &shape, threads);
}

size_t fx_flex_attention_grad_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                            int threads) {
  (void)out, (void)attr;
  fx_attention_shape shape = plain_shape(in[Q], in[K], 1.0f, threads);
  return fx_attention_cpu_workspace(FX_ATTENTION_BACKWARD, &shape, threads);
}

void fx_flex_attention_tile_cpu(bool backward, int32_t D, int32_t tile[2]) {
  fx_attention_tile t = fx_attention_cpu_tile(backward ? FX_ATTENTION_BACKWARD : FX_ATTENTION_FORWARD, D);
  tile[0] = t.q;
  tile[1] = t.kv;
}
