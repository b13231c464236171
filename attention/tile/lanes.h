/* SPDX-License-Identifier: Apache-2.0 */
/* The operators over lanes: out[i] = op(a[i], b[i], c[i]) for n lanes of 4 bytes each, int32 or float; bools
 * are the ints 0 and 1. out may be a, b or c, but may not overlap them otherwise. Private to attention/tile.
 */
#ifndef FX_ATTENTION_TILE_LANES_H
#define FX_ATTENTION_TILE_LANES_H

#include "attention/tile/code.h"

typedef void (*fx_lanes_fn)(int64_t n, void *out, const void *a, const void *b, const void *c);

/* The loop of an operator whose first argument (SELECT: whose branches) have this type; NULL for leaves and
 * loads. */
fx_lanes_fn fx_lanes_get(fx_ex_op op, fx_ex_type arg_type);

void fx_lanes_fill(int64_t n, int32_t *out, int32_t value);
/* out[i] = floor(a[i] / divisor) or the remainder, divisor > 0; reciprocal = fx_lanes_reciprocal(divisor) */
double fx_lanes_reciprocal(int32_t divisor);
void fx_lanes_div_by(int64_t n, int32_t *out, const int32_t *a, int32_t divisor, double reciprocal);
void fx_lanes_mod_by(int64_t n, int32_t *out, const int32_t *a, int32_t divisor, double reciprocal);
/* out[i] = base[...] under ndim indices, each clamped to its extent */
void fx_lanes_load(int64_t n, int32_t *out, const int32_t *base, int ndim, const int32_t *dim,
                   const int32_t *const index[3]);
/* flat[i] = the clamped indices as one (row-major) */
void fx_lanes_flatten(int64_t n, int32_t *flat, int ndim, const int32_t *dim, const int32_t *const index[3]);
/* out[i] = a[i] * factor */
void fx_lanes_scale(int64_t n, float *out, const float *a, float factor);
/* bits[k]: bit r is set where lane[32 k + r] is not 0 */
void fx_lanes_pack(int64_t keys, uint32_t *bits, const int32_t *lane);

#endif
