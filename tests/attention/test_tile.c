/* SPDX-License-Identifier: Apache-2.0 */
/* Generated C against the interpreter, bit by bit, on random variants. */
#include <time.h>

#include "attention/tile/compile.h"
#include "attention/tile/emit_c.h"
#include "attention/tile/interp.h"
#include "attention/tile/reference.h"
#include "tests/attention/tile_case.h"

enum { UNIT = 75, UNITS = 4, TILES = 3 };

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    tile_run(&interpreted, &data, i == 0 ? FX_TILE_ROWS : CASE_STRIDE, &want);
    tile_run(compiled, &data, i == 0 ? FX_TILE_ROWS : CASE_STRIDE, &got);
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
  CHECK_OK(fx_emit_c(variants, UNIT, &u->source));
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
