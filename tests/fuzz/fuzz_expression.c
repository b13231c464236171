/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions: whatever is accepted prints, and the print is accepted and means the same node; derivatives,
 * index faults and the canonical form of it exist. */
#include <math.h>

#include "attention/lang/derive.h"
#include "attention/lang/fault.h"
#include "attention/lang/parser.h"
#include "attention/lang/print.h"
#include "attention/lang/range.h"
#include "attention/variant/inputs.h"
#include "tests/fuzz/fuzz.h"

const char *const fx_fuzz_words[] = {"q",
                                     "kv",
                                     "h",
                                     "score",
                                     "T",
                                     "H",
                                     "window",
                                     "cap",
                                     "bias[h, q]",
                                     "doc_id[",
                                     "]",
                                     "(",
                                     ")",
                                     "&&",
                                     "||",
                                     "and",
                                     "or",
                                     "not ",
                                     "!",
                                     "?",
                                     ":",
                                     "==",
                                     "<=",
                                     "<",
                                     ">>",
                                     "<<",
                                     "min(",
                                     "max(",
                                     "where(",
                                     "exp(",
                                     "log(",
                                     "tanh(",
                                     "floor(",
                                     "int(",
                                     "float(",
                                     "bool(",
                                     "abs(",
                                     ",",
                                     "-",
                                     "+",
                                     "*",
                                     "/",
                                     "%",
                                     "^",
                                     "|",
                                     "&",
                                     "~",
                                     "0",
                                     "1",
                                     "0.5",
                                     "1e38",
                                     "inf",
                                     "true",
                                     "false",
                                     "2147483647",
                                     "2147483648",
                                     "0xffffffff",
                                     "#",
                                     "\n",
                                     "b",
                                     "((((((((((((((((",
                                     "- - - - - - - -",
                                     "?1:?1:?1:",
                                     "1e999",
                                     "cube[h][q][kv]",
                                     NULL};

static fx_ex_pool *make_pool(void) {
  fx_ex_pool *pool = fx_ex_pool_create(&(fx_ex_ranges){4, 300, 300});
  fx_ex_buffer bias = {.name = "bias", .type = FX_EX_FLOAT, .ndim = 2, .dim = {4, 32}, .learnable = true};
  fx_ex_buffer slopes = {.name = "slopes", .type = FX_EX_FLOAT, .ndim = 1, .dim = {4}};
  fx_ex_buffer cube = {.name = "cube", .type = FX_EX_INT, .ndim = 3, .dim = {4, 19, 300}, .lo = -5, .hi = 5};
  fuzz_check(pool != NULL, "no pool");
  fx_ex_declare_param(pool, "cap", 30.0f);
  fx_ex_declare_param(pool, "window", 7.5f);
  fx_ex_declare_buffer(pool, &bias);
  fx_ex_declare_buffer(pool, &slopes);
  fx_ex_declare_buffer(pool, &cube);
  for (int32_t i = 0; i < FX_VARIANT_NUM_INPUTS; i++) {
    fx_ex_buffer input = fx_variant_input(i, 300);
    fuzz_check(fx_ex_declare_buffer(pool, &input) >= 0, "an input of every batch is refused");
  }
  return pool;
}

static void count_warning(void *self, const char *sentence) {
  fuzz_check(strstr(sentence, "divides ints") != NULL, "an unknown warning");
  ++*(int *)self;
}

static void accepted(fx_ex_pool *pool, fx_ex node) {
  int64_t lo, hi;
  fx_ex fault = FX_EX_NONE, slope = FX_EX_NONE;
  char *text = fx_ex_print(pool, node);
  fuzz_check(text != NULL, "no print");
  fx_ex again = fx_ex_parse(pool, &(fx_ex_text){.text = text}, NULL);
  if (again != node) fprintf(stderr, "%s\n", text);
  fuzz_check(again != FX_EX_NONE, "the print is refused");
  fuzz_check(again == node, "the print means another node");
  free(text);
  if (fx_ex_range(pool, node, &lo, &hi)) fuzz_check(lo <= hi, "an empty range");
  if (fx_ex_get(pool, node)->type == FX_EX_FLOAT) {
    (void)fx_ex_may_blow_up(pool, node);
    slope = fx_ex_derivative(pool, node, fx_ex_variable(pool, FX_EX_SCORE));
    if (slope == FX_EX_NONE) fuzz_refused(FX_ERR_CONFIG, FX_ERR_CONFIG);
  }
  fx_status status = fx_ex_fault(pool, node, &fault);
  if (status != FX_OK) fuzz_refused(status, FX_ERR_CONFIG);
  char *canonical = fx_ex_canonical(pool, (const fx_ex[]){node, slope, fault}, 3);
  fuzz_check(canonical != NULL, "no canonical form");
  free(canonical);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(size + 1, 1);
  int warnings = 0;
  if (!text) return 0;
  if (size) memcpy(text, data, size);
  fx_ex_pool *pool = make_pool();
  fx_ex_scope scope = {.self = &warnings, .warn = count_warning};
  fx_ex_text at = {.text = text, .name = "input.yaml", .line = 3, .column = 9, .quoted = true};
  fx_ex node = fx_ex_parse(pool, &at, NULL);
  if (node != FX_EX_NONE)
    accepted(pool, node);
  else
    fuzz_refused(FX_ERR_CONFIG, FX_ERR_CONFIG);
  if (fx_ex_parse(pool, &at, &scope) == FX_EX_NONE) fuzz_refused(FX_ERR_CONFIG, FX_ERR_CONFIG);
  fx_error_clear();
  fx_ex_pool_destroy(pool);
  free(text);
  return 0;
}
