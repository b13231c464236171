/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory: zeroed allocations that report failure as a status, 64-byte alignment for everything a kernel
 * reads, growable arrays, and owned formatted strings. */
#ifndef FX_DYNAMO_RT_BASE_MEMORY_H
#define FX_DYNAMO_RT_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_ALIGN = 64 };

static inline size_t fx_align_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}
static inline int64_t fx_ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
static inline int64_t fx_min_i64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t fx_max_i64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static inline double fx_mib(int64_t bytes) {
  return (double)bytes / 1048576.0;
}

/* Zeroed array of count elements in *out (a pointer to a pointer); released with free(). */
fx_status fx_calloc(void *out, size_t count, size_t size);
/* Uninitialised, 64-byte aligned, size rounded up to 64; large ones on huge pages where the kernel has them;
 * released with free(). */
fx_status fx_alloc_aligned(void *out, size_t bytes);
/* Grows *array (element size `size`) so that it holds at least `need` elements; new elements are zero.
 * *capacity is updated. Contents move: keep indices, not pointers. */
fx_status fx_grow(void *array, int64_t *capacity, int64_t need, size_t size);
/* malloc'ed formatted string, NULL when out of memory. */
char *fx_strfmt(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* malloc'ed copy, NULL when text is NULL or memory is out. */
char *fx_strdup(const char *text);

#ifdef __cplusplus
}
#endif
#endif
