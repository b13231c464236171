/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/limits.h"

static int64_t interval_count(const fx_limits *limits) {
  return (int64_t)limits->R * limits->Bm * fx_limits_heads(limits) * limits->Tpad;
}

size_t fx_limits_bytes(const fx_limits *limits) {
  return 2 * (size_t)interval_count(limits) * sizeof(int32_t); /* Tpad is a multiple of 128: 64-byte halves */
}

void fx_limits_bind(fx_limits *limits, void *memory) {
  limits->lo = memory;
  limits->hi = limits->lo + interval_count(limits);
}
