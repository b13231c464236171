/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/passes/passes.h"
#include "dynamo_rt/passes/range.h"

typedef struct verifier {
  const fx_graph *graph;
  int64_t index;
  const fx_node *node;
  bool *written; /* [values]: its bytes hold what its producer made */
} verifier;

static fx_status broken(const verifier *v, const char *what, int value) {
  return fx_error(FX_ERR_GRAPH, "graph is malformed at node %lld, %s (recorded at %s:%d): %s (value %%%d)",
                  (long long)v->index, v->node->op->name, v->node->file, v->node->line, what, value);
}

static fx_status check_in(const verifier *v, int i) {
  const fx_op *op = v->node->op;
  fx_value value = v->node->in[i];
  if (i >= op->max_in) return value == FX_NONE ? FX_OK : broken(v, "too many inputs", value);
  if (value == FX_NONE) return i >= op->min_in ? FX_OK : broken(v, "a required input is absent", value);
  if (!fx_value_is(v->graph, value)) return broken(v, "an input is no value of this graph", value);
  const fx_value_info *info = &v->graph->values[value];
  if (info->node >= v->index) return broken(v, "an input is made later", value);
  if (info->node >= 0 && v->graph->nodes[info->node].dead)
    return broken(v, "an input's producer is dead", value);
  if (info->node >= 0 && !v->written[value]) return broken(v, "an input is read before it is written", value);
  return FX_OK;
}

/* Whether anybody has written what output `value` is added to; what is persistent is there from the start. */
static bool has_summand(const verifier *v, fx_value value) {
  fx_range range = fx_value_range(v->graph, value);
  if (v->graph->storages[range.storage].persistent) return true;
  for (int64_t other = 0; other < v->graph->num_values; other++)
    if (v->written[other] && fx_range_overlap(fx_value_range(v->graph, (fx_value)other), range)) return true;
  return false;
}

static fx_status check_out(const verifier *v, int i) {
  const fx_op *op = v->node->op;
  fx_value value = v->node->out[i];
  if (i >= op->num_out) return value == FX_NONE ? FX_OK : broken(v, "too many outputs", value);
  if (value == FX_NONE)
    return op->optional_out >> i & 1 ? FX_OK : broken(v, "a required output is absent", value);
  const fx_value_info *info = &v->graph->values[value];
  if (info->node != v->index || info->out != i) return broken(v, "an output belongs to another node", value);
  if (v->written[value]) return broken(v, "an output is defined twice", value);
  if (info->offset < 0 ||
      info->offset + (int64_t)fx_type_bytes(&info->type) > (int64_t)v->graph->storages[info->storage].bytes)
    return broken(v, "an output leaves its storage", value);
  if (!fx_type_contiguous(&info->type) && !(op->strided_out >> i & 1) && !(op->effects & FX_EFFECT_VIEW))
    return broken(v, "an output is strided and its kernels cannot write that", value);
  if ((v->node->accumulate >> i & 1) && !(op->can_accumulate >> i & 1))
    return broken(v, "an output accumulates and its kernels cannot", value);
  if ((v->node->accumulate >> i & 1) && !has_summand(v, value))
    return broken(v, "an output is added to what nobody wrote", value);
  return FX_OK;
}

/* Shapes once more from the inputs: a pass that swapped an input for one of another shape is caught here. */
static fx_status check_types(const verifier *v) {
  const fx_type *in[FX_MAX_IN] = {0};
  fx_type out[FX_MAX_OUT] = {{0}};
  for (int i = 0; i < v->node->op->max_in; i++)
    if (v->node->in[i] != FX_NONE) in[i] = &v->graph->values[v->node->in[i]].type;
  fx_status status = v->node->op->infer(in, v->node->attr, out);
  if (status != FX_OK) return broken(v, fx_error_text(), -1);
  for (int i = 0; i < v->node->op->num_out; i++) {
    if (v->node->out[i] == FX_NONE) continue;
    const fx_type *type = &v->graph->values[v->node->out[i]].type;
    if (!fx_type_same_shape(type, &out[i]) || type->dtype != out[i].dtype)
      return broken(v, "an output's type is not what its op infers", v->node->out[i]);
  }
  if (v->node->op->effects & FX_EFFECT_COLLECTIVE && !((const fx_collective_attr *)v->node->attr)->comm)
    return broken(v, "a collective names no communicator", -1);
  return FX_OK;
}

/* A fresh write of bytes that a live value still owns clobbers it: only views, aliases and accumulation may
 * share. */
static void forget_overwritten(const verifier *v, int i) {
  fx_range range = fx_value_range(v->graph, v->node->out[i]);
  bool shares = v->node->op->must_alias[i] || v->node->accumulate >> i & 1;
  if (v->node->op->effects & (FX_EFFECT_VIEW | FX_EFFECT_ASSEMBLE)) return;
  for (int64_t other = 0; !shares && other < v->graph->num_values; other++)
    if (v->written[other] && fx_range_overlap(fx_value_range(v->graph, (fx_value)other), range) &&
        fx_type_contiguous(&v->graph->values[v->node->out[i]].type) &&
        fx_type_contiguous(&v->graph->values[other].type))
      v->written[other] = false;
}

fx_status fx_verify(const fx_graph *graph) {
  fx_status status = FX_OK;
  verifier v = {.graph = graph};
  FX_TRY(fx_graph_status(graph));
  FX_TRY(fx_calloc(&v.written, (size_t)graph->num_values, sizeof *v.written));
  for (v.index = 0; v.index < graph->num_nodes; v.index++) {
    v.node = &graph->nodes[v.index];
    if (v.node->dead) continue;
    for (int i = 0; i < FX_MAX_IN; i++) FX_TRY_GOTO(check_in(&v, i), free_written);
    FX_TRY_GOTO(check_types(&v), free_written);
    for (int i = 0; i < FX_MAX_OUT; i++) {
      FX_TRY_GOTO(check_out(&v, i), free_written);
      if (v.node->out[i] == FX_NONE || i >= v.node->op->num_out) continue;
      forget_overwritten(&v, i);
      v.written[v.node->out[i]] = true;
    }
  }
free_written:
  free(v.written);
  return status;
}

fx_status fx_graph_optimize(fx_graph *graph, bool fuse) {
  FX_TRY(fx_graph_status(graph));
  fx_pass_cse(graph);
  fx_pass_dce(graph);
  if (fuse) fx_pass_fuse(graph);
  fx_pass_fold(graph);
  fx_pass_dce(graph);
  fx_pass_hoist(graph);
  return fx_verify(graph);
}
