/* SPDX-License-Identifier: Apache-2.0 */
/* Generated C against the interpreter, bit by bit, on random variants. */
#include <time.h>

#include "attention/tile/compile.h"
#include "attention/tile/emit_c.h"
#include "attention/tile/interp.h"
#include "tests/expression_reference.h"
#include "tests/attention/tile_case.h"

enum { UNIT = 75, UNITS = 4, TILES = 3 };

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Where rows and keys lie, against double precision: a few pairs of the tile. */
static void check_pairs(tile_case *c, uint64_t seed, const tile_data *d, int64_t stride,
                        const tile_results *got) {
  const fx_variant *v = &c->variant;
  fx_ex nodes[2] = {v->mask, v->score};
  fx_interp_inputs inputs = {d->args.uniform, d->args.buffer};
  for (int i = 0; i < 8; i++) {
    int32_t r = random_below(&c->r, FX_TILE_ROWS), k = random_below(&c->r, d->args.keys);
    double score = d->raw[k * stride + r], value, bound, *values = &value, *bounds = &bound;
    for (int which = 0; which < 2; which++) {
      if (nodes[which] == FX_EX_NONE) continue;
      CHECK_OK(fx_reference_run(v->pool, &nodes[which], 1, &inputs, d->args.h, 1, &d->q[r], &d->kv[k], &score,
                                &values, &bounds));
      double is = which ? (double)got->score[k * stride + r] / 1.25 : (double)((got->bits[k] >> r) & 1);
      bool far = isinf(bound) || fabs(value) > 1e38; /* the factor may overflow */
      bool same = isnan(value) ? isnan(is) : fabs(is - value) <= 1.01 * bound + 2e-7 * fabs(value) + 1e-44;
      CHECK_MSG(far || same, "seed %llu key %d row %d %s: expected %.9g +- %.3g, got %.9g",
                (unsigned long long)seed, k, r, which ? "score" : "mask", value, bound, is);
    }
  }
}

static void compare(tile_case *c, uint64_t seed, const fx_tile_functions *compiled) {
  static tile_data data;
  static tile_results got, want;
  fx_tile_interp *interp = NULL;
  if (!CHECK_OK(fx_tile_interp_create(&c->variant, &interp))) return;
  fx_tile_functions interpreted = fx_tile_interp_functions(interp);
  CHECK(!interpreted.mask == !compiled->mask && !interpreted.score == !compiled->score);
  CHECK(!interpreted.score_slope == !compiled->score_slope && !interpreted.tables == !compiled->tables);
  CHECK(!interpreted.in_bounds == !compiled->in_bounds);
  for (int i = 0; i < TILES; i++) {
    char what[64];
    tile_data_fill(&data, c);
    int64_t stride = i == 0 ? FX_TILE_ROWS : CASE_STRIDE;
    tile_run(&interpreted, &data, stride, &want);
    tile_run(compiled, &data, stride, &got);
    check_pairs(c, seed, &data, stride, &got);
    snprintf(what, sizeof what, "seed %llu tile %d", (unsigned long long)seed, i);
    if (!tile_same(&got, &want, what)) break;
  }
  fx_tile_interp_destroy(interp);
}

typedef struct unit {
  tile_case cases[UNIT];
  char *source;
  fx_compiled *compiled;
  fx_status status;
  char text[1024]; /* why it failed */
} unit;

static uint64_t seed_of(int number, int i) {
  return 1000 + (uint64_t)number * UNIT + (uint64_t)i;
}

static void emit(unit *u, int number) {
  const fx_variant *variants[UNIT];
  for (int i = 0; i < UNIT; i++) {
    tile_case_create(&u->cases[i], seed_of(number, i));
    variants[i] = &u->cases[i].variant;
  }
  CHECK_OK(fx_emit_c(variants, UNIT, number % 2, &u->source));
}

static void compare_unit(unit *u, int number) {
  for (int i = 0; i < UNIT; i++) {
    char name[32];
    snprintf(name, sizeof name, "fx_tile%d", i);
    const fx_tile_functions *functions = fx_compiled_symbol(u->compiled, name);
    if (CHECK_MSG(functions, "no %s", name)) compare(&u->cases[i], seed_of(number, i), functions);
  }
}

static void generated_c_matches_interpreter(void) {
  unit *units = calloc(UNITS, sizeof *units);
  fx_compile_options options = {.directory = fx_temp_dir()};
  for (int i = 0; i < UNITS; i++) emit(&units[i], i);
  double start = seconds();
#pragma omp parallel for schedule(dynamic)
  for (int i = 0; i < UNITS; i++) {
    units[i].status = fx_compile(units[i].source, &options, &units[i].compiled);
    if (units[i].status != FX_OK) snprintf(units[i].text, sizeof units[i].text, "%s", fx_error_text());
  }
  printf("%d variants, %zu KiB of C a unit: %.1f s\n", UNITS * UNIT, strlen(units[0].source) >> 10,
         seconds() - start);
  for (int i = 0; i < UNITS; i++) {
    if (CHECK_MSG(units[i].status == FX_OK, "%s", units[i].text)) compare_unit(&units[i], i);
    fx_compiled_destroy(units[i].compiled);
    free(units[i].source);
    for (int k = 0; k < UNIT; k++) tile_case_destroy(&units[i].cases[k]);
  }
  free(units);
}

static const fx_test g_tests[] = {
    {"generated C matches the interpreter", generated_c_matches_interpreter},
};
FX_TEST_MAIN("tile", g_tests)
