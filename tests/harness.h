/* SPDX-License-Identifier: Apache-2.0 */
/* The test harness: a CUnit suite from a table, checks that print what was expected and what came, and the
 * comparisons by relative norm that numeric tests share. */
#ifndef FX_TESTS_HARNESS_H
#define FX_TESTS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

typedef struct fx_test {
  const char *name;
  void (*run)(void);
} fx_test;

/* Runs the tests of one suite, prints CUnit's summary, returns the process exit code. */
int fx_test_main(const char *suite, const fx_test *tests, int count);
#define FX_TEST_MAIN(suite, tests)                                                \
  int main(void) {                                                                \
    return fx_test_main(suite, tests, (int)(sizeof(tests) / sizeof((tests)[0]))); \
  }

/* Random cases under sanitizers, which slow them down many times: what they look for shows in a few of them,
 * and the release build runs all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FX_TEST_CASES(count) ((count) / 8)
#else
#define FX_TEST_CASES(count) (count)
#endif

/* Each returns whether it held, after telling CUnit; on failure the sentence goes to stderr. */
bool fx_check(bool held, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool fx_check_status(fx_status got, fx_status expected, const char *file, int line, const char *expr);

/* The larger one; a NaN is larger than all, so that no maximum hides it. */
double fx_worse(double a, double b);

/* Which cases of a long suite to run: those numbered index, index + of, ..., from FX_SLICE=index/of; without
 * it all (0/1). */
void fx_test_slice(int *index, int *of);

void fx_sleep_ms(int ms);

/* The exit code of a suite that cannot run here; ctest reports it as skipped. */
enum { FX_TEST_SKIPPED = 77 };

#define CHECK(cond) fx_check((cond), __FILE__, __LINE__, "%s does not hold", #cond)
#define CHECK_MSG(cond, ...) fx_check((cond), __FILE__, __LINE__, __VA_ARGS__)
#define CHECK_OK(expr) fx_check_status((expr), FX_OK, __FILE__, __LINE__, #expr)
#define CHECK_STATUS(expr, expected) fx_check_status((expr), (expected), __FILE__, __LINE__, #expr)
#define CHECK_INT(got, expected) \
  fx_check_int((long long)(got), (long long)(expected), __FILE__, __LINE__, #got)
#define CHECK_STR(got, expected) fx_check_str((got), (expected), __FILE__, __LINE__, #got)
/* `text` contains `part` */
#define CHECK_HAS(text, part) fx_check_has((text), (part), __FILE__, __LINE__)
bool fx_check_int(long long got, long long expected, const char *file, int line, const char *expr);
bool fx_check_str(const char *got, const char *expected, const char *file, int line, const char *expr);
bool fx_check_has(const char *text, const char *part, const char *file, int line);

/* ||got - want|| / (||want|| + tiny), in double; infinite when `got` holds a NaN that `want` does not. */
double fx_relative_l2(const float *got, const double *want, int64_t count);
double fx_relative_l2_f(const float *got, const float *want, int64_t count);

/* Deterministic normal numbers with standard deviation sigma: element i of stream `seed`. */
void fx_fill_normal(float *data, int64_t count, uint64_t seed, float sigma);

/* $FX_SOURCE_DIR/relative (the source tree), valid until the next call on this thread. */
const char *fx_source_path(const char *relative);
/* Makes a fresh directory under $TMPDIR or /tmp; removed with everything in it when the process ends well. */
const char *fx_temp_dir(void);
/* Writes text to dir/name and returns the path (static storage, four calls live). */
const char *fx_temp_file(const char *dir, const char *name, const char *text);

#endif
