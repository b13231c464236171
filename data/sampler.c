/* SPDX-License-Identifier: Apache-2.0 */
/* Stream positions: an epoch's documents, in its order, occupy [0, tokens) ("laid" positions). Sample k
 * covers [k*T, (k+1)*T) of the "cut" positions, and laid = (cut + rotation) mod tokens. */
#include "data/sampler.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/shuffle.h"
#include "dynamo_rt/base/memory.h"

enum { EPOCHS_KEPT = 2 };

typedef struct epoch_table {
  int64_t epoch;    /* -1: nothing yet */
  int64_t *order;   /* [documents]: which document is laid k-th */
  int64_t *begin;   /* [documents + 1]: laid position where the k-th begins; the last is the token count */
  int64_t *visit;   /* [samples]: which sample is visited i-th */
  int64_t rotation; /* in [0, T) */
  uint64_t used;    /* tick of the last use */
} epoch_table;

struct fx_sampler {
  fx_documents documents; /* borrows spans and corpus */
  fx_sampler_options options;
  int64_t samples; /* an epoch */
  pthread_mutex_t lock;
  epoch_table tables[EPOCHS_KEPT]; /* under lock, as tick */
  uint64_t tick;
};

fx_packing fx_packing_from_name(const char *name) {
  static const char *const names[] = {
#define PACKING_NAME(id, text) text,
      FX_PACKING_LIST(PACKING_NAME)
#undef PACKING_NAME
  };
  int i = 0;
  while (i < FX_PACKING_COUNT && strcmp(names[i], name) != 0) i++;
  return (fx_packing)i;
}

static fx_status alloc_table(epoch_table *table, int64_t documents, int64_t samples) {
  table->epoch = -1;
  FX_TRY(fx_calloc(&table->order, (size_t)documents, sizeof *table->order));
  FX_TRY(fx_calloc(&table->begin, (size_t)documents + 1, sizeof *table->begin));
  return fx_calloc(&table->visit, (size_t)samples, sizeof *table->visit);
}

fx_status fx_sampler_create(const fx_documents *documents, const fx_sampler_options *options,
                            fx_sampler **out) {
  if (options->seq_length < 1 || options->seq_length > INT32_MAX)
    return fx_error(FX_ERR_CONFIG, "train.seq_length is %lld; expected 1 to %d",
                    (long long)options->seq_length, INT32_MAX);
  if (documents->tokens < 1)
    return fx_error(FX_ERR_DATA, "there are no documents to sample from; name text files, or for validation "
                                 "set data.valid_fraction above 0");
  fx_sampler *sampler;
  FX_TRY(fx_calloc(&sampler, 1, sizeof *sampler));
  sampler->documents = *documents;
  sampler->options = *options;
  sampler->samples = fx_ceil_div(documents->tokens, options->seq_length);
  pthread_mutex_init(&sampler->lock, NULL);
  for (int i = 0; i < (options->shuffle ? EPOCHS_KEPT : 1); i++) {
    fx_status status = alloc_table(&sampler->tables[i], documents->count, sampler->samples);
    if (status != FX_OK) {
      fx_sampler_destroy(sampler);
      return status;
    }
  }
  *out = sampler;
  return FX_OK;
}

void fx_sampler_destroy(fx_sampler *sampler) {
  if (!sampler) return;
  for (int i = 0; i < EPOCHS_KEPT; i++) {
    free(sampler->tables[i].order);
    free(sampler->tables[i].begin);
    free(sampler->tables[i].visit);
  }
  pthread_mutex_destroy(&sampler->lock);
  free(sampler);
}

int64_t fx_sampler_seq_length(const fx_sampler *sampler) {
  return sampler->options.seq_length;
}
int64_t fx_sampler_samples_per_epoch(const fx_sampler *sampler) {
  return sampler->samples;
}

static void build_table(const fx_sampler *sampler, epoch_table *table, int64_t epoch) {
  const fx_documents *documents = &sampler->documents;
  const fx_sampler_options *options = &sampler->options;
  FX_ASSERT(table->order && table->begin && table->visit);
  if (options->shuffle) {
    fx_shuffle(table->order, documents->count, options->seed, "data.shuffle", epoch);
    fx_shuffle(table->visit, sampler->samples, options->seed, "data.shuffle.samples", epoch);
  } else {
    for (int64_t i = 0; i < documents->count; i++) table->order[i] = i;
    for (int64_t i = 0; i < sampler->samples; i++) table->visit[i] = i;
  }
  table->begin[0] = 0;
  for (int64_t k = 0; k < documents->count; k++)
    table->begin[k + 1] = table->begin[k] + documents->spans[table->order[k]].length;
  table->rotation = 0;
  if (options->shuffle && options->rotate)
    table->rotation = fx_draw_below(options->seed, "data.rotate", 0, epoch,
                                    fx_min_i64(options->seq_length, documents->tokens));
  table->epoch = epoch;
}

/* Under the lock. Without shuffling every epoch is epoch 0. */
static const epoch_table *table_of(fx_sampler *sampler, int64_t epoch) {
  if (!sampler->options.shuffle) epoch = 0;
  epoch_table *oldest = &sampler->tables[0];
  sampler->tick++;
  for (int i = 0; i < EPOCHS_KEPT; i++) {
    epoch_table *table = &sampler->tables[i];
    if (!table->order) break;
    if (table->epoch == epoch) {
      table->used = sampler->tick;
      return table;
    }
    if (table->used < oldest->used) oldest = table;
  }
  build_table(sampler, oldest, epoch);
  oldest->used = sampler->tick;
  return oldest;
}

/* How many of begin[1..n] are <= position, which is also the index of the document that holds `position`. */
static int64_t ends_until(const int64_t *begin, int64_t n, int64_t position) {
  int64_t low = 0, high = n;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (begin[middle + 1] <= position)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Masked targets at laid positions [from, to), to <= tokens. */
static int64_t masked(const fx_sampler *sampler, const epoch_table *table, int64_t from, int64_t to) {
  int64_t n = sampler->documents.count;
  if (sampler->options.packing == FX_PACKING_NONE) return from < to && to == sampler->documents.tokens;
  return ends_until(table->begin, n, to) - ends_until(table->begin, n, from);
}

/* Cut positions [*from, *to) of the sample visited at `ordinal`. */
static const epoch_table *locate(fx_sampler *sampler, int64_t ordinal, int64_t *from, int64_t *to) {
  FX_ASSERT(ordinal >= 0);
  const epoch_table *table = table_of(sampler, ordinal / sampler->samples);
  *from = table->visit[ordinal % sampler->samples] * sampler->options.seq_length;
  *to = fx_min_i64(*from + sampler->options.seq_length, sampler->documents.tokens);
  return table;
}

static int64_t count_valid(const fx_sampler *sampler, const epoch_table *table, int64_t from, int64_t to) {
  int64_t tokens = sampler->documents.tokens;
  int64_t a = from + table->rotation, b = to + table->rotation;
  int64_t wrapped = fx_max_i64(b - tokens, 0) - fx_max_i64(a - tokens, 0);
  int64_t hidden = masked(sampler, table, fx_min_i64(a, tokens), fx_min_i64(b, tokens));
  if (wrapped) hidden += masked(sampler, table, b - tokens - wrapped, b - tokens);
  return to - from - hidden;
}

int64_t fx_sampler_valid(fx_sampler *sampler, int64_t ordinal) {
  int64_t from, to;
  pthread_mutex_lock(&sampler->lock);
  const epoch_table *table = locate(sampler, ordinal, &from, &to);
  int64_t valid = count_valid(sampler, table, from, to);
  pthread_mutex_unlock(&sampler->lock);
  return valid;
}

/* Positions from 0 over [start, end) of the sample, which is one document there. */
static void write_structure(const fx_sample_view *out, int64_t start, int64_t end) {
  for (int64_t t = start; t < end; t++) {
    out->positions[t] = (int32_t)(t - start);
    out->doc_start[t] = (int32_t)start;
    out->doc_end[t] = (int32_t)end;
  }
}

/* Tokens and targets of [at, at + take) of the k-th document, to positions t and on. */
static void write_piece(const fx_sampler *sampler, const epoch_table *table, int64_t k, int64_t at,
                        int64_t take, int64_t t, const fx_sample_view *out) {
  const fx_documents *documents = &sampler->documents;
  fx_span span = documents->spans[table->order[k]];
  bool ends = at + take == span.length;
  fx_corpus_read(documents->corpus, span.offset + at, take, out->tokens + t);
  fx_corpus_read(documents->corpus, span.offset + at + 1, ends ? take - 1 : take, out->targets + t);
  if (!ends) return;
  out->targets[t + take - 1] = -1;
  if (sampler->options.packing == FX_PACKING_NONE && k + 1 < documents->count)
    fx_corpus_read(documents->corpus, documents->spans[table->order[k + 1]].offset, 1,
                   out->targets + t + take - 1);
}

int64_t fx_sampler_sample(fx_sampler *sampler, int64_t ordinal, const fx_sample_view *out) {
  int64_t from, to, seq_length = sampler->options.seq_length, n = sampler->documents.count;
  pthread_mutex_lock(&sampler->lock);
  const epoch_table *table = locate(sampler, ordinal, &from, &to);
  int64_t laid = (from + table->rotation) % sampler->documents.tokens, count = to - from;
  int64_t k = ends_until(table->begin, n, laid);
  for (int64_t t = 0; t < count;) {
    int64_t at = laid - table->begin[k];
    int64_t take = fx_min_i64(table->begin[k + 1] - laid, count - t);
    write_piece(sampler, table, k, at, take, t, out);
    if (sampler->options.packing == FX_PACKING_DOCUMENTS) write_structure(out, t, t + take);
    t += take;
    laid += take;
    if (laid == table->begin[k + 1]) k++;
    if (k == n) k = 0, laid = 0;
  }
  int64_t valid = count_valid(sampler, table, from, to);
  pthread_mutex_unlock(&sampler->lock);
  if (sampler->options.packing == FX_PACKING_NONE) write_structure(out, 0, count);
  for (int64_t t = count; t < seq_length; t++) out->tokens[t] = 0, out->targets[t] = -1;
  write_structure(out, count, seq_length);
  return valid;
}
