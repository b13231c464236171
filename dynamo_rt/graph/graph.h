/* SPDX-License-Identifier: Apache-2.0 */
/* The recorded graph of one plan: storages, values, nodes.
 *
 * A *storage* is memory: transient (arena), or persistent (an address that outlives the plan: weights,
 * gradients, optimizer state, metrics). A *value* is a typed look at a storage: offset and strides. A *node*
 * is an op applied to values. Recording touches no memory. Order is program order: each node comes after the
 * producers of its inputs, and mutations happen where they are recorded.
 *
 * Recording is sticky on errors, so that model code reads as a formula: after the first failure every op
 * function returns FX_NONE, and fx_graph_status gives the code and (through fx_error_text) the sentence. */
#ifndef FX_DYNAMO_RT_GRAPH_GRAPH_H
#define FX_DYNAMO_RT_GRAPH_GRAPH_H

#include <stdio.h>

#include "dynamo_rt/graph/inputs.h"
#include "dynamo_rt/ops/op.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_storage {
  void *data; /* persistent: its address; transient: NULL until a plan binds it */
  size_t bytes;
  const char *name; /* persistent: borrowed, for messages */
  bool persistent;
} fx_storage;

typedef struct fx_value_info {
  fx_type type;
  int32_t storage;
  int64_t offset; /* bytes from the storage's start */
  int32_t node;   /* producer, or -1 for a persistent value */
  int8_t out;     /* which output of it */
} fx_value_info;

struct fx_node {
  const fx_op *op;
  const void *attr;
  fx_value in[FX_MAX_IN], out[FX_MAX_OUT];
  unsigned accumulate;
  int layer;
  bool dead;
  const char *file; /* where model code recorded it */
  int line;
};

fx_graph *fx_graph_create(fx_inputs *inputs); /* inputs: borrowed, may be NULL; NULL when out of memory */
void fx_graph_destroy(fx_graph *graph);       /* NULL is fine */
fx_status fx_graph_status(const fx_graph *graph);

/* Sets the source line of the nodes recorded next; returns graph, so calls read fx_add(FX_AT(g), a, b). */
fx_graph *fx_graph_at(fx_graph *graph, const char *file, int line);
#define FX_AT(graph) fx_graph_at((graph), __FILE__, __LINE__)
/* Layer index given to the nodes recorded next (kernels see it; dropout draws by it). */
void fx_graph_set_layer(fx_graph *graph, int layer);

/* A value over memory that outlives the graph; `name` and `data` are borrowed. The same data gives the same
 * storage, so two looks at one buffer are ordered. */
fx_value fx_graph_persistent(fx_graph *graph, const char *name, void *data, fx_type type);
/* The runtime input `name` of this run's slot (one node a graph, however often asked). */
fx_value fx_graph_input(fx_graph *graph, const char *name);

/* Records a node. in[op->max_in]; out[op->num_out] or NULL when the caller wants out 0 only; returns out 0
 * (or FX_NONE after an error). attr is copied; it must have no uninitialised padding. */
fx_value fx_graph_record(fx_graph *graph, const fx_op *op, const void *attr, const fx_value *in,
                         fx_value *out);
/* Fails the recording with the current fx_error_text. */
fx_value fx_graph_fail(fx_graph *graph, fx_status status);

const fx_type *fx_graph_type(const fx_graph *graph, fx_value value);
int fx_graph_num_nodes(const fx_graph *graph);
const fx_node *fx_graph_node(const fx_graph *graph, int index); /* valid until the next record */
int fx_graph_num_values(const fx_graph *graph);
const fx_value_info *fx_graph_value(const fx_graph *graph, fx_value value); /* likewise */
const fx_storage *fx_graph_storage(const fx_graph *graph, int32_t storage);
fx_inputs *fx_graph_inputs(const fx_graph *graph);

/* Records the nodes [begin, end) again with some values replaced: from[i] -> to[i] (same types); their layer
 * index grows by `layer_step`. result: in: values of the original range, out: their copies. This is how one
 * traced layer becomes N. */
fx_status fx_graph_repeat(fx_graph *graph, int begin, int end, const fx_value *from, const fx_value *to,
                          int count, int layer_step, fx_value *result, int num_result);

/* Text form, a line a node; for `flexion plan`, debugging and tests. */
void fx_graph_dump(const fx_graph *graph, FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
