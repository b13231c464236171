/* SPDX-License-Identifier: Apache-2.0 */
/* Runtime inputs, reshapes, slices and their inverse. Views have no kernel; the input op is one copy. */
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"

/* ---- input ---- */

static fx_status input_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in;
  out[0] = ((const fx_input_attr *)attr)->type;
  return FX_OK;
}

static const fx_op g_input = {
    .name = "input",
    .num_out = 1,
    .attr_bytes = sizeof(fx_input_attr),
    .effects = FX_EFFECT_INPUT,
    .infer = input_infer,
    .kernel = {[FX_BACKEND_CPU] = fx_input_cpu, [FX_BACKEND_CUDA] = fx_input_cuda},
};

fx_value fx_input(fx_graph *graph, int index) {
  const fx_input_info *info = fx_inputs_info(graph->inputs, index);
  fx_input_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.offset = (int64_t)info->offset;
  attr.type = info->type;
  return fx_graph_record(graph, &g_input, &attr, (fx_value[FX_MAX_IN]){FX_NONE}, NULL);
}

/* ---- reshape ---- */

typedef struct reshape_attr {
  fx_view_attr view;
  fx_type type;
} reshape_attr;

static fx_status reshape_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const fx_type *want = &((const reshape_attr *)attr)->type;
  char from[96], to[96];
  if (!fx_type_contiguous(in[0]) || fx_type_numel(in[0]) != fx_type_numel(want))
    return fx_error(FX_ERR_SHAPE, "cannot see %s as %s", fx_type_text(in[0], from, sizeof from),
                    fx_type_text(want, to, sizeof to));
  out[0] = *want;
  return FX_OK;
}

static fx_status reshape_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  fx_type type = *fx_graph_type(graph, node->in[0]);
  din[0] = fx_reshape(graph, dout[0], type.ndim, type.dim);
  return fx_graph_status(graph);
}

static const fx_op g_reshape = {
    .name = "reshape",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(reshape_attr),
    .effects = FX_EFFECT_VIEW,
    .infer = reshape_infer,
    .vjp = reshape_vjp,
};

fx_value fx_reshape(fx_graph *graph, fx_value x, int ndim, const int64_t *dim) {
  if (!fx_value_is(graph, x)) return fx_graph_fail(graph, fx_error(FX_ERR_GRAPH, "reshape: no input"));
  reshape_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.type = fx_type_of(fx_graph_type(graph, x)->dtype, ndim, dim);
  return fx_graph_record(graph, &g_reshape, &attr, (fx_value[]){x}, NULL);
}

/* ---- two dimensions exchanged ---- */

typedef struct swap_attr {
  fx_view_attr view;
  int32_t a, b;
} swap_attr;

static fx_status swap_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const swap_attr *s = attr;
  char text[96];
  if (s->a < 0 || s->b < 0 || s->a >= in[0]->ndim || s->b >= in[0]->ndim)
    return fx_error(FX_ERR_SHAPE, "%s has no dimensions %d and %d", fx_type_text(in[0], text, sizeof text),
                    s->a, s->b);
  out[0] = *in[0];
  out[0].dim[s->a] = in[0]->dim[s->b], out[0].stride[s->a] = in[0]->stride[s->b];
  out[0].dim[s->b] = in[0]->dim[s->a], out[0].stride[s->b] = in[0]->stride[s->a];
  return FX_OK;
}

static fx_status swap_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const swap_attr *s = node->attr;
  din[0] = fx_copy(graph, fx_swap_dims(graph, dout[0], s->a, s->b));
  return fx_graph_status(graph);
}

static const fx_op g_swap_dims = {
    .name = "swap_dims",
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(swap_attr),
    .effects = FX_EFFECT_VIEW,
    .infer = swap_infer,
    .vjp = swap_vjp,
};

fx_value fx_swap_dims(fx_graph *graph, fx_value x, int a, int b) {
  swap_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.a = a;
  attr.b = b;
  return fx_graph_record(graph, &g_swap_dims, &attr, (fx_value[]){x}, NULL);
}

/* ---- slices of the last dimension ---- */

typedef struct slice_attr {
  fx_view_attr view;
  int64_t column, heads, head_dim;
} slice_attr;

/* The type of `heads` x `head_dim` columns of rows that are `row_stride` elements apart. */
static fx_type sliced_type(const fx_type *base, int64_t heads, int64_t head_dim) {
  fx_type type = *base;
  int last = base->ndim - 1;
  type.ndim = base->ndim + 1;
  type.dim[last] = heads;
  type.stride[last] = head_dim;
  type.dim[last + 1] = head_dim;
  type.stride[last + 1] = 1;
  return type;
}

static fx_status slice_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const slice_attr *a = attr;
  char text[96];
  bool fits = in[0]->ndim >= 1 && in[0]->ndim < FX_MAX_DIMS && fx_type_contiguous(in[0]) && a->column >= 0 &&
              a->column + a->heads * a->head_dim <= fx_type_cols(in[0]);
  if (!fits)
    return fx_error(FX_ERR_SHAPE, "%lld heads of %lld columns from column %lld do not lie in %s",
                    (long long)a->heads, (long long)a->head_dim, (long long)a->column,
                    fx_type_text(in[0], text, sizeof text));
  out[0] = sliced_type(in[0], a->heads, a->head_dim);
  return FX_OK;
}

static const fx_op g_slice_heads = {
    .name = "slice_heads", /* its backward is autograd's: slices of one value are assembled together */
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(slice_attr),
    .effects = FX_EFFECT_VIEW,
    .infer = slice_infer,
};

fx_value fx_slice_heads(fx_graph *graph, fx_value x, int64_t column, int64_t heads, int64_t head_dim) {
  if (!fx_value_is(graph, x)) return fx_graph_fail(graph, fx_error(FX_ERR_GRAPH, "slice_heads: no input"));
  slice_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.view.offset_bytes = column * (int64_t)fx_dtype_bytes(fx_graph_type(graph, x)->dtype);
  attr.column = column;
  attr.heads = heads;
  attr.head_dim = head_dim;
  return fx_graph_record(graph, &g_slice_heads, &attr, (fx_value[]){x}, NULL);
}

int64_t fx_slice_column(const fx_node *node) {
  return node->op == &g_slice_heads ? ((const slice_attr *)node->attr)->column : -1;
}

/* ---- rows ---- */

typedef struct rows_attr {
  fx_view_attr view;
  int64_t first, count;
} rows_attr;

static fx_status rows_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  const rows_attr *a = attr;
  char text[96];
  out[0] = *in[0];
  if (!fx_type_contiguous(in[0]) || in[0]->ndim < 1 || a->first < 0 || a->count < 1 ||
      a->first + a->count > in[0]->dim[0])
    return fx_error(FX_ERR_SHAPE, "%s has no rows %lld to %lld", fx_type_text(in[0], text, sizeof text),
                    (long long)a->first, (long long)(a->first + a->count));
  out[0].dim[0] = a->count;
  return FX_OK;
}

static const fx_op g_slice_rows = {
    .name = "slice_rows", /* its backward is autograd's, too */
    .min_in = 1,
    .max_in = 1,
    .num_out = 1,
    .attr_bytes = sizeof(rows_attr),
    .effects = FX_EFFECT_VIEW,
    .infer = rows_infer,
};

fx_value fx_slice_rows(fx_graph *graph, fx_value x, int64_t first, int64_t count) {
  if (!fx_value_is(graph, x)) return fx_graph_fail(graph, fx_error(FX_ERR_GRAPH, "slice_rows: no input"));
  const fx_type *type = fx_graph_type(graph, x);
  rows_attr attr;
  memset(&attr, 0, sizeof attr);
  attr.view.offset_bytes = first * type->stride[0] * (int64_t)fx_dtype_bytes(type->dtype);
  attr.first = first;
  attr.count = count;
  return fx_graph_record(graph, &g_slice_rows, &attr, (fx_value[]){x}, NULL);
}

int64_t fx_slice_row(const fx_node *node) {
  return node->op == &g_slice_rows ? ((const rows_attr *)node->attr)->first : -1;
}

/* ---- assemble ---- */

typedef struct assemble_attr {
  fx_type type;
} assemble_attr;

static fx_status assemble_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in;
  out[0] = ((const assemble_attr *)attr)->type;
  return FX_OK;
}

/* Each part gets its rows of the gradient. */
static fx_status assemble_rows_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout,
                                   fx_value *din) {
  fx_node whole = *node; /* recording moves the nodes */
  int64_t first = 0;
  for (int i = 0; i < FX_MAX_IN && whole.in[i] != FX_NONE; i++) {
    int64_t count = fx_graph_type(graph, whole.in[i])->dim[0];
    din[i] = fx_slice_rows(graph, dout[0], first, count);
    first += count;
  }
  return fx_graph_status(graph);
}

#define ASSEMBLE_OP(title, backward)                                                                    \
  {                                                                                                     \
    .name = title, .min_in = 1, .max_in = FX_MAX_IN, .num_out = 1, .attr_bytes = sizeof(assemble_attr), \
    .effects = FX_EFFECT_ASSEMBLE, .infer = assemble_infer, .vjp = backward                             \
  }

static const fx_op g_assemble = ASSEMBLE_OP("assemble", NULL);
static const fx_op g_assemble_rows = ASSEMBLE_OP("assemble_rows", assemble_rows_vjp);

/* strided: the place is not contiguous. */
static bool can_be_placed(const fx_graph *graph, fx_value part, bool strided) {
  const fx_value_info *info = &graph->values[part];
  if (info->node < 0 || (strided && !(graph->nodes[info->node].op->strided_out >> info->out & 1)))
    return false;
  if (graph->storages[info->storage].bytes != fx_type_bytes(&info->type)) return false;
  for (int64_t n = 0; n < graph->num_nodes; n++)
    for (int i = 0; i < graph->nodes[n].op->max_in; i++)
      if (graph->nodes[n].in[i] == part) return false;
  return true;
}

/* How a part comes to its place: its producer writes there, contiguous or strided, where it can; or never. */
typedef enum placing { CONTIGUOUS, STRIDED, COPIED } placing;

/* in: the parts, or copies of them, that `lay` then puts into the result. */
static fx_value record_parts(fx_graph *graph, const fx_op *op, const fx_value *parts, int count, placing how,
                             fx_type type, fx_value in[FX_MAX_IN]) {
  assemble_attr attr;
  if (graph->status != FX_OK) return FX_NONE;
  memset(&attr, 0, sizeof attr);
  attr.type = type;
  for (int i = 0; i < FX_MAX_IN; i++) in[i] = FX_NONE;
  for (int i = 0; i < count; i++) {
    bool placed = how != COPIED && can_be_placed(graph, parts[i], how == STRIDED);
    in[i] = placed ? parts[i] : fx_copy(graph, parts[i]);
  }
  return fx_graph_record(graph, op, &attr, in, NULL);
}

static void lay(fx_graph *graph, fx_value part, fx_value whole, int64_t offset_bytes) {
  fx_graph_merge_storage(graph, graph->values[part].storage, graph->values[whole].storage, offset_bytes);
}

fx_value fx_assemble(fx_graph *graph, const fx_value *parts, const int64_t *columns, int count,
                     fx_type type) {
  fx_value in[FX_MAX_IN], whole = record_parts(graph, &g_assemble, parts, count, STRIDED, type, in);
  for (int i = 0; i < count && whole != FX_NONE; i++) {
    fx_type *part = &graph->values[in[i]].type;
    *part = sliced_type(&type, part->dim[part->ndim - 2], part->dim[part->ndim - 1]);
    lay(graph, in[i], whole, columns[i] * (int64_t)fx_dtype_bytes(type.dtype));
  }
  return whole;
}

static fx_value assemble_some_rows(fx_graph *graph, const fx_value *parts, int count) {
  fx_type type = graph->values[parts[0]].type;
  fx_value in[FX_MAX_IN];
  int64_t offset = 0;
  type.dim[0] = 0;
  for (int i = 0; i < count; i++) type.dim[0] += graph->values[parts[i]].type.dim[0];
  fx_value whole = record_parts(graph, &g_assemble_rows, parts, count, CONTIGUOUS, type, in);
  for (int i = 0; i < count && whole != FX_NONE; i++) {
    lay(graph, in[i], whole, offset);
    offset += (int64_t)fx_type_bytes(&graph->values[in[i]].type);
  }
  return whole;
}

/* A node takes FX_MAX_IN inputs: more parts are joined in groups first. */
fx_value fx_assemble_rows(fx_graph *graph, fx_value *parts, int count) {
  while (graph->status == FX_OK && count > 1) {
    int groups = 0;
    for (int i = 0; i < count; i += FX_MAX_IN) {
      int some = (int)fx_min_i64(FX_MAX_IN, count - i);
      parts[groups++] = some == 1 ? parts[i] : assemble_some_rows(graph, parts + i, some);
    }
    count = groups;
  }
  return graph->status == FX_OK ? parts[0] : FX_NONE;
}

fx_value fx_join(fx_graph *graph, const fx_value *parts, const int64_t *offsets, int count, int64_t n) {
  fx_type type = fx_type_1d(FX_F32, n);
  fx_value in[FX_MAX_IN], whole = record_parts(graph, &g_assemble, parts, count, COPIED, type, in);
  for (int i = 0; i < count && whole != FX_NONE; i++)
    lay(graph, in[i], whole, offsets[i] * (int64_t)sizeof(float));
  return whole;
}
