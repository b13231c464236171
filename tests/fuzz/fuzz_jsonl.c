/* SPDX-License-Identifier: Apache-2.0 */
/* A text file in each format of the reader. Documents read from JSON lines, written as JSON lines again, read
 * back to the same; a whole file is one document of the same bytes. */
#include <jansson.h>

#include "data/reader.h"
#include "tests/fuzz/fuzz.h"

const char *const fx_fuzz_words[] = {"{\"text\": \"",
                                     "\"}",
                                     "\n",
                                     "\r\n",
                                     "\\u0000",
                                     "\\ud83d\\ude00",
                                     "\\ud800",
                                     "\"text\": 1",
                                     "\"text\"",
                                     "null",
                                     "[]",
                                     "{}",
                                     "1e999",
                                     "\xC3\x28",
                                     "\xEF\xBB\xBF",
                                     "\t ",
                                     "[[[[[[[[[[",
                                     "\"text\": \"a\", \"text\": \"b\"",
                                     "\\\\",
                                     "\"",
                                     "{",
                                     "}",
                                     NULL};

/* Documents one behind the other: length and bytes. */
typedef struct documents {
  char *bytes;
  size_t size, begin; /* begin: of the document being read */
  int64_t count;
  json_t *list;
} documents;

static fx_status append(void *ctx, const char *text, size_t bytes) {
  documents *d = ctx;
  char *grown = realloc(d->bytes, d->size + bytes + 1);
  if (!grown) abort();
  memcpy(grown + d->size, text, bytes);
  d->bytes = grown;
  d->size += bytes;
  return FX_OK;
}

static fx_status end_document(void *ctx, const char *path, int64_t line) {
  documents *d = ctx;
  fuzz_check(path && line >= 0, "a document without a place");
  json_array_append_new(d->list,
                        json_stringn_nocheck(d->bytes ? d->bytes + d->begin : "", d->size - d->begin));
  d->begin = d->size;
  d->count++;
  return FX_OK;
}

static fx_status read_as(const char *path, fx_text_format format, documents *d) {
  char name[512];
  snprintf(name, sizeof name, "%s", path);
  fx_path file = {.path = name, .format = format, .named = true};
  fx_text_sink sink = {append, end_document, d};
  int64_t bytes = -1;
  *d = (documents){.list = json_array()};
  fx_status status = fx_reader_read(&file, &sink, &bytes);
  if (status != FX_OK)
    fuzz_refused(status, FX_ERR_DATA);
  else
    fuzz_check(bytes >= 0, "no size");
  return status;
}

static void release(documents *d) {
  json_decref(d->list);
  free(d->bytes);
}

static void write_again(const char *path, const documents *d) {
  FILE *file = fopen(path, "wb");
  fuzz_check(file != NULL, path);
  for (size_t i = 0; i < json_array_size(d->list); i++) {
    json_t *object = json_object();
    json_object_set(object, "text", json_array_get(d->list, i));
    char *line = json_dumps(object, JSON_COMPACT);
    fuzz_check(line != NULL, "accepted text that is not UTF-8");
    fprintf(file, "%s\n", line);
    free(line);
    json_decref(object);
  }
  fuzz_check(fclose(file) == 0, path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[512], again[512];
  documents d, e;
  fuzz_path(path, "input");
  fuzz_path(again, "again");
  fuzz_write(path, data, size);
  if (read_as(path, FX_TEXT_FILE, &d) == FX_OK)
    fuzz_check(d.count == 1 && d.size == size && (!size || memcmp(d.bytes, data, size) == 0), "another file");
  release(&d);
  read_as(path, FX_TEXT_LINES, &d);
  release(&d);
  if (read_as(path, FX_TEXT_JSONL, &d) == FX_OK) {
    write_again(again, &d);
    fuzz_check(read_as(again, FX_TEXT_JSONL, &e) == FX_OK, "its own JSON lines are refused");
    fuzz_check(d.count == e.count && json_equal(d.list, e.list), "documents change when they are read back");
    release(&e);
  }
  release(&d);
  read_as("/nowhere/at/all", FX_TEXT_JSONL, &d);
  release(&d);
  return 0;
}
