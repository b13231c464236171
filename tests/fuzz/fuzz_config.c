/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration as text in memory, or, when the input has lines `%%%`, as a file, a second file
 * `other.yaml` that it may include, and lines of overrides. What is accepted prints, and reads back to the
 * same print. */
#include "core/config/config.h"
#include "tests/fuzz/fuzz.h"

enum { OVERRIDES = 16 };

const char *const fx_fuzz_words[] = {"model",
                                     "attention",
                                     "train",
                                     "data",
                                     "include",
                                     "optimizer",
                                     "betas",
                                     "params",
                                     "auto",
                                     "null",
                                     "~",
                                     "true",
                                     "-1",
                                     "0",
                                     "1e400",
                                     "9223372036854775808",
                                     "[",
                                     "]",
                                     "{",
                                     "}",
                                     ": ",
                                     "\n  ",
                                     "&a ",
                                     "*a",
                                     "!!int 3",
                                     "\"\\0\"",
                                     "'",
                                     "<<: ",
                                     "- ",
                                     "\n---\n",
                                     "\n%%%\n",
                                     "other.yaml",
                                     "main.yaml",
                                     "llama",
                                     "gpt2",
                                     "rope",
                                     "swiglu",
                                     "sliding_window",
                                     "window",
                                     "hidden_sise: 3",
                                     "mask: x",
                                     "{all: [causal, document, ",
                                     "{not: ",
                                     "q >= kv",
                                     "score: [softcap, alibi, -score]",
                                     "layers: [local, causal]",
                                     "variants: {local: {mask: causal}}",
                                     "local",
                                     "params: {n: 3}",
                                     "buffers: {t: {shape: [H, 2*n + 1], learnable: true}}",
                                     "expression: i * 2",
                                     "other.yaml]",
                                     "attention.mask=kv <= q ? true : false",
                                     "attention.variants.local.params.n=4",
                                     "tensor: 2",
                                     "0.5",
                                     "\t",
                                     "\xEF\xBB\xBF",
                                     "\xC3\x28",
                                     "model.hidden_size=24",
                                     "attention.params.window=3",
                                     "data.train=[a, b]",
                                     "runs/x",
                                     "[0.9, 0.95]",
                                     "\r\n",
                                     NULL};

static void accepted(const fx_config *cfg) {
  fx_config *again = NULL;
  char *text = fx_config_print(cfg);
  fuzz_check(text != NULL, "no print");
  fuzz_check(fx_config_parse(text, "again", &again) == FX_OK, "the print is refused");
  char *second = fx_config_print(again);
  fuzz_check(second && strcmp(text, second) == 0, "the print changes when it is read back");
  fx_config_destroy(again);
  free(text);
  free(second);
  fuzz_check(fx_config_where(cfg, "model.hidden_size") && !fx_config_where(cfg, "model.nothing"), "where");
  if (fx_config_check_train(cfg) != FX_OK) fuzz_refused(FX_ERR_CONFIG, FX_ERR_CONFIG);
  if (fx_config_check_ranks(cfg, 2) != FX_OK) fuzz_refused(FX_ERR_CONFIG, FX_ERR_CONFIG);
}

static const char *next_part(char **rest) {
  char *part = *rest, *cut = part ? strstr(part, "\n%%%\n") : NULL;
  if (cut) cut[1] = '\0';
  *rest = cut ? cut + 5 : NULL;
  return part ? part : "";
}

static fx_status load(char *text, fx_config **cfg) {
  char path[512], other[512], *rest = text, *save = NULL;
  const char *overrides[OVERRIDES];
  int n = 0;
  fuzz_path(path, "main.yaml");
  fuzz_path(other, "other.yaml");
  const char *first = next_part(&rest), *second = next_part(&rest);
  fuzz_write(path, first, strlen(first));
  fuzz_write(other, second, strlen(second));
  for (char *line = rest ? strtok_r(rest, "\n", &save) : NULL; line && n < OVERRIDES;
       line = strtok_r(NULL, "\n", &save))
    overrides[n++] = line;
  return fx_config_load(path, overrides, n, cfg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fx_config *cfg = NULL;
  char *text = calloc(size + 1, 1);
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  fx_status status = strstr(text, "\n%%%\n") ? load(text, &cfg) : fx_config_parse(text, "input", &cfg);
  if (status == FX_OK)
    accepted(cfg);
  else
    fuzz_refused(status, FX_ERR_CONFIG);
  fx_config_destroy(cfg);
  free(text);
  return 0;
}
