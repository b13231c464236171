/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism of a transformer layer (Shoeybi et al., arXiv:1909.08053) and sequence parallelism
 * between its products (Korthikanti et al., arXiv:2205.05198).
 *
 * A column-parallel product holds a part of the output features, the row-parallel one after it the same part
 * as its input features; nothing travels between the two. Around such a pair:
 *
 *                  without sequence                  with sequence
 *   between pairs  all rows on every rank            rows [r R / n, (r + 1) R / n) of the R = B * T rows
 *   enter          forward nothing,                  forward all-gather of rows,
 *                  backward all-reduce               backward reduce-scatter
 *   leave          forward all-reduce,               forward reduce-scatter,
 *                  backward nothing                  backward all-gather
 *
 * What comes after a row-parallel product, its bias first of all, comes after `leave`. */
#ifndef FX_PARALLEL_TENSOR_PARALLEL_H
#define FX_PARALLEL_TENSOR_PARALLEL_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_tensor_parallel {
  fx_comm *comm; /* NULL: this rank alone; enter and leave return x */
  bool sequence;
  bool again; /* with sequence: the backward gathers again what a product needs, instead of keeping it */
} fx_tensor_parallel;

/* x before a column-parallel product. With sequence [R / n, E] -> [R, E]; else as x. */
fx_value fx_tensor_enter(fx_graph *graph, const fx_tensor_parallel *tp, fx_value x);
/* Summands x [B, T, E] or [R, E] after a row-parallel product or lookup -> their sum: with sequence [R / n,
 * E], else as x. */
fx_value fx_tensor_leave(fx_graph *graph, const fx_tensor_parallel *tp, fx_value x);

/* leave(part(enter(x))) for a part that computes every row by itself (a feed-forward layer without the bias
 * of its last product), in `pieces` of the rows, so that one piece travels while another is computed. x as in
 * fx_tensor_enter; its rows are a multiple of `pieces`. part is called once a piece and records its layer. */
typedef fx_value (*fx_tensor_part)(fx_graph *graph, void *ctx, fx_value x);
fx_value fx_tensor_by_rows(fx_graph *graph, const fx_tensor_parallel *tp, int pieces, fx_value x,
                           fx_tensor_part part, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
