/* SPDX-License-Identifier: Apache-2.0 */
/* The least and greatest values of a buffer over any range of it: per 128 values, and a pyramid above.
 *
 * Must not know: expressions, masks. */
#ifndef FX_ATTENTION_MASK_SUMMARY_H
#define FX_ATTENTION_MASK_SUMMARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An end of an interval: i of ints and conditions, f of floats. */
typedef union fx_interval_end {
  int64_t i;
  double f;
} fx_interval_end;
typedef struct fx_interval {
  fx_interval_end lo, hi;
} fx_interval;

enum { FX_SUMMARY_BLOCK = 128, FX_SUMMARY_FAN = 16, FX_SUMMARY_LEVELS = 8 };

typedef struct fx_summary {
  const void *data; /* int32 or float, borrowed */
  int64_t count;
  bool floats, monotone;
  void *level[FX_SUMMARY_LEVELS]; /* [blocks of the level][lo, hi] int32 or float */
} fx_summary;

/* Bytes behind the summary of `count` values, a multiple of 64. */
size_t fx_summary_bytes(int64_t count);
/* Builds it in `memory`: O(count). A monotone buffer (ints) needs no pyramid and memory may be NULL. */
void fx_summary_build(fx_summary *summary, const void *data, int64_t count, bool floats, bool monotone,
                      void *memory);
/* Interval of the values at [from, to], 0 <= from <= to < count; a NaN among them gives [-inf, inf]. */
fx_interval fx_summary_range(const fx_summary *summary, int64_t from, int64_t to);

#ifdef __cplusplus
}
#endif
#endif
