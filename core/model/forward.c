/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "core/model/model.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/rope.h"

fx_status fx_model_bind(const fx_model *model, fx_graph *graph, fx_model_values *out) {
  const fx_params *params = &model->params;
  FX_TRY(fx_calloc(&out->weight, (size_t)params->num_storages, sizeof *out->weight));
  fx_graph_persistent(FX_AT(graph), "weights", params->weight, fx_type_1d(FX_F32, params->numel));
  for (int64_t s = 0; s < params->num_storages; s++)
    out->weight[s] = fx_graph_persistent(graph, "weights", params->weight + params->storage[s].offset,
                                         params->storage[s].type);
  return fx_graph_status(graph);
}

void fx_model_values_fini(fx_model_values *values) {
  free(values->weight);
  values->weight = NULL;
}

/* What all layers share while they are recorded. */
typedef struct recorder {
  const fx_config_model *m;
  fx_graph *graph;
  const fx_value *weight;
  fx_attention_inputs mask;
  fx_attention_attr attention;
  fx_value rope_table, ordinal, iteration;
  uint64_t seed;
  bool dropout;
} recorder;

static fx_value weight_of(const recorder *r, int32_t storage) {
  return storage < 0 ? FX_NONE : r->weight[storage];
}

static fx_value norm(const recorder *r, fx_value x, int32_t weight, int32_t bias) {
  fx_norm_attr attr = {r->m->norm == FX_MODEL_NORM_LAYERNORM ? FX_NORM_LAYER : FX_NORM_RMS,
                       (float)r->m->norm_eps};
  return fx_norm(FX_AT(r->graph), x, weight_of(r, weight), weight_of(r, bias), attr);
}

static fx_value linear(const recorder *r, fx_value x, int32_t weight, int32_t bias,
                       fx_activation activation) {
  fx_linear_attr attr = {r->m->model_type == FX_MODEL_TYPE_GPT2, (int32_t)activation};
  return fx_linear(FX_AT(r->graph), x, weight_of(r, weight), weight_of(r, bias), attr);
}

static fx_value dropout(const recorder *r, fx_value x, const char *site) {
  if (!r->dropout) return x;
  fx_dropout_attr attr = {.seed = r->seed, .site = fx_hash64_text(site), .p = (float)r->m->dropout};
  return fx_dropout(FX_AT(r->graph), x, r->ordinal, r->iteration, attr);
}

static fx_value attention(const recorder *r, fx_value x, const fx_layer_storages *s) {
  const fx_config_model *m = r->m;
  int64_t H = m->num_attention_heads, K = m->num_key_value_heads, D = m->head_dim;
  fx_value qkv = linear(r, x, s->qkv, s->qkv_bias, FX_ACT_NONE);
  if (r->rope_table != FX_NONE)
    qkv = fx_rope(FX_AT(r->graph), qkv, r->rope_table, (fx_rope_attr){H + K, D, 1});
  fx_value q = fx_slice_heads(FX_AT(r->graph), qkv, 0, H, D);
  fx_value k = fx_slice_heads(FX_AT(r->graph), qkv, H * D, K, D);
  fx_value v = fx_slice_heads(FX_AT(r->graph), qkv, (H + K) * D, K, D);
  fx_value out = fx_flex_attention(FX_AT(r->graph), q, k, v, &r->mask, r->attention, NULL);
  if (out == FX_NONE) return FX_NONE;
  const fx_type *type = fx_graph_type(r->graph, out);
  out = fx_reshape(FX_AT(r->graph), out, 3, (int64_t[]){type->dim[0], type->dim[1], H * D});
  return linear(r, out, s->proj, s->proj_bias, FX_ACT_NONE);
}

static fx_value feed_forward(const recorder *r, fx_value x, const fx_layer_storages *s) {
  static const fx_activation map[] = {[FX_MODEL_ACTIVATION_SWIGLU] = FX_ACT_NONE,
                                      [FX_MODEL_ACTIVATION_GELU] = FX_ACT_GELU,
                                      [FX_MODEL_ACTIVATION_GELU_TANH] = FX_ACT_GELU_TANH};
  fx_value h = linear(r, x, s->up, s->up_bias, map[r->m->activation]);
  if (r->m->activation == FX_MODEL_ACTIVATION_SWIGLU) h = fx_swiglu(FX_AT(r->graph), h);
  return linear(r, h, s->down, s->down_bias, FX_ACT_NONE);
}

static fx_value layer(const recorder *r, fx_value x, const fx_layer_storages *s) {
  fx_value a = attention(r, norm(r, x, s->norm1, s->norm1_bias), s);
  x = fx_add(FX_AT(r->graph), x, dropout(r, a, "attention.out"));
  fx_value f = feed_forward(r, norm(r, x, s->norm2, s->norm2_bias), s);
  return fx_add(FX_AT(r->graph), x, dropout(r, f, "mlp.out"));
}

static fx_value embed(const recorder *r, const fx_model *model) {
  fx_value tokens = fx_graph_input(FX_AT(r->graph), "tokens");
  fx_value x = fx_embedding(FX_AT(r->graph), tokens, r->weight[model->embed]);
  if (model->positions >= 0) {
    fx_value positions = fx_graph_input(FX_AT(r->graph), "positions");
    x = fx_add(FX_AT(r->graph), x, fx_embedding(FX_AT(r->graph), positions, r->weight[model->positions]));
  }
  return dropout(r, x, "embedding");
}

enum { LAYER_STORAGES = sizeof(fx_layer_storages) / sizeof(int32_t) };

/* Storage numbers of a layer as an array, to pair one layer's with another's. */
static int map_layer(const recorder *r, const fx_layer_storages *first, const fx_layer_storages *other,
                     fx_value *from, fx_value *to) {
  const int32_t *a = &first->norm1, *b = &other->norm1;
  int count = 0;
  for (int i = 0; i < LAYER_STORAGES; i++) {
    if (a[i] < 0) continue;
    from[count] = r->weight[a[i]];
    to[count++] = r->weight[b[i]];
  }
  return count;
}

fx_value fx_model_hidden(const fx_model *model, fx_graph *graph, const fx_model_values *values,
                         const fx_model_mask *mask, bool train) {
  const fx_config_model *m = &model->config->model;
  recorder r = {.m = m,
                .graph = graph,
                .weight = values->weight,
                .mask = fx_attention_no_inputs(),
                .attention = mask->attr,
                .rope_table = FX_NONE,
                .seed = (uint64_t)model->config->train.seed,
                .dropout = train && m->dropout > 0};
  r.attention.scale = (float)(1.0 / sqrt((double)m->head_dim));
  if (mask->limits) r.mask.limits = fx_graph_input(FX_AT(graph), "mask_limits");
  if (mask->runs) {
    r.mask.runs = fx_graph_input(FX_AT(graph), "mask_runs");
    r.mask.runs_backward = fx_graph_input(FX_AT(graph), "mask_runs_backward");
  }
  if (r.dropout) {
    r.ordinal = fx_graph_input(FX_AT(graph), "sample_ordinal");
    r.iteration = fx_graph_input(FX_AT(graph), "iteration");
  }
  if (m->position == FX_MODEL_POSITION_ROPE)
    r.rope_table = fx_rope_table(FX_AT(graph), fx_graph_input(FX_AT(graph), "positions"),
                                 (fx_rope_table_attr){m->head_dim, m->rope_theta});
  fx_value x = embed(&r, model);
  int begin = fx_graph_num_nodes(graph);
  fx_value input = x;
  x = layer(&r, x, &model->layers[0]);
  int end = fx_graph_num_nodes(graph);
  fx_value traced = x;
  for (int64_t l = 1; l < m->num_hidden_layers; l++) {
    fx_value from[LAYER_STORAGES + 1], to[LAYER_STORAGES + 1], result = traced;
    int count = map_layer(&r, &model->layers[0], &model->layers[l], from, to);
    from[count] = input;
    to[count++] = x;
    if (fx_graph_repeat(graph, begin, end, from, to, count, (int)l, &result, 1) != FX_OK) return FX_NONE;
    x = result;
  }
  return norm(&r, x, model->norm, model->norm_bias);
}

fx_value fx_model_head(const fx_model *model, const fx_model_values *values) {
  return values->weight[model->head];
}
