/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes a value touches: what passes and the scheduler ask when they decide whether two nodes conflict.
 */
#ifndef FX_DYNAMO_RT_PASSES_RANGE_H
#define FX_DYNAMO_RT_PASSES_RANGE_H

#include "dynamo_rt/graph/graph_internal.h"

typedef struct fx_range {
  int32_t storage;
  int64_t begin, end; /* bytes; a strided view counts from its first to its last element */
} fx_range;

static inline fx_range fx_value_range(const fx_graph *graph, fx_value value) {
  const fx_value_info *info = &graph->values[value];
  return (fx_range){info->storage, info->offset, info->offset + (int64_t)fx_type_bytes(&info->type)};
}

static inline bool fx_range_overlap(fx_range a, fx_range b) {
  return a.storage == b.storage && a.begin < b.end && b.begin < a.end;
}

/* Whether node writes (or, unless writes_only, reads) any of these bytes. */
static inline bool fx_node_touches(const fx_graph *graph, const fx_node *node, fx_range range,
                                   bool writes_only) {
  for (int i = 0; !writes_only && i < node->op->max_in; i++)
    if (node->in[i] != FX_NONE && fx_range_overlap(fx_value_range(graph, node->in[i]), range)) return true;
  for (int i = 0; i < node->op->num_out; i++)
    if (node->out[i] != FX_NONE && fx_range_overlap(fx_value_range(graph, node->out[i]), range)) return true;
  return false;
}

/* Nodes without a kernel move no bytes. */
static inline bool fx_node_runs(const fx_node *node) {
  return !node->dead && !(node->op->effects & (FX_EFFECT_VIEW | FX_EFFECT_ASSEMBLE));
}

#endif
