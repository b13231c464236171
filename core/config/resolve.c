/* SPDX-License-Identifier: Apache-2.0 */
/* What no single key can tell: what `auto` stands for, relations between keys, and what is not available yet.
 * A sentence starts at the key that was set last by hand (command line before file before default), because
 * that is the one its author has in mind, and names every key of the relation. Knows no YAML. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/origins.h"
#include "core/config/specs.h"
#include "core/config/value.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/alltoall_attention.h"

/* Recognised, but not built yet: values above `limit`. Delete a row to lift it. */
static const struct {
  const char *key;
  int64_t limit;
  const char *advice;
} unavailable[] = {
    {"parallel.zero", 2, "parallel.zero=2"},
};

static int weight(const fx_config *cfg, const char *key) {
  const char *where = fx_config_where(cfg, key);
  return strcmp(where, "default") == 0 ? 0 : strncmp(where, "command line:", 13) == 0 ? 2 : 1;
}

/* FX_ERR_CONFIG at the heavier of two keys; the configuration's name stands for a default. */
static fx_status conflict(const fx_config *cfg, const char *a, const char *b, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static fx_status conflict(const fx_config *cfg, const char *a, const char *b, const char *format, ...) {
  char sentence[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  const char *key = weight(cfg, b) > weight(cfg, a) ? b : a;
  const char *place = weight(cfg, key) ? fx_config_where(cfg, key) : cfg->origins->name;
  return fx_error(FX_ERR_CONFIG, "%s: %s", place, sentence);
}

static void resolve_auto(int64_t *field, int64_t value) {
  if (*field == FX_CONFIG_AUTO) *field = value;
}

static fx_status resolve_model(fx_config *cfg) {
  fx_config_model *model = &cfg->model;
  long long hidden = model->hidden_size, heads = model->num_attention_heads;
  if (model->head_dim == FX_CONFIG_AUTO && hidden % heads != 0)
    return conflict(
        cfg, "model.num_attention_heads", "model.hidden_size",
        "model.hidden_size=%lld is not a multiple of model.num_attention_heads=%lld; change one of them "
        "or set model.head_dim",
        hidden, heads);
  bool gpt2 = model->model_type == FX_MODEL_TYPE_GPT2;
  resolve_auto(&model->head_dim, hidden / heads);
  resolve_auto(&model->num_key_value_heads, heads);
  resolve_auto(&model->intermediate_size,
               gpt2 ? 4 * hidden : fx_ceil_div(fx_ceil_div(8 * hidden, 3), 32) * 32);
  resolve_auto(&model->max_position_embeddings, cfg->train.seq_length);
  return FX_OK;
}

static void resolve_schedule(fx_config *cfg) {
  fx_config_schedule *schedule = &cfg->schedule;
  resolve_auto(&schedule->decay_iters, cfg->train.iters);
  int64_t tenth = schedule->decay_iters / 10;
  resolve_auto(&schedule->warmup_iters, fx_min_i64(100, tenth));
  resolve_auto(&schedule->wsd_decay_iters,
               fx_max_i64(0, fx_min_i64(tenth, schedule->decay_iters - schedule->warmup_iters)));
}

static fx_status check_heads(const fx_config *cfg) {
  const fx_config_model *model = &cfg->model;
  long long heads = model->num_attention_heads, kv_heads = model->num_key_value_heads, dim = model->head_dim;
  if (heads % kv_heads != 0)
    return conflict(
        cfg, "model.num_key_value_heads", "model.num_attention_heads",
        "model.num_attention_heads=%lld is not a multiple of model.num_key_value_heads=%lld; change one of "
        "them",
        heads, kv_heads);
  bool derived = strcmp(fx_config_where(cfg, "model.head_dim"), "default") == 0;
  const char *key = derived ? "model.hidden_size" : "model.head_dim";
  const char *other = derived ? "model.num_attention_heads" : "model.head_dim";
  const char *advice = derived
                           ? "change model.hidden_size or model.num_attention_heads, or set model.head_dim"
                           : "change model.head_dim";
  if (model->position == FX_MODEL_POSITION_ROPE && dim % 2 != 0)
    return conflict(cfg, key, other,
                    "model.head_dim=%lld is odd and model.position=rope turns pairs of channels; %s", dim,
                    advice);
  if (dim % 8 != 0 || dim > 256)
    return conflict(cfg, key, other, "model.head_dim=%lld is not a multiple of 8 of at most 256; %s", dim,
                    advice);
  return FX_OK;
}

static fx_status check_model(const fx_config *cfg) {
  const fx_config_model *model = &cfg->model;
  long long length = cfg->train.seq_length, positions = model->max_position_embeddings;
  if (model->position != FX_MODEL_POSITION_NONE && length > positions)
    return conflict(
        cfg, "train.seq_length", "model.max_position_embeddings",
        "train.seq_length=%lld is longer than model.max_position_embeddings=%lld; shorten the one, or raise "
        "the other or set it to auto",
        length, positions);
  if (model->model_type == FX_MODEL_TYPE_GPT2 && model->activation == FX_MODEL_ACTIVATION_SWIGLU)
    return conflict(
        cfg, "model.activation", "model.model_type",
        "model.activation=swiglu does not exist in model.model_type=gpt2; use gelu or gelu_tanh, or "
        "model.model_type=llama");
  return FX_OK;
}

/* Heads, features and rows go to tensor-parallel ranks in equal parts. */
static fx_status check_tensor(const fx_config *cfg) {
  const fx_config_model *model = &cfg->model;
  long long tp = cfg->parallel.tensor, heads = model->num_attention_heads;
  long long kv_heads = model->num_key_value_heads, wide = model->intermediate_size;
  long long batch = cfg->train.micro_batch_size, length = cfg->train.seq_length;
  if (heads % tp != 0)
    return conflict(cfg, "parallel.tensor", "model.num_attention_heads",
                    "model.num_attention_heads=%lld is not a multiple of parallel.tensor=%lld; set "
                    "parallel.tensor to a divisor of it",
                    heads, tp);
  if (kv_heads % tp != 0 && tp % kv_heads != 0)
    return conflict(cfg, "parallel.tensor", "model.num_key_value_heads",
                    "model.num_key_value_heads=%lld is neither a multiple nor a divisor of "
                    "parallel.tensor=%lld; change one of them",
                    kv_heads, tp);
  if (wide % tp != 0)
    return conflict(cfg, "parallel.tensor", "model.intermediate_size",
                    "model.intermediate_size=%lld is not a multiple of parallel.tensor=%lld; change one of "
                    "them",
                    wide, tp);
  if (cfg->parallel.sequence && batch * length % tp != 0)
    return conflict(cfg, "parallel.tensor", "train.seq_length",
                    "train.micro_batch_size=%lld x train.seq_length=%lld rows are not a multiple of "
                    "parallel.tensor=%lld; change one of them or set parallel.sequence=false",
                    batch, length, tp);
  return FX_OK;
}

static fx_status check_schedule(const fx_config *cfg) {
  const fx_config_schedule *schedule = &cfg->schedule;
  long long warmup = schedule->warmup_iters, decay = schedule->decay_iters, last = schedule->wsd_decay_iters;
  if (cfg->optimizer.min_lr > cfg->optimizer.lr)
    return conflict(cfg, "optimizer.lr", "optimizer.min_lr",
                    "optimizer.min_lr=%g is above optimizer.lr=%g; lower the one or raise the other",
                    cfg->optimizer.min_lr, cfg->optimizer.lr);
  const char *end = strcmp(fx_config_where(cfg, "schedule.decay_iters"), "default") == 0
                        ? "train.iters"
                        : "schedule.decay_iters";
  if (warmup > decay)
    return conflict(
        cfg, "schedule.warmup_iters", end,
        "schedule.warmup_iters=%lld is above schedule.decay_iters=%lld; lower the one or raise the other "
        "(auto: train.iters)",
        warmup, decay);
  if (schedule->decay == FX_SCHEDULE_DECAY_WSD && warmup + last > decay)
    return conflict(cfg, "schedule.wsd_decay_iters", end,
                    "schedule.warmup_iters=%lld and schedule.wsd_decay_iters=%lld together are above "
                    "schedule.decay_iters=%lld; lower one of them or raise schedule.decay_iters",
                    warmup, last, decay);
  return FX_OK;
}

static fx_status check_available(const fx_config *cfg) {
  char *text = NULL;
  size_t bytes = 0;
  for (size_t i = 0; i < sizeof unavailable / sizeof unavailable[0]; i++) {
    const fx_key *key = fx_schema_find_path(unavailable[i].key);
    const char *field = (const char *)cfg + key->offset;
    int64_t value = 0;
    memcpy(&value, field, sizeof value);
    if (value <= unavailable[i].limit) continue;
    FILE *stream = open_memstream(&text, &bytes);
    if (!stream) return fx_config_no_memory();
    fx_value_print(key, field, stream);
    fclose(stream);
    fx_status status =
        conflict(cfg, unavailable[i].key, unavailable[i].key, "%s=%s is not available yet; use %s",
                 unavailable[i].key, text ? text : "?", unavailable[i].advice);
    free(text);
    return status;
  }
  return FX_OK;
}

/* Every context rank gets some heads of what a tensor rank has. */
static fx_status check_alltoall(const fx_config *cfg) {
  long long ranks = cfg->parallel.context, tensor = cfg->parallel.tensor;
  long long heads = cfg->model.num_attention_heads / tensor,
            keys = cfg->model.num_key_value_heads < tensor ? 1 : cfg->model.num_key_value_heads / tensor;
  if (fx_alltoall_divides(ranks, heads, keys)) return FX_OK;
  return conflict(
      cfg, "parallel.context_exchange", "parallel.context",
      "parallel.context=%lld does not divide the %lld query and %lld key heads of a tensor rank, or is over "
      "%d, as parallel.context_exchange=alltoall needs; use ring, allgather or auto",
      ranks, heads, keys, FX_ALLTOALL_RANKS);
}

/* A sequence is dealt to the context ranks in blocks of 128 positions, equally many each. */
static fx_status check_context(const fx_config *cfg) {
  long long ranks = cfg->parallel.context, length = cfg->train.seq_length;
  if (cfg->parallel.context_exchange == FX_PARALLEL_CONTEXT_EXCHANGE_ALLTOALL) FX_TRY(check_alltoall(cfg));
  if (ranks > 1 && length % (128 * ranks) != 0)
    return conflict(cfg, "train.seq_length", "parallel.context",
                    "train.seq_length=%lld is not a multiple of 128 x parallel.context=%lld; set it to a "
                    "multiple of %lld or lower parallel.context",
                    length, ranks, 128 * ranks);
  return FX_OK;
}

fx_status fx_config_resolve(fx_config *cfg) {
  FX_TRY(resolve_model(cfg));
  resolve_schedule(cfg);
  FX_TRY(check_heads(cfg));
  FX_TRY(check_model(cfg));
  FX_TRY(check_tensor(cfg));
  FX_TRY(check_schedule(cfg));
  FX_TRY(check_available(cfg));
  FX_TRY(check_context(cfg));
  FX_TRY(fx_specs_take_files(cfg));
  return fx_specs_check(cfg);
}

fx_status fx_config_check_train(const fx_config *cfg) {
  if (cfg->data.train.count == 0)
    return conflict(
        cfg, "data.train", "data.train",
        "data.train names no file; add at least one, for example data.train=corpus.txt on the command line");
  if (cfg->data.tokenizer == FX_DATA_TOKENIZER_BYTE && cfg->model.vocab_size < 256)
    return conflict(
        cfg, "model.vocab_size", "data.tokenizer",
        "model.vocab_size=%lld is below the 256 ids of data.tokenizer=byte; set model.vocab_size=256",
        (long long)cfg->model.vocab_size);
  return FX_OK;
}

fx_status fx_config_check_ranks(const fx_config *cfg, int world_size) {
  long long model_ranks = cfg->parallel.tensor * cfg->parallel.context;
  if (world_size < 1 || world_size % model_ranks != 0)
    return conflict(
        cfg, "parallel.tensor", "parallel.context",
        "%d ranks do not divide into parallel.tensor=%lld x parallel.context=%lld; start a multiple of %lld "
        "ranks",
        world_size, (long long)cfg->parallel.tensor, (long long)cfg->parallel.context, model_ranks);
  long long micro = cfg->train.micro_batch_size, global = cfg->train.global_batch_size;
  long long data_ranks = world_size / model_ranks;
  if (global % (micro * data_ranks) != 0)
    return conflict(
        cfg, "train.global_batch_size", "train.micro_batch_size",
        "train.global_batch_size=%lld is not a multiple of train.micro_batch_size=%lld x %lld data "
        "rank%s; set it to a multiple of %lld or change the micro-batch or the number of ranks",
        global, micro, data_ranks, data_ranks == 1 ? "" : "s", micro * data_ranks);
  return FX_OK;
}
