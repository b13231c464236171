/* SPDX-License-Identifier: Apache-2.0 */
/* Finding rows of the schema by name, the nearest name to a misspelt one, and the words in which a row's type
 * and range are described. Knows no YAML and no fx_config. */
#include <stdio.h>
#include <string.h>

#include "core/config/config.h"
#include "core/config/schema.h"
#include "dynamo_rt/base/nearest.h"

const fx_key *fx_schema_find(const char *section, const char *name) {
  for (int i = 0; i < fx_schema_count; i++)
    if (strcmp(fx_schema[i].section, section) == 0 && strcmp(fx_schema[i].name, name) == 0)
      return &fx_schema[i];
  return NULL;
}

const fx_key *fx_schema_find_path(const char *path) {
  for (int i = 0; i < fx_schema_count; i++) {
    size_t length = strlen(fx_schema[i].section);
    if (strncmp(path, fx_schema[i].section, length) == 0 && path[length] == '.' &&
        strcmp(path + length + 1, fx_schema[i].name) == 0)
      return &fx_schema[i];
  }
  return NULL;
}

const fx_key *fx_schema_find_start(const char *path, const char **rest) {
  char start[FX_SCHEMA_TEXT];
  const char *dot = strchr(path, '.'), *end = dot ? strchr(dot + 1, '.') : NULL;
  *rest = end ? end + 1 : "";
  snprintf(start, sizeof start, "%.*s", end ? (int)(end - path) : (int)strlen(path), path);
  return fx_schema_find_path(start);
}

bool fx_schema_is_section(const char *name) {
  for (int i = 0; fx_schema_sections[i]; i++)
    if (strcmp(fx_schema_sections[i], name) == 0) return true;
  return false;
}

const fx_key *fx_schema_nearest(const char *section, const char *name) {
  const fx_key *nearest = &fx_schema[0];
  int best = 1 << 20;
  for (int i = 0; i < fx_schema_count; i++) {
    int distance =
        fx_name_distance(name, fx_schema[i].name) + (strcmp(fx_schema[i].section, section) == 0 ? 0 : 1);
    if (distance < best) best = distance, nearest = &fx_schema[i];
  }
  return nearest;
}

const char *fx_schema_nearest_section(const char *name) {
  const char *nearest = fx_schema_sections[0];
  int best = 1 << 20;
  for (int i = 0; fx_schema_sections[i]; i++) {
    int distance = fx_name_distance(name, fx_schema_sections[i]);
    if (distance < best) best = distance, nearest = fx_schema_sections[i];
  }
  return nearest;
}

int fx_words_count(const char *words) {
  int count = *words ? 1 : 0;
  for (; *words; words++) count += *words == '|';
  return count;
}

void fx_words_get(const char *words, int index, char word[FX_SCHEMA_TEXT]) {
  while (index > 0 && *words) index -= *words++ == '|';
  snprintf(word, FX_SCHEMA_TEXT, "%.*s", (int)strcspn(words, "|"), words);
}

int fx_words_find(const char *words, const char *word) {
  char candidate[FX_SCHEMA_TEXT];
  for (int i = 0; i < fx_words_count(words); i++) {
    fx_words_get(words, i, candidate);
    if (strcmp(candidate, word) == 0) return i;
  }
  return -1;
}

int fx_words_nearest(const char *words, const char *word) {
  char candidate[FX_SCHEMA_TEXT];
  int nearest = 0, best = 1 << 20;
  for (int i = 0; i < fx_words_count(words); i++) {
    fx_words_get(words, i, candidate);
    int distance = fx_name_distance(word, candidate);
    if (distance < best) best = distance, nearest = i;
  }
  return nearest;
}

void fx_words_join(const char *words, char text[FX_SCHEMA_TEXT]) {
  char word[FX_SCHEMA_TEXT];
  int count = fx_words_count(words);
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < count && used < FX_SCHEMA_TEXT; i++) {
    fx_words_get(words, i, word);
    used += (size_t)snprintf(text + used, FX_SCHEMA_TEXT - used, "%s%s",
                             i == 0           ? ""
                             : i == count - 1 ? " or "
                                              : ", ",
                             word);
  }
}

/* ", at least 1 and below 1"; "" without limits */
static void range_text(const fx_key *key, char text[FX_SCHEMA_TEXT]) {
  char low[64], high[64] = "";
  text[0] = '\0';
  if (key->min == 0 && key->max == 0) return;
  if (key->min == FX_ABOVE_0)
    snprintf(low, sizeof low, "above 0");
  else
    snprintf(low, sizeof low, "at least %.16g", key->min);
  if (key->max == FX_BELOW_1)
    snprintf(high, sizeof high, " and below 1");
  else
    snprintf(high, sizeof high, " and at most %.16g", key->max);
  snprintf(text, FX_SCHEMA_TEXT, ", %s%s", low, high);
}

void fx_schema_expected(const fx_key *key, char text[FX_SCHEMA_TEXT]) {
  char range[FX_SCHEMA_TEXT];
  range_text(key, range);
  const char *or_auto = key->accepts_auto ? ", or auto" : "";
  switch (key->kind) {
  case FX_KEY_BOOL:
    snprintf(text, FX_SCHEMA_TEXT, "true or false");
    break;
  case FX_KEY_INT:
    snprintf(text, FX_SCHEMA_TEXT, "an integer%.160s%s", range, or_auto);
    break;
  case FX_KEY_FLOAT:
    snprintf(text, FX_SCHEMA_TEXT, "a number%.160s%s", range, or_auto);
    break;
  case FX_KEY_PAIR:
    snprintf(text, FX_SCHEMA_TEXT, "a list of two numbers, each%.160s", range + 1);
    break;
  case FX_KEY_ENUM:
    fx_words_join(key->values, text);
    break;
  case FX_KEY_STRING:
    snprintf(text, FX_SCHEMA_TEXT, "a %stext", key->min > 0 ? "non-empty " : "");
    break;
  case FX_KEY_STRINGS:
    snprintf(text, FX_SCHEMA_TEXT, "a list of non-empty texts");
    break;
  case FX_KEY_TREE:
    snprintf(text, FX_SCHEMA_TEXT, "a text, a list or a mapping");
    break;
  }
}

void fx_config_help(FILE *stream) {
  char expected[FX_SCHEMA_TEXT];
  for (int s = 0; fx_schema_sections[s]; s++) {
    fprintf(stream, "%s%s:\n", s ? "\n" : "", fx_schema_sections[s]);
    for (int i = 0; i < fx_schema_count; i++) {
      const fx_key *key = &fx_schema[i];
      if (strcmp(key->section, fx_schema_sections[s]) != 0) continue;
      fx_schema_expected(key, expected);
      fprintf(stream, "  %-24s %s\n  %-24s   %s", key->name, key->help, "", expected);
      fprintf(stream, " [%s]", key->initial);
      if (key->initial_gpt2) fprintf(stream, " [gpt2: %s]", key->initial_gpt2);
      fputc('\n', stream);
    }
  }
}
