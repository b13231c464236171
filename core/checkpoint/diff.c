/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing two steps: tensors bit by bit, and the resolved configs key by key. */
#include "core/checkpoint/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

/* ---- tensors ---- */

static double half_value(uint16_t bits) {
  int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  double value = exponent == 31  ? (mantissa ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(mantissa, -24)
                                 : ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

static double value_at(fx_dtype dtype, const void *data, int64_t i) {
  switch (dtype) {
  case FX_F32:
    return (double)((const float *)data)[i];
  case FX_F64:
    return ((const double *)data)[i];
  case FX_BF16:
    return (double)fx_bf16_to_f32(((const uint16_t *)data)[i]);
  case FX_F16:
    return half_value(((const uint16_t *)data)[i]);
  case FX_I32:
    return (double)((const int32_t *)data)[i];
  case FX_I64:
    return (double)((const int64_t *)data)[i];
  case FX_U8:
    return (double)((const uint8_t *)data)[i];
  default:
    return NAN;
  }
}

static void compare_values(fx_dtype dtype, const char *a, const char *b, fx_ckpt_diff *out) {
  const size_t size = fx_dtype_bytes(dtype);
  for (int64_t i = 0; i < out->elements; i++) {
    if (memcmp(a + (size_t)i * size, b + (size_t)i * size, size) == 0) continue;
    out->different++;
    double x = value_at(dtype, a, i), y = value_at(dtype, b, i);
    double gap = x == y ? 0.0 : fabs(x - y), scale = fmax(fabs(x), fabs(y));
    if (isnan(gap)) gap = INFINITY; /* a NaN, or infinities of one kind that were caught above */
    out->max_abs = fmax(out->max_abs, gap);
    out->max_rel = fmax(out->max_rel, gap == 0.0 ? 0.0 : isinf(gap) ? INFINITY : gap / scale);
  }
  out->kind = out->different ? FX_CKPT_DIFF_VALUES : FX_CKPT_DIFF_NONE;
}

static fx_status read_whole(const fx_ckpt *ckpt, const fx_ckpt_tensor *tensor, char **data) {
  fx_ckpt_region region = {.path = tensor->path, .dtype = tensor->dtype, .ndim = tensor->ndim};
  memcpy(region.dim, tensor->dim, sizeof region.dim);
  memcpy(region.count, tensor->dim, sizeof region.count);
  FX_TRY(fx_alloc_aligned(data, (size_t)tensor->bytes));
  region.data = *data;
  return fx_ckpt_read(ckpt, &region, 1);
}

static fx_status compare_tensor(const fx_ckpt *a, const fx_ckpt_tensor *ta, const fx_ckpt *b,
                                const fx_ckpt_tensor *tb, fx_ckpt_diff *out) {
  char *x = NULL, *y = NULL;
  bool same = ta->dtype == tb->dtype && ta->ndim == tb->ndim && !memcmp(ta->dim, tb->dim, sizeof ta->dim);
  if (!same) {
    out->kind = FX_CKPT_DIFF_SHAPE;
    return FX_OK;
  }
  fx_status status = read_whole(a, ta, &x);
  if (status == FX_OK) status = read_whole(b, tb, &y);
  if (status == FX_OK) compare_values(ta->dtype, x, y, out);
  free(x);
  free(y);
  return status;
}

fx_status fx_ckpt_diff_tensors(const fx_ckpt *a, const fx_ckpt *b, fx_ckpt_diff **out, int64_t *count) {
  int64_t na = fx_ckpt_tensor_count(a), nb = fx_ckpt_tensor_count(b), i = 0, j = 0, n = 0;
  fx_ckpt_diff *rows = NULL;
  fx_status status = fx_calloc(&rows, (size_t)(na + nb), sizeof *rows);
  while (status == FX_OK && (i < na || j < nb)) {
    fx_ckpt_tensor ta = {.path = NULL}, tb = {.path = NULL};
    if (i < na) ta = fx_ckpt_tensor_at(a, i);
    if (j < nb) tb = fx_ckpt_tensor_at(b, j);
    int order = !tb.path ? -1 : !ta.path ? 1 : strcmp(ta.path, tb.path);
    const fx_ckpt_tensor *here = order <= 0 ? &ta : &tb;
    fx_ckpt_diff *row = &rows[n++];
    *row = (fx_ckpt_diff){.path = here->path, .elements = here->elements, .bytes = here->bytes};
    if (order < 0) row->kind = FX_CKPT_DIFF_ONLY_A;
    if (order > 0) row->kind = FX_CKPT_DIFF_ONLY_B;
    if (order == 0) status = compare_tensor(a, &ta, b, &tb, row);
    i += order <= 0;
    j += order >= 0;
  }
  if (status != FX_OK) {
    free(rows);
    return status;
  }
  *out = rows;
  *count = n;
  return FX_OK;
}

/* ---- configs ---- */

/* One `key: value` of the text that fx_config_print writes: sections at column 0, keys below them. */
typedef struct entry {
  char *key, *value;
} entry;

typedef struct entries {
  entry *items;
  int64_t count, room;
} entries;

static void entries_fini(entries *list) {
  for (int64_t i = 0; i < list->count; i++) {
    free(list->items[i].key);
    free(list->items[i].value);
  }
  free(list->items);
}

/* What is not a key (comments, continued lines) joins the value before it, so that nothing is overlooked. */
static fx_status add_line(entries *list, char section[128], const char *line, int length) {
  int indent = (int)strspn(line, " "), name = 0;
  if (indent >= length) return FX_OK;
  while (indent + name < length && line[indent + name] != ':') name++;
  const char *value = line + fx_min_i64(indent + name + 1, length);
  int value_length = (int)(line + length - value);
  while (value_length > 0 && *value == ' ') {
    value++;
    value_length--;
  }
  if (indent == 0 && value_length == 0) {
    snprintf(section, 128, "%.*s.", name, line);
    return FX_OK;
  }
  FX_TRY(fx_grow(&list->items, &list->room, list->count + 1, sizeof *list->items));
  entry *e = &list->items[list->count++];
  e->key = fx_strfmt("%s%.*s", indent ? section : "", name, line + indent);
  e->value = fx_strfmt("%.*s", value_length, value);
  return e->key && e->value ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory for a configuration");
}

static fx_status split_config(const char *text, entries *list) {
  char section[128] = "";
  while (*text) {
    size_t length = strcspn(text, "\n");
    FX_TRY(add_line(list, section, text, (int)length));
    text += length + (text[length] == '\n');
  }
  return FX_OK;
}

static const char *lookup(const entries *list, const char *key) {
  for (int64_t i = 0; i < list->count; i++)
    if (strcmp(list->items[i].key, key) == 0) return list->items[i].value;
  return NULL;
}

static fx_status add_key(const char *key, const char *a, const char *b, fx_ckpt_diff_key **rows,
                         int64_t *room, int64_t *n) {
  static const char *const expected[] = {"checkpoint.dir", "checkpoint.resume", "train.iters"};
  if (a && b && strcmp(a, b) == 0) return FX_OK;
  FX_TRY(fx_grow(rows, room, *n + 1, sizeof **rows));
  fx_ckpt_diff_key *row = &(*rows)[(*n)++];
  row->key = fx_strdup(key);
  row->a = fx_strdup(a);
  row->b = fx_strdup(b);
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    row->expected |= strcmp(key, expected[i]) == 0;
  if (!row->key || (a && !row->a) || (b && !row->b))
    return fx_error(FX_ERR_MEMORY, "out of host memory for a configuration");
  return FX_OK;
}

fx_status fx_ckpt_diff_config(const fx_ckpt *a, const fx_ckpt *b, fx_ckpt_diff_key **out, int64_t *count) {
  entries x = {NULL, 0, 0}, y = {NULL, 0, 0};
  fx_ckpt_diff_key *rows = NULL;
  int64_t room = 0, n = 0;
  fx_status status = split_config(fx_ckpt_config(a), &x);
  if (status == FX_OK) status = split_config(fx_ckpt_config(b), &y);
  for (int64_t i = 0; i < x.count && status == FX_OK; i++)
    status = add_key(x.items[i].key, x.items[i].value, lookup(&y, x.items[i].key), &rows, &room, &n);
  for (int64_t i = 0; i < y.count && status == FX_OK; i++)
    if (!lookup(&x, y.items[i].key))
      status = add_key(y.items[i].key, NULL, y.items[i].value, &rows, &room, &n);
  entries_fini(&x);
  entries_fini(&y);
  if (status != FX_OK) {
    fx_ckpt_diff_config_free(rows, n);
    return status;
  }
  *out = rows;
  *count = n;
  return FX_OK;
}

void fx_ckpt_diff_config_free(fx_ckpt_diff_key *keys, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    free(keys[i].key);
    free(keys[i].a);
    free(keys[i].b);
  }
  free(keys);
}
