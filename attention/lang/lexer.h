/* SPDX-License-Identifier: Apache-2.0 */
/* From the text of an expression to tokens. Knows spelling only; `#` begins a comment that ends with its
 * line. Private to attention/lang. */
#ifndef FX_ATTENTION_LANG_LEXER_H
#define FX_ATTENTION_LANG_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FX_TOKEN_NAME_BYTES = 32 };

typedef enum fx_token_kind {
  FX_TOKEN_END,
  FX_TOKEN_BAD, /* `problem` says what is wrong with it */
  FX_TOKEN_NAME,
  FX_TOKEN_INT,
  FX_TOKEN_FLOAT,
  FX_TOKEN_SIGN /* `sign` */
} fx_token_kind;

typedef struct fx_token {
  fx_token_kind kind;
  size_t at, length; /* in the text */
  char name[FX_TOKEN_NAME_BYTES];
  const char *sign; /* one of the lexer's own strings: "<=", "(", ... */
  int32_t i;
  bool only_negative; /* the int is 2147483648, which exists with a minus only; i is INT32_MIN */
  float f;
  const char *problem;
} fx_token;

/* The token that begins at or after text[at]. The next one begins at token->at + token->length. */
void fx_lex(const char *text, size_t length, size_t at, fx_token *token);

#endif
