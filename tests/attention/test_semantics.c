/* SPDX-License-Identifier: Apache-2.0 */
/* The operators: accuracy against libm in double over the whole range, edges, and one result whatever the
 * instruction set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/lang/semantics.h"
#include "attention/tile/lanes.h"
#include "tests/harness.h"

static float from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

/* |got - want| in units of the float result's last place; denormals count in the smallest one. */
static double error_ulps(float got, double want) {
  float nearest = (float)want;
  if (isnan(want)) return isnan(got) ? 0.0 : INFINITY;
  if (got == nearest) return 0.0;
  if (isinf(nearest) || !isfinite(got)) return INFINITY;
  int exponent;
  frexp(want, &exponent);
  return fabs((double)got - want) / ldexp(1.0, exponent - 24 > -149 ? exponent - 24 : -149);
}

static double sigmoid(double x) {
  return x < 0.0 ? (x < -800.0 ? 0.0 : exp(x) / (1.0 + exp(x))) : 1.0 / (1.0 + exp(-x));
}
static float float_exp(float a) {
  return fx_sem_exp(a);
}
static float float_log(float a) {
  return fx_sem_log(a);
}
static float float_tanh(float a) {
  return fx_sem_tanh(a);
}
static float float_sigmoid(float a) {
  return fx_sem_sigmoid(a);
}

static const struct {
  const char *name;
  fx_ex_op op;
  float (*is)(float);
  double (*should)(double);
  double ulps;
} g_functions[] = {{"exp", FX_EX_EXP, float_exp, exp, 1.0},
                   {"log", FX_EX_LOG, float_log, log, 1.0},
                   {"tanh", FX_EX_TANH, float_tanh, tanh, 1.5},
                   {"sigmoid", FX_EX_SIGMOID, float_sigmoid, sigmoid, 2.5}};

static void functions_are_accurate(void) {
  for (int i = 0; i < 4; i++) {
    double worst = 0.0;
    float at = 0.0f;
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 521) {
      float x = from_bits((uint32_t)bits);
      double error = error_ulps(g_functions[i].is(x), g_functions[i].should(x));
      if (error > worst) worst = error, at = x;
    }
    printf("%s: %.2f ulp at %.9g\n", g_functions[i].name, worst, at);
    CHECK_MSG(worst <= g_functions[i].ulps, "%s(%.9g) = %.9g: %.2f ulp from %.9g", g_functions[i].name, at,
              g_functions[i].is(at), worst, g_functions[i].should(at));
  }
}

static void functions_at_the_edges(void) {
  CHECK(fx_sem_exp(0.0f) == 1.0f && fx_sem_exp(-INFINITY) == 0.0f && fx_sem_exp(INFINITY) == INFINITY);
  CHECK(fx_sem_exp(88.73f) == INFINITY && fx_sem_exp(-103.0f) > 0.0f && fx_sem_exp(-104.0f) == 0.0f);
  CHECK(fx_sem_log(0.0f) == -INFINITY && fx_sem_log(-0.0f) == -INFINITY && fx_sem_log(INFINITY) == INFINITY);
  CHECK(fx_sem_log(1.0f) == 0.0f && isnan(fx_sem_log(-1.0f)) && isnan(fx_sem_log(-INFINITY)));
  CHECK(fx_sem_tanh(INFINITY) == 1.0f && fx_sem_tanh(-INFINITY) == -1.0f && fx_sem_tanh(1e-40f) == 1e-40f);
  CHECK(signbit(fx_sem_tanh(-0.0f)) && signbit(fx_sem_floor(-0.0f)));
  CHECK(fx_sem_sigmoid(0.0f) == 0.5f && fx_sem_sigmoid(-INFINITY) == 0.0f &&
        fx_sem_sigmoid(INFINITY) == 1.0f);
  CHECK(isnan(fx_sem_exp(NAN)) && isnan(fx_sem_log(NAN)) && isnan(fx_sem_tanh(NAN)) &&
        isnan(fx_sem_sigmoid(NAN)));
  CHECK_INT(fx_sem_to_int(NAN), 0);
  CHECK_INT(fx_sem_to_int(-1.9f), -1);
  CHECK_INT(fx_sem_to_int(2147483648.0f), INT32_MAX);
  CHECK_INT(fx_sem_to_int(2147483520.0f), 2147483520);
  CHECK_INT(fx_sem_to_int(-INFINITY), INT32_MIN);
}

static uint32_t next(uint32_t *state) {
  return *state = *state * 1664525u + 1013904223u;
}

static void division_floors(void) {
  static const int32_t edges[] = {
      0, 1, -1, 2, -2, 3, 7, 64, INT32_MAX, INT32_MAX - 1, INT32_MIN, INT32_MIN + 1};
  uint32_t state = 1;
  int64_t wrong = 0;
  for (int i = 0; i < 4000000; i++) {
    int32_t a = (int32_t)next(&state) >> (i % 31), b = (int32_t)next(&state) >> (i % 29);
    if (i < 144) {
      a = edges[i / 12];
      b = edges[i % 12];
    }
    int64_t quotient = 0, rest = 0;
    if (b != 0) {
      quotient = (int64_t)a / b;
      rest = (int64_t)a % b;
      if (rest != 0 && (rest < 0) != (b < 0)) quotient--, rest += b;
    }
    int32_t wrapped = (int32_t)(uint32_t)quotient, divided, remainder;
    wrong += fx_sem_div(a, b) != wrapped || fx_sem_mod(a, b) != rest;
    if (b <= 0) continue;
    fx_lanes_div_by(1, &divided, &a, b, fx_lanes_reciprocal(b));
    fx_lanes_mod_by(1, &remainder, &a, b, fx_lanes_reciprocal(b));
    wrong += fx_sem_div_by(a, b) != wrapped || fx_sem_mod_by(a, b) != rest;
    wrong += divided != wrapped || remainder != rest;
    CHECK_MSG(wrong == 0, "%d / %d: expected %d rest %d", a, b, wrapped, (int32_t)rest);
    if (wrong) break;
  }
  CHECK_INT(wrong, 0);
}

/* The loops are compiled for the processor at hand, this file for any. */
static void vector_loops_agree_with_scalars(void) {
  enum { N = 4096 };
  static float x[N], y[N];
  uint32_t state = 7;
  for (int round = 0; round < 64; round++) {
    for (int i = 0; i < N; i++) x[i] = from_bits(next(&state) ^ (next(&state) >> 16));
    for (int f = 0; f < 4; f++) {
      fx_lanes_get(g_functions[f].op, FX_EX_FLOAT)(N, y, x, x, x);
      for (int i = 0; i < N; i++) {
        float scalar = g_functions[f].is(x[i]);
        bool same = memcmp(&scalar, &y[i], 4) == 0 || (isnan(scalar) && isnan(y[i]));
        if (!same)
          CHECK_MSG(same, "%s(%a): %a in a vector, %a alone", g_functions[f].name, x[i], y[i], scalar);
      }
    }
    fx_lanes_get(FX_EX_FLOOR, FX_EX_FLOAT)(N, y, x, x, x);
    for (int i = 0; i < N; i++) {
      float want = (float)floor((double)x[i]), scalar = fx_sem_floor(x[i]);
      bool same = (memcmp(&want, &y[i], 4) == 0 && memcmp(&want, &scalar, 4) == 0) || isnan(x[i]);
      if (!same) CHECK_MSG(same, "floor(%a): expected %a, got %a and %a", x[i], want, y[i], scalar);
    }
  }
}

static const fx_test g_tests[] = {
    {"functions are accurate", functions_are_accurate},
    {"functions at the edges", functions_at_the_edges},
    {"division floors", division_floors},
    {"vector loops agree with scalars", vector_loops_agree_with_scalars},
};
FX_TEST_MAIN("semantics", g_tests)
