/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cuda/flex_attention_cuda.h"

#include <string.h>

#include "attention/cpu/flex_attention_cpu.h"
#include "attention/cuda/flash_cuda.h"
#include "dynamo_rt/device/cuda/driver_api.h"

static fx_status view_of(const fx_tensor *t, const char *name, fx_flash_view *view) {
  const fx_type *type = &t->type;
  int64_t vector = 16 / (int64_t)fx_dtype_bytes(type->dtype);
  bool aligned = (uintptr_t)t->data % 16 == 0;
  for (int i = 0; i < 3; i++) aligned = aligned && (type->stride[i] % vector == 0 || type->dim[i] == 1);
  if (!aligned)
    return fx_error(FX_ERR_UNSUPPORTED, "attention on CUDA: rows of %s do not begin at multiples of 16 bytes",
                    name);
  *view = (fx_flash_view){t->data, type->stride[0], type->stride[1], type->stride[2]};
  return FX_OK;
}

static const void *data_or_null(const fx_tensor *t) {
  return t ? t->data : NULL;
}

/* What kernels have to see of a variant: nothing where limits say it all and scores are kept. */
static const fx_variant *variant_of(const fx_attention_attr *attr) {
  const fx_variant *variant = attr->flex ? attr->flex->variant : NULL;
  return variant && (attr->ask_mask || variant->score != FX_EX_NONE) ? variant : NULL;
}

static void bind_shape(const fx_type *q, const fx_type *k, float scale, fx_flash_args *out) {
  memset(out, 0, sizeof *out);
  out->B = (int32_t)q->dim[0], out->T_q = (int32_t)q->dim[1], out->H = (int32_t)q->dim[2];
  out->T_kv = (int32_t)k->dim[1], out->K = (int32_t)k->dim[2];
  out->Tpad = fx_attention_tpad(out->T_q);
  out->scale = scale;
}

static void bind_limits(const fx_kernel_args *args, const fx_attention_attr *attr, fx_flash_args *out) {
  if (!args->in[FX_FLEX_LIMITS]) return;
  fx_limits limits = {
      .R = attr->R, .Bm = attr->Bm, .Hm = attr->Hm, .T = out->T_q, .Tpad = out->Tpad, .T_kv = attr->T_total};
  fx_limits_bind(&limits, args->in[FX_FLEX_LIMITS]->data);
  out->limits_Bm = limits.Bm, out->limits_Hm = fx_limits_heads(&limits);
  int64_t skipped = out->limits_Hm == 1 ? 0 : (int64_t)attr->first_head * limits.Tpad; /* of other ranks */
  out->lo = limits.lo + skipped, out->hi = limits.hi + skipped;
}

static fx_status bind_runs(const fx_kernel_args *args, const fx_attention_attr *attr, bool backward,
                           fx_flash_args *out) {
  const fx_tensor *blob = args->in[FX_FLEX_RUNS];
  if (!blob) return FX_OK;
  fx_runs runs = fx_runs_plan(attr->runs_Bm, out->T_q, out->T_kv, FX_FLASH_TILE, FX_FLASH_TILE,
                              backward ? attr->capacity_backward : attr->capacity);
  runs.Hm = attr->runs_Hm;
  if (fx_runs_bytes(&runs) > fx_type_bytes(&blob->type))
    return fx_error(FX_ERR_SHAPE, "the run lists are smaller than this kernel's tiles need");
  fx_runs_bind(&runs, blob->data);
  out->runs_Bm = runs.Bm, out->runs_Hm = fx_runs_heads(&runs);
  int64_t skipped = out->runs_Hm == 1 ? 0 : (int64_t)attr->first_head * runs.blocks; /* of other ranks */
  out->runs_count = runs.count + skipped;
  out->runs = (const int32_t *)(runs.run + skipped * runs.capacity);
  out->runs_blocks = runs.blocks, out->runs_capacity = runs.capacity;
  return FX_OK;
}

static void bind_variant(const fx_kernel_args *args, const fx_attention_attr *attr, fx_flash_args *out) {
  const fx_flex_variant *flex = attr->flex;
  if (!variant_of(attr)) return;
  memcpy(out->uniform, flex->uniform, sizeof out->uniform);
  for (int32_t i = 0; i < flex->num_inputs; i++) {
    const fx_flex_input *input = &flex->input[i];
    const int32_t *blob =
        (const int32_t *)args->in[FX_FLEX_BUFFERS]->data + fx_flex_blob_offset(flex, i, out->B);
    out->buffer[input->buffer] = (fx_flash_buffer){blob, input->per_batch ? input->words : 0};
  }
  for (int32_t t = 0; t < flex->variant->num_tables; t++)
    out->buffer[flex->variant->tables[t].buffer] = (fx_flash_buffer){args->in[FX_FLEX_TABLE + t]->data, 0};
}

static fx_status bind(const fx_kernel_args *args, const fx_attention_attr *attr, bool backward,
                      fx_flash_args *out) {
  bind_shape(&args->in[FX_FLEX_Q]->type, &args->in[FX_FLEX_K]->type, attr->scale, out);
  out->first_head = attr->first_head;
  FX_TRY(view_of(args->in[FX_FLEX_Q], "q", &out->q));
  FX_TRY(view_of(args->in[FX_FLEX_K], "k", &out->k));
  FX_TRY(view_of(args->in[FX_FLEX_V], "v", &out->v));
  bind_limits(args, attr, out);
  FX_TRY(bind_runs(args, attr, backward, out));
  out->q_bases = data_or_null(args->in[FX_FLEX_Q_BASE]);
  out->kv_bases = data_or_null(args->in[FX_FLEX_KV_BASE]);
  out->fault = &((const fx_cuda_context *)args->gemm)->fault->kind;
  bind_variant(args, attr, out);
  return FX_OK;
}

static fx_flash_key key_of(const fx_kernel_args *args, const fx_attention_attr *attr, fx_flash_pass pass) {
  const fx_type *q = &args->in[FX_FLEX_Q]->type;
  return (fx_flash_key){.variant = variant_of(attr),
                        .pass = pass,
                        .dtype = q->dtype,
                        .D = (int32_t)q->dim[3],
                        .R = args->in[FX_FLEX_LIMITS] ? attr->R : 0,
                        .ask = attr->ask_mask != 0,
                        .any_scale = !(attr->scale > 0.0f)};
}

fx_status fx_flex_attention_cuda(const fx_kernel_args *args) {
  const fx_attention_attr *attr = args->attr;
  const fx_flash_module *module = NULL;
  fx_flash_args flash;
  fx_flash_key key = key_of(args, attr, FX_FLASH_FORWARD);
  FX_TRY(fx_flash_module_get(args->gemm, &key, &module));
  FX_TRY(bind(args, attr, false, &flash));
  FX_TRY(view_of(args->out[0], "out", &flash.out));
  flash.lse = args->out[1]->data;
  flash.sinks = data_or_null(args->in[FX_FLEX_SINKS]);
  return fx_flash_forward(module, &flash, args->stream);
}

fx_status fx_flex_attention_partial_cuda(const fx_kernel_args *args) {
  const fx_attention_partial_attr *attr = args->attr;
  const fx_flash_module *module = NULL;
  fx_flash_args flash;
  fx_flash_key key = key_of(args, &attr->attention, FX_FLASH_PARTIAL);
  FX_TRY(fx_flash_module_get(args->gemm, &key, &module));
  FX_TRY(bind(args, &attr->attention, false, &flash));
  FX_TRY(view_of(args->out[0], "the running state", &flash.out));
  flash.m = args->out[1]->data, flash.l = args->out[2]->data;
  flash.first = attr->first != 0;
  return fx_flash_forward(module, &flash, args->stream);
}

fx_status fx_flex_attention_finish_cuda(const fx_kernel_args *args) {
  const fx_type *o = &args->in[0]->type;
  const fx_flash_module *module = NULL;
  fx_flash_args flash;
  fx_flash_key key = {
      .pass = FX_FLASH_FORWARD, .dtype = args->out[0]->type.dtype, .D = (int32_t)o->dim[o->ndim - 1]};
  FX_TRY(fx_flash_module_get(args->gemm, &key, &module));
  bind_shape(o, o, 1.0f, &flash);
  FX_TRY(view_of(args->in[0], "the running state", &flash.q));
  FX_TRY(view_of(args->out[0], "out", &flash.out));
  flash.m = args->in[1]->data, flash.l = args->in[2]->data;
  flash.sinks = data_or_null(args->in[3]);
  flash.lse = args->out[1]->data;
  return fx_flash_finish(module, &flash, args->stream);
}

size_t fx_flex_attention_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                        int threads) {
  (void)in, (void)out, (void)attr, (void)threads;
  return 0;
}

/* ---- backward ---- */

/* Words of lse2, delta and span, one behind the other. */
static int64_t rows_words(const fx_type *q) {
  return q->dim[0] * q->dim[2] * fx_attention_tpad((int32_t)q->dim[1]);
}

size_t fx_flex_attention_grad_workspace_cuda(const fx_type *const *in, const fx_type *out, const void *attr,
                                             int threads) {
  (void)out, (void)attr, (void)threads;
  return (size_t)rows_words(in[FX_FLEX_Q]) * 3 * sizeof(float);
}

static fx_status bind_tables(const fx_kernel_args *args, const fx_attention_attr *attr, fx_flash_args *out) {
  const fx_cuda_driver *driver = ((const fx_cuda_context *)args->gemm)->driver;
  for (int32_t t = 0; t < fx_flex_num_tables(attr->flex); t++) {
    if (!args->out[4 + t]) continue;
    float *table = args->out[4 + t]->data;
    size_t bytes = (size_t)fx_flex_table_floats(attr->flex, t) * sizeof(float);
    FX_TRY(fx_cuda_check(driver, driver->memory_fill((uintptr_t)table, 0, bytes, args->stream),
                         "gradients of a table"));
    out->table_grad[attr->flex->variant->tables[t].buffer] = table;
  }
  return FX_OK;
}

enum { OUT = FX_FLEX_OWN, LSE, DOUT, DLSE, PREPARED = DLSE }; /* PREPARED: of the op that adds */

static void bind_prepared(const fx_kernel_args *args, float *prepared, fx_flash_args *out) {
  int64_t words = rows_words(&args->in[FX_FLEX_Q]->type);
  out->lse2 = prepared;
  out->delta = prepared + words;
  out->span = (int32_t *)(out->delta + words);
}

/* All but where dq, dk and dv go. */
static fx_status bind_backward(const fx_kernel_args *args, const fx_attention_attr *attr,
                               fx_flash_args *out) {
  FX_TRY(bind(args, attr, true, out));
  FX_TRY(view_of(args->in[OUT], "out", &out->out));
  FX_TRY(view_of(args->in[DOUT], "the gradient of out", &out->dout));
  out->lse = args->in[LSE]->data;
  if (args->in[FX_FLEX_SINKS] && args->out[3]) {
    out->sinks = args->in[FX_FLEX_SINKS]->data;
    out->dsinks = args->out[3]->data;
  }
  return bind_tables(args, attr, out);
}

/* parts: FX_ATTENTION_OF_KEYS and OF_ROWS */
static fx_status run_backward(const fx_kernel_args *args, const fx_flash_key *key, fx_flash_args *flash,
                              int32_t parts, unsigned work) {
  static const char *const names[] = {"the gradient of q", "the gradient of k", "the gradient of v"};
  const fx_flash_module *module = NULL;
  fx_flash_view *const gradient[] = {&flash->dq, &flash->dk, &flash->dv};
  FX_TRY(fx_flash_module_get(args->gemm, key, &module));
  for (int i = 0; i < 3; i++)
    if (parts & (i == 0 ? FX_ATTENTION_OF_ROWS : FX_ATTENTION_OF_KEYS))
      FX_TRY(view_of(args->out[i], names[i], gradient[i]));
  if (parts & FX_ATTENTION_OF_KEYS) work |= FX_FLASH_WORK_KEYS | (flash->dsinks ? FX_FLASH_WORK_SINKS : 0);
  if (parts & FX_ATTENTION_OF_ROWS) work |= FX_FLASH_WORK_ROWS;
  return fx_flash_backward(module, flash, work, args->stream);
}

fx_status fx_flex_attention_grad_cuda(const fx_kernel_args *args) {
  fx_flash_args flash;
  fx_flash_key key = key_of(args, args->attr, FX_FLASH_BACKWARD);
  FX_TRY(bind_backward(args, args->attr, &flash));
  flash.dlse = data_or_null(args->in[DLSE]);
  bind_prepared(args, args->workspace, &flash);
  return run_backward(args, &key, &flash, FX_ATTENTION_OF_KEYS | FX_ATTENTION_OF_ROWS, FX_FLASH_WORK_PREPARE);
}

fx_status fx_flex_attention_prepare_cuda(const fx_kernel_args *args) {
  fx_flash_args flash;
  fx_flash_key key = key_of(args, args->attr, FX_FLASH_BACKWARD_ADD);
  FX_TRY(bind_backward(args, args->attr, &flash));
  flash.dlse = data_or_null(args->in[DLSE]);
  flash.dsinks = NULL;
  bind_prepared(args, args->out[0]->data, &flash);
  return run_backward(args, &key, &flash, 0, FX_FLASH_WORK_PREPARE);
}

fx_status fx_flex_attention_grad_add_cuda(const fx_kernel_args *args) {
  const fx_attention_add_attr *attr = args->attr;
  fx_flash_args flash;
  fx_flash_key key = key_of(args, &attr->attention, FX_FLASH_BACKWARD_ADD);
  FX_TRY(bind_backward(args, &attr->attention, &flash));
  bind_prepared(args, args->in[PREPARED]->data, &flash);
  flash.first = attr->first;
  return run_backward(args, &key, &flash, attr->parts, 0);
}

void fx_flex_attention_tile_cuda(bool backward, int32_t D, int32_t tile[2]) {
  (void)backward, (void)D;
  tile[0] = tile[1] = FX_FLASH_TILE;
}

bool fx_flex_attention_runs_on_cuda(int32_t D) {
  return fx_flash_has_dim(D);
}
