/* SPDX-License-Identifier: Apache-2.0 */
/* A corpus: documents as spans of one store of tokens, in an order that is the same on every rank.
 *
 * The store is one array of the narrowest type that holds the vocabulary (1, 2 or 4 bytes a token), owned by
 * the corpus and immutable once loaded: any number of threads may read it. Offsets and lengths are int64
 * tokens. Documents of fewer than 2 tokens carry no target; they are left out and counted. */
#ifndef FX_DATA_CORPUS_H
#define FX_DATA_CORPUS_H

#include <stdint.h>

#include "data/paths.h"
#include "data/tokenizer.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/log.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_corpus fx_corpus;

typedef struct fx_corpus_options {
  const char *const *patterns; /* [n_patterns], see data/paths.h */
  int n_patterns;
  fx_text_format format;         /* of patterns without a prefix */
  const fx_tokenizer *tokenizer; /* used during the call only */
  const fx_log *log;             /* warnings about what was left out; NULL is silent */
} fx_corpus_options;

/* A piece of the store, in tokens. */
typedef struct fx_span {
  int64_t offset, length;
} fx_span;

typedef struct fx_corpus_stats {
  int64_t files, bytes;      /* read */
  int64_t duplicate_files;   /* matched twice, read once */
  int64_t documents, tokens; /* kept */
  int64_t short_documents;   /* left out: fewer than 2 tokens (empty lines and files included) */
} fx_corpus_stats;

/* Reads every file of the patterns and tokenizes it. *out is owned by the caller. Errors name the file (and
 * the line or byte offset) and say what to do. FX_ERR_DATA: whatever fx_paths_expand reports, an unreadable
 * file, a named file that is empty, a binary file (a NUL byte in the first 64 KiB), a bad JSON line, a line
 * without a string "text", no document of 2 tokens at all. FX_ERR_MEMORY. */
fx_status fx_corpus_load(const fx_corpus_options *options, fx_corpus **out);

/* A corpus from tokens in memory, for tests and benchmarks: tokens [sum of lengths] int32 in [0, vocab_size),
 * lengths [documents], each >= 1 and kept whatever its length. Both are copied. FX_ERR_DATA: a length below
 * 1, a token outside the vocabulary, no document. */
fx_status fx_corpus_from_tokens(const int32_t *tokens, const int64_t *lengths, int64_t documents,
                                int32_t vocab_size, fx_corpus **out);
void fx_corpus_destroy(fx_corpus *corpus);

int64_t fx_corpus_documents(const fx_corpus *corpus);
int64_t fx_corpus_tokens(const fx_corpus *corpus);
int32_t fx_corpus_vocab_size(const fx_corpus *corpus);
fx_corpus_stats fx_corpus_get_stats(const fx_corpus *corpus);
/* index in [0, documents). Spans lie end to end in the store, in document order. */
fx_span fx_corpus_document(const fx_corpus *corpus, int64_t index);
/* Copies tokens [offset, offset + count) of the store to out [count] int32. */
void fx_corpus_read(const fx_corpus *corpus, int64_t offset, int64_t count, int32_t *out);
/* Content hash of tokens and document lengths: equal on every rank, and across runs on the same text. Reads
 * the whole store. */
fx_hash128 fx_corpus_hash(const fx_corpus *corpus);

/* A list of documents (or pieces of them) of a corpus: what a split hands to a sampler. The corpus is
 * borrowed and must outlive it. */
typedef struct fx_documents {
  const fx_corpus *corpus;
  fx_span *spans; /* [count], owned */
  int64_t count;
  int64_t tokens; /* sum of lengths */
} fx_documents;

/* Every document in order. *out is overwritten; release with fini. FX_ERR_MEMORY. */
fx_status fx_documents_all(const fx_corpus *corpus, fx_documents *out);
void fx_documents_fini(fx_documents *documents);

#ifdef __cplusplus
}
#endif
#endif
