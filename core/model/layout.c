/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the two dialects. Order of declaration = order of use in the forward; fx_params lays the flat
 * buffers out in reverse, so that gradients become ready from the front. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/model.h"
#include "dynamo_rt/base/memory.h"

/* Hugging Face names of the modules; `%lld` takes the layer. */
typedef struct dialect {
  const char *embed, *positions, *norm1, *norm2, *attention, *qkv[3], *proj, *up[2], *down, *norm;
  bool in_out; /* matrices stored [in, out] (GPT-2's Conv1D) */
} dialect;

static const dialect g_llama = {
    .embed = "model.embed_tokens",
    .positions = "model.embed_positions",
    .norm1 = "model.layers.%lld.input_layernorm",
    .attention = "model.layers.%lld.self_attn",
    .qkv = {"model.layers.%lld.self_attn.q_proj", "model.layers.%lld.self_attn.k_proj",
            "model.layers.%lld.self_attn.v_proj"},
    .proj = "model.layers.%lld.self_attn.o_proj",
    .norm2 = "model.layers.%lld.post_attention_layernorm",
    .up = {"model.layers.%lld.mlp.gate_proj", "model.layers.%lld.mlp.up_proj"},
    .down = "model.layers.%lld.mlp.down_proj",
    .norm = "model.norm",
};

static const dialect g_gpt2 = {
    .embed = "wte",
    .positions = "wpe",
    .norm1 = "h.%lld.ln_1",
    .attention = "h.%lld.attn",
    .qkv = {"h.%lld.attn.c_attn"},
    .proj = "h.%lld.attn.c_proj",
    .norm2 = "h.%lld.ln_2",
    .up = {"h.%lld.mlp.c_fc"},
    .down = "h.%lld.mlp.c_proj",
    .norm = "ln_f",
    .in_out = true,
};

/* One linear layer: a fused matrix storage (and bias) of several named slabs. */
typedef struct linear_spec {
  const char *names[3];
  int64_t rows[3]; /* output features of each slab */
  int count;
  int64_t in;
  double std;
  bool in_out, bias;
} linear_spec;

static void full_name(char out[120], const char *module, int64_t layer, const char *suffix) {
  char head[100];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(head, sizeof head, module, (long long)layer); /* module: a constant of the tables above */
#pragma GCC diagnostic pop
  snprintf(out, 120, "%.80s.%.38s", head, suffix);
}

static fx_status add_vector(fx_params *params, const char *module, int64_t layer, const char *suffix,
                            int64_t n, fx_init_kind init, int32_t *storage) {
  char name[120];
  full_name(name, module, layer, suffix);
  FX_TRY(fx_params_add_storage(params, fx_type_1d(FX_F32, n), false, storage));
  return fx_params_add(params, name, *storage, 0, 1, &n, init, 0);
}

static fx_status add_linear(fx_params *params, const linear_spec *spec, int64_t layer, int32_t *weight,
                            int32_t *bias) {
  char name[120];
  int64_t out = 0, row = 0;
  for (int i = 0; i < spec->count; i++) out += spec->rows[i];
  fx_type type = spec->in_out ? fx_type_2d(FX_F32, spec->in, out) : fx_type_2d(FX_F32, out, spec->in);
  FX_TRY(fx_params_add_storage(params, type, true, weight));
  params->storage[*weight].compute = true;
  for (int i = 0; i < spec->count; row += spec->rows[i++]) {
    int64_t dim[2] = {spec->in_out ? spec->in : spec->rows[i], spec->in_out ? spec->rows[i] : spec->in};
    full_name(name, spec->names[i], layer, "weight");
    FX_TRY(fx_params_add(params, name, *weight, row, 2, dim, FX_INIT_NORMAL, spec->std));
  }
  *bias = -1;
  if (!spec->bias) return FX_OK;
  FX_TRY(fx_params_add_storage(params, fx_type_1d(FX_F32, out), false, bias));
  params->storage[*bias].compute = true;
  row = 0;
  for (int i = 0; i < spec->count; row += spec->rows[i++]) {
    full_name(name, spec->names[i], layer, "bias");
    FX_TRY(fx_params_add(params, name, *bias, row, 1, &spec->rows[i], FX_INIT_ZEROS, 0));
  }
  return FX_OK;
}

static fx_status add_norm(fx_params *params, const fx_config_model *m, const char *module, int64_t layer,
                          int32_t *weight, int32_t *bias) {
  *bias = -1;
  FX_TRY(add_vector(params, module, layer, "weight", m->hidden_size, FX_INIT_ONES, weight));
  if (m->norm == FX_MODEL_NORM_LAYERNORM && m->bias)
    return add_vector(params, module, layer, "bias", m->hidden_size, FX_INIT_ZEROS, bias);
  return FX_OK;
}

static fx_status add_table(fx_params *params, const char *module, int64_t rows, int64_t valid_rows,
                           int64_t cols, double std, int32_t *storage) {
  char name[120];
  int64_t dim[2] = {valid_rows, cols};
  snprintf(name, sizeof name, "%s.weight", module);
  FX_TRY(fx_params_add_storage(params, fx_type_2d(FX_F32, rows, cols), true, storage));
  params->storage[*storage].compute = true;
  return fx_params_add(params, name, *storage, 0, 2, dim, FX_INIT_NORMAL, std);
}

/* GPT-2 scales the two projections that write into the residual stream by 1/sqrt(2 L) (Radford et al., 2019).
 */
static fx_status add_layer(fx_model *model, const dialect *d, int64_t layer) {
  const fx_config_model *m = &model->config->model;
  fx_params *params = &model->params;
  fx_layer_storages *s = &model->layers[layer];
  double std = m->initializer_range;
  double residual_std =
      m->model_type == FX_MODEL_TYPE_GPT2 ? std / sqrt(2.0 * (double)m->num_hidden_layers) : std;
  int64_t q = m->num_attention_heads * m->head_dim, kv = m->num_key_value_heads * m->head_dim;
  bool gated = m->activation == FX_MODEL_ACTIVATION_SWIGLU;
  linear_spec qkv = {.names = {d->qkv[0], d->qkv[1], d->qkv[2]}, .rows = {q, kv, kv}, .count = 3};
  if (!d->qkv[1]) qkv = (linear_spec){.names = {d->qkv[0]}, .rows = {q + 2 * kv}, .count = 1};
  linear_spec up = {
      .names = {d->up[0], d->up[1]}, .rows = {m->intermediate_size, m->intermediate_size}, .count = 2};
  if (!gated)
    up = (linear_spec){.names = {d->up[1] ? d->up[1] : d->up[0]}, .rows = {m->intermediate_size}, .count = 1};
  linear_spec proj = {.names = {d->proj}, .rows = {m->hidden_size}, .count = 1, .in = q, .std = residual_std};
  linear_spec down = {.names = {d->down},
                      .rows = {m->hidden_size},
                      .count = 1,
                      .in = m->intermediate_size,
                      .std = residual_std};
  qkv.in = up.in = m->hidden_size;
  qkv.std = up.std = std;
  qkv.in_out = proj.in_out = up.in_out = down.in_out = d->in_out;
  qkv.bias = proj.bias = up.bias = down.bias = m->bias;
  FX_TRY(add_norm(params, m, d->norm1, layer, &s->norm1, &s->norm1_bias));
  FX_TRY(add_linear(params, &qkv, layer, &s->qkv, &s->qkv_bias));
  FX_TRY(add_linear(params, &proj, layer, &s->proj, &s->proj_bias));
  FX_TRY(add_norm(params, m, d->norm2, layer, &s->norm2, &s->norm2_bias));
  FX_TRY(add_linear(params, &up, layer, &s->up, &s->up_bias));
  return add_linear(params, &down, layer, &s->down, &s->down_bias);
}

/* Parameters of a layer's attention variant: sinks [H] under the name that gpt-oss gave them, learnable
 * tables as matrices (first extent x the rest). Sinks start at zero and neither they nor, unless said, tables
 * decay. */
static fx_status add_attention(fx_model *model, const char *module, int64_t layer,
                               const fx_variant *variant) {
  const fx_config_model *m = &model->config->model;
  fx_params *params = &model->params;
  fx_layer_storages *s = &model->layers[layer];
  s->sinks = -1;
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) s->table[t] = -1;
  if (variant->sinks)
    FX_TRY(add_vector(params, module, layer, "sinks", m->num_attention_heads, FX_INIT_ZEROS, &s->sinks));
  for (int t = 0; t < variant->num_tables; t++) {
    const fx_variant_table *table = &variant->tables[t];
    const fx_ex_buffer *buffer = fx_ex_buffer_at(variant->pool, table->buffer);
    char name[120];
    int64_t dim[2] = {buffer->dim[0], 1};
    for (int i = 1; i < buffer->ndim; i++) dim[1] *= buffer->dim[i];
    int ndim = buffer->ndim > 1 ? 2 : 1;
    fx_init_kind init = table->init == FX_TABLE_INIT_NORMAL     ? FX_INIT_NORMAL
                        : table->init == FX_TABLE_INIT_CONSTANT ? FX_INIT_CONSTANT
                                                                : FX_INIT_ZEROS;
    full_name(name, module, layer, buffer->name);
    FX_TRY(fx_params_add_storage(params,
                                 ndim == 2 ? fx_type_2d(FX_F32, dim[0], dim[1]) : fx_type_1d(FX_F32, dim[0]),
                                 table->weight_decay, &s->table[t]));
    FX_TRY(fx_params_add(params, name, s->table[t], 0, ndim, dim, init, (double)table->value));
  }
  return FX_OK;
}

/* Variants are built here for their parameters only, and for the configured length: shapes may depend on it.
 */
static fx_status add_layers(fx_model *model, const dialect *d) {
  const fx_config *config = model->config;
  fx_ex_ranges ranges = {(int32_t)config->model.num_attention_heads, (int32_t)config->train.seq_length,
                         (int32_t)config->train.seq_length};
  fx_status status = FX_OK;
  for (int64_t l = 0; l < config->model.num_hidden_layers && status == FX_OK; l++) {
    fx_variant *variant = NULL;
    FX_TRY(fx_config_variant(config, fx_config_layer_variant(config, l), &ranges, &variant));
    status = add_layer(model, d, l);
    if (status == FX_OK) status = add_attention(model, d->attention, l, variant);
    fx_variant_destroy(variant);
  }
  return status;
}

static fx_status declare(fx_model *model) {
  const fx_config_model *m = &model->config->model;
  const dialect *d = m->model_type == FX_MODEL_TYPE_GPT2 ? &g_gpt2 : &g_llama;
  fx_params *params = &model->params;
  FX_TRY(add_table(params, d->embed, model->padded_vocab, m->vocab_size, m->hidden_size, m->initializer_range,
                   &model->embed));
  model->positions = -1;
  if (m->position == FX_MODEL_POSITION_LEARNED)
    FX_TRY(add_table(params, d->positions, m->max_position_embeddings, m->max_position_embeddings,
                     m->hidden_size, m->initializer_range, &model->positions));
  FX_TRY(add_layers(model, d));
  FX_TRY(add_norm(params, m, d->norm, 0, &model->norm, &model->norm_bias));
  model->head = model->embed;
  if (!m->tie_word_embeddings)
    FX_TRY(add_table(params, "lm_head", model->padded_vocab, m->vocab_size, m->hidden_size,
                     m->initializer_range, &model->head));
  return fx_params_allocate(params);
}

fx_dtype fx_model_dtype(const fx_config *config, fx_backend backend) {
  return backend == FX_BACKEND_CUDA && config->runtime.dtype != FX_RUNTIME_DTYPE_FLOAT32 ? FX_BF16 : FX_F32;
}

static fx_status create(const fx_config *config, fx_device *device, const fx_topology *topology,
                        bool weights_only, fx_model **out) {
  fx_model *model = NULL;
  FX_TRY(fx_calloc(&model, 1, sizeof *model));
  model->config = config;
  model->topology = topology;
  model->params.weights_only = weights_only;
  model->params.device = device;
  model->params.dtype = device ? fx_model_dtype(config, device->backend) : FX_F32;
  model->params.bucket_elements = config->parallel.bucket_elements;
  if (topology && topology->comm.dp_cp->size > 1) {
    model->params.zero = (int)config->parallel.zero;
    model->params.zero_rank = topology->comm.dp_cp->rank;
    model->params.zero_size = topology->comm.dp_cp->size;
  }
  model->padded_vocab = fx_ceil_div(config->model.vocab_size, 128) * 128;
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_calloc(&model->layers, (size_t)config->model.num_hidden_layers, sizeof *model->layers),
              destroy_model);
  FX_TRY_GOTO(declare(model), destroy_model);
  *out = model;
  return FX_OK;
destroy_model:
  fx_model_destroy(model);
  return status;
}

fx_status fx_model_create(const fx_config *config, fx_model **out) {
  return create(config, NULL, NULL, false, out);
}

fx_status fx_model_create_on(const fx_config *config, fx_device *device, const fx_topology *topology,
                             fx_model **out) {
  return create(config, device, topology, false, out);
}

fx_status fx_model_create_weights(const fx_config *config, fx_device *device, fx_model **out) {
  return create(config, device, NULL, true, out);
}

void fx_model_destroy(fx_model *model) {
  if (!model) return;
  fx_params_fini(&model->params);
  free(model->layers);
  free(model);
}

int64_t fx_model_num_params(const fx_model *model) {
  int64_t total = 0;
  for (int64_t i = 0; i < model->params.num_params; i++) total += fx_param_numel(&model->params.param[i]);
  return total;
}

/* A learnable table of an attention variant: looked up, not multiplied. */
static bool is_table(const fx_model *model, int32_t storage) {
  for (int64_t l = 0; l < model->config->model.num_hidden_layers; l++)
    for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++)
      if (model->layers[l].table[t] == storage) return true;
  return false;
}

double fx_model_flops_per_token(const fx_model *model, int64_t length) {
  const fx_config_model *m = &model->config->model;
  double weights = 0;
  for (int64_t i = 0; i < model->params.num_params; i++) {
    const fx_param *param = &model->params.param[i];
    bool lookup =
        (param->storage == model->embed && model->head != model->embed) || param->storage == model->positions;
    if (param->ndim == 2 && !lookup && !is_table(model, param->storage))
      weights += (double)fx_param_numel(param);
  }
  double attention = (double)(m->num_hidden_layers * m->num_attention_heads * m->head_dim) * (double)length;
  return 6 * weights + 6 * attention;
}
