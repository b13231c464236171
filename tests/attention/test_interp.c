/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter against double precision on random expressions, and at sizes around its blocks. */
#include <time.h>

#include "attention/tile/interp.h"
#include "attention/tile/reference.h"
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

static const fx_test g_tests[] = {
    {"random expressions match double precision", random_expressions_match_double},
};
FX_TEST_MAIN("interp", g_tests)
