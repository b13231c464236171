/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/variant/inputs.h"

#include <stdio.h>
#include <string.h>

typedef enum bound { ZERO, ONE, LAST, LENGTH, ANY } bound; /* 0, 1, T - 1, T, INT32_MAX */

static const struct {
  const char *name;
  bound lo, hi;
  bool monotone, segment, segment_end;
} g_inputs[] = {
    {"doc_start", ZERO, LAST, true, true, false}, {"doc_end", ONE, LENGTH, true, false, true},
    {"doc_id", ZERO, LAST, true, false, false},   {"position", ZERO, LAST, false, false, false},
    {"token", ZERO, ANY, false, false, false},    {"turn", ZERO, LAST, false, false, false},
    {"role", ZERO, ONE, false, false, false},
};
_Static_assert(sizeof g_inputs / sizeof g_inputs[0] == FX_VARIANT_NUM_INPUTS, "the count in the header");

const char *fx_variant_input_name(int32_t index) {
  return g_inputs[index].name;
}

int32_t fx_variant_input_find(const char *name) {
  for (int32_t i = 0; i < FX_VARIANT_NUM_INPUTS; i++)
    if (strcmp(g_inputs[i].name, name) == 0) return i;
  return -1;
}

static int32_t value_of(bound b, int32_t T) {
  const int32_t values[] = {[ZERO] = 0, [ONE] = 1, [LAST] = T - 1, [LENGTH] = T, [ANY] = INT32_MAX};
  return values[b];
}

fx_ex_buffer fx_variant_input(int32_t index, int32_t T) {
  fx_ex_buffer buffer = {.type = FX_EX_INT, .ndim = 1, .dim = {T}, .per_batch = true};
  snprintf(buffer.name, sizeof buffer.name, "%s", g_inputs[index].name);
  buffer.monotone = g_inputs[index].monotone;
  buffer.segment = g_inputs[index].segment;
  buffer.segment_end = g_inputs[index].segment_end;
  buffer.lo = value_of(g_inputs[index].lo, T);
  buffer.hi = value_of(g_inputs[index].hi, T);
  return buffer;
}
