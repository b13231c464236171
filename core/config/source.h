/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of YAML text with a name: a file, a command-line override or a default. Turns libyaml's marks into
 * the places that messages start with. Private to core/config; the only header that shows libyaml. */
#ifndef FX_CORE_CONFIG_SOURCE_H
#define FX_CORE_CONFIG_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include "dynamo_rt/base/status.h"

enum { FX_PLACE_BYTES = 512, FX_QUOTE_BYTES = 64 };

typedef struct fx_source {
  const char *name; /* borrowed: the file's name, or "command line: a.b=c" */
  bool has_lines;   /* places get :line:column; false for the command line */
  const char *text; /* borrowed; NULL where there are no lines */
  size_t bytes;
  yaml_document_t document;
} fx_source;

/* Parses one document. `name` must outlive the source. On failure there is nothing to close. */
fx_status fx_source_open(fx_source *source, const char *name, bool has_lines, const char *text, size_t bytes);
void fx_source_close(fx_source *source);

yaml_node_t *fx_source_root(fx_source *source); /* NULL for an empty document */
yaml_node_t *fx_source_node(const fx_source *source, int id);

/* "file:line:column" of the node's start, or the name alone. */
void fx_source_place(const fx_source *source, const yaml_node_t *node, char place[FX_PLACE_BYTES]);

/* FX_ERR_CONFIG with "place: sentence". */
fx_status fx_source_error(const fx_source *source, const yaml_node_t *node, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* FX_ERR_MEMORY with its sentence. */
fx_status fx_config_no_memory(void);

/* A scalar's text, NULL for other nodes. May hold NUL bytes: see fx_node_is_clean. */
const char *fx_node_text(const yaml_node_t *node);
bool fx_node_is_plain(const yaml_node_t *node);                /* a scalar without quotes */
bool fx_node_is_null(const yaml_node_t *node);                 /* nothing, ~ or null */
bool fx_node_is_clean(const yaml_node_t *node);                /* a scalar without NUL bytes */
void fx_node_describe(const yaml_node_t *node, char text[96]); /* "a list of 2", "lots" */

/* Text as it may stand inside a sentence: on one line and not too long. */
void fx_quote(const char *text, char quoted[FX_QUOTE_BYTES]);

#endif
