/* SPDX-License-Identifier: Apache-2.0 */
#include "data/tokenizer_byte.h"

#include <stdlib.h>

#include "dynamo_rt/base/memory.h"

enum { BYTES = 256 };

static fx_status byte_create(const char *path, void **state, int32_t *vocab_size, int32_t *end_of_document) {
  if (path)
    return fx_error(FX_ERR_CONFIG, "tokenizer \"byte\" takes no vocabulary file, got %s; leave it out", path);
  char *pieces;
  FX_TRY(fx_calloc(&pieces, BYTES, 1));
  for (int i = 0; i < BYTES; i++) pieces[i] = (char)i;
  *state = pieces;
  *vocab_size = BYTES;
  *end_of_document = -1;
  return FX_OK;
}

static void byte_destroy(void *state) {
  free(state);
}

static int64_t byte_max_tokens(const void *state, size_t bytes) {
  (void)state;
  return (int64_t)bytes;
}

static fx_status byte_encode(const void *state, const char *text, size_t bytes, int32_t *tokens,
                             int64_t *count) {
  (void)state;
  for (size_t i = 0; i < bytes; i++) tokens[i] = (unsigned char)text[i];
  *count = (int64_t)bytes;
  return FX_OK;
}

static const char *byte_piece(const void *state, int32_t token, size_t *bytes) {
  *bytes = 1;
  return (const char *)state + token;
}

const fx_tokenizer_kind fx_tokenizer_byte = {.name = "byte",
                                             .streaming = true,
                                             .create = byte_create,
                                             .destroy = byte_destroy,
                                             .max_tokens = byte_max_tokens,
                                             .encode = byte_encode,
                                             .piece = byte_piece};
