/* SPDX-License-Identifier: Apache-2.0 */
/* Slices are special: the gradients of all slices of one value (q, k, v of a fused projection, pieces of its
 * rows) are not padded and added but assembled, so that their producers write side by side into one buffer.
 * They wait in `slices` until the producer of the sliced value is reached; every reader of a value comes
 * after its producer, so all are there. */
#include "dynamo_rt/graph/autograd.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"

typedef struct slice_grad {
  fx_value base, grad;
  int64_t first; /* column or row */
  bool rows;
} slice_grad;

typedef struct tape {
  fx_graph *graph;
  fx_value *grad; /* [values of the forward] */
  bool *needed;   /* depends on a wrt value */
  slice_grad *slices;
  int64_t num_slices, slice_capacity;
} tape;

static void contribute(tape *t, fx_value value, fx_value grad) {
  t->grad[value] = t->grad[value] == FX_NONE ? grad : fx_add(t->graph, t->grad[value], grad);
}

static bool is_slice(const fx_node *node) {
  return fx_slice_column(node) >= 0 || fx_slice_row(node) >= 0;
}

static void mark_needed(tape *t, const fx_value *wrt, int count, int64_t num_nodes) {
  for (int i = 0; i < count; i++) t->needed[wrt[i]] = true;
  for (int64_t n = 0; n < num_nodes; n++) {
    const fx_node *node = &t->graph->nodes[n];
    bool needed = false;
    for (int i = 0; i < node->op->max_in; i++) needed |= node->in[i] != FX_NONE && t->needed[node->in[i]];
    if (!node->op->vjp && !is_slice(node)) needed = false;
    for (int i = 0; needed && i < node->op->num_out; i++)
      if (node->out[i] != FX_NONE) t->needed[node->out[i]] = true;
  }
}

/* The waiting gradients of slices of `base`, by their first column or row. */
static fx_status collect_slices(const tape *t, fx_value base, slice_grad slices[FX_MAX_IN], int *count) {
  *count = 0;
  for (int64_t i = 0; i < t->num_slices; i++) {
    slice_grad slice = t->slices[i];
    int at = *count;
    if (slice.base != base) continue;
    if (at == FX_MAX_IN) return fx_error(FX_ERR_GRAPH, "more than %d slices of one value", FX_MAX_IN);
    for (; at > 0 && slices[at - 1].first > slice.first; at--) slices[at] = slices[at - 1];
    slices[at] = slice;
    ++*count;
    if (at > 0 && slices[at - 1].first == slice.first)
      return fx_error(FX_ERR_GRAPH, "a slice is read twice; read it once and reuse it");
    if (slice.rows != slices[0].rows)
      return fx_error(FX_ERR_GRAPH, "a value is sliced by rows and by columns");
  }
  return FX_OK;
}

/* Lays the waiting slice gradients of `base` side by side, or one below the other. */
static fx_status assemble_slices(tape *t, fx_value base) {
  slice_grad slices[FX_MAX_IN];
  fx_value parts[FX_MAX_IN];
  int64_t columns[FX_MAX_IN], covered = 0;
  int count = 0;
  FX_TRY(collect_slices(t, base, slices, &count));
  if (count == 0) return FX_OK;
  fx_type type = *fx_graph_type(t->graph, base);
  bool rows = slices[0].rows;
  for (int i = 0; i < count; i++) {
    const fx_type *part = fx_graph_type(t->graph, slices[i].grad);
    columns[i] = slices[i].first;
    covered += rows ? part->dim[0] : part->dim[part->ndim - 1] * part->dim[part->ndim - 2];
    parts[i] = slices[i].grad;
  }
  int64_t all = rows ? type.dim[0] : fx_type_cols(&type);
  if (covered != all)
    return fx_error(FX_ERR_UNSUPPORTED, "slices cover %lld of %lld %s; the gradient of the rest is undefined",
                    (long long)covered, (long long)all, rows ? "rows" : "columns");
  contribute(t, base,
             rows ? fx_assemble_rows(t->graph, parts, count)
                  : fx_assemble(t->graph, parts, columns, count, type));
  return fx_graph_status(t->graph);
}

static fx_status visit(tape *t, int64_t index) {
  fx_node node = t->graph->nodes[index];
  fx_value dout[FX_MAX_OUT], din[FX_MAX_IN];
  bool reached = false, needed = false;
  for (int i = 0; i < FX_MAX_IN; i++) din[i] = FX_NONE;
  for (int i = 0; i < node.op->max_in; i++) needed |= node.in[i] != FX_NONE && t->needed[node.in[i]];
  if (!needed) return FX_OK;
  fx_graph_at(t->graph, node.file, node.line);
  fx_graph_set_layer(t->graph, node.layer);
  for (int i = 0; i < node.op->num_out; i++) {
    FX_TRY(assemble_slices(t, node.out[i]));
    dout[i] = t->grad[node.out[i]];
    reached |= dout[i] != FX_NONE;
  }
  if (!reached) return FX_OK;
  if (is_slice(&node)) {
    bool rows = fx_slice_row(&node) >= 0;
    FX_TRY(fx_grow(&t->slices, &t->slice_capacity, t->num_slices + 1, sizeof *t->slices));
    t->slices[t->num_slices++] =
        (slice_grad){node.in[0], dout[0], rows ? fx_slice_row(&node) : fx_slice_column(&node), rows};
    return FX_OK;
  }
  if (!node.op->vjp) return FX_OK;
  FX_TRY(node.op->vjp(t->graph, &node, dout, din));
  for (int i = 0; i < node.op->max_in; i++)
    if (din[i] != FX_NONE && node.in[i] != FX_NONE && t->needed[node.in[i]])
      contribute(t, node.in[i], din[i]);
  return fx_graph_status(t->graph);
}

/* The node that reads `value` first: once backward is through with it, nothing is added any more. -1: none.
 */
static int64_t first_reader(const fx_graph *graph, fx_value value, int64_t num_nodes) {
  for (int64_t n = 0; n < num_nodes; n++)
    for (int i = 0; i < graph->nodes[n].op->max_in; i++)
      if (graph->nodes[n].in[i] == value) return n;
  return -1;
}

fx_status fx_autograd_each(fx_graph *graph, fx_value loss, const fx_value *wrt, int count,
                           fx_autograd_ready ready, void *ctx) {
  FX_TRY(fx_graph_status(graph));
  int64_t num_values = graph->num_values, num_nodes = graph->num_nodes;
  int layer = graph->layer;
  fx_status status = FX_OK;
  int64_t *first = NULL;
  tape t = {.graph = graph};
  FX_TRY_GOTO(fx_calloc(&first, (size_t)count, sizeof *first), free_tape);
  FX_TRY_GOTO(fx_calloc(&t.grad, (size_t)num_values, sizeof *t.grad), free_tape);
  FX_TRY_GOTO(fx_calloc(&t.needed, (size_t)num_values, sizeof *t.needed), free_tape);
  for (int64_t v = 0; v < num_values; v++) t.grad[v] = FX_NONE;
  mark_needed(&t, wrt, count, num_nodes);
  t.grad[loss] = fx_fill(graph, *fx_graph_type(graph, loss), 1.0f);
  for (int i = 0; i < count; i++) first[i] = first_reader(graph, wrt[i], num_nodes);
  for (int64_t n = num_nodes - 1; n >= -1; n--) {
    if (n >= 0) FX_TRY_GOTO(visit(&t, n), free_tape);
    for (int i = 0; i < count; i++) {
      if (first[i] != n) continue;
      FX_TRY_GOTO(assemble_slices(&t, wrt[i]), free_tape);
      ready(ctx, i, t.grad[wrt[i]]);
    }
  }
  status = fx_graph_status(graph);
free_tape:
  fx_graph_set_layer(graph, layer);
  free(first);
  free(t.slices);
  free(t.needed);
  free(t.grad);
  return status;
}

fx_value fx_autograd_saved(fx_graph *graph, fx_value value) {
  if (value == FX_NONE || graph->values[value].node < 0) return value;
  fx_node node = graph->nodes[graph->values[value].node];
  if (!(node.op->effects & FX_EFFECT_COLLECTIVE) || !((const fx_collective_attr *)node.attr)->again)
    return value;
  for (int64_t n = graph->num_nodes - 1; n > graph->values[value].node; n--)
    if (graph->nodes[n].op == node.op && graph->nodes[n].attr && graph->nodes[n].in[0] == node.in[0] &&
        memcmp(graph->nodes[n].attr, node.attr, node.op->attr_bytes) == 0)
      return graph->nodes[n].out[0];
  return fx_graph_record(graph, node.op, node.attr, node.in, NULL);
}

static void keep(void *ctx, int index, fx_value grad) {
  ((fx_value *)ctx)[index] = grad;
}

fx_status fx_autograd(fx_graph *graph, fx_value loss, const fx_value *wrt, int count, fx_value *grads) {
  return fx_autograd_each(graph, loss, wrt, count, keep, grads);
}
