/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz drivers share. Each has libFuzzer's entry, so that clang may drive it, and is also linked
 * with driver.c, which mutates the committed seeds with a generator of fixed seed: the same inputs on every
 * machine. */
#ifndef FX_TESTS_FUZZ_FUZZ_H
#define FX_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern const char *const fx_fuzz_words[]; /* the format's tokens, NULL at the end */

/* Ends the process: the driver then says which iteration it was. */
static inline void fuzz_check(bool held, const char *what) {
  if (held) return;
  fprintf(stderr, "%s: \"%s\"\n", what, fx_error_text());
  abort();
}

/* A refusal is of the expected kind and one sentence on one line; two more lines may show an expression's
 * text and a caret. */
static inline void fuzz_refused(fx_status got, fx_status expected) {
  const char *text = fx_error_text();
  fuzz_check(got == expected, "another status than expected");
  fuzz_check(text[0] != 0, "no sentence");
  for (const char *c = text; *c; c++)
    fuzz_check(strncmp(c, "\n  ", 3) == 0 || ((unsigned char)*c >= 0x20 && *c != 0x7F),
               "a control character in the sentence");
  fx_error_clear();
}

/* $FX_FUZZ_DIR/name; the driver makes that directory. */
static inline void fuzz_path(char path[512], const char *name) {
  const char *dir = getenv("FX_FUZZ_DIR");
  fuzz_check(dir != NULL, "FX_FUZZ_DIR has to name a scratch directory");
  snprintf(path, 512, "%s/%s", dir, name);
}

static inline void fuzz_write(const char *path, const void *data, size_t size) {
  FILE *file = fopen(path, "wb");
  fuzz_check(file && fwrite(data, 1, size, file) == size && fclose(file) == 0, path);
}

#endif
