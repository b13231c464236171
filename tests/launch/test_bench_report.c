/* SPDX-License-Identifier: Apache-2.0 */
/* What `bench step` and `bench gemm` print of a GPU whose peak is known, of one whose peak is not, and of a
 * CPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launch/bench_report.c" /* launch is a program, no library */
#include "tests/harness.h"

typedef enum machine { KNOWN_GPU, UNKNOWN_GPU, CPU, MACHINES } machine;

static fx_machine_bounds bounds_of(machine m) {
  static const double gflops[MACHINES] = {[KNOWN_GPU] = 1000, [UNKNOWN_GPU] = 0, [CPU] = 800};
  return (fx_machine_bounds){.gflops = gflops[m], .copy_gbps = 50};
}

static fx_bench_step_report step_report(machine m) {
  fx_bench_step_report r = {.steps = 3, .step_ms = 2, .kernel_ms = 1, .gflops = 400, .num_ops = 1};
  r.bounds = bounds_of(m);
  r.memory.gpu = m != CPU;
  r.mfu_percent = m == KNOWN_GPU ? 37.5 : 0;
  r.ops[0] = (fx_bench_op){.name = "linear", .calls = 1, .ms = 1, .best_ms = 1, .gflop = 1, .gbyte = 1};
  return r;
}

static fx_bench_gemm_report gemm_report(machine m) {
  fx_bench_gemm_report r = {.count = 1, .gpu = m != CPU, .step_ms = 1, .bounds = bounds_of(m)};
  strcpy(r.provider, "a library");
  r.product[0] =
      (fx_bench_gemm_row){.name = "qkv", .m = 1, .n = 1, .k = 1, .calls = 1, .ms = 1, .gflops = 400};
  return r;
}

/* To be freed. */
static char *printed_step(machine m) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  fx_bench_step_report r = step_report(m);
  fx_bench_step_print(out, &r);
  fclose(out);
  return text;
}

static char *printed_gemm(machine m) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  fx_bench_gemm_report r = gemm_report(m);
  fx_bench_gemm_print(out, &r);
  fclose(out);
  return text;
}

static void lines_of_a_step(void) {
  static const char *const lines[MACHINES][3] = {
      [KNOWN_GPU] = {"arithmetic       400.0 GFLOP/s of 1000.0 (nominal peak): 40.0%\n",
                     "MFU             37.5 %\n", "       1000.0       50.0\n"},
      [UNKNOWN_GPU] = {"arithmetic       400.0 GFLOP/s; the peak of this GPU is not known\n",
                       "MFU                n/a\n", "          n/a       50.0\n"},
      [CPU] = {"arithmetic       400.0 GFLOP/s of 800.0 (multiply-adds in registers): 50.0%\n", "",
               "        800.0       50.0\n"}};
  for (int m = 0; m < MACHINES; m++) {
    char *text = printed_step(m);
    for (int i = 0; i < 3; i++) CHECK_HAS(text, lines[m][i]);
    CHECK((strstr(text, "MFU") != NULL) == (m != CPU));
    CHECK((strstr(text, "n/a") != NULL) == (m == UNKNOWN_GPU));
    free(text);
  }
}

static void lines_of_products(void) {
  static const char *const lines[MACHINES][2] = {
      [KNOWN_GPU] = {"a library; % of 1000.0 GFLOP/s (nominal peak)\n", "     400.0    40.0%\n"},
      [UNKNOWN_GPU] = {"a library; % of n/a (nominal peak)\n", "     400.0      n/a\n"},
      [CPU] = {"a library; % of 800.0 GFLOP/s (multiply-adds in registers)\n", "     400.0    50.0%\n"}};
  for (int m = 0; m < MACHINES; m++) {
    char *text = printed_gemm(m);
    for (int i = 0; i < 2; i++) CHECK_HAS(text, lines[m][i]);
    free(text);
  }
}

/* A number, or null where `expected` is 0. */
static void value_is(json_t *row, const char *key, double expected) {
  json_t *value = json_object_get(row, key);
  bool held = expected > 0 ? json_is_real(value) && fabs(json_real_value(value) - expected) < 1e-9
                           : json_is_null(value);
  CHECK_MSG(held, "%s: expected %g (0: null), got %g of type %d", key, expected, json_number_value(value),
            value ? (int)json_typeof(value) : -1);
}

static void json_has_null(void) {
  for (int m = 0; m < MACHINES; m++) {
    fx_bench_step_report step = step_report(m);
    fx_bench_gemm_report gemm = gemm_report(m);
    json_t *row = fx_bench_step_json(&step), *all = fx_bench_gemm_json(&gemm);
    value_is(row, "mfu_percent", step.mfu_percent);
    value_is(row, "bound_gflops", step.bounds.gflops);
    value_is(row, "gflops", 400);
    value_is(all, "bound_gflops", gemm.bounds.gflops);
    value_is(json_array_get(json_object_get(all, "products"), 0), "gflops", 400);
    json_decref(row);
    json_decref(all);
  }
}

static const fx_test tests[] = {{"lines of a step", lines_of_a_step},
                                {"lines of products", lines_of_products},
                                {"JSON has null", json_has_null}};
FX_TEST_MAIN("bench report", tests)
