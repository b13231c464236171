/* SPDX-License-Identifier: Apache-2.0 */
/* One op for calls that work in place, one for those that make a new value; the attribute tells the rest, so
 * the kernel is the same five lines for every kind. */
#include "parallel/collective.h"

#include <string.h>

#include "dynamo_rt/graph/graph_internal.h"

static fx_comm_call call_of(const fx_kernel_args *args) {
  const fx_collective_attr *a = args->attr;
  const fx_tensor *in = args->in[0], *out = args->out[0];
  /* count is per rank: the smaller side of reduce_scatter and all_gather */
  int64_t count = fx_type_numel(a->kind == FX_ALL_GATHER ? &in->type : &out->type);
  const char *src = in->data;
  if (a->kind == FX_ALL_GATHER && src == out->data) { /* in place */
    count /= a->comm->size;
    src += (size_t)(count * a->comm->rank) * fx_dtype_bytes(in->type.dtype);
  }
  return (fx_comm_call){.kind = (fx_collective)a->kind,
                        .reduce = (fx_reduce)a->reduce,
                        .dtype = in->type.dtype,
                        .peer = a->peer,
                        .peer_from = a->peer_from,
                        .count = count,
                        .src = src,
                        .dst = out->data,
                        .stream = args->stream,
                        .ticket = args->ticket};
}

static fx_status run(const fx_kernel_args *args) {
  fx_comm_call call = call_of(args);
  return fx_comm_issue(((const fx_collective_attr *)args->attr)->comm, &call);
}

static fx_status bind(fx_kernel_args *args) {
  fx_comm_call call = call_of(args);
  FX_TRY(fx_comm_bind(((const fx_collective_attr *)args->attr)->comm, &call));
  args->ticket = call.ticket;
  return FX_OK;
}

static fx_status check(const fx_type *x, const fx_collective_attr *a) {
  char text[96];
  if (!a->comm)
    return fx_error(FX_ERR_COMM, "%s without a communicator", fx_collective_name((fx_collective)a->kind));
  if (!fx_type_contiguous(x) || x->ndim < 1)
    return fx_error(FX_ERR_SHAPE, "%s of %s: collectives take contiguous tensors",
                    fx_collective_name((fx_collective)a->kind), fx_type_text(x, text, sizeof text));
  return FX_OK;
}

static fx_status check_divides(const fx_type *x, const fx_collective_attr *a) {
  char text[96];
  if (x->dim[0] % a->comm->size == 0) return FX_OK;
  return fx_error(FX_ERR_SHAPE, "%s does not divide into %d ranks of %s", fx_type_text(x, text, sizeof text),
                  a->comm->size, a->comm->name);
}

static fx_status in_place_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_collective_attr *a = attr;
  FX_TRY(check(in[0], a));
  if (a->kind == FX_ALL_GATHER) FX_TRY(check_divides(in[0], a));
  out[0] = *in[0];
  return FX_OK;
}

static const fx_op g_collective_in_place = {
    .name = "collective_in_place", /* all_reduce, broadcast, send, recv, all_gather of whole buffers */
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(fx_collective_attr),
    .bf16_cpu = true,
    .effects = FX_EFFECT_COLLECTIVE | FX_EFFECT_MUTATES,
    .must_alias = {1},
    .infer = in_place_infer,
    .bind = bind,
    .kernel = {[FX_BACKEND_CPU] = run, [FX_BACKEND_CUDA] = run},
};

static fx_status fresh_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_collective_attr *a = attr;
  FX_TRY(check(in[0], a));
  out[0] = *in[0];
  if (a->kind == FX_ALL_GATHER) out[0].dim[0] *= a->comm->size;
  if (a->kind == FX_REDUCE_SCATTER) {
    FX_TRY(check_divides(in[0], a));
    out[0].dim[0] /= a->comm->size;
  }
  out[0] = fx_type_of(out[0].dtype, out[0].ndim, out[0].dim);
  return FX_OK;
}

static fx_status fresh_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const fx_collective_attr *a = node->attr;
  fx_lane lane = (fx_lane)a->lane;
  if (a->kind == FX_ALL_GATHER)
    din[0] = fx_reduce_scatter(graph, a->comm, lane, dout[0]);
  else if (a->kind == FX_REDUCE_SCATTER)
    din[0] = fx_all_gather(graph, a->comm, lane, dout[0]);
  else if (a->kind == FX_ALL_REDUCE)
    din[0] = dout[0];
  else
    din[0] = fx_send_recv(graph, a->comm, lane, dout[0], a->peer_from, a->peer);
  return fx_graph_status(graph);
}

static const fx_op g_collective = {
    .name = "collective", /* all_reduce, reduce_scatter, all_gather, send_recv */
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(fx_collective_attr),
    .bf16_cpu = true,
    .effects = FX_EFFECT_COLLECTIVE,
    .infer = fresh_infer,
    .vjp = fresh_vjp,
    .bind = bind,
    .kernel = {[FX_BACKEND_CPU] = run, [FX_BACKEND_CUDA] = run},
};

static fx_value record(fx_graph *graph, const fx_op *op, fx_value x, fx_collective_attr attr) {
  return fx_graph_record(graph, op, &attr, (fx_value[]){x}, NULL);
}

static fx_collective_attr attr_of(fx_comm *comm, fx_lane lane, fx_collective kind) {
  fx_collective_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.comm = comm;
  attr.kind = (int32_t)kind;
  attr.lane = (int32_t)lane;
  return attr;
}

fx_value fx_all_reduce(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, fx_reduce reduce) {
  fx_collective_attr attr = attr_of(comm, lane, FX_ALL_REDUCE);
  attr.reduce = (int32_t)reduce;
  return record(graph, &g_collective_in_place, x, attr);
}

fx_value fx_broadcast(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, int root) {
  fx_collective_attr attr = attr_of(comm, lane, FX_BROADCAST);
  attr.peer = root;
  return record(graph, &g_collective_in_place, x, attr);
}

fx_value fx_all_gather_in_place(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x) {
  return record(graph, &g_collective_in_place, x, attr_of(comm, lane, FX_ALL_GATHER));
}

void fx_send(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, int to) {
  fx_collective_attr attr = attr_of(comm, lane, FX_SEND);
  attr.peer = to;
  record(graph, &g_collective_in_place, x, attr);
}

fx_value fx_recv(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value into, int from) {
  fx_collective_attr attr = attr_of(comm, lane, FX_RECV);
  attr.peer = from;
  return record(graph, &g_collective_in_place, into, attr);
}

fx_value fx_reduce_scatter(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x) {
  return record(graph, &g_collective, x, attr_of(comm, lane, FX_REDUCE_SCATTER));
}

fx_value fx_all_gather(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x) {
  return record(graph, &g_collective, x, attr_of(comm, lane, FX_ALL_GATHER));
}

fx_value fx_all_gather_again(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x) {
  fx_collective_attr attr = attr_of(comm, lane, FX_ALL_GATHER);
  attr.again = 1;
  return record(graph, &g_collective, x, attr);
}

fx_value fx_sum_ranks(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x) {
  return record(graph, &g_collective, x, attr_of(comm, lane, FX_ALL_REDUCE));
}

fx_value fx_send_recv(fx_graph *graph, fx_comm *comm, fx_lane lane, fx_value x, int to, int from) {
  fx_collective_attr attr = attr_of(comm, lane, FX_SEND_RECV);
  attr.peer = to;
  attr.peer_from = from;
  return record(graph, &g_collective, x, attr);
}
