/* SPDX-License-Identifier: Apache-2.0 */
/* From the text of an expression to a node.
 *
 * C's syntax and precedence over score, h, q, kv, the constants H, T, T_kv, true, false, inf, the functions
 * of the operator table (where, min, max, abs, exp, ...) and whatever names a scope adds; tables are read as
 * name[i], name[i, j] or name[i][j]. `and`, `or` and `not` are words for &&, || and a ! that binds weaker
 * than comparisons. What C accepts and nobody means is refused: a <= b < c, and q & 1 == 0.
 *
 * A failure is FX_EX_NONE with a sentence (FX_ERR_CONFIG) that starts at the place in the user's file and
 * ends with the line and a caret. Any bytes may come in. */
#ifndef FX_ATTENTION_LANG_PARSER_H
#define FX_ATTENTION_LANG_PARSER_H

#include "attention/lang/expr.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_EX_MAX_TEXT = 8192, FX_EX_MAX_DEPTH = 200 };

/* A text and where its first character stands, for messages. Lines of the text after the first one start in
 * column 1: a text of several lines carries its indentation. */
typedef struct fx_ex_text {
  const char *text; /* borrowed; NUL-terminated */
  const char *name; /* of the file, or what else stands for the place; NULL: messages carry no place */
  int32_t line;     /* from 1; 0: the name alone is the place (a command line) */
  int32_t column;   /* from 1 */
  bool quoted;      /* the place is that of a quote before the text */
} fx_ex_text;

/* What a name stands for: a node, or a buffer (node is FX_EX_NONE). */
typedef struct fx_ex_symbol {
  fx_ex node;
  int32_t buffer;
} fx_ex_symbol;

/* Names beyond the language's own. All functions may be NULL. */
typedef struct fx_ex_scope {
  void *self;
  /* False: no such name, or (with *failed set and a sentence that carries its place) one that cannot be used.
   */
  bool (*find)(void *self, const char *name, fx_ex_symbol *symbol, bool *failed);
  const char *(*name_at)(void *self, int32_t i);  /* all names, NULL at the end: which one was meant */
  void (*warn)(void *self, const char *sentence); /* a text that is legal and looks like a mistake */
  bool no_variables;                              /* score, h, q, kv are unknown here: shapes, tables */
} fx_ex_scope;

/* The node; scope NULL: the names are those that the pool declares. */
fx_ex fx_ex_parse(fx_ex_pool *pool, const fx_ex_text *text, const fx_ex_scope *scope);

/* Puts the place of text->text[at] before the recorded sentence and the line with a caret behind it. Returns
 * `status`. */
fx_status fx_ex_locate(fx_status status, const fx_ex_text *text, size_t at);

#ifdef __cplusplus
}
#endif
#endif
