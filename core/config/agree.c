/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration as a sequence of keys and printed values, in the schema's order, and where two of them
 * differ first. A mapping is followed by its entries, so that a difference inside is named by its own key
 * (attention.variants.mine.mask). The order of entries counts, because that of buffers is the order of their
 * parameters. Knows nothing of what keys mean, but for the table below. Has one function, which drivers of
 * tests replace. */
#include "core/config/agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/origins.h"
#include "core/config/tree.h"
#include "core/config/value.h"
#include "parallel/agree.h"

/* What ranks need not have alike. A key stands here when it says only how a host does its share, and nothing
 * that a rank computes, sends, reads or writes follows from it. All others must agree, also those that might
 * turn out the same (runtime.device auto and cpu) and those that rank 0 alone reads (checkpoint.resume).
 * Paths of data and checkpoints are among them: all ranks cut the same corpus and write the same step, and a
 * link gives a place the same name on every host. */
static const struct {
  const char *key, *reason;
} local_keys[] = {
    {"data.prefetch", "batches that wait in the memory of this host; which ones, and their order, stay"},
    {"runtime.threads", "hosts have different numbers of cores, which auto follows; results keep their bits"},
    {"runtime.compiler", "a path of this host; compiled or interpreted, a variant gives the same bits"},
    {"runtime.log_level", "what this rank prints"},
};

static bool is_local(const fx_key *key) {
  for (size_t i = 0; i < sizeof local_keys / sizeof local_keys[0]; i++)
    if (fx_schema_find_path(local_keys[i].key) == key) return true;
  return false;
}

/* ---- writing: key NUL value NUL ---- */

typedef struct path {
  const struct path *above;
  const char *name;
} path;

static void write_path(const path *p, FILE *stream) {
  if (p->above) {
    write_path(p->above, stream);
    fputc('.', stream);
  }
  fputs(p->name, stream);
}

static void write_entries(const fx_tree *tree, const path *at, FILE *stream) {
  for (int64_t i = 0; tree && tree->kind == FX_TREE_MAP && i < tree->count; i++) {
    path below = {at, tree->child[i]->name};
    write_path(&below, stream);
    fputc('\0', stream);
    fx_tree_print(tree->child[i], stream);
    fputc('\0', stream);
    write_entries(tree->child[i], &below, stream);
  }
}

/* malloc'ed; NULL when out of memory. */
static char *write_config(const fx_config *cfg, size_t *bytes) {
  char *text = NULL;
  FILE *stream = open_memstream(&text, bytes);
  if (!stream) return NULL;
  for (int i = 0; i < fx_schema_count; i++) {
    const fx_key *key = &fx_schema[i];
    const char *field = (const char *)cfg + key->offset;
    path section = {NULL, key->section}, at = {&section, key->name};
    if (is_local(key)) continue;
    write_path(&at, stream);
    fputc('\0', stream);
    fx_value_print(key, field, stream);
    fputc('\0', stream);
    if (key->kind == FX_KEY_TREE) write_entries(*(fx_tree *const *)field, &at, stream);
  }
  if (fclose(stream) == 0) return text;
  free(text);
  return NULL;
}

/* ---- comparing ---- */

typedef struct entry {
  const char *key, *value; /* key NULL: there is none */
} entry;

static entry next_entry(const char **at, const char *end) {
  entry e = {NULL, NULL};
  if (*at >= end) return e;
  e.key = *at;
  e.value = e.key + strlen(e.key) + 1;
  *at = e.value < end ? e.value + strlen(e.value) + 1 : end;
  if (e.value >= end) e.value = "";
  return e;
}

/* NULL when the key is not there. */
static const char *find(const char *text, int64_t bytes, const char *key) {
  const char *end = text + bytes;
  for (entry e; (e = next_entry(&text, end)).key;)
    if (strcmp(e.key, key) == 0) return e.value;
  return NULL;
}

/* The entry is a mapping, whose first entry comes next. */
static bool opens(const char *key, const char *next, const char *end) {
  size_t length = strlen(key);
  return next < end && strncmp(key, next, length) == 0 && next[length] == '.';
}

enum { SHOWN = 240, BEFORE = 80 };

static bool inside_character(char c) {
  return ((unsigned char)c & 0xC0) == 0x80;
}

/* A value as it may stand in the sentence: a long one only around its first difference from the other. */
static const char *show(const char *value, const char *other, char shown[SHOWN + 8]) {
  size_t length, from = 0, to;
  if (!value) return "not given";
  length = to = strlen(value);
  while (other && value[from] && value[from] == other[from]) from++;
  from = length <= SHOWN || from < BEFORE ? 0 : from - BEFORE;
  while (from > 0 && inside_character(value[from])) from--;
  if (to - from > SHOWN) to = from + SHOWN;
  while (to < length && inside_character(value[to])) to--;
  snprintf(shown, SHOWN + 8, "%s%.*s%s", from ? "..." : "", (int)(to - from), value + from,
           to < length ? "..." : "");
  return shown;
}

/* left, right: NULL where the key is not given. */
static fx_status tell_values(const fx_agree_pair *pair, const char *key, const char *left,
                             const char *right) {
  char x[SHOWN + 8], y[SHOWN + 8];
  return fx_error(FX_ERR_DIVERGED,
                  "ranks 0 and %d were given different configurations: %.200s is %s on rank 0 and %s on rank "
                  "%d%s; start all ranks with the same config and overrides",
                  pair->rank, key, show(left, right, x), show(right, left, y), pair->rank, pair->others);
}

/* Other keys stand at the same place: one is missing, or their order differs. */
static fx_status tell_keys(const fx_agree_pair *pair, entry a, entry b) {
  if (!b.key || (a.key && !find(pair->right, pair->right_bytes, a.key)))
    return tell_values(pair, a.key, a.value, NULL);
  if (!a.key || !find(pair->left, pair->left_bytes, b.key)) return tell_values(pair, b.key, NULL, b.value);
  return fx_error(FX_ERR_DIVERGED,
                  "ranks 0 and %d were given different configurations: %.200s comes before %.200s on rank 0 "
                  "and after it on rank %d%s; start all ranks with the same config and overrides",
                  pair->rank, a.key, b.key, pair->rank, pair->others);
}

static fx_status tell(const fx_agree_pair *pair) {
  const char *left = pair->left, *left_end = left + pair->left_bytes;
  const char *right = pair->right, *right_end = right + pair->right_bytes;
  for (;;) {
    entry a = next_entry(&left, left_end), b = next_entry(&right, right_end);
    if (!a.key && !b.key) return FX_OK;
    if (!a.key || !b.key || strcmp(a.key, b.key) != 0) return tell_keys(pair, a, b);
    if (strcmp(a.value, b.value) == 0) continue;
    if (opens(a.key, left, left_end) && opens(b.key, right, right_end)) continue; /* it is in there */
    return tell_values(pair, a.key, a.value, b.value);
  }
}

fx_status fx_config_agree(const fx_config *cfg, fx_control *control, int timeout_ms) {
  size_t bytes = 0;
  char *text = write_config(cfg, &bytes);
  if (!text) return fx_config_no_memory();
  fx_status status = fx_agree_text(control, text, (int64_t)bytes, tell, timeout_ms);
  free(text);
  return status == FX_OK || status == FX_ERR_DIVERGED ? status
                                                      : fx_error_prefix(status, "configuration agreement");
}
