/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/split.h"
#include "tests/data/fixture.h"

static fx_status split(const fixture *f, fx_split_rule rule, double fraction, uint64_t seed,
                       fx_documents *train, fx_documents *valid) {
  return fx_split(f->corpus, rule, fraction, seed, train, valid);
}

/* Every token is on one side, pieces are in corpus order on either side. */
static void check_partition(const fixture *f, const fx_documents *train, const fx_documents *valid) {
  char *seen = calloc((size_t)f->total, 1);
  int64_t twice = 0, total = 0;
  for (int side = 0; side < 2; side++) {
    const fx_documents *d = side ? valid : train;
    int64_t tokens = 0, last = -1;
    for (int64_t i = 0; i < d->count; i++) {
      CHECK(d->spans[i].offset > last && d->spans[i].length > 0);
      last = d->spans[i].offset;
      tokens += d->spans[i].length;
      for (int64_t k = 0; k < d->spans[i].length; k++) twice += seen[d->spans[i].offset + k]++ != 0;
    }
    CHECK_INT(d->tokens, tokens);
    total += tokens;
  }
  CHECK_INT(twice, 0);
  CHECK_INT(total, f->total);
  free(seen);
}

static void by_documents(void) {
  int64_t lengths[50];
  for (int i = 0; i < 50; i++) lengths[i] = 2 + i % 5;
  fixture f = fixture_make(lengths, 50);
  const struct {
    double fraction;
    int64_t valid;
  } cases[] = {{0.1, 5}, {0.11, 6}, {0.001, 1}, {0.999, 49}, {0.14, 7}, {0, 0}};
  for (int c = 0; c < 6; c++) {
    fx_documents train, valid;
    if (!CHECK_OK(split(&f, FX_SPLIT_DOCUMENTS, cases[c].fraction, 5, &train, &valid))) continue;
    CHECK_INT(valid.count, cases[c].valid);
    CHECK_INT(train.count, 50 - cases[c].valid);
    check_partition(&f, &train, &valid);
    fx_documents_fini(&train);
    fx_documents_fini(&valid);
  }
  /* the same seed chooses the same documents, another one others; and not simply the last ones */
  fx_documents train[3], valid[3];
  for (int i = 0; i < 3; i++)
    CHECK_OK(split(&f, FX_SPLIT_DOCUMENTS, 0.5, i == 2 ? 6 : 5, &train[i], &valid[i]));
  CHECK(memcmp(valid[0].spans, valid[1].spans, 25 * sizeof(fx_span)) == 0);
  CHECK(memcmp(valid[0].spans, valid[2].spans, 25 * sizeof(fx_span)) != 0);
  CHECK(valid[0].spans[0].offset < fx_corpus_document(f.corpus, 25).offset);
  for (int i = 0; i < 3; i++) fx_documents_fini(&train[i]), fx_documents_fini(&valid[i]);
  fixture_free(&f);
}

static void by_tokens(void) {
  fixture f = fixture_make(fixture_lengths, FIXTURE_DOCUMENTS); /* 1390 tokens */
  const struct {
    double fraction;
    int64_t n_train;
  } cases[] = {{0.1, 1251}, {0.9, 139}, {0.5, 695}, {0.0015, 1387}, {0, 1390}, {262.0 / 1390.0, 1128}};
  for (int c = 0; c < 6; c++) {
    fx_documents train, valid;
    if (!CHECK_OK(split(&f, FX_SPLIT_TOKENS, cases[c].fraction, 0, &train, &valid))) continue;
    CHECK_INT(train.tokens, cases[c].n_train);
    CHECK_INT(valid.tokens, 1390 - cases[c].n_train);
    check_partition(&f, &train, &valid);
    if (train.count && valid.count) CHECK_INT(valid.spans[0].offset, cases[c].n_train);
    fx_documents_fini(&train);
    fx_documents_fini(&valid);
  }
  fixture_free(&f);
  /* one document of 1,115,394 bytes (tiny Shakespeare): the first 90% are 1,003,854 */
  int64_t length = 1115394;
  f = fixture_make(&length, 1);
  fx_documents train, valid;
  CHECK_OK(split(&f, FX_SPLIT_TOKENS, 0.1, 0, &train, &valid));
  CHECK_INT(train.tokens, 1003854);
  CHECK_INT(valid.tokens, 111540);
  fx_documents_fini(&train);
  fx_documents_fini(&valid);
  fixture_free(&f);
}

static void errors(void) {
  int64_t lengths[2] = {5, 1};
  fixture one = fixture_make(lengths, 1), two = fixture_make(lengths, 2);
  fx_documents train, valid;
  CHECK_STATUS(split(&one, FX_SPLIT_DOCUMENTS, 0.1, 0, &train, &valid), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "data.split: tokens");
  CHECK(train.spans == NULL && valid.spans == NULL);
  CHECK_STATUS(split(&two, FX_SPLIT_DOCUMENTS, 0.1, 0, &train, &valid), FX_ERR_DATA); /* a side of 1 token */
  CHECK_STATUS(split(&one, FX_SPLIT_TOKENS, 0.1, 0, &train, &valid), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "4 tokens for training and 1 for validation");
  CHECK_STATUS(split(&one, FX_SPLIT_TOKENS, 1.0, 0, &train, &valid), FX_ERR_CONFIG);
  CHECK_STATUS(split(&one, FX_SPLIT_TOKENS, -0.1, 0, &train, &valid), FX_ERR_CONFIG);
  CHECK_STATUS(split(&one, FX_SPLIT_TOKENS, NAN, 0, &train, &valid), FX_ERR_CONFIG);
  CHECK_INT(fx_split_from_name("tokens"), FX_SPLIT_TOKENS);
  CHECK_INT(fx_split_from_name("document"), FX_SPLIT_COUNT);
  fixture_free(&one);
  fixture_free(&two);
}

static const fx_test tests[] = {{"documents: counts, partition, seed", by_documents},
                                {"tokens: exact counts, a document on either side", by_tokens},
                                {"errors", errors}};
FX_TEST_MAIN("split", tests)
