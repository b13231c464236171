/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter against double precision on random expressions, and at sizes around its blocks. */
#include "attention/tile/interp.h"
#include "tests/expression_reference.h"
#include "tests/attention/random_expr.h"

enum { POINTS = 64, EXPRESSIONS = 10000 };

typedef struct points {
  int32_t q[POINTS], kv[POINTS];
  float score[POINTS];
  double wide[POINTS]; /* the same scores */
} points;

static void fill_points(random_expr *r, points *p) {
  for (int i = 0; i < POINTS; i++) {
    p->q[i] = random_below(r, r->ranges.T);
    p->kv[i] = random_below(r, r->ranges.T_kv);
    p->score[i] = random_float(r);
    p->wide[i] = p->score[i];
  }
}

static double as_double(const void *values, fx_ex_type type, int i) {
  return type == FX_EX_FLOAT ? (double)((const float *)values)[i] : ((const int32_t *)values)[i];
}

static bool agrees(double got, double want, double bound) {
  if (want != want || got != got) return want != want && got != got;
  return got == want || fabs(got - want) <= 1.01 * bound;
}

static void random_expressions_match_double(void) {
  int64_t nodes = 0, seen = 0, left_out = 0, specials = 0, wrong = 0;
  for (uint64_t seed = 1; seed <= EXPRESSIONS; seed++) {
    random_expr r;
    random_create(&r, seed);
    points p;
    fill_points(&r, &p);
    fx_ex_type type = (fx_ex_type)random_below(&r, 3);
    fx_ex node = random_make(&r, type, 2 + random_below(&r, 5), true);
    CHECK_MSG(node != FX_EX_NONE, "seed %llu: %s", (unsigned long long)seed, fx_error_text());
    nodes += fx_ex_pool_count(r.pool);
    fx_interp *interp = NULL;
    if (!CHECK_OK(fx_interp_create(r.pool, &node, 1, &interp))) break;
    int32_t got[POINTS];
    void *out = got;
    double value[POINTS], bound[POINTS], *values = value, *bounds = bound;
    fx_interp_inputs inputs = {r.uniform, r.buffer};
    int32_t h = random_below(&r, r.ranges.H);
    fx_interp_run(interp, &inputs, h, POINTS, p.q, p.kv, p.score, &out);
    CHECK_OK(fx_reference_run(r.pool, &node, 1, &inputs, h, POINTS, p.q, p.kv, p.wide, &values, &bounds));
    for (int i = 0; i < POINTS; i++) {
      double is = as_double(got, type, i);
      seen++;
      left_out += isinf(bound[i]);
      specials += !isinf(bound[i]) && !isfinite(value[i]);
      if (isinf(bound[i]) || agrees(is, value[i], bound[i])) continue;
      wrong++;
      CHECK_MSG(wrong > 5, "seed %llu point %d: expected %.9g +- %.3g, got %.9g", (unsigned long long)seed, i,
                value[i], bound[i], is);
    }
    fx_interp_destroy(interp);
    random_destroy(&r);
  }
  CHECK_INT(wrong, 0);
  printf("%.1f nodes an expression, %lld points, %.1f %% left out near discontinuities, %.2f %% inf or NaN\n",
         (double)nodes / EXPRESSIONS, (long long)seen, 100.0 * (double)left_out / (double)seen,
         100.0 * (double)specials / (double)seen);
  CHECK(left_out < seen / 5);
}

/* Any number of points, nothing written past them, several outputs, leaves and constants among them. */
static void sizes_around_blocks(void) {
  enum { MOST = 1030, OUTPUTS = 6 };
  static const int sizes[] = {0, 1, 15, 255, 256, 257, 511, 513, 1024};
  const fx_ex_ranges ranges = {4, MOST, MOST};
  fx_ex_pool *pool = fx_ex_pool_create(&ranges);
  fx_ex q = fx_ex_variable(pool, FX_EX_Q), score = fx_ex_variable(pool, FX_EX_SCORE);
  fx_ex square = fx_ex_binary(pool, FX_EX_MUL, q, q);
  fx_ex half = fx_ex_binary(pool, FX_EX_MUL, score, fx_ex_float(pool, 0.5f));
  fx_ex nodes[OUTPUTS] = {square, q, fx_ex_int(pool, 42), fx_ex_variable(pool, FX_EX_H), square, half};
  fx_interp *interp = NULL;
  CHECK_OK(fx_interp_create(pool, nodes, OUTPUTS, &interp));
  static int32_t at[MOST], out[OUTPUTS][MOST];
  static float scores[MOST];
  for (int i = 0; i < MOST; i++) {
    at[i] = i;
    scores[i] = (float)(3 * i);
  }
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    void *to[OUTPUTS];
    memset(out, 0x5a, sizeof out);
    for (int k = 0; k < OUTPUTS; k++) to[k] = out[k];
    fx_interp_run(interp, &(fx_interp_inputs){NULL, NULL}, 3, sizes[s], at, NULL, scores, to);
    int wrong = 0;
    for (int i = 0; i < MOST; i++) {
      float halved = 1.5f * (float)i, got;
      memcpy(&got, &out[5][i], 4);
      bool inside = i < sizes[s];
      wrong += out[0][i] != (inside ? i * i : 0x5a5a5a5a) || out[4][i] != out[0][i];
      wrong += out[1][i] != (inside ? i : 0x5a5a5a5a) || out[2][i] != (inside ? 42 : 0x5a5a5a5a);
      wrong += out[3][i] != (inside ? 3 : 0x5a5a5a5a) || (inside ? got != halved : out[5][i] != 0x5a5a5a5a);
    }
    CHECK_MSG(wrong == 0, "%d points: %d values wrong", sizes[s], wrong);
  }
  fx_interp_destroy(interp);
  fx_ex_pool_destroy(pool);
}

/* More constants than registers are made where they are used; more live values than registers are refused. */
static void registers_run_out(void) {
  const fx_ex_ranges ranges = {1, 100000, 1};
  fx_ex_pool *pool = fx_ex_pool_create(&ranges);
  fx_ex q = fx_ex_variable(pool, FX_EX_Q), any = fx_ex_bool(pool, false), sum = fx_ex_int(pool, 0);
  for (int i = 0; i < 2000; i++)
    any = fx_ex_binary(pool, FX_EX_OR, any, fx_ex_binary(pool, FX_EX_EQ, q, fx_ex_int(pool, i * 37)));
  fx_interp *interp = NULL;
  if (CHECK_OK(fx_interp_create(pool, &any, 1, &interp))) {
    enum { N = 600 };
    int32_t at[N], got[N], wrong = 0;
    void *out = got;
    for (int i = 0; i < N; i++) at[i] = 123 * i + 1;
    fx_interp_run(interp, &(fx_interp_inputs){NULL, NULL}, 0, N, at, NULL, NULL, &out);
    for (int i = 0; i < N; i++) wrong += got[i] != (at[i] % 37 == 0 && at[i] < 74000);
    CHECK_INT(wrong, 0);
    fx_interp_destroy(interp);
  }
  fx_ex term[400];
  for (int i = 0; i < 400; i++) term[i] = fx_ex_binary(pool, FX_EX_MUL, q, fx_ex_int(pool, i + 2));
  for (int i = 0; i < 400; i++)
    sum = fx_ex_binary(pool, FX_EX_BIT_XOR, sum, fx_ex_binary(pool, FX_EX_SHR, term[399 - i], term[i]));
  fx_status status = fx_interp_create(pool, &sum, 1, &interp);
  CHECK_INT(status, FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "simplify it or install a C compiler");
  fx_ex_pool_destroy(pool);
}

static const fx_test g_tests[] = {
    {"sizes around blocks", sizes_around_blocks},
    {"registers run out", registers_run_out},
    {"random expressions match double precision", random_expressions_match_double},
};
FX_TEST_MAIN("interp", g_tests)
