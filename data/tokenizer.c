/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_byte.h"
#include "dynamo_rt/base/memory.h"

struct fx_tokenizer {
  const fx_tokenizer_kind *kind;
  void *state;
  int32_t vocab_size, end_of_document;
};

/* A new tokenizer is one row here and its own file. */
static const fx_tokenizer_kind *const kinds[] = {&fx_tokenizer_byte};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

fx_status fx_tokenizer_create(const char *name, const char *path, fx_tokenizer **out) {
  const fx_tokenizer_kind *kind = NULL;
  for (int i = 0; i < KINDS && !kind; i++)
    if (strcmp(kinds[i]->name, name) == 0) kind = kinds[i];
  if (!kind) {
    char known[256] = "";
    for (int i = 0; i < KINDS; i++) {
      if (i) strncat(known, ", ", sizeof known - strlen(known) - 1);
      strncat(known, kinds[i]->name, sizeof known - strlen(known) - 1);
    }
    return fx_error(FX_ERR_CONFIG, "data.tokenizer: no tokenizer is named \"%s\"; expected one of: %s", name,
                    known);
  }
  return fx_tokenizer_create_from(kind, path, out);
}

fx_status fx_tokenizer_create_from(const fx_tokenizer_kind *kind, const char *path, fx_tokenizer **out) {
  fx_tokenizer *tokenizer;
  FX_TRY(fx_calloc(&tokenizer, 1, sizeof *tokenizer));
  tokenizer->kind = kind;
  fx_status status =
      kind->create(path, &tokenizer->state, &tokenizer->vocab_size, &tokenizer->end_of_document);
  if (status != FX_OK) {
    free(tokenizer);
    return status;
  }
  *out = tokenizer;
  return FX_OK;
}

void fx_tokenizer_destroy(fx_tokenizer *tokenizer) {
  if (!tokenizer) return;
  tokenizer->kind->destroy(tokenizer->state);
  free(tokenizer);
}

const char *fx_tokenizer_name(const fx_tokenizer *tokenizer) {
  return tokenizer->kind->name;
}
int32_t fx_tokenizer_vocab_size(const fx_tokenizer *tokenizer) {
  return tokenizer->vocab_size;
}
int32_t fx_tokenizer_end_of_document(const fx_tokenizer *tokenizer) {
  return tokenizer->end_of_document;
}
bool fx_tokenizer_is_streaming(const fx_tokenizer *tokenizer) {
  return tokenizer->kind->streaming;
}
int64_t fx_tokenizer_max_tokens(const fx_tokenizer *tokenizer, size_t bytes) {
  return tokenizer->kind->max_tokens(tokenizer->state, bytes);
}

fx_status fx_tokenizer_encode(const fx_tokenizer *tokenizer, const char *text, size_t bytes, int32_t *tokens,
                              int64_t capacity, int64_t *count) {
  int64_t most = fx_tokenizer_max_tokens(tokenizer, bytes);
  if (capacity < most)
    return fx_error(FX_ERR_SHAPE, "encoding %zu bytes needs room for %lld tokens, got %lld", bytes,
                    (long long)most, (long long)capacity);
  return tokenizer->kind->encode(tokenizer->state, text, bytes, tokens, count);
}

fx_status fx_tokenizer_decode(const fx_tokenizer *tokenizer, const int32_t *tokens, int64_t count,
                              char **text, size_t *bytes) {
  size_t total = 0, piece_bytes;
  for (int64_t i = 0; i < count; i++) {
    if (tokens[i] < 0 || tokens[i] >= tokenizer->vocab_size)
      return fx_error(FX_ERR_DATA,
                      "token %lld is %d, outside the vocabulary of tokenizer \"%s\"; expected 0 to %d",
                      (long long)i, tokens[i], tokenizer->kind->name, tokenizer->vocab_size - 1);
    tokenizer->kind->piece(tokenizer->state, tokens[i], &piece_bytes);
    total += piece_bytes;
  }
  char *buffer;
  FX_TRY(fx_calloc(&buffer, total + 1, 1));
  size_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    const char *piece = tokenizer->kind->piece(tokenizer->state, tokens[i], &piece_bytes);
    memcpy(buffer + at, piece, piece_bytes);
    at += piece_bytes;
  }
  *text = buffer;
  *bytes = total;
  return FX_OK;
}
