/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/corpus.h"
#include "tests/harness.h"

static fx_tokenizer *g_byte;

/* $TMP/name, four live */
static const char *in_temp(const char *name) {
  static char paths[4][512];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", fx_temp_dir(), name);
  return path;
}

static void make_dir(const char *name) {
  mkdir(in_temp(name), 0755);
}

static const char *put(const char *name, const char *text) {
  return fx_temp_file(fx_temp_dir(), name, text);
}

static fx_status load(fx_text_format format, int n, const char *const *patterns, fx_corpus **out) {
  if (!g_byte) CHECK_OK(fx_tokenizer_create("byte", NULL, &g_byte));
  fx_corpus_options options = {.patterns = patterns, .n_patterns = n, .format = format, .tokenizer = g_byte};
  *out = NULL;
  fx_error_clear();
  return fx_corpus_load(&options, out);
}

/* All documents as text, each followed by '|'. */
static const char *text_of(const fx_corpus *corpus) {
  static char text[8192];
  char *to = text;
  for (int64_t d = 0; d < fx_corpus_documents(corpus); d++) {
    fx_span span = fx_corpus_document(corpus, d);
    int32_t tokens[1024];
    if (span.length > 1024 || to + span.length + 2 > text + sizeof text) return "(too long)";
    fx_corpus_read(corpus, span.offset, span.length, tokens);
    for (int64_t i = 0; i < span.length; i++) *to++ = (char)tokens[i];
    *to++ = '|';
  }
  *to = 0;
  return text;
}

static void expect_text(fx_text_format format, int n, const char *const *patterns, const char *expected) {
  fx_corpus *corpus;
  if (CHECK_OK(load(format, n, patterns, &corpus))) CHECK_STR(text_of(corpus), expected);
  fx_corpus_destroy(corpus);
}

static void expect_error(fx_text_format format, const char *pattern, const char *part1, const char *part2) {
  fx_corpus *corpus;
  CHECK_STATUS(load(format, 1, &pattern, &corpus), FX_ERR_DATA);
  CHECK_INT(fx_status_exit_code(FX_ERR_DATA), 3);
  CHECK_HAS(fx_error_text(), part1);
  CHECK_HAS(fx_error_text(), part2);
  CHECK(corpus == NULL);
  fx_corpus_destroy(corpus);
}

static void formats(void) {
  const char *text = put("plain.txt", "one\ntwo\r\n\nx\nthree");
  const char *json = put("docs.jsonl", "{\"text\": \"first\"}\n\n{\"id\": 7, \"text\": \"a\\u00e9\\nb\"}\r\n"
                                       "{\"text\": \"\"}\n{\"text\": \"nul\\u0000!\"}");
  char prefixed[3][600];
  snprintf(prefixed[0], sizeof prefixed[0], "lines:%s", text);
  snprintf(prefixed[1], sizeof prefixed[1], "file:%s", json);
  snprintf(prefixed[2], sizeof prefixed[2], "jsonl:%s", put("odd_name.txt", "{\"text\": \"named\"}\n"));
  expect_text(FX_TEXT_AUTO, 1, &text, "one\ntwo\r\n\nx\nthree|");
  expect_text(FX_TEXT_LINES, 1, &text, "one|two|three|");
  expect_text(FX_TEXT_AUTO, 2, (const char *[]){prefixed[0], text}, "one|two|three|");
  fx_corpus *corpus;
  if (CHECK_OK(load(FX_TEXT_AUTO, 1, &json, &corpus))) {
    fx_corpus_stats stats = fx_corpus_get_stats(corpus);
    CHECK_INT(stats.documents, 3);
    CHECK_INT(stats.short_documents, 1);
    CHECK_INT(stats.tokens, 5 + 5 + 5);
    CHECK_INT(stats.files, 1);
    struct stat info;
    stat(json, &info);
    CHECK_INT(stats.bytes, info.st_size);
    int32_t tokens[15];
    fx_corpus_read(corpus, 0, 15, tokens);
    CHECK_INT(tokens[6], 0xC3);
    CHECK_INT(tokens[7], 0xA9);
    CHECK_INT(tokens[8], '\n');
    CHECK_INT(tokens[13], 0);
  }
  fx_corpus_destroy(corpus);
  if (CHECK_OK(load(FX_TEXT_JSONL, 1, (const char *[]){prefixed[1]}, &corpus)))
    CHECK_INT(fx_corpus_documents(corpus), 1);
  fx_corpus_destroy(corpus);
  expect_text(FX_TEXT_LINES, 1, (const char *[]){prefixed[2]}, "named|");
}

static void patterns_and_order(void) {
  make_dir("tree");
  make_dir("tree/b");
  make_dir("tree/.hidden");
  put("tree/z.txt", "zz");
  put("tree/a.txt", "aa");
  put("tree/B.txt", "BB");
  put("tree/b/c.txt", "cc");
  put("tree/b/d.jsonl", "{\"text\":\"d1\"}\n{\"text\":\"d2\"}\n");
  put("tree/.secret", "no");
  put("tree/.hidden/x.txt", "no");
  put("tree/empty.txt", "");
  CHECK_INT(symlink("..", in_temp("tree/b/loop")), 0);
  char tree[600], slash[600], glob_txt[600], glob_all[600], brackets[600];
  snprintf(tree, sizeof tree, "%s", in_temp("tree"));
  snprintf(slash, sizeof slash, "%s//", in_temp("tree"));
  snprintf(glob_txt, sizeof glob_txt, "%s", in_temp("tree/*.txt"));
  snprintf(glob_all, sizeof glob_all, "%s", in_temp("tree/*"));
  snprintf(brackets, sizeof brackets, "%s", put("odd[1].txt", "literal"));
  expect_text(FX_TEXT_AUTO, 1, (const char *[]){tree}, "BB|aa|cc|d1|d2|zz|");
  expect_text(FX_TEXT_AUTO, 1, (const char *[]){slash}, "BB|aa|cc|d1|d2|zz|");
  expect_text(FX_TEXT_AUTO, 1, (const char *[]){glob_txt}, "BB|aa|zz|");
  expect_text(FX_TEXT_AUTO, 1, (const char *[]){glob_all}, "BB|aa|cc|d1|d2|zz|");
  expect_text(FX_TEXT_AUTO, 1, (const char *[]){brackets}, "literal|");
  /* the order of patterns is kept; a file seen before is not read again */
  char z[600];
  snprintf(z, sizeof z, "%s", in_temp("tree/z.txt"));
  fx_corpus *corpus;
  if (CHECK_OK(load(FX_TEXT_AUTO, 3, (const char *[]){z, glob_txt, tree}, &corpus))) {
    CHECK_STR(text_of(corpus), "zz|BB|aa|cc|d1|d2|");
    CHECK_INT(fx_corpus_get_stats(corpus).duplicate_files, 5); /* z by the glob, then all four by the walk */
    CHECK_INT(fx_corpus_get_stats(corpus).files, 6);
    CHECK_INT(fx_corpus_get_stats(corpus).short_documents, 1);
  }
  fx_corpus_destroy(corpus);
}

static void path_errors(void) {
  make_dir("void");
  make_dir("void/inner");
  put("void/.only_hidden", "text");
  char pattern[600];
  expect_error(FX_TEXT_AUTO, in_temp("missing.txt"), "missing.txt", "does not exist");
  snprintf(pattern, sizeof pattern, "%s/*.nothing", fx_temp_dir());
  expect_error(FX_TEXT_AUTO, pattern, "*.nothing", "no file matches");
  expect_error(FX_TEXT_AUTO, in_temp("void"), "void", "holds no files");
  snprintf(pattern, sizeof pattern, "%s/voi*", fx_temp_dir());
  expect_error(FX_TEXT_AUTO, pattern, "voi*", "directories without files");
  expect_error(FX_TEXT_AUTO, "/dev/null", "/dev/null", "no regular file");
  make_dir("dangling");
  CHECK_INT(symlink("nowhere", in_temp("dangling/link.txt")), 0);
  expect_error(FX_TEXT_AUTO, in_temp("dangling"), "dangling/link.txt", "No such file");
  fx_corpus *corpus;
  CHECK_STATUS(load(FX_TEXT_AUTO, 1, (const char *[]){"lines:"}, &corpus), FX_ERR_CONFIG);
  CHECK_STATUS(load(FX_TEXT_AUTO, 0, NULL, &corpus), FX_ERR_CONFIG);
}

static void file_errors(void) {
  expect_error(FX_TEXT_AUTO, put("empty.txt", ""), "empty.txt is empty", "expected text");
  expect_error(FX_TEXT_AUTO, put("one.txt", "x"), "corpus is empty", "one.txt");
  expect_error(FX_TEXT_LINES, put("short.txt", "a\nb\n\n"), "corpus is empty", "short.txt");
  char pattern[600];
  make_dir("empties");
  put("empties/a.txt", "");
  snprintf(pattern, sizeof pattern, "%s/*.txt", in_temp("empties"));
  expect_error(FX_TEXT_AUTO, pattern, "corpus is empty", "empties/a.txt");
  const char *binary = in_temp("binary.txt");
  FILE *file = fopen(binary, "wb");
  for (int i = 0; i < 65535; i++) fputc('x', file);
  fputc(0, file);
  fclose(file);
  expect_error(FX_TEXT_AUTO, binary, "binary.txt looks binary", "offset 65535");
  expect_error(FX_TEXT_LINES, binary, "binary.txt looks binary", "offset 65535");
  /* the 64 KiB are a probe, not a scan */
  file = fopen(binary, "wb");
  for (int i = 0; i < 65536; i++) fputc('x', file);
  fputc(0, file);
  fclose(file);
  fx_corpus *corpus;
  CHECK_OK(load(FX_TEXT_AUTO, 1, &binary, &corpus));
  fx_corpus_destroy(corpus);
  if (geteuid() == 0) CHECK_INT(seteuid(65534), 0);
  const char *locked = in_temp("one.txt");
  if (geteuid() != 65534) chmod(locked, 0);
  expect_error(FX_TEXT_AUTO, locked, "one.txt", "Permission denied");
  if (geteuid() == 65534) CHECK_INT(seteuid(0), 0);
}

static void jsonl_errors(void) {
  expect_error(FX_TEXT_AUTO, put("bad.jsonl", "{\"text\":\"ok\"}\n\n{\"text\": \n"),
               "bad.jsonl:3:", "not valid JSON");
  expect_error(FX_TEXT_AUTO, put("tail.jsonl", "{\"text\":\"ok\"} extra\n"),
               "tail.jsonl:1:", "not valid JSON");
  expect_error(FX_TEXT_AUTO, put("key.jsonl", "{\"text\":\"ok\"}\n{\"content\":\"x\"}\n"),
               "key.jsonl:2:", "no key \"text\"");
  expect_error(FX_TEXT_AUTO, put("type.jsonl", "{\"text\":[1]}\n"), "type.jsonl:1:", "is not a string");
  expect_error(FX_TEXT_AUTO, put("array.jsonl", "[\"text\"]\n"), "array.jsonl:1:", "not a JSON object");
  expect_error(FX_TEXT_AUTO, put("utf8.jsonl", "{\"text\":\"\xff\xfe\"}\n"),
               "utf8.jsonl:1:", "not valid JSON");
  expect_error(FX_TEXT_JSONL, put("lines.txt", "hello\n"), "lines.txt:1:", "not valid JSON");
}

/* A file larger than every buffer, with a line larger than them too. */
static void large_file(void) {
  enum { SIZE = 3 * (1 << 20) + 12345 };
  char *text = malloc(SIZE + 1);
  for (int i = 0; i < SIZE; i++) text[i] = (char)('a' + (i * 31 + i / 977) % 26);
  text[SIZE] = 0;
  text[SIZE - 11] = '\n';
  const char *path = put("large.txt", text);
  fx_corpus *corpus;
  int32_t *tokens = malloc(SIZE * sizeof *tokens);
  if (CHECK_OK(load(FX_TEXT_AUTO, 1, &path, &corpus)) && CHECK_INT(fx_corpus_tokens(corpus), SIZE)) {
    fx_corpus_read(corpus, 0, SIZE, tokens);
    int64_t wrong = 0;
    for (int i = 0; i < SIZE; i++) wrong += tokens[i] != (unsigned char)text[i];
    CHECK_INT(wrong, 0);
  }
  fx_corpus_destroy(corpus);
  if (CHECK_OK(load(FX_TEXT_LINES, 1, &path, &corpus))) {
    CHECK_INT(fx_corpus_documents(corpus), 2);
    CHECK_INT(fx_corpus_document(corpus, 0).length, SIZE - 11);
    CHECK_INT(fx_corpus_document(corpus, 1).length, 10);
  }
  fx_corpus_destroy(corpus);
  free(tokens);
  free(text);
}

/* Each store width holds its largest token, and the hash sees tokens and document boundaries. */
static void widths_and_hash(void) {
  const int32_t vocabs[] = {256, 257, 65536, 65537, INT32_MAX};
  int64_t lengths[2] = {2, 1};
  for (int v = 0; v < 5; v++) {
    int32_t tokens[3] = {0, vocabs[v] - 1, 1}, back[3];
    fx_corpus *corpus = NULL;
    if (!CHECK_OK(fx_corpus_from_tokens(tokens, lengths, 2, vocabs[v], &corpus))) continue;
    fx_corpus_read(corpus, 0, 3, back);
    CHECK(memcmp(tokens, back, sizeof tokens) == 0);
    fx_corpus_read(corpus, 1, 1, back);
    CHECK_INT(back[0], vocabs[v] - 1);
    fx_corpus_destroy(corpus);
  }
  int32_t a[3] = {1, 2, 3}, b[3] = {1, 2, 4};
  int64_t other[2] = {1, 2};
  fx_corpus *same[2], *tokens_differ, *lengths_differ;
  CHECK_OK(fx_corpus_from_tokens(a, lengths, 2, 256, &same[0]));
  CHECK_OK(fx_corpus_from_tokens(a, lengths, 2, 256, &same[1]));
  CHECK_OK(fx_corpus_from_tokens(b, lengths, 2, 256, &tokens_differ));
  CHECK_OK(fx_corpus_from_tokens(a, other, 2, 256, &lengths_differ));
  uint64_t h = fx_corpus_hash(same[0]).low;
  CHECK(fx_corpus_hash(same[1]).low == h);
  CHECK(fx_corpus_hash(tokens_differ).low != h);
  CHECK(fx_corpus_hash(lengths_differ).low != h);
  fx_corpus_destroy(same[0]);
  fx_corpus_destroy(same[1]);
  fx_corpus_destroy(tokens_differ);
  fx_corpus_destroy(lengths_differ);
  fx_corpus *none = NULL;
  CHECK_STATUS(fx_corpus_from_tokens(a, lengths, 2, 3, &none), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "is 3; expected 0 to 2");
  CHECK_STATUS(fx_corpus_from_tokens(a, lengths, 0, 3, &none), FX_ERR_DATA);
  CHECK(none == NULL);
  fx_tokenizer_destroy(g_byte);
}

/* A tokenizer that must see whole documents: two bytes become one id when they are equal (300 + byte), the
 * end of a document is 299. Runs that a buffer cuts would show. */
static fx_status pair_create(const char *path, void **state, int32_t *vocab_size, int32_t *end_of_document) {
  (void)path;
  *state = NULL;
  *vocab_size = 556;
  *end_of_document = 299;
  return FX_OK;
}
static void pair_destroy(void *state) {
  (void)state;
}
static int64_t pair_max_tokens(const void *state, size_t bytes) {
  (void)state;
  return (int64_t)bytes;
}
static fx_status pair_encode(const void *state, const char *text, size_t bytes, int32_t *tokens,
                             int64_t *count) {
  (void)state;
  int64_t n = 0;
  for (size_t i = 0; i < bytes; i++) {
    bool pair = i + 1 < bytes && text[i] == text[i + 1];
    tokens[n++] = (unsigned char)text[i] + (pair ? 300 : 0);
    i += pair;
  }
  *count = n;
  return FX_OK;
}

static void whole_document_tokenizer(void) {
  static const fx_tokenizer_kind pair = {"pair",          false,       pair_create, pair_destroy,
                                         pair_max_tokens, pair_encode, NULL};
  enum { LENGTH = (1 << 20) * 2 + 5 }; /* 'x', then pairs of 'z' across both ends of a buffer */
  char *text = malloc(LENGTH + 1);
  memset(text, 'z', LENGTH);
  text[0] = 'x';
  text[LENGTH] = 0;
  const char *files[] = {put("pairs_a.txt", text), put("pairs_b.txt", "aab"), put("pairs_c.txt", "")};
  char glob_pattern[600];
  snprintf(glob_pattern, sizeof glob_pattern, "%s", in_temp("pairs_*.txt"));
  free(text);
  CHECK(files[2] != NULL);
  fx_tokenizer *tokenizer = NULL;
  fx_corpus *corpus = NULL;
  const char *patterns[] = {glob_pattern};
  CHECK_OK(fx_tokenizer_create_from(&pair, NULL, &tokenizer));
  fx_corpus_options options = {.patterns = patterns, .n_patterns = 1, .tokenizer = tokenizer};
  if (CHECK_OK(fx_corpus_load(&options, &corpus))) {
    CHECK_INT(fx_corpus_documents(corpus), 2);
    CHECK_INT(fx_corpus_get_stats(corpus).short_documents, 1); /* an empty file gets no end token either */
    fx_span first = fx_corpus_document(corpus, 0), second = fx_corpus_document(corpus, 1);
    CHECK_INT(first.length, 1 + (LENGTH - 1) / 2 + 1);
    CHECK_INT(second.length, 3);
    int32_t tail[5];
    fx_corpus_read(corpus, second.offset - 2, 5, tail);
    const int32_t expected[5] = {300 + 'z', 299, 300 + 'a', 'b', 299};
    CHECK(memcmp(tail, expected, sizeof expected) == 0);
  }
  fx_corpus_destroy(corpus);
  fx_tokenizer_destroy(tokenizer);
}

static const fx_test tests[] = {
    {"formats: file, lines, jsonl, prefixes", formats},
    {"patterns: order, hidden files, links, duplicates", patterns_and_order},
    {"errors of paths", path_errors},
    {"errors of files", file_errors},
    {"errors of jsonl name file and line", jsonl_errors},
    {"files larger than the buffers", large_file},
    {"a tokenizer that needs whole documents, with an end token", whole_document_tokenizer},
    {"store widths and the content hash", widths_and_hash}};
FX_TEST_MAIN("corpus", tests)
