/* SPDX-License-Identifier: Apache-2.0 */
/* An exchange is size - 1 calls of send_recv, each with another pair of peers; everything recorded here has a
 * backward of its own, so the backward exchanges the other way round. */
#include "parallel/alltoall_attention.h"

#include <string.h>

#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "parallel/collective.h"

_Static_assert((int)FX_ALLTOALL_RANKS <= (int)FX_MAX_IN, "a rank's part is an input of what joins them");

typedef struct exchange {
  fx_comm *comm;
  fx_lane lane;
  int64_t B, T; /* samples, rows of a rank */
} exchange;

/* part[j] goes to rank j; received[j] is what rank j had for this one. */
static void all_to_all(fx_graph *graph, const exchange *e, const fx_value *part, fx_value *received) {
  int size = e->comm->size, rank = e->comm->rank;
  received[rank] = fx_copy(graph, part[rank]);
  for (int hop = 1; hop < size; hop++) {
    int to = (rank + hop) % size, from = (rank + size - hop) % size;
    received[from] = fx_send_recv(graph, e->comm, e->lane, fx_copy(graph, part[to]), to, from);
  }
}

fx_value fx_exchange_dims(fx_graph *graph, fx_value x, int64_t a, int64_t b) {
  if (a == 1 || b == 1 || fx_graph_status(graph) != FX_OK) return x;
  int64_t rest = fx_type_numel(fx_graph_type(graph, x)) / (a * b);
  x = fx_reshape(graph, x, 3, (int64_t[]){a, b, rest});
  return fx_copy(graph, fx_swap_dims(graph, x, 0, 1));
}

/* x [B, T, heads, D], any strides -> [B, size T, heads / size, D]: some heads of all rows. */
static fx_value to_heads(fx_graph *graph, const exchange *e, fx_value x) {
  fx_value part[FX_ALLTOALL_RANKS] = {0}, received[FX_ALLTOALL_RANKS] = {0};
  if (fx_graph_status(graph) != FX_OK) return FX_NONE;
  const fx_type *type = fx_graph_type(graph, x);
  int64_t size = e->comm->size, D = type->dim[3], heads = type->dim[2] / size, width = heads * D;
  fx_value rows = fx_reshape(graph, fx_copy(graph, x), 3, (int64_t[]){e->B, e->T, size * width});
  for (int64_t j = 0; j < size; j++) part[j] = fx_slice_heads(graph, rows, j * width, heads, D);
  all_to_all(graph, e, part, received);
  for (int64_t j = 0; j < size; j++)
    received[j] = fx_reshape(graph, received[j], 2, (int64_t[]){1, e->B * e->T * width});
  x = fx_exchange_dims(graph, fx_assemble_rows(graph, received, (int)size), size, e->B);
  return fx_reshape(graph, x, 4, (int64_t[]){e->B, size * e->T, heads, D});
}

/* x [B, size T, heads, D] -> [B, T, size heads, D]: all heads of some rows. */
static fx_value to_rows(fx_graph *graph, const exchange *e, fx_value x) {
  fx_value part[FX_ALLTOALL_RANKS] = {0}, received[FX_ALLTOALL_RANKS] = {0};
  if (fx_graph_status(graph) != FX_OK) return FX_NONE;
  const fx_type *type = fx_graph_type(graph, x);
  int64_t size = e->comm->size, heads = type->dim[2], D = type->dim[3], width = heads * D;
  x = fx_exchange_dims(graph, x, e->B, size);
  x = fx_reshape(graph, x, 2, (int64_t[]){size * e->B * e->T, width});
  for (int64_t j = 0; j < size; j++) part[j] = fx_slice_rows(graph, x, j * e->B * e->T, e->B * e->T);
  all_to_all(graph, e, part, received);
  x = fx_exchange_dims(graph, fx_assemble_rows(graph, received, (int)size), size, e->B * e->T);
  return fx_reshape(graph, x, 4, (int64_t[]){e->B, e->T, size * heads, D});
}

/* lse [B, heads, size T] -> [B, size heads, T]; it travels as rows whose heads are one number each. */
static fx_value lse_to_rows(fx_graph *graph, const exchange *e, fx_value lse) {
  if (fx_graph_status(graph) != FX_OK) return FX_NONE;
  int64_t size = e->comm->size, heads = fx_graph_type(graph, lse)->dim[1];
  lse = fx_copy(graph, fx_swap_dims(graph, lse, 1, 2));
  lse = to_rows(graph, e, fx_reshape(graph, lse, 4, (int64_t[]){e->B, size * e->T, heads, 1}));
  lse = fx_reshape(graph, lse, 3, (int64_t[]){e->B, e->T, size * heads});
  return fx_copy(graph, fx_swap_dims(graph, lse, 1, 2));
}

/* ---- a part of a vector of parameters: its gradient is zero elsewhere ---- */

typedef struct part_attr {
  fx_view_attr view;
  int64_t first, count;
} part_attr;

static fx_status part_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in;
  out[0] = fx_type_1d(FX_F32, ((const part_attr *)attr)->count);
  return FX_OK;
}

static fx_status part_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const part_attr a = *(const part_attr *)node->attr;
  int64_t all = fx_type_numel(fx_graph_type(graph, node->in[0])), behind = all - a.first - a.count;
  fx_value parts[3];
  int count = 0;
  if (a.first > 0) parts[count++] = fx_fill(graph, fx_type_1d(FX_F32, a.first), 0.0f);
  parts[count++] = dout[0];
  if (behind > 0) parts[count++] = fx_fill(graph, fx_type_1d(FX_F32, behind), 0.0f);
  din[0] = fx_assemble_rows(graph, parts, count);
  return fx_graph_status(graph);
}

static const fx_op g_part = {
    .name = "part_of_parameter",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(part_attr),
    .effects = FX_EFFECT_VIEW,
    .infer = part_infer,
    .vjp = part_vjp,
};

static fx_value part_of(fx_graph *graph, fx_value x, int64_t first, int64_t count) {
  part_attr attr;
  if (x == FX_NONE) return x;
  memset(&attr, 0, sizeof attr);
  attr.view.offset_bytes = first * (int64_t)sizeof(float);
  attr.first = first;
  attr.count = count;
  return fx_graph_record(graph, &g_part, &attr, (fx_value[]){x}, NULL);
}

/* ---- attention ---- */

static fx_status check(fx_graph *graph, const fx_comm *comm, fx_value q, fx_value k) {
  FX_TRY(fx_graph_status(graph));
  int64_t H = fx_graph_type(graph, q)->dim[2], K = fx_graph_type(graph, k)->dim[2];
  if (fx_alltoall_divides(comm->size, H, K)) return FX_OK;
  return fx_error(
      FX_ERR_SHAPE,
      "%d ranks cannot divide %lld query heads and %lld key heads between them (at most %d ranks)",
      comm->size, (long long)H, (long long)K, FX_ALLTOALL_RANKS);
}

fx_value fx_alltoall_attention(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value q, fx_value k,
                               fx_value v, const fx_attention_inputs *inputs, fx_attention_attr attr,
                               fx_value *lse) {
  fx_status status = check(graph, comm, q, k);
  if (status != FX_OK) return fx_graph_fail(graph, status);
  const fx_type *rows = fx_graph_type(graph, q);
  exchange e = {comm, lane, rows->dim[0], rows->dim[1]};
  int32_t all = (int32_t)rows->dim[2], heads = all / comm->size, first = comm->rank * heads;
  fx_attention_inputs mine = *inputs;
  mine.q_base = mine.kv_base = FX_NONE;
  mine.sinks = part_of(graph, inputs->sinks, first, heads);
  if (attr.all_heads == 0) attr.all_heads = all;
  attr.first_head += first;
  q = to_heads(graph, &e, q), k = to_heads(graph, &e, k), v = to_heads(graph, &e, v);
  fx_value own_lse, out = to_rows(graph, &e, fx_flex_attention(graph, q, k, v, &mine, attr, &own_lse));
  if (lse) *lse = lse_to_rows(graph, &e, own_lse);
  return out;
}
