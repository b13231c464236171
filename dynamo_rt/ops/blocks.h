/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 128 rows picked by number and put back: what a rank shares of its sequence is data. */
#ifndef FX_DYNAMO_RT_OPS_BLOCKS_H
#define FX_DYNAMO_RT_OPS_BLOCKS_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_BLOCK_ROWS = 128 };

/* x [B, T, heads, D] F32 or BF16, rows with any strides, T a multiple of 128; index int32 of at least `count`
 * elements, each the number of a block of x, or negative -> [B, 128 count, heads, D]: those blocks one after
 * the other, zeros where the number is negative. Not differentiable. */
fx_value fx_take_blocks(fx_graph *graph, fx_value x, fx_value index, int64_t count);

/* sum [B, T, heads, D] F32 += x [B, 128 count, heads, D] F32 at the blocks that index names, in place, both
 * contiguous; blocks of a negative number are left out, and no other number appears twice. Returns sum after
 * the addition. Not differentiable. */
fx_value fx_add_blocks(fx_graph *graph, fx_value sum, fx_value x, fx_value index);

#ifdef __cplusplus
}
#endif
#endif
