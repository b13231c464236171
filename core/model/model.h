/* SPDX-License-Identifier: Apache-2.0 */
/* The language model: parameters under their Hugging Face names, and its forward as recorded ops. One decoder
 * in two dialects (Llama, GPT-2); norm, activation, positions, biases and tying are independent switches. */
#ifndef FX_CORE_MODEL_MODEL_H
#define FX_CORE_MODEL_MODEL_H

#include "core/config/config.h"
#include "core/model/attention.h"
#include "dynamo_rt/graph/graph.h"
#include "parallel/param.h"
#include "parallel/tensor_parallel.h"
#include "parallel/topology.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Storage numbers in fx_params; -1: the model has none. kv: keys and values apart from qkv, which then holds
 * queries only: where tensor-parallel ranks share key heads. */
typedef struct fx_layer_storages {
  int32_t norm1, norm1_bias, qkv, qkv_bias, kv, kv_bias, proj, proj_bias;
  int32_t norm2, norm2_bias, up, up_bias, down, down_bias;
  int32_t sinks, table[FX_VARIANT_MAX_TABLES]; /* of its attention variant */
} fx_layer_storages;

/* What this rank holds of a layer under tensor parallelism. */
typedef struct fx_model_share {
  fx_tensor_parallel tp;      /* comm NULL: this rank alone */
  int64_t ranks, rank;        /* of tp; 1, 0 alone */
  int64_t heads, first_head;  /* query heads of this rank: [first_head, first_head + heads) */
  int64_t kv_heads, kv_ranks; /* key heads of this rank; how many neighbours hold the same ones */
} fx_model_share;

typedef struct fx_model {
  const fx_config *config;     /* borrowed */
  const fx_topology *topology; /* borrowed; NULL: this rank alone */
  fx_model_share share;
  fx_params params;
  fx_layer_storages *layers;                       /* [num_hidden_layers] */
  int32_t embed, positions, norm, norm_bias, head; /* head == embed when tied */
  int64_t padded_vocab;                            /* vocab_size rounded up to 128 * tp */
} fx_model;

/* How many neighbouring tensor-parallel ranks hold the same key heads: 1 unless there are more ranks than key
 * heads (fx_topology_share_heads). */
int fx_model_kv_ranks(const fx_config *config);
/* What a model on such a device computes in: bfloat16 on a GPU unless runtime.dtype says float32. */
fx_dtype fx_model_dtype(const fx_config *config, fx_backend backend);
/* Declares and allocates all parameters (zero); fx_params_initialize or a checkpoint fills them. */
fx_status fx_model_create(const fx_config *config, fx_model **out);
/* This rank's part of them in memory of `device`; device and topology (either may be NULL) outlive the model.
 */
fx_status fx_model_create_on(const fx_config *config, fx_device *device, const fx_topology *topology,
                             fx_model **out);
/* The same without gradients and moments: good for the plans `eval` and `logits` only. device: may be NULL.
 */
fx_status fx_model_create_weights(const fx_config *config, fx_device *device, fx_model **out);
/* As fx_model_create_on without memory: for plans that are prepared and not run. */
fx_status fx_model_create_dry(const fx_config *config, fx_device *device, const fx_topology *topology,
                              fx_model **out);
void fx_model_destroy(fx_model *model);             /* NULL is fine */
int64_t fx_model_num_params(const fx_model *model); /* elements, padding left out, tied weights once */
/* FLOPs of forward and backward for one token of a sequence of `length` under a full causal mask: 6 per
 * weight of every matrix product and 6 * length * H * D per layer of attention (Chowdhery et al.,
 * arXiv:2204.02311, appendix B, halved for causality). */
double fx_model_flops_per_token(const fx_model *model, int64_t length);

/* Values of the parameter storages in one graph: weight[s] of storage s, in the compute type where kernels
 * read it so (fx_param_storage.compute), else the fp32 master. */
typedef struct fx_model_values {
  fx_value *weight; /* [params.num_storages], owned */
} fx_model_values;
fx_status fx_model_bind(const fx_model *model, fx_graph *graph, fx_model_values *out);
void fx_model_values_fini(fx_model_values *values);

/* What a forward reads besides the weights, as runtime inputs by these names: tokens, targets, positions
 * int32 [B, T], T the rows of this rank; sample_ordinal int64 [B], iteration int64 [1] (dropout); the fields
 * of the attention setup. A setup of several ranks needs a model with a topology of as many context ranks. */

/* Records embedding, layers and final norm -> [B, T, E], or this rank's rows of it [B * T / tp, E] under
 * sequence parallelism. The first layer of each kind is traced, the others
 * are repeated from it. train: dropout applies. */
fx_value fx_model_hidden(const fx_model *model, fx_graph *graph, const fx_model_values *values,
                         const fx_attention_setup *setup, bool train);
/* The head's weight value [padded_vocab / tp, E]. */
fx_value fx_model_head(const fx_model *model, const fx_model_values *values);
/* Loss [1] and its terms nll [B, T] (NULL: not wanted) from hidden states, runtime inputs targets int32 [B,
 * T] and loss_factor float32 [1]. */
fx_value fx_model_loss(const fx_model *model, fx_graph *graph, const fx_model_values *values, fx_value hidden,
                       fx_value *nll);

#ifdef __cplusplus
}
#endif
#endif
