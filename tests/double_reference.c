/* SPDX-License-Identifier: Apache-2.0 */
/* Memory is as the graph has it: one array of doubles a storage, which every value that looks at the storage
 * reads and writes through its own offset and strides. So views, parts of an assembled value and updates in
 * place need no code of their own: they come out right or wrong by what was recorded. Integers are doubles
 * too, which hold those up to 2^53. */
#include "tests/double_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "tests/double_ops.h"

static const struct {
  const char *name;
  fx_double_op run; /* NULL: the op is where its values lie */
} g_ops[] = {
#define ROW(name) {#name, fx_double_##name},
    FX_DOUBLE_OP_LIST(ROW)
#undef ROW
        {"empty", NULL},
    {"reshape", NULL},
    {"swap_dims", NULL},
    {"slice_heads", NULL},
    {"slice_rows", NULL},
    {"assemble", NULL},
    {"assemble_rows", NULL},
};

/* ---- numbers ---- */

/* Copied out, since packed numbers of several types need not be aligned. */
double fx_double_load(const void *data, fx_dtype dtype, int64_t i) {
  const char *at = (const char *)data + (size_t)i * fx_dtype_bytes(dtype);
  uint16_t half;
  uint32_t bits;
  int32_t i32;
  int64_t i64;
  float f32;
  double f64;
  switch (dtype) {
  case FX_F32:
    memcpy(&f32, at, sizeof f32);
    return (double)f32;
  case FX_BF16: /* the upper half of a float32 */
    memcpy(&half, at, sizeof half);
    bits = (uint32_t)half << 16;
    memcpy(&f32, &bits, sizeof f32);
    return (double)f32;
  case FX_F64:
    memcpy(&f64, at, sizeof f64);
    return f64;
  case FX_I32:
    memcpy(&i32, at, sizeof i32);
    return (double)i32;
  case FX_I64:
    memcpy(&i64, at, sizeof i64);
    return (double)i64;
  default:
    return NAN;
  }
}

double fx_double_round(double number, fx_dtype dtype) {
  enum { LOWEST = -125 }; /* exponent of the smallest normal number in frexp's terms */
  int digits = dtype == FX_BF16 ? 8 : 24, exponent;
  if ((dtype != FX_BF16 && dtype != FX_F32) || !isfinite(number)) return number;
  frexp(number, &exponent);
  int unit = (exponent < LOWEST ? LOWEST : exponent) - digits;
  double rounded = ldexp(rint(ldexp(number, -unit)), unit);
  return fabs(rounded) < 0x1p128 ? rounded : copysign(INFINITY, number);
}

/* ---- memory ---- */

typedef struct memory {
  const fx_storage *storage;
  double *data; /* NULL until it is first touched */
  int64_t n;
  fx_dtype dtype;
  int last; /* the last node that touches it */
} memory;

typedef struct run {
  const fx_graph *graph;
  memory *memories; /* [storages] */
  int count;
  bool *needed; /* [values]: somebody reads it, or it is memory that stays */
} run;

static memory *memory_of(const run *r, fx_value value) {
  return &r->memories[fx_graph_value(r->graph, value)->storage];
}

static int64_t first_element(const run *r, fx_value value) {
  return fx_graph_value(r->graph, value)->offset / (int64_t)fx_dtype_bytes(memory_of(r, value)->dtype);
}

static fx_status describe_memories(run *r) {
  int num_values = fx_graph_num_values(r->graph);
  for (fx_value v = 0; v < num_values; v++)
    if (fx_graph_value(r->graph, v)->storage >= r->count) r->count = fx_graph_value(r->graph, v)->storage + 1;
  FX_TRY(fx_calloc(&r->memories, (size_t)r->count, sizeof *r->memories));
  FX_TRY(fx_calloc(&r->needed, (size_t)num_values, sizeof *r->needed));
  for (fx_value v = 0; v < num_values; v++) {
    const fx_value_info *info = fx_graph_value(r->graph, v);
    memory *m = memory_of(r, v);
    if (m->storage && m->dtype != info->type.dtype)
      return fx_error(FX_ERR_UNSUPPORTED, "the double reference sees %s and %s in one storage",
                      fx_dtype_name(m->dtype), fx_dtype_name(info->type.dtype));
    m->storage = fx_graph_storage(r->graph, info->storage);
    m->dtype = info->type.dtype;
    m->n = (int64_t)(m->storage->bytes / fx_dtype_bytes(m->dtype));
    if (first_element(r, v) + fx_type_span(&info->type) > m->n)
      return fx_error(FX_ERR_GRAPH, "value %d lies outside its storage", v);
  }
  return FX_OK;
}

static fx_status touch(memory *m) {
  if (m->data) return FX_OK;
  FX_TRY(fx_alloc_aligned(&m->data, (size_t)(m->n + 1) * sizeof *m->data));
  for (int64_t i = 0; i < m->n; i++) {
    m->data[i] = m->storage->persistent ? fx_double_load(m->storage->data, m->dtype, i) : NAN;
    if (m->dtype == FX_I64 && fabs(m->data[i]) > 0x1p53)
      return fx_error(FX_ERR_UNSUPPORTED, "a double does not hold the integer %.0f", m->data[i]);
  }
  return FX_OK;
}

/* ---- nodes ---- */

/* Output i stays even when no node reads it: it is an input's memory. */
static bool stays(const fx_node *node, int i) {
  return (node->op->effects & FX_EFFECT_MUTATES) && node->op->must_alias[i];
}

static bool is_needed(const run *r, const fx_node *node) {
  for (int i = 0; i < node->op->num_out; i++)
    if (node->out[i] != FX_NONE && (r->needed[node->out[i]] || stays(node, i))) return true;
  return false;
}

/* Backwards from what stays. */
static void mark_needed(run *r) {
  for (int n = fx_graph_num_nodes(r->graph) - 1; n >= 0; n--) {
    const fx_node *node = fx_graph_node(r->graph, n);
    if (!is_needed(r, node)) continue;
    for (int i = 0; i < node->op->max_in; i++) {
      if (node->in[i] == FX_NONE) continue;
      r->needed[node->in[i]] = true;
      memory *m = memory_of(r, node->in[i]);
      if (m->last < n) m->last = n;
    }
    for (int i = 0; i < node->op->num_out; i++)
      if (node->out[i] != FX_NONE && memory_of(r, node->out[i])->last < n)
        memory_of(r, node->out[i])->last = n;
  }
}

/* Where element i of a value lies, its indices counted with the last one fastest. */
static int64_t place(const fx_type *type, int64_t i) {
  int64_t at = 0;
  for (int d = type->ndim - 1; d >= 0; d--) {
    at += i % type->dim[d] * type->stride[d];
    i /= type->dim[d];
  }
  return at;
}

/* The value as contiguous numbers: its memory itself, or a copy that the caller frees. */
static fx_status open_tensor(const run *r, fx_value value, fx_double_tensor *t) {
  memory *m = memory_of(r, value);
  t->type = fx_graph_value(r->graph, value)->type;
  t->n = fx_type_numel(&t->type);
  t->rows = fx_type_rows(&t->type);
  t->cols = fx_type_cols(&t->type);
  FX_TRY(touch(m));
  double *base = m->data + first_element(r, value);
  t->data = base;
  if (fx_type_contiguous(&t->type)) return FX_OK;
  t->data = NULL;
  FX_TRY(fx_calloc(&t->data, (size_t)t->n, sizeof *t->data));
  for (int64_t i = 0; i < t->n; i++) t->data[i] = base[place(&t->type, i)];
  return FX_OK;
}

static void close_tensor(const run *r, fx_value value, fx_double_tensor *t, bool written) {
  if (!t->data || fx_type_contiguous(&t->type)) return;
  double *base = memory_of(r, value)->data + first_element(r, value);
  for (int64_t i = 0; written && i < t->n; i++) base[place(&t->type, i)] = t->data[i];
  free(t->data);
}

static void let_go(const run *r, fx_value value, int index) {
  memory *m = value == FX_NONE ? NULL : memory_of(r, value);
  if (!m || m->storage->persistent || m->last != index) return;
  free(m->data);
  m->data = NULL;
}

static fx_status run_op(const run *r, const fx_node *node, fx_double_op op) {
  fx_double_call call = {.attr = node->attr, .layer = node->layer};
  fx_status status = FX_OK;
  for (int i = 0; status == FX_OK && i < node->op->max_in; i++)
    if (node->in[i] != FX_NONE) status = open_tensor(r, node->in[i], &call.in[i]);
  for (int i = 0; status == FX_OK && i < node->op->num_out; i++)
    if (node->out[i] != FX_NONE && (r->needed[node->out[i]] || stays(node, i)))
      status = open_tensor(r, node->out[i], &call.out[i]);
  if (status == FX_OK) status = op(&call);
  for (int i = 0; i < node->op->max_in; i++) close_tensor(r, node->in[i], &call.in[i], false);
  for (int i = 0; i < node->op->num_out; i++) close_tensor(r, node->out[i], &call.out[i], status == FX_OK);
  return status;
}

static fx_status run_node(const run *r, int index) {
  const fx_node *node = fx_graph_node(r->graph, index);
  size_t at = 0, count = sizeof g_ops / sizeof g_ops[0];
  if (node->dead || node->accumulate)
    return fx_error(FX_ERR_GRAPH, "%s: passes have changed this graph", node->op->name);
  if (!is_needed(r, node)) return FX_OK;
  while (at < count && strcmp(g_ops[at].name, node->op->name) != 0) at++;
  if (at == count)
    return fx_error(FX_ERR_UNSUPPORTED, "the double reference has no op %s (recorded at %s:%d)",
                    node->op->name, node->file, node->line);
  if (g_ops[at].run) FX_TRY(run_op(r, node, g_ops[at].run));
  for (int i = 0; i < node->op->max_in; i++) let_go(r, node->in[i], index);
  for (int i = 0; i < node->op->num_out; i++) let_go(r, node->out[i], index);
  return FX_OK;
}

static fx_status hand_out(const run *r, const void *data, double *result) {
  for (int i = 0; i < r->count; i++) {
    memory *m = &r->memories[i];
    if (!m->storage || !m->storage->persistent || m->storage->data != data) continue;
    FX_TRY(touch(m));
    memcpy(result, m->data, (size_t)m->n * sizeof *result);
    return FX_OK;
  }
  return fx_error(FX_ERR_GRAPH, "the graph has no persistent memory at that address");
}

fx_status fx_double_reference_run(const fx_graph *graph, const void *const *data, double *const *result,
                                  int count) {
  run r = {.graph = graph};
  fx_status status = fx_graph_status(graph);
  if (status == FX_OK) status = describe_memories(&r);
  if (status == FX_OK) mark_needed(&r);
  for (int n = 0; status == FX_OK && n < fx_graph_num_nodes(graph); n++) status = run_node(&r, n);
  for (int i = 0; status == FX_OK && i < count; i++) status = hand_out(&r, data[i], result[i]);
  for (int i = 0; r.memories && i < r.count; i++) free(r.memories[i].data);
  free(r.memories);
  free(r.needed);
  return status;
}
