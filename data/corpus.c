/* SPDX-License-Identifier: Apache-2.0 */
#include "data/corpus.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/reader.h"
#include "dynamo_rt/base/memory.h"

/* Bytes encoded at a time by a streaming tokenizer: the scratch stays in cache. */
enum { PIECE = 64 << 10, MIN_TOKENS = 2 };

struct fx_corpus {
  void *store; /* [tokens] of `width` bytes each */
  int64_t tokens, capacity;
  int width;
  int32_t vocab_size;
  int64_t *ends; /* [documents]: document i is [ends[i-1], ends[i]) */
  int64_t documents, ends_capacity;
  fx_corpus_stats stats;
};

/* A corpus being read. */
typedef struct builder {
  fx_corpus *corpus;
  const fx_tokenizer *tokenizer;
  int32_t *scratch; /* [scratch_capacity] */
  int64_t scratch_capacity;
  char *text; /* the open document, when the tokenizer needs it whole */
  int64_t text_bytes, text_capacity;
  char *first_short; /* where the first document that was left out lies */
} builder;

static int width_of(int32_t vocab_size) {
  return vocab_size <= 1 << 8 ? 1 : vocab_size <= 1 << 16 ? 2 : 4;
}

/* Grows by a quarter and never touches what it adds: the pages of a store that was reserved for more than it
 * came to hold are never there. */
static fx_status reserve(fx_corpus *corpus, int64_t need) {
  if (need <= corpus->capacity) return FX_OK;
  int64_t wanted = fx_max_i64(need, corpus->capacity + corpus->capacity / 4);
  void *store = realloc(corpus->store, (size_t)wanted * (size_t)corpus->width);
  if (!store)
    return fx_error(
        FX_ERR_MEMORY,
        "out of host memory for a corpus of %lld tokens (%.1f GiB); use fewer files, or a machine "
        "with more memory",
        (long long)wanted, (double)wanted * corpus->width / (double)(1 << 30));
  corpus->store = store;
  corpus->capacity = wanted;
  return FX_OK;
}

static fx_status push_tokens(fx_corpus *corpus, const int32_t *tokens, int64_t count) {
  FX_TRY(reserve(corpus, corpus->tokens + count));
  if (corpus->width == 1) {
    uint8_t *to = (uint8_t *)corpus->store + corpus->tokens;
    for (int64_t i = 0; i < count; i++) to[i] = (uint8_t)tokens[i];
  } else if (corpus->width == 2) {
    uint16_t *to = (uint16_t *)corpus->store + corpus->tokens;
    for (int64_t i = 0; i < count; i++) to[i] = (uint16_t)tokens[i];
  } else {
    memcpy((int32_t *)corpus->store + corpus->tokens, tokens, (size_t)count * sizeof *tokens);
  }
  corpus->tokens += count;
  return FX_OK;
}

static fx_status push_end(fx_corpus *corpus) {
  FX_TRY(fx_grow(&corpus->ends, &corpus->ends_capacity, corpus->documents + 1, sizeof *corpus->ends));
  corpus->ends[corpus->documents++] = corpus->tokens;
  return FX_OK;
}

static fx_status encode_piece(builder *b, const char *text, size_t bytes) {
  int64_t most = fx_tokenizer_max_tokens(b->tokenizer, bytes), count = 0;
  FX_TRY(fx_grow(&b->scratch, &b->scratch_capacity, most, sizeof *b->scratch));
  FX_TRY(fx_tokenizer_encode(b->tokenizer, text, bytes, b->scratch, b->scratch_capacity, &count));
  return push_tokens(b->corpus, b->scratch, count);
}

static fx_status builder_append(void *ctx, const char *text, size_t bytes) {
  builder *b = ctx;
  if (fx_tokenizer_is_streaming(b->tokenizer)) {
    for (size_t at = 0; at < bytes; at += PIECE)
      FX_TRY(encode_piece(b, text + at, bytes - at < PIECE ? bytes - at : PIECE));
    return FX_OK;
  }
  FX_TRY(fx_grow(&b->text, &b->text_capacity, b->text_bytes + (int64_t)bytes, 1));
  memcpy(b->text + b->text_bytes, text, bytes);
  b->text_bytes += (int64_t)bytes;
  return FX_OK;
}

static fx_status builder_end(void *ctx, const char *path, int64_t line) {
  builder *b = ctx;
  fx_corpus *corpus = b->corpus;
  if (b->text_bytes) FX_TRY(encode_piece(b, b->text, (size_t)b->text_bytes));
  b->text_bytes = 0;
  int64_t begin = corpus->documents ? corpus->ends[corpus->documents - 1] : 0;
  int32_t end_token = fx_tokenizer_end_of_document(b->tokenizer);
  if (end_token >= 0 && corpus->tokens > begin) FX_TRY(push_tokens(corpus, &end_token, 1));
  if (corpus->tokens - begin >= MIN_TOKENS) return push_end(corpus);
  corpus->tokens = begin;
  if (corpus->stats.short_documents++ == 0) {
    b->first_short = line ? fx_strfmt("%s:%lld", path, (long long)line) : fx_strdup(path);
    if (!b->first_short) return fx_error(FX_ERR_MEMORY, "out of host memory while reading the corpus");
  }
  return FX_OK;
}

static fx_status read_files(builder *b, const fx_path_list *list) {
  fx_text_sink sink = {builder_append, builder_end, b};
  fx_corpus_stats *stats = &b->corpus->stats;
  for (int64_t i = 0; i < list->count; i++) {
    const fx_path *file = &list->items[i];
    int64_t bytes = 0;
    FX_TRY(fx_reader_read(file, &sink, &bytes));
    if (bytes == 0 && file->named)
      return fx_error(FX_ERR_DATA, "%s is empty; expected text, so leave it out of the corpus or fill it",
                      file->path);
    stats->files++;
    stats->bytes += bytes;
  }
  if (b->corpus->documents == 0)
    return fx_error(FX_ERR_DATA,
                    "the corpus is empty: %lld file%s (first: %s) hold no document of at least %d tokens; "
                    "name files with text",
                    (long long)list->count, list->count == 1 ? "" : "s", list->items[0].path, MIN_TOKENS);
  return FX_OK;
}

static void report(const builder *b, const fx_log *log) {
  fx_corpus_stats stats = fx_corpus_get_stats(b->corpus);
  if (stats.duplicate_files)
    fx_warn(log, "corpus: %lld files are matched more than once; each is read once",
            (long long)stats.duplicate_files);
  if (stats.short_documents)
    fx_warn(log, "corpus: %lld documents of fewer than %d tokens are left out (first: %s)",
            (long long)stats.short_documents, MIN_TOKENS, b->first_short);
}

static fx_status corpus_create(int32_t vocab_size, int64_t tokens, fx_corpus **out) {
  fx_corpus *corpus;
  FX_TRY(fx_calloc(&corpus, 1, sizeof *corpus));
  corpus->vocab_size = vocab_size;
  corpus->width = width_of(vocab_size);
  fx_status status = reserve(corpus, fx_max_i64(tokens, 1));
  if (status != FX_OK) {
    free(corpus);
    return status;
  }
  *out = corpus;
  return FX_OK;
}

static void trim(fx_corpus *corpus) {
  void *store = realloc(corpus->store, (size_t)fx_max_i64(corpus->tokens, 1) * (size_t)corpus->width);
  if (!store) return;
  corpus->store = store;
  corpus->capacity = fx_max_i64(corpus->tokens, 1);
}

fx_status fx_corpus_load(const fx_corpus_options *options, fx_corpus **out) {
  fx_path_list list;
  FX_TRY(fx_paths_expand(options->patterns, options->n_patterns, options->format, &list));
  builder b = {.tokenizer = options->tokenizer};
  fx_status status;
  /* Exact for bytes read whole, a start for everything else. */
  int64_t expected = fx_tokenizer_is_streaming(options->tokenizer) ? list.bytes : list.bytes / 4;
  FX_TRY_GOTO(corpus_create(fx_tokenizer_vocab_size(options->tokenizer), expected, &b.corpus), free_list);
  b.corpus->stats.duplicate_files = list.duplicates;
  FX_TRY_GOTO(read_files(&b, &list), destroy_corpus);
  trim(b.corpus);
  report(&b, options->log);
  *out = b.corpus;
  goto free_list;
destroy_corpus:
  fx_corpus_destroy(b.corpus);
free_list:
  free(b.scratch);
  free(b.text);
  free(b.first_short);
  fx_paths_fini(&list);
  return status;
}

static fx_status copy_documents(fx_corpus *corpus, const int32_t *tokens, const int64_t *lengths,
                                int64_t documents) {
  const int32_t *at = tokens;
  for (int64_t d = 0; d < documents; d++) {
    if (lengths[d] < 1)
      return fx_error(FX_ERR_DATA, "document %lld has length %lld; expected at least 1", (long long)d,
                      (long long)lengths[d]);
    for (int64_t i = 0; i < lengths[d]; i++)
      if (at[i] < 0 || at[i] >= corpus->vocab_size)
        return fx_error(FX_ERR_DATA, "token %lld of document %lld is %d; expected 0 to %d", (long long)i,
                        (long long)d, at[i], corpus->vocab_size - 1);
    FX_TRY(push_tokens(corpus, at, lengths[d]));
    FX_TRY(push_end(corpus));
    at += lengths[d];
  }
  return FX_OK;
}

fx_status fx_corpus_from_tokens(const int32_t *tokens, const int64_t *lengths, int64_t documents,
                                int32_t vocab_size, fx_corpus **out) {
  if (documents < 1) return fx_error(FX_ERR_DATA, "a corpus needs at least one document");
  fx_corpus *corpus;
  FX_TRY(corpus_create(vocab_size, 0, &corpus));
  fx_status status = copy_documents(corpus, tokens, lengths, documents);
  if (status != FX_OK) {
    fx_corpus_destroy(corpus);
    return status;
  }
  *out = corpus;
  return FX_OK;
}

void fx_corpus_destroy(fx_corpus *corpus) {
  if (!corpus) return;
  free(corpus->store);
  free(corpus->ends);
  free(corpus);
}

int64_t fx_corpus_documents(const fx_corpus *corpus) {
  return corpus->documents;
}
int64_t fx_corpus_tokens(const fx_corpus *corpus) {
  return corpus->tokens;
}
int32_t fx_corpus_vocab_size(const fx_corpus *corpus) {
  return corpus->vocab_size;
}

fx_corpus_stats fx_corpus_get_stats(const fx_corpus *corpus) {
  fx_corpus_stats stats = corpus->stats;
  stats.documents = corpus->documents;
  stats.tokens = corpus->tokens;
  return stats;
}

fx_span fx_corpus_document(const fx_corpus *corpus, int64_t index) {
  FX_ASSERT(index >= 0 && index < corpus->documents);
  int64_t begin = index ? corpus->ends[index - 1] : 0;
  return (fx_span){begin, corpus->ends[index] - begin};
}

void fx_corpus_read(const fx_corpus *corpus, int64_t offset, int64_t count, int32_t *out) {
  FX_ASSERT(offset >= 0 && count >= 0 && offset + count <= corpus->tokens);
  if (corpus->width == 1) {
    const uint8_t *from = (const uint8_t *)corpus->store + offset;
    for (int64_t i = 0; i < count; i++) out[i] = from[i];
  } else if (corpus->width == 2) {
    const uint16_t *from = (const uint16_t *)corpus->store + offset;
    for (int64_t i = 0; i < count; i++) out[i] = from[i];
  } else {
    memcpy(out, (const int32_t *)corpus->store + offset, (size_t)count * sizeof *out);
  }
}

fx_hash128 fx_corpus_hash(const fx_corpus *corpus) {
  fx_hash128 parts[2] = {fx_hash128_of(corpus->store, (size_t)corpus->tokens * (size_t)corpus->width),
                         fx_hash128_of(corpus->ends, (size_t)corpus->documents * sizeof *corpus->ends)};
  return fx_hash128_of(parts, sizeof parts);
}

fx_status fx_documents_all(const fx_corpus *corpus, fx_documents *out) {
  fx_documents all = {.corpus = corpus, .count = corpus->documents, .tokens = corpus->tokens};
  *out = (fx_documents){0};
  FX_TRY(fx_calloc(&all.spans, (size_t)all.count, sizeof *all.spans));
  for (int64_t i = 0; i < all.count; i++) all.spans[i] = fx_corpus_document(corpus, i);
  *out = all;
  return FX_OK;
}

void fx_documents_fini(fx_documents *documents) {
  free(documents->spans);
  *documents = (fx_documents){0};
}
