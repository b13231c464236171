/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of YAML that outlives its document: what a key holds whose shape is not one value (attention.mask).
 * Every node keeps its place, so that what is wrong with it can be said later. Private to core/config. */
#ifndef FX_CORE_CONFIG_TREE_H
#define FX_CORE_CONFIG_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/config/source.h"

typedef enum fx_tree_kind { FX_TREE_TEXT, FX_TREE_LIST, FX_TREE_MAP } fx_tree_kind;

typedef struct fx_tree_place {
  char *file;           /* owned; or the override as it was typed, with line 0 */
  int32_t line, column; /* from 1; 0, 0 without lines */
  bool quoted;          /* the place is that of a quote before the text */
} fx_tree_place;

typedef struct fx_tree {
  fx_tree_kind kind;
  char *name;               /* its key in a mapping, NULL elsewhere; owned */
  fx_tree_place name_place; /* of the key */
  fx_tree_place place;
  char *where;            /* the place as messages write it; owned */
  char *text;             /* TEXT; owned. Of several lines: as it stands in the file, with its indentation */
  bool plain;             /* TEXT without quotes: may be a number or a word like true */
  struct fx_tree **child; /* LIST, MAP; owned */
  int64_t count;
} fx_tree;

enum { FX_TREE_MAX_DEPTH = 24 };

/* A copy of the node and all below it; *out is NULL for nothing, ~ or null. FX_ERR_CONFIG: a key given twice
 * or no plain name, a NUL byte, nested deeper than FX_TREE_MAX_DEPTH (aliases may do that), an unknown tag.
 */
fx_status fx_tree_read(const fx_source *source, const yaml_node_t *node, fx_tree **out);
void fx_tree_destroy(fx_tree *tree);

/* *tree may be NULL; what is missing on the way is made. `path` is a.b.c, "" for the tree itself; `value` is
 * taken, also on failure; NULL removes. FX_ERR_CONFIG where the path goes through a text or a list. */
fx_status fx_tree_set(fx_tree **tree, const char *path, fx_tree *value, const char *where);
/* The entry of a mapping; NULL when there is none, or tree is no mapping. */
fx_tree *fx_tree_get(const fx_tree *tree, const char *name);

/* As a YAML flow value that reads back to the same tree; NULL as null. */
void fx_tree_print(const fx_tree *tree, FILE *stream);

/* FX_ERR_CONFIG with "place: sentence". */
fx_status fx_tree_error(const fx_tree *tree, const char *format, ...) __attribute__((format(printf, 2, 3)));
fx_status fx_tree_error_at_name(const fx_tree *tree, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void fx_tree_describe(const fx_tree *tree, char text[96]); /* "a list of 2", "lots" */
/* The place that a message starts with ("file:line:column", "command line: ..."), taken apart. */
fx_status fx_tree_place_parse(const char *where, fx_tree_place *place);

/* Values of plain texts, as strict as fx_value_read. */
bool fx_tree_is_int(const fx_tree *tree, int64_t *value);
bool fx_tree_is_number(const fx_tree *tree, double *value); /* ints too */
bool fx_tree_is_bool(const fx_tree *tree, bool *value);

#endif
