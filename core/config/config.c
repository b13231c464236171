/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an fx_config and what can be asked of it. Knows the schema, but neither files nor YAML nodes.
 */
#include "core/config/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/origins.h"
#include "core/config/tree.h"
#include "core/config/value.h"
#include "dynamo_rt/base/memory.h"

fx_status fx_config_create(const char *name, fx_config **out) {
  fx_config *cfg = NULL;
  FX_TRY(fx_calloc(&cfg, 1, sizeof *cfg));
  cfg->origins = calloc(1, sizeof *cfg->origins + (size_t)fx_schema_count * sizeof cfg->origins->where[0]);
  if (cfg->origins) cfg->origins->name = fx_strdup(name);
  if (!cfg->origins || !cfg->origins->name) {
    fx_config_destroy(cfg);
    return fx_config_no_memory();
  }
  *out = cfg;
  return FX_OK;
}

void fx_config_destroy(fx_config *cfg) {
  if (!cfg) return;
  for (int i = 0; i < fx_schema_count; i++) {
    fx_value_clear(&fx_schema[i], fx_config_field(cfg, &fx_schema[i]));
    if (cfg->origins) free(cfg->origins->where[i]);
  }
  for (int64_t i = 0; i < cfg->warnings.count; i++) free(cfg->warnings.items[i]);
  free(cfg->warnings.items);
  if (cfg->origins) free(cfg->origins->name);
  free(cfg->origins);
  free(cfg);
}

const char *fx_config_origin(const fx_config *cfg, const fx_key *key) {
  return cfg->origins->where[key - fx_schema];
}

fx_status fx_config_set_origin(fx_config *cfg, const fx_key *key, const char *where) {
  char *copy = fx_strdup(where);
  if (!copy) return fx_config_no_memory();
  free(cfg->origins->where[key - fx_schema]);
  cfg->origins->where[key - fx_schema] = copy;
  return FX_OK;
}

const char *fx_config_where(const fx_config *cfg, const char *key) {
  const char *rest = "";
  const fx_key *row = fx_schema_find_start(key, &rest);
  if (!row || (*rest && row->kind != FX_KEY_TREE)) return NULL;
  const char *where = fx_config_origin(cfg, row);
  if (!*rest) return where ? where : "default";
  const fx_tree *tree = *(fx_tree *const *)((const char *)cfg + row->offset);
  while (tree && *rest) {
    char name[FX_SCHEMA_TEXT];
    size_t length = strcspn(rest, ".");
    snprintf(name, sizeof name, "%.*s", (int)length, rest);
    tree = fx_tree_get(tree, name);
    rest += length + (rest[length] == '.');
  }
  return tree ? tree->where : "default";
}

double fx_config_attention_param(const fx_config *cfg, const char *name, double fallback) {
  double value;
  return fx_tree_is_number(fx_tree_get(cfg->attention.params, name), &value) ? value : fallback;
}
