/* SPDX-License-Identifier: Apache-2.0 */
/* What expressions mean: folding against an evaluator of the test's own, derivatives against finite
 * differences, ranges and index faults against brute force. */
#include "attention/lang/derive.h"
#include "attention/lang/fault.h"
#include "attention/lang/range.h"
#include "tests/attention/lang_case.h"

/* Constants are folded by the shared semantics; the evaluator above has its own. */
static void folding(void) {
  static const char *const texts[] = {"-7 / 2",
                                      "-7 % 3",
                                      "7 % -3",
                                      "7 / -2",
                                      "5 / 0",
                                      "5 % 0",
                                      "1 << 4 | 3",
                                      "-9 >> 1",
                                      "6 ^ 3 & 2",
                                      "~5",
                                      "min(3, -1)",
                                      "max(3, -1)",
                                      "abs(-4)",
                                      "int(-2.7)",
                                      "floor(-2.5)",
                                      "sqrt(2.25)",
                                      "exp(1.5)",
                                      "log(3.0)",
                                      "tanh(0.25)",
                                      "sigmoid(-1.0)",
                                      "3 > 2 ? 1.5 : 7.0",
                                      "2 < 3 && !(1 == 2)",
                                      "float(3) / 2",
                                      "7 / 2 * 2"};
  /* the same with a variable in the constant's place: nothing is folded */
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    fx_ex node = parse(pool, texts[i]);
    const fx_ex_node *n = fx_ex_get(pool, node);
    CHECK_MSG(n->op == FX_EX_CONST, "%s is not folded", texts[i]);
    double got = n->type == FX_EX_FLOAT ? (double)n->value.f : n->value.i;
    char text[200];
    snprintf(text, sizeof text, "%s", texts[i]);
    for (char *c = text; *c; c++)
      if (*c == '3' && (c == text || strchr(" (", c[-1])) && c[1] != '.') *c = 'q';
    fx_ex open = parse(pool, text);
    double want = value_at(pool, open, &(point){0, 0, 3, 0});
    CHECK_MSG(fabs(got - want) <= 1e-6 * (1 + fabs(want)), "%s folds to %.9g, %s at q = 3 is %.9g", texts[i],
              got, text, want);
  }
  CHECK(parse(pool, "q - q") == parse(pool, "0") && parse(pool, "score - score") != parse(pool, "0.0"));
  CHECK(parse(pool, "score * 0") != parse(pool, "0.0")); /* NaN and infinity */
  CHECK(parse(pool, "score * 1") == parse(pool, "score") && parse(pool, "q % 1") == parse(pool, "0"));
  fx_ex_pool_destroy(pool);
}

static void derivatives(void) {
  static const char *const texts[] = {"score * 3.0 + 1.0",
                                      "cap * tanh(score / cap)",
                                      "exp(score * rate)",
                                      "log(score * score + 1.0)",
                                      "sqrt(score * score + rate)",
                                      "sigmoid(score) * score",
                                      "min(score, 0.3) * score",
                                      "max(score, -score * rate)",
                                      "abs(score - 0.1)",
                                      "q < kv ? score * score : score / cap",
                                      "(score + 1.0) / (score * score + 2.0)",
                                      "-score + floor(score) * 0.0",
                                      "score + bias[h, kv % 8]",
                                      "score * bias[h, 3] * bias[h, 3] + exp(bias[h, q % 8])",
                                      "tanh(score * bias[h, min(q, 7)]) / (1.0 + bias[0, 1] * bias[0, 1])",
                                      "where(bias[h, 2] < 0.0, score, score * bias[h, 2])",
                                      "tanh(tanh(tanh(score)))",
                                      "1.0"};
  fx_ex_pool *pool = make_pool();
  int checked = 0;
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    fx_ex f = parse(pool, texts[i]);
    int32_t count = fx_ex_pool_count(pool);
    for (fx_ex target = 0; target < count; target++) {
      fx_ex_node n = *fx_ex_get(pool, target);
      bool score = n.op == FX_EX_VAR && n.index == FX_EX_SCORE, load = n.op == FX_EX_LOAD && n.index == 0;
      if (!score && !load) continue;
      fx_ex d = fx_ex_derivative(pool, f, target);
      for (int p = 0; p < 12; p++) {
        const double h = 1e-6;
        point at = {0.37 * p - 2.013, p % H, p * 3 % T, p * 7 % T}, up = at, down = at;
        if (score) up.score += h, down.score -= h;
        double want = (evaluate(pool, f, &up, load ? target : FX_EX_NONE, h) -
                       evaluate(pool, f, &down, load ? target : FX_EX_NONE, -h)) /
                      (2 * h);
        double got = value_at(pool, d, &at);
        CHECK_MSG(fabs(got - want) <= 1e-5 * (1 + fabs(want)),
                  "%s at score %g: d by node %d is %.9g, expected %.9g", texts[i], at.score, target, got,
                  want);
        checked += want != 0;
      }
    }
  }
  CHECK_MSG(checked > 250, "only %d derivatives were not 0", checked);
  /* subgradients as PyTorch's, and branches that are not taken */
  static const struct {
    const char *text;
    double score, want;
  } ties[] = {{"min(score, 0.5)", 0.5, 0.5},
              {"max(score, 0.5)", 0.5, 0.5},
              {"min(score, score * 3.0)", 0.0, 2.0},
              {"abs(score)", 0.0, 0.0},
              {"floor(score)", 0.3, 0.0},
              {"float(int(score))", 1.3, 0.0},
              {"score > 0.0 ? sqrt(score) : 0.0", 0.0, 0.0}};
  fx_ex score = fx_ex_variable(pool, FX_EX_SCORE);
  for (size_t i = 0; i < sizeof ties / sizeof ties[0]; i++) {
    double got = value_at(pool, fx_ex_derivative(pool, parse(pool, ties[i].text), score),
                          &(point){ties[i].score, 0, 0, 0});
    CHECK_MSG(got == ties[i].want, "d %s at %g: expected %g, got %g", ties[i].text, ties[i].score,
              ties[i].want, got);
  }
  fx_ex_pool_destroy(pool);
}

/* tanh' reads tanh's own value: no second tanh appears. */
static void derivatives_share(void) {
  fx_ex_pool *pool = make_pool();
  fx_ex d = fx_ex_derivative(pool, parse(pool, "cap * tanh(score / cap)"), fx_ex_variable(pool, FX_EX_SCORE));
  int tanhs = 0;
  for (int32_t i = 0; i < fx_ex_pool_count(pool); i++) tanhs += fx_ex_get(pool, i)->op == FX_EX_TANH;
  CHECK_INT(tanhs, 1);
  CHECK(d != FX_EX_NONE);
  fx_ex_pool_destroy(pool);
}

/* ---- ranges and faults ---- */

static void ranges_hold(void) {
  static const char *const texts[] = {"q - kv",
                                      "q * kv",
                                      "(q - kv) / 3",
                                      "(q - kv) % 5",
                                      "(q - kv) % -5",
                                      "7 / (kv - 3)",
                                      "(q - 9) / kv",
                                      "abs(q - kv)",
                                      "min(q, 5) - max(kv, 7)",
                                      "q < kv ? q : -kv",
                                      "q & 12",
                                      "q | kv",
                                      "q ^ kv",
                                      "~q",
                                      "q << 3",
                                      "(q - kv) >> 2",
                                      "sign[q] * kv",
                                      "sign[q] % 3",
                                      "q % (kv + 1)",
                                      "5 % (q - kv)",
                                      "-q",
                                      "int(q < kv) + 2",
                                      "(q - kv) & 6",
                                      "q + 3 > kv",
                                      "q < 40",
                                      "q <= kv",
                                      "q <= kv + 39",
                                      "q == kv",
                                      "q != kv + 50",
                                      "q < kv && h == 0",
                                      "q < kv || !(h == 0)",
                                      "q >> h",
                                      "(q - kv) % (h - 1)"};
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    fx_ex node = parse(pool, texts[i]);
    int64_t lo = 0, hi = 0;
    double least = INFINITY, most = -INFINITY;
    CHECK_MSG(fx_ex_range(pool, node, &lo, &hi), "%s: expected a range", texts[i]);
    for (int q = 0; q < T; q++)
      for (int kv = 0; kv < T; kv++)
        for (int h = 0; h < H; h++) {
          double v = value_at(pool, node, &(point){0, h, q, kv});
          least = fmin(least, v);
          most = fmax(most, v);
        }
    CHECK_MSG((double)lo <= least && most <= (double)hi, "%s takes %g..%g, the range is %lld..%lld", texts[i],
              least, most, (long long)lo, (long long)hi);
  }
  int64_t lo, hi;
  CHECK(!fx_ex_range(pool, parse(pool, "q * 100000000"), &lo, &hi)); /* may wrap */
  CHECK(fx_ex_range(pool, parse(pool, "q - kv"), &lo, &hi) && lo == 1 - T && hi == T - 1);
  CHECK(fx_ex_range(pool, parse(pool, "max(0, min(7, int(score)))"), &lo, &hi) && lo == 0 && hi == 7);
  CHECK(fx_ex_index_in_range(pool, parse(pool, "doc_id[q]"), 0) &&
        fx_ex_index_in_range(pool, parse(pool, "doc_id[doc_start[q]]"), 0));
  CHECK(fx_ex_index_in_range(pool, parse(pool, "doc_id[doc_end[q] - 1]"), 0));
  CHECK(!fx_ex_index_in_range(pool, parse(pool, "doc_id[doc_end[q]]"), 0));
  CHECK(fx_ex_index_in_range(pool, parse(pool, "bias[h, q % 8]"), 1) &&
        !fx_ex_index_in_range(pool, parse(pool, "bias[h, q]"), 1));
  fx_ex_pool_destroy(pool);
}

static void blow_ups(void) {
  static const struct {
    const char *text;
    bool may;
  } rows[] = {{"score * cap + 3.0", false}, {"score / cap", false},    {"score / (q - kv)", true},
              {"score / (q + 1)", false},   {"log(score)", true},      {"log(q + 1)", false},
              {"exp(score)", true},         {"exp(-rate * q)", false}, {"exp(min(score, 10.0))", false},
              {"sqrt(score)", true},        {"sqrt(q)", false},        {"q < kv ? score : -inf", true},
              {"tanh(score)", false},       {"score - inf", true}};
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    CHECK_MSG(fx_ex_may_blow_up(pool, parse(pool, rows[i].text)) == rows[i].may, "%s: expected %d",
              rows[i].text, rows[i].may);
  fx_ex_pool_destroy(pool);
}

/* A fault exactly where C would read outside, evaluating from left to right. */
static void faults(void) {
  static const struct {
    const char *text, *outside; /* the condition by hand; NULL: never */
  } rows[] = {
      {"sign[q] > 0", NULL},
      {"sign[q - 1] > 0", "q < 1"},
      {"sign[q + 1] > 0", "q == 39"},
      {"sign[q - kv] > 0", "q < kv"},
      {"q > 0 && sign[q - 1] > 0", NULL},
      {"sign[q - 1] > 0 && q > 0", "q == 0"},
      {"q == 0 || sign[q - 1] > 0", NULL},
      {"sign[q - 1] > 0 || q == 0", "q == 0"},
      {"q > 3 ? sign[q - 1] > 0 : sign[q - 2] > 0", "q < 2"},
      {"(kv < 5 ? sign[q - 9] : 1) > 0", "kv < 5 && q < 9"},
      {"sign[sign[q]] > 0", "sign[q] < 0"},
      {"sign[max(q - 1, 0)] > 0", NULL},
      {"kv > 2 && (q > 3 || sign[q - 1] > 0)", "kv > 2 && q == 0"},
      {"sign[q - 1] + sign[kv - 1] > 0", "q == 0 || kv == 0"},
      {"(h < 1 ? sign[q - 1] : 0) + (kv < 3 ? sign[q - 1] : 0) > 0", "(h < 1 || kv < 3) && q == 0"},
      {"bias[h + 1, q] > 0.0", "h == 3 || q > 7"},
  };
  fx_ex_pool *pool = make_pool();
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_ex node = parse(pool, rows[i].text), fault = FX_EX_NONE;
    fx_ex want = rows[i].outside ? parse(pool, rows[i].outside) : FX_EX_NONE;
    if (!CHECK_OK(fx_ex_fault(pool, node, &fault))) continue;
    int wrong = 0;
    for (int q = 0; q < T; q++)
      for (int kv = 0; kv < T; kv++)
        for (int h = 0; h < H; h++) {
          point at = {0, h, q, kv};
          bool got = fault != FX_EX_NONE && value_at(pool, fault, &at) != 0;
          wrong += got != (want != FX_EX_NONE && value_at(pool, want, &at) != 0);
        }
    CHECK_MSG(wrong == 0, "%s: the fault is wrong at %d pairs", rows[i].text, wrong);
  }
  fx_ex none = FX_EX_NONE;
  CHECK_OK(fx_ex_fault(pool, parse(pool, "sign[q] > doc_id[kv]"), &none));
  CHECK_INT(none, FX_EX_NONE);
  fx_ex_pool_destroy(pool);
}

static const fx_test tests[] = {
    {"folding", folding},
    {"derivatives against differences", derivatives},
    {"derivatives share nodes", derivatives_share},
    {"ranges against brute force", ranges_hold},
    {"what may become infinite", blow_ups},
    {"index faults against C's order", faults},
};
FX_TEST_MAIN("lang meaning", tests)
