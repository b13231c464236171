/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters and buffers of a variant, from their trees. */
#include <ctype.h>
#include <string.h>

#include "attention/variant/inputs.h"
#include "core/config/schema.h"
#include "core/config/specs.h"

enum { MAX_ENTRIES = 64 };

fx_ex_text fx_specs_text(const fx_tree *tree) {
  return (fx_ex_text){.text = tree->text ? tree->text : "",
                      .name = tree->place.file,
                      .line = tree->place.line,
                      .column = tree->place.column,
                      .quoted = tree->place.quoted};
}

fx_status fx_specs_unknown_key(const fx_tree *tree, const char *what, const char *keys) {
  char quoted[FX_QUOTE_BYTES], nearest[FX_SCHEMA_TEXT];
  fx_quote(tree->name, quoted);
  fx_words_get(keys, fx_words_nearest(keys, tree->name), nearest);
  return fx_tree_error_at_name(tree, "%s is not a key of %s; the nearest is %s", quoted, what, nearest);
}

static fx_status expects(const fx_tree *tree, const char *what) {
  char got[96], quoted[FX_QUOTE_BYTES];
  fx_tree_describe(tree, got);
  fx_quote(tree->name ? tree->name : "an item", quoted);
  return fx_tree_error(tree, "%s expects %s, got %s", quoted, what, got);
}

/* Names that an expression can read. */
static fx_status check_name(const fx_tree *tree, char name[32]) {
  size_t length = strlen(tree->name);
  char quoted[FX_QUOTE_BYTES];
  bool good = length < 32 && !isdigit((unsigned char)tree->name[0]);
  for (size_t i = 0; good && i < length; i++)
    good = isalnum((unsigned char)tree->name[i]) || tree->name[i] == '_';
  fx_quote(tree->name, quoted);
  if (!good)
    return fx_tree_error_at_name(
        tree, "%s is no name for expressions: letters, digits and _, at most 31, not a digit first", quoted);
  if (fx_ex_is_reserved(tree->name) || fx_variant_input_find(tree->name) >= 0)
    return fx_tree_error_at_name(tree,
                                 "the name %s is taken by the language or an input of every batch; choose "
                                 "another one",
                                 quoted);
  memcpy(name, tree->name, length + 1);
  return FX_OK;
}

/* ---- parameters ---- */

static const char g_param_keys[] = "type|default|min|max|example";

static bool is_word(const fx_tree *tree, const char *word) {
  return tree->kind == FX_TREE_TEXT && strcmp(tree->text, word) == 0;
}

static fx_status set_number(const fx_tree *tree, bool *is_int, double *value) {
  int64_t integer;
  if (!fx_tree_is_number(tree, value)) return expects(tree, "a number without quotes");
  *is_int = fx_tree_is_int(tree, &integer);
  return FX_OK;
}

static fx_status set_type(const fx_tree *tree, bool *is_int) {
  *is_int = is_word(tree, "int");
  return *is_int || is_word(tree, "float") ? FX_OK : expects(tree, "int or float");
}

/* {type: int, default: 3, min: 1, max: 9, example: 4} */
static fx_status long_param(const fx_tree *tree, fx_param_spec *param) {
  bool is_int, has_type = false, typed = false;
  for (int64_t i = 0; i < tree->count; i++) {
    const fx_tree *part = tree->child[i];
    if (strcmp(part->name, "type") == 0) {
      FX_TRY(set_type(part, &typed));
      has_type = true;
    } else if (strcmp(part->name, "default") == 0) {
      FX_TRY(set_number(part, &param->is_int, &param->value));
      param->has_value = true;
      param->at = fx_specs_text(part);
    } else if (strcmp(part->name, "min") == 0) {
      FX_TRY(set_number(part, &is_int, &param->min));
    } else if (strcmp(part->name, "max") == 0) {
      FX_TRY(set_number(part, &is_int, &param->max));
    } else if (strcmp(part->name, "example") == 0) {
      double example;
      FX_TRY(set_number(part, &is_int, &example));
      param->example = part->text;
    } else {
      return fx_specs_unknown_key(part, "a parameter", g_param_keys);
    }
  }
  if (!has_type && !param->has_value) return expects(tree, "a number, or at least a type: int or float");
  if (has_type && typed && param->has_value && !param->is_int)
    return fx_tree_error(fx_tree_get(tree, "default"), "an integer is expected as the default of an int");
  if (has_type) param->is_int = typed;
  if ((param->min != 0 || param->max != 0) && param->min > param->max)
    return fx_tree_error(tree, "min is above max; give both");
  return FX_OK;
}

fx_status fx_specs_params(fx_specs *specs, const fx_tree *tree, fx_variant_spec *spec) {
  if (!tree) return FX_OK;
  if (tree->kind != FX_TREE_MAP) return expects(tree, "a mapping of parameter names to numbers");
  if (tree->count > MAX_ENTRIES)
    return fx_tree_error(tree, "more than %d parameters; remove some", MAX_ENTRIES);
  fx_param_spec *params = fx_specs_alloc(specs, (size_t)tree->count, sizeof *params);
  if (!params) return FX_ERR_MEMORY;
  for (int64_t i = 0; i < tree->count; i++) {
    const fx_tree *entry = tree->child[i];
    params[i].at = fx_specs_text(entry);
    FX_TRY(check_name(entry, params[i].name));
    if (entry->kind == FX_TREE_MAP) {
      FX_TRY(long_param(entry, &params[i]));
    } else if (is_word(entry, "int") || is_word(entry, "float")) {
      params[i].is_int = is_word(entry, "int");
    } else {
      if (entry->kind != FX_TREE_TEXT || set_number(entry, &params[i].is_int, &params[i].value) != FX_OK)
        return expects(entry, "a number, or {type: int, default: 1}");
      params[i].has_value = true;
    }
  }
  spec->param = params;
  spec->num_params = (int32_t)tree->count;
  return FX_OK;
}

/* ---- buffers ---- */

static const char g_buffer_keys[] =
    "shape|type|values|expression|learnable|init|weight_decay|input|range|monotone";

static fx_status set_bool(const fx_tree *tree, bool *value) {
  return fx_tree_is_bool(tree, value) ? FX_OK : expects(tree, "true or false");
}

static fx_status set_texts(const fx_tree *tree, int least, int most, const char *what, fx_ex_text *texts) {
  if (tree->kind != FX_TREE_LIST || tree->count < least || tree->count > most) return expects(tree, what);
  for (int64_t i = 0; i < tree->count; i++) {
    if (tree->child[i]->kind != FX_TREE_TEXT) return expects(tree->child[i], what);
    texts[i] = fx_specs_text(tree->child[i]);
  }
  return FX_OK;
}

static int64_t count_leaves(const fx_tree *tree) {
  int64_t count = tree->kind == FX_TREE_TEXT;
  for (int64_t i = 0; i < tree->count; i++) count += count_leaves(tree->child[i]);
  return count;
}

static fx_status copy_leaves(const fx_tree *tree, double **next) {
  bool is_int;
  if (tree->kind == FX_TREE_MAP) return expects(tree, "a list of numbers");
  if (tree->kind == FX_TREE_TEXT) {
    FX_TRY(set_number(tree, &is_int, *next));
    ++*next;
  }
  for (int64_t i = 0; i < tree->count; i++) FX_TRY(copy_leaves(tree->child[i], next));
  return FX_OK;
}

static fx_status set_values(fx_specs *specs, const fx_tree *tree, fx_buffer_spec *buffer) {
  if (tree->kind != FX_TREE_LIST) return expects(tree, "a list of numbers");
  buffer->num_values = count_leaves(tree);
  double *values = fx_specs_alloc(specs, (size_t)buffer->num_values, sizeof *values), *next = values;
  if (!values) return FX_ERR_MEMORY;
  buffer->values = values;
  return copy_leaves(tree, &next);
}

/* zeros, {normal: 0.02} or {constant: 1.0} */
static fx_status set_init(const fx_tree *tree, fx_buffer_spec *buffer) {
  bool is_int;
  double value = 0;
  if (is_word(tree, "zeros")) return FX_OK;
  if (tree->kind != FX_TREE_MAP || tree->count != 1)
    return expects(tree, "zeros, {normal: standard deviation} or {constant: value}");
  const fx_tree *entry = tree->child[0];
  buffer->init = strcmp(entry->name, "normal") == 0 ? FX_TABLE_INIT_NORMAL : FX_TABLE_INIT_CONSTANT;
  if (buffer->init == FX_TABLE_INIT_CONSTANT && strcmp(entry->name, "constant") != 0)
    return fx_specs_unknown_key(entry, "init", "normal|constant");
  FX_TRY(set_number(entry, &is_int, &value));
  buffer->init_value = (float)value;
  return FX_OK;
}

static fx_status buffer_part(fx_specs *specs, const fx_tree *part, fx_buffer_spec *buffer, bool *input,
                             bool *learnable) {
  const char *name = part->name;
  bool is_int = false;
  if (strcmp(name, "shape") == 0) {
    FX_TRY(set_texts(part, 1, 3, "a list of 1 to 3 extents, as [H, 2*max + 1]", buffer->shape));
    buffer->ndim = (int32_t)part->count;
    return FX_OK;
  }
  if (strcmp(name, "type") == 0) {
    FX_TRY(set_type(part, &is_int));
    buffer->type = is_int ? FX_EX_INT : FX_EX_FLOAT;
    return FX_OK;
  }
  if (strcmp(name, "range") == 0) {
    fx_ex_text range[2];
    FX_TRY(set_texts(part, 2, 2, "a list of the least and the greatest value", range));
    buffer->has_range = true;
    buffer->lo = range[0];
    buffer->hi = range[1];
    return FX_OK;
  }
  if (strcmp(name, "expression") == 0) {
    if (part->kind != FX_TREE_TEXT) return expects(part, "an expression over i, j, k");
    buffer->expression = fx_specs_text(part);
    return FX_OK;
  }
  if (strcmp(name, "values") == 0) return set_values(specs, part, buffer);
  if (strcmp(name, "init") == 0) return set_init(part, buffer);
  if (strcmp(name, "learnable") == 0) return set_bool(part, learnable);
  if (strcmp(name, "weight_decay") == 0) return set_bool(part, &buffer->weight_decay);
  if (strcmp(name, "input") == 0) return set_bool(part, input);
  if (strcmp(name, "monotone") == 0) return set_bool(part, &buffer->monotone);
  return fx_specs_unknown_key(part, "a buffer", g_buffer_keys);
}

static fx_status set_buffer(fx_specs *specs, const fx_tree *tree, fx_buffer_spec *buffer) {
  bool input = false, learnable = false;
  FX_TRY(check_name(tree, buffer->name));
  if (tree->kind != FX_TREE_MAP) return expects(tree, "a mapping, as {shape: [H], learnable: true}");
  buffer->at = fx_specs_text(tree);
  buffer->type = FX_EX_FLOAT;
  for (int64_t i = 0; i < tree->count; i++)
    FX_TRY(buffer_part(specs, tree->child[i], buffer, &input, &learnable));
  int kinds = input + learnable + (buffer->values != NULL) + (buffer->expression.text != NULL);
  if (buffer->ndim == 0)
    return fx_tree_error(tree, "%s has no shape; add for example shape: [H]", buffer->name);
  if (kinds != 1)
    return fx_tree_error(tree,
                         "%s needs one of values (a constant table), expression (the same, computed from its "
                         "indices i, j, k), learnable: true and input: true, has %d",
                         buffer->name, kinds);
  if (!learnable && (fx_tree_get(tree, "init") || buffer->weight_decay))
    return fx_tree_error(tree, "%s has init or weight_decay, which only learnable tables take", buffer->name);
  if (!input && (buffer->has_range || buffer->monotone))
    return fx_tree_error(tree,
                         "%s has range or monotone, which only inputs promise; of constants they are seen",
                         buffer->name);
  if (buffer->has_range && buffer->type != FX_EX_INT)
    return fx_tree_error(tree, "%s has a range, which only ints have; add type: int", buffer->name);
  buffer->kind = input            ? FX_BUFFER_INPUT
                 : learnable      ? FX_BUFFER_LEARNABLE
                 : buffer->values ? FX_BUFFER_VALUES
                                  : FX_BUFFER_EXPRESSION;
  return FX_OK;
}

fx_status fx_specs_buffers(fx_specs *specs, const fx_tree *tree, fx_variant_spec *spec) {
  if (!tree) return FX_OK;
  if (tree->kind != FX_TREE_MAP) return expects(tree, "a mapping of names to tables");
  if (tree->count > MAX_ENTRIES) return fx_tree_error(tree, "more than %d buffers; remove some", MAX_ENTRIES);
  fx_buffer_spec *buffers = fx_specs_alloc(specs, (size_t)tree->count, sizeof *buffers);
  if (!buffers) return FX_ERR_MEMORY;
  for (int64_t i = 0; i < tree->count; i++) {
    FX_TRY(set_buffer(specs, tree->child[i], &buffers[i]));
    for (int32_t p = 0; p < spec->num_params; p++)
      if (strcmp(spec->param[p].name, buffers[i].name) == 0)
        return fx_tree_error_at_name(tree->child[i], "%s is a parameter already; choose another name",
                                     buffers[i].name);
  }
  spec->buffer = buffers;
  spec->num_buffers = (int32_t)tree->count;
  return FX_OK;
}
