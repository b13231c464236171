/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/summary.h"

#include <math.h>

#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/base/memory.h"

typedef struct ends_i {
  int32_t lo, hi;
} ends_i;
typedef struct ends_f {
  float lo, hi;
} ends_f;

static int64_t blocks_above(int64_t count, int level) {
  return fx_ceil_div(count, level == 0 ? FX_SUMMARY_BLOCK : FX_SUMMARY_FAN);
}

size_t fx_summary_bytes(int64_t count) {
  int64_t blocks = 0, below = count;
  for (int level = 0; level < FX_SUMMARY_LEVELS && (level == 0 || below > FX_SUMMARY_FAN); level++) {
    below = blocks_above(below, level);
    blocks += below;
  }
  return fx_align_up((size_t)blocks * sizeof(ends_i), FX_ALIGN);
}

FX_ISA_CLONES static ends_i scan_ints(const int32_t *x, int64_t count) {
  int32_t lo = x[0], hi = x[0];
  for (int64_t i = 1; i < count; i++) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
  }
  return (ends_i){lo, hi};
}

static ends_f scan_floats(const float *x, int64_t count) {
  float lo = INFINITY, hi = -INFINITY;
  bool numbers = true;
  for (int64_t i = 0; i < count; i++) {
    lo = x[i] < lo ? x[i] : lo;
    hi = x[i] > hi ? x[i] : hi;
    numbers = numbers && x[i] == x[i];
  }
  return numbers ? (ends_f){lo, hi} : (ends_f){-INFINITY, INFINITY};
}

static ends_i join_ints(const ends_i *x, int64_t count) {
  ends_i all = x[0];
  for (int64_t i = 1; i < count; i++) {
    all.lo = x[i].lo < all.lo ? x[i].lo : all.lo;
    all.hi = x[i].hi > all.hi ? x[i].hi : all.hi;
  }
  return all;
}

static ends_f join_floats(const ends_f *x, int64_t count) {
  ends_f all = x[0];
  for (int64_t i = 1; i < count; i++) {
    all.lo = x[i].lo < all.lo ? x[i].lo : all.lo;
    all.hi = x[i].hi > all.hi ? x[i].hi : all.hi;
  }
  return all;
}

void fx_summary_build(fx_summary *summary, const void *data, int64_t count, bool floats, bool monotone,
                      void *memory) {
  *summary = (fx_summary){.data = data, .count = count, .floats = floats, .monotone = monotone && !floats};
  if (summary->monotone) return;
  ends_i *next = memory;
  int64_t below = count;
  for (int level = 0; level < FX_SUMMARY_LEVELS && (level == 0 || below > FX_SUMMARY_FAN); level++) {
    int64_t blocks = blocks_above(below, level), size = level == 0 ? FX_SUMMARY_BLOCK : FX_SUMMARY_FAN;
    summary->level[level] = next;
    for (int64_t i = 0; i < blocks; i++) {
      int64_t first = i * size, length = fx_min_i64(size, below - first);
      if (floats)
        ((ends_f *)summary->level[level])[i] =
            level == 0 ? scan_floats((const float *)data + first, length)
                       : join_floats((ends_f *)summary->level[level - 1] + first, length);
      else
        next[i] = level == 0 ? scan_ints((const int32_t *)data + first, length)
                             : join_ints((ends_i *)summary->level[level - 1] + first, length);
    }
    next += blocks;
    below = blocks;
  }
}

static void widen(const fx_summary *s, int level, int64_t from, int64_t count, fx_interval *all) {
  if (count <= 0) return;
  fx_interval_end lo, hi;
  if (s->floats) {
    ends_f ends = level < 0 ? scan_floats((const float *)s->data + from, count)
                            : join_floats((const ends_f *)s->level[level] + from, count);
    lo.f = ends.lo, hi.f = ends.hi;
    all->lo.f = lo.f < all->lo.f ? lo.f : all->lo.f;
    all->hi.f = hi.f > all->hi.f ? hi.f : all->hi.f;
    return;
  }
  ends_i ends = level < 0 ? scan_ints((const int32_t *)s->data + from, count)
                          : join_ints((const ends_i *)s->level[level] + from, count);
  lo.i = ends.lo, hi.i = ends.hi;
  all->lo.i = lo.i < all->lo.i ? lo.i : all->lo.i;
  all->hi.i = hi.i > all->hi.i ? hi.i : all->hi.i;
}

fx_interval fx_summary_range(const fx_summary *s, int64_t from, int64_t to) {
  fx_interval all;
  if (s->monotone) {
    all.lo.i = ((const int32_t *)s->data)[from];
    all.hi.i = ((const int32_t *)s->data)[to];
    return all;
  }
  if (s->floats)
    all.lo.f = INFINITY, all.hi.f = -INFINITY;
  else
    all.lo.i = INT64_MAX, all.hi.i = INT64_MIN;
  int64_t end = to + 1, length = s->count;
  for (int level = -1; from < end; level++) { /* what is left of a level's blocks on either side, then up */
    int64_t size = level < 0 ? FX_SUMMARY_BLOCK : FX_SUMMARY_FAN;
    bool top = level + 1 == FX_SUMMARY_LEVELS || !s->level[level + 1];
    int64_t inner = fx_ceil_div(from, size), outer = end == length ? fx_ceil_div(end, size) : end / size;
    if (top || inner >= outer) {
      widen(s, level, from, end - from, &all);
      break;
    }
    widen(s, level, from, inner * size - from, &all);
    widen(s, level, outer * size, end - outer * size, &all);
    from = inner, end = outer;
    length = fx_ceil_div(length, size);
  }
  return all;
}
