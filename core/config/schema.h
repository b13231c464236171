/* SPDX-License-Identifier: Apache-2.0 */
/* The schema: one row a key. Reading, defaults, printing, help and messages all work from these rows, so a
 * new key is one row here and one field in config.h. Private to core/config. */
#ifndef FX_CORE_CONFIG_SCHEMA_H
#define FX_CORE_CONFIG_SCHEMA_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum fx_key_kind {
  FX_KEY_BOOL,    /* bool */
  FX_KEY_INT,     /* int64_t; FX_CONFIG_AUTO for `auto` where accepts_auto */
  FX_KEY_FLOAT,   /* double */
  FX_KEY_PAIR,    /* double[2] */
  FX_KEY_ENUM,    /* an enum whose constants are in the order of `values` */
  FX_KEY_STRING,  /* char *, owned; min is the least length */
  FX_KEY_STRINGS, /* fx_config_strings; min is the least length of an item */
  FX_KEY_TREE     /* fx_tree *, owned; NULL = null. What may stand in it is specs.h's business */
} fx_key_kind;

/* Open ends of ranges: the nearest numbers inside. Shown as "above 0" and "below 1". */
#define FX_ABOVE_0 DBL_MIN
#define FX_BELOW_1 (1.0 - DBL_EPSILON / 2)

typedef struct fx_key {
  const char *section, *name;
  fx_key_kind kind;
  size_t offset;            /* of the field in fx_config */
  const char *initial;      /* the default as YAML text */
  const char *initial_gpt2; /* where model_type: gpt2 has another one */
  double min, max;          /* inclusive; 0, 0 = no limits */
  bool accepts_auto;
  const char *values; /* FX_KEY_ENUM: "a|b|c" */
  const char *help;
} fx_key;

extern const fx_key fx_schema[];
extern const int fx_schema_count;
extern const char *const fx_schema_sections[]; /* in printing order, NULL at the end */

enum { FX_SCHEMA_TEXT = 256 }; /* enough for every text below */

/* NULL when there is no such key. */
const fx_key *fx_schema_find(const char *section, const char *name);
const fx_key *fx_schema_find_path(const char *path); /* "section.name" */
/* The same for "section.name" or "section.name.rest"; *rest is "" without one. */
const fx_key *fx_schema_find_start(const char *path, const char **rest);
bool fx_schema_is_section(const char *name);

/* The row with the least edit distance from section.name; keys of other sections count as one edit further.
 */
const fx_key *fx_schema_nearest(const char *section, const char *name);
const char *fx_schema_nearest_section(const char *name);

/* "an integer, at least 1 and at most 64, or auto" */
void fx_schema_expected(const fx_key *key, char text[FX_SCHEMA_TEXT]);

/* Words of an "a|b|c" list. */
int fx_words_count(const char *words);
int fx_words_find(const char *words, const char *word); /* -1 when absent */
void fx_words_get(const char *words, int index, char word[FX_SCHEMA_TEXT]);
/* "a, b or c" */
void fx_words_join(const char *words, char text[FX_SCHEMA_TEXT]);
/* Index of the word with the least edit distance. */
int fx_words_nearest(const char *words, const char *word);

#endif
