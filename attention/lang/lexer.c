/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/lang/lexer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* By characters, not by locale. */
static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Longer ones first. What other languages write stands here with the advice. */
static const struct {
  const char *sign, *problem;
} g_signs[] = {
    {"**", "there is no power operator; multiply, or write exp(y * log(x))"},
    {"//", "write / here: on ints it already rounds down"},
    {"<<", NULL},
    {">>", NULL},
    {"<=", NULL},
    {">=", NULL},
    {"==", NULL},
    {"!=", NULL},
    {"&&", NULL},
    {"||", NULL},
    {"++", "there is no ++; write + 1"},
    {"+", NULL},
    {"-", NULL},
    {"*", NULL},
    {"/", NULL},
    {"%", NULL},
    {"&", NULL},
    {"|", NULL},
    {"^", NULL},
    {"~", NULL},
    {"!", NULL},
    {"<", NULL},
    {">", NULL},
    {"?", NULL},
    {":", NULL},
    {"(", NULL},
    {")", NULL},
    {"[", NULL},
    {"]", NULL},
    {",", NULL},
    {"=", "nothing can be assigned here; write == to compare"},
};

static void bad(fx_token *token, const char *problem) {
  token->kind = FX_TOKEN_BAD;
  token->problem = problem;
}

static void lex_hex(const char *text, fx_token *token) {
  uint64_t value = 0;
  for (size_t i = 2; i < token->length; i++) {
    char c = text[i];
    int digit = is_digit(c)            ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) {
      bad(token, "a hexadecimal number has digits 0-9 and a-f only");
      return;
    }
    value = value > UINT32_MAX ? value : value * 16 + (uint64_t)digit;
  }
  if (token->length == 2) {
    bad(token, "a hexadecimal number needs digits after 0x");
  } else if (value > UINT32_MAX) {
    bad(token, "the number has more than 32 bits; ints reach from -2147483648 to 2147483647");
  } else {
    token->kind = FX_TOKEN_INT;
    token->i = (int32_t)(uint32_t)value;
  }
}

static void lex_int(const char *text, fx_token *token) {
  int64_t value = 0;
  for (size_t i = 0; i < token->length; i++)
    value = value > INT32_MAX ? value + INT32_MAX : value * 10 + (text[i] - '0');
  if (token->length > 1 && text[0] == '0') {
    bad(token, "a number with a leading 0 would be octal in C; leave the 0 out");
  } else if (value > (int64_t)INT32_MAX + 1) {
    bad(token, "the number does not fit 32 bits; ints end at 2147483647, write 3.0e9 for a float");
  } else {
    token->kind = FX_TOKEN_INT;
    token->only_negative = value > INT32_MAX;
    token->i = (int32_t)(uint32_t)value;
  }
}

static void lex_float(const char *text, fx_token *token) {
  char copy[64], *end;
  if (token->length >= sizeof copy) {
    bad(token, "the number has more than 63 characters; shorten it");
    return;
  }
  memcpy(copy, text, token->length);
  copy[token->length] = '\0';
  token->f = strtof(copy, &end);
  if (*end)
    bad(token, "the number is not complete; write for example 0.5 or 1.0e-3");
  else if (isinf(token->f))
    bad(token, "the number is too large for a float; write inf for infinity");
  else
    token->kind = FX_TOKEN_FLOAT;
}

/* Digits, letters, points, and a sign behind an exponent's e: judged as one. */
static void lex_number(const char *text, size_t length, fx_token *token) {
  bool hex = length > 1 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X'), real = false,
       letters = false;
  size_t n = 0;
  for (; n < length; n++) {
    char c = text[n];
    if (hex && (is_digit(c) || is_letter(c))) continue;
    if (hex) break;
    if (c == 'e' || c == 'E') {
      real = true;
      if (n + 1 < length && (text[n + 1] == '+' || text[n + 1] == '-')) n++;
    } else if (c == '.') {
      real = true;
    } else if (is_letter(c)) {
      letters = true;
    } else if (!is_digit(c)) {
      break;
    }
  }
  token->length = n;
  if (letters)
    bad(token, "a number runs into letters; separate them, or write a * between them");
  else if (hex)
    lex_hex(text, token);
  else if (real)
    lex_float(text, token);
  else
    lex_int(text, token);
}

static void lex_name(const char *text, size_t length, fx_token *token) {
  size_t n = 0;
  while (n < length && (is_letter(text[n]) || is_digit(text[n]))) n++;
  token->length = n;
  if (n >= FX_TOKEN_NAME_BYTES) {
    bad(token, "the name is longer than 31 characters; no name is");
    return;
  }
  memcpy(token->name, text, n);
  token->name[n] = '\0';
  token->kind = FX_TOKEN_NAME;
}

void fx_lex(const char *text, size_t length, size_t at, fx_token *token) {
  while (at < length && (is_space(text[at]) || text[at] == '#'))
    if (text[at] == '#')
      while (at < length && text[at] != '\n') at++;
    else
      at++;
  memset(token, 0, sizeof *token);
  token->at = at;
  if (at == length) return;
  const char *rest = text + at;
  size_t left = length - at;
  if (is_digit(*rest) || (*rest == '.' && left > 1 && is_digit(rest[1]))) {
    lex_number(rest, left, token);
    return;
  }
  if (is_letter(*rest)) {
    lex_name(rest, left, token);
    return;
  }
  for (size_t i = 0; i < sizeof g_signs / sizeof g_signs[0]; i++) {
    size_t n = strlen(g_signs[i].sign);
    if (n > left || memcmp(rest, g_signs[i].sign, n) != 0) continue;
    token->length = n;
    token->kind = FX_TOKEN_SIGN;
    token->sign = g_signs[i].sign;
    if (g_signs[i].problem) bad(token, g_signs[i].problem);
    return;
  }
  token->length = 1;
  bad(token, "this character means nothing in an expression");
}
