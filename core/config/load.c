/* SPDX-License-Identifier: Apache-2.0 */
/* From files and overrides to a resolved fx_config. Layers are applied in order of weakness: a file's
 * includes, the file itself, the overrides; what nobody set gets its default at the end, when model_type is
 * known. Knows mappings, sections and includes; what a value may be is the schema's business. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/config/origins.h"
#include "core/config/tree.h"
#include "core/config/value.h"
#include "dynamo_rt/base/memory.h"

enum { FILE_MAX_BYTES = 1 << 20 };

/* The files that are being read, innermost first; a file that is on it already closes a cycle. */
typedef struct chain {
  const struct chain *parent;
  const char *name;
  dev_t device;
  ino_t inode;
} chain;

static fx_status load_file(fx_config *cfg, const char *path, const char *asked_at, const chain *parent);

static fx_status check_unique(const fx_source *source, const yaml_node_t *mapping,
                              const yaml_node_pair_t *pair) {
  const yaml_node_t *key = fx_source_node(source, pair->key);
  char quoted[FX_QUOTE_BYTES], first[FX_PLACE_BYTES];
  for (const yaml_node_pair_t *other = mapping->data.mapping.pairs.start; other < pair; other++) {
    const yaml_node_t *earlier = fx_source_node(source, other->key);
    if (strcmp(fx_node_text(earlier), fx_node_text(key)) != 0) continue;
    fx_quote(fx_node_text(key), quoted);
    fx_source_place(source, earlier, first);
    return fx_source_error(source, key, "\"%s\" is given twice in one mapping (first at %s); keep one",
                           quoted, first);
  }
  return FX_OK;
}

static fx_status unknown_key(const fx_source *source, const yaml_node_t *node, const char *section,
                             const char *name) {
  char quoted[FX_QUOTE_BYTES];
  const fx_key *nearest = fx_schema_nearest(section, name);
  fx_quote(name, quoted);
  return fx_source_error(source, node,
                         "%s.%s is not a key; the nearest is %s.%s (`flexion config show --keys` lists all)",
                         section, quoted, nearest->section, nearest->name);
}

static fx_status unknown_section(const fx_source *source, const yaml_node_t *node, const char *name) {
  char quoted[FX_QUOTE_BYTES];
  fx_quote(name, quoted);
  for (int i = 0; i < fx_schema_count; i++)
    if (strcmp(fx_schema[i].name, name) == 0)
      return fx_source_error(source, node,
                             "\"%s\" is not a section but a key; write it as %s.%s, inside section %s",
                             quoted, fx_schema[i].section, name, fx_schema[i].section);
  return fx_source_error(
      source, node, "\"%s\" is not a section; the nearest is %s (`flexion config show --keys` lists all)",
      quoted, fx_schema_nearest_section(name));
}

static fx_status set_value(fx_config *cfg, const fx_key *key, const fx_source *source,
                           const yaml_node_t *node) {
  char place[FX_PLACE_BYTES];
  FX_TRY(fx_value_read(key, source, node, fx_config_field(cfg, key)));
  fx_source_place(source, node, place);
  return fx_config_set_origin(cfg, key, place);
}

static fx_status apply_section(fx_config *cfg, const fx_source *source, const char *section,
                               const yaml_node_t *node) {
  char got[96];
  if (fx_node_is_null(node)) return FX_OK;
  if (node->type != YAML_MAPPING_NODE) {
    fx_node_describe(node, got);
    return fx_source_error(source, node,
                           "section %s expects a mapping, got %s; write its keys as `key: value` below "
                           "it",
                           section, got);
  }
  for (const yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top;
       pair++) {
    const yaml_node_t *name = fx_source_node(source, pair->key);
    if (!fx_node_is_clean(name))
      return fx_source_error(source, name, "a key of section %s expects a plain name; write `key: value`",
                             section);
    const fx_key *key = fx_schema_find(section, fx_node_text(name));
    if (!key) return unknown_key(source, name, section, fx_node_text(name));
    FX_TRY(check_unique(source, node, pair));
    FX_TRY(set_value(cfg, key, source, fx_source_node(source, pair->value)));
  }
  return FX_OK;
}

static fx_status include_one(fx_config *cfg, const fx_source *source, const yaml_node_t *item,
                             const chain *here) {
  char got[96], place[FX_PLACE_BYTES];
  if (!fx_node_is_clean(item) || fx_node_is_null(item) || !*fx_node_text(item)) {
    fx_node_describe(item, got);
    return fx_source_error(source, item,
                           "include expects a list of file names, got %s; write for example include: "
                           "[models/llama-tiny.yaml]",
                           got);
  }
  const char *name = fx_node_text(item), *slash = strrchr(source->name, '/');
  int folder = slash && *name != '/' ? (int)(slash - source->name) + 1 : 0;
  char *path = fx_strfmt("%.*s%s", folder, source->name, name);
  if (!path) return fx_config_no_memory();
  fx_source_place(source, item, place);
  fx_status status = load_file(cfg, path, place, here);
  free(path);
  return status;
}

static fx_status apply_includes(fx_config *cfg, const fx_source *source, const yaml_node_t *node,
                                const chain *here) {
  if (!here)
    return fx_source_error(source, node,
                           "include is not followed in resolved text; write the included keys out");
  if (node->type != YAML_SEQUENCE_NODE) return include_one(cfg, source, node, here);
  const yaml_node_item_t *item = node->data.sequence.items.start;
  for (; item < node->data.sequence.items.top; item++)
    FX_TRY(include_one(cfg, source, fx_source_node(source, *item), here));
  return FX_OK;
}

/* here: the chain that ends in this file; NULL forbids includes. */
static fx_status apply_document(fx_config *cfg, fx_source *source, const chain *here) {
  char got[96];
  const yaml_node_t *root = fx_source_root(source);
  if (!root || fx_node_is_null(root)) return FX_OK;
  if (root->type != YAML_MAPPING_NODE) {
    fx_node_describe(root, got);
    return fx_source_error(source, root,
                           "a configuration is a mapping of sections, got %s; write for example model: "
                           "{vocab_size: 256}",
                           got);
  }
  const yaml_node_pair_t *first = root->data.mapping.pairs.start, *last = root->data.mapping.pairs.top;
  for (const yaml_node_pair_t *pair = first; pair < last; pair++) {
    const yaml_node_t *name = fx_source_node(source, pair->key);
    if (!fx_node_is_clean(name))
      return fx_source_error(source, name, "a section expects a plain name; write `model:` and the like");
    bool is_include = strcmp(fx_node_text(name), "include") == 0;
    if (!is_include && !fx_schema_is_section(fx_node_text(name)))
      return unknown_section(source, name, fx_node_text(name));
    FX_TRY(check_unique(source, root, pair));
    if (is_include) FX_TRY(apply_includes(cfg, source, fx_source_node(source, pair->value), here));
  }
  for (const yaml_node_pair_t *pair = first; pair < last; pair++) {
    const char *section = fx_node_text(fx_source_node(source, pair->key));
    if (strcmp(section, "include") == 0) continue;
    FX_TRY(apply_section(cfg, source, section, fx_source_node(source, pair->value)));
  }
  return FX_OK;
}

static fx_status cannot_read(const char *path, const char *asked_at, const char *why) {
  if (asked_at)
    return fx_error(FX_ERR_CONFIG,
                    "%s: included file %s cannot be read (%s); paths are relative to the including file",
                    asked_at, path, why);
  return fx_error(FX_ERR_CONFIG, "%s: the configuration file cannot be read (%s); check the path", path, why);
}

static fx_status report_cycle(const char *asked_at, const char *path, const chain *from,
                              const struct stat *info) {
  char trail[1024];
  size_t used = (size_t)snprintf(trail, sizeof trail, "%s", path);
  for (; from && used < sizeof trail; from = from->parent) {
    used += (size_t)snprintf(trail + used, sizeof trail - used, " <- %s", from->name);
    if (from->device == info->st_dev && from->inode == info->st_ino) break;
  }
  return fx_error(FX_ERR_CONFIG, "%s: include cycle %s; remove one of these includes", asked_at, trail);
}

fx_status fx_config_read_file(const char *path, const char *asked_at, char **text, size_t *bytes,
                              struct stat *info) {
  FILE *file = fopen(path, "rb");
  if (!file) return cannot_read(path, asked_at, strerror(errno));
  fx_status status = FX_OK;
  char *buffer = NULL;
  if (fstat(fileno(file), info) != 0) FX_TRY_GOTO(cannot_read(path, asked_at, strerror(errno)), close_file);
  if (S_ISDIR(info->st_mode)) FX_TRY_GOTO(cannot_read(path, asked_at, "it is a directory"), close_file);
  FX_TRY_GOTO(fx_calloc(&buffer, FILE_MAX_BYTES + 1, 1), close_file);
  *bytes = fread(buffer, 1, FILE_MAX_BYTES + 1, file);
  if (ferror(file))
    status = cannot_read(path, asked_at, strerror(errno));
  else if (*bytes > FILE_MAX_BYTES)
    status = cannot_read(path, asked_at, "it is larger than 1 MiB");
  if (status != FX_OK)
    free(buffer);
  else
    *text = buffer;
close_file:
  fclose(file);
  return status;
}

/* asked_at: the place of the include, NULL for the first file. */
static fx_status load_file(fx_config *cfg, const char *path, const char *asked_at, const chain *parent) {
  struct stat info = {0};
  char *text = NULL;
  size_t bytes = 0;
  FX_TRY(fx_config_read_file(path, asked_at, &text, &bytes, &info));
  fx_status status = FX_OK;
  for (const chain *link = parent; link; link = link->parent)
    if (link->device == info.st_dev && link->inode == info.st_ino)
      FX_TRY_GOTO(report_cycle(asked_at, path, parent, &info), free_text);
  chain here = {parent, path, info.st_dev, info.st_ino};
  fx_source source;
  FX_TRY_GOTO(fx_source_open(&source, path, true, text, bytes), free_text);
  status = apply_document(cfg, &source, &here);
  fx_source_close(&source);
free_text:
  free(text);
  return status;
}

/* Whether an override's value is taken as it stands: texts of string keys unless they are quoted, lists of
 * strings unless they open a list, expressions unless they open a list or a mapping, so that file patterns,
 * odd names and `a ? b : c` need no quoting for YAML. */
static bool is_verbatim(const fx_key *key, const char *path, const char *text) {
  const char *last = strrchr(path, '.');
  bool expression = key->kind == FX_KEY_TREE && (strcmp(last, ".mask") == 0 || strcmp(last, ".score") == 0 ||
                                                 strcmp(last, ".expression") == 0);
  if (!*text) return false;
  if (expression) return strcmp(text, "null") != 0 && !strchr("\"'[{", *text);
  return (key->kind == FX_KEY_STRING && !strchr("\"'", *text)) ||
         (key->kind == FX_KEY_STRINGS && !strchr("\"'[", *text));
}

/* The one value of a short text. */
static fx_status open_value(fx_source *source, const char *name, const fx_key *key, const char *path,
                            const char *text) {
  bool verbatim = is_verbatim(key, path, text);
  if (!*text && key->kind == FX_KEY_STRINGS) text = "[]";
  if (!*text && key->kind == FX_KEY_STRING) text = "\"\"";
  if (!verbatim) return fx_source_open(source, name, false, text, strlen(text));
  char *quoted = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&quoted, &bytes);
  if (!stream) return fx_config_no_memory();
  fx_value_print_text(text, true, stream);
  fx_status status =
      fclose(stream) == 0 ? fx_source_open(source, name, false, quoted, bytes) : fx_config_no_memory();
  free(quoted);
  return status;
}

static fx_status set_tree(fx_tree **field, const char *rest, const fx_source *source,
                          const yaml_node_t *root) {
  fx_tree *value = NULL;
  FX_TRY(fx_tree_read(source, root, &value));
  return fx_tree_set(field, rest, value, source->name);
}

/* `place` is the name of the source: the override as it was typed. */
static fx_status apply_override(fx_config *cfg, const char *place, const char *path, const char *text) {
  char section[FX_SCHEMA_TEXT];
  const char *name = strchr(path, '.');
  yaml_node_t nowhere = {0};
  fx_source source = {.name = place};
  const fx_key *key;
  const char *rest = "";
  if (!name) {
    if (fx_schema_is_section(path) || strcmp(path, "include") == 0)
      return fx_error(FX_ERR_CONFIG, "%s: only single keys can be set here; write for example train.iters=20",
                      place);
    return unknown_section(&source, &nowhere, path);
  }
  snprintf(section, sizeof section, "%.*s", (int)(name - path), path);
  if (!fx_schema_is_section(section)) return unknown_section(&source, &nowhere, section);
  key = fx_schema_find_start(path, &rest);
  if (!key || (*rest && key->kind != FX_KEY_TREE)) return unknown_key(&source, &nowhere, section, name + 1);
  FX_TRY(open_value(&source, place, key, path, text));
  const yaml_node_t *root = fx_source_root(&source);
  fx_status status;
  if (!root)
    status = fx_error(FX_ERR_CONFIG, "%s: a value is expected after the =; write for example %s=%s", place,
                      path, key->initial);
  else if (key->kind == FX_KEY_TREE)
    status = set_tree(fx_config_field(cfg, key), rest, &source, root);
  else
    status = fx_value_read(key, &source, root, fx_config_field(cfg, key));
  fx_source_close(&source);
  return status == FX_OK ? fx_config_set_origin(cfg, key, place) : status;
}

static fx_status apply_overrides(fx_config *cfg, const char *const *overrides, int count) {
  char quoted[FX_QUOTE_BYTES];
  for (int i = 0; i < count; i++) {
    const char *equals = strchr(overrides[i], '=');
    fx_quote(overrides[i], quoted);
    if (!equals || equals == overrides[i])
      return fx_error(FX_ERR_CONFIG,
                      "command line: %s is not section.key=value; write for example train.iters=20", quoted);
    char *path = fx_strfmt("%.*s", (int)(equals - overrides[i]), overrides[i]);
    char *place = fx_strfmt("command line: %s", quoted);
    fx_status status = path && place ? apply_override(cfg, place, path, equals + 1) : fx_config_no_memory();
    free(path);
    free(place);
    FX_TRY(status);
  }
  return FX_OK;
}

static fx_status apply_defaults(fx_config *cfg) {
  for (int i = 0; i < fx_schema_count; i++) {
    const fx_key *key = &fx_schema[i];
    if (fx_config_origin(cfg, key)) continue;
    bool gpt2 = key->initial_gpt2 && cfg->model.model_type == FX_MODEL_TYPE_GPT2;
    fx_source source;
    const char *text = gpt2 ? key->initial_gpt2 : key->initial;
    FX_TRY(fx_source_open(&source, "default", false, text, strlen(text)));
    fx_status status = fx_value_read(key, &source, fx_source_root(&source), fx_config_field(cfg, key));
    fx_source_close(&source);
    FX_TRY(status);
  }
  return FX_OK;
}

/* What follows the user's text, whose reading ended with `status`; takes cfg. */
static fx_status finish(fx_config *cfg, fx_status status, fx_config **out) {
  if (status == FX_OK) status = apply_defaults(cfg);
  if (status == FX_OK) status = fx_config_resolve(cfg);
  if (status == FX_OK)
    *out = cfg;
  else
    fx_config_destroy(cfg);
  return status;
}

fx_status fx_config_load(const char *path, const char *const *overrides, int n_overrides, fx_config **out) {
  fx_config *cfg = NULL;
  FX_TRY(fx_config_create(path, &cfg));
  fx_status status = load_file(cfg, path, NULL, NULL);
  if (status == FX_OK) status = apply_overrides(cfg, overrides, n_overrides);
  return finish(cfg, status, out);
}

fx_status fx_config_parse(const char *yaml_text, const char *name, fx_config **out) {
  fx_config *cfg = NULL;
  fx_source source;
  FX_TRY(fx_config_create(name, &cfg));
  fx_status status = fx_source_open(&source, name, true, yaml_text, strlen(yaml_text));
  if (status == FX_OK) {
    status = apply_document(cfg, &source, NULL);
    fx_source_close(&source);
  }
  return finish(cfg, status, out);
}
