/* SPDX-License-Identifier: Apache-2.0 */
/* Precedence climbing over one token of lookahead. The first failure is recorded, located and final: every
 * function then returns a value without a node. */
#include "attention/lang/parser.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "attention/lang/lexer.h"
#include "dynamo_rt/base/nearest.h"

typedef struct parser {
  fx_ex_pool *pool;
  const fx_ex_text *text;
  const fx_ex_scope *scope;
  size_t length;
  fx_token token; /* the next one */
  int depth;
  bool failed;
} parser;

typedef struct value {
  fx_ex node;
  size_t at;       /* where it begins */
  bool comparison; /* a < b without parentheses around it */
  bool divided;    /* holds an int / int that nothing has made explicit */
  size_t divided_at;
} value;

static const value g_nothing = {FX_EX_NONE, 0, false, false, 0};

/* ---- failures ---- */

fx_status fx_ex_locate(fx_status status, const fx_ex_text *text, size_t at) {
  size_t start = 0, line = 0, column;
  for (size_t i = 0; i < at; i++)
    if (text->text[i] == '\n') start = i + 1, line++;
  column = at - start + 1;
  if (text->name && text->line > 0)
    fx_error_prefix(status, "%s:%d:%zu", text->name, text->line + (int)line,
                    column + (line ? 0 : (size_t)text->column - 1 + text->quoted));
  else if (text->name)
    fx_error_prefix(status, "%s", text->name);
  return fx_error_excerpt(status, text->text + start, strcspn(text->text + start, "\n"), column);
}

/* Places the recorded sentence at `at`. */
static value fail_here(parser *p, size_t at) {
  if (!p->failed) fx_ex_locate(FX_ERR_CONFIG, p->text, at);
  p->failed = true;
  return g_nothing;
}

static value fail(parser *p, size_t at, const char *format, ...) __attribute__((format(printf, 3, 4)));
static value fail(parser *p, size_t at, const char *format, ...) {
  char sentence[512];
  va_list args;
  if (p->failed) return g_nothing;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  fx_error(FX_ERR_CONFIG, "%s", sentence);
  return fail_here(p, at);
}

/* What the next token is, for "expected ..., got ...". */
static const char *describe(const parser *p, char text[64]) {
  if (p->token.kind == FX_TOKEN_END) return "the end";
  int length = p->token.length < 40 ? (int)p->token.length : 40;
  snprintf(text, 64, "\"%.*s\"", length, p->text->text + p->token.at);
  return text;
}

static value expected(parser *p, const char *what) {
  char text[64];
  if (p->token.kind == FX_TOKEN_BAD) return fail(p, p->token.at, "%s", p->token.problem);
  return fail(p, p->token.at, "expected %s, got %s", what, describe(p, text));
}

/* ---- tokens ---- */

static void advance(parser *p) {
  fx_lex(p->text->text, p->length, p->token.at + p->token.length, &p->token);
}

static bool at_sign(const parser *p, const char *sign) {
  return p->token.kind == FX_TOKEN_SIGN && strcmp(p->token.sign, sign) == 0;
}

static bool at_word(const parser *p, const char *word) {
  return p->token.kind == FX_TOKEN_NAME && strcmp(p->token.name, word) == 0;
}

static bool take(parser *p, const char *sign) {
  if (!at_sign(p, sign)) return false;
  advance(p);
  return true;
}

/* ---- values ---- */

/* A node that may have failed in the pool: its sentence is placed at `at`. */
static value made(parser *p, fx_ex node, size_t at) {
  if (node == FX_EX_NONE) return fail_here(p, at);
  return (value){.node = node, .at = at};
}

static fx_ex_type type_of(const parser *p, value v) {
  return (fx_ex_type)fx_ex_get(p->pool, v.node)->type;
}

/* An int that becomes a float without being told to, after a division that dropped its rest. */
static void check_divided(parser *p, value v) {
  if (p->failed || !v.divided || !p->scope || !p->scope->warn || type_of(p, v) != FX_EX_INT) return;
  fx_error(FX_OK,
           "this / divides ints and rounds down, and its result becomes a float only afterwards; write "
           "float(...) around one side, or around the division if that is meant");
  fx_ex_locate(FX_OK, p->text, v.divided_at);
  p->scope->warn(p->scope->self, fx_error_text());
  fx_error_clear();
}

static value parse_expression(parser *p);

/* ---- functions ---- */

static const fx_ex_op g_functions[] = {FX_EX_ABS,     FX_EX_MIN,   FX_EX_MAX,    FX_EX_SELECT,
                                       FX_EX_EXP,     FX_EX_LOG,   FX_EX_TANH,   FX_EX_SQRT,
                                       FX_EX_SIGMOID, FX_EX_FLOOR, FX_EX_TO_INT, FX_EX_TO_FLOAT};
enum { NUM_FUNCTIONS = sizeof g_functions / sizeof g_functions[0] };

/* FX_EX_CONST: no function. */
static fx_ex_op function_of(const char *name) {
  for (int i = 0; i < NUM_FUNCTIONS; i++)
    if (strcmp(fx_ex_op_spelling(g_functions[i]), name) == 0) return g_functions[i];
  return FX_EX_CONST;
}

static fx_ex call_one(parser *p, fx_ex_op op, value a) {
  fx_ex_type type = type_of(p, a);
  if (op == FX_EX_TO_FLOAT) return fx_ex_convert(p->pool, a.node, FX_EX_FLOAT);
  if (op == FX_EX_TO_INT && type != FX_EX_FLOAT) return fx_ex_convert(p->pool, a.node, FX_EX_INT);
  if (op != FX_EX_ABS && op != FX_EX_TO_INT && op != FX_EX_FLOOR) check_divided(p, a);
  return fx_ex_unary(p->pool, op, a.node);
}

/* The two sides of something meet in a float. */
static void check_meeting(parser *p, value a, value b) {
  if (p->failed) return;
  if (type_of(p, a) == FX_EX_FLOAT) check_divided(p, b);
  if (type_of(p, b) == FX_EX_FLOAT) check_divided(p, a);
}

static value parse_call(parser *p, fx_ex_op op, const char *name, size_t at) {
  int wants = op == FX_EX_SELECT ? 3 : op == FX_EX_MIN || op == FX_EX_MAX ? 2 : 1, count = 0;
  value arg[3] = {g_nothing, g_nothing, g_nothing};
  advance(p); /* ( */
  bool empty = at_sign(p, ")");
  while (!empty && !p->failed) {
    value next = parse_expression(p);
    if (p->failed) return g_nothing;
    if (count < 3 && count < wants) {
      arg[count++] = next;
    } else if (op == FX_EX_MIN || op == FX_EX_MAX) {
      check_meeting(p, arg[0], arg[1]);
      arg[0] = made(p, fx_ex_binary(p->pool, op, arg[0].node, arg[1].node), at);
      arg[1] = next;
    } else {
      return fail(p, next.at, "%s takes %d argument%s, here is one more", name, wants, wants == 1 ? "" : "s");
    }
    if (!take(p, ",")) break;
  }
  if (p->failed) return g_nothing;
  if (!at_sign(p, ")")) return expected(p, "a comma or )");
  if (count < wants)
    return fail(p, p->token.at, "%s takes %d argument%s, got %d", name, wants, wants == 1 ? "" : "s", count);
  advance(p);
  if (wants == 1) return made(p, call_one(p, op, arg[0]), at);
  check_meeting(p, arg[wants - 2], arg[wants - 1]);
  if (wants == 3) return made(p, fx_ex_select(p->pool, arg[0].node, arg[1].node, arg[2].node), at);
  return made(p, fx_ex_binary(p->pool, op, arg[0].node, arg[1].node), at);
}

/* ---- names ---- */

static const char *const g_words[] = {"H", "T", "T_kv", "true", "false", "inf", "and", "or", "not"};
enum { NUM_WORDS = sizeof g_words / sizeof g_words[0] };

static bool find_word(const parser *p, const char *name, fx_ex *node) {
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(p->pool);
  if (strcmp(name, "H") == 0)
    *node = fx_ex_int(p->pool, ranges->H);
  else if (strcmp(name, "T") == 0)
    *node = fx_ex_int(p->pool, ranges->T);
  else if (strcmp(name, "T_kv") == 0)
    *node = fx_ex_int(p->pool, ranges->T_kv);
  else if (strcmp(name, "true") == 0)
    *node = fx_ex_bool(p->pool, true);
  else if (strcmp(name, "false") == 0)
    *node = fx_ex_bool(p->pool, false);
  else if (strcmp(name, "inf") == 0)
    *node = fx_ex_float(p->pool, INFINITY);
  else
    return false;
  return true;
}

static bool find_variable(const parser *p, const char *name, fx_ex *node) {
  for (int i = 0; i < FX_EX_VAR_COUNT && !(p->scope && p->scope->no_variables); i++)
    if (strcmp(name, fx_ex_var_name((fx_ex_var)i)) == 0) {
      *node = fx_ex_variable(p->pool, (fx_ex_var)i);
      return true;
    }
  return false;
}

static bool find_declared(const parser *p, const char *name, fx_ex_symbol *symbol) {
  for (int i = 0; i < fx_ex_num_params(p->pool); i++)
    if (strcmp(fx_ex_param_at(p->pool, i)->name, name) == 0) {
      symbol->node = fx_ex_parameter(p->pool, i);
      return true;
    }
  for (int i = 0; i < fx_ex_num_buffers(p->pool); i++)
    if (strcmp(fx_ex_buffer_at(p->pool, i)->name, name) == 0) {
      symbol->buffer = i;
      return true;
    }
  return false;
}

static void nearer(const char *name, const char *candidate, const char **best, int *distance) {
  int d = fx_name_distance(name, candidate);
  if (d >= *distance) return;
  *distance = d;
  *best = candidate;
}

static value unknown_name(parser *p, const char *name, size_t at) {
  const char *best = "q";
  int distance = 1 << 20;
  bool variables = !(p->scope && p->scope->no_variables);
  if (variables && strcmp(name, "b") == 0)
    return fail(p, at,
                "b cannot be named: the sample exists only as the implicit first index of inputs that "
                "differ by sample; write name[q], not name[b, q]");
  if (strcmp(name, "if") == 0 || strcmp(name, "else") == 0)
    return fail(p, at, "there is no if; write condition ? a : b, or where(condition, a, b)");
  if (!variables)
    for (int i = 0; i < FX_EX_VAR_COUNT; i++)
      if (strcmp(name, fx_ex_var_name((fx_ex_var)i)) == 0)
        return fail(p, at, "%s is not known here: this is computed once, for all pairs of query and key",
                    name);
  for (int i = 0; variables && i < FX_EX_VAR_COUNT; i++)
    nearer(name, fx_ex_var_name((fx_ex_var)i), &best, &distance);
  for (int i = 0; p->scope && p->scope->name_at && p->scope->name_at(p->scope->self, i); i++)
    nearer(name, p->scope->name_at(p->scope->self, i), &best, &distance);
  if (!p->scope) {
    for (int i = 0; i < fx_ex_num_params(p->pool); i++)
      nearer(name, fx_ex_param_at(p->pool, i)->name, &best, &distance);
    for (int i = 0; i < fx_ex_num_buffers(p->pool); i++)
      nearer(name, fx_ex_buffer_at(p->pool, i)->name, &best, &distance);
  }
  for (int i = 0; i < NUM_WORDS; i++) nearer(name, g_words[i], &best, &distance);
  for (int i = 0; i < NUM_FUNCTIONS; i++) nearer(name, fx_ex_op_spelling(g_functions[i]), &best, &distance);
  return fail(p, at, "the name \"%s\" is not known here; the nearest is %s", name, best);
}

/* name[i, j] or name[i][j] */
static value parse_load(parser *p, int32_t buffer, const char *name, size_t at) {
  fx_ex index[3] = {FX_EX_NONE, FX_EX_NONE, FX_EX_NONE};
  int ndim = fx_ex_buffer_at(p->pool, buffer)->ndim, count = 0;
  while (at_sign(p, "[")) {
    do {
      advance(p); /* [ or , */
      value next = parse_expression(p);
      if (p->failed) return g_nothing;
      if (type_of(p, next) == FX_EX_FLOAT)
        return fail(p, next.at, "the index of %s is a float; write int(...) to truncate it", name);
      if (count == ndim)
        return fail(p, next.at, "%s takes %d ind%s, here is one more%s", name, ndim,
                    ndim == 1 ? "ex" : "ices",
                    fx_ex_buffer_at(p->pool, buffer)->per_batch ? " (the sample is implicit)" : "");
      index[count++] = next.node;
    } while (at_sign(p, ","));
    if (!take(p, "]")) return expected(p, "a comma or ]");
  }
  if (count == 0)
    return fail(p, at, "%s is a table; read it at an index, for example %s[%s]", name, name,
                ndim == 1   ? "q"
                : ndim == 2 ? "h, q - kv"
                            : "h, q, kv");
  if (count < ndim) return fail(p, p->token.at, "%s takes %d indices, got %d", name, ndim, count);
  return made(p, fx_ex_load(p->pool, buffer, index), at);
}

static value parse_name(parser *p) {
  char name[FX_TOKEN_NAME_BYTES];
  size_t at = p->token.at;
  memcpy(name, p->token.name, sizeof name);
  fx_ex_op function = function_of(name);
  bool to_bool = strcmp(name, "bool") == 0, failed = false;
  fx_ex_symbol symbol = {FX_EX_NONE, -1};
  if (at_word(p, "not"))
    return fail(p, at, "not binds weaker than the operator before it; write (not ...) here, or !");
  if (at_word(p, "and") || at_word(p, "or")) return expected(p, "a value");
  advance(p);
  if (function != FX_EX_CONST && at_sign(p, "(")) return parse_call(p, function, name, at);
  if (to_bool && take(p, "(")) {
    value inner = parse_expression(p);
    if (!p->failed && !take(p, ")")) return expected(p, ")");
    return p->failed ? g_nothing : made(p, fx_ex_convert(p->pool, inner.node, FX_EX_BOOL), at);
  }
  if (function != FX_EX_CONST || to_bool) return fail(p, at, "%s is a function; write %s(...)", name, name);
  bool known = find_word(p, name, &symbol.node) || find_variable(p, name, &symbol.node);
  if (!known && !p->scope) known = find_declared(p, name, &symbol);
  if (!known && p->scope && p->scope->find) known = p->scope->find(p->scope->self, name, &symbol, &failed);
  if (failed) {
    p->failed = true;
    return g_nothing;
  }
  if (!known) return unknown_name(p, name, at);
  if (at_sign(p, "(")) return fail(p, p->token.at, "%s is not a function", name);
  if (symbol.node == FX_EX_NONE && symbol.buffer >= 0) return parse_load(p, symbol.buffer, name, at);
  if (at_sign(p, "[")) return fail(p, p->token.at, "%s is not a table; it takes no index", name);
  return made(p, symbol.node, at);
}

/* ---- operators ---- */

static value parse_primary(parser *p) {
  size_t at = p->token.at;
  fx_token token = p->token;
  if (token.kind == FX_TOKEN_NAME) return parse_name(p);
  if (token.kind == FX_TOKEN_INT || token.kind == FX_TOKEN_FLOAT) {
    if (token.only_negative)
      return fail(p, at,
                  "the number does not fit 32 bits; ints end at 2147483647, write 2147483648.0 for a float");
    advance(p);
    return made(p, token.kind == FX_TOKEN_INT ? fx_ex_int(p->pool, token.i) : fx_ex_float(p->pool, token.f),
                at);
  }
  if (!take(p, "(")) return expected(p, "a value");
  value inner = parse_expression(p);
  if (p->failed) return g_nothing;
  if (!take(p, ")")) return expected(p, "an operator or )");
  inner.at = at;
  inner.comparison = false;
  return inner;
}

static bool enter(parser *p) {
  if (++p->depth > FX_EX_MAX_DEPTH)
    fail(p, p->token.at, "the expression is nested deeper than %d levels; simplify it", FX_EX_MAX_DEPTH);
  return !p->failed;
}

static value parse_unary(parser *p) {
  size_t at = p->token.at;
  value result = g_nothing;
  if (!enter(p)) return g_nothing;
  if (take(p, "-")) {
    if (p->token.kind == FX_TOKEN_INT && p->token.only_negative) {
      advance(p);
      result = made(p, fx_ex_int(p->pool, INT32_MIN), at);
    } else {
      value inner = parse_unary(p);
      if (!p->failed) result = made(p, fx_ex_unary(p->pool, FX_EX_NEG, inner.node), at);
      result.divided = inner.divided;
      result.divided_at = inner.divided_at;
    }
  } else if (take(p, "+")) {
    result = parse_unary(p);
  } else if (at_sign(p, "!") || at_sign(p, "~")) {
    fx_ex_op op = at_sign(p, "!") ? FX_EX_NOT : FX_EX_BIT_NOT;
    advance(p);
    value inner = parse_unary(p);
    if (!p->failed) result = made(p, fx_ex_unary(p->pool, op, inner.node), at);
  } else {
    result = parse_primary(p);
  }
  p->depth--;
  return result;
}

enum { OR = 1, AND, BIT_OR, BIT_XOR, BIT_AND, COMPARE, SHIFT, SUM, PRODUCT };

static const struct {
  const char *sign;
  int level;
  uint8_t op;
  bool swapped; /* a > b is b < a */
} g_binary[] = {
    {"||", OR, FX_EX_OR, false},          {"or", OR, FX_EX_OR, false},
    {"&&", AND, FX_EX_AND, false},        {"and", AND, FX_EX_AND, false},
    {"|", BIT_OR, FX_EX_BIT_OR, false},   {"^", BIT_XOR, FX_EX_BIT_XOR, false},
    {"&", BIT_AND, FX_EX_BIT_AND, false}, {"<", COMPARE, FX_EX_LT, false},
    {"<=", COMPARE, FX_EX_LE, false},     {">", COMPARE, FX_EX_LT, true},
    {">=", COMPARE, FX_EX_LE, true},      {"==", COMPARE, FX_EX_EQ, false},
    {"!=", COMPARE, FX_EX_NE, false},     {"<<", SHIFT, FX_EX_SHL, false},
    {">>", SHIFT, FX_EX_SHR, false},      {"+", SUM, FX_EX_ADD, false},
    {"-", SUM, FX_EX_SUB, false},         {"*", PRODUCT, FX_EX_MUL, false},
    {"/", PRODUCT, FX_EX_DIV, false},     {"%", PRODUCT, FX_EX_MOD, false},
};
enum { NUM_BINARY = sizeof g_binary / sizeof g_binary[0] };

/* Row of the operator that comes next, -1 when none does. */
static int next_operator(const parser *p) {
  for (int i = 0; i < NUM_BINARY; i++)
    if (at_sign(p, g_binary[i].sign) || at_word(p, g_binary[i].sign)) return i;
  return -1;
}

static value apply(parser *p, int row, size_t at, value a, value b) {
  fx_ex_op op = (fx_ex_op)g_binary[row].op;
  int level = g_binary[row].level;
  fx_ex_type ta = type_of(p, a), tb = type_of(p, b);
  if (level >= BIT_OR && level <= BIT_AND && (a.comparison || b.comparison) && ta != tb)
    return fail(p, at,
                "a comparison binds tighter than %s, as in C; put parentheses around what is compared, "
                "for example (q & 1) == 0",
                g_binary[row].sign);
  check_meeting(p, a, b);
  fx_ex node = g_binary[row].swapped ? fx_ex_binary(p->pool, op, b.node, a.node)
                                     : fx_ex_binary(p->pool, op, a.node, b.node);
  value result = made(p, node, at);
  result.at = a.at;
  result.comparison = level == COMPARE;
  bool ints = ta != FX_EX_FLOAT && tb != FX_EX_FLOAT;
  if (ints && op == FX_EX_DIV) {
    result.divided = true;
    result.divided_at = at;
  } else if (ints && level >= SUM && op != FX_EX_MOD) {
    result.divided = a.divided || b.divided;
    result.divided_at = a.divided ? a.divided_at : b.divided_at;
  }
  return result;
}

/* Operators of at least this level. */
static value parse_binary(parser *p, int least) {
  value left;
  if (!enter(p)) return g_nothing;
  if (at_word(p, "not") && least <= BIT_OR) {
    size_t at = p->token.at;
    advance(p);
    value inner = parse_binary(p, BIT_OR);
    left = p->failed ? g_nothing : made(p, fx_ex_unary(p->pool, FX_EX_NOT, inner.node), at);
  } else {
    left = parse_unary(p);
  }
  for (int row; !p->failed && (row = next_operator(p)) >= 0 && g_binary[row].level >= least;) {
    int level = g_binary[row].level;
    size_t at = p->token.at;
    if (level == COMPARE && left.comparison) {
      left = fail(p, at, "comparisons do not chain; write a <= b && b < c in the place of a <= b < c");
      break;
    }
    advance(p);
    value right = parse_binary(p, level + 1);
    if (!p->failed) left = apply(p, row, at, left, right);
  }
  p->depth--;
  return p->failed ? g_nothing : left;
}

static value parse_expression(parser *p) {
  if (!enter(p)) return g_nothing;
  value condition = parse_binary(p, OR), result = condition;
  if (!p->failed && at_word(p, "if")) unknown_name(p, "if", p->token.at);
  if (!p->failed && at_sign(p, "?")) {
    size_t at = p->token.at;
    advance(p);
    value a = parse_expression(p);
    if (!p->failed && !take(p, ":")) expected(p, "the : of condition ? a : b");
    value b = p->failed ? g_nothing : parse_expression(p);
    if (!p->failed) {
      check_meeting(p, a, b);
      result = made(p, fx_ex_select(p->pool, condition.node, a.node, b.node), at);
      result.at = condition.at;
      result.divided = a.divided || b.divided;
      result.divided_at = a.divided ? a.divided_at : b.divided_at;
    }
  }
  p->depth--;
  return p->failed ? g_nothing : result;
}

fx_ex fx_ex_parse(fx_ex_pool *pool, const fx_ex_text *text, const fx_ex_scope *scope) {
  parser p = {.pool = pool, .text = text, .scope = scope, .length = strlen(text->text)};
  if (p.length > FX_EX_MAX_TEXT) {
    fail(&p, 0, "the expression has %zu characters, expected at most %d", p.length, FX_EX_MAX_TEXT);
    return FX_EX_NONE;
  }
  fx_lex(text->text, p.length, 0, &p.token);
  if (p.token.kind == FX_TOKEN_END) {
    fail(&p, p.token.at, "expected an expression, got nothing");
    return FX_EX_NONE;
  }
  value result = parse_expression(&p);
  if (!p.failed && p.token.kind != FX_TOKEN_END) expected(&p, "an operator or the end");
  return p.failed ? FX_EX_NONE : result.node;
}
