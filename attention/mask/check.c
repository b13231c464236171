/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/check.h"

#include "dynamo_rt/base/isa.h"

/* What is wrong with x[i], i > 0, given its predecessor: 1 range, 2 order, 4 segment start, 8 segment end. A
 * segment buffer keeps its value or jumps to i: with x[0] = 0 that is x[x[i]] == x[i] <= i and monotone. One
 * of ends keeps its value until it is reached. */
static inline __attribute__((always_inline)) int32_t wrong_at(const fx_ex_buffer *d, int32_t before,
                                                              int32_t x, int32_t i, int32_t asked) {
  int32_t range = (x < d->lo) | (x > d->hi), order = x < before;
  int32_t start = (x != before) & (x != i), end = (x <= i) | ((x != before) & (before != i));
  return (range | order << 1 | start << 2 | end << 3) & asked;
}

FX_ISA_CLONES static int32_t any_wrong(const fx_ex_buffer *declared, const int32_t *x, int64_t count,
                                       int32_t asked) {
  int32_t wrong = 0;
  fx_ex_buffer d = {.lo = declared->lo, .hi = declared->hi};
  for (int64_t i = 1; i < count; i++) wrong |= wrong_at(&d, x[i - 1], x[i], (int32_t)i, asked);
  return wrong;
}

static fx_status report(const fx_ex_buffer *d, const int32_t *x, int64_t i, int32_t wrong, int32_t b) {
  const char *name = d->name;
  if (wrong & 1)
    return fx_error(FX_ERR_DATA, "%s of sample %d is %d at position %lld, expected %d..%d", name, b, x[i],
                    (long long)i, d->lo, d->hi);
  if (wrong & 12)
    return fx_error(FX_ERR_DATA,
                    "%s of sample %d is %d at position %lld, but it must be %s (the mask relies on it)", name,
                    b, x[i], (long long)i,
                    d->segment ? "the first position of its segment, for all of the segment"
                               : "one past the last position of its segment, for all of the segment");
  return fx_error(FX_ERR_DATA,
                  "%s of sample %d falls from %d to %d at position %lld, but it is declared monotone", name,
                  b, x[i - 1], x[i], (long long)i);
}

fx_status fx_mask_check_buffer(const fx_ex_buffer *d, const int32_t *x, int64_t count, int32_t b) {
  int32_t asked =
      (d->lo > INT32_MIN || d->hi < INT32_MAX) | d->monotone << 1 | d->segment << 2 | d->segment_end << 3;
  if (!asked) return FX_OK;
  int32_t first = x[0] < d->lo || x[0] > d->hi;
  if (d->segment && x[0] != 0) first |= 4;
  if (d->segment_end && x[0] < 1) first |= 8;
  if (first & asked) return report(d, x, 0, first, b);
  if (!any_wrong(d, x, count, asked)) return FX_OK;
  int64_t i = 1;
  while (!wrong_at(d, x[i - 1], x[i], (int32_t)i, asked)) i++;
  return report(d, x, i, wrong_at(d, x[i - 1], x[i], (int32_t)i, asked), b);
}
