/* SPDX-License-Identifier: Apache-2.0 */
/* One value: from a YAML node into the field that a schema row describes, and back into YAML text. Private to
 * core/config. */
#ifndef FX_CORE_CONFIG_VALUE_H
#define FX_CORE_CONFIG_VALUE_H

#include <stdio.h>

#include "core/config/config.h"
#include "core/config/schema.h"
#include "core/config/source.h"

/* Checks type and range and replaces *field; untouched on failure. FX_ERR_CONFIG names place and key. */
fx_status fx_value_read(const fx_key *key, const fx_source *source, const yaml_node_t *node, void *field);

/* As a YAML flow value that reads back to the same bits. */
void fx_value_print(const fx_key *key, const void *field, FILE *stream);

/* `text` as a YAML scalar, double-quoted where needed or when `always`. */
void fx_value_print_text(const char *text, bool always, FILE *stream);

/* Frees what the field owns and zeroes it. */
void fx_value_clear(const fx_key *key, void *field);

#endif
