/* SPDX-License-Identifier: Apache-2.0 */
/* The leaves in the compiler's vector types, 4 lanes, no fused multiply-add: any processor. */
#include "attention/cpu/leaf.h"

#include <string.h>

#define LANES 4
#define ROWS 4
typedef float vec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));
typedef ivec vmask;

static inline vec load(const float *p) {
  vec x;
  memcpy(&x, p, sizeof x);
  return x;
}
static inline ivec iload(const int32_t *p) {
  ivec x;
  memcpy(&x, p, sizeof x);
  return x;
}
static inline void store(float *p, vec x) {
  memcpy(p, &x, sizeof x);
}
static inline vec select_lanes(ivec mask, vec a, vec b) {
  return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

#define LOAD(p) load(p)
#define STORE(p, x) store(p, x)
#define LOAD8(p) load(p)
#define STORE8(p, x) store(p, x)
#define ILOAD(p) iload(p)
#define SPLAT(x) ((vec){(x), (x), (x), (x)})
#define ISPLAT(x) ((ivec){(x), (x), (x), (x)})
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) select_lanes((a) > (b), a, b)
#define EXP2_SCALE(p, n, bits) ((p) * (vec)(((ivec)(bits) + 127) << 23))
#define IN_RANGE(n, lo, hi) (((lo) <= (n)) & ((hi) > (n)))
#define HAS_BITS(word, v) ((ISPLAT((int32_t)((word) >> (4 * (v)))) & (ivec){1, 2, 4, 8}) != 0)
#define LESS(a, b) ((a) < (b))
#define EQUAL(a, b) ((a) == (b))
#define SELECT(mask, a, b) select_lanes(mask, a, b)
#define LEAF_NAME "portable"
#define LEAF_GET fx_leaf_portable
#include "attention/cpu/leaf_body.h"
