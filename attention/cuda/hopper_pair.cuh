/* SPDX-License-Identifier: Apache-2.0 */
/* Backward on sm_90a, deterministic but for learnable tables: P is recomputed from q, k and lse twice.
 *
 * Two kernels of seven products in place of one of five: dQ needs no sum over CTAs, so there is neither an
 * order to keep nor an fp32 accumulator in memory, and dS never leaves the registers. A step's last product
 * runs while the next one's first do. Here is what both, hopper_keys.cu and hopper_rows.cu, do with a step
 * and with a pair. */
enum { NB = FX_STEP / 8, DB = FX_D / 8 };

/* P and dS at once, from the raw score: no register is left to keep slopes in, unless P is handed over. */
#define FX_LATE ((FX_HAS_SLOPE && !FX_SHARE) || FX_HAS_TABLES)

/* The two tiles of a step pass through rings of their own; elsewhere both come and go with the first's. */
#define FX_APART (FX_SHARE || FX_SECOND < FX_STAGES)
FX_DEVICE bool carries(int ring, int tile) {
  return !FX_APART || ring == tile;
}
enum { RINGS_USED = FX_APART ? 2 : 1 };

template <int A_ROWS> FX_DEVICE void product(float (&acc)[NB][4], uint32_t left, uint32_t right) {
  wgmma_fence();
  product_rows<A_ROWS>(acc, left, right);
  wgmma_commit();
}
FX_DEVICE void add_product(float (&acc)[DB][4], const uint32_t (&p)[NB / 2][4], uint32_t tile) {
  wgmma_fence();
  product_registers(acc, p, tile);
  wgmma_commit();
}

/* 64 rows from t on of a gradient, times `factor`, as far as there are `length`; all threads of a warpgroup.
 * `from`: as in store_tile. */
FX_DEVICE void give_tile(const fx_flash_args *args, const fx_flash_view *view, const fx_flash_map *map,
                         int32_t b, int32_t head, int32_t t, int32_t length, uint32_t from, float factor,
                         const float (&acc)[DB][4]) {
#if FX_PARTIAL
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int32_t row = t + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
    if (row < length) give_row(args, view, b, head, row, threadIdx.x % 4 * 2, factor, acc, r);
  }
#else
  const float both[2] = {factor, factor};
  store_tile(map, b, head, t, from, both, acc);
#endif
}

/* Score to base 2 by which P is recomputed, and the slope of a variant's score. */
FX_DEVICE float pair_score(const fx_flash_args *args, int32_t b, int32_t h, int32_t position, int32_t kv,
                           float s, float *slope) {
#if FX_HAS_SLOPE
  return fx_score_slope(args, b, h, position, kv, s * args->scale, slope) * FX_LOG2E;
#elif FX_HAS_SCORE
  return fx_score(args, b, h, position, kv, s * args->scale) * FX_LOG2E;
#else
  return s * (args->scale * FX_LOG2E);
#endif
}

/* Where a pair is not seen, or its score is -inf, everything is 0 whatever else is infinite or not a number.
 */
FX_DEVICE float pair_weight(const fx_flash_args *args, bool seen, float score, float s, float lse2) {
#if FX_HAS_SCORE || FX_HAS_SLOPE
  float p = exp2_of(score - lse2);
#else
  float p = exp2_of(__fmaf_rn(s, args->scale * FX_LOG2E, -lse2));
#endif
  return seen ? p : 0.0f;
}
/* dO V^T and delta are finite wherever the forward's P V was. */
FX_DEVICE float pair_gradient(float p, float dp, float delta) {
  return p * (dp - delta);
}
