/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/tensor_parallel.h"

#include <string.h>

#include "dynamo_rt/ops/input.h"
#include "parallel/collective.h"

/* Identity forward, sum of the gradients backward: a look at x whose backward is a collective. */
typedef struct enter_attr {
  fx_view_attr view;
  fx_comm *comm;
} enter_attr;

static fx_status enter_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[0];
  return FX_OK;
}

static fx_status enter_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const enter_attr *a = node->attr;
  din[0] = fx_sum_ranks(graph, a->comm, FX_LANE_COMM_CRITICAL, dout[0]);
  return fx_graph_status(graph);
}

static const fx_op g_enter = {
    .name = "tensor_enter",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(enter_attr),
    .effects = FX_EFFECT_VIEW,
    .infer = enter_infer,
    .vjp = enter_vjp,
};

fx_value fx_tensor_enter(fx_graph *graph, const fx_tensor_parallel *tp, fx_value x) {
  if (!tp->comm) return x;
  if (tp->sequence)
    return (tp->again ? fx_all_gather_again : fx_all_gather)(graph, tp->comm, FX_LANE_COMM_CRITICAL, x);
  enter_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.comm = tp->comm;
  return fx_graph_record(graph, &g_enter, &attr, (fx_value[]){x}, NULL);
}

fx_value fx_tensor_leave(fx_graph *graph, const fx_tensor_parallel *tp, fx_value x) {
  if (!tp->comm || x == FX_NONE) return x;
  if (!tp->sequence) return fx_sum_ranks(graph, tp->comm, FX_LANE_COMM_CRITICAL, x);
  const fx_type *type = fx_graph_type(graph, x);
  int64_t rows[2] = {fx_type_rows(type), fx_type_cols(type)};
  return fx_reduce_scatter(graph, tp->comm, FX_LANE_COMM_CRITICAL, fx_reshape(graph, x, 2, rows));
}

/* All pieces enter before the first leaves: the lane keeps its order, and what the second piece needs must
 * not wait behind what the first one makes. */
fx_value fx_tensor_by_rows(fx_graph *graph, const fx_tensor_parallel *tp, int pieces, fx_value x,
                           fx_tensor_part part, void *ctx) {
  fx_value piece[FX_MAX_IN];
  FX_ASSERT(pieces >= 1 && pieces <= FX_MAX_IN);
  if (fx_graph_status(graph) != FX_OK) return FX_NONE;
  if (pieces == 1) return fx_tensor_leave(graph, tp, part(graph, ctx, fx_tensor_enter(graph, tp, x)));
  int64_t rows = fx_graph_type(graph, x)->dim[0] / pieces;
  for (int i = 0; i < pieces; i++)
    piece[i] = fx_tensor_enter(graph, tp, fx_slice_rows(graph, x, i * rows, rows));
  for (int i = 0; i < pieces; i++) piece[i] = fx_tensor_leave(graph, tp, part(graph, ctx, piece[i]));
  return fx_assemble_rows(graph, piece, pieces);
}
