/* SPDX-License-Identifier: Apache-2.0 */
/* Corpora whose every token is unique, so that a pair (input, target) tells where it came from. */
#ifndef FX_TESTS_DATA_FIXTURE_H
#define FX_TESTS_DATA_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "data/batch.h"
#include "data/sampler.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

enum { FIXTURE_DOCUMENTS = 7 };
static const int64_t fixture_lengths[FIXTURE_DOCUMENTS] = {127, 1, 1000, 3, 129, 2, 128};

typedef struct fixture {
  fx_corpus *corpus;
  fx_documents documents;
  int64_t total;
  char *is_last; /* [total + 1]: token i (from 1) ends its document */
} fixture;

/* Token i of the store (from 0) is i + 1, so that 0 is padding only. */
static inline fixture fixture_make(const int64_t *lengths, int64_t count) {
  fixture f = {0};
  for (int64_t d = 0; d < count; d++) f.total += lengths[d];
  int32_t *tokens = calloc((size_t)f.total, sizeof *tokens);
  f.is_last = calloc((size_t)f.total + 1, 1);
  for (int64_t i = 0; i < f.total; i++) tokens[i] = (int32_t)i + 1;
  int64_t end = 0;
  for (int64_t d = 0; d < count; d++) {
    end += lengths[d];
    f.is_last[end] = 1;
  }
  CHECK_OK(fx_corpus_from_tokens(tokens, lengths, count, (int32_t)f.total + 1, &f.corpus));
  CHECK_OK(fx_documents_all(f.corpus, &f.documents));
  free(tokens);
  return f;
}

static inline void fixture_free(fixture *f) {
  fx_documents_fini(&f->documents);
  fx_corpus_destroy(f->corpus);
  free(f->is_last);
}

/* One sample in memory of its own. */
typedef struct sample {
  int32_t *block; /* [5, T] */
  fx_sample_view view;
  int64_t valid;
} sample;

static inline sample sample_take(fx_sampler *sampler, int64_t ordinal) {
  int64_t T = fx_sampler_seq_length(sampler);
  sample s;
  s.block = malloc((size_t)(5 * T) * sizeof(int32_t));
  memset(s.block, 0x5A, (size_t)(5 * T) * sizeof(int32_t)); /* poison */
  s.view = (fx_sample_view){s.block, s.block + T, s.block + 2 * T, s.block + 3 * T, s.block + 4 * T};
  s.valid = fx_sampler_sample(sampler, ordinal, &s.view);
  return s;
}

static inline fx_sampler *sampler_make(const fx_documents *documents, int64_t T, fx_packing packing,
                                       bool shuffle, bool rotate, uint64_t seed) {
  fx_sampler_options options = {
      .seq_length = T, .packing = packing, .shuffle = shuffle, .rotate = rotate, .seed = seed};
  fx_sampler *sampler = NULL;
  CHECK_OK(fx_sampler_create(documents, &options, &sampler));
  return sampler;
}

/* A copy of everything that fill wrote, to compare batches after they went back to their ring. */
static inline int32_t *batch_copy(const fx_batch *batch) {
  size_t n = (size_t)(batch->rows * batch->seq_length), bytes = n * sizeof(int32_t);
  int32_t *copy = malloc(5 * bytes);
  const int32_t *parts[] = {batch->tokens, batch->targets, batch->positions, batch->doc_start,
                            batch->doc_end};
  for (size_t i = 0; i < 5; i++) memcpy(copy + i * n, parts[i], bytes);
  return copy;
}

static inline bool batches_equal(const fx_batch *a, const fx_batch *b) {
  int32_t *x = batch_copy(a), *y = batch_copy(b);
  size_t bytes = 5 * (size_t)(a->rows * a->seq_length) * sizeof(int32_t);
  bool equal = memcmp(x, y, bytes) == 0 && a->valid == b->valid && a->global_valid == b->global_valid &&
               a->consumed_samples == b->consumed_samples && a->consumed_end == b->consumed_end &&
               a->micro == b->micro && a->n_micro == b->n_micro &&
               memcmp(a->sample_ordinal, b->sample_ordinal, (size_t)a->rows * sizeof(int64_t)) == 0;
  free(x);
  free(y);
  return equal;
}

#endif
