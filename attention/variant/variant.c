/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/variant/variant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/lang/derive.h"
#include "attention/lang/fault.h"
#include "attention/lang/print.h"
#include "attention/lang/range.h"
#include "dynamo_rt/base/memory.h"

/* ---- rules ---- */

/* Number of a learnable table that is read under `node`, -1 when none is; FX_ERR_MEMORY through *status. */
static int32_t learnable_under(const fx_ex_pool *pool, fx_ex node, fx_status *status) {
  int32_t found = -1;
  bool *needed = fx_ex_reachable(pool, &node, 1);
  if (!needed) *status = FX_ERR_MEMORY;
  for (fx_ex i = 0; needed && i <= node && found < 0; i++) {
    const fx_ex_node *n = fx_ex_get(pool, i);
    if (needed[i] && n->op == FX_EX_LOAD && fx_ex_buffer_at(pool, n->index)->learnable) found = n->index;
  }
  free(needed);
  return found;
}

/* Indices decide where gradients go; through them there is none. */
static fx_status check_indices(const fx_ex_pool *pool, fx_ex node) {
  fx_status status = FX_OK;
  bool *needed = fx_ex_reachable(pool, &node, 1);
  if (!needed) return FX_ERR_MEMORY;
  for (fx_ex i = 0; i <= node && status == FX_OK; i++) {
    const fx_ex_node *n = fx_ex_get(pool, i);
    for (int k = 0; needed[i] && n->op == FX_EX_LOAD && k < n->num_args && status == FX_OK; k++) {
      int32_t table = learnable_under(pool, n->arg[k], &status);
      if (table >= 0)
        status =
            fx_error(FX_ERR_CONFIG,
                     "the learnable table %s is read in the index of %s; nothing could be learnt through an "
                     "index, so use a constant table there",
                     fx_ex_buffer_at(pool, table)->name, fx_ex_buffer_at(pool, n->index)->name);
    }
  }
  free(needed);
  return status;
}

fx_status fx_variant_check_mask(const fx_ex_pool *pool, fx_ex mask) {
  fx_status status = FX_OK;
  fx_ex_type type = (fx_ex_type)fx_ex_get(pool, mask)->type;
  if (type != FX_EX_BOOL)
    return fx_error(
        FX_ERR_CONFIG,
        "a mask is a condition, true where the query sees the key; this is %s %s: compare it, for "
        "example with == 0",
        type == FX_EX_INT ? "an" : "a", fx_ex_type_name(type));
  if (fx_ex_depends(pool, mask, FX_EX_SCORE))
    return fx_error(FX_ERR_CONFIG,
                    "a mask cannot read score: which keys a query sees is decided before the scores "
                    "are computed; write it in the score, as where(condition, score, -inf)");
  int32_t table = learnable_under(pool, mask, &status);
  if (table >= 0)
    return fx_error(
        FX_ERR_CONFIG,
        "a mask cannot read the learnable table %s: which keys a query sees is decided once a batch, "
        "and has no gradient; read it in the score",
        fx_ex_buffer_at(pool, table)->name);
  return status;
}

fx_status fx_variant_check_score(const fx_ex_pool *pool, fx_ex score) {
  if (fx_ex_get(pool, score)->type == FX_EX_BOOL)
    return fx_error(FX_ERR_CONFIG, "a score is a number; this is a condition: write it as mask, or as "
                                   "where(condition, score, -inf)");
  return check_indices(pool, score);
}

/* ---- text ---- */

/* In words where it is short, else by operations. */
static void write_expression(const fx_ex_pool *pool, const char *title, fx_ex node, FILE *stream) {
  enum { SHORT = 4096 };
  if (node == FX_EX_NONE) return;
  char *words = fx_ex_print(pool, node);
  if (!words || strlen(words) > SHORT) {
    free(words);
    words = fx_ex_canonical(pool, &node, 1);
    for (char *c = words; c && *c; c++)
      if (*c == '\n') *c = ';';
  }
  fprintf(stream, "; %s %s", title, words ? words : "?");
  free(words);
}

static void write_buffer(const fx_ex_buffer *buffer, FILE *stream) {
  size_t count = 1;
  char hex[33];
  fprintf(stream, "; %s%s %s[",
          buffer->learnable  ? "learnable "
          : buffer->constant ? "constant "
                             : "",
          fx_ex_type_name(buffer->type), buffer->name);
  for (int i = 0; i < buffer->ndim; i++) {
    fprintf(stream, "%s%d", i ? ", " : "", buffer->dim[i]);
    count *= (size_t)buffer->dim[i];
  }
  fputc(']', stream);
  if (!buffer->constant) return;
  fx_hash128_hex(fx_hash128_of(buffer->constant, 4 * count), hex);
  fprintf(stream, " = %s", hex);
}

static char *text_of(const fx_variant *v) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&text, &bytes);
  if (!stream) return NULL;
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(v->pool);
  fprintf(stream, "H %d, T %d, T_kv %d", ranges->H, ranges->T, ranges->T_kv);
  write_expression(v->pool, "mask", v->mask, stream);
  write_expression(v->pool, "score", v->score, stream);
  for (int i = 0; i < fx_ex_num_params(v->pool); i++)
    fprintf(stream, "; %s = %.9g", fx_ex_param_at(v->pool, i)->name,
            (double)fx_ex_param_at(v->pool, i)->value);
  for (int i = 0; i < fx_ex_num_buffers(v->pool); i++) write_buffer(fx_ex_buffer_at(v->pool, i), stream);
  if (v->sinks) fputs("; sinks", stream);
  if (fclose(stream) == 0) return text;
  free(text);
  return NULL;
}

/* ---- making ---- */

static bool is_float(const fx_ex_pool *pool, fx_ex node, float value) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  return n->op == FX_EX_CONST && n->type == FX_EX_FLOAT && n->value.f == value;
}

/* Mask and score as they were given; what says nothing is left out. */
static fx_status set_expressions(fx_variant *v, const fx_variant_parts *parts) {
  int32_t always = 0;
  v->mask = v->score = v->slope = v->mask_fault = v->score_fault = FX_EX_NONE;
  if (parts->mask != FX_EX_NONE) {
    FX_TRY(fx_variant_check_mask(v->pool, parts->mask));
    const fx_ex_node *n = fx_ex_get(v->pool, parts->mask);
    always = n->op == FX_EX_CONST && n->value.i;
    if (!always) v->mask = parts->mask;
  }
  if (parts->score != FX_EX_NONE) {
    FX_TRY(fx_variant_check_score(v->pool, parts->score));
    fx_ex score = fx_ex_convert(v->pool, parts->score, FX_EX_FLOAT);
    if (score == FX_EX_NONE) return FX_ERR_CONFIG;
    if (score != fx_ex_variable(v->pool, FX_EX_SCORE)) v->score = score;
  }
  if (v->mask != FX_EX_NONE) FX_TRY(fx_ex_fault(v->pool, v->mask, &v->mask_fault));
  if (v->score != FX_EX_NONE) FX_TRY(fx_ex_fault(v->pool, v->score, &v->score_fault));
  return FX_OK;
}

static fx_status add_table(fx_variant *v, const fx_variant_parts *parts, int32_t buffer) {
  for (int i = 0; i < v->num_tables; i++)
    if (v->tables[i].buffer == buffer) return FX_OK;
  if (v->num_tables == FX_VARIANT_MAX_TABLES)
    return fx_error(FX_ERR_CONFIG, "the score reads more than %d learnable tables", FX_VARIANT_MAX_TABLES);
  fx_variant_table table = {.buffer = buffer};
  for (int i = 0; i < parts->num_tables; i++)
    if (parts->tables[i].buffer == buffer) table = parts->tables[i];
  v->tables[v->num_tables++] = table;
  return FX_OK;
}

static fx_status add_read(fx_variant *v, fx_ex load, int64_t *capacity) {
  fx_ex slope = fx_ex_derivative(v->pool, v->score, load);
  if (slope == FX_EX_NONE) return FX_ERR_CONFIG;
  if (is_float(v->pool, slope, 0.0f)) return FX_OK;
  FX_TRY(fx_grow(&v->reads, capacity, v->num_reads + 1, sizeof *v->reads));
  v->reads[v->num_reads++] = (fx_variant_read){fx_ex_get(v->pool, load)->index, load, slope};
  v->guarded = v->guarded || fx_ex_may_blow_up(v->pool, slope);
  return FX_OK;
}

static fx_status derive(fx_variant *v, const fx_variant_parts *parts) {
  if (v->score == FX_EX_NONE) return FX_OK;
  fx_ex slope = fx_ex_derivative(v->pool, v->score, fx_ex_variable(v->pool, FX_EX_SCORE));
  if (slope == FX_EX_NONE) return FX_ERR_CONFIG;
  if (!is_float(v->pool, slope, 1.0f)) v->slope = slope;
  v->guarded = fx_ex_may_blow_up(v->pool, v->score) || fx_ex_may_blow_up(v->pool, slope);
  bool *needed = fx_ex_reachable(v->pool, &v->score, 1);
  if (!needed) return FX_ERR_MEMORY;
  fx_status status = FX_OK;
  int64_t capacity = 0;
  for (fx_ex i = 0; i <= v->score; i++) {
    const fx_ex_node *n = fx_ex_get(v->pool, i);
    if (!needed[i] || n->op != FX_EX_LOAD || !fx_ex_buffer_at(v->pool, n->index)->learnable) continue;
    FX_TRY_GOTO(add_table(v, parts, n->index), free_needed);
    FX_TRY_GOTO(add_read(v, i, &capacity), free_needed);
  }
free_needed:
  free(needed);
  return status;
}

static fx_status set_hash(fx_variant *v) {
  int32_t count = 5 + 2 * v->num_reads;
  fx_ex *roots = NULL;
  FX_TRY(fx_calloc(&roots, (size_t)count, sizeof *roots));
  memcpy(roots, (const fx_ex[]){v->mask, v->score, v->slope, v->mask_fault, v->score_fault},
         5 * sizeof *roots);
  for (int i = 0; i < v->num_reads; i++) {
    roots[5 + 2 * i] = v->reads[i].load;
    roots[6 + 2 * i] = v->reads[i].slope;
  }
  char *canonical = fx_ex_canonical(v->pool, roots, count);
  free(roots);
  if (!canonical) return FX_ERR_MEMORY;
  char *whole = fx_strfmt("%sguarded %d sinks %d\n", canonical, v->guarded, v->sinks);
  free(canonical);
  if (!whole) return fx_error(FX_ERR_MEMORY, "no memory for an attention variant");
  v->hash = fx_hash128_of(whole, strlen(whole));
  free(whole);
  return FX_OK;
}

fx_status fx_variant_create(fx_ex_pool *pool, const fx_variant_parts *parts, fx_variant **out) {
  fx_variant *v = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&v, 1, sizeof *v));
  snprintf(v->name, sizeof v->name, "%s", parts->name);
  v->pool = pool;
  v->sinks = parts->sinks;
  FX_TRY_GOTO(set_expressions(v, parts), destroy_variant);
  FX_TRY_GOTO(derive(v, parts), destroy_variant);
  FX_TRY_GOTO(set_hash(v), destroy_variant);
  v->text = text_of(v);
  if (!v->text) FX_TRY_GOTO(fx_error(FX_ERR_MEMORY, "no memory for an attention variant"), destroy_variant);
  *out = v;
  return FX_OK;
destroy_variant:
  v->pool = NULL; /* the caller's */
  fx_variant_destroy(v);
  return status;
}

void fx_variant_destroy(fx_variant *variant) {
  if (!variant) return;
  fx_ex_pool_destroy(variant->pool);
  free(variant->reads);
  free(variant->text);
  free(variant);
}
