/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/context.h"
#include "core/train/corpus_agree.h"
#include "data/corpus.h"
#include "data/split.h"
#include "dynamo_rt/base/memory.h"

enum { TOKENS, TARGETS, POSITIONS, DOC_START, DOC_END, VALID_ROWS };
enum { SPLIT_SEED = 1234 }; /* not train.seed: runs that differ in their seed share the validation set */

struct fx_pipeline {
  fx_pipeline_options options;
  fx_tokenizer *tokenizer;
  fx_corpus *train_corpus, *valid_corpus; /* valid_corpus: NULL when validation is a part of train */
  fx_documents train_documents, valid_documents;
  fx_sampler *train, *valid;
  fx_prefetch *prefetch;
  int32_t *valid_rows[VALID_ROWS];     /* [B, T] of the validation batch being filled */
  char *stage_scratch, *valid_scratch; /* of the attention setup: the prefetch thread's and the caller's */
};

static fx_status load(fx_pipeline *pipeline, const fx_config_strings *patterns, fx_corpus **out) {
  fx_corpus_options options = {.patterns = (const char *const *)patterns->items,
                               .n_patterns = (int)patterns->count,
                               .format = FX_TEXT_AUTO,
                               .tokenizer = pipeline->tokenizer,
                               .log = pipeline->options.log};
  return fx_corpus_load(&options, out);
}

static fx_status load_corpora(fx_pipeline *pipeline) {
  const fx_config_data *data = &pipeline->options.config->data;
  FX_TRY(fx_tokenizer_create("byte", NULL, &pipeline->tokenizer));
  fx_status status = load(pipeline, &data->train, &pipeline->train_corpus);
  if (status != FX_OK) return fx_error_prefix(status, "data.train");
  if (data->valid.count > 0) {
    status = load(pipeline, &data->valid, &pipeline->valid_corpus);
    if (status != FX_OK) return fx_error_prefix(status, "data.valid");
    FX_TRY(fx_documents_all(pipeline->train_corpus, &pipeline->train_documents));
    return fx_documents_all(pipeline->valid_corpus, &pipeline->valid_documents);
  }
  fx_split_rule rule = data->split == FX_DATA_SPLIT_TOKENS ? FX_SPLIT_TOKENS : FX_SPLIT_DOCUMENTS;
  return fx_split(pipeline->train_corpus, rule, data->valid_fraction, SPLIT_SEED, &pipeline->train_documents,
                  &pipeline->valid_documents);
}

static fx_status make_samplers(fx_pipeline *pipeline) {
  const fx_config *config = pipeline->options.config;
  fx_sampler_options options = {
      .seq_length = config->train.seq_length,
      .packing = config->data.packing == FX_DATA_PACKING_NONE ? FX_PACKING_NONE : FX_PACKING_DOCUMENTS,
      .shuffle = true,
      .rotate = true,
      .seed = (uint64_t)config->train.seed};
  FX_TRY(fx_sampler_create(&pipeline->train_documents, &options, &pipeline->train));
  if (pipeline->valid_documents.count == 0) return FX_OK;
  options.shuffle = options.rotate = false;
  return fx_sampler_create(&pipeline->valid_documents, &options, &pipeline->valid);
}

static fx_status mask_stage(void *ctx, fx_batch *batch) {
  const fx_pipeline *pipeline = ctx;
  const fx_attention_setup *attention = pipeline->options.attention;
  fx_attention_batch in = {batch->tokens, batch->positions, batch->doc_start, batch->doc_end};
  void *memory[FX_ATTENTION_MAX_FIELDS];
  for (int i = 0; i < attention->num_fields; i++)
    FX_TRY(fx_batch_buffer(batch, attention->field[i].name, FX_I32, attention->field[i].words, &memory[i]));
  return fx_attention_fill(attention, &in, memory, pipeline->stage_scratch);
}

static fx_batch_layout layout_of(const fx_pipeline *pipeline) {
  const fx_config_train *train = &pipeline->options.config->train;
  return (fx_batch_layout){.micro_batch_size = train->micro_batch_size,
                           .global_batch_size = train->global_batch_size,
                           .dp_rank = pipeline->options.dp_rank,
                           .dp_size = pipeline->options.dp_size};
}

static fx_status start_prefetch(fx_pipeline *pipeline) {
  const fx_attention_setup *attention = pipeline->options.attention;
  fx_batch_field fields[FX_ATTENTION_MAX_FIELDS];
  for (int i = 0; i < attention->num_fields; i++) {
    fields[i] = (fx_batch_field){.dtype = FX_I32, .elements = attention->field[i].words};
    memcpy(fields[i].name, attention->field[i].name, sizeof fields[i].name);
  }
  fx_batch_stage stage = {"mask", mask_stage, pipeline};
  fx_prefetch_options options = {.sampler = pipeline->train,
                                 .layout = layout_of(pipeline),
                                 .consumed_samples = pipeline->options.consumed_samples,
                                 .depth = (int)pipeline->options.config->data.prefetch,
                                 .fields = fields,
                                 .n_fields = attention->num_fields,
                                 .stages = &stage,
                                 .n_stages = attention->num_fields > 0};
  return fx_prefetch_create(&options, &pipeline->prefetch);
}

fx_status fx_pipeline_create(const fx_pipeline_options *options, fx_pipeline **out) {
  fx_pipeline *pipeline = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&pipeline, 1, sizeof *pipeline));
  pipeline->options = *options;
  size_t tokens = (size_t)(options->config->train.micro_batch_size * options->config->train.seq_length);
  FX_TRY_GOTO(load_corpora(pipeline), destroy_pipeline);
  FX_TRY_GOTO(make_samplers(pipeline), destroy_pipeline);
  for (int i = 0; i < VALID_ROWS; i++)
    FX_TRY_GOTO(fx_calloc(&pipeline->valid_rows[i], tokens, sizeof(int32_t)), destroy_pipeline);
  size_t scratch = options->attention->scratch_bytes + FX_ALIGN;
  FX_TRY_GOTO(fx_alloc_aligned(&pipeline->stage_scratch, scratch), destroy_pipeline);
  FX_TRY_GOTO(fx_alloc_aligned(&pipeline->valid_scratch, scratch), destroy_pipeline);
  FX_TRY_GOTO(start_prefetch(pipeline), destroy_pipeline);
  *out = pipeline;
  return FX_OK;
destroy_pipeline:
  fx_pipeline_destroy(pipeline);
  return status;
}

void fx_pipeline_destroy(fx_pipeline *pipeline) {
  if (!pipeline) return;
  if (pipeline->prefetch) fx_prefetch_destroy(pipeline->prefetch);
  if (pipeline->train) fx_sampler_destroy(pipeline->train);
  if (pipeline->valid) fx_sampler_destroy(pipeline->valid);
  fx_documents_fini(&pipeline->train_documents);
  fx_documents_fini(&pipeline->valid_documents);
  if (pipeline->train_corpus) fx_corpus_destroy(pipeline->train_corpus);
  if (pipeline->valid_corpus) fx_corpus_destroy(pipeline->valid_corpus);
  if (pipeline->tokenizer) fx_tokenizer_destroy(pipeline->tokenizer);
  for (int i = 0; i < VALID_ROWS; i++) free(pipeline->valid_rows[i]);
  free(pipeline->stage_scratch);
  free(pipeline->valid_scratch);
  free(pipeline);
}

fx_status fx_pipeline_agree(const fx_pipeline *pipeline, fx_control *control, int timeout_ms) {
  return fx_corpus_agree(pipeline->train_corpus, pipeline->valid_corpus, control, timeout_ms);
}

int64_t fx_pipeline_train_tokens(const fx_pipeline *pipeline) {
  return pipeline->train_documents.tokens;
}
int64_t fx_pipeline_valid_tokens(const fx_pipeline *pipeline) {
  return pipeline->valid ? pipeline->valid_documents.tokens : 0;
}
int64_t fx_pipeline_samples_per_epoch(const fx_pipeline *pipeline) {
  return fx_sampler_samples_per_epoch(pipeline->train);
}

/* The store of a corpus takes 1, 2 or 4 bytes a token; a sampler 16 a document and 8 a sample (sampler.h). */
static int64_t corpus_bytes(const fx_corpus *corpus) {
  if (!corpus) return 0;
  int32_t vocab = fx_corpus_vocab_size(corpus);
  return fx_corpus_tokens(corpus) * (vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4);
}

static int64_t sampler_bytes(const fx_sampler *sampler, const fx_documents *documents) {
  const int64_t span = (int64_t)sizeof *documents->spans;
  return sampler ? (16 + span) * documents->count + 8 * fx_sampler_samples_per_epoch(sampler) : 0;
}

int64_t fx_pipeline_bytes(const fx_pipeline *p) {
  const fx_config *config = p->options.config;
  const fx_attention_setup *attention = p->options.attention;
  int64_t words = VALID_ROWS * config->train.micro_batch_size * config->train.seq_length;
  for (int i = 0; i < attention->num_fields; i++) words += attention->field[i].words;
  return corpus_bytes(p->train_corpus) + corpus_bytes(p->valid_corpus) +
         sampler_bytes(p->train, &p->train_documents) + sampler_bytes(p->valid, &p->valid_documents) +
         config->data.prefetch * words * (int64_t)sizeof(int32_t) + 2 * (int64_t)attention->scratch_bytes;
}

/* Copies a field of the batch into the input of the same name. */
static void copy_field(const fx_batch *batch, fx_inputs *inputs, int slot, const char *name) {
  const fx_batch_field *field = fx_batch_find(batch, name);
  int index = fx_inputs_find(inputs, name);
  FX_ASSERT(field && index >= 0);
  memcpy(fx_inputs_data(inputs, slot, name), field->data,
         fx_type_bytes(&fx_inputs_info(inputs, index)->type));
}

static const char *const g_row_inputs[] = {
    [TOKENS] = "tokens", [TARGETS] = "targets", [POSITIONS] = "positions"};

/* One number a position, [B, T], into the input of that name: this rank's rows of it. */
static void take_rows(const fx_pipeline *pipeline, const int32_t *whole, fx_inputs *inputs, int slot,
                      const char *name) {
  const fx_attention_setup *attention = pipeline->options.attention;
  int32_t *rows = fx_inputs_data(inputs, slot, name);
  if (attention->blocks < 0)
    memcpy(rows, whole, (size_t)attention->B * (size_t)attention->T * sizeof *rows);
  else
    fx_context_take_rows(attention, fx_inputs_data(inputs, slot, attention->field[attention->blocks].name),
                         whole, rows);
}

fx_status fx_pipeline_next(fx_pipeline *pipeline, fx_inputs *inputs, int slot, int64_t *valid) {
  fx_batch *batch = NULL;
  FX_TRY(fx_prefetch_next(pipeline->prefetch, &batch));
  copy_field(batch, inputs, slot, "sample_ordinal");
  const fx_attention_setup *attention = pipeline->options.attention;
  for (int i = 0; i < attention->num_fields; i++) copy_field(batch, inputs, slot, attention->field[i].name);
  const int32_t *rows[] = {
      [TOKENS] = batch->tokens, [TARGETS] = batch->targets, [POSITIONS] = batch->positions};
  for (int i = 0; i <= POSITIONS; i++) take_rows(pipeline, rows[i], inputs, slot, g_row_inputs[i]);
  *valid = batch->global_valid;
  *(float *)fx_inputs_data(inputs, slot, "loss_factor") = *valid > 0 ? (float)(1.0 / (double)*valid) : 0.0f;
  fx_prefetch_release(pipeline->prefetch, batch);
  return FX_OK;
}

int64_t fx_pipeline_valid_batches(const fx_pipeline *pipeline) {
  const fx_config_train *train = &pipeline->options.config->train;
  if (!pipeline->valid) return 0;
  int64_t samples = fx_sampler_samples_per_epoch(pipeline->valid);
  if (train->eval_iters > 0) samples = fx_min_i64(samples, train->eval_iters * train->global_batch_size);
  return fx_ceil_div(samples, train->micro_batch_size * pipeline->options.dp_size);
}

fx_status fx_pipeline_valid_batch(fx_pipeline *pipeline, int64_t index, fx_inputs *inputs, int slot,
                                  int64_t *valid) {
  const fx_config_train *train = &pipeline->options.config->train;
  int64_t B = train->micro_batch_size, T = train->seq_length,
          samples = fx_sampler_samples_per_epoch(pipeline->valid);
  if (train->eval_iters > 0) samples = fx_min_i64(samples, train->eval_iters * train->global_batch_size);
  int64_t first = index * B * pipeline->options.dp_size + pipeline->options.dp_rank * B;
  int32_t *const *rows = pipeline->valid_rows;
  for (int64_t row = 0; row < B; row++) {
    fx_sample_view view = {rows[TOKENS] + row * T, rows[TARGETS] + row * T, rows[POSITIONS] + row * T,
                           rows[DOC_START] + row * T, rows[DOC_END] + row * T};
    bool past = first + row >= samples;
    fx_sampler_sample(pipeline->valid, past ? 0 : first + row, &view);
    for (int64_t t = 0; past && t < T; t++) view.targets[t] = -1;
    ((int64_t *)fx_inputs_data(inputs, slot, "sample_ordinal"))[row] = first + row;
  }
  *(float *)fx_inputs_data(inputs, slot, "loss_factor") = 1.0f;
  const fx_attention_setup *attention = pipeline->options.attention;
  fx_attention_batch in = {rows[TOKENS], rows[POSITIONS], rows[DOC_START], rows[DOC_END]};
  void *memory[FX_ATTENTION_MAX_FIELDS];
  for (int i = 0; i < attention->num_fields; i++)
    memory[i] = fx_inputs_data(inputs, slot, attention->field[i].name);
  FX_TRY(fx_attention_fill(attention, &in, memory, pipeline->valid_scratch));
  for (int i = 0; i <= POSITIONS; i++) take_rows(pipeline, rows[i], inputs, slot, g_row_inputs[i]);
  const int32_t *targets = fx_inputs_data(inputs, slot, "targets");
  *valid = 0;
  for (int64_t i = 0; i < B * attention->rows; i++) *valid += targets[i] >= 0;
  return FX_OK;
}

double fx_pipeline_wait_seconds(const fx_pipeline *pipeline) {
  return fx_prefetch_get_stats(pipeline->prefetch).wait_seconds;
}
