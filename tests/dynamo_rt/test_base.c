/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/base/status.h"
#include "tests/harness.h"

/* Known answers of Random123's kat_vectors for philox4x32-10 with a zero key. */
static void philox_known_answers(void) {
  fx_philox zero = fx_philox_at(0, 0, 0, 0);
  CHECK_INT(zero.word[0], 0x6627e8d5);
  CHECK_INT(zero.word[1], 0xe169c58d);
  CHECK_INT(zero.word[2], 0xbc57ac4c);
  CHECK_INT(zero.word[3], 0x9b00dbd8);
  fx_philox ones = fx_philox_at(0, ~0ull, ~0ull, ~0ull);
  CHECK_INT(ones.word[0], 0x408f276d);
  CHECK_INT(ones.word[1], 0x41c83b0e);
  CHECK_INT(ones.word[2], 0xa20bc7c6);
  CHECK_INT(ones.word[3], 0x6d5451fd);
}

static void error_record(void) {
  CHECK_STATUS(fx_error(FX_ERR_DATA, "file %s is empty", "a.txt"), FX_ERR_DATA);
  CHECK_STATUS(fx_error_prefix(FX_ERR_DATA, "rank %d", 3), FX_ERR_DATA);
  CHECK_STR(fx_error_text(), "rank 3: file a.txt is empty");
  CHECK_INT(fx_status_exit_code(FX_ERR_DATA), 3);
  CHECK_INT(fx_status_exit_code(FX_ERR_CONFIG), 2);
  CHECK_INT(fx_status_exit_code(FX_ERR_COMM), 4);
  CHECK_INT(fx_status_exit_code(FX_ERR_DIVERGED), 5);
  fx_error(FX_ERR_DATA, "%s cannot be read", "two\nlines\033[2J\x7f \xC3\xA4");
  CHECK_STATUS(fx_error_prefix(FX_ERR_DATA, "%s", "a\tb"), FX_ERR_DATA);
  CHECK_STR(fx_error_text(), "a?b: two?lines?[2J? \xC3\xA4 cannot be read");
  char longer[4096];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  fx_error(FX_ERR_DATA, "%s", longer);
  CHECK_INT(strlen(fx_error_text()), 2047);
}

static void error_excerpt(void) {
  fx_error(FX_ERR_CONFIG, "there is no \"foo\"");
  CHECK_STATUS(fx_error_excerpt(FX_ERR_CONFIG, "q >= foo\nrest", 8, 6), FX_ERR_CONFIG);
  CHECK_STR(fx_error_text(), "there is no \"foo\"\n  q >= foo\n       ^");
  char line[301];
  memset(line, '.', sizeof line);
  line[199] = '!';
  fx_error(FX_ERR_CONFIG, "long");
  fx_error_excerpt(FX_ERR_CONFIG, line, 300, 200);
  const char *shown = strchr(fx_error_text(), '\n') + 1, *caret = strchr(shown, '\n') + 1;
  CHECK_INT(caret - shown, 2 + 100 + 1);
  CHECK_INT(strchr(shown, '!') - shown, strchr(caret, '^') - caret);
  fx_error(FX_ERR_CONFIG, "end");
  fx_error_excerpt(FX_ERR_CONFIG, "ab", 2, 900); /* past the line: under its end */
  CHECK_STR(fx_error_text(), "end\n  ab\n    ^");
}

static void hash_known_answers(void) {
  char hex[33];
  fx_hash128_hex(fx_hash128_of("", 0), hex); /* `printf '' | xxh128sum` */
  CHECK_STR(hex, "99aa06d3014798d86001c324468d497f");
  fx_hasher *hasher = fx_hasher_create();
  fx_hasher_add(hasher, "fle", 3);
  fx_hasher_add(hasher, "xion", 4);
  fx_hash128 whole = fx_hash128_of("flexion", 7), pieces = fx_hasher_get(hasher);
  fx_hasher_destroy(hasher);
  CHECK(whole.low == pieces.low && whole.high == pieces.high);
}

static void growable_arrays(void) {
  int *array = NULL;
  int64_t capacity = 0;
  CHECK_OK(fx_grow(&array, &capacity, 3, sizeof *array));
  array[2] = 7;
  CHECK_OK(fx_grow(&array, &capacity, 100, sizeof *array));
  CHECK(capacity >= 100 && array[2] == 7 && array[99] == 0);
  free(array);
  void *aligned = NULL;
  CHECK_OK(fx_alloc_aligned(&aligned, 1));
  CHECK_INT((uintptr_t)aligned % FX_ALIGN, 0);
  free(aligned);
  /* a large one is whole to its last byte and starts where a huge page may */
  const size_t large = (9u << 20) + 5;
  CHECK_OK(fx_alloc_aligned(&aligned, large));
  CHECK_INT((uintptr_t)aligned % (2u << 20), 0);
  memset(aligned, 7, large);
  CHECK_INT(((char *)aligned)[large - 1], 7);
  free(aligned);
}

/* Whole and broken seconds, and waits that carry into the next second. */
static void times_to_wait_for(void) {
  static const int waits[] = {0, 1, 999, 1000, 2500, 2000000000};
  for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
    int64_t wait_ns = (int64_t)waits[i] * 1000000, before = fx_now_ns();
    struct timespec until = fx_time_after_ms(waits[i]), now;
    int64_t after = fx_now_ns(), at = (int64_t)until.tv_sec * 1000000000 + until.tv_nsec;
    CHECK(until.tv_nsec >= 0 && until.tv_nsec < 1000000000);
    CHECK_MSG(before + wait_ns <= at && at <= after + wait_ns, "%d ms: %lld, not from %lld to %lld", waits[i],
              (long long)at, (long long)(before + wait_ns), (long long)(after + wait_ns));
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 >= after / 1000000);
    CHECK(fx_now_ms() >= (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
  }
}

static const fx_test tests[] = {{"philox equals published vectors", philox_known_answers},
                                {"error sentences and exit codes", error_record},
                                {"an excerpt of the user's text under a sentence", error_excerpt},
                                {"XXH3 equals xxhsum, whole and in pieces", hash_known_answers},
                                {"growable and aligned memory", growable_arrays},
                                {"times to wait for", times_to_wait_for}};
FX_TEST_MAIN("base", tests)
