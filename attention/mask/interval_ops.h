/* SPDX-License-Identifier: Apache-2.0 */
/* The operators on intervals, 16 lanes each. Private to attention/mask.
 *
 * Ints: exact over int64, then brought back to int32: where both ends wrap by the same multiple of 2^32 the
 * interval moves, else it is all of int32. Floats: an operation rounded to float is monotone in its exact
 * result, so the ends of add, subtract, multiply, divide, sqrt and floor are exact; the other functions are
 * widened by more than their error. [-inf, inf] may also be NaN, no other interval is. */
#ifndef FX_ATTENTION_MASK_INTERVAL_OPS_H
#define FX_ATTENTION_MASK_INTERVAL_OPS_H

#include <math.h>

#include "attention/mask/interval.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FX_INLINE static inline __attribute__((always_inline))

/* One operand or result: its lo and hi lanes. */
typedef struct fx_lanes_in {
  const fx_interval_end *lo, *hi;
} fx_lanes_in;
typedef struct fx_lanes_out {
  fx_interval_end *lo, *hi;
} fx_lanes_out;

/* Results never overlap operands. */
#define FX_EACH _Pragma("omp simd") for (int k = 0; k < FX_INTERVAL_LANES; k++)
#define FX_EACH_SCALAR for (int k = 0; k < FX_INTERVAL_LANES; k++)

FX_INLINE int64_t fx_lane_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
FX_INLINE int64_t fx_lane_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Stores [lo, hi] as int32 values wrap it. */
FX_INLINE void fx_lane_store(fx_lanes_out to, int k, int64_t lo, int64_t hi) {
  int64_t turns = (lo + 0x80000000ll) >> 32;
  bool together = turns == (hi + 0x80000000ll) >> 32;
  to.lo[k].i = together ? lo - turns * 0x100000000ll : INT32_MIN;
  to.hi[k].i = together ? hi - turns * 0x100000000ll : INT32_MAX;
}

/* floor(a / b), exact for |a| < 2^32 and 0 < b < 2^32: a + 1/2 is at least 1 / 2b from a multiple of b, far
 * beyond the rounding error. */
FX_INLINE int64_t fx_lane_floor_div(int64_t a, double inverse) {
  return (int64_t)__builtin_floor(((double)a + 0.5) * inverse);
}

FX_INLINE void fx_lanes_mul(fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH {
    int64_t p = a.lo[k].i * b.lo[k].i, q = a.lo[k].i * b.hi[k].i, r = a.hi[k].i * b.lo[k].i,
            s = a.hi[k].i * b.hi[k].i;
    fx_lane_store(to, k, fx_lane_min(fx_lane_min(p, q), fx_lane_min(r, s)),
                  fx_lane_max(fx_lane_max(p, q), fx_lane_max(r, s)));
  }
}

/* By one divisor c, neither 0 nor -1. */
FX_INLINE void fx_lanes_div_by(fx_lanes_out to, fx_lanes_in a, int64_t c) {
  double inverse = 1.0 / (double)(c < 0 ? -c : c);
  FX_EACH {
    int64_t lo = c < 0 ? -a.hi[k].i : a.lo[k].i, hi = c < 0 ? -a.lo[k].i : a.hi[k].i;
    to.lo[k].i = fx_lane_floor_div(lo, inverse);
    to.hi[k].i = fx_lane_floor_div(hi, inverse);
  }
}

/* By one divisor c, neither 0 nor -1: exact where both ends share a quotient. The remainder has c's sign. */
FX_INLINE void fx_lanes_mod_by(fx_lanes_out to, fx_lanes_in a, int64_t c) {
  int64_t size = c < 0 ? -c : c, least = c < 0 ? c + 1 : 0;
  double inverse = 1.0 / (double)size;
  FX_EACH { /* for c < 0, a mod c = -((-a) mod -c) */
    int64_t lo = c < 0 ? -a.hi[k].i : a.lo[k].i, hi = c < 0 ? -a.lo[k].i : a.hi[k].i;
    int64_t first = fx_lane_floor_div(lo, inverse), last = fx_lane_floor_div(hi, inverse);
    int64_t x = lo - first * size, y = hi - last * size;
    to.lo[k].i = first != last ? least : c < 0 ? -y : x;
    to.hi[k].i = first != last ? least + size - 1 : c < 0 ? -x : y;
  }
}

/* Any divisors; scalar. */
FX_INLINE void fx_lanes_div(fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH_SCALAR {
    if (b.lo[k].i <= 0) {
      to.lo[k].i = INT32_MIN, to.hi[k].i = INT32_MAX;
      continue;
    }
    double least = 1.0 / (double)b.lo[k].i, most = 1.0 / (double)b.hi[k].i;
    to.lo[k].i = fx_lane_floor_div(a.lo[k].i, a.lo[k].i < 0 ? least : most);
    to.hi[k].i = fx_lane_floor_div(a.hi[k].i, a.hi[k].i < 0 ? most : least);
  }
}
FX_INLINE void fx_lanes_mod(fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH_SCALAR {
    bool below = a.lo[k].i >= 0 && a.hi[k].i < b.lo[k].i; /* the remainder is a itself */
    int64_t lo = b.lo[k].i < 0 ? b.lo[k].i + 1 : 0, hi = b.hi[k].i > 0 ? b.hi[k].i - 1 : 0;
    to.lo[k].i = below ? a.lo[k].i : lo < 0 ? lo : 0;
    to.hi[k].i = below ? a.hi[k].i : hi;
  }
}

/* 2^n - 1 >= x >= 0, the least one. */
FX_INLINE int64_t fx_lane_ones(int64_t x) {
  x |= x >> 1, x |= x >> 2, x |= x >> 4, x |= x >> 8, x |= x >> 16;
  return x;
}

FX_INLINE void fx_lanes_bits(fx_ex_op op, fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH_SCALAR {
    int64_t al = a.lo[k].i, ah = a.hi[k].i, bl = b.lo[k].i, bh = b.hi[k].i, lo = INT32_MIN, hi = INT32_MAX;
    if (al == ah && bl == bh) {
      lo = hi = op == FX_EX_BIT_AND ? (al & bl) : op == FX_EX_BIT_OR ? (al | bl) : (al ^ bl);
    } else if (op == FX_EX_BIT_AND && (al >= 0 || bl >= 0)) {
      lo = 0;
      hi = al < 0 ? bh : bl < 0 ? ah : fx_lane_min(ah, bh);
      /* with a mask of low ones it is a remainder; with one of high ones it cuts these off */
      int64_t c = bl == bh ? bl : al == ah ? al : 0, xl = bl == bh ? al : bl, xh = bl == bh ? ah : bh;
      if (c > 0 && (c & (c + 1)) == 0 && xl / (c + 1) == xh / (c + 1) && xl >= 0) lo = xl & c, hi = xh & c;
      if (c < 0 && (-c & (-c - 1)) == 0) lo = xl & c, hi = xh & c;
    } else if (op != FX_EX_BIT_AND && al >= 0 && bl >= 0) {
      lo = op == FX_EX_BIT_OR ? fx_lane_max(al, bl) : 0;
      hi = fx_lane_ones(ah | bh);
    }
    to.lo[k].i = lo, to.hi[k].i = hi;
  }
}

FX_INLINE void fx_lanes_shift(bool left, fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH {
    int64_t count = b.lo[k].i & 31, al = a.lo[k].i, ah = a.hi[k].i;
    bool known = b.lo[k].i == b.hi[k].i;
    if (left) {
      fx_lane_store(to, k, known ? al * (1ll << count) : INT32_MIN, known ? ah * (1ll << count) : INT32_MAX);
    } else { /* any count brings a towards 0 or -1 */
      to.lo[k].i = known ? al >> count : fx_lane_min(al, 0);
      to.hi[k].i = known ? ah >> count : fx_lane_max(ah, -1);
    }
  }
}

FX_INLINE void fx_lanes_abs(fx_lanes_out to, fx_lanes_in a, bool plain) {
  if (plain) {
    FX_EACH {
      int64_t al = a.lo[k].i, ah = a.hi[k].i;
      to.lo[k].i = fx_lane_max(fx_lane_max(al, -ah), 0);
      to.hi[k].i = fx_lane_max(-al, ah);
    }
    return;
  }
  FX_EACH {
    int64_t al = a.lo[k].i, ah = a.hi[k].i;
    fx_lane_store(to, k, al > 0 ? al : ah < 0 ? -ah : 0, fx_lane_max(-al, ah));
  }
}

/* ---- floats ---- */

FX_INLINE bool fx_lane_any(double lo, double hi) {
  return lo == -INFINITY && hi == INFINITY;
}
FX_INLINE void fx_lane_store_float(fx_lanes_out to, int k, double lo, double hi) {
  double low = (double)(float)lo, high = (double)(float)hi;
  bool good = low <= high; /* false with a NaN */
  to.lo[k].f = good ? low : -INFINITY;
  to.hi[k].f = good ? high : INFINITY;
}

/* The ends are among four results; a NaN among them, or an unknown operand, makes the result unknown. */
FX_INLINE void fx_lane_store_four(fx_lanes_out to, int k, double p, double q, double r, double s) {
  bool good = p == p && q == q && r == r && s == s;
  fx_lane_store_float(to, k, good ? fmin(fmin(p, q), fmin(r, s)) : NAN, fmax(fmax(p, q), fmax(r, s)));
}

FX_INLINE void fx_lanes_float_arith(fx_ex_op op, fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH_SCALAR {
    double al = a.lo[k].f, ah = a.hi[k].f, bl = b.lo[k].f, bh = b.hi[k].f;
    if (fx_lane_any(al, ah) || fx_lane_any(bl, bh)) {
      to.lo[k].f = -INFINITY, to.hi[k].f = INFINITY;
    } else if (op == FX_EX_ADD) {
      fx_lane_store_float(to, k, al + bl, ah + bh);
    } else if (op == FX_EX_SUB) {
      fx_lane_store_float(to, k, al - bh, ah - bl);
    } else if (op == FX_EX_MUL) {
      fx_lane_store_four(to, k, al * bl, al * bh, ah * bl, ah * bh);
    } else if (op == FX_EX_DIV) {
      if (bl <= 0 && bh >= 0)
        to.lo[k].f = -INFINITY, to.hi[k].f = INFINITY;
      else
        fx_lane_store_four(to, k, al / bl, al / bh, ah / bl, ah / bh);
    } else if (op == FX_EX_MIN) {
      fx_lane_store_float(to, k, fmin(al, bl), fmin(ah, bh));
    } else {
      fx_lane_store_float(to, k, fmax(al, bl), fmax(ah, bh));
    }
  }
}

/* [lo, hi] a little wider, cut to [least, most]. */
FX_INLINE void fx_lane_widen(fx_lanes_out to, int k, double lo, double hi, double least, double most) {
  double low = lo - fabs(lo) * 1e-5 - 1e-37, high = hi + fabs(hi) * 1e-5 + 1e-37;
  low = low < least ? least : low > 0x1p127 ? 0x1p127 : low; /* a float may be infinite above its range */
  high = high > 0x1p127 ? INFINITY : high;
  high = high > most ? most : high;
  bool good = low <= high;
  to.lo[k].f = good ? low : -INFINITY;
  to.hi[k].f = good ? high : INFINITY;
}

FX_INLINE void fx_lanes_float_function(fx_ex_op op, fx_lanes_out to, fx_lanes_in a) {
  FX_EACH_SCALAR {
    double lo = a.lo[k].f, hi = a.hi[k].f;
    bool any = fx_lane_any(lo, hi);
    to.lo[k].f = -INFINITY, to.hi[k].f = INFINITY;
    if (any) continue;
    if (op == FX_EX_NEG)
      fx_lane_store_float(to, k, -hi, -lo);
    else if (op == FX_EX_ABS)
      fx_lane_store_float(to, k, lo > 0 ? lo : hi < 0 ? -hi : 0.0, fmax(-lo, hi));
    else if (op == FX_EX_FLOOR)
      fx_lane_store_float(to, k, floor(lo), floor(hi));
    else if (op == FX_EX_SQRT && lo >= 0)
      fx_lane_store_float(to, k, sqrt(lo), sqrt(hi));
    else if (op == FX_EX_EXP)
      fx_lane_widen(to, k, exp(lo), exp(hi), 0.0, INFINITY);
    else if (op == FX_EX_LOG && lo > 0) /* near 1 the error is absolute */
      fx_lane_widen(to, k, log(lo) - 1e-5, log(hi) + 1e-5, -INFINITY, INFINITY);
    else if (op == FX_EX_TANH)
      fx_lane_widen(to, k, tanh(lo), tanh(hi), -1.0, 1.0);
    else if (op == FX_EX_SIGMOID)
      fx_lane_widen(to, k, 1 / (1 + exp(-lo)), 1 / (1 + exp(-hi)), 0.0, 1.0);
  }
}

/* Comparisons of floats: undecided where an operand may be NaN. */
FX_INLINE void fx_lanes_float_compare(fx_ex_op op, fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH_SCALAR {
    double al = a.lo[k].f, ah = a.hi[k].f, bl = b.lo[k].f, bh = b.hi[k].f;
    bool any = fx_lane_any(al, ah) || fx_lane_any(bl, bh);
    bool same = al == ah && bl == bh && al == bl, meet = al <= bh && bl <= ah;
    bool always = op == FX_EX_LT ? ah < bl : op == FX_EX_LE ? ah <= bl : op == FX_EX_EQ ? same : !meet;
    bool maybe = op == FX_EX_LT ? al < bh : op == FX_EX_LE ? al <= bh : op == FX_EX_EQ ? meet : !same;
    to.lo[k].i = !any && always;
    to.hi[k].i = any || maybe;
  }
}

FX_INLINE void fx_lanes_to_int(fx_lanes_out to, fx_lanes_in a) {
  FX_EACH_SCALAR {
    double lo = a.lo[k].f, hi = a.hi[k].f;
    bool any = fx_lane_any(lo, hi);
    to.lo[k].i = any || lo <= -2147483648.0 ? INT32_MIN : lo >= 2147483647.0 ? INT32_MAX : (int64_t)lo;
    to.hi[k].i = any || hi >= 2147483647.0 ? INT32_MAX : hi <= -2147483648.0 ? INT32_MIN : (int64_t)hi;
  }
}

#ifdef __cplusplus
}
#endif
#endif
