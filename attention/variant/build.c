/* SPDX-License-Identifier: Apache-2.0 */
/* A walk over the specs with a chain of frames, the referring spec above the one that it refers to.
 * Declarations enter the pool when a text first reads them, so that what nobody reads changes no kernel. */
#include "attention/variant/build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/lang/tabulate.h"
#include "attention/variant/inputs.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/nearest.h"

enum { MAX_NESTED = 32, MAX_ENTRIES = 64, MAX_TABLE = 1 << 24 };

typedef struct frame {
  const fx_variant_spec *spec;
  const struct frame *above; /* the referring one */
  bool *used;                /* [num_params + num_buffers] of the spec */
  int depth;
} frame;

typedef struct builder {
  fx_ex_pool *pool;
  const fx_variant_warnings *warnings;
  const fx_buffer_spec *origin[FX_EX_MAX_BUFFERS]; /* of the pool's buffers; NULL for inputs of every batch */
  fx_variant_table table[FX_EX_MAX_BUFFERS];
  int32_t num_tables;
  const char *known[MAX_ENTRIES]; /* parameters of the specs below the root */
  int32_t num_known;
} builder;

/* What a scope's functions are given. */
typedef struct reader {
  builder *b;
  const frame *at;
  fx_ex_pool *tables; /* not NULL: a constant table is computed here, over i, j, k */
  int32_t ndim;
} reader;

static fx_status misplaced(fx_status status, const fx_ex_text *at) {
  return at->name && at->line > 0 ? fx_error_prefix(status, "%s:%d:%d", at->name, at->line, at->column)
         : at->name               ? fx_error_prefix(status, "%s", at->name)
                                  : status;
}

/* ---- parameters ---- */

static const fx_param_spec *param_of(const frame *f, const char *name) {
  for (int32_t i = 0; i < f->spec->num_params; i++)
    if (strcmp(f->spec->param[i].name, name) == 0) return &f->spec->param[i];
  return NULL;
}

/* The entry that gives the value: of the outermost frame that has one. All entries of that name are used. */
static const fx_param_spec *value_of(const frame *f, const char *name) {
  const fx_param_spec *value = NULL;
  for (; f; f = f->above) {
    const fx_param_spec *entry = param_of(f, name);
    if (!entry) continue;
    f->used[entry - f->spec->param] = true;
    if (entry->has_value) value = entry;
  }
  return value;
}

static const frame *outermost(const frame *f) {
  while (f->above) f = f->above;
  return f;
}

static const char *title_of(const fx_variant_spec *spec) {
  return spec->title ? spec->title : spec->name;
}

static fx_status check_value(const frame *f, const fx_param_spec *declared, const fx_param_spec *value) {
  const char *path = outermost(f)->spec->path, *example = declared->example ? declared->example : "1";
  char range[80] = "";
  if (!value) {
    fx_error(FX_ERR_CONFIG, "%s needs %s.params.%s; add it, for example %s.params.%s=%s", title_of(f->spec),
             path, declared->name, path, declared->name, example);
    return misplaced(FX_ERR_CONFIG, &outermost(f)->spec->at);
  }
  bool limits = declared->min != 0 || declared->max != 0;
  bool fits = !limits || (value->value >= declared->min && value->value <= declared->max);
  if (declared->is_int) fits = fits && value->is_int && fabs(value->value) <= INT32_MAX;
  if (fits) return FX_OK;
  if (limits) snprintf(range, sizeof range, ", at least %.9g and at most %.9g", declared->min, declared->max);
  fx_error(FX_ERR_CONFIG, "%s.params.%s expects %s%s, got %.9g%s; write for example %s: %s", path,
           declared->name, declared->is_int ? "an integer" : "a number", range, value->value,
           declared->is_int && !value->is_int ? " with a point" : "", declared->name, example);
  return misplaced(FX_ERR_CONFIG, &value->at);
}

/* Before a frame's texts are read: everything has a value that its declaration allows. */
static fx_status check_params(const frame *f) {
  for (int32_t i = 0; i < f->spec->num_params; i++) {
    const fx_param_spec *declared = &f->spec->param[i];
    bool was = f->used[i];
    const fx_param_spec *value = value_of(f, declared->name);
    f->used[i] = was || f->above; /* the root's own entries have to be read by somebody */
    FX_TRY(check_value(f, declared, value));
  }
  return FX_OK;
}

/* A float parameter of the pool: one that is there with this name and value, or a new one. */
static int32_t pool_param(builder *b, const char *name, float value) {
  char fresh[32];
  snprintf(fresh, sizeof fresh, "%s", name);
  for (unsigned attempt = 2; attempt < MAX_ENTRIES; attempt++) {
    int32_t i = 0, count = fx_ex_num_params(b->pool);
    while (i < count && strcmp(fx_ex_param_at(b->pool, i)->name, fresh) != 0) i++;
    if (i == count) return fx_ex_declare_param(b->pool, fresh, value);
    if (fx_ex_param_at(b->pool, i)->value == value) return i;
    snprintf(fresh, sizeof fresh, "%.27s_%u", name, attempt % 100);
  }
  return fx_ex_declare_param(b->pool, name, value); /* which says that the name is taken */
}

/* ---- names in texts ---- */

static bool read_param(const reader *r, const char *name, fx_ex_symbol *symbol, bool *failed) {
  const fx_param_spec *own = param_of(r->at, name);
  if (!own) return false;
  const fx_param_spec *value = value_of(r->at, name);
  if (!value || check_value(r->at, own, value) != FX_OK) {
    *failed = true;
    return false;
  }
  if (own->is_int) {
    symbol->node = fx_ex_int(r->tables ? r->tables : r->b->pool, (int32_t)value->value);
  } else if (r->tables) {
    symbol->node = fx_ex_float(r->tables, (float)value->value);
  } else {
    int32_t param = pool_param(r->b, name, (float)value->value);
    symbol->node = param < 0 ? FX_EX_NONE : fx_ex_parameter(r->b->pool, param);
    if (param < 0) misplaced(FX_ERR_CONFIG, &value->at);
  }
  *failed = symbol->node == FX_EX_NONE;
  return !*failed;
}

static int32_t declare_buffer(builder *b, const frame *f, const fx_buffer_spec *spec);

static const fx_buffer_spec *buffer_of(const frame *f, const char *name) {
  for (int32_t i = 0; i < f->spec->num_buffers; i++)
    if (strcmp(f->spec->buffer[i].name, name) == 0) return &f->spec->buffer[i];
  return NULL;
}

static bool read_buffer(const reader *r, const char *name, fx_ex_symbol *symbol, bool *failed) {
  const fx_buffer_spec *spec = buffer_of(r->at, name);
  const frame *owner = r->at;
  if (!spec) return false;
  for (const frame *f = r->at; f; f = f->above) {
    const fx_buffer_spec *outer = buffer_of(f, name);
    if (!outer) continue;
    spec = outer;
    owner = f;
    f->used[f->spec->num_params + (outer - f->spec->buffer)] = true;
  }
  symbol->buffer = declare_buffer(r->b, owner, spec);
  *failed = symbol->buffer < 0;
  return !*failed;
}

static bool read_input(builder *b, const char *name, fx_ex_symbol *symbol, bool *failed) {
  int32_t input = fx_variant_input_find(name);
  if (input < 0) return false;
  fx_ex_buffer buffer = fx_variant_input(input, fx_ex_pool_ranges(b->pool)->T);
  for (int32_t i = 0; i < fx_ex_num_buffers(b->pool) && symbol->buffer < 0; i++)
    if (!b->origin[i] && strcmp(fx_ex_buffer_at(b->pool, i)->name, name) == 0) symbol->buffer = i;
  if (symbol->buffer < 0) symbol->buffer = fx_ex_declare_buffer(b->pool, &buffer);
  *failed = symbol->buffer < 0;
  return !*failed;
}

static bool find_name(void *self, const char *name, fx_ex_symbol *symbol, bool *failed) {
  const reader *r = self;
  static const char *const indices[] = {"i", "j", "k"};
  for (int32_t i = 0; r->tables && i < r->ndim && i < 3; i++)
    if (strcmp(name, indices[i]) == 0) {
      symbol->node = fx_ex_variable(r->tables, (fx_ex_var)(FX_EX_H + i));
      return true;
    }
  if (read_param(r, name, symbol, failed) || *failed) return !*failed;
  if (r->tables || !r->b) return false;
  if (read_buffer(r, name, symbol, failed) || *failed) return !*failed;
  return read_input(r->b, name, symbol, failed);
}

static const char *name_at(void *self, int32_t i) {
  const reader *r = self;
  const fx_variant_spec *spec = r->at->spec;
  if (i < spec->num_params) return spec->param[i].name;
  if (r->tables) return NULL;
  i -= spec->num_params;
  if (i < spec->num_buffers) return spec->buffer[i].name;
  i -= spec->num_buffers;
  return i < FX_VARIANT_NUM_INPUTS ? fx_variant_input_name(i) : NULL;
}

static void warn(void *self, const char *sentence) {
  const reader *r = self;
  if (r->b->warnings && r->b->warnings->warn) r->b->warnings->warn(r->b->warnings->self, sentence);
}

static fx_ex parse(builder *b, const frame *f, const fx_ex_text *text) {
  reader r = {b, f, NULL, 0};
  fx_ex_scope scope = {&r, find_name, name_at, warn, false};
  return fx_ex_parse(b->pool, text, &scope);
}

/* ---- buffers ---- */

/* An int of H, T, T_kv and int parameters, in a pool of its own. */
static fx_status constant_int(builder *b, const frame *f, const fx_ex_text *text, int32_t *value) {
  fx_ex_pool *pool = fx_ex_pool_create(fx_ex_pool_ranges(b->pool));
  if (!pool) return FX_ERR_MEMORY;
  reader r = {b, f, pool, 0};
  fx_ex_scope scope = {&r, find_name, name_at, warn, true};
  fx_ex node = fx_ex_parse(pool, text, &scope);
  fx_status status = node == FX_EX_NONE ? FX_ERR_CONFIG : FX_OK;
  if (status == FX_OK && !fx_ex_is_int(pool, node, value)) {
    fx_error(FX_ERR_CONFIG, "expected an int made of H, T, T_kv and int parameters, got a %s",
             fx_ex_type_name((fx_ex_type)fx_ex_get(pool, node)->type));
    status = fx_ex_locate(FX_ERR_CONFIG, text, 0);
  }
  fx_ex_pool_destroy(pool);
  return status;
}

static fx_status table_by_expression(builder *b, const frame *f, const fx_buffer_spec *spec,
                                     const fx_ex_buffer *buffer, fx_ex_value *values) {
  fx_ex_pool *pool = fx_ex_pool_create(fx_ex_pool_ranges(b->pool));
  if (!pool) return FX_ERR_MEMORY;
  reader r = {b, f, pool, spec->ndim};
  fx_ex_scope scope = {&r, find_name, name_at, warn, true};
  fx_ex node = fx_ex_parse(pool, &spec->expression, &scope);
  fx_status status = node == FX_EX_NONE ? FX_ERR_CONFIG : FX_OK;
  if (status == FX_OK && (node = fx_ex_convert(pool, node, spec->type)) == FX_EX_NONE)
    status = fx_ex_locate(FX_ERR_CONFIG, &spec->expression, 0);
  if (status == FX_OK) status = fx_ex_tabulate(pool, node, spec->ndim, buffer->dim, values);
  fx_ex_pool_destroy(pool);
  return status;
}

static fx_status table_by_values(const fx_buffer_spec *spec, int64_t count, fx_ex_value *values) {
  if (spec->num_values != count) {
    fx_error(FX_ERR_CONFIG, "%s has %lld values, expected %lld by its shape", spec->name,
             (long long)spec->num_values, (long long)count);
    return misplaced(FX_ERR_CONFIG, &spec->at);
  }
  for (int64_t i = 0; i < count; i++) {
    double value = spec->values[i];
    if (spec->type == FX_EX_FLOAT) {
      values[i].f = (float)value;
    } else if (value == floor(value) && fabs(value) <= INT32_MAX) {
      values[i].i = (int32_t)value;
    } else {
      fx_error(FX_ERR_CONFIG, "value %lld of %s is %.9g, expected a 32-bit int", (long long)i, spec->name,
               value);
      return misplaced(FX_ERR_CONFIG, &spec->at);
    }
  }
  return FX_OK;
}

/* values: malloc'ed table for constants, else NULL. Sets the range of ints. */
static fx_status fill_buffer(builder *b, const frame *f, const fx_buffer_spec *spec, fx_ex_buffer *buffer,
                             fx_ex_value **values) {
  int64_t count = 1;
  bool constant = spec->kind == FX_BUFFER_VALUES || spec->kind == FX_BUFFER_EXPRESSION;
  for (int32_t i = 0; i < spec->ndim; i++) {
    FX_TRY(constant_int(b, f, &spec->shape[i], &buffer->dim[i]));
    count = buffer->dim[i] < 1 || count > INT32_MAX ? INT64_MAX / 2 : count * buffer->dim[i];
    if (buffer->dim[i] >= 1 && count <= (constant ? MAX_TABLE : INT32_MAX)) continue;
    fx_error(FX_ERR_CONFIG, "%s: extent %d is %d; extents are at least 1 and make at most %d elements",
             spec->name, i, buffer->dim[i], constant ? MAX_TABLE : INT32_MAX);
    return fx_ex_locate(FX_ERR_CONFIG, &spec->shape[i], 0);
  }
  buffer->lo = INT32_MIN;
  buffer->hi = INT32_MAX;
  if (spec->has_range) {
    FX_TRY(constant_int(b, f, &spec->lo, &buffer->lo));
    FX_TRY(constant_int(b, f, &spec->hi, &buffer->hi));
  }
  if (!constant) return FX_OK;
  FX_TRY(fx_calloc(values, (size_t)count, sizeof **values));
  FX_TRY(spec->kind == FX_BUFFER_VALUES ? table_by_values(spec, count, *values)
                                        : table_by_expression(b, f, spec, buffer, *values));
  buffer->constant = *values;
  if (spec->type != FX_EX_INT) return FX_OK;
  buffer->lo = INT32_MAX;
  buffer->hi = INT32_MIN;
  for (int64_t i = 0; i < count; i++) {
    buffer->lo = (*values)[i].i < buffer->lo ? (*values)[i].i : buffer->lo;
    buffer->hi = (*values)[i].i > buffer->hi ? (*values)[i].i : buffer->hi;
  }
  return FX_OK;
}

/* Whether a buffer of the pool is this spec's: made of it before, with the same extents and values. */
static bool same_buffer(const fx_ex_buffer *have, const fx_ex_buffer *want) {
  size_t count = 1;
  for (int i = 0; i < want->ndim; i++) {
    if (have->dim[i] != want->dim[i]) return false;
    count *= (size_t)want->dim[i];
  }
  return !want->constant || memcmp(have->constant, want->constant, 4 * count) == 0;
}

static int32_t declare_fresh(builder *b, const fx_buffer_spec *spec, fx_ex_buffer *buffer) {
  bool taken = true;
  for (unsigned attempt = 1; taken && attempt < MAX_ENTRIES; attempt++) {
    if (attempt == 1)
      snprintf(buffer->name, sizeof buffer->name, "%s", spec->name);
    else
      snprintf(buffer->name, sizeof buffer->name, "%.27s_%u", spec->name, attempt % 100);
    taken = false;
    for (int32_t i = 0; i < fx_ex_num_buffers(b->pool); i++)
      taken = taken || strcmp(fx_ex_buffer_at(b->pool, i)->name, buffer->name) == 0;
  }
  int32_t number = fx_ex_declare_buffer(b->pool, buffer);
  if (number < 0) {
    misplaced(FX_ERR_CONFIG, &spec->at);
    return -1;
  }
  b->origin[number] = spec;
  if (spec->kind == FX_BUFFER_LEARNABLE)
    b->table[b->num_tables++] = (fx_variant_table){number, spec->init, spec->init_value, spec->weight_decay};
  return number;
}

static int32_t declare_buffer(builder *b, const frame *f, const fx_buffer_spec *spec) {
  fx_ex_buffer buffer = {.type = spec->type,
                         .ndim = spec->ndim,
                         .per_batch = spec->kind == FX_BUFFER_INPUT,
                         .learnable = spec->kind == FX_BUFFER_LEARNABLE,
                         .monotone = spec->monotone};
  fx_ex_value *values = NULL;
  int32_t number = -1;
  if (fill_buffer(b, f, spec, &buffer, &values) == FX_OK) {
    for (int32_t i = 0; i < fx_ex_num_buffers(b->pool) && number < 0; i++)
      if (b->origin[i] == spec && same_buffer(fx_ex_buffer_at(b->pool, i), &buffer)) number = i;
    if (number < 0) number = declare_fresh(b, spec, &buffer);
  }
  free(values);
  return number;
}

/* ---- masks and scores ---- */

/* A frame for `spec`; its flags are freed by leave(). */
static fx_status enter(builder *b, const fx_variant_spec *spec, const frame *above, frame *f) {
  *f = (frame){spec, above, NULL, above ? above->depth + 1 : 0};
  for (const frame *other = above; other; other = other->above)
    if (other->spec == spec || f->depth > MAX_NESTED) {
      fx_error(FX_ERR_CONFIG,
               "the variant %s refers to itself, or more than %d variants refer to one another",
               title_of(spec), MAX_NESTED);
      return misplaced(FX_ERR_CONFIG, &outermost(above)->spec->at);
    }
  FX_TRY(fx_calloc(&f->used, (size_t)(spec->num_params + spec->num_buffers) + 1, sizeof *f->used));
  for (int32_t i = 0; above && i < spec->num_params && b->num_known < MAX_ENTRIES; i++)
    b->known[b->num_known++] = spec->param[i].name;
  fx_status status = check_params(f);
  if (status != FX_OK) free(f->used);
  return status;
}

static void leave(frame *f) {
  free(f->used);
}

static fx_status build_mask(builder *b, const frame *f, const fx_mask_tree *tree, fx_ex *out);

static fx_status mask_of_spec(builder *b, const frame *above, const fx_variant_spec *spec, fx_ex *out) {
  frame f;
  FX_TRY(enter(b, spec, above, &f));
  fx_status status = FX_OK;
  if (spec->mask)
    status = build_mask(b, &f, spec->mask, out);
  else
    *out = fx_ex_bool(b->pool, true);
  leave(&f);
  return status;
}

static fx_status build_mask(builder *b, const frame *f, const fx_mask_tree *tree, fx_ex *out) {
  if (tree->kind == FX_MASK_SPEC) return mask_of_spec(b, f, tree->spec, out);
  if (tree->kind == FX_MASK_TEXT) {
    fx_ex node = parse(b, f, &tree->text);
    if (node == FX_EX_NONE) return FX_ERR_CONFIG;
    fx_status status = fx_variant_check_mask(b->pool, node);
    if (status != FX_OK) return fx_ex_locate(status, &tree->text, 0);
    *out = node;
    return FX_OK;
  }
  bool all = tree->kind != FX_MASK_ANY;
  fx_ex result = fx_ex_bool(b->pool, all);
  for (int32_t i = 0; i < tree->num_parts; i++) {
    fx_ex part = FX_EX_NONE;
    FX_TRY(build_mask(b, f, &tree->part[i], &part));
    result = fx_ex_binary(b->pool, all ? FX_EX_AND : FX_EX_OR, result, part);
  }
  if (tree->kind == FX_MASK_NOT) result = fx_ex_unary(b->pool, FX_EX_NOT, result);
  *out = result;
  return result == FX_EX_NONE ? FX_ERR_CONFIG : FX_OK;
}

/* *score: what the scores before made of it. */
static fx_status build_scores(builder *b, const frame *f, fx_ex *score) {
  for (int32_t i = 0; i < f->spec->num_scores; i++) {
    const fx_score_part *part = &f->spec->score[i];
    if (part->spec) {
      frame below;
      FX_TRY(enter(b, part->spec, f, &below));
      fx_status status = build_scores(b, &below, score);
      leave(&below);
      FX_TRY(status);
      continue;
    }
    fx_ex node = parse(b, f, &part->text);
    if (node == FX_EX_NONE) return FX_ERR_CONFIG;
    fx_status status = fx_variant_check_score(b->pool, node);
    if (status != FX_OK) return fx_ex_locate(status, &part->text, 0);
    fx_ex with[FX_EX_VAR_COUNT] = {*score, FX_EX_NONE, FX_EX_NONE, FX_EX_NONE};
    node = fx_ex_substitute(b->pool, fx_ex_convert(b->pool, node, FX_EX_FLOAT), with);
    if (node == FX_EX_NONE) return fx_ex_locate(FX_ERR_CONFIG, &part->text, 0); /* the pool is full */
    *score = node;
  }
  return FX_OK;
}

/* The root's entries that nothing has read: misspelt, or meant for another variant. */
static fx_status check_used(const builder *b, const frame *f) {
  const fx_variant_spec *spec = f->spec;
  for (int32_t i = 0; i < spec->num_params + spec->num_buffers; i++) {
    if (f->used[i]) continue;
    bool param = i < spec->num_params;
    const char *name = param ? spec->param[i].name : spec->buffer[i - spec->num_params].name;
    const char *nearest = NULL;
    for (int32_t k = 0; param && k < b->num_known; k++)
      if (!nearest || fx_name_distance(name, b->known[k]) < fx_name_distance(name, nearest))
        nearest = b->known[k];
    fx_error(FX_ERR_CONFIG, "%s takes no %s %s.%s.%s; %s%s", title_of(spec), param ? "parameter" : "buffer",
             spec->path, param ? "params" : "buffers", name,
             nearest ? "the nearest is " : "remove it, or read it in the mask or the score",
             nearest ? nearest : "");
    return misplaced(FX_ERR_CONFIG, param ? &spec->param[i].at : &spec->buffer[i - spec->num_params].at);
  }
  return FX_OK;
}

static fx_status build_into(builder *b, const fx_variant_spec *spec, fx_variant **out) {
  frame f;
  fx_ex mask = FX_EX_NONE, score = fx_ex_variable(b->pool, FX_EX_SCORE);
  FX_TRY(enter(b, spec, NULL, &f));
  fx_status status = FX_OK;
  if (spec->mask) FX_TRY_GOTO(build_mask(b, &f, spec->mask, &mask), leave_frame);
  FX_TRY_GOTO(build_scores(b, &f, &score), leave_frame);
  FX_TRY_GOTO(check_used(b, &f), leave_frame);
  fx_variant_parts parts = {spec->name, mask, score, spec->sinks, b->table, b->num_tables};
  status = fx_variant_create(b->pool, &parts, out);
  if (status != FX_OK) misplaced(status, &spec->at);
leave_frame:
  leave(&f);
  return status;
}

fx_status fx_variant_build(const fx_variant_spec *spec, const fx_ex_ranges *ranges,
                           const fx_variant_warnings *warnings, fx_variant **out) {
  builder b = {.warnings = warnings, .pool = fx_ex_pool_create(ranges)};
  if (!b.pool) return FX_ERR_MEMORY;
  fx_status status = build_into(&b, spec, out);
  if (status != FX_OK) fx_ex_pool_destroy(b.pool);
  return status;
}
