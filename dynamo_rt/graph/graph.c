/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/graph/graph.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/input.h"

fx_graph *fx_graph_create(fx_inputs *inputs) {
  fx_graph *graph = calloc(1, sizeof *graph);
  if (!graph) return NULL;
  graph->inputs = inputs;
  graph->file = "";
  for (int i = 0; i < FX_MAX_INPUTS; i++) graph->input_value[i] = FX_NONE;
  return graph;
}

void fx_graph_destroy(fx_graph *graph) {
  if (!graph) return;
  while (graph->attrs) {
    fx_attr_block *next = graph->attrs->next;
    free(graph->attrs);
    graph->attrs = next;
  }
  free(graph->nodes);
  free(graph->values);
  free(graph->storages);
  free(graph);
}

fx_status fx_graph_status(const fx_graph *graph) {
  return graph->status == FX_OK ? FX_OK : fx_error(graph->status, "%s", graph->error);
}

fx_graph *fx_graph_at(fx_graph *graph, const char *file, int line) {
  graph->file = file;
  graph->line = line;
  return graph;
}

void fx_graph_set_layer(fx_graph *graph, int layer) {
  graph->layer = layer;
}

fx_value fx_graph_fail(fx_graph *graph, fx_status status) {
  if (graph->status == FX_OK) {
    graph->status = status;
    snprintf(graph->error, sizeof graph->error, "%.900s (recorded at %.80s:%d)", fx_error_text(), graph->file,
             graph->line);
  }
  return FX_NONE;
}

static fx_status add_storage(fx_graph *graph, fx_storage storage, int32_t *out) {
  FX_TRY(fx_grow(&graph->storages, &graph->storage_capacity, graph->num_storages + 1, sizeof storage));
  *out = (int32_t)graph->num_storages;
  graph->storages[graph->num_storages++] = storage;
  return FX_OK;
}

static fx_status add_value(fx_graph *graph, fx_value_info info, fx_value *out) {
  FX_TRY(fx_grow(&graph->values, &graph->value_capacity, graph->num_values + 1, sizeof info));
  *out = (fx_value)graph->num_values;
  graph->values[graph->num_values++] = info;
  return FX_OK;
}

/* *storage: the persistent storage that holds [data, data + bytes), or -1; offset: where in it. Two looks at
 * one flat buffer must share a storage, or the schedule would not see that they conflict. */
static fx_status find_persistent(const fx_graph *graph, const char *name, const char *data, size_t bytes,
                                 int32_t *storage, int64_t *offset) {
  *storage = -1;
  for (int32_t i = 0; i < graph->num_storages; i++) {
    const fx_storage *s = &graph->storages[i];
    const char *begin = s->data, *end = begin + s->bytes;
    if (!s->persistent || data + bytes <= begin || data >= end) continue;
    if (data < begin || data + bytes > end)
      return fx_error(FX_ERR_GRAPH, "%s overlaps %s without lying inside it: declare the whole buffer first",
                      name, s->name);
    *storage = i;
    *offset = data - begin;
  }
  return FX_OK;
}

fx_value fx_graph_persistent(fx_graph *graph, const char *name, void *data, fx_type type) {
  fx_value value = FX_NONE;
  size_t bytes = fx_type_bytes(&type);
  int64_t offset = 0;
  int32_t storage = -1;
  if (graph->status != FX_OK) return FX_NONE;
  fx_status status = find_persistent(graph, name, data, bytes, &storage, &offset);
  if (status == FX_OK && storage < 0)
    status = add_storage(graph, (fx_storage){.data = data, .bytes = bytes, .name = name, .persistent = true},
                         &storage);
  if (status == FX_OK)
    status = add_value(graph, (fx_value_info){.type = type, .storage = storage, .offset = offset, .node = -1},
                       &value);
  return status == FX_OK ? value : fx_graph_fail(graph, status);
}

fx_value fx_graph_input(fx_graph *graph, const char *name) {
  int index = fx_inputs_find(graph->inputs, name);
  if (index < 0) {
    fx_error(FX_ERR_GRAPH, "no runtime input is named %s", name);
    return fx_graph_fail(graph, FX_ERR_GRAPH);
  }
  if (graph->input_value[index] == FX_NONE) graph->input_value[index] = fx_input(graph, index);
  return graph->input_value[index];
}

const void *fx_graph_copy_attr(fx_graph *graph, const void *attr, size_t bytes) {
  size_t head = fx_align_up(sizeof(fx_attr_block), 16);
  fx_attr_block *block = calloc(1, head + bytes);
  if (!block) {
    fx_error(FX_ERR_MEMORY, "out of host memory while recording a graph");
    return NULL;
  }
  memcpy((char *)block + head, attr, bytes);
  block->next = graph->attrs;
  graph->attrs = block;
  return (char *)block + head;
}

static fx_status place_output(fx_graph *graph, const fx_node *node, int i, fx_value_info *info) {
  bool view = i == 0 && node->op->effects & FX_EFFECT_VIEW;
  int alias = view ? 1 : node->op->must_alias[i];
  if (alias) {
    const fx_value_info *source = &graph->values[node->in[alias - 1]];
    info->storage = source->storage;
    info->offset = source->offset + (view ? ((const fx_view_attr *)node->attr)->offset_bytes : 0);
    return FX_OK;
  }
  return add_storage(graph, (fx_storage){.bytes = fx_type_bytes(&info->type)}, &info->storage);
}

static fx_status check_inputs(const fx_graph *graph, const fx_op *op, const fx_value *in) {
  for (int i = 0; i < op->max_in; i++) {
    if (in[i] == FX_NONE && i >= op->min_in) continue;
    if (!fx_value_is(graph, in[i]))
      return fx_error(FX_ERR_GRAPH, "%s: input %d is no value of this graph", op->name, i);
  }
  return FX_OK;
}

static fx_status record(fx_graph *graph, const fx_op *op, const void *attr, const fx_value *in,
                        fx_node *node) {
  const fx_type *types[FX_MAX_IN] = {0};
  fx_type in_copy[FX_MAX_IN], out_type[FX_MAX_OUT];
  memset(out_type, 0, sizeof out_type);
  FX_TRY(check_inputs(graph, op, in));
  *node = (fx_node){.op = op, .layer = graph->layer, .file = graph->file, .line = graph->line};
  for (int i = 0; i < FX_MAX_IN; i++) node->in[i] = i < op->max_in ? in[i] : FX_NONE;
  for (int i = 0; i < FX_MAX_OUT; i++) node->out[i] = FX_NONE;
  for (int i = 0; i < op->max_in; i++) {
    if (in[i] == FX_NONE) continue;
    in_copy[i] = graph->values[in[i]].type;
    types[i] = &in_copy[i];
  }
  if (op->attr_bytes) {
    node->attr = fx_graph_copy_attr(graph, attr, op->attr_bytes);
    if (!node->attr) return FX_ERR_MEMORY;
  }
  fx_status status = op->infer(types, node->attr, out_type);
  if (status != FX_OK) return fx_error_prefix(status, "%s", op->name);
  FX_TRY(fx_grow(&graph->nodes, &graph->node_capacity, graph->num_nodes + 1, sizeof *node));
  for (int i = 0; i < op->num_out; i++) {
    if (op->must_alias[i] && in[op->must_alias[i] - 1] == FX_NONE) continue; /* absent, as its input is */
    fx_value_info info = {.type = out_type[i], .node = (int32_t)graph->num_nodes, .out = (int8_t)i};
    FX_TRY(place_output(graph, node, i, &info));
    FX_TRY(add_value(graph, info, &node->out[i]));
  }
  graph->nodes[graph->num_nodes++] = *node;
  return FX_OK;
}

fx_value fx_graph_record(fx_graph *graph, const fx_op *op, const void *attr, const fx_value *in,
                         fx_value *out) {
  for (int i = 0; out && i < op->num_out; i++) out[i] = FX_NONE;
  if (graph->status != FX_OK) return FX_NONE;
  fx_node node;
  fx_status status = record(graph, op, attr, in, &node);
  if (status != FX_OK) return fx_graph_fail(graph, status);
  for (int i = 0; out && i < op->num_out; i++) out[i] = node.out[i];
  return node.out[0];
}

const fx_type *fx_graph_type(const fx_graph *graph, fx_value value) {
  FX_ASSERT(fx_value_is(graph, value));
  return &graph->values[value].type;
}

int fx_graph_num_nodes(const fx_graph *graph) {
  return (int)graph->num_nodes;
}
const fx_node *fx_graph_node(const fx_graph *graph, int index) {
  return &graph->nodes[index];
}
int fx_graph_num_values(const fx_graph *graph) {
  return (int)graph->num_values;
}
const fx_value_info *fx_graph_value(const fx_graph *graph, fx_value value) {
  return &graph->values[value];
}
const fx_storage *fx_graph_storage(const fx_graph *graph, int32_t storage) {
  return &graph->storages[storage];
}
fx_inputs *fx_graph_inputs(const fx_graph *graph) {
  return graph->inputs;
}

void fx_graph_merge_storage(fx_graph *graph, int32_t from, int32_t to, int64_t offset) {
  FX_ASSERT(from != to && !graph->storages[from].persistent);
  for (int64_t v = 0; v < graph->num_values; v++) {
    if (graph->values[v].storage != from) continue;
    graph->values[v].storage = to;
    graph->values[v].offset += offset;
  }
  graph->storages[from].bytes = 0;
}

void fx_graph_replace_uses(fx_graph *graph, fx_value from, fx_value to) {
  for (int64_t n = 0; n < graph->num_nodes; n++)
    for (int i = 0; i < graph->nodes[n].op->max_in; i++)
      if (graph->nodes[n].in[i] == from) graph->nodes[n].in[i] = to;
}

/* The parts of an assembled value lie inside it; `out` and `in` are the copies of the original's values. */
static void repeat_placement(fx_graph *graph, const fx_node *original, const fx_value *in, fx_value out) {
  int64_t base = graph->values[original->out[0]].offset;
  for (int i = 0; i < original->op->max_in; i++) {
    if (original->in[i] == FX_NONE) continue;
    const fx_value_info *part = &graph->values[original->in[i]];
    graph->values[in[i]].type = part->type;
    fx_graph_merge_storage(graph, graph->values[in[i]].storage, graph->values[out].storage,
                           part->offset - base);
  }
}

fx_status fx_graph_repeat(fx_graph *graph, int begin, int end, const fx_value *from, const fx_value *to,
                          int count, int layer_step, fx_value *result, int num_result) {
  if (graph->status != FX_OK) return fx_graph_status(graph);
  FX_ASSERT(begin >= 0 && begin <= end && end <= graph->num_nodes);
  int64_t num_old = graph->num_values;
  fx_value *map = NULL;
  FX_TRY(fx_calloc(&map, (size_t)num_old, sizeof *map));
  for (int64_t v = 0; v < num_old; v++) map[v] = (fx_value)v;
  for (int i = 0; i < count; i++) map[from[i]] = to[i];
  int saved_layer = graph->layer;
  for (int n = begin; n < end && graph->status == FX_OK; n++) {
    fx_node original = graph->nodes[n];
    fx_value in[FX_MAX_IN], out[FX_MAX_OUT];
    for (int i = 0; i < FX_MAX_IN; i++) in[i] = original.in[i] == FX_NONE ? FX_NONE : map[original.in[i]];
    fx_graph_at(graph, original.file, original.line);
    graph->layer = original.layer + layer_step;
    fx_graph_record(graph, original.op, original.attr, in, out);
    if (graph->status == FX_OK && (original.op->effects & FX_EFFECT_ASSEMBLE))
      repeat_placement(graph, &original, in, out[0]);
    for (int i = 0; i < original.op->num_out; i++)
      if (original.out[i] != FX_NONE) map[original.out[i]] = out[i];
  }
  graph->layer = saved_layer;
  for (int i = 0; i < num_result; i++) result[i] = map[result[i]];
  free(map);
  return fx_graph_status(graph);
}

void fx_graph_dump(const fx_graph *graph, FILE *stream) {
  char text[96];
  for (int64_t n = 0; n < graph->num_nodes; n++) {
    const fx_node *node = &graph->nodes[n];
    if (node->dead) continue;
    fprintf(stream, "%4lld ", (long long)n);
    for (int i = 0; i < node->op->num_out; i++) {
      if (node->out[i] == FX_NONE) continue;
      const fx_value_info *v = &graph->values[node->out[i]];
      fprintf(stream, "%s%%%d:%s@%d+%lld", i ? ", " : "", node->out[i],
              fx_type_text(&v->type, text, sizeof text), v->storage, (long long)v->offset);
    }
    fprintf(stream, " = %s%s(", node->op->name, node->accumulate ? "+" : "");
    for (int i = 0; i < node->op->max_in; i++)
      if (node->in[i] != FX_NONE) fprintf(stream, "%s%%%d", i ? ", " : "", node->in[i]);
    fprintf(stream, ")  [%s:%d]\n", node->file, node->line);
  }
}
