/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cpu/flex_attention_cpu.h"

#include "attention/cpu/flash_bwd.h"
#include "attention/cpu/flash_fwd.h"
#include "dynamo_rt/base/memory.h"

#include <string.h>

/* A shape with the structures it points to; filled in place, so it must not be copied. */
typedef struct bound_shape {
  fx_attention_shape shape;
  fx_limits limits;
  fx_runs runs;
  fx_attention_program program;
  fx_attention_buffer buffers[FX_ATTENTION_MAX_BUFFERS];
  int64_t table_floats[FX_ATTENTION_MAX_BUFFERS];
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
                              .bf16 = q->dtype == FX_BF16,
                              .scale = scale,
                              .threads = threads};
}

/* Of a variant, what the kernels' workspace depends on. */
static void bind_program(const fx_flex_variant *flex, bool ask_mask, bound_shape *out) {
  if (!flex || !flex->kernel) return;
  const fx_tile_functions *tile = fx_tile_kernel_functions(flex->kernel);
  if (!ask_mask && !tile->score && !tile->in_bounds) return;
  out->program = (fx_attention_program){.tile = tile,
                                        .mask = ask_mask,
                                        .uniform = flex->uniform,
                                        .num_buffers = fx_ex_num_buffers(flex->variant->pool),
                                        .buffers = out->buffers};
  memset(out->table_floats, 0, sizeof out->table_floats);
  for (int32_t t = 0; t < flex->variant->num_tables; t++)
    out->table_floats[flex->variant->tables[t].buffer] = fx_flex_table_floats(flex, t);
  if (flex->variant->num_tables > 0) out->program.table_floats = out->table_floats;
  out->shape.program = &out->program;
}

static void bind_buffers(const fx_kernel_args *args, const fx_flex_variant *flex, bound_shape *out) {
  const fx_ex_pool *pool = flex->variant->pool;
  int64_t B = out->shape.B;
  for (int32_t i = 0; i < out->program.num_buffers; i++)
    out->buffers[i] = (fx_attention_buffer){fx_ex_buffer_at(pool, i)->constant, 0};
  for (int32_t i = 0; i < flex->num_inputs; i++) {
    const fx_flex_input *input = &flex->input[i];
    const int32_t *blob = (const int32_t *)args->in[FX_FLEX_BUFFERS]->data + fx_flex_blob_offset(flex, i, B);
    out->buffers[input->buffer] = (fx_attention_buffer){blob, input->per_batch ? 4 * input->words : 0};
  }
  for (int32_t t = 0; t < flex->variant->num_tables; t++)
    out->buffers[flex->variant->tables[t].buffer] =
        (fx_attention_buffer){args->in[FX_FLEX_TABLE + t]->data, 0};
}

static fx_status bind_runs(const fx_kernel_args *args, const fx_attention_attr *attr, fx_attention_pass pass,
                           bound_shape *out) {
  const fx_tensor *runs = args->in[FX_FLEX_RUNS];
  if (!runs) return FX_OK;
  fx_attention_tile tile = fx_attention_cpu_tile(pass, out->shape.D);
  int32_t capacity = pass == FX_ATTENTION_FORWARD ? attr->capacity : attr->capacity_backward;
  out->runs = fx_runs_plan(attr->runs_Bm, out->shape.T_q, out->shape.T_kv, tile.q, tile.kv, capacity);
  out->runs.Hm = attr->runs_Hm;
  out->runs.kv_base = out->shape.kv_base;
  if (fx_runs_bytes(&out->runs) > fx_type_bytes(&runs->type))
    return fx_error(FX_ERR_SHAPE, "the run lists are smaller than this kernel's tiles need");
  fx_runs_bind(&out->runs, runs->data);
  out->shape.runs = &out->runs;
  return FX_OK;
}

static fx_status bind_shape(const fx_kernel_args *args, const fx_attention_attr *attr, fx_attention_pass pass,
                            bound_shape *out) {
  const fx_tensor *limits = args->in[FX_FLEX_LIMITS];
  out->shape =
      plain_shape(&args->in[FX_FLEX_Q]->type, &args->in[FX_FLEX_K]->type, attr->scale, args->threads);
  out->shape.first_head = attr->first_head;
  out->shape.all_heads = attr->all_heads;
  if (args->in[FX_FLEX_Q_BASE]) out->shape.q_bases = args->in[FX_FLEX_Q_BASE]->data;
  if (args->in[FX_FLEX_KV_BASE]) out->shape.kv_bases = args->in[FX_FLEX_KV_BASE]->data;
  if (limits) {
    int32_t T = out->shape.T_q;
    out->limits = (fx_limits){.R = attr->R,
                              .Bm = attr->Bm,
                              .Hm = attr->Hm,
                              .T = T,
                              .Tpad = fx_attention_tpad(T),
                              .T_kv = attr->T_total};
    fx_limits_bind(&out->limits, limits->data);
    out->shape.limits = &out->limits;
  }
  bind_program(attr->flex, attr->ask_mask, out);
  if (out->shape.program) bind_buffers(args, attr->flex, out);
  return bind_runs(args, attr, pass, out);
}

fx_status fx_flex_attention_cpu(const fx_kernel_args *args) {
  bound_shape bound;
  FX_TRY(bind_shape(args, args->attr, FX_ATTENTION_FORWARD, &bound));
  fx_attention_forward forward = {.shape = bound.shape,
                                  .q = view_in(args->in[FX_FLEX_Q]),
                                  .k = view_in(args->in[FX_FLEX_K]),
                                  .v = view_in(args->in[FX_FLEX_V]),
                                  .out = view_out(args->out[0]),
                                  .sinks = args->in[FX_FLEX_SINKS] ? args->in[FX_FLEX_SINKS]->data : NULL,
                                  .lse = args->out[1]->data,
                                  .workspace = args->workspace};
  return fx_attention_cpu_forward(&forward);
}

/* ---- backward ---- */

static size_t workspace(const fx_type *const *in, const fx_attention_attr *attr, fx_attention_pass pass,
                        int threads) {
  bound_shape bound;
  bound.shape = plain_shape(in[FX_FLEX_Q], in[FX_FLEX_K], 1.0f, threads);
  bind_program(attr->flex, attr->ask_mask, &bound);
  bound.limits = (fx_limits){.Bm = attr->Bm, .Hm = attr->Hm};
  bound.runs = (fx_runs){.Bm = attr->runs_Bm, .Hm = attr->runs_Hm};
  if (attr->Bm > 0) bound.shape.limits = &bound.limits;
  if (attr->runs_Bm > 0 && in[FX_FLEX_RUNS]) bound.shape.runs = &bound.runs;
  return fx_attention_cpu_workspace(pass, &bound.shape, threads);
}

static fx_attention_out sum_out(const fx_type *like, float *data) {
  int64_t head = like->dim[3], time = like->dim[2] * head;
  return (fx_attention_out){data, like->dim[1] * time, time, head, FX_F32};
}

/* gradient: dq, dk, dv; dlse may be NULL */
static fx_status backward(const fx_kernel_args *args, const fx_attention_attr *attr,
                          const fx_attention_out gradient[3], const float *dlse) {
  enum { OUT = FX_FLEX_OWN, LSE, DOUT };
  bound_shape bound;
  FX_TRY(bind_shape(args, attr, FX_ATTENTION_BACKWARD, &bound));
  float *tables[FX_ATTENTION_MAX_BUFFERS] = {NULL};
  fx_attention_backward backward = {.shape = bound.shape,
                                    .q = view_in(args->in[FX_FLEX_Q]),
                                    .k = view_in(args->in[FX_FLEX_K]),
                                    .v = view_in(args->in[FX_FLEX_V]),
                                    .out = view_in(args->in[OUT]),
                                    .dout = view_in(args->in[DOUT]),
                                    .lse = args->in[LSE]->data,
                                    .dlse = dlse,
                                    .dq = gradient[0],
                                    .dk = gradient[1],
                                    .dv = gradient[2],
                                    .workspace = args->workspace};
  if (args->in[FX_FLEX_SINKS] && args->out[3]) {
    backward.sinks = args->in[FX_FLEX_SINKS]->data;
    backward.dsinks = args->out[3]->data;
  }
  for (int32_t t = 0; t < fx_flex_num_tables(attr->flex); t++) {
    if (!args->out[4 + t]) continue;
    tables[attr->flex->variant->tables[t].buffer] = args->out[4 + t]->data;
    backward.dtables = tables;
  }
  return fx_attention_cpu_backward(&backward);
}

fx_status fx_flex_attention_grad_cpu(const fx_kernel_args *args) {
  const fx_tensor *dlse = args->in[FX_FLEX_OWN + 3];
  fx_attention_out gradient[3];
  for (int i = 0; i < 3; i++) gradient[i] = view_out(args->out[i]);
  return backward(args, args->attr, gradient, dlse ? dlse->data : NULL);
}

/* Where delta stands among what is prepared. */
static float *delta_of(const fx_tensor *prepared) {
  return (float *)prepared->data + fx_type_numel(&prepared->type) / 3;
}

fx_status fx_flex_attention_prepare_cpu(const fx_kernel_args *args) {
  const fx_tensor *dlse = args->in[FX_FLEX_OWN + 3];
  float *delta = delta_of(args->out[0]);
  size_t bytes = fx_type_bytes(&args->out[0]->type) / 3;
  if (dlse)
    memcpy(delta, dlse->data, bytes);
  else
    memset(delta, 0, bytes);
  return FX_OK;
}

/* Whether the kernel writes sum i itself; else it writes to the workspace, and what is wanted is added. */
static bool writes_sum(const fx_attention_add_attr *attr, int i) {
  return attr->first && attr->parts & (i == 0 ? FX_ATTENTION_OF_ROWS : FX_ATTENTION_OF_KEYS);
}

size_t fx_flex_attention_grad_add_workspace_cpu(const fx_type *const *in, const fx_type *out,
                                                const void *attr, int threads) {
  size_t floats = 0;
  (void)out;
  for (int i = 0; i < 3; i++)
    if (!writes_sum(attr, i)) floats += (size_t)fx_type_numel(in[i]);
  return fx_align_up(workspace(in, attr, FX_ATTENTION_BACKWARD, threads), FX_ALIGN) + floats * sizeof(float);
}

fx_status fx_flex_attention_grad_add_cpu(const fx_kernel_args *args) {
  const fx_attention_add_attr *attr = args->attr;
  const fx_tensor *prepared = args->in[FX_FLEX_OWN + 3];
  fx_attention_out gradient[3];
  const fx_type *in[FX_FLEX_OWN] = {NULL};
  for (int i = 0; i < FX_FLEX_OWN; i++)
    if (args->in[i]) in[i] = &args->in[i]->type;
  size_t used = workspace(in, &attr->attention, FX_ATTENTION_BACKWARD, args->threads);
  float *own = (float *)args->workspace + fx_align_up(used, FX_ALIGN) / sizeof(float);
  for (int i = 0; i < 3; i++) {
    bool direct = writes_sum(attr, i);
    gradient[i] = sum_out(in[i], direct ? args->out[i]->data : own);
    if (!direct) own += fx_type_numel(in[i]);
  }
  FX_TRY(backward(args, &attr->attention, gradient, prepared ? delta_of(prepared) : NULL));
  for (int i = 0; i < 3 && !attr->first; i++) {
    float *sum = args->out[i] ? args->out[i]->data : NULL;
    const float *part = gradient[i].data;
    for (int64_t n = 0; sum && n < fx_type_numel(in[i]); n++) sum[n] += part[n];
  }
  return FX_OK;
}

/* ---- one chunk of keys at a time ---- */

fx_status fx_flex_attention_partial_cpu(const fx_kernel_args *args) {
  const fx_attention_partial_attr *attr = args->attr;
  bound_shape bound;
  FX_TRY(bind_shape(args, &attr->attention, FX_ATTENTION_FORWARD, &bound));
  fx_attention_partial partial = {
      .shape = bound.shape,
      .q = view_in(args->in[FX_FLEX_Q]),
      .k = view_in(args->in[FX_FLEX_K]),
      .v = view_in(args->in[FX_FLEX_V]),
      .state = {.o = view_out(args->out[0]), .m = args->out[1]->data, .l = args->out[2]->data},
      .first = attr->first != 0,
      .workspace = args->workspace};
  return fx_attention_cpu_partial(&partial);
}

fx_status fx_flex_attention_finish_cpu(const fx_kernel_args *args) {
  const fx_type *o = &args->in[0]->type;
  fx_attention_shape shape = plain_shape(o, o, 1.0f, args->threads);
  fx_attention_state state = {.o = view_out(args->in[0]), .m = args->in[1]->data, .l = args->in[2]->data};
  return fx_attention_cpu_finalize(&shape, &state, args->in[3] ? args->in[3]->data : NULL,
                                   view_out(args->out[0]), args->out[1]->data);
}

size_t fx_flex_attention_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                       int threads) {
  (void)out;
  return workspace(in, attr, FX_ATTENTION_FORWARD, threads);
}

size_t fx_flex_attention_grad_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                            int threads) {
  (void)out;
  return workspace(in, attr, FX_ATTENTION_BACKWARD, threads);
}

void fx_flex_attention_tile_cpu(bool backward, int32_t D, int32_t tile[2]) {
  fx_attention_tile t = fx_attention_cpu_tile(backward ? FX_ATTENTION_BACKWARD : FX_ATTENTION_FORWARD, D);
  tile[0] = t.q;
  tile[1] = t.kv;
}
