/* SPDX-License-Identifier: Apache-2.0 */
/* The head per chunk of rows: logits of this rank's ids; three numbers a row; those of all ranks; gradients
 * of the logits in place; dx and dW. All of it is recorded with the forward, as head_ce does, and the last op
 * hands both gradients to autograd. */
#include "parallel/vocab_parallel.h"

#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "parallel/collective.h"

typedef struct head {
  fx_comm *comm;
  fx_value x, weight, targets, factor; /* x [R, E], targets [R] */
  fx_vocab_attr attr;
  fx_value *dx, *nll; /* [chunks] */
  fx_value dweight;
} head;

static void record_chunk(fx_graph *graph, head *h, int chunk, int64_t first, int64_t rows) {
  fx_linear_attr layout = {0, FX_ACT_NONE};
  fx_value x = fx_slice_rows(graph, h->x, first, rows), scores, numbers, dlogits,
           targets = fx_slice_rows(graph, h->targets, first, rows);
  fx_value logits = fx_linear(graph, x, h->weight, FX_NONE, layout);
  fx_vocab_row_numbers(graph, logits, targets, h->attr, &scores, &numbers);
  fx_value all = fx_all_gather(graph, h->comm, FX_LANE_COMM_CRITICAL, numbers);
  fx_vocab_merge(graph, scores, all, targets, h->factor, h->attr, h->comm->rank, &dlogits, &h->nll[chunk]);
  h->dx[chunk] = fx_linear_dx(graph, dlogits, h->weight, layout);
  fx_value dweight = fx_linear_dw(graph, dlogits, x, layout);
  h->dweight = chunk ? fx_add(graph, h->dweight, dweight) : dweight;
}

fx_value fx_vocab_head_ce(fx_graph *graph, fx_comm *comm, fx_backend backend, fx_value x, fx_value weight,
                          fx_value targets, fx_value factor, fx_vocab_attr attr, fx_value *nll) {
  if (fx_graph_status(graph) != FX_OK) return FX_NONE;
  fx_type x_type = *fx_graph_type(graph, x), targets_type = *fx_graph_type(graph, targets);
  int64_t rows = fx_type_rows(&x_type), cols = fx_type_cols(&x_type);
  int64_t step = fx_head_chunk_rows(backend, rows, fx_graph_type(graph, weight)->dim[0], x_type.dtype);
  head h = {.comm = comm, .weight = weight, .factor = factor, .attr = attr, .dweight = FX_NONE};
  fx_status status = fx_calloc(&h.dx, 2 * (size_t)fx_ceil_div(rows, step), sizeof *h.dx);
  if (status != FX_OK) return fx_graph_fail(graph, status);
  h.nll = h.dx + fx_ceil_div(rows, step);
  h.x = x_type.ndim == 2 ? x : fx_reshape(graph, x, 2, (int64_t[]){rows, cols});
  h.targets = fx_reshape(graph, targets, 1, &rows);
  int chunks = 0;
  for (int64_t first = 0; first < rows; first += step)
    record_chunk(graph, &h, chunks++, first, fx_min_i64(step, rows - first));
  fx_value dx = fx_assemble_rows(graph, h.dx, chunks), terms = fx_assemble_rows(graph, h.nll, chunks);
  free(h.dx);
  if (nll) *nll = fx_reshape(graph, terms, targets_type.ndim, targets_type.dim);
  return fx_vocab_loss(graph, terms, factor, h.x, weight, dx, h.dweight);
}
