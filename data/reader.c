/* SPDX-License-Identifier: Apache-2.0 */
#include "data/reader.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "dynamo_rt/base/memory.h"

enum { CHUNK = 1 << 20, BINARY_PROBE = 64 << 10 };

typedef fx_status (*read_fn)(FILE *stream, const char *path, const fx_text_sink *sink);

static fx_status cannot_read(const char *path) {
  return fx_error(FX_ERR_DATA, "cannot read %s (%s); check that it is a readable text file", path,
                  strerror(errno));
}

static fx_status read_file(FILE *stream, const char *path, const fx_text_sink *sink) {
  char *chunk;
  FX_TRY(fx_calloc(&chunk, CHUNK, 1));
  fx_status status = FX_OK;
  size_t got = CHUNK;
  while (status == FX_OK && got == CHUNK) {
    got = fread(chunk, 1, CHUNK, stream);
    if (ferror(stream))
      status = cannot_read(path);
    else if (got)
      status = sink->append(sink->ctx, chunk, got);
  }
  free(chunk);
  return status == FX_OK ? sink->end_document(sink->ctx, path, 0) : status;
}

/* The document is the line without its "\n" or "\r\n". */
static fx_status lines_line(const char *line, size_t length, const char *path, int64_t number,
                            const fx_text_sink *sink) {
  if (length) FX_TRY(sink->append(sink->ctx, line, length));
  return sink->end_document(sink->ctx, path, number);
}

static fx_status jsonl_line(const char *line, size_t length, const char *path, int64_t number,
                            const fx_text_sink *sink) {
  if (strspn(line, " \t\r") == length) return FX_OK;
  json_error_t error;
  json_t *object = json_loadb(line, length, JSON_ALLOW_NUL, &error);
  if (!object)
    return fx_error(FX_ERR_DATA,
                    "%s:%lld: not valid JSON at column %d (%s); expected one object a line, such as "
                    "{\"text\": \"...\"}",
                    path, (long long)number, error.column, error.text);
  fx_status status;
  json_t *text = json_object_get(object, "text");
  if (!json_is_string(text)) {
    status = fx_error(FX_ERR_DATA, "%s:%lld: %s; expected one object a line, such as {\"text\": \"...\"}",
                      path, (long long)number,
                      !json_is_object(object) ? "not a JSON object"
                      : text                  ? "the value of \"text\" is not a string"
                                              : "no key \"text\"");
  } else {
    size_t bytes = json_string_length(text);
    status = bytes ? sink->append(sink->ctx, json_string_value(text), bytes) : FX_OK;
    if (status == FX_OK) status = sink->end_document(sink->ctx, path, number);
  }
  json_decref(object);
  return status;
}

static fx_status each_line(FILE *stream, const char *path, const fx_text_sink *sink,
                           fx_status (*line_fn)(const char *, size_t, const char *, int64_t,
                                                const fx_text_sink *)) {
  char *line = NULL;
  size_t capacity = 0;
  fx_status status = FX_OK;
  for (int64_t number = 1; status == FX_OK; number++) {
    errno = 0;
    ssize_t length = getline(&line, &capacity, stream);
    if (length < 0) {
      if (!feof(stream)) status = cannot_read(path);
      break;
    }
    if (length && line[length - 1] == '\n') length--;
    if (length && line[length - 1] == '\r') length--;
    line[length] = 0;
    status = line_fn(line, (size_t)length, path, number, sink);
  }
  free(line);
  return status;
}

static fx_status read_lines(FILE *stream, const char *path, const fx_text_sink *sink) {
  return each_line(stream, path, sink, lines_line);
}

static fx_status read_jsonl(FILE *stream, const char *path, const fx_text_sink *sink) {
  return each_line(stream, path, sink, jsonl_line);
}

/* A new text format is a row of FX_TEXT_FORMAT_LIST and one here. */
static const read_fn readers[FX_TEXT_FORMAT_COUNT] = {
    [FX_TEXT_FILE] = read_file, [FX_TEXT_LINES] = read_lines, [FX_TEXT_JSONL] = read_jsonl};

/* Text has no NUL byte; archives, images, arrays and UTF-16 have one early. */
static fx_status check_text(FILE *stream, const char *path) {
  char *probe;
  FX_TRY(fx_calloc(&probe, BINARY_PROBE, 1));
  size_t got = fread(probe, 1, BINARY_PROBE, stream);
  fx_status status = FX_OK;
  const char *nul = memchr(probe, 0, got);
  if (ferror(stream))
    status = cannot_read(path);
  else if (nul)
    status =
        fx_error(FX_ERR_DATA,
                 "%s looks binary: a NUL byte at offset %lld; expected UTF-8 text, so leave the file out "
                 "of the corpus or convert it",
                 path, (long long)(nul - probe));
  else if (fseeko(stream, 0, SEEK_SET) != 0)
    status = cannot_read(path);
  free(probe);
  return status;
}

fx_status fx_reader_read(const fx_path *file, const fx_text_sink *sink, int64_t *bytes) {
  FX_ASSERT(file->format < FX_TEXT_FORMAT_COUNT && readers[file->format]);
  FILE *stream = fopen(file->path, "rbe");
  if (!stream) return cannot_read(file->path);
  fx_status status = check_text(stream, file->path);
  if (status == FX_OK) status = readers[file->format](stream, file->path, sink);
  if (status == FX_OK) *bytes = (int64_t)ftello(stream);
  fclose(stream);
  return status;
}
