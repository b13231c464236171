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

/* Output features [start, start + count) of a named matrix of `total`. */
typedef struct slab {
  const char *name;
  int64_t total, start, count;
} slab;

/* One linear layer: a fused matrix storage (and bias) of several slabs. Column-parallel: this rank has its
 * part of the output features. Row-parallel: all of them, and a part of the input features; then the bias is
 * the same on every rank. */
typedef struct linear_spec {
  slab slabs[3];
  int count;
  int64_t in, in_start, in_count;
  double std;
  bool in_out, bias, row_parallel;
  fx_param_group group;
  bool owner;
} linear_spec;

static void full_name(char out[120], const char *module, int64_t layer, const char *suffix) {
  char head[100];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  snprintf(head, sizeof head, module, (long long)layer); /* module: a constant of the tables above */
#pragma GCC diagnostic pop
  snprintf(out, 120, "%.80s.%.38s", head, suffix);
}

/* What every rank has alike; owned by the first one. */
static fx_status add_replicated(fx_model *model, const char *name, fx_type type, bool decay,
                                fx_param_group group, fx_init_kind init, double number, int32_t *storage) {
  fx_params *params = &model->params;
  FX_TRY(fx_params_add_storage(params, type, decay, storage));
  if (model->share.ranks > 1) params->storage[*storage].group = group;
  FX_TRY(fx_params_add(params, name, *storage, 0, type.ndim, type.dim, init, number));
  params->param[params->num_params - 1].owner = model->share.rank == 0;
  return FX_OK;
}

/* Slab i of the weight or the bias of a linear layer, `at` output features into its storage. */
static fx_param describe(const linear_spec *spec, int i, int64_t layer, bool bias, int32_t storage,
                         int64_t at) {
  const slab *s = &spec->slabs[i];
  int out = bias ? 0 : spec->in_out, in = 1 - out;
  fx_param p = {.ndim = bias ? 1 : 2,
                .storage = storage,
                .row = out == 0 ? at : 0,
                .col = out == 0 ? 0 : at,
                .owner = spec->owner,
                .init = bias ? FX_INIT_ZEROS : FX_INIT_NORMAL,
                .init_std = bias ? 0 : spec->std};
  full_name(p.name, s->name, layer, bias ? "bias" : "weight");
  p.dim[out] = s->total, p.start[out] = s->start, p.count[out] = s->count;
  if (!bias) p.dim[in] = spec->in, p.start[in] = spec->in_start, p.count[in] = spec->in_count;
  return p;
}

static fx_status add_slabs(fx_params *params, const linear_spec *spec, int64_t layer, bool bias,
                           int32_t storage) {
  int64_t at = 0;
  for (int i = 0; i < spec->count; at += spec->slabs[i++].count) {
    fx_param p = describe(spec, i, layer, bias, storage, at);
    for (int64_t k = 0; k < params->num_params; k++) p.part += strcmp(params->param[k].name, p.name) == 0;
    FX_TRY(fx_params_add_part(params, &p));
  }
  return FX_OK;
}

static fx_status add_bias(fx_model *model, const linear_spec *spec, int64_t layer, int32_t *bias) {
  fx_params *params = &model->params;
  linear_spec own = *spec;
  int64_t out = 0;
  for (int i = 0; i < spec->count; i++) out += spec->slabs[i].count;
  FX_TRY(fx_params_add_storage(params, fx_type_1d(FX_F32, out), false, bias));
  params->storage[*bias].compute = true;
  params->storage[*bias].group = spec->group;
  if (spec->row_parallel && model->share.ranks > 1) {
    params->storage[*bias].group = FX_GROUP_REPLICATED; /* it comes after the sum over ranks */
    own.owner = model->share.rank == 0;
  }
  return add_slabs(params, &own, layer, true, *bias);
}

static fx_status add_linear(fx_model *model, const linear_spec *spec, int64_t layer, int32_t *weight,
                            int32_t *bias) {
  fx_params *params = &model->params;
  int64_t out = 0;
  for (int i = 0; i < spec->count; i++) out += spec->slabs[i].count;
  fx_type type =
      spec->in_out ? fx_type_2d(FX_F32, spec->in_count, out) : fx_type_2d(FX_F32, out, spec->in_count);
  FX_TRY(fx_params_add_storage(params, type, true, weight));
  params->storage[*weight].compute = true;
  params->storage[*weight].group = spec->group;
  FX_TRY(add_slabs(params, spec, layer, false, *weight));
  *bias = -1;
  return spec->bias ? add_bias(model, spec, layer, bias) : FX_OK;
}

static fx_status add_norm(fx_model *model, const char *module, int64_t layer, int32_t *weight,
                          int32_t *bias) {
  const fx_config_model *m = &model->config->model;
  fx_type type = fx_type_1d(FX_F32, m->hidden_size);
  char name[120];
  *bias = -1;
  full_name(name, module, layer, "weight");
  FX_TRY(add_replicated(model, name, type, false, FX_GROUP_REPLICATED, FX_INIT_ONES, 0, weight));
  if (m->norm != FX_MODEL_NORM_LAYERNORM || !m->bias) return FX_OK;
  full_name(name, module, layer, "bias");
  return add_replicated(model, name, type, false, FX_GROUP_REPLICATED, FX_INIT_ZEROS, 0, bias);
}

/* The embedding or the head: this rank's rows of the padded vocabulary; the last ranks' may be padding. */
static fx_status add_vocabulary(fx_model *model, const char *module, int32_t *storage) {
  const fx_config_model *m = &model->config->model;
  fx_params *params = &model->params;
  int64_t rows = model->padded_vocab / model->share.ranks, first = rows * model->share.rank;
  int64_t start = fx_min_i64(first, m->vocab_size);
  FX_TRY(fx_params_add_storage(params, fx_type_2d(FX_F32, rows, m->hidden_size), true, storage));
  params->storage[*storage].compute = true;
  fx_param p = {.ndim = 2,
                .dim = {m->vocab_size, m->hidden_size},
                .start = {start, 0},
                .count = {fx_min_i64(first + rows, m->vocab_size) - start, m->hidden_size},
                .storage = *storage,
                .owner = true,
                .init = FX_INIT_NORMAL,
                .init_std = m->initializer_range};
  snprintf(p.name, sizeof p.name, "%s.weight", module);
  return fx_params_add_part(params, &p);
}

/* Queries, keys and values of this rank's heads. Key heads that ranks share get a storage of their own, whose
 * gradient those ranks add up. */
static fx_status add_qkv(fx_model *model, const dialect *d, int64_t layer, linear_spec spec) {
  const fx_config_model *m = &model->config->model;
  const fx_model_share *share = &model->share;
  fx_layer_storages *s = &model->layers[layer];
  int64_t D = m->head_dim, q = m->num_attention_heads * D, kv = m->num_key_value_heads * D;
  int64_t kv_start = share->rank / share->kv_ranks * share->kv_heads * D, kv_count = share->kv_heads * D;
  bool one = !d->qkv[1]; /* one tensor q | k | v */
  int64_t total = q + 2 * kv;
  const slab slabs[3] = {
      {d->qkv[0], one ? total : q, share->first_head * D, share->heads * D},
      {one ? d->qkv[0] : d->qkv[1], one ? total : kv, (one ? q : 0) + kv_start, kv_count},
      {one ? d->qkv[0] : d->qkv[2], one ? total : kv, (one ? q + kv : 0) + kv_start, kv_count}};
  memcpy(spec.slabs, slabs, sizeof slabs);
  s->kv = s->kv_bias = -1;
  spec.count = 3;
  if (share->ranks == 1 && one) {
    spec.slabs[0] = (slab){d->qkv[0], total, 0, total};
    spec.count = 1;
  }
  if (share->kv_ranks == 1) return add_linear(model, &spec, layer, &s->qkv, &s->qkv_bias);
  linear_spec keys = spec;
  memcpy(keys.slabs, slabs + 1, 2 * sizeof *slabs);
  keys.count = 2;
  keys.group = FX_GROUP_SHARED_HEADS;
  keys.owner = share->rank % share->kv_ranks == 0;
  spec.count = 1;
  FX_TRY(add_linear(model, &spec, layer, &s->qkv, &s->qkv_bias));
  return add_linear(model, &keys, layer, &s->kv, &s->kv_bias);
}

/* GPT-2 scales the two projections that write into the residual stream by 1/sqrt(2 L) (Radford et al., 2019).
 */
static fx_status add_layer(fx_model *model, const dialect *d, int64_t layer) {
  const fx_config_model *m = &model->config->model;
  const fx_model_share *share = &model->share;
  fx_layer_storages *s = &model->layers[layer];
  double std = m->initializer_range;
  double residual_std =
      m->model_type == FX_MODEL_TYPE_GPT2 ? std / sqrt(2.0 * (double)m->num_hidden_layers) : std;
  int64_t E = m->hidden_size, F = m->intermediate_size, f = F / share->ranks, D = m->head_dim;
  const linear_spec column = {
      .in = E, .in_count = E, .std = std, .in_out = d->in_out, .bias = m->bias, .owner = true};
  linear_spec up = column, proj = column;
  up.count = m->activation == FX_MODEL_ACTIVATION_SWIGLU ? 2 : 1;
  for (int i = 0; i < up.count; i++) { /* ungated: up_proj in Llama's dialect */
    const char *name = up.count == 1 && d->up[1] ? d->up[1] : d->up[i];
    up.slabs[i] = (slab){name, F, f * share->rank, f};
  }
  proj.slabs[0] = (slab){d->proj, E, 0, E};
  proj.count = 1;
  proj.row_parallel = true;
  proj.std = residual_std;
  linear_spec down = proj;
  down.slabs[0].name = d->down;
  proj.in = m->num_attention_heads * D, proj.in_start = share->first_head * D,
  proj.in_count = share->heads * D;
  down.in = F, down.in_start = f * share->rank, down.in_count = f;
  FX_TRY(add_norm(model, d->norm1, layer, &s->norm1, &s->norm1_bias));
  FX_TRY(add_qkv(model, d, layer, column));
  FX_TRY(add_linear(model, &proj, layer, &s->proj, &s->proj_bias));
  FX_TRY(add_norm(model, d->norm2, layer, &s->norm2, &s->norm2_bias));
  FX_TRY(add_linear(model, &up, layer, &s->up, &s->up_bias));
  return add_linear(model, &down, layer, &s->down, &s->down_bias);
}

static fx_status add_sinks(fx_model *model, const char *module, int64_t layer) {
  const fx_model_share *share = &model->share;
  fx_params *params = &model->params;
  int32_t *storage = &model->layers[layer].sinks;
  FX_TRY(fx_params_add_storage(params, fx_type_1d(FX_F32, share->heads), false, storage));
  fx_param p = {.ndim = 1,
                .dim = {model->config->model.num_attention_heads, 0},
                .start = {share->first_head, 0},
                .count = {share->heads, 0},
                .storage = *storage,
                .owner = true,
                .init = FX_INIT_ZEROS};
  full_name(p.name, module, layer, "sinks");
  return fx_params_add_part(params, &p);
}

/* Parameters of a layer's attention variant: sinks [H] under the name that gpt-oss gave them, learnable
 * tables as matrices (first extent x the rest). Sinks start at zero and neither they nor, unless said, tables
 * decay. An expression may look a table up by anything, so every rank holds all of it. */
static fx_status add_attention(fx_model *model, const char *module, int64_t layer,
                               const fx_variant *variant) {
  fx_layer_storages *s = &model->layers[layer];
  s->sinks = -1;
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) s->table[t] = -1;
  if (variant->sinks) FX_TRY(add_sinks(model, module, layer));
  for (int t = 0; t < variant->num_tables; t++) {
    const fx_variant_table *table = &variant->tables[t];
    const fx_ex_buffer *buffer = fx_ex_buffer_at(variant->pool, table->buffer);
    char name[120];
    int64_t cols = 1;
    for (int i = 1; i < buffer->ndim; i++) cols *= buffer->dim[i];
    fx_type type =
        buffer->ndim > 1 ? fx_type_2d(FX_F32, buffer->dim[0], cols) : fx_type_1d(FX_F32, buffer->dim[0]);
    fx_init_kind init = table->init == FX_TABLE_INIT_NORMAL     ? FX_INIT_NORMAL
                        : table->init == FX_TABLE_INIT_CONSTANT ? FX_INIT_CONSTANT
                                                                : FX_INIT_ZEROS;
    full_name(name, module, layer, buffer->name);
    FX_TRY(add_replicated(model, name, type, table->weight_decay, FX_GROUP_PARTIAL, init,
                          (double)table->value, &s->table[t]));
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

static fx_status add_positions(fx_model *model, const char *module) {
  const fx_config_model *m = &model->config->model;
  char name[120];
  model->positions = -1;
  if (m->position != FX_MODEL_POSITION_LEARNED) return FX_OK;
  snprintf(name, sizeof name, "%s.weight", module);
  FX_TRY(add_replicated(model, name, fx_type_2d(FX_F32, m->max_position_embeddings, m->hidden_size), true,
                        FX_GROUP_REPLICATED, FX_INIT_NORMAL, m->initializer_range, &model->positions));
  model->params.storage[model->positions].compute = true;
  return FX_OK;
}

static fx_status declare(fx_model *model) {
  const fx_config_model *m = &model->config->model;
  const dialect *d = m->model_type == FX_MODEL_TYPE_GPT2 ? &g_gpt2 : &g_llama;
  FX_TRY(add_vocabulary(model, d->embed, &model->embed));
  FX_TRY(add_positions(model, d->positions));
  FX_TRY(add_layers(model, d));
  FX_TRY(add_norm(model, d->norm, 0, &model->norm, &model->norm_bias));
  model->head = model->embed;
  if (!m->tie_word_embeddings) FX_TRY(add_vocabulary(model, "lm_head", &model->head));
  return fx_params_allocate(&model->params);
}

int fx_model_kv_ranks(const fx_config *config) {
  int64_t tp = config->parallel.tensor, heads = config->model.num_key_value_heads;
  return tp > heads ? (int)(tp / heads) : 1;
}

/* The configuration says that everything divides (core/config/resolve.c). */
static fx_model_share share_of(const fx_config *config, const fx_topology *topology) {
  const fx_config_model *m = &config->model;
  fx_model_share share = {
      .ranks = 1, .heads = m->num_attention_heads, .kv_heads = m->num_key_value_heads, .kv_ranks = 1};
  if (!topology || topology->tp == 1) return share;
  share.tp =
      (fx_tensor_parallel){topology->comm.tp, config->parallel.sequence, config->parallel.gather_again};
  share.ranks = topology->tp;
  share.rank = topology->tp_rank;
  share.heads /= share.ranks;
  share.first_head = share.heads * share.rank;
  share.kv_ranks = fx_model_kv_ranks(config);
  share.kv_heads = share.kv_heads * share.kv_ranks / share.ranks;
  return share;
}

fx_dtype fx_model_dtype(const fx_config *config, fx_backend backend) {
  return backend == FX_BACKEND_CUDA && config->runtime.dtype != FX_RUNTIME_DTYPE_FLOAT32 ? FX_BF16 : FX_F32;
}

typedef enum model_extent { EXTENT_ALL, EXTENT_WEIGHTS, EXTENT_DRY } model_extent;

static fx_status create(const fx_config *config, fx_device *device, const fx_topology *topology,
                        model_extent extent, fx_model **out) {
  fx_model *model = NULL;
  FX_TRY(fx_calloc(&model, 1, sizeof *model));
  model->config = config;
  model->topology = topology;
  model->params.weights_only = extent == EXTENT_WEIGHTS;
  model->params.dry = extent == EXTENT_DRY;
  model->params.device = device;
  model->params.dtype = device ? fx_model_dtype(config, device->backend) : FX_F32;
  model->share = share_of(config, topology);
  int64_t block = 128 * model->share.ranks;
  model->padded_vocab = fx_ceil_div(config->model.vocab_size, block) * block;
  model->params.bucket_elements = config->parallel.bucket_elements;
  if (topology && topology->comm.dp_cp && topology->comm.dp_cp->size > 1) {
    model->params.zero = (int)config->parallel.zero;
    model->params.zero_rank = topology->comm.dp_cp->rank;
    model->params.zero_size = topology->comm.dp_cp->size;
  }
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
  return create(config, NULL, NULL, EXTENT_ALL, out);
}

fx_status fx_model_create_on(const fx_config *config, fx_device *device, const fx_topology *topology,
                             fx_model **out) {
  return create(config, device, topology, EXTENT_ALL, out);
}

fx_status fx_model_create_dry(const fx_config *config, fx_device *device, const fx_topology *topology,
                              fx_model **out) {
  return create(config, device, topology, EXTENT_DRY, out);
}

fx_status fx_model_create_weights(const fx_config *config, fx_device *device, fx_model **out) {
  return create(config, device, NULL, EXTENT_WEIGHTS, out);
}

void fx_model_destroy(fx_model *model) {
  if (!model) return;
  fx_params_fini(&model->params);
  free(model->layers);
  free(model);
}

/* Of the whole tensor. */
static int64_t global_numel(const fx_param *param) {
  return param->dim[0] * (param->ndim == 2 ? param->dim[1] : 1);
}

int64_t fx_model_num_params(const fx_model *model) {
  int64_t total = 0;
  for (int64_t i = 0; i < model->params.num_params; i++)
    if (model->params.param[i].part == 0) total += global_numel(&model->params.param[i]);
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
    if (param->ndim == 2 && param->part == 0 && !lookup && !is_table(model, param->storage))
      weights += (double)global_numel(param);
  }
  double attention = (double)(m->num_hidden_layers * m->num_attention_heads * m->head_dim) * (double)length;
  return 6 * weights + 6 * attention;
}
