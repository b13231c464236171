/* SPDX-License-Identifier: Apache-2.0 */
/* sm_90a, backward: what both its kernels do with a pair. */

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
