/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/lanes.h"

#include <math.h>
#include <string.h>

#include "attention/lang/semantics.h"
#include "attention/tile/ops.h"
#include "attention/tile/tile.h"
#include "dynamo_rt/base/isa.h"

/* "omp simd" says that lanes do not depend on one another, which holds in place as well. */
#define FX_LANE_LOOP(op, of, in, out_type, value)                                                  \
  FX_ISA_CLONES static void loop_##op##_##of(int64_t n, void *out, const void *pa, const void *pb, \
                                             const void *pc) {                                     \
    const in *x = pa, *y = pb;                                                                     \
    out_type *z = out;                                                                             \
    (void)pc;                                                                                      \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                          \
      in a = x[i], b = y[i];                                                                       \
      (void)b;                                                                                     \
      z[i] = value;                                                                                \
    }                                                                                              \
  }
FX_TILE_OPS(FX_LANE_LOOP)

/* Floats go by their bits. */
FX_ISA_CLONES static void loop_select(int64_t n, void *out, const void *pa, const void *pb, const void *pc) {
  const int32_t *x = pa, *y = pb, *z = pc;
  int32_t *o = out;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    int32_t a = y[i], b = z[i];
    o[i] = x[i] ? a : b;
  }
}

fx_lanes_fn fx_lanes_get(fx_ex_op op, fx_ex_type arg_type) {
  static const fx_lanes_fn table[FX_EX_OP_COUNT][FX_EX_TYPE_COUNT] = {
#define FX_LANE_ENTRY(op, of, in, out, value) [FX_EX_##op][FX_EX_##of] = loop_##op##_##of,
      FX_TILE_OPS(FX_LANE_ENTRY)
#undef FX_LANE_ENTRY
          [FX_EX_SELECT] = {loop_select, loop_select, loop_select},
  };
  return table[op][arg_type];
}

FX_ISA_CLONES void fx_lanes_fill(int64_t n, int32_t *out, int32_t value) {
  for (int64_t i = 0; i < n; i++) out[i] = value;
}

/* A little above 1 / divisor: a * reciprocal is then never below an integer that a / divisor reaches, and too
 * large by less than |a| 2^-51 / divisor < 1 / divisor, so that truncation gives C's quotient. */
double fx_lanes_reciprocal(int32_t divisor) {
  return nextafter(1.0 / divisor, 1.0);
}

FX_ISA_CLONES void fx_lanes_div_by(int64_t n, int32_t *out, const int32_t *a, int32_t divisor,
                                   double reciprocal) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    int32_t quotient = (int32_t)(a[i] * reciprocal);
    out[i] = quotient - (fx_sem_rest(a[i], divisor, quotient) < 0);
  }
}

FX_ISA_CLONES void fx_lanes_mod_by(int64_t n, int32_t *out, const int32_t *a, int32_t divisor,
                                   double reciprocal) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    int32_t rest = fx_sem_rest(a[i], divisor, (int32_t)(a[i] * reciprocal));
    out[i] = rest + (rest < 0 ? divisor : 0);
  }
}

static inline int32_t clamp(int32_t index, int32_t extent) {
  int32_t from = index < 0 ? 0 : index;
  return from < extent ? from : extent - 1;
}

FX_ISA_CLONES static void load_1(int64_t n, int32_t *out, const int32_t *base, int32_t dim,
                                 const int32_t *index) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = base[clamp(index[i], dim)];
}

FX_ISA_CLONES static void gather(int64_t n, int32_t *out, const int32_t *base) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = base[out[i]];
}

FX_ISA_CLONES static void clamp_lanes(int64_t n, int32_t *out, int32_t dim, const int32_t *index) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = clamp(index[i], dim);
}

FX_ISA_CLONES static void flatten_2(int64_t n, int32_t *out, const int32_t *dim, const int32_t *row,
                                    const int32_t *column) {
  int32_t rows = dim[0], columns = dim[1];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = clamp(row[i], rows) * columns + clamp(column[i], columns);
}

FX_ISA_CLONES static void flatten_3(int64_t n, int32_t *out, const int32_t *dim,
                                    const int32_t *const index[3]) {
  const int32_t *x = index[0], *y = index[1], *z = index[2];
  int32_t d0 = dim[0], d1 = dim[1], d2 = dim[2];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = (clamp(x[i], d0) * d1 + clamp(y[i], d1)) * d2 + clamp(z[i], d2);
}

void fx_lanes_flatten(int64_t n, int32_t *flat, int ndim, const int32_t *dim, const int32_t *const index[3]) {
  if (ndim == 1) clamp_lanes(n, flat, dim[0], index[0]);
  if (ndim == 2) flatten_2(n, flat, dim, index[0], index[1]);
  if (ndim == 3) flatten_3(n, flat, dim, index);
}

void fx_lanes_load(int64_t n, int32_t *out, const int32_t *base, int ndim, const int32_t *dim,
                   const int32_t *const index[3]) {
  if (ndim == 1) {
    load_1(n, out, base, dim[0], index[0]);
    return;
  }
  fx_lanes_flatten(n, out, ndim, dim, index);
  gather(n, out, base);
}

FX_ISA_CLONES void fx_lanes_scale(int64_t n, float *out, const float *a, float factor) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = a[i] * factor;
}

FX_ISA_CLONES void fx_lanes_pack(int64_t keys, uint32_t *bits, const int32_t *lane) {
  for (int64_t k = 0; k < keys; k++) {
    uint32_t word = 0;
#pragma omp simd reduction(| : word)
    for (int32_t r = 0; r < FX_TILE_ROWS; r++) word |= (uint32_t)(lane[FX_TILE_ROWS * k + r] != 0) << r;
    bits[k] = word;
  }
}
