/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 4 * HUGE_PAGE };

fx_status fx_calloc(void *out, size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size ? size : 1);
  if (!memory) return fx_error(FX_ERR_MEMORY, "out of host memory for %zu x %zu bytes", count, size);
  memcpy(out, &memory, sizeof memory);
  return FX_OK;
}

fx_status fx_alloc_aligned(void *out, size_t bytes) {
  const size_t alignment = bytes >= HUGE_FROM ? HUGE_PAGE : FX_ALIGN;
  void *memory = NULL;
  if (posix_memalign(&memory, alignment, fx_align_up(bytes ? bytes : 1, FX_ALIGN)) != 0)
    return fx_error(FX_ERR_MEMORY, "out of host memory for %.1f MiB; use a smaller model or micro_batch_size",
                    (double)bytes / 1048576.0);
#ifdef MADV_HUGEPAGE
  /* Hardware prefetchers stop at the end of a page: passes over weights and moments run a sixth to a third
   * faster on huge pages (tests/bench/RESULTS.md). Only whole ones, so that nothing beyond `bytes` becomes
   * resident. A kernel without them says no, and nothing is lost. */
  if (bytes >= HUGE_FROM) madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  memcpy(out, &memory, sizeof memory);
  return FX_OK;
}

fx_status fx_grow(void *array, int64_t *capacity, int64_t need, size_t size) {
  if (need <= *capacity) return FX_OK;
  int64_t wanted = *capacity ? *capacity : 8;
  while (wanted < need) wanted *= 2;
  void *old;
  memcpy(&old, array, sizeof old);
  char *fresh = realloc(old, (size_t)wanted * size);
  if (!fresh)
    return fx_error(FX_ERR_MEMORY, "out of host memory for %lld x %zu bytes", (long long)wanted, size);
  memset(fresh + (size_t)*capacity * size, 0, (size_t)(wanted - *capacity) * size);
  memcpy(array, &fresh, sizeof fresh);
  *capacity = wanted;
  return FX_OK;
}

char *fx_strfmt(const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  char *text = length < 0 ? NULL : malloc((size_t)length + 1);
  if (text) vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  return text;
}

char *fx_strdup(const char *text) {
  return text ? fx_strfmt("%s", text) : NULL;
}
