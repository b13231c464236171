/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the leaves, compiled once an instruction set. The including file defines
 *   LANES, ROWS         lanes of a vector, rows of a register tile (ROWS x 2 vectors accumulate)
 *   vec, ivec, vmask    float and int32 vectors, the result of a comparison
 *   HAS_BITS(word, v)   lanes of a group's vector v whose bit of the word is set
 *   LOAD .. SELECT      operations on them (LOAD8/STORE8 touch 8 floats, used where LANES is 16 only)
 *   LEAF_NAME, LEAF_GET the table's name and its getter
 * Helpers take constants (row and vector counts, `masked`) and are inlined, so each call is its own loop. */
#define INLINE static inline __attribute__((always_inline))

enum { VECS = FX_LEAF_GROUP / LANES }; /* vectors of a group */

/* 2^x for x <= 127: 2^n p(f), n = x rounded to an integer by adding 1.5 * 2^23 (the sum's low bits are n), f
 * in
 * [-1/2, 1/2]. p is the degree-6 minimax polynomial of relative error with p(0) = 1, found by Remez exchange;
 * 2.1e-8 with coefficients rounded to fp32. Below -126 exactly 0 (no denormals), -inf included; NaN stays. */
INLINE vec exp2_vec(vec x) {
  const vec magic = SPLAT(12582912.0f);
  vec shifted = x + magic, n = shifted - magic, f = x - n;
  vec p = SPLAT(0.000155946807f);
  p = FMA(p, f, SPLAT(0.00134066434f));
  p = FMA(p, f, SPLAT(0.00961769279f));
  p = FMA(p, f, SPLAT(0.0555031039f));
  p = FMA(p, f, SPLAT(0.240226522f));
  p = FMA(p, f, SPLAT(0.693147242f));
  p = FMA(p, f, SPLAT(1.0f));
  return SELECT(LESS(x, SPLAT(-126.0f)), SPLAT(0.0f), EXP2_SCALE(p, n, shifted));
}

/* C[rows][vecs vectors] (+)= A B in registers. `half`: the one vector holds 8 floats. */
INLINE void tile(const int rows, const int vecs, const bool half, int k, const float *a, int64_t a_row,
                 int64_t a_step, const float *b, int64_t b_row, float *c, int64_t c_row, bool add) {
  vec sum[ROWS][2];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) {
      const float *from = c + i * c_row + v * LANES;
      sum[i][v] = !add ? SPLAT(0.0f) : half ? LOAD8(from) : LOAD(from);
    }
  for (int s = 0; s < k; s++) {
    vec right[2];
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) right[v] = half ? LOAD8(b + v * LANES) : LOAD(b + v * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
      vec left = SPLAT(a[i * a_row]);
#pragma GCC unroll 2
      for (int v = 0; v < vecs; v++) sum[i][v] = FMA(left, right[v], sum[i][v]);
    }
    a += a_step;
    b += b_row;
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) {
      if (half)
        STORE8(c + i * c_row + v * LANES, sum[i][v]);
      else
        STORE(c + i * c_row + v * LANES, sum[i][v]);
    }
}

/* One column panel: m rows in register tiles of ROWS, then 4, 2, 1. */
INLINE void panel(const int vecs, const bool half, int m, int k, const float *a, int64_t a_row,
                  int64_t a_step, const float *b, int64_t b_row, float *c, int64_t c_row, bool add) {
  int i = 0;
  for (; i + ROWS <= m; i += ROWS)
    tile(ROWS, vecs, half, k, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, add);
  if (ROWS > 4 && i + 4 <= m) {
    tile(4, vecs, half, k, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, add);
    i += 4;
  }
  if (i + 2 <= m) {
    tile(2, vecs, half, k, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, add);
    i += 2;
  }
  if (i < m) tile(1, vecs, half, k, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, add);
}

/* A panel of B (k x 2 vectors) stays in L1 while rows of A stream past it. */
INLINE void panels(int m, int n, int k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                   int64_t b_row, float *c, int64_t c_row, bool add) {
  int j = 0;
  for (; j + 2 * LANES <= n; j += 2 * LANES)
    panel(2, false, m, k, a, a_row, a_step, b + j, b_row, c + j, c_row, add);
  if (j + LANES <= n) panel(1, false, m, k, a, a_row, a_step, b + j, b_row, c + j, c_row, add);
  if (n % LANES) panel(1, true, m, k, a, a_row, a_step, b + (n - 8), b_row, c + (n - 8), c_row, add);
}

/* The two layouts of A are compiled apart: each has constant strides in the inner loop. */
static void gemm(int m, int n, int k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                 int64_t b_row, float *c, int64_t c_row, bool add) {
  if (a_row == 1)
    panels(m, n, k, a, 1, a_step, b, b_row, c, c_row, add);
  else
    panels(m, n, k, a, a_row, 1, b, b_row, c, c_row, add);
}

static inline int clamp(int x, int low, int high) {
  return x < low ? low : x > high ? high : x;
}

/* Keys that all of ROWS rows see go through whole register tiles, the ragged ends row by row. */
static void gemm_masked(int m, int n, int k, const float *a, int64_t a_step, const float *b, int64_t b_row,
                        float *c, int64_t c_row, const fx_leaf_mask *mask) {
  for (int i = 0; i < m; i += ROWS) {
    int rows = m - i < ROWS ? m - i : ROWS, lo[ROWS], hi[ROWS], from = 0, to = k;
    for (int r = 0; r < rows; r++) {
      lo[r] = clamp(mask->lo[i + r] - mask->base, 0, k);
      hi[r] = clamp(mask->hi[i + r] - mask->base, lo[r], k);
      from = lo[r] > from ? lo[r] : from;
      to = hi[r] < to ? hi[r] : to;
    }
    bool shared = from < to;
    if (shared)
      gemm(rows, n, to - from, a + i + from * a_step, 1, a_step, b + from * b_row, b_row, c + i * c_row,
           c_row, true);
    for (int r = 0; r < rows; r++) {
      const float *left = a + i + r;
      float *sum = c + (i + r) * c_row;
      int first = shared ? from : hi[r];
      if (lo[r] < first)
        gemm(1, n, first - lo[r], left + lo[r] * a_step, 1, a_step, b + lo[r] * b_row, b_row, sum, c_row,
             true);
      if (shared && to < hi[r])
        gemm(1, n, hi[r] - to, left + to * a_step, 1, a_step, b + to * b_row, b_row, sum, c_row, true);
    }
  }
}

enum { UNMASKED, LIMITS, BITS }; /* how a group is masked */

INLINE vec masked_by(const int masked, const fx_leaf_mask *mask, int n, int v, vec x, vec instead) {
  if (masked == BITS) return SELECT(HAS_BITS(mask->bits[n], v), x, instead);
  return SELECT(IN_RANGE(ISPLAT(mask->base + n), ILOAD(mask->lo + v * LANES), ILOAD(mask->hi + v * LANES)), x,
                instead);
}

INLINE void softmax_group(const int masked, int keys, float *s, int64_t s_row, const fx_leaf_mask *mask,
                          float *m, float *l, float *alpha) {
  const vec lowest = SPLAT(-__builtin_inff());
  vec top[VECS], sum[VECS];
  for (int v = 0; v < VECS; v++) {
    top[v] = LOAD(m + v * LANES);
    sum[v] = SPLAT(0.0f);
  }
  for (int n = 0; n < keys; n++)
    for (int v = 0; v < VECS; v++) {
      float *at = s + n * s_row + v * LANES;
      vec x = LOAD(at);
      if (masked) {
        x = masked_by(masked, mask, n, v, x, lowest);
        STORE(at, x);
      }
      top[v] = MAX(x, top[v]); /* a NaN is passed over here and comes out of exp2 */
    }
  for (int v = 0; v < VECS; v++) { /* where nothing was seen yet, subtract 0: -inf - -inf is NaN */
    vec before = LOAD(m + v * LANES);
    STORE(m + v * LANES, top[v]);
    top[v] = SELECT(EQUAL(top[v], lowest), SPLAT(0.0f), top[v]);
    STORE(alpha + v * LANES, exp2_vec(before - top[v]));
  }
  for (int n = 0; n < keys; n++)
    for (int v = 0; v < VECS; v++) {
      float *at = s + n * s_row + v * LANES;
      vec p = exp2_vec(LOAD(at) - top[v]);
      STORE(at, p);
      sum[v] = sum[v] + p;
    }
  for (int v = 0; v < VECS; v++)
    STORE(l + v * LANES, FMA(LOAD(l + v * LANES), LOAD(alpha + v * LANES), sum[v]));
}

static void softmax(int keys, float *s, int64_t s_row, const fx_leaf_mask *mask, float *m, float *l,
                    float *alpha) {
  if (!mask)
    softmax_group(UNMASKED, keys, s, s_row, mask, m, l, alpha);
  else if (mask->bits)
    softmax_group(BITS, keys, s, s_row, mask, m, l, alpha);
  else
    softmax_group(LIMITS, keys, s, s_row, mask, m, l, alpha);
}

INLINE void gradient_group(const int masked, int keys, float *s, float *dp, int64_t row,
                           const fx_leaf_mask *mask, const float *lse2, const float *delta) {
  const vec zero = SPLAT(0.0f);
  for (int n = 0; n < keys; n++)
    for (int v = 0; v < VECS; v++) {
      float *at = s + n * row + v * LANES, *gradient_at = dp + n * row + v * LANES;
      vec p = exp2_vec(LOAD(at) - LOAD(lse2 + v * LANES));
      if (masked) p = masked_by(masked, mask, n, v, p, zero);
      STORE(at, p);
      STORE(gradient_at, SELECT(EQUAL(p, zero), zero, p * (LOAD(gradient_at) - LOAD(delta + v * LANES))));
    }
}

static void gradient(int keys, float *s, float *dp, int64_t row, const fx_leaf_mask *mask, const float *lse2,
                     const float *delta) {
  if (!mask)
    gradient_group(UNMASKED, keys, s, dp, row, mask, lse2, delta);
  else if (mask->bits)
    gradient_group(BITS, keys, s, dp, row, mask, lse2, delta);
  else
    gradient_group(LIMITS, keys, s, dp, row, mask, lse2, delta);
}

static void slope(int keys, const float *p, float *ds, int64_t row, const float *factor) {
  const vec zero = SPLAT(0.0f);
  for (int n = 0; n < keys; n++)
    for (int v = 0; v < VECS; v++) {
      float *at = ds + n * row + v * LANES;
      vec slopes = LOAD(factor + n * row + v * LANES);
      STORE(at, SELECT(EQUAL(LOAD(p + n * row + v * LANES), zero), zero, LOAD(at) * slopes));
    }
}

INLINE void scale_row(int n, float factor, const float *in, float *out) {
  int j = 0;
  for (; j + LANES <= n; j += LANES) STORE(out + j, LOAD(in + j) * SPLAT(factor));
  if (LANES > 8 && j < n) STORE8(out + j, LOAD8(in + j) * SPLAT(factor));
}

static void scale_rows(int rows, int n, const float *factor, const float *in, int64_t in_row, float *out,
                       int64_t out_row) {
  for (int r = 0; r < rows; r++)
    if (factor[r] != 1.0f || in != out) scale_row(n, factor[r], in + r * in_row, out + r * out_row);
}

static void copy_rows(int rows, int n, float factor, const float *in, int64_t in_row, float *out,
                      int64_t out_row) {
  for (int r = 0; r < rows; r++) scale_row(n, factor, in + r * in_row, out + r * out_row);
}

static void widen_rows(int rows, int n, float factor, const uint16_t *in, int64_t in_row, float *out,
                       int64_t out_row) {
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < n; j++) {
      uint32_t bits = (uint32_t)in[r * in_row + j] << 16;
      float x;
      __builtin_memcpy(&x, &bits, sizeof x);
      out[r * out_row + j] = x * factor;
    }
}

static void narrow_rows(int rows, int n, float factor, const float *in, int64_t in_row, uint16_t *out,
                        int64_t out_row) {
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < n; j++) {
      float x = in[r * in_row + j] * factor;
      uint32_t bits;
      __builtin_memcpy(&bits, &x, sizeof bits);
      uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
      out[r * out_row + j] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
    }
}

typedef float quad __attribute__((vector_size(16)));
typedef float quad_at __attribute__((vector_size(16), aligned(4), may_alias));

static void transpose(int rows, int n, const float *in, int64_t in_row, float *out, int64_t out_row) {
  for (int r = 0; r < rows; r += 4)
    for (int j = 0; j < n; j += 4) {
      const float *at = in + r * in_row + j;
      quad a = *(const quad_at *)at, b = *(const quad_at *)(at + in_row),
           c = *(const quad_at *)(at + 2 * in_row), d = *(const quad_at *)(at + 3 * in_row);
      quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
      quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      float *to = out + j * out_row + r;
      *(quad_at *)to = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
      *(quad_at *)(to + out_row) = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
      *(quad_at *)(to + 2 * out_row) = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
      *(quad_at *)(to + 3 * out_row) = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
    }
}

static float dot(int n, const float *a, const float *b) {
  vec sum = SPLAT(0.0f);
  int j = 0;
  for (; j + LANES <= n; j += LANES) sum = FMA(LOAD(a + j), LOAD(b + j), sum);
  if (LANES > 8 && j < n) sum = FMA(LOAD8(a + j), LOAD8(b + j), sum);
  float lane[LANES], total = 0;
  STORE(lane, sum);
  for (int i = 0; i < LANES; i++) total += lane[i];
  return total;
}

static const fx_leaf g_leaf = {.name = LEAF_NAME,
                               .gemm = gemm,
                               .gemm_masked = gemm_masked,
                               .softmax = softmax,
                               .gradient = gradient,
                               .slope = slope,
                               .scale_rows = scale_rows,
                               .copy_rows = copy_rows,
                               .widen_rows = widen_rows,
                               .narrow_rows = narrow_rows,
                               .transpose = transpose,
                               .dot = dot};

const fx_leaf *LEAF_GET(void) {
  return &g_leaf;
}
