/* SPDX-License-Identifier: Apache-2.0 */
/* YAML text with places, over libyaml's document interface: the whole text is composed first, so a syntax
 * error is reported before any unknown key, and every node keeps the mark where it began. Knows no key. */
#include "core/config/source.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

fx_status fx_config_no_memory(void) {
  return fx_error(FX_ERR_MEMORY, "out of host memory for the configuration");
}

static void place_at(const fx_source *source, size_t line, size_t column, char place[FX_PLACE_BYTES]) {
  if (source->has_lines)
    snprintf(place, FX_PLACE_BYTES, "%.450s:%zu:%zu", source->name, line + 1, column + 1);
  else
    snprintf(place, FX_PLACE_BYTES, "%.500s", source->name);
}

/* libyaml gives encoding errors by byte offset only. */
static yaml_mark_t mark_of_offset(const char *text, size_t bytes, size_t offset) {
  yaml_mark_t mark = {offset, 0, 0};
  for (size_t i = 0; i < bytes && i < offset; i++) {
    if (text[i] == '\n')
      mark.line++, mark.column = 0;
    else
      mark.column++;
  }
  return mark;
}

static fx_status syntax_error(const fx_source *source, const yaml_parser_t *parser, const char *text,
                              size_t bytes) {
  char place[FX_PLACE_BYTES];
  if (parser->error == YAML_MEMORY_ERROR)
    return fx_error(FX_ERR_MEMORY, "out of host memory while reading %s", source->name);
  const char *problem = parser->problem ? parser->problem : "unreadable text";
  if (parser->error == YAML_READER_ERROR) {
    yaml_mark_t mark = mark_of_offset(text, bytes, parser->problem_offset);
    place_at(source, mark.line, mark.column, place);
    return fx_error(FX_ERR_CONFIG, "%s: not valid YAML (%s); save the text as UTF-8", place, problem);
  }
  place_at(source, parser->problem_mark.line, parser->problem_mark.column, place);
  return fx_error(FX_ERR_CONFIG,
                  "%s: not valid YAML (%s%s%s); check indentation, brackets and quotes at this place", place,
                  problem, parser->context ? " " : "", parser->context ? parser->context : "");
}

fx_status fx_source_open(fx_source *source, const char *name, bool has_lines, const char *text,
                         size_t bytes) {
  yaml_parser_t parser;
  yaml_document_t next;
  source->name = name;
  source->has_lines = has_lines;
  source->text = has_lines ? text : NULL;
  source->bytes = bytes;
  if (!yaml_parser_initialize(&parser))
    return fx_error(FX_ERR_MEMORY, "out of host memory while reading %s", name);
  yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
  fx_status status = FX_OK;
  if (!yaml_parser_load(&parser, &source->document)) {
    status = syntax_error(source, &parser, text, bytes);
    goto delete_parser;
  }
  if (!yaml_document_get_root_node(&source->document)) goto delete_parser; /* the end of the stream */
  if (!yaml_parser_load(&parser, &next)) {
    status = syntax_error(source, &parser, text, bytes);
    goto delete_document;
  }
  yaml_node_t *second = yaml_document_get_root_node(&next);
  if (second)
    status = fx_source_error(source, second, "a second YAML document begins here; keep one document a file");
  yaml_document_delete(&next);
delete_document:
  if (status != FX_OK) yaml_document_delete(&source->document);
delete_parser:
  yaml_parser_delete(&parser);
  return status;
}

void fx_source_close(fx_source *source) {
  yaml_document_delete(&source->document);
}

yaml_node_t *fx_source_root(fx_source *source) {
  return yaml_document_get_root_node(&source->document);
}

yaml_node_t *fx_source_node(const fx_source *source, int id) {
  return source->document.nodes.start + id - 1;
}

void fx_source_place(const fx_source *source, const yaml_node_t *node, char place[FX_PLACE_BYTES]) {
  place_at(source, node->start_mark.line, node->start_mark.column, place);
}

fx_status fx_source_error(const fx_source *source, const yaml_node_t *node, const char *format, ...) {
  char place[FX_PLACE_BYTES], sentence[1500];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  fx_source_place(source, node, place);
  return fx_error(FX_ERR_CONFIG, "%s: %s", place, sentence);
}

const char *fx_node_text(const yaml_node_t *node) {
  return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

bool fx_node_is_plain(const yaml_node_t *node) {
  return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

bool fx_node_is_null(const yaml_node_t *node) {
  if (!fx_node_is_plain(node)) return false;
  const char *text = fx_node_text(node);
  return !*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

bool fx_node_is_clean(const yaml_node_t *node) {
  return node->type == YAML_SCALAR_NODE && strlen(fx_node_text(node)) == node->data.scalar.length;
}

void fx_node_describe(const yaml_node_t *node, char text[96]) {
  char quoted[FX_QUOTE_BYTES];
  if (node->type == YAML_SEQUENCE_NODE) {
    snprintf(text, 96, "a list of %d",
             (int)(node->data.sequence.items.top - node->data.sequence.items.start));
  } else if (node->type == YAML_MAPPING_NODE) {
    snprintf(text, 96, "a mapping");
  } else if (fx_node_is_null(node)) {
    snprintf(text, 96, "nothing");
  } else {
    fx_quote(fx_node_text(node), quoted);
    if (fx_node_is_plain(node))
      snprintf(text, 96, "%s", quoted);
    else
      snprintf(text, 96, "the quoted text \"%s\"", quoted);
  }
}

void fx_quote(const char *text, char quoted[FX_QUOTE_BYTES]) {
  size_t used = 0;
  for (; *text && used < FX_QUOTE_BYTES - 5; text++) {
    unsigned char c = (unsigned char)*text;
    quoted[used++] = c < 0x20 || c == 0x7F ? '?' : (char)c;
  }
  if (*text) {
    while (used > 0 && ((unsigned char)quoted[used - 1] & 0xC0) == 0x80) used--; /* a cut UTF-8 sequence */
    if (used > 0 && (unsigned char)quoted[used - 1] >= 0xC0) used--;
    memcpy(quoted + used, "...", 3);
    used += 3;
  }
  quoted[used] = '\0';
}
