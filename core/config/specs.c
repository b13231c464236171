/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config/specs.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/builtin.h"
#include "core/config/origins.h"
#include "core/config/schema.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/nearest.h"

enum { MAX_ALIASES = 32, MAX_SCORES = 64, MAX_LAYERS = 256 };

static const char g_variant_keys[] = "variant|mask|score|params|buffers|sinks";

typedef struct entry { /* a tree and the spec made of it; there is one a tree */
  const fx_tree *tree;
  fx_variant_spec *spec;
} entry;

struct fx_specs {
  const fx_config *cfg;
  fx_tree *chosen;   /* attention.variant, as a text with its place */
  fx_tree **builtin; /* [fx_builtin_variants_count], read when needed */
  entry *entries;
  int64_t num_entries, entry_capacity;
  void **blocks;
  int64_t num_blocks, block_capacity;
};

/* The keys of one variant, wherever they stand. */
typedef struct parts {
  const char *name, *title, *path;
  const fx_tree *at, *variant, *mask, *score, *params, *buffers;
  int sinks; /* -1: as the variant it builds on */
} parts;

void *fx_specs_alloc(fx_specs *specs, size_t count, size_t size) {
  void *block = NULL;
  if (fx_grow(&specs->blocks, &specs->block_capacity, specs->num_blocks + 1, sizeof *specs->blocks) !=
          FX_OK ||
      fx_calloc(&block, count ? count : 1, size) != FX_OK)
    return NULL;
  specs->blocks[specs->num_blocks++] = block;
  return block;
}

static char *path_text(fx_specs *specs, const char *format, const char *name)
    __attribute__((format(printf, 2, 0)));
static char *path_text(fx_specs *specs, const char *format, const char *name) {
  char *text = fx_specs_alloc(specs, strlen(format) + strlen(name) + 1, 1);
  if (text) snprintf(text, strlen(format) + strlen(name) + 1, format, name); // NOLINT: formats of this file
  return text;
}

/* ---- names ---- */

static int builtin_find(const char *name) {
  for (int i = 0; i < fx_builtin_variants_count; i++)
    if (strcmp(fx_builtin_variants[i].name, name) == 0) return i;
  return -1;
}

static fx_status builtin_tree(fx_specs *specs, int index, const fx_tree **out) {
  const fx_builtin_variant *file = &fx_builtin_variants[index];
  if (!specs->builtin[index]) {
    fx_source source;
    char *name = path_text(specs, "attention/%s.yaml", file->name);
    if (!name) return FX_ERR_MEMORY;
    FX_TRY(fx_source_open(&source, name, true, file->text, file->bytes));
    const yaml_node_t *root = fx_source_root(&source);
    fx_status status = root ? fx_tree_read(&source, root, &specs->builtin[index])
                            : fx_error(FX_ERR_CONFIG, "%s: the file is empty", name);
    fx_source_close(&source);
    FX_TRY(status);
  }
  *out = specs->builtin[index];
  return FX_OK;
}

static bool is_builtin(const fx_specs *specs, const fx_tree *tree) {
  bool found = false;
  for (int i = 0; i < fx_builtin_variants_count; i++) found = found || (tree && specs->builtin[i] == tree);
  return found;
}

static bool is_known(const fx_specs *specs, const char *name) {
  return fx_tree_get(specs->cfg->attention.variants, name) || builtin_find(name) >= 0;
}

static const char *nearest_variant(const fx_specs *specs, const char *name) {
  const fx_tree *own = specs->cfg->attention.variants;
  const char *best = fx_builtin_variants[0].name;
  int distance = fx_name_distance(name, best);
  for (int64_t i = 1; i < fx_builtin_variants_count + (own ? own->count : 0); i++) {
    const char *candidate = i < fx_builtin_variants_count ? fx_builtin_variants[i].name
                                                          : own->child[i - fx_builtin_variants_count]->name;
    int d = fx_name_distance(name, candidate);
    if (d >= distance) continue;
    distance = d;
    best = candidate;
  }
  return best;
}

static bool is_identifier(const char *text) {
  if (!isalpha((unsigned char)*text) && *text != '_') return false;
  for (; *text; text++)
    if (!isalnum((unsigned char)*text) && *text != '_') return false;
  return true;
}

/* ---- specs ---- */

static fx_status make_spec(fx_specs *specs, const parts *p, fx_variant_spec *spec);

/* `tree` as a variant: of attention.variants, or a built-in file, or inside attention.layers. */
static fx_status parts_of(const fx_tree *tree, parts *p) {
  char got[96];
  p->at = tree;
  p->sinks = -1;
  if (tree->kind != FX_TREE_MAP) {
    fx_tree_describe(tree, got);
    return fx_tree_error(tree, "%s expects a mapping of variant, mask, score, ..., got %s", p->title, got);
  }
  for (int64_t i = 0; i < tree->count; i++) {
    const fx_tree *part = tree->child[i];
    bool sinks = false;
    if (strcmp(part->name, "variant") == 0) {
      p->variant = part;
    } else if (strcmp(part->name, "mask") == 0) {
      p->mask = part;
    } else if (strcmp(part->name, "score") == 0) {
      p->score = part;
    } else if (strcmp(part->name, "params") == 0) {
      p->params = part;
    } else if (strcmp(part->name, "buffers") == 0) {
      p->buffers = part;
    } else if (strcmp(part->name, "sinks") == 0) {
      bool automatic = part->kind == FX_TREE_TEXT && strcmp(part->text, "auto") == 0;
      if (!automatic && !fx_tree_is_bool(part, &sinks))
        return fx_tree_error(part, "sinks expects true, false or auto");
      p->sinks = automatic ? -1 : sinks;
    } else {
      return fx_specs_unknown_key(part, p->title, g_variant_keys);
    }
  }
  return FX_OK;
}

/* The spec of a tree, made once. A text stands for the variant of that name. */
static fx_status spec_of_tree(fx_specs *specs, const fx_tree *tree, parts p, fx_variant_spec **out) {
  for (int64_t i = 0; i < specs->num_entries; i++)
    if (specs->entries[i].tree == tree) {
      *out = specs->entries[i].spec; /* perhaps not complete yet: a circle, which the build refuses */
      return FX_OK;
    }
  FX_TRY(parts_of(tree, &p));
  fx_variant_spec *spec = fx_specs_alloc(specs, 1, sizeof *spec);
  if (!spec) return FX_ERR_MEMORY;
  FX_TRY(fx_grow(&specs->entries, &specs->entry_capacity, specs->num_entries + 1, sizeof *specs->entries));
  specs->entries[specs->num_entries++] = (entry){tree, spec};
  *out = spec;
  return make_spec(specs, &p, spec);
}

/* The spec that the text of `tree` names. `within`: the variant that is being made; its own name then means
 * the built-in one. */
static fx_status refer(fx_specs *specs, const fx_tree *tree, const fx_tree *within, const char *key,
                       fx_variant_spec **out) {
  const char *name = tree->text ? tree->text : "";
  char quoted[FX_QUOTE_BYTES];
  for (int aliases = 0; aliases < MAX_ALIASES; aliases++) {
    const fx_tree *own = fx_tree_get(specs->cfg->attention.variants, name);
    int index = builtin_find(name);
    parts p = {.name = name, .title = name};
    if (own && is_builtin(specs, within)) own = NULL; /* what a built-in one names is built in */
    if (own && !(own == within && index >= 0)) {
      if (own->kind == FX_TREE_TEXT && strcmp(own->text, name) != 0) {
        name = own->text;
        continue;
      }
      p.title = p.path = path_text(specs, "attention.variants.%s", name);
      if (!p.path) return FX_ERR_MEMORY;
      if (own->kind != FX_TREE_TEXT) return spec_of_tree(specs, own, p, out);
    }
    if (index >= 0) {
      FX_TRY(builtin_tree(specs, index, &own));
      p.path = path_text(specs, "attention.variants.%s", name);
      return p.path ? spec_of_tree(specs, own, p, out) : FX_ERR_MEMORY;
    }
    fx_quote(name, quoted);
    return fx_tree_error(tree, "%s=%s is not a known variant; the nearest is %s", key, quoted,
                         nearest_variant(specs, name));
  }
  return fx_tree_error(tree, "%s leads through more than %d names of attention.variants; name the last one",
                       key, MAX_ALIASES);
}

static fx_status make_mask(fx_specs *specs, const fx_tree *tree, const parts *p, fx_mask_tree *mask) {
  char got[96];
  mask->text = fx_specs_text(tree);
  if (tree->kind == FX_TREE_TEXT) {
    bool constant = strcmp(tree->text, "true") == 0 || strcmp(tree->text, "false") == 0;
    fx_variant_spec *spec = NULL;
    mask->kind = FX_MASK_TEXT;
    if (constant || !(is_identifier(tree->text) || is_known(specs, tree->text))) return FX_OK;
    FX_TRY(refer(specs, tree, p->at, "mask", &spec));
    mask->kind = FX_MASK_SPEC;
    mask->spec = spec;
    return FX_OK;
  }
  const fx_tree *part = tree->kind == FX_TREE_MAP && tree->count == 1 ? tree->child[0] : NULL;
  bool all = part && strcmp(part->name, "all") == 0, any = part && strcmp(part->name, "any") == 0;
  bool no = part && strcmp(part->name, "not") == 0;
  if (part && !all && !any && !no) return fx_specs_unknown_key(part, "a mask", "all|any|not");
  if (!part) {
    fx_tree_describe(tree, got);
    return fx_tree_error(
        tree, "a mask expects a text or one of {all: [...]}, {any: [...]}, {not: ...}, got %s", got);
  }
  mask->kind = all ? FX_MASK_ALL : any ? FX_MASK_ANY : FX_MASK_NOT;
  bool list = part->kind == FX_TREE_LIST;
  if (list && no) return fx_tree_error(part, "not expects one mask; put all: or any: before the list");
  int64_t count = list ? part->count : 1;
  fx_mask_tree *below = fx_specs_alloc(specs, (size_t)count, sizeof *below);
  if (!below) return FX_ERR_MEMORY;
  for (int64_t i = 0; i < count; i++) FX_TRY(make_mask(specs, list ? part->child[i] : part, p, &below[i]));
  mask->part = below;
  mask->num_parts = (int32_t)count;
  return FX_OK;
}

static fx_status make_scores(fx_specs *specs, const parts *p, fx_variant_spec *spec) {
  const fx_tree *tree = p->score;
  bool list = tree->kind == FX_TREE_LIST;
  int64_t count = list ? tree->count : 1;
  if (count > MAX_SCORES) return fx_tree_error(tree, "more than %d scores; join some", MAX_SCORES);
  fx_score_part *scores = fx_specs_alloc(specs, (size_t)count, sizeof *scores);
  if (!scores) return FX_ERR_MEMORY;
  for (int64_t i = 0; i < count; i++) {
    const fx_tree *part = list ? tree->child[i] : tree;
    fx_variant_spec *below = NULL;
    if (part->kind != FX_TREE_TEXT)
      return fx_tree_error(part, "a score expects an expression, a name, or a list of those");
    scores[i].text = fx_specs_text(part);
    if (!is_known(specs, part->text)) continue;
    FX_TRY(refer(specs, part, p->at, "score", &below));
    scores[i].spec = below;
  }
  spec->score = scores;
  spec->num_scores = (int32_t)count;
  return FX_OK;
}

/* What the variant that this one builds on says, where this one says nothing. */
static fx_status inherit(fx_specs *specs, const parts *p, const fx_tree *variant, fx_variant_spec *spec) {
  fx_variant_spec *base = NULL;
  if (variant->kind != FX_TREE_TEXT) return fx_tree_error(variant, "variant expects a name");
  FX_TRY(refer(specs, variant, p->at, p->title && p->at ? "variant" : "attention.variant", &base));
  fx_mask_tree *mask = fx_specs_alloc(specs, 1, sizeof *mask);
  fx_score_part *score = fx_specs_alloc(specs, 1, sizeof *score);
  if (!mask || !score) return FX_ERR_MEMORY;
  if (!spec->mask) {
    *mask = (fx_mask_tree){.kind = FX_MASK_SPEC, .spec = base, .text = fx_specs_text(variant)};
    spec->mask = mask;
  }
  if (!spec->score) {
    *score = (fx_score_part){.spec = base, .text = fx_specs_text(variant)};
    spec->score = score;
    spec->num_scores = 1;
  }
  if (p->sinks < 0) spec->sinks = base->sinks;
  return FX_OK;
}

static fx_status make_spec(fx_specs *specs, const parts *p, fx_variant_spec *spec) {
  fx_tree same_name = {.kind = FX_TREE_TEXT, .text = (char *)(uintptr_t)p->name};
  const fx_tree *variant = p->variant;
  spec->name = p->name;
  spec->title = p->title;
  spec->path = p->path;
  spec->at = fx_specs_text(p->at ? p->at : variant);
  spec->sinks = p->sinks > 0;
  FX_TRY(fx_specs_params(specs, p->params, spec));
  FX_TRY(fx_specs_buffers(specs, p->buffers, spec));
  if (p->mask) {
    fx_mask_tree *mask = fx_specs_alloc(specs, 1, sizeof *mask);
    if (!mask) return FX_ERR_MEMORY;
    FX_TRY(make_mask(specs, p->mask, p, mask));
    spec->mask = mask;
  }
  if (p->score) FX_TRY(make_scores(specs, p, spec));
  bool own = p->at && fx_tree_get(specs->cfg->attention.variants, p->name) == p->at;
  if (!variant && !p->mask && own && builtin_find(p->name) >= 0) { /* parameters for the built-in one */
    same_name.place = p->at->place;
    variant = &same_name;
  }
  if (variant) return inherit(specs, p, variant, spec);
  if (!p->mask)
    return fx_tree_error(
        p->at, "%s has neither variant nor mask; add for example mask: causal, or mask: full", p->title);
  return FX_OK;
}

/* ---- kinds of layers ---- */

static bool same_layer(const fx_tree *a, const fx_tree *b) {
  return a->kind == FX_TREE_TEXT && b->kind == FX_TREE_TEXT && strcmp(a->text, b->text) == 0;
}

/* The item of attention.layers from which kind `kind` comes; with `item` the kind of that item through *kind.
 */
static int64_t walk_kinds(const fx_tree *layers, int64_t item, int32_t *kind) {
  int32_t next = 0;
  for (int64_t i = 0; i < layers->count; i++) {
    int64_t first = 0;
    int32_t own = 0;
    while (!(first == i || same_layer(layers->child[first], layers->child[i]))) first++;
    if (first == i) own = next++;
    if (item < 0 && first == i && own == *kind) return i;
    if (i != item) continue;
    if (first != i) return walk_kinds(layers, first, kind);
    *kind = own;
    return i;
  }
  *kind = next;
  return -1;
}

int32_t fx_config_num_variants(const fx_config *cfg) {
  int32_t count = INT32_MAX;
  if (!cfg->attention.layers) return 1;
  walk_kinds(cfg->attention.layers, -1, &count);
  return count;
}

int32_t fx_config_layer_variant(const fx_config *cfg, int64_t layer) {
  int32_t kind = 0;
  const fx_tree *layers = cfg->attention.layers;
  if (layers) walk_kinds(layers, layer % layers->count, &kind);
  return kind;
}

static fx_status spec_of_attention(fx_specs *specs, fx_variant_spec **out) {
  const fx_config_attention *attention = &specs->cfg->attention;
  bool plain = !attention->mask && !attention->score;
  parts p = {.name = plain ? attention->variant : "custom",
             .path = "attention",
             .variant = specs->chosen,
             .mask = attention->mask,
             .score = attention->score,
             .params = attention->params,
             .buffers = attention->buffers,
             .sinks = attention->sinks == FX_ATTENTION_SINKS_AUTO
                          ? -1
                          : attention->sinks == FX_ATTENTION_SINKS_TRUE};
  p.title = plain ? path_text(specs, "attention.variant=%s", attention->variant) : "attention";
  *out = fx_specs_alloc(specs, 1, sizeof **out);
  return p.title && *out ? make_spec(specs, &p, *out) : FX_ERR_MEMORY;
}

fx_status fx_specs_of_kind(fx_specs *specs, int32_t kind, const fx_variant_spec **out) {
  fx_variant_spec *spec = NULL;
  const fx_tree *layers = specs->cfg->attention.layers;
  if (!layers) {
    FX_TRY(spec_of_attention(specs, &spec));
  } else {
    int64_t item = walk_kinds(layers, -1, &kind);
    FX_ASSERT(item >= 0);
    const fx_tree *layer = layers->child[item];
    if (layer->kind == FX_TREE_TEXT) {
      FX_TRY(refer(specs, layer, NULL, "attention.layers", &spec));
      fx_variant_spec *here =
          fx_specs_alloc(specs, 1, sizeof *here); /* said of this place, not of the file */
      if (!here) return FX_ERR_MEMORY;
      FX_ASSERT(spec);
      *here = *spec;
      here->at = fx_specs_text(layer);
      spec = here;
    } else {
      parts p = {.name = "custom", .title = "an item of attention.layers", .path = "attention.layers"};
      FX_TRY(spec_of_tree(specs, layer, p, &spec));
    }
  }
  *out = spec;
  return FX_OK;
}

fx_status fx_specs_open(const fx_config *cfg, fx_specs **out) {
  fx_specs *specs = NULL;
  FX_TRY(fx_calloc(&specs, 1, sizeof *specs));
  specs->cfg = cfg;
  fx_status status = fx_calloc(&specs->builtin, (size_t)fx_builtin_variants_count, sizeof *specs->builtin);
  if (status == FX_OK) status = fx_calloc(&specs->chosen, 1, sizeof *specs->chosen);
  if (status == FX_OK) {
    const char *where = fx_config_where(cfg, "attention.variant");
    specs->chosen->kind = FX_TREE_TEXT;
    specs->chosen->text = fx_strdup(cfg->attention.variant);
    bool set = strcmp(where, "default") != 0;
    status = fx_tree_place_parse(set ? where : cfg->origins->name, &specs->chosen->place);
    if (status == FX_OK && !specs->chosen->text) status = fx_config_no_memory();
  }
  if (status == FX_OK)
    *out = specs;
  else
    fx_specs_close(specs);
  return status;
}

void fx_specs_close(fx_specs *specs) {
  if (!specs) return;
  for (int64_t i = 0; i < specs->num_blocks; i++) free(specs->blocks[i]);
  for (int i = 0; specs->builtin && i < fx_builtin_variants_count; i++) fx_tree_destroy(specs->builtin[i]);
  fx_tree_destroy(specs->chosen);
  free(specs->builtin);
  free(specs->entries);
  free(specs->blocks);
  free(specs);
}

/* ---- building ---- */

/* Once each; one that memory is short for is lost. */
static void keep_warning(void *self, const char *sentence) {
  fx_config_strings *list = self;
  int64_t capacity = list->count;
  for (int64_t i = 0; i < list->count; i++)
    if (strcmp(list->items[i], sentence) == 0) return;
  char *copy = fx_strdup(sentence);
  if (!copy || fx_grow(&list->items, &capacity, list->count + 1, sizeof *list->items) != FX_OK)
    free(copy);
  else
    list->items[list->count++] = copy;
}

static fx_status build_kind(const fx_config *cfg, int32_t kind, const fx_ex_ranges *ranges,
                            const fx_variant_warnings *warnings, fx_variant **out) {
  const fx_variant_spec *spec = NULL;
  fx_specs *specs = NULL;
  FX_TRY(fx_specs_open(cfg, &specs));
  fx_status status = fx_specs_of_kind(specs, kind, &spec);
  if (status == FX_OK) status = fx_variant_build(spec, ranges, warnings, out);
  fx_specs_close(specs);
  return status;
}

fx_status fx_config_variant(const fx_config *cfg, int32_t kind, const fx_ex_ranges *ranges,
                            fx_variant **out) {
  return build_kind(cfg, kind, ranges, NULL, out);
}

static fx_status check_layers(const fx_config *cfg) {
  const fx_config_attention *attention = &cfg->attention;
  const fx_tree *layers = attention->layers, *idle = attention->mask     ? attention->mask
                                                     : attention->score  ? attention->score
                                                     : attention->params ? attention->params
                                                                         : attention->buffers;
  if (!layers) return FX_OK;
  if (layers->kind != FX_TREE_LIST || layers->count == 0)
    return fx_tree_error(layers, "attention.layers expects a list of variants, as [local, local, global]");
  if (layers->count > MAX_LAYERS)
    return fx_tree_error(layers,
                         "attention.layers has more than %d items; the list is repeated over the layers, so "
                         "one period of it will do",
                         MAX_LAYERS);
  for (int64_t i = 0; i < layers->count; i++)
    if (layers->child[i]->kind == FX_TREE_LIST)
      return fx_tree_error(layers->child[i], "attention.layers expects names or mappings, got a list");
  if (idle)
    return fx_tree_error(
        idle, "attention.mask, score, params and buffers are not used beside attention.layers; move "
              "this into attention.variants");
  return FX_OK;
}

static fx_status check_variants(const fx_config *cfg) {
  const fx_tree *variants = cfg->attention.variants;
  char quoted[FX_QUOTE_BYTES];
  if (!variants) return FX_OK;
  if (variants->kind != FX_TREE_MAP)
    return fx_tree_error(variants, "attention.variants expects a mapping of names to variants");
  for (int64_t i = 0; i < variants->count; i++) {
    const fx_tree *variant = variants->child[i];
    fx_quote(variant->name, quoted);
    if (fx_ex_is_reserved(variant->name) || !is_identifier(variant->name) || strlen(variant->name) > 63)
      return fx_tree_error_at_name(
          variant,
          "%s cannot be the name of a variant: letters, digits and _, at most 63, no word of the language",
          quoted);
    if (variant->kind == FX_TREE_LIST)
      return fx_tree_error(variant, "attention.variants.%s expects a name or a mapping, got a list", quoted);
  }
  return FX_OK;
}

/* Whether the entries of attention.variants make sense by themselves, used or not. */
static fx_status check_entries(const fx_config *cfg) {
  const fx_tree *variants = cfg->attention.variants;
  fx_specs *specs = NULL;
  FX_TRY(fx_specs_open(cfg, &specs));
  fx_status status = FX_OK;
  for (int64_t i = 0; variants && i < variants->count && status == FX_OK; i++) {
    fx_tree name = {
        .kind = FX_TREE_TEXT, .text = variants->child[i]->name, .place = variants->child[i]->name_place};
    fx_variant_spec *spec = NULL;
    status = refer(specs, &name, NULL, "attention.variants", &spec);
  }
  fx_specs_close(specs);
  return status;
}

fx_status fx_specs_check(fx_config *cfg) {
  const fx_variant_warnings warnings = {keep_warning, &cfg->warnings};
  FX_TRY(check_layers(cfg));
  FX_TRY(check_variants(cfg));
  FX_TRY(check_entries(cfg));
  int32_t T = (int32_t)cfg->train.seq_length;
  fx_ex_ranges ranges = {(int32_t)cfg->model.num_attention_heads, T, T};
  for (int32_t kind = 0; kind < fx_config_num_variants(cfg); kind++) {
    fx_variant *variant = NULL;
    FX_TRY(build_kind(cfg, kind, &ranges, &warnings, &variant));
    fx_variant_destroy(variant);
  }
  return FX_OK;
}
