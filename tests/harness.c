/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness.h"

#include <CUnit/Basic.h>
#include <CUnit/CUnit.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dynamo_rt/base/philox.h"

static char g_temp_dir[256];

int fx_test_main(const char *suite, const fx_test *tests, int count) {
  if (CU_initialize_registry() != CUE_SUCCESS) return 1;
  CU_pSuite handle = CU_add_suite(suite, NULL, NULL);
  for (int i = 0; i < count; i++) CU_add_test(handle, tests[i].name, tests[i].run);
  CU_basic_set_mode(CU_BRM_VERBOSE);
  CU_basic_run_tests();
  unsigned failed = CU_get_number_of_failures() + CU_get_number_of_tests_failed();
  if (CU_get_number_of_asserts() == 0) {
    fprintf(stderr, "%s: no assertion ran\n", suite);
    failed = 1;
  }
  CU_cleanup_registry();
  if (!failed && g_temp_dir[0]) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", g_temp_dir);
    if (system(command) != 0) failed = 1; // NOLINT: a path this file made itself
  }
  return failed ? 1 : 0;
}

double fx_worse(double a, double b) {
  return isnan(a) || isnan(b) ? INFINITY : fmax(a, b);
}

void fx_sleep_ms(int ms) {
  nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
}

void fx_test_slice(int *index, int *of) {
  const char *text = getenv("FX_SLICE");
  bool read = text && sscanf(text, "%d/%d", index, of) == 2; // NOLINT: checked
  if (!read || *index < 0 || *of < 1) *index = 0, *of = 1;
}

bool fx_check(bool held, const char *file, int line, const char *format, ...) {
  char text[2048] = "";
  if (!held) {
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "\n%s:%d: %s\n", file, line, text);
  }
  CU_assertImplementation(held ? CU_TRUE : CU_FALSE, (unsigned)line, held ? "held" : text, file, "",
                          CU_FALSE);
  return held;
}

bool fx_check_status(fx_status got, fx_status expected, const char *file, int line, const char *expr) {
  return fx_check(got == expected, file, line, "%s: expected %s, got %s (%s)", expr, fx_status_name(expected),
                  fx_status_name(got), fx_error_text());
}

bool fx_check_int(long long got, long long expected, const char *file, int line, const char *expr) {
  return fx_check(got == expected, file, line, "%s: expected %lld, got %lld", expr, expected, got);
}

bool fx_check_str(const char *got, const char *expected, const char *file, int line, const char *expr) {
  return fx_check(got && strcmp(got, expected) == 0, file, line, "%s: expected \"%s\", got \"%s\"", expr,
                  expected, got ? got : "(null)");
}

bool fx_check_has(const char *text, const char *part, const char *file, int line) {
  return fx_check(text && strstr(text, part), file, line, "expected \"%s\" within \"%s\"", part,
                  text ? text : "(null)");
}

double fx_relative_l2(const float *got, const double *want, int64_t count) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    if (isnan(want[i]) && isnan(got[i])) continue;
    double d = (double)got[i] - want[i];
    error += d * d;
    norm += want[i] * want[i];
  }
  return isnan(error) ? INFINITY : sqrt(error) / (sqrt(norm) + 1e-30);
}

double fx_relative_l2_f(const float *got, const float *want, int64_t count) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    double d = (double)got[i] - (double)want[i];
    error += d * d;
    norm += (double)want[i] * (double)want[i];
  }
  return isnan(error) ? INFINITY : sqrt(error) / (sqrt(norm) + 1e-30);
}

void fx_fill_normal(float *data, int64_t count, uint64_t seed, float sigma) {
  for (int64_t i = 0; i < count; i++) {
    fx_philox r = fx_philox_at(seed, 0x7E57u, (uint64_t)i, 0);
    double radius = sqrt(-2.0 * log(fx_philox_open(r.word[0])));
    data[i] = (float)((double)sigma * radius * cos(2.0 * M_PI * fx_philox_open(r.word[1])));
  }
}

const char *fx_source_path(const char *relative) {
  static _Thread_local char path[1024];
  const char *root = getenv("FX_SOURCE_DIR");
  snprintf(path, sizeof path, "%s/%s", root ? root : ".", relative);
  return path;
}

const char *fx_temp_dir(void) {
  if (!g_temp_dir[0]) {
    const char *base = getenv("TMPDIR");
    snprintf(g_temp_dir, sizeof g_temp_dir, "%s/flexion-test-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(g_temp_dir)) {
      fprintf(stderr, "cannot make %s\n", g_temp_dir);
      abort();
    }
  }
  return g_temp_dir;
}

const char *fx_temp_file(const char *dir, const char *name, const char *text) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", dir, name);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(text, 1, strlen(text), file) != strlen(text) || fclose(file) != 0) {
    fprintf(stderr, "cannot write %s\n", path);
    abort();
  }
  return path;
}
