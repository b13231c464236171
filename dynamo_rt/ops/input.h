/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime inputs and views as nodes. Shapes in comments are those of the values. */
#ifndef FX_DYNAMO_RT_OPS_INPUT_H
#define FX_DYNAMO_RT_OPS_INPUT_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies runtime input number `index` of the run's slot; use fx_graph_input, which records it once. */
fx_value fx_input(fx_graph *graph, int index);

/* x contiguous -> the same elements under another shape; no copy. */
fx_value fx_reshape(fx_graph *graph, fx_value x, int ndim, const int64_t *dim);

/* Dimensions a and b of x exchanged; no copy (fx_copy makes it contiguous). */
fx_value fx_swap_dims(fx_graph *graph, fx_value x, int a, int b);

/* x [..., C] contiguous -> [..., heads, head_dim]: columns [column, column + heads * head_dim) of every row;
 * no copy. Gradients of slices that together cover all columns once are written side by side in one buffer.
 */
fx_value fx_slice_heads(fx_graph *graph, fx_value x, int64_t column, int64_t heads, int64_t head_dim);

/* Inverse of slices: lays parts[i] [rows.., heads, head_dim] side by side at columns[i] of the result's rows.
 * The parts' producers write straight into it; all must allow strided outputs and be used here only. */
fx_value fx_assemble(fx_graph *graph, const fx_value *parts, const int64_t *columns, int count, fx_type type);

/* x [N, ...] contiguous -> its rows [first, first + count); no copy. Gradients of slices that together cover
 * all rows once are written one below the other in one buffer; a value is sliced by rows or by columns. */
fx_value fx_slice_rows(fx_graph *graph, fx_value x, int64_t first, int64_t count);

/* Parts [n_i, ...] one below the other: [sum of n_i, ...]; differentiable. Their producers write straight
 * into it where a part is a whole buffer that nobody reads yet; others are copied. count >= 1; parts is
 * scratch afterwards.
 */
fx_value fx_assemble_rows(fx_graph *graph, fx_value *parts, int count);

/* One flat buffer [n] F32 of contiguous parts, part i at element offsets[i]; at most FX_MAX_IN of them, and
 * together they fill it. The fold pass makes the producer of a part write in its place where it can. */
fx_value fx_join(fx_graph *graph, const fx_value *parts, const int64_t *offsets, int count, int64_t n);

/* The column of a slice made by fx_slice_heads, the first row of one by fx_slice_rows; -1 when node is none.
 */
int64_t fx_slice_column(const fx_node *node);
int64_t fx_slice_row(const fx_node *node);

#ifdef __cplusplus
}
#endif
#endif
