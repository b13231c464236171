/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "core/model/context.h"
#include "core/model/model.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/rope.h"
#include "parallel/vocab_parallel.h"
#include "parallel/zero.h"

fx_status fx_model_bind(const fx_model *model, fx_graph *graph, fx_model_values *out) {
  const fx_params *params = &model->params;
  FX_TRY(fx_calloc(&out->weight, (size_t)params->num_storages, sizeof *out->weight));
  int64_t numel = params->compute ? params->num_own : params->numel;
  fx_graph_persistent(FX_AT(graph), "weights", params->weight, fx_type_1d(FX_F32, numel));
  if (params->compute)
    fx_graph_persistent(FX_AT(graph), "compute weights", params->compute, fx_type_1d(FX_BF16, params->numel));
  for (int64_t s = 0; s < params->num_storages; s++) {
    const fx_param_storage *storage = &params->storage[s];
    fx_type type = storage->type;
    if (params->compute && storage->compute) {
      type.dtype = FX_BF16;
      out->weight[s] = fx_graph_persistent(graph, "compute weights", params->compute + storage->offset, type);
    } else {
      int64_t offset = storage->offset;
      if (offset >= params->num_sharded) offset = fx_zero_weight_rest(params, offset);
      out->weight[s] = fx_graph_persistent(graph, "weights", params->weight + offset, type);
    }
  }
  return fx_graph_status(graph);
}

void fx_model_values_fini(fx_model_values *values) {
  free(values->weight);
  values->weight = NULL;
}

/* What all layers share while they are recorded. */
typedef struct recorder {
  const fx_config_model *m;
  const fx_model_share *share;
  fx_graph *graph;
  const fx_value *weight;
  const fx_attention_setup *setup;
  fx_attention_inputs inputs[FX_ATTENTION_MAX_KINDS]; /* of each kind, but for its parameters */
  float scale;
  fx_value rope_table, ordinal, iteration;
  fx_comm *context; /* ranks that share the sequence, and the blocks of each; NULL: this rank alone */
  fx_context_blocks blocks;
  int64_t pieces; /* parallel.tensor_pieces */
  fx_value my_blocks;
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

/* Between the layers this rank has only its rows of the activations. */
static bool in_shards(const recorder *r) {
  return r->share->tp.comm && r->share->tp.sequence;
}
static int64_t shard_rows(const recorder *r) {
  return (int64_t)r->setup->B * r->setup->rows / r->share->ranks;
}

/* x [R, C] as [B, T, C]; or as it is. */
static fx_value by_samples(const recorder *r, fx_value x) {
  if (!in_shards(r) || x == FX_NONE) return x;
  int64_t cols = fx_type_cols(fx_graph_type(r->graph, x));
  return fx_reshape(FX_AT(r->graph), x, 3, (int64_t[]){r->setup->B, r->setup->rows, cols});
}

/* The bias of a product that was summed over ranks; one rank has it added already. */
static fx_value add_summed_bias(const recorder *r, fx_value x, int32_t bias) {
  return r->share->tp.comm && bias >= 0 ? fx_add_bias(FX_AT(r->graph), x, weight_of(r, bias)) : x;
}

/* A row-parallel product, the sum over ranks, then the bias. */
static fx_value linear_sum(const recorder *r, fx_value x, int32_t weight, int32_t bias) {
  const fx_tensor_parallel *tp = &r->share->tp;
  x = linear(r, x, weight, tp->comm ? -1 : bias, FX_ACT_NONE);
  return add_summed_bias(r, fx_tensor_leave(FX_AT(r->graph), tp, x), bias);
}

static fx_value dropout(const recorder *r, fx_value x, const char *site) {
  if (!r->dropout) return x;
  fx_dropout_attr attr = {.seed = r->seed, .site = fx_hash64_text(site), .p = (float)r->m->dropout};
  if (in_shards(r)) {
    attr.length = r->setup->rows;
    attr.first_row = r->share->rank * shard_rows(r);
  }
  return fx_dropout_at(FX_AT(r->graph), x, r->ordinal, r->iteration, r->my_blocks, attr);
}

/* q, k and v of this rank's heads, turned. */
static void project(const recorder *r, fx_value x, const fx_layer_storages *s, fx_value out[3]) {
  int64_t H = r->share->heads, K = r->share->kv_heads, D = r->m->head_dim;
  bool apart = s->kv >= 0;
  fx_value q = by_samples(r, linear(r, x, s->qkv, s->qkv_bias, FX_ACT_NONE)), kv = q;
  if (apart) kv = by_samples(r, linear(r, x, s->kv, s->kv_bias, FX_ACT_NONE));
  if (r->rope_table != FX_NONE) {
    q = fx_rope(FX_AT(r->graph), q, r->rope_table, (fx_rope_attr){apart ? H : H + K, D, 1});
    kv = apart ? fx_rope(FX_AT(r->graph), kv, r->rope_table, (fx_rope_attr){K, D, 1}) : q;
  }
  int64_t keys = apart ? 0 : H * D;
  out[0] = fx_slice_heads(FX_AT(r->graph), q, 0, H, D);
  out[1] = fx_slice_heads(FX_AT(r->graph), kv, keys, K, D);
  out[2] = fx_slice_heads(FX_AT(r->graph), kv, keys + K * D, K, D);
}

static fx_value attention(const recorder *r, fx_value x, const fx_layer_storages *s, int32_t kind) {
  fx_value qkv[3];
  project(r, fx_tensor_enter(FX_AT(r->graph), &r->share->tp, x), s, qkv);
  fx_attention_inputs inputs = r->inputs[kind];
  fx_attention_attr attr = r->setup->kind[kind].attr;
  attr.scale = r->scale;
  attr.first_head = (int32_t)r->share->first_head;
  attr.all_heads = (int32_t)r->m->num_attention_heads;
  inputs.sinks = weight_of(r, s->sinks);
  for (int t = 0; t < FX_VARIANT_MAX_TABLES; t++) inputs.table[t] = weight_of(r, s->table[t]);
  fx_value out = r->context ? fx_context_attention(FX_AT(r->graph), r->context, FX_LANE_COMM_CRITICAL,
                                                   r->setup->exchange, qkv[0], qkv[1], qkv[2], &r->blocks,
                                                   &inputs, attr, NULL)
                            : fx_flex_attention(FX_AT(r->graph), qkv[0], qkv[1], qkv[2], &inputs, attr, NULL);
  if (out == FX_NONE) return FX_NONE;
  const fx_type *type = fx_graph_type(r->graph, out);
  int64_t width = r->share->heads * r->m->head_dim;
  out = fx_reshape(FX_AT(r->graph), out, 3, (int64_t[]){type->dim[0], type->dim[1], width});
  return linear_sum(r, out, s->proj, s->proj_bias);
}

/* What a feed-forward layer needs of its recorder. */
typedef struct feed_forward_part {
  const recorder *r;
  const fx_layer_storages *s;
} feed_forward_part;

/* Up to the last product, without its bias where a sum over ranks follows. */
static fx_value feed_forward_rows(fx_graph *graph, void *ctx, fx_value x) {
  static const fx_activation map[] = {[FX_MODEL_ACTIVATION_SWIGLU] = FX_ACT_NONE,
                                      [FX_MODEL_ACTIVATION_GELU] = FX_ACT_GELU,
                                      [FX_MODEL_ACTIVATION_GELU_TANH] = FX_ACT_GELU_TANH};
  const feed_forward_part *f = ctx;
  const recorder *r = f->r;
  fx_value h = linear(r, x, f->s->up, f->s->up_bias, map[r->m->activation]);
  if (r->m->activation == FX_MODEL_ACTIVATION_SWIGLU) h = fx_swiglu(FX_AT(graph), h);
  return linear(r, h, f->s->down, r->share->tp.comm ? -1 : f->s->down_bias, FX_ACT_NONE);
}

/* Pieces of a rank's rows that travel apart; all of them where they do not divide. */
static int tensor_pieces(const recorder *r) {
  return in_shards(r) && shard_rows(r) % r->pieces == 0 ? (int)r->pieces : 1;
}

static fx_value feed_forward(const recorder *r, fx_value x, const fx_layer_storages *s) {
  feed_forward_part part = {r, s};
  x = fx_tensor_by_rows(FX_AT(r->graph), &r->share->tp, tensor_pieces(r), x, feed_forward_rows, &part);
  return add_summed_bias(r, x, s->down_bias);
}

static fx_value layer(const recorder *r, fx_value x, const fx_layer_storages *s, int32_t kind) {
  fx_value a = attention(r, norm(r, x, s->norm1, s->norm1_bias), s, kind);
  x = fx_add(FX_AT(r->graph), x, dropout(r, a, "attention.out"));
  fx_value f = feed_forward(r, norm(r, x, s->norm2, s->norm2_bias), s);
  return fx_add(FX_AT(r->graph), x, dropout(r, f, "mlp.out"));
}

static fx_value embed_positions(const recorder *r, const fx_model *model) {
  fx_value positions = fx_graph_input(FX_AT(r->graph), "positions");
  int64_t rows = shard_rows(r), all = rows * r->share->ranks, cols = r->m->hidden_size;
  if (!in_shards(r)) return fx_embedding(FX_AT(r->graph), positions, r->weight[model->positions]);
  positions = fx_reshape(FX_AT(r->graph), positions, 1, &all);
  positions = fx_slice_rows(FX_AT(r->graph), positions, rows * r->share->rank, rows);
  positions = fx_reshape(FX_AT(r->graph), positions, 2, (int64_t[]){1, rows});
  fx_value x = fx_embedding(FX_AT(r->graph), positions, r->weight[model->positions]);
  return fx_reshape(FX_AT(r->graph), x, 2, (int64_t[]){rows, cols});
}

static fx_vocab_attr vocabulary(const fx_model *model) {
  return (fx_vocab_attr){model->padded_vocab / model->share.ranks * model->share.rank,
                         model->config->model.vocab_size};
}

static fx_value embed(const recorder *r, const fx_model *model) {
  fx_value tokens = fx_graph_input(FX_AT(r->graph), "tokens"), table = r->weight[model->embed], x;
  if (r->share->tp.comm)
    x = fx_tensor_leave(FX_AT(r->graph), &r->share->tp,
                        fx_vocab_embedding(FX_AT(r->graph), tokens, table, vocabulary(model)));
  else
    x = fx_embedding(FX_AT(r->graph), tokens, table);
  if (model->positions >= 0) x = fx_add(FX_AT(r->graph), x, embed_positions(r, model));
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

/* A field of a kind as an input of the graph; -1: it has none. */
static fx_value field(const recorder *r, int index) {
  return index < 0 ? FX_NONE : fx_graph_input(FX_AT(r->graph), r->setup->field[index].name);
}

static void attention_fields(recorder *r) {
  for (int32_t k = 0; k < r->setup->num_kinds; k++) {
    const fx_attention_kind *kind = &r->setup->kind[k];
    r->inputs[k] = fx_attention_no_inputs();
    r->inputs[k].limits = field(r, kind->limits);
    r->inputs[k].runs = field(r, kind->runs);
    r->inputs[k].runs_backward = field(r, kind->runs < 0 ? -1 : kind->runs + 1);
    r->inputs[k].buffers = field(r, kind->buffers);
  }
}

static void context_fields(recorder *r, const fx_model *model) {
  fx_value blocks = field(r, r->setup->blocks);
  if (blocks == FX_NONE) return;
  r->blocks = fx_context_values(FX_AT(r->graph), r->setup, blocks, field(r, r->setup->shared));
  r->context = model->topology->comm.cp;
  r->my_blocks = fx_context_blocks_of(FX_AT(r->graph), blocks, r->setup->rank, r->setup->ranks);
}

/* The nodes of the first layer of a kind. */
typedef struct traced_layer {
  bool done;
  int begin, end;
  int64_t layer;
  fx_value input, output;
} traced_layer;

static fx_value layers(const recorder *r, const fx_model *model, fx_value x) {
  traced_layer traced[FX_ATTENTION_MAX_KINDS] = {{0}};
  for (int64_t l = 0; l < r->m->num_hidden_layers; l++) {
    int32_t kind = fx_config_layer_variant(model->config, l);
    traced_layer *first = &traced[kind];
    fx_value from[LAYER_STORAGES + 1], to[LAYER_STORAGES + 1], result = first->output;
    if (!first->done) {
      *first = (traced_layer){.done = true, .begin = fx_graph_num_nodes(r->graph), .layer = l, .input = x};
      fx_graph_set_layer(r->graph, (int)l);
      x = first->output = layer(r, x, &model->layers[l], kind);
      fx_graph_set_layer(r->graph, 0);
      first->end = fx_graph_num_nodes(r->graph);
      continue;
    }
    int count = map_layer(r, &model->layers[first->layer], &model->layers[l], from, to);
    from[count] = first->input;
    to[count++] = x;
    if (fx_graph_repeat(r->graph, first->begin, first->end, from, to, count, (int)(l - first->layer), &result,
                        1) != FX_OK)
      return FX_NONE;
    x = result;
  }
  return x;
}

fx_value fx_model_hidden(const fx_model *model, fx_graph *graph, const fx_model_values *values,
                         const fx_attention_setup *setup, bool train) {
  const fx_config_model *m = &model->config->model;
  recorder r = {.m = m,
                .share = &model->share,
                .graph = graph,
                .weight = values->weight,
                .setup = setup,
                .scale = (float)(1.0 / sqrt((double)m->head_dim)),
                .rope_table = FX_NONE,
                .my_blocks = FX_NONE,
                .seed = (uint64_t)model->config->train.seed,
                .pieces = model->config->parallel.tensor_pieces,
                .dropout = train && m->dropout > 0};
  attention_fields(&r);
  context_fields(&r, model);
  if (r.dropout) {
    r.ordinal = fx_graph_input(FX_AT(graph), "sample_ordinal");
    r.iteration = fx_graph_input(FX_AT(graph), "iteration");
  }
  if (m->position == FX_MODEL_POSITION_ROPE)
    r.rope_table = fx_rope_table(FX_AT(graph), fx_graph_input(FX_AT(graph), "positions"),
                                 (fx_rope_table_attr){m->head_dim, m->rope_theta});
  fx_value x = layers(&r, model, embed(&r, model));
  return norm(&r, x, model->norm, model->norm_bias);
}

fx_value fx_model_head(const fx_model *model, const fx_model_values *values) {
  return values->weight[model->head];
}

fx_value fx_model_loss(const fx_model *model, fx_graph *graph, const fx_model_values *values, fx_value hidden,
                       fx_value *nll) {
  const fx_tensor_parallel *tp = &model->share.tp;
  fx_value targets = fx_graph_input(FX_AT(graph), "targets"),
           factor = fx_graph_input(FX_AT(graph), "loss_factor"), head = fx_model_head(model, values);
  fx_head_ce_attr attr = {model->config->model.vocab_size};
  if (!tp->comm) return fx_head_ce(FX_AT(graph), hidden, head, targets, factor, attr, nll);
  hidden = fx_tensor_enter(FX_AT(graph), tp, hidden);
  const fx_device *device = model->params.device;
  return fx_vocab_head_ce(FX_AT(graph), tp->comm, device ? device->backend : FX_BACKEND_CPU, hidden, head,
                          targets, factor, vocabulary(model), nll);
}
