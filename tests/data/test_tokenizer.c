/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer.h"
#include "tests/harness.h"

static void byte_round_trip(void) {
  fx_tokenizer *tokenizer = NULL;
  if (!CHECK_OK(fx_tokenizer_create("byte", NULL, &tokenizer))) return;
  CHECK_STR(fx_tokenizer_name(tokenizer), "byte");
  CHECK_INT(fx_tokenizer_vocab_size(tokenizer), 256);
  CHECK_INT(fx_tokenizer_end_of_document(tokenizer), -1);
  char text[256];
  int32_t tokens[256];
  int64_t count = 0;
  for (int i = 0; i < 256; i++) text[i] = (char)(i * 7 + 3); /* every byte, NUL and 255 included */
  CHECK_OK(fx_tokenizer_encode(tokenizer, text, 256, tokens, 256, &count));
  CHECK_INT(count, 256);
  for (int i = 0; i < 256; i++) CHECK_INT(tokens[i], (i * 7 + 3) % 256);
  char *back = NULL;
  size_t bytes = 0;
  CHECK_OK(fx_tokenizer_decode(tokenizer, tokens, count, &back, &bytes));
  CHECK_INT(bytes, 256);
  CHECK(back && memcmp(back, text, 256) == 0 && back[256] == 0);
  free(back);
  fx_tokenizer_destroy(tokenizer);
  fx_tokenizer_destroy(NULL);
}

static void errors(void) {
  fx_tokenizer *tokenizer = NULL;
  CHECK_STATUS(fx_tokenizer_create("bytes", NULL, &tokenizer), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "\"bytes\"");
  CHECK_HAS(fx_error_text(), "expected one of: byte");
  CHECK_STATUS(fx_tokenizer_create("byte", "vocab.json", &tokenizer), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "vocab.json");
  CHECK(tokenizer == NULL);
  if (!CHECK_OK(fx_tokenizer_create("byte", NULL, &tokenizer))) return;
  int32_t tokens[4] = {1, 2, 256, 4};
  int64_t count = 99;
  CHECK_STATUS(fx_tokenizer_encode(tokenizer, "abcde", 5, tokens, 4, &count), FX_ERR_SHAPE);
  CHECK_INT(count, 99);
  CHECK_INT(tokens[0], 1);
  char *text = NULL;
  size_t bytes = 0;
  CHECK_STATUS(fx_tokenizer_decode(tokenizer, tokens, 4, &text, &bytes), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "token 2 is 256");
  CHECK_HAS(fx_error_text(), "0 to 255");
  tokens[2] = -1;
  CHECK_STATUS(fx_tokenizer_decode(tokenizer, tokens, 4, &text, &bytes), FX_ERR_DATA);
  CHECK(text == NULL);
  fx_tokenizer_destroy(tokenizer);
}

static const fx_test tests[] = {{"byte: 256 ids there and back", byte_round_trip},
                                {"unknown names and ids outside the vocabulary", errors}};
FX_TEST_MAIN("tokenizer", tests)
