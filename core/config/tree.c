/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/tree.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/value.h"
#include "dynamo_rt/base/memory.h"

enum { MAX_NODES = 100000, MAX_ENTRIES = 1000 };

void fx_tree_destroy(fx_tree *tree) {
  if (!tree) return;
  for (int64_t i = 0; i < tree->count; i++) fx_tree_destroy(tree->child[i]);
  free(tree->child);
  free(tree->name);
  free(tree->name_place.file);
  free(tree->place.file);
  free(tree->where);
  free(tree->text);
  free(tree);
}

/* ---- reading ---- */

static fx_status set_place(const fx_source *source, const yaml_node_t *node, fx_tree_place *place) {
  free(place->file);
  *place = (fx_tree_place){.file = fx_strdup(source->name)};
  if (!place->file) return fx_config_no_memory();
  if (!source->has_lines) return FX_OK;
  place->line = (int32_t)node->start_mark.line + 1;
  place->column = (int32_t)node->start_mark.column + 1;
  if (node->type == YAML_SCALAR_NODE)
    place->quoted = node->data.scalar.style == YAML_SINGLE_QUOTED_SCALAR_STYLE ||
                    node->data.scalar.style == YAML_DOUBLE_QUOTED_SCALAR_STYLE;
  return FX_OK;
}

/* Byte of the source's text that a mark points to: its columns count characters. */
static size_t offset_of(const fx_source *source, yaml_mark_t mark) {
  size_t at = 0;
  for (size_t line = 0; line < mark.line && at < source->bytes; at++) line += source->text[at] == '\n';
  for (size_t column = 0; column < mark.column && at < source->bytes && source->text[at] != '\n'; column++) do
      at++;
    while (at < source->bytes && ((unsigned char)source->text[at] & 0xC0) == 0x80);
  return at;
}

static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Equal but for white space. */
static bool same_words(const char *a, size_t bytes, const char *b) {
  const char *end = a + bytes;
  for (;;) {
    while (a < end && is_space(*a)) a++;
    while (is_space(*b)) b++;
    if (a == end || !*b) return a == end && !*b;
    if (*a++ != *b++) return false;
  }
}

/* A text of several lines as it stands in the file, so that places inside it are exact; NULL where that is
 * not the text but for white space (escapes), or memory is short. Moves *place to its first character. */
static char *as_written(const fx_source *source, const yaml_node_t *node, fx_tree_place *place) {
  yaml_scalar_style_t style = node->data.scalar.style;
  if (!source->text || node->start_mark.line == node->end_mark.line) return NULL;
  size_t from = offset_of(source, node->start_mark), to = offset_of(source, node->end_mark);
  bool block = style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE;
  if (block) {
    while (from < to && source->text[from] != '\n') from++;
    from += from < to;
  } else if (place->quoted && to - from >= 2) {
    from++;
    to--;
  }
  if (from >= to || !same_words(source->text + from, to - from, fx_node_text(node))) return NULL;
  while (to > from && is_space(source->text[to - 1])) to--;
  char *text = fx_strfmt("%.*s", (int)(to - from), source->text + from);
  if (text && block) {
    place->line++;
    place->column = 1;
  }
  return text;
}

static fx_status read_text(const fx_source *source, const yaml_node_t *node, fx_tree *tree) {
  if (!fx_node_is_clean(node)) return fx_source_error(source, node, "a text holds a NUL byte; remove it");
  tree->kind = FX_TREE_TEXT;
  tree->plain = fx_node_is_plain(node);
  tree->text = as_written(source, node, &tree->place);
  if (!tree->text) tree->text = fx_strdup(fx_node_text(node));
  return tree->text ? FX_OK : fx_config_no_memory();
}

static fx_status read_node(const fx_source *source, const yaml_node_t *node, int depth, int *nodes,
                           fx_tree **out);

static fx_status add_child(fx_tree *tree, fx_tree *child) {
  int64_t capacity = tree->count;
  fx_status status = fx_grow(&tree->child, &capacity, tree->count + 1, sizeof(fx_tree *));
  if (status == FX_OK)
    tree->child[tree->count++] = child;
  else
    fx_tree_destroy(child);
  return status;
}

static fx_status read_list(const fx_source *source, const yaml_node_t *node, int depth, int *nodes,
                           fx_tree *tree) {
  tree->kind = FX_TREE_LIST;
  const yaml_node_item_t *item = node->data.sequence.items.start;
  for (; item < node->data.sequence.items.top; item++) {
    fx_tree *child = NULL;
    const yaml_node_t *value = fx_source_node(source, *item);
    FX_TRY(read_node(source, value, depth + 1, nodes, &child));
    if (!child) return fx_source_error(source, value, "an item of this list is empty; remove it");
    FX_TRY(add_child(tree, child));
  }
  return FX_OK;
}

static fx_status read_map(const fx_source *source, const yaml_node_t *node, int depth, int *nodes,
                          fx_tree *tree) {
  char quoted[FX_QUOTE_BYTES], first[FX_PLACE_BYTES];
  tree->kind = FX_TREE_MAP;
  const yaml_node_pair_t *pairs = node->data.mapping.pairs.start;
  if (node->data.mapping.pairs.top - pairs > MAX_ENTRIES)
    return fx_source_error(source, node, "this mapping has more than %d entries; remove some", MAX_ENTRIES);
  for (const yaml_node_pair_t *pair = pairs; pair < node->data.mapping.pairs.top; pair++) {
    const yaml_node_t *name = fx_source_node(source, pair->key);
    fx_tree *child = NULL;
    if (!fx_node_is_clean(name) || !*fx_node_text(name))
      return fx_source_error(source, name, "a key expects a plain name; write `key: value`");
    for (const yaml_node_pair_t *other = pairs; other < pair; other++) {
      const yaml_node_t *earlier = fx_source_node(source, other->key);
      if (strcmp(fx_node_text(earlier), fx_node_text(name)) != 0) continue;
      fx_quote(fx_node_text(name), quoted);
      fx_source_place(source, earlier, first);
      return fx_source_error(source, name, "\"%s\" is given twice in one mapping (first at %s); keep one",
                             quoted, first);
    }
    FX_TRY(read_node(source, fx_source_node(source, pair->value), depth + 1, nodes, &child));
    if (!child) continue; /* null: as if it were not there */
    child->name = fx_strdup(fx_node_text(name));
    fx_status status = child->name ? set_place(source, name, &child->name_place) : fx_config_no_memory();
    if (status != FX_OK) {
      fx_tree_destroy(child);
      return status;
    }
    FX_TRY(add_child(tree, child));
  }
  return FX_OK;
}

static fx_status read_node(const fx_source *source, const yaml_node_t *node, int depth, int *nodes,
                           fx_tree **out) {
  char place[FX_PLACE_BYTES];
  *out = NULL;
  if (node->type == YAML_SCALAR_NODE && node->tag && *(const char *)node->tag == '!')
    return fx_source_error(source, node, "a text that begins with ! has to stand in quotes");
  if (fx_node_is_null(node)) return FX_OK;
  if (depth > FX_TREE_MAX_DEPTH || ++*nodes > MAX_NODES)
    return fx_source_error(source, node,
                           "this is nested deeper than %d levels or has more than %d parts; simplify it",
                           FX_TREE_MAX_DEPTH, MAX_NODES);
  fx_tree *tree = NULL;
  FX_TRY(fx_calloc(&tree, 1, sizeof *tree));
  fx_status status = set_place(source, node, &tree->place);
  fx_source_place(source, node, place);
  tree->where = fx_strdup(place);
  if (status == FX_OK && !tree->where) status = fx_config_no_memory();
  if (status == FX_OK)
    status = node->type == YAML_SCALAR_NODE     ? read_text(source, node, tree)
             : node->type == YAML_SEQUENCE_NODE ? read_list(source, node, depth, nodes, tree)
                                                : read_map(source, node, depth, nodes, tree);
  if (status == FX_OK)
    *out = tree;
  else
    fx_tree_destroy(tree);
  return status;
}

fx_status fx_tree_read(const fx_source *source, const yaml_node_t *node, fx_tree **out) {
  int nodes = 0;
  fx_tree *tree = NULL;
  FX_TRY(read_node(source, node, 0, &nodes, &tree));
  *out = tree;
  return FX_OK;
}

/* ---- looking and changing ---- */

fx_tree *fx_tree_get(const fx_tree *tree, const char *name) {
  for (int64_t i = 0; tree && tree->kind == FX_TREE_MAP && i < tree->count; i++)
    if (tree->child[i]->name && strcmp(tree->child[i]->name, name) == 0) return tree->child[i];
  return NULL;
}

static fx_status empty_map(const char *name, const char *where, fx_tree **out) {
  fx_tree *map = NULL;
  FX_TRY(fx_calloc(&map, 1, sizeof *map));
  map->kind = FX_TREE_MAP;
  map->place.file = fx_strdup(where);
  map->name_place.file = fx_strdup(where);
  map->where = fx_strdup(where);
  map->name = fx_strdup(name);
  *out = map;
  if (map->place.file && map->name_place.file && map->where && map->name) return FX_OK;
  fx_tree_destroy(map);
  *out = NULL;
  return fx_config_no_memory();
}

/* Puts `value` under `name` of a mapping, in the place of what is there. */
static fx_status put_child(fx_tree *map, const char *name, fx_tree *value, const char *where) {
  fx_tree *old = fx_tree_get(map, name);
  int64_t at = 0;
  while (at < map->count && map->child[at] != old) at++;
  if (value) {
    free(value->name);
    free(value->name_place.file);
    value->name = fx_strdup(name);
    value->name_place = (fx_tree_place){.file = fx_strdup(where)};
    if (!value->name || !value->name_place.file) {
      fx_tree_destroy(value);
      return fx_config_no_memory();
    }
  }
  if (!old) return value ? add_child(map, value) : FX_OK;
  fx_tree_destroy(old);
  if (value) {
    map->child[at] = value;
  } else {
    map->count--;
    memmove(map->child + at, map->child + at + 1, (size_t)(map->count - at) * sizeof(fx_tree *));
  }
  return FX_OK;
}

static fx_status set_below(fx_tree **tree, const char *path, fx_tree **value, const char *where) {
  if (!*tree) FX_TRY(empty_map("", where, tree));
  fx_tree *at = *tree;
  for (;;) {
    FX_ASSERT(at);
    const char *dot = strchr(path, '.');
    char *name = fx_strfmt("%.*s", dot ? (int)(dot - path) : (int)strlen(path), path);
    if (!name) return fx_config_no_memory();
    fx_tree *next = fx_tree_get(at, name);
    fx_status status = FX_OK;
    if (at->kind != FX_TREE_MAP)
      status =
          fx_error(FX_ERR_CONFIG, "%s: %s stands below a text or a list (%s); set the whole of it instead",
                   where, name, at->where);
    if (status == FX_OK && dot && !next) {
      status = empty_map(name, where, &next);
      if (status == FX_OK) status = add_child(at, next);
    }
    if (status == FX_OK && !dot) {
      status = put_child(at, name, *value, where);
      *value = NULL;
    }
    free(name);
    if (status != FX_OK || !dot) return status;
    at = next;
    path = dot + 1;
  }
}

fx_status fx_tree_set(fx_tree **tree, const char *path, fx_tree *value, const char *where) {
  if (!*path) {
    fx_tree_destroy(*tree);
    *tree = value;
    return FX_OK;
  }
  fx_status status = set_below(tree, path, &value, where);
  if (value) fx_tree_destroy(value);
  return status;
}

/* ---- writing ---- */

/* An expression of several lines on one: without its comments and indentation. */
static void print_lines(const char *text, FILE *stream) {
  char *line = fx_strdup(text), *end = line;
  for (const char *c = text; line && *c; c++) {
    if (*c == '#')
      while (c[1] && c[1] != '\n') c++;
    else if (!is_space(*c))
      *end++ = *c;
    else if (end > line && end[-1] != ' ')
      *end++ = ' ';
  }
  if (!line) return;
  while (end > line && end[-1] == ' ') end--;
  *end = '\0';
  fx_value_print_text(line, false, stream);
  free(line);
}

void fx_tree_print(const fx_tree *tree, FILE *stream) {
  bool list = tree && tree->kind == FX_TREE_LIST, flag;
  double number;
  if (!tree) {
    fputs("null", stream);
  } else if (tree->kind == FX_TREE_TEXT) {
    if (fx_tree_is_number(tree, &number) || fx_tree_is_bool(tree, &flag))
      fputs(tree->text, stream);
    else if (strchr(tree->text, '\n'))
      print_lines(tree->text, stream);
    else
      fx_value_print_text(tree->text, false, stream);
  } else {
    fputc(list ? '[' : '{', stream);
    for (int64_t i = 0; i < tree->count; i++) {
      if (i) fputs(", ", stream);
      if (!list) {
        fx_value_print_text(tree->child[i]->name, false, stream);
        fputs(": ", stream);
      }
      fx_tree_print(tree->child[i], stream);
    }
    fputc(list ? ']' : '}', stream);
  }
}

/* ---- messages ---- */

static fx_status error_at(const fx_tree_place *place, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static fx_status error_at(const fx_tree_place *place, const char *format, va_list args) {
  char sentence[1500];
  vsnprintf(sentence, sizeof sentence, format, args);
  if (place->line > 0)
    return fx_error(FX_ERR_CONFIG, "%.450s:%d:%d: %s", place->file, place->line, place->column, sentence);
  return fx_error(FX_ERR_CONFIG, "%.500s: %s", place->file, sentence);
}

fx_status fx_tree_error(const fx_tree *tree, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fx_status status = error_at(&tree->place, format, args);
  va_end(args);
  return status;
}

fx_status fx_tree_error_at_name(const fx_tree *tree, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fx_status status = error_at(&tree->name_place, format, args);
  va_end(args);
  return status;
}

void fx_tree_describe(const fx_tree *tree, char text[96]) {
  char quoted[FX_QUOTE_BYTES];
  if (tree->kind == FX_TREE_LIST) {
    snprintf(text, 96, "a list of %d", (int)tree->count);
  } else if (tree->kind == FX_TREE_MAP) {
    snprintf(text, 96, "a mapping");
  } else {
    fx_quote(tree->text, quoted);
    snprintf(text, 96, tree->plain ? "%s" : "the quoted text \"%s\"", quoted);
  }
}

fx_status fx_tree_place_parse(const char *where, fx_tree_place *place) {
  *place = (fx_tree_place){.file = fx_strdup(where)};
  if (!place->file) return fx_config_no_memory();
  if (strncmp(where, "command line:", 13) == 0) return FX_OK;
  char *column = strrchr(place->file, ':');
  if (!column || strspn(column + 1, "0123456789") != strlen(column + 1)) return FX_OK;
  *column = '\0';
  char *line = strrchr(place->file, ':');
  if (!line || strspn(line + 1, "0123456789") != strlen(line + 1)) {
    *column = ':';
    return FX_OK;
  }
  *line = '\0';
  place->line = (int32_t)strtol(line + 1, NULL, 10);
  place->column = (int32_t)strtol(column + 1, NULL, 10);
  return FX_OK;
}

/* ---- values ---- */

bool fx_tree_is_int(const fx_tree *tree, int64_t *value) {
  if (!tree || tree->kind != FX_TREE_TEXT || !tree->plain) return false;
  const char *digits = tree->text + (*tree->text == '-' || *tree->text == '+');
  if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
  errno = 0;
  *value = strtoll(tree->text, NULL, 10);
  return errno == 0;
}

bool fx_tree_is_number(const fx_tree *tree, double *value) {
  if (!tree || tree->kind != FX_TREE_TEXT || !tree->plain || !*tree->text) return false;
  if (strspn(tree->text, "0123456789+-.eE") != strlen(tree->text)) return false;
  char *end;
  double parsed = strtod(tree->text, &end);
  if (*end || !isfinite(parsed)) return false;
  *value = parsed + 0.0; /* -0 becomes 0 */
  return true;
}

bool fx_tree_is_bool(const fx_tree *tree, bool *value) {
  if (!tree || tree->kind != FX_TREE_TEXT || !tree->plain) return false;
  *value = strcmp(tree->text, "true") == 0;
  return *value || strcmp(tree->text, "false") == 0;
}
