/* SPDX-License-Identifier: Apache-2.0 */
/* The language as text: nodes and back, what is refused and where the caret stands, warnings, the canonical
 * form. */
#include "attention/lang/derive.h"
#include "attention/lang/print.h"
#include "tests/attention/lang_case.h"

/* ---- texts ---- */

/* Equal nodes, and the text that the printer gives. */
static void spellings(void) {
  static const struct {
    const char *text, *same, *printed;
  } rows[] = {
      {"q>=kv", "kv <= q", "kv <= q"},
      {"kv > q", "q < kv", NULL},
      {"h + q * kv", "h + (q * kv)", "h + q * kv"},
      {"q - kv - h", "(q - kv) - h", "q - kv - h"},
      {"q - (kv - h)", "q - (kv - h)", "q - (kv - h)"},
      {"q / kv * h", "(q / kv) * h", NULL},
      {"-q * kv", "(-q) * kv", NULL},
      {"-(q * kv)", "-(q * kv)", "-(q * kv)"},
      {"q << 1 + h", "q << (1 + h)", "q << h + 1"},
      {"q < kv << 1", "q < (kv << 1)", "q < kv << 1"},
      {"q & 3 | kv ^ 1", "(q & 3) | (kv ^ 1)", NULL},
      {"q < kv || h == 0 && q == 3", "q < kv || (h == 0 && q == 3)", NULL},
      {"q < kv or h == 0 and not q == 3", "q < kv || (h == 0 && !(q == 3))", NULL},
      {"!(q < kv)", "kv <= q", "kv <= q"},
      {"!(score < 1.0)", "not score < 1.0", "!(score < 1.0)"},
      {"(q < kv) & (h < 2)", "q < kv && h < 2", "q < kv && h < 2"},
      {"(q < kv) ^ (h < 2)", "(q < kv) ^ (h < 2)", NULL},
      {"q ? kv : h", "where(q != 0, kv, h)", "q != 0 ? kv : h"},
      {"q < 1 ? 2 : q < 3 ? 4 : 5", "where(q < 1, 2, where(q < 3, 4, 5))", "q < 1 ? 2 : q < 3 ? 4 : 5"},
      {"min(q, kv, h)", "min(min(q, kv), h)", NULL},
      {"score * q", "score * float(q)", NULL},
      {"tanh(q)", "tanh(float(q))", "tanh(q)"},
      {"score + 1", "score + 1.0", "score + 1.0"},
      {"bias[h][q]", "bias[h, q]", "bias[h, q]"},
      {"cube[0, 1][q]", "cube[0][1][q]", "cube[0, 1, q]"},
      {"T + H * T_kv", "200", "200"},
      {"-2147483648", "-2147483647 - 1", "-2147483648"},
      {"0xffffffff", "-1", "-1"},
      {".5 + score", "0.5 + score", NULL},
      {"1e3*score", "1000.0 * score", NULL},
      {"score - inf", "score - inf", "score - inf"},
      {"inf - inf", "-(inf - inf)", "inf - inf"},
      {"where(q < kv, score, -inf)", "q < kv ? score : -inf", "q < kv ? score : -inf"},
      {"q # a comment\n + 1", "q + 1", "q + 1"},
      {"int(q < kv) + 1", "(q < kv) + 1", "int(q < kv) + 1"},
      {"bool(q)", "q != 0", "q != 0"},
      {"int(score) % 3", "int(score) % 3", "int(score) % 3"},
      {"+q - -kv", "q - (-kv)", "q - -kv"},
  };
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_ex a = parse(pool, rows[i].text), b = parse(pool, rows[i].same);
    CHECK_MSG(a == b, "%s and %s should be one node", rows[i].text, rows[i].same);
    char *printed = fx_ex_print(pool, a);
    if (rows[i].printed) CHECK_STR(printed, rows[i].printed);
    CHECK_MSG(parse(pool, printed) == a, "%s prints as %s, which is another node", rows[i].text, printed);
    free(printed);
  }
  CHECK(parse(pool, "q && kv") != parse(pool, "kv && q")); /* the first one guards the second one's indices */
  fx_ex_pool_destroy(pool);
}

typedef struct refusal {
  const char *text;
  int column;
  const char *says;
} refusal;

static void check_refusal(fx_ex_pool *pool, const refusal *row, const fx_ex_scope *scope) {
  char start[64], caret[512];
  fx_ex_text at = {.text = row->text, .name = "a.yaml", .line = 3, .column = 9, .quoted = true};
  fx_error_clear();
  fx_ex node = fx_ex_parse(pool, &at, scope);
  CHECK_MSG(node == FX_EX_NONE, "%s: expected to be refused", row->text);
  snprintf(start, sizeof start, "a.yaml:3:%d: ", 9 + row->column);
  CHECK_MSG(strncmp(fx_error_text(), start, strlen(start)) == 0, "%s: expected the place %s, got \"%s\"",
            row->text, start, fx_error_text());
  CHECK_HAS(fx_error_text(), row->says);
  if (strlen(row->text) > 90) return;
  snprintf(caret, sizeof caret, "\n  %s\n  %*s^", row->text, row->column - 1, "");
  CHECK_HAS(fx_error_text(), caret);
}

static void refusals(void) {
  static const refusal rows[] = {
      {"", 1, "expected an expression, got nothing"},
      {"   ", 4, "expected an expression, got nothing"},
      {"q >", 4, "expected a value, got the end"},
      {"q > * kv", 5, "expected a value, got \"*\""},
      {"q kv", 3, "expected an operator or the end, got \"kv\""},
      {"(q + kv", 8, "expected an operator or ), got the end"},
      {"q + kv)", 7, "got \")\""},
      {"a <= q", 1, "the name \"a\" is not known here"},
      {"q < widow", 5, "\"widow\" is not known here"},
      {"doc_idd[q] == 0", 1, "the nearest is doc_id"},
      {"scor * 2", 1, "the nearest is score"},
      {"tan(score)", 1, "the nearest is tanh"},
      {"0 <= q < kv", 8, "write a <= b && b < c"},
      {"q == kv == h", 9, "comparisons do not chain"},
      {"q & 1 == 0", 3, "binds tighter than &"},
      {"q = kv", 3, "write == to compare"},
      {"q ** 2", 3, "no power operator"},
      {"q // 2", 3, "rounds down"},
      {"b + 1", 1, "implicit first index of inputs"},
      {"doc_id[b, q]", 8, "write name[q], not name[b, q]"},
      {"doc_id + 1", 1, "read it at an index, for example doc_id[q]"},
      {"doc_id[q, kv]", 11, "takes 1 index, here is one more (the sample is implicit)"},
      {"bias[h]", 8, "bias takes 2 indices, got 1"},
      {"bias[h, score]", 9, "write int(...) to truncate it"},
      {"q[3]", 2, "q is not a table"},
      {"cap[q]", 4, "cap is not a table"},
      {"q(3)", 2, "q is not a function"},
      {"exp + 1", 1, "exp is a function; write exp(...)"},
      {"exp(score, q)", 12, "exp takes 1 argument, here is one more"},
      {"min(q)", 6, "min takes 2 arguments, got 1"},
      {"where(q < kv, q)", 16, "where takes 3 arguments, got 2"},
      {"exp()", 5, "exp takes 1 argument, got 0"},
      {"q < kv ? q", 11, "expected the : of condition ? a : b"},
      {"q if kv else h", 3, "there is no if"},
      {"score % 2", 7, "write int(...) to truncate it"},
      {"score & 1", 7, "takes ints or conditions, not a float"},
      {"!score", 1, "a float stands where a condition is needed"},
      {"q == not kv", 6, "write (not ...) here"},
      {"q && && kv", 6, "expected a value, got \"&&\""},
      {"2147483648 + q", 1, "ints end at 2147483647"},
      {"-2147483649 + q", 2, "ints end at 2147483647"},
      {"q + 99999999999999999999", 5, "ints end at 2147483647"},
      {"q + 010", 5, "octal"},
      {"q + 12ab", 5, "runs into letters"},
      {"q + 1e999", 5, "too large for a float"},
      {"q + 1.2.3", 5, "not complete"},
      {"q + 0x", 5, "needs digits"},
      {"q + 0x123456789", 5, "more than 32 bits"},
      {"q + $", 5, "means nothing in an expression"},
      {"q + \xc3\xa9", 5, "means nothing in an expression"},
      {"q + a_name_of_thirty_two_characters_", 5, "longer than 31"},
  };
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_refusal(pool, &rows[i], NULL);
  fx_ex_pool_destroy(pool);
}

/* Texts that are too deep or too long, and places beyond the first line. */
static void sizes_and_places(void) {
  fx_ex_pool *pool = make_pool();
  char deep[1000] = "", open[301];
  memset(open, '(', 300);
  open[300] = '\0';
  snprintf(deep, sizeof deep, "%sq", open);
  fx_error_clear();
  CHECK(fx_ex_parse(pool, &(fx_ex_text){.text = deep}, NULL) == FX_EX_NONE);
  CHECK_HAS(fx_error_text(), "nested deeper than 200 levels");
  char *large = malloc(FX_EX_MAX_TEXT + 2);
  memset(large, ' ', FX_EX_MAX_TEXT + 1);
  large[FX_EX_MAX_TEXT + 1] = '\0';
  CHECK(fx_ex_parse(pool, &(fx_ex_text){.text = large}, NULL) == FX_EX_NONE);
  CHECK_HAS(fx_error_text(), "8193 characters, expected at most 8192");
  free(large);
  /* the second line of a text starts in column 1; without a line the name alone is the place */
  CHECK(fx_ex_parse(pool, &(fx_ex_text){.text = "q >\n    kw", .name = "a.yaml", .line = 3, .column = 9},
                    NULL) == FX_EX_NONE);
  CHECK_HAS(fx_error_text(), "a.yaml:4:5: the name \"kw\"");
  CHECK_HAS(fx_error_text(), "\n      kw\n      ^");
  CHECK(fx_ex_parse(pool, &(fx_ex_text){.text = "kw", .name = "command line: x=kw"}, NULL) == FX_EX_NONE);
  CHECK_HAS(fx_error_text(), "command line: x=kw: the name \"kw\"");
  static const refusal no_variables = {"2*q", 3, "q is not known here: this is computed once"};
  check_refusal(pool, &no_variables, &(fx_ex_scope){.no_variables = true});
  fx_ex_pool_destroy(pool);
}

static void note(void *self, const char *sentence) {
  snprintf(self, 600, "%s", sentence);
}

static void warnings(void) {
  static const struct {
    const char *text;
    int column; /* 0: no warning */
  } rows[] = {
      {"q / 2 * score", 3},
      {"score * (1 / 2)", 12},
      {"score * ((q - kv) / 2 + 1)", 19},
      {"exp(-(q / 2))", 9},
      {"q / 2 * kv", 0},
      {"float(q) / 2 * score", 0},
      {"score * float(q / 2)", 0},
      {"floor(q / 2)", 0},
      {"q / 2 == kv / 2", 0},
      {"score * (q % 2)", 0},
      {"q < 3 ? score : q / 2", 19},
  };
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char got[600] = "", want[64];
    fx_ex_scope scope = {.self = got, .warn = note};
    fx_ex_text at = {.text = rows[i].text, .name = "a.yaml", .line = 1, .column = 1};
    CHECK_MSG(fx_ex_parse(pool, &at, &scope) != FX_EX_NONE, "%s: %s", rows[i].text, fx_error_text());
    snprintf(want, sizeof want, "a.yaml:1:%d: this / divides ints", rows[i].column);
    if (rows[i].column)
      CHECK_HAS(got, want);
    else
      CHECK_STR(got, "");
  }
  fx_ex_pool_destroy(pool);
}

/* ---- canonical form ---- */

static char *canonical_of(const char *first, const char *text, const char *names[2], float value,
                          int32_t length, int32_t extent) {
  fx_ex_pool *pool = fx_ex_pool_create(&(fx_ex_ranges){H, length, length});
  fx_ex_buffer table = {.type = FX_EX_FLOAT, .ndim = 1, .dim = {extent}, .learnable = true};
  snprintf(table.name, sizeof table.name, "%s", names[1]);
  fx_ex_declare_param(pool, names[0], value);
  fx_ex_declare_buffer(pool, &table);
  if (first) parse(pool, first);
  fx_ex node = parse(pool, text);
  char *canonical = fx_ex_canonical(pool, &node, 1);
  fx_ex_pool_destroy(pool);
  return canonical;
}

static void canonical_forms(void) {
  const char *names[2] = {"cap", "bias"}, *others[2] = {"limit", "table"};
  char *base = canonical_of(NULL, "tanh(score / cap) * cap + bias[q - kv]", names, 30, T, 8);
  const struct {
    const char *what;
    char *text;
    bool same;
  } rows[] = {
      {"other names and value",
       canonical_of(NULL, "limit * tanh(score / limit) + table[q - kv]", others, 5, T, 8), true},
      {"another order of making",
       canonical_of("bias[q - kv] + kv * q + cap", "bias[q - kv] + tanh(score / cap) * cap", names, 30, T, 8),
       true},
      {"another constant", canonical_of(NULL, "tanh(score / cap) * cap + bias[q - kv + 1]", names, 30, T, 8),
       false},
      {"another extent", canonical_of(NULL, "tanh(score / cap) * cap + bias[q - kv]", names, 30, T, 9),
       false},
      {"another length", canonical_of(NULL, "tanh(score / cap) * cap + bias[q - kv]", names, 30, T + 1, 8),
       false},
      {"another operator", canonical_of(NULL, "sigmoid(score / cap) * cap + bias[q - kv]", names, 30, T, 8),
       false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_MSG((strcmp(base, rows[i].text) == 0) == rows[i].same, "%s: expected %s, got\n%s", rows[i].what,
              rows[i].same ? "the same" : "a difference", rows[i].text);
    free(rows[i].text);
  }
  free(base);
  fx_ex_pool *pool = make_pool(); /* which parameter is meant counts */
  fx_ex one = parse(pool, "cap"), two = parse(pool, "rate");
  char *first = fx_ex_canonical(pool, &one, 1), *second = fx_ex_canonical(pool, &two, 1);
  CHECK(strcmp(first, second) != 0);
  free(first);
  free(second);
  fx_ex_pool_destroy(pool);
}

/* Sharing is not lost: squaring forty times is forty nodes, and too much text. */
static void shared_nodes(void) {
  fx_ex_pool *pool = make_pool();
  fx_ex x = fx_ex_variable(pool, FX_EX_SCORE), score = x;
  for (int i = 0; i < 40; i++) x = fx_ex_binary(pool, FX_EX_MUL, x, x);
  CHECK_INT(fx_ex_pool_count(pool), 41);
  CHECK(fx_ex_print(pool, x) == NULL);
  CHECK_HAS(fx_error_text(), "too large to be written out");
  char *canonical = fx_ex_canonical(pool, &x, 1);
  CHECK(canonical && strlen(canonical) < 2000);
  free(canonical);
  CHECK(fx_ex_derivative(pool, x, score) != FX_EX_NONE && fx_ex_pool_count(pool) < 300);
  fx_ex_pool_destroy(pool);
}

static const fx_test tests[] = {
    {"spellings of equal nodes, and their print", spellings},
    {"refusals with place and caret", refusals},
    {"sizes and places", sizes_and_places},
    {"warnings about int / int", warnings},
    {"canonical form", canonical_forms},
    {"shared nodes", shared_nodes},
};
FX_TEST_MAIN("lang", tests)
