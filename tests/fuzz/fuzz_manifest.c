/* SPDX-License-Identifier: Apache-2.0 */
/* A step's manifest, once as it is (the hash at its end refuses nearly all) and once sealed afresh, so that
 * the parser behind the hash is reached. What is accepted prints, and reads back to the same print. */
#define _GNU_SOURCE /* memmem */
#include "core/checkpoint/manifest.h"
#include "tests/fuzz/fuzz.h"

const char *const fx_fuzz_words[] = {"-1",
                                     "0",
                                     "1",
                                     "2",
                                     "256",
                                     "4294967296",
                                     "9223372036854775807",
                                     "9223372036854775808",
                                     "1e300",
                                     "1e400",
                                     "1.5",
                                     "null",
                                     "true",
                                     "\"\"",
                                     "[]",
                                     "{}",
                                     "[[[[",
                                     "\\u0000",
                                     "\\ud800",
                                     "\"shape\": [3, 4]",
                                     "\"dtype\": \"bfloat16\"",
                                     "/model/x",
                                     "/trainer/x",
                                     "/model/../x",
                                     "shard_00001.h5",
                                     "shard_00256.h5",
                                     "../index.h5",
                                     ", \"more\": 1",
                                     "float64",
                                     "\"fragments\"",
                                     "00000000000000000000000000000000",
                                     "[\"00000000000000000000000000000000\"]",
                                     "\"step\": 1, \"step\": 1",
                                     NULL};

static void accepted(const char *text, size_t size) {
  fx_manifest m, again;
  char *first = NULL, *second = NULL;
  size_t first_size = 0, second_size = 0;
  fuzz_check(fx_manifest_parse(text, size, "again", &m) == FX_OK, "opened, but not parsed");
  fuzz_check(fx_manifest_print(&m, &first, &first_size) == FX_OK, "no print");
  fuzz_check(fx_manifest_parse(first, first_size, "print", &again) == FX_OK, "the print is refused");
  fuzz_check(fx_manifest_print(&again, &second, &second_size) == FX_OK, "no second print");
  fuzz_check(first_size == second_size && memcmp(first, second, first_size) == 0, "the print changes");
  for (int64_t i = 0; i < m.n_tensors; i++)
    fuzz_check(fx_manifest_find(&m, m.tensors[i].path) == i, "a tensor is not found");
  fx_manifest_fini(&m);
  fx_manifest_fini(&again);
  free(first);
  free(second);
}

static void open_step(const char *text, size_t size) {
  char path[512], step[512];
  fx_ckpt *ckpt = NULL;
  fuzz_path(step, ".");
  fuzz_path(path, "manifest.json");
  fuzz_write(path, text, size);
  fx_status status = fx_ckpt_open(step, &ckpt);
  if (status != FX_OK) {
    fuzz_refused(status, FX_ERR_CHECKPOINT);
    return;
  }
  accepted(text, size);
  fuzz_refused(fx_ckpt_check(ckpt, NULL), FX_ERR_CHECKPOINT); /* there is no index.h5 */
  fx_ckpt_close(ckpt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char seal[] = ",\n\"manifest_xxh3_128\"";
  const char *text = (const char *)data, *tail = size ? memmem(text, size, seal, sizeof seal - 1) : NULL;
  size_t sealed_size = 0, body = tail ? (size_t)(tail - text) : size;
  open_step(text, size);
  char *sealed = fx_manifest_seal(text, body, &sealed_size);
  if (sealed) open_step(sealed, sealed_size);
  free(sealed);
  return 0;
}
