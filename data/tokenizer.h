/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers by name, behind one small table of functions. A tokenizer is immutable once created, so any
 * number of threads may share it. `byte` is built in: 256 ids, id = byte value, no end-of-document id. */
#ifndef FX_DATA_TOKENIZER_H
#define FX_DATA_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_tokenizer fx_tokenizer;

/* One kind of tokenizer. `state` is what `create` made (NULL is fine for a stateless kind). */
typedef struct fx_tokenizer_kind {
  const char *name; /* as in `data.tokenizer` */
  /* The encoding of a concatenation is the concatenation of the encodings, for any cut of the bytes: lets
   * readers stream a large file through a small buffer. */
  bool streaming;
  /* path: vocabulary file, NULL when the user gave none. Fills *state, *vocab_size and
   * *end_of_document (-1: none). */
  fx_status (*create)(const char *path, void **state, int32_t *vocab_size, int32_t *end_of_document);
  void (*destroy)(void *state);
  /* Most tokens that `bytes` bytes of text can become. */
  int64_t (*max_tokens)(const void *state, size_t bytes);
  /* tokens has room for max_tokens(bytes); *count is set. */
  fx_status (*encode)(const void *state, const char *text, size_t bytes, int32_t *tokens, int64_t *count);
  /* Bytes of one token's text, borrowed for the life of the tokenizer; token is in [0, vocab_size). */
  const char *(*piece)(const void *state, int32_t token, size_t *bytes);
} fx_tokenizer_kind;

/* name: "byte". path: vocabulary file or NULL, read during the call. *out is owned by the caller.
 * FX_ERR_CONFIG: no such name (the sentence lists the known ones) or a path that this kind does not take. */
fx_status fx_tokenizer_create(const char *name, const char *path, fx_tokenizer **out);
/* The same for a kind that is not in the table, e.g. a program's own; kind is borrowed for the tokenizer's
 * life. */
fx_status fx_tokenizer_create_from(const fx_tokenizer_kind *kind, const char *path, fx_tokenizer **out);
void fx_tokenizer_destroy(fx_tokenizer *tokenizer);

const char *fx_tokenizer_name(const fx_tokenizer *tokenizer);
int32_t fx_tokenizer_vocab_size(const fx_tokenizer *tokenizer);
/* -1 when the tokenizer has none; otherwise corpora append it to every document. */
int32_t fx_tokenizer_end_of_document(const fx_tokenizer *tokenizer);
bool fx_tokenizer_is_streaming(const fx_tokenizer *tokenizer);
int64_t fx_tokenizer_max_tokens(const fx_tokenizer *tokenizer, size_t bytes);

/* text [bytes], borrowed, need not end in NUL and may hold NULs; tokens [capacity] int32, caller-owned;
 * *count tokens were written. FX_ERR_DATA: text the vocabulary cannot express. FX_ERR_SHAPE: capacity is
 * below fx_tokenizer_max_tokens(bytes); nothing was written. */
fx_status fx_tokenizer_encode(const fx_tokenizer *tokenizer, const char *text, size_t bytes, int32_t *tokens,
                              int64_t capacity, int64_t *count);

/* tokens [count] int32, borrowed. *text: malloc'ed by the call, *bytes long plus a final NUL that is not
 * counted (the text itself may hold NULs). FX_ERR_DATA: a token outside [0, vocab_size), named with its
 * index. */
fx_status fx_tokenizer_decode(const fx_tokenizer *tokenizer, const int32_t *tokens, int64_t count,
                              char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
