/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/tensor/dtype.h"

#include <string.h>

static const struct {
  size_t bytes;
  const char *name;
} g_dtypes[FX_DTYPE_COUNT] = {
#define FX_DTYPE_ROW(name, bytes, text) {bytes, text},
    FX_DTYPE_LIST(FX_DTYPE_ROW)
#undef FX_DTYPE_ROW
};

size_t fx_dtype_bytes(fx_dtype dtype) {
  return (unsigned)dtype < FX_DTYPE_COUNT ? g_dtypes[dtype].bytes : 0;
}

const char *fx_dtype_name(fx_dtype dtype) {
  return (unsigned)dtype < FX_DTYPE_COUNT ? g_dtypes[dtype].name : "unknown";
}

fx_dtype fx_dtype_from_name(const char *name) {
  int i = 0;
  while (i < FX_DTYPE_COUNT && strcmp(g_dtypes[i].name, name) != 0) i++;
  return (fx_dtype)i;
}

float fx_bf16_to_f32(uint16_t bits) {
  uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

uint16_t fx_f32_to_bf16(float value) {
  uint32_t word;
  memcpy(&word, &value, sizeof word);
  if ((word & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((word >> 16) | 0x40u); /* quiet the NaN */
  return (uint16_t)((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
}
