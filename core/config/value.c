/* SPDX-License-Identifier: Apache-2.0 */
/* Reading values. Types are strict: a number in quotes is a text, `yes` is not true, `1e3` is not an integer;
 * what YAML's own guesses would do is thereby never a question. Every refusal tells what the row expects, in
 * the row's own words. Knows nothing of files, includes or relations between keys. */
#include "core/config/value.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/tree.h"
#include "dynamo_rt/base/memory.h"

static fx_status refuse(const fx_key *key, const fx_source *source, const yaml_node_t *node) {
  char expected[FX_SCHEMA_TEXT], got[96], advice[FX_SCHEMA_TEXT] = "change the value or remove the key";
  fx_schema_expected(key, expected);
  fx_node_describe(node, got);
  if (key->kind == FX_KEY_ENUM && node->type == YAML_SCALAR_NODE && !fx_node_is_null(node)) {
    char word[FX_SCHEMA_TEXT];
    fx_words_get(key->values, fx_words_nearest(key->values, fx_node_text(node)), word);
    snprintf(advice, sizeof advice, "the nearest value is %.100s", word);
  } else if (key->kind <= FX_KEY_PAIR) {
    snprintf(advice, sizeof advice, "write for example %s: %s", key->name, key->initial);
  }
  return fx_source_error(source, node, "%s.%s expects %s, got %s; %s", key->section, key->name, expected, got,
                         advice);
}

static bool in_range(const fx_key *key, double value) {
  return (key->min == 0 && key->max == 0) || (value >= key->min && value <= key->max);
}

/* Decimal digits with an optional sign. */
static bool parse_int(const yaml_node_t *node, int64_t *value) {
  if (!fx_node_is_plain(node) || !fx_node_is_clean(node)) return false;
  const char *text = fx_node_text(node), *digits = text + (*text == '-' || *text == '+');
  if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
  errno = 0;
  *value = strtoll(text, NULL, 10);
  return errno == 0;
}

/* A finite decimal number; strtod alone would take hexadecimal, inf and nan as well. */
static bool parse_float(const yaml_node_t *node, double *value) {
  if (!fx_node_is_plain(node) || !fx_node_is_clean(node)) return false;
  const char *text = fx_node_text(node);
  if (!*text || strspn(text, "0123456789+-.eE") != strlen(text)) return false;
  char *end;
  double parsed = strtod(text, &end);
  if (*end || !isfinite(parsed)) return false;
  *value = parsed + 0.0; /* -0 becomes 0 */
  return true;
}

static bool read_number(const fx_key *key, const yaml_node_t *node, void *field) {
  if (key->kind == FX_KEY_INT) {
    int64_t value = 0;
    if (key->accepts_auto && fx_node_is_plain(node) && strcmp(fx_node_text(node), "auto") == 0)
      value = FX_CONFIG_AUTO;
    else if (!parse_int(node, &value) || !in_range(key, (double)value))
      return false;
    memcpy(field, &value, sizeof value);
    return true;
  }
  double value = 0;
  if (!parse_float(node, &value) || !in_range(key, value)) return false;
  memcpy(field, &value, sizeof value);
  return true;
}

static bool read_bool(const yaml_node_t *node, void *field) {
  if (!fx_node_is_plain(node)) return false;
  const char *text = fx_node_text(node);
  bool value = strcmp(text, "true") == 0;
  if (!value && strcmp(text, "false") != 0) return false;
  memcpy(field, &value, sizeof value);
  return true;
}

static fx_status read_pair(const fx_key *key, const fx_source *source, const yaml_node_t *node, void *field) {
  double pair[2];
  if (node->type != YAML_SEQUENCE_NODE) return refuse(key, source, node);
  const yaml_node_item_t *items = node->data.sequence.items.start;
  if (node->data.sequence.items.top - items != 2) return refuse(key, source, node);
  for (int i = 0; i < 2; i++) {
    const yaml_node_t *item = fx_source_node(source, items[i]);
    if (!parse_float(item, &pair[i]) || !in_range(key, pair[i])) return refuse(key, source, item);
  }
  memcpy(field, pair, sizeof pair);
  return FX_OK;
}

static bool read_enum(const fx_key *key, const yaml_node_t *node, void *field) {
  if (!fx_node_is_clean(node) || *fx_node_text(node) == '\0') return false;
  int value = fx_words_find(key->values, fx_node_text(node));
  if (value < 0) return false;
  _Static_assert(sizeof(fx_model_type) == sizeof value, "enum fields are read as int");
  memcpy(field, &value, sizeof value);
  return true;
}

static bool is_text(const fx_key *key, const yaml_node_t *node) {
  return fx_node_is_clean(node) && (double)node->data.scalar.length >= key->min &&
         (double)node->data.scalar.length <= (key->max > 0 ? key->max : 4096);
}

static fx_status read_string(const yaml_node_t *node, char **field) {
  char *copy = fx_strdup(fx_node_text(node));
  if (!copy) return fx_config_no_memory();
  free(*field);
  *field = copy;
  return FX_OK;
}

/* A single text stands for a list of one, nothing for an empty list. */
static fx_status read_strings(const fx_key *key, const fx_source *source, const yaml_node_t *node,
                              fx_config_strings *field) {
  fx_config_strings list = {NULL, 0};
  bool single = node->type == YAML_SCALAR_NODE;
  int64_t count = single ? 1 : node->data.sequence.items.top - node->data.sequence.items.start;
  if (fx_node_is_null(node)) count = 0;
  FX_TRY(fx_calloc(&list.items, (size_t)count, sizeof *list.items));
  fx_status status = FX_OK;
  for (int64_t i = 0; i < count; i++) {
    const yaml_node_t *item = single ? node : fx_source_node(source, node->data.sequence.items.start[i]);
    if (!is_text(key, item) || fx_node_is_null(item)) FX_TRY_GOTO(refuse(key, source, item), clear_list);
    FX_TRY_GOTO(read_string(item, &list.items[i]), clear_list);
    list.count++;
  }
  fx_value_clear(key, field);
  *field = list;
  return FX_OK;
clear_list:
  fx_value_clear(key, &list);
  return status;
}

static fx_status read_tree(const fx_source *source, const yaml_node_t *node, fx_tree **field) {
  fx_tree *tree = NULL;
  FX_TRY(fx_tree_read(source, node, &tree));
  fx_tree_destroy(*field);
  *field = tree;
  return FX_OK;
}

fx_status fx_value_read(const fx_key *key, const fx_source *source, const yaml_node_t *node, void *field) {
  bool held = false;
  switch (key->kind) {
  case FX_KEY_BOOL:
    held = read_bool(node, field);
    break;
  case FX_KEY_INT:
  case FX_KEY_FLOAT:
    held = read_number(key, node, field);
    break;
  case FX_KEY_PAIR:
    return read_pair(key, source, node, field);
  case FX_KEY_ENUM:
    held = read_enum(key, node, field);
    break;
  case FX_KEY_STRING:
    return is_text(key, node) ? read_string(node, field) : refuse(key, source, node);
  case FX_KEY_STRINGS:
    if (node->type != YAML_MAPPING_NODE) return read_strings(key, source, node, field);
    break;
  case FX_KEY_TREE:
    return read_tree(source, node, field);
  }
  return held ? FX_OK : refuse(key, source, node);
}

void fx_value_clear(const fx_key *key, void *field) {
  if (key->kind == FX_KEY_STRING) {
    char **text = field;
    free(*text);
    *text = NULL;
  } else if (key->kind == FX_KEY_STRINGS) {
    fx_config_strings *list = field;
    for (int64_t i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (fx_config_strings){NULL, 0};
  } else if (key->kind == FX_KEY_TREE) {
    fx_tree **tree = field;
    fx_tree_destroy(*tree);
    *tree = NULL;
  }
}
