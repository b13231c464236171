/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the resolved configuration as YAML: what `config show` prints and a checkpoint keeps. Numbers are
 * the shortest text that reads back to the same bits, and look like numbers to YAML 1.1 readers as well
 * (1.0e-08, not 1e-08). Knows nothing of where values came from. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/tree.h"
#include "core/config/value.h"

static void print_float(double value, FILE *stream) {
  char text[40];
  if (value == nearbyint(value) && fabs(value) < 1e15) {
    fprintf(stream, "%.1f", value); /* 10000.0, not 1.0e+04 */
    return;
  }
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  size_t mantissa = strcspn(text, "e");
  bool has_point = memchr(text, '.', mantissa) != NULL;
  fprintf(stream, "%.*s%s%s", (int)mantissa, text, has_point ? "" : ".0", text + mantissa);
}

static bool is_plain(const char *text) {
  static const char *const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
  if (!isalpha((unsigned char)*text) && *text != '/') return false;
  for (const char *c = text; *c; c++)
    if (!isalnum((unsigned char)*c) && !strchr("_-./", *c)) return false;
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strlen(words[i]) == strlen(text)) {
      size_t same = 0;
      while (text[same] && tolower((unsigned char)text[same]) == words[i][same]) same++;
      if (!text[same]) return false;
    }
  return true;
}

/* Length of the UTF-8 sequence at `text` and its code point; 1 and the byte where it is not valid. */
static int decode(const char *text, unsigned *code) {
  unsigned char c = (unsigned char)*text;
  int length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
  *code = length == 1 ? c : c & (0x7Fu >> length);
  for (int i = 1; i < length; i++) {
    if (((unsigned char)text[i] & 0xC0) != 0x80) return 1;
    *code = *code << 6 | ((unsigned char)text[i] & 0x3F);
  }
  return length;
}

void fx_value_print_text(const char *text, bool always, FILE *stream) {
  if (!always && is_plain(text)) {
    fputs(text, stream);
    return;
  }
  fputc('"', stream);
  while (*text) {
    unsigned code;
    int length = decode(text, &code);
    /* Line breaks of YAML beyond ASCII (85, 2028, 2029) and what its readers refuse go as escapes. */
    bool safe = (code >= 0x20 && code < 0x7F) || (code > 0xA0 && code < 0x2028) ||
                (code > 0x2029 && code < 0xD800) || (length == 1 && code >= 0x80);
    if (code == '"' || code == '\\')
      fprintf(stream, "\\%c", (char)code);
    else if (safe)
      fwrite(text, 1, (size_t)length, stream);
    else
      fprintf(stream, code < 0x100 ? "\\x%02X" : code < 0x10000 ? "\\u%04X" : "\\U%08X", code);
    text += length;
  }
  fputc('"', stream);
}

void fx_value_print(const fx_key *key, const void *field, FILE *stream) {
  char word[FX_SCHEMA_TEXT];
  int index = 0;
  switch (key->kind) {
  case FX_KEY_BOOL:
    fputs(*(const bool *)field ? "true" : "false", stream);
    break;
  case FX_KEY_INT:
    if (key->accepts_auto && *(const int64_t *)field == FX_CONFIG_AUTO)
      fputs("auto", stream);
    else
      fprintf(stream, "%lld", (long long)*(const int64_t *)field);
    break;
  case FX_KEY_FLOAT:
    print_float(*(const double *)field, stream);
    break;
  case FX_KEY_PAIR:
    fputc('[', stream);
    print_float(((const double *)field)[0], stream);
    fputs(", ", stream);
    print_float(((const double *)field)[1], stream);
    fputc(']', stream);
    break;
  case FX_KEY_ENUM:
    memcpy(&index, field, sizeof index);
    fx_words_get(key->values, index, word);
    fputs(word, stream);
    break;
  case FX_KEY_STRING:
    fx_value_print_text(*(char *const *)field, false, stream);
    break;
  case FX_KEY_STRINGS: {
    const fx_config_strings *list = field;
    fputc('[', stream);
    for (int64_t i = 0; i < list->count; i++) {
      if (i) fputs(", ", stream);
      fx_value_print_text(list->items[i], false, stream);
    }
    fputc(']', stream);
    break;
  }
  case FX_KEY_TREE:
    fx_tree_print(*(fx_tree *const *)field, stream);
    break;
  }
}

char *fx_config_print(const fx_config *cfg) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&text, &bytes);
  if (!stream) return NULL;
  for (int s = 0; fx_schema_sections[s]; s++) {
    fprintf(stream, "%s:\n", fx_schema_sections[s]);
    for (int i = 0; i < fx_schema_count; i++) {
      const fx_key *key = &fx_schema[i];
      if (strcmp(key->section, fx_schema_sections[s]) != 0) continue;
      fprintf(stream, "  %s: ", key->name);
      fx_value_print(key, (const char *)cfg + key->offset, stream);
      fputc('\n', stream);
    }
  }
  if (fclose(stream) != 0) {
    free(text);
    return NULL;
  }
  return text;
}
