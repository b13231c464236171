/* SPDX-License-Identifier: Apache-2.0 */
/* Variants in files of the user's. A file is read once, whatever paths lead to it, and becomes an entry of
 * attention.variants; what it names in turn is relative to it. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/config/builtin.h"
#include "core/config/origins.h"
#include "core/config/specs.h"
#include "dynamo_rt/base/memory.h"

enum { MAX_FILES = 64 };

typedef struct taken {
  dev_t device;
  ino_t inode;
  char name[48];
} taken;

typedef struct taker {
  fx_config *cfg;
  taken files[MAX_FILES];
  int count;
} taker;

static bool is_file(const char *text) {
  size_t length = strlen(text);
  return !strpbrk(text, " \t\n") && ((length > 5 && strcmp(text + length - 5, ".yaml") == 0) ||
                                     (length > 4 && strcmp(text + length - 4, ".yml") == 0));
}

static bool is_taken(const fx_config *cfg, const char *name) {
  bool found = fx_tree_get(cfg->attention.variants, name) != NULL || fx_ex_is_reserved(name);
  for (int i = 0; i < fx_builtin_variants_count; i++)
    found = found || strcmp(fx_builtin_variants[i].name, name) == 0;
  return found;
}

/* The file's name as an identifier that no variant has. */
static void name_of(const fx_config *cfg, const char *path, char name[48]) {
  char stem[40] = "";
  const char *slash = strrchr(path, '/'), *start = slash ? slash + 1 : path;
  size_t used = 0;
  if (!isalpha((unsigned char)*start)) stem[used++] = 'v';
  for (; *start && *start != '.' && used < sizeof stem - 1; start++)
    stem[used++] = isalnum((unsigned char)*start) ? *start : '_';
  stem[used] = '\0';
  snprintf(name, 48, "%s", stem);
  for (unsigned i = 2; is_taken(cfg, name); i++) snprintf(name, 48, "%.36s_%u", stem, i);
}

static fx_status read_variant(const char *path, const char *text, size_t bytes, fx_tree **out) {
  fx_source source;
  FX_TRY(fx_source_open(&source, path, true, text, bytes));
  const yaml_node_t *root = fx_source_root(&source);
  fx_status status = FX_OK;
  if (root) status = fx_tree_read(&source, root, out);
  if (status == FX_OK && (!*out || (*out)->kind != FX_TREE_MAP)) {
    fx_tree_destroy(*out);
    *out = NULL;
    status =
        fx_error(FX_ERR_CONFIG, "%s: a variant is a mapping with mask, score, params, buffers, sinks", path);
  }
  fx_source_close(&source);
  return status;
}

/* place: of the text that names the file; where: the same for messages. */
static fx_status take(taker *t, const char *text, const fx_tree_place *place, const char *where,
                      char name[48]) {
  const char *slash = place->line > 0 && *text != '/' ? strrchr(place->file, '/') : NULL;
  char *path = fx_strfmt("%.*s%s", slash ? (int)(slash - place->file) + 1 : 0, place->file, text),
       *contents = NULL;
  size_t bytes = 0;
  struct stat info = {0};
  fx_tree *tree = NULL;
  fx_status status = FX_OK;
  if (!path) return fx_config_no_memory();
  FX_TRY_GOTO(fx_config_read_file(path, where, &contents, &bytes, &info), free_path);
  for (int i = 0; i < t->count; i++)
    if (t->files[i].device == info.st_dev && t->files[i].inode == info.st_ino) {
      memcpy(name, t->files[i].name, 48);
      goto free_contents;
    }
  if (t->count == MAX_FILES)
    FX_TRY_GOTO(fx_error(FX_ERR_CONFIG, "%s: more than %d files of variants", where, MAX_FILES),
                free_contents);
  FX_TRY_GOTO(read_variant(path, contents, bytes, &tree), free_contents);
  name_of(t->cfg, path, name);
  t->files[t->count] = (taken){.device = info.st_dev, .inode = info.st_ino};
  memcpy(t->files[t->count++].name, name, 48);
  status = fx_tree_set(&t->cfg->attention.variants, name, tree, where);
free_contents:
  free(contents);
free_path:
  free(path);
  return status;
}

/* All texts where a variant may be named. */
static fx_status take_below(taker *t, fx_tree *tree) {
  if (!tree || (tree->name && (strcmp(tree->name, "params") == 0 || strcmp(tree->name, "buffers") == 0)))
    return FX_OK;
  if (tree->kind == FX_TREE_TEXT && is_file(tree->text)) {
    char name[48];
    FX_TRY(take(t, tree->text, &tree->place, tree->where, name));
    free(tree->text);
    tree->text = fx_strdup(name);
    if (!tree->text) return fx_config_no_memory();
  }
  for (int64_t i = 0; i < tree->count; i++) FX_TRY(take_below(t, tree->child[i])); /* files add to the end */
  return FX_OK;
}

static fx_status take_chosen(taker *t) {
  const char *where = fx_config_where(t->cfg, "attention.variant");
  char name[48];
  fx_tree_place place;
  if (!is_file(t->cfg->attention.variant)) return FX_OK;
  FX_TRY(fx_tree_place_parse(where, &place));
  fx_status status = take(t, t->cfg->attention.variant, &place, where, name);
  free(place.file);
  FX_TRY(status);
  char *copy = fx_strdup(name);
  if (!copy) return fx_config_no_memory();
  free(t->cfg->attention.variant);
  t->cfg->attention.variant = copy;
  return FX_OK;
}

fx_status fx_specs_take_files(fx_config *cfg) {
  taker t = {.cfg = cfg};
  FX_TRY(take_chosen(&t));
  FX_TRY(take_below(&t, cfg->attention.mask));
  FX_TRY(take_below(&t, cfg->attention.score));
  FX_TRY(take_below(&t, cfg->attention.layers));
  return take_below(&t, cfg->attention.variants);
}
