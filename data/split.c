/* SPDX-License-Identifier: Apache-2.0 */
#include "data/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/shuffle.h"
#include "dynamo_rt/base/memory.h"

enum { MIN_SIDE = 2 }; /* tokens: one input and its target */

/* A decimal fraction is not exact in binary (1 - 0.9 < 0.1): products this close to a whole number are one.
 */
static const double near_whole = 1e-6;

fx_split_rule fx_split_from_name(const char *name) {
  static const char *const names[] = {
#define SPLIT_NAME(id, text) text,
      FX_SPLIT_LIST(SPLIT_NAME)
#undef SPLIT_NAME
  };
  int i = 0;
  while (i < FX_SPLIT_COUNT && strcmp(names[i], name) != 0) i++;
  return (fx_split_rule)i;
}

static void push(fx_documents *side, int64_t offset, int64_t length) {
  if (length == 0) return;
  side->spans[side->count++] = (fx_span){offset, length};
  side->tokens += length;
}

static fx_status by_documents(const fx_corpus *corpus, double fraction, uint64_t seed, fx_documents *train,
                              fx_documents *valid) {
  int64_t n = fx_corpus_documents(corpus), n_valid = 0;
  if (fraction > 0) {
    if (n < 2)
      return fx_error(FX_ERR_DATA,
                      "data.split: documents needs at least 2 documents to put one on either side, but the "
                      "corpus has 1; set data.split: tokens, or data.valid_fraction: 0");
    n_valid = (int64_t)ceil((double)n * fraction - near_whole);
    n_valid = fx_min_i64(fx_max_i64(n_valid, 1), n - 1);
  }
  int64_t *order;
  char *is_valid;
  FX_TRY(fx_calloc(&order, (size_t)n, sizeof *order));
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&is_valid, (size_t)n, 1), free_order);
  fx_shuffle(order, n, seed, "data.split", 0);
  for (int64_t i = n - n_valid; i < n; i++) is_valid[order[i]] = 1;
  for (int64_t i = 0; i < n; i++) {
    fx_span document = fx_corpus_document(corpus, i);
    push(is_valid[i] ? valid : train, document.offset, document.length);
  }
  free(is_valid);
free_order:
  free(order);
  return status;
}

static void by_tokens(const fx_corpus *corpus, double fraction, fx_documents *train, fx_documents *valid) {
  double tokens = (double)fx_corpus_tokens(corpus);
  int64_t n_train = fx_corpus_tokens(corpus);
  if (fraction > 0) n_train = fx_min_i64((int64_t)floor(tokens * (1.0 - fraction) + near_whole), n_train);
  for (int64_t i = 0; i < fx_corpus_documents(corpus); i++) {
    fx_span document = fx_corpus_document(corpus, i);
    int64_t kept = fx_min_i64(fx_max_i64(n_train - document.offset, 0), document.length);
    push(train, document.offset, kept);
    push(valid, document.offset + kept, document.length - kept);
  }
}

fx_status fx_split(const fx_corpus *corpus, fx_split_rule rule, double valid_fraction, uint64_t seed,
                   fx_documents *train, fx_documents *valid) {
  *train = *valid = (fx_documents){0};
  if (!(valid_fraction >= 0 && valid_fraction < 1))
    return fx_error(FX_ERR_CONFIG, "data.valid_fraction is %g; expected at least 0 and below 1",
                    valid_fraction);
  size_t n = (size_t)fx_corpus_documents(corpus);
  fx_documents sides[2] = {{.corpus = corpus}, {.corpus = corpus}};
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&sides[0].spans, n, sizeof(fx_span)), free_sides);
  FX_TRY_GOTO(fx_calloc(&sides[1].spans, n, sizeof(fx_span)), free_sides);
  if (rule == FX_SPLIT_DOCUMENTS)
    FX_TRY_GOTO(by_documents(corpus, valid_fraction, seed, &sides[0], &sides[1]), free_sides);
  else
    by_tokens(corpus, valid_fraction, &sides[0], &sides[1]);
  if (sides[0].tokens < MIN_SIDE || (valid_fraction > 0 && sides[1].tokens < MIN_SIDE)) {
    status = fx_error(FX_ERR_DATA,
                      "data.valid_fraction %g leaves %lld tokens for training and %lld for validation; "
                      "expected at least %d on either side, so use more text or another fraction",
                      valid_fraction, (long long)sides[0].tokens, (long long)sides[1].tokens, MIN_SIDE);
    goto free_sides;
  }
  *train = sides[0];
  *valid = sides[1];
  return FX_OK;
free_sides:
  fx_documents_fini(&sides[0]);
  fx_documents_fini(&sides[1]);
  return status;
}
