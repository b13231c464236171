/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a run: one plain struct, filled from YAML files and `section.key=value` overrides.
 *
 * The sections and fields carry the names of the YAML keys, so that code and configuration read alike
 * (cfg->train.seq_length is train.seq_length). After loading everything is resolved: every key has a value,
 * `auto` integers are replaced by what they stand for, and the relations between keys hold. Nobody below core
 * sees this header; layers take the few numbers that they need.
 *
 * Enum constants are FX_<SECTION>_<KEY>_<VALUE>. Every user error is FX_ERR_CONFIG with one sentence that
 * starts with the place: `file:line:column` or `command line: section.key=value`. */
#ifndef FX_CORE_CONFIG_CONFIG_H
#define FX_CORE_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "attention/variant/variant.h"
#include "dynamo_rt/base/log.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_CONFIG_AUTO = -1 }; /* only runtime.threads keeps it after loading */

typedef enum fx_model_type { FX_MODEL_TYPE_LLAMA, FX_MODEL_TYPE_GPT2 } fx_model_type;
typedef enum fx_model_norm { FX_MODEL_NORM_RMSNORM, FX_MODEL_NORM_LAYERNORM } fx_model_norm;
typedef enum fx_model_activation {
  FX_MODEL_ACTIVATION_SWIGLU,
  FX_MODEL_ACTIVATION_GELU,     /* exact, with erf */
  FX_MODEL_ACTIVATION_GELU_TANH /* the tanh approximation; Hugging Face's gelu_new */
} fx_model_activation;
typedef enum fx_model_position {
  FX_MODEL_POSITION_ROPE,
  FX_MODEL_POSITION_LEARNED,
  FX_MODEL_POSITION_NONE
} fx_model_position;
typedef enum fx_attention_sinks {
  FX_ATTENTION_SINKS_AUTO,
  FX_ATTENTION_SINKS_TRUE,
  FX_ATTENTION_SINKS_FALSE
} fx_attention_sinks;
typedef enum fx_parallel_context_exchange {
  FX_PARALLEL_CONTEXT_EXCHANGE_AUTO,
  FX_PARALLEL_CONTEXT_EXCHANGE_RING,
  FX_PARALLEL_CONTEXT_EXCHANGE_ALLGATHER,
  FX_PARALLEL_CONTEXT_EXCHANGE_ALLTOALL
} fx_parallel_context_exchange;
typedef enum fx_data_split { FX_DATA_SPLIT_DOCUMENTS, FX_DATA_SPLIT_TOKENS } fx_data_split;
typedef enum fx_data_tokenizer { FX_DATA_TOKENIZER_BYTE } fx_data_tokenizer;
typedef enum fx_data_packing { FX_DATA_PACKING_DOCUMENTS, FX_DATA_PACKING_NONE } fx_data_packing;
typedef enum fx_optimizer_name { FX_OPTIMIZER_NAME_ADAMW } fx_optimizer_name;
typedef enum fx_schedule_decay {
  FX_SCHEDULE_DECAY_COSINE,
  FX_SCHEDULE_DECAY_LINEAR,
  FX_SCHEDULE_DECAY_CONSTANT,
  FX_SCHEDULE_DECAY_WSD
} fx_schedule_decay;
typedef enum fx_runtime_device {
  FX_RUNTIME_DEVICE_AUTO,
  FX_RUNTIME_DEVICE_CPU,
  FX_RUNTIME_DEVICE_CUDA
} fx_runtime_device;
typedef enum fx_runtime_mode { FX_RUNTIME_MODE_REPLAY, FX_RUNTIME_MODE_EAGER } fx_runtime_mode;
typedef enum fx_runtime_dtype {
  FX_RUNTIME_DTYPE_AUTO,
  FX_RUNTIME_DTYPE_FLOAT32,
  FX_RUNTIME_DTYPE_BFLOAT16
} fx_runtime_dtype;

typedef struct fx_config_strings {
  char **items; /* owned */
  int64_t count;
} fx_config_strings;

typedef struct fx_config_model {
  char *name;
  fx_model_type model_type; /* decides the Hugging Face tensor names */
  int64_t vocab_size;
  int64_t hidden_size;
  int64_t num_hidden_layers;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t head_dim;
  int64_t intermediate_size;
  int64_t max_position_embeddings;
  fx_model_norm norm;
  double norm_eps;
  fx_model_activation activation;
  fx_model_position position;
  double rope_theta;
  bool tie_word_embeddings;
  double dropout;
  bool bias;
  double initializer_range;
} fx_config_model;

/* As it was written; what it means is asked by fx_config_variant below. */
typedef struct fx_config_attention {
  char *variant; /* of configs/attention, or of `variants` */
  struct fx_tree *mask, *score, *params, *buffers;
  fx_attention_sinks sinks;
  struct fx_tree *layers, *variants;
  int64_t turn_token;
} fx_config_attention;

typedef struct fx_config_parallel {
  int64_t tensor;
  bool sequence;
  int64_t tensor_pieces;
  bool gather_again;
  int64_t context;
  fx_parallel_context_exchange context_exchange;
  int64_t zero;
  int64_t bucket_elements;
  int64_t watchdog;
} fx_config_parallel;

typedef struct fx_config_data {
  fx_config_strings train;
  fx_config_strings valid;
  double valid_fraction; /* of train, used when valid is empty */
  fx_data_split split;
  fx_data_tokenizer tokenizer;
  fx_data_packing packing;
  int64_t prefetch;
} fx_config_data;

typedef struct fx_config_optimizer {
  fx_optimizer_name name;
  double lr;
  double min_lr;
  double betas[2];
  double eps;
  double weight_decay;
  double clip_grad; /* 0 = off */
  bool stochastic_rounding;
} fx_config_optimizer;

typedef struct fx_config_schedule {
  fx_schedule_decay decay;
  int64_t warmup_iters;
  int64_t decay_iters;
  int64_t wsd_decay_iters;
} fx_config_schedule;

typedef struct fx_config_train {
  int64_t iters;
  int64_t seq_length;
  int64_t micro_batch_size;
  int64_t global_batch_size;
  int64_t seed;
  int64_t eval_interval; /* 0 = never */
  int64_t eval_iters;    /* 0 = the whole validation split */
  int64_t log_interval;
} fx_config_train;

typedef struct fx_config_checkpoint {
  char *dir;
  int64_t interval; /* 0 = only at the end */
  int64_t keep;     /* 0 = all */
  bool async;       /* steps of `interval` are written beside training */
  char *resume;     /* "auto", "none" or a path */
} fx_config_checkpoint;

typedef struct fx_config_runtime {
  fx_runtime_device device;
  fx_runtime_mode mode;
  fx_runtime_dtype dtype;
  bool deterministic;
  bool autotune;
  int64_t threads; /* FX_CONFIG_AUTO or >= 1 */
  char *compiler;  /* of attention variants; "none": they are interpreted */
  fx_log_level log_level;
} fx_config_runtime;

typedef struct fx_config {
  fx_config_model model;
  fx_config_attention attention;
  fx_config_parallel parallel;
  fx_config_data data;
  fx_config_optimizer optimizer;
  fx_config_schedule schedule;
  fx_config_train train;
  fx_config_checkpoint checkpoint;
  fx_config_runtime runtime;
  fx_config_strings warnings;        /* what is legal and looks like a mistake; for whoever has a log */
  struct fx_config_origins *origins; /* where each key was set; private to core/config */
} fx_config;

/* Reads the file, its includes (relative to the including file; the including file's keys win, a later
 * include wins over an earlier one) and then the overrides in order, each `section.key=value` with a YAML
 * value. *out is written only on success; destroy it with fx_config_destroy. */
fx_status fx_config_load(const char *path, const char *const *overrides, int n_overrides, fx_config **out);

/* The same for text in memory, as fx_config_print wrote it; `name` stands for the file in messages. `include`
 * is refused here: resolved text needs none. */
fx_status fx_config_parse(const char *yaml_text, const char *name, fx_config **out);

/* Every key with its resolved value as malloc'ed YAML, NULL when out of memory. Exact: parsing it back and
 * printing again gives the same bytes. */
char *fx_config_print(const fx_config *cfg);

void fx_config_destroy(fx_config *cfg);

/* Where `section.key` (or a part of one, as `attention.params.window`) was set: "file:line:column", "command
 * line: a.b=c" or "default". NULL for a key that does not exist. Valid as long as cfg. */
const char *fx_config_where(const fx_config *cfg, const char *key);

/* The value of attention.params.NAME, or `fallback` when it is not given. */
double fx_config_attention_param(const fx_config *cfg, const char *name, double fallback);

/* Layers that attend alike are of one kind; kinds are numbered from 0 in the order of attention.layers. */
int32_t fx_config_num_variants(const fx_config *cfg);
int32_t fx_config_layer_variant(const fx_config *cfg, int64_t layer);
/* The attention variant of a kind, for `ranges`; the caller destroys it. Its tables and sinks are what the
 * model needs parameters for. FX_ERR_CONFIG only where the ranges are not those of the configuration (heads
 * and train.seq_length, which loading has tried): a table's extent may not suit others. */
fx_status fx_config_variant(const fx_config *cfg, int32_t kind, const fx_ex_ranges *ranges, fx_variant **out);

/* What only a training run needs: data.train is given, and the tokenizer's ids fit the vocabulary. */
fx_status fx_config_check_train(const fx_config *cfg);

/* world_size ranks split into parallel.tensor x parallel.context x data, and train.global_batch_size is a
 * multiple of train.micro_batch_size x data. */
fx_status fx_config_check_ranks(const fx_config *cfg, int world_size);

/* The table of all keys: name, type, default, range, meaning. */
void fx_config_help(FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
