/* SPDX-License-Identifier: Apache-2.0 */
/* The private side of fx_config: an empty one, and the record of where each key was set. */
#ifndef FX_CORE_CONFIG_ORIGINS_H
#define FX_CORE_CONFIG_ORIGINS_H

#include "core/config/config.h"
#include "core/config/schema.h"

struct fx_config_origins {
  char *name;    /* of the whole configuration: the file that was loaded */
  char *where[]; /* one a row of fx_schema; NULL = default */
};

/* All fields zero, no origin. */
fx_status fx_config_create(const char *name, fx_config **out);

/* NULL when the key keeps its default. */
const char *fx_config_origin(const fx_config *cfg, const fx_key *key);
fx_status fx_config_set_origin(fx_config *cfg, const fx_key *key, const char *where);

/* The whole file as malloc'ed text. asked_at: the place that names it, NULL for the first file. */
struct stat;
fx_status fx_config_read_file(const char *path, const char *asked_at, char **text, size_t *bytes,
                              struct stat *info);

static inline void *fx_config_field(fx_config *cfg, const fx_key *key) {
  return (char *)cfg + key->offset;
}

/* Replaces `auto`, then checks the relations between keys. FX_ERR_CONFIG names the keys to change. */
fx_status fx_config_resolve(fx_config *cfg);

#endif
