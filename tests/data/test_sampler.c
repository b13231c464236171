/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "data/sampler.h"
#include "data/shuffle.h"
#include "tests/data/fixture.h"

/* The structure of one sample against its contract, and the tally of its pairs. */
static void check_sample(const fixture *f, const sample *s, int64_t T, fx_packing packing, int64_t real,
                         char *inputs, char *targets, int64_t *last_targets) {
  int64_t valid = 0, wrong = 0, piece = 0;
  const fx_sample_view *v = &s->view;
  for (int64_t t = 0; t < T; t++) {
    bool padding = t >= real, first = t == 0 || t == real;
    int64_t token = v->tokens[t], target = v->targets[t];
    if (padding) {
      wrong += token != 0 || target != -1;
    } else {
      wrong += token < 1 || token > f->total || inputs[token]++ != 0;
      if (packing == FX_PACKING_DOCUMENTS) {
        wrong += target != (f->is_last[token] ? -1 : token + 1);
        first |= t > 0 && f->is_last[v->tokens[t - 1]];
      } else {
        if (target == -1) (*last_targets)++;
        if (t + 1 < real && target != -1) wrong += target != v->tokens[t + 1];
        if (!f->is_last[token]) wrong += target != token + 1;
      }
      if (target != -1) wrong += targets[target]++ != 0;
    }
    valid += target != -1;
    /* a piece: one start, one end, positions from 0; its end is where the next begins */
    if (first) {
      if (t) wrong += v->doc_end[piece] != t;
      piece = t;
    }
    wrong += v->doc_start[t] != piece || v->positions[t] != t - piece || v->doc_end[t] != v->doc_end[piece];
  }
  wrong += v->doc_end[piece] != T;
  CHECK_MSG(wrong == 0, "T=%lld packing=%d: %lld faults in a sample", (long long)T, packing,
            (long long)wrong);
  CHECK_INT(s->valid, valid);
}

static void check_epoch(const fixture *f, fx_sampler *sampler, int64_t T, fx_packing packing, int64_t epoch) {
  int64_t n = fx_sampler_samples_per_epoch(sampler), last_targets = 0, short_samples = 0, seen_targets = 0;
  CHECK_INT(n, (f->total + T - 1) / T);
  char *inputs = calloc((size_t)f->total + 1, 1), *targets = calloc((size_t)f->total + 1, 1);
  for (int64_t i = 0; i < n; i++) {
    sample s = sample_take(sampler, epoch * n + i);
    int64_t real = T;
    while (real > 0 && s.view.tokens[real - 1] == 0) real--;
    if (real < T) {
      short_samples++;
      CHECK_INT(real, f->total % T);
    }
    check_sample(f, &s, T, packing, real, inputs, targets, &last_targets);
    CHECK_INT(fx_sampler_valid(sampler, epoch * n + i), s.valid);
    free(s.block);
  }
  CHECK_INT(short_samples, f->total % T != 0);
  for (int64_t i = 1; i <= f->total; i++) {
    if (!inputs[i]) CHECK_MSG(false, "token %lld is no input in the epoch", (long long)i);
    seen_targets += targets[i];
  }
  if (packing == FX_PACKING_NONE) {
    CHECK_INT(last_targets, 1);
    CHECK_INT(seen_targets, f->total - 1);
  } else {
    CHECK_INT(seen_targets, f->total - f->documents.count);
  }
  free(inputs);
  free(targets);
}

/* Over an epoch every token is an input once, with its true target, whatever the lengths and the cut. */
static void coverage(void) {
  const int64_t seq_lengths[] = {64, 128, 1, 7, 1390, 695, 5000};
  const int64_t ones[3] = {1, 1, 1};
  fixture fixtures[] = {fixture_make(fixture_lengths, FIXTURE_DOCUMENTS),
                        fixture_make(fixture_lengths + 2, 1), fixture_make(ones, 3)};
  for (int x = 0; x < 3; x++)
    for (int c = 0; c < 7; c++)
      for (int packing = 0; packing < FX_PACKING_COUNT; packing++)
        for (int mode = 0; mode < 3; mode++) {
          fx_sampler *sampler = sampler_make(&fixtures[x].documents, seq_lengths[c], (fx_packing)packing,
                                             mode > 0, mode > 1, 42);
          for (int64_t epoch = 0; epoch < 4; epoch++)
            check_epoch(&fixtures[x], sampler, seq_lengths[c], (fx_packing)packing, epoch);
          fx_sampler_destroy(sampler);
        }
  for (int x = 0; x < 3; x++) fixture_free(&fixtures[x]);
}

/* Documents 3, 1, 6 and T = 4, by hand. */
static void worked_example(void) {
  const int64_t lengths[3] = {3, 1, 6};
  fixture f = fixture_make(lengths, 3);
  fx_sampler *sampler = sampler_make(&f.documents, 4, FX_PACKING_DOCUMENTS, false, false, 0);
  const int32_t expected[3][5][4] = {
      {{1, 2, 3, 4}, {2, 3, -1, -1}, {0, 1, 2, 0}, {0, 0, 0, 3}, {3, 3, 3, 4}},
      {{5, 6, 7, 8}, {6, 7, 8, 9}, {0, 1, 2, 3}, {0, 0, 0, 0}, {4, 4, 4, 4}},
      {{9, 10, 0, 0}, {10, -1, -1, -1}, {0, 1, 0, 1}, {0, 0, 2, 2}, {2, 2, 4, 4}}};
  const int64_t valid[3] = {2, 4, 1};
  for (int i = 0; i < 6; i++) { /* the second epoch equals the first: evaluation */
    sample s = sample_take(sampler, i);
    CHECK(memcmp(s.block, expected[i % 3], sizeof expected[0]) == 0);
    CHECK_INT(s.valid, valid[i % 3]);
    free(s.block);
  }
  fx_sampler_destroy(sampler);
  sampler = sampler_make(&f.documents, 4, FX_PACKING_NONE, false, false, 0);
  const int32_t plain[3][5][4] = {
      {{1, 2, 3, 4}, {2, 3, 4, 5}, {0, 1, 2, 3}, {0, 0, 0, 0}, {4, 4, 4, 4}},
      {{5, 6, 7, 8}, {6, 7, 8, 9}, {0, 1, 2, 3}, {0, 0, 0, 0}, {4, 4, 4, 4}},
      {{9, 10, 0, 0}, {10, -1, -1, -1}, {0, 1, 0, 1}, {0, 0, 2, 2}, {2, 2, 4, 4}}};
  for (int i = 0; i < 3; i++) {
    sample s = sample_take(sampler, i);
    CHECK(memcmp(s.block, plain[i], sizeof plain[0]) == 0);
    free(s.block);
  }
  fx_sampler_destroy(sampler);
  fixture_free(&f);
}

static void shuffles(void) {
  enum { N = 1000 };
  int64_t orders[4][N];
  fx_shuffle(orders[0], N, 1, "data.shuffle", 0);
  fx_shuffle(orders[1], N, 1, "data.shuffle", 1);
  fx_shuffle(orders[2], N, 2, "data.shuffle", 0);
  fx_shuffle(orders[3], N, 1, "data.other", 0);
  for (int a = 0; a < 4; a++) {
    char seen[N] = {0};
    int64_t twice = 0, fixed = 0;
    for (int i = 0; i < N; i++) {
      if (!CHECK(orders[a][i] >= 0 && orders[a][i] < N)) return;
      twice += seen[orders[a][i]]++ != 0;
      fixed += orders[a][i] == i;
    }
    CHECK_INT(twice, 0);
    CHECK(fixed < 10); /* one is expected; 10 or more has probability 1e-7 */
    for (int b = 0; b < a; b++) {
      int64_t equal = 0;
      for (int i = 0; i < N; i++) equal += orders[a][i] == orders[b][i];
      CHECK(equal < 10);
    }
  }
  /* uniform: the six orders of three come equally often (chi-square, 5 degrees: 30.9 has p = 1e-5) */
  int counts[27] = {0};
  for (int e = 0; e < 6000; e++) {
    int64_t order[3];
    fx_shuffle(order, 3, 9, "data.shuffle", e);
    counts[order[0] * 9 + order[1] * 3 + order[2]]++;
  }
  double chi = 0;
  const int at[] = {5, 7, 11, 15, 19, 21};
  for (int i = 0; i < 6; i++) chi += (counts[at[i]] - 1000.0) * (counts[at[i]] - 1000.0) / 1000.0;
  CHECK_MSG(chi < 30.9, "chi-square: expected below 30.9, got %g", chi);
}

/* Documents in another order each epoch, and samples visited in an order other than the stream's. */
static void epochs_differ(void) {
  fixture f = fixture_make(fixture_lengths, FIXTURE_DOCUMENTS);
  fx_sampler *sampler = sampler_make(&f.documents, 64, FX_PACKING_DOCUMENTS, true, false, 7);
  int64_t n = fx_sampler_samples_per_epoch(sampler), equal = 0, in_order = 0, padded_at[8];
  for (int64_t epoch = 0; epoch < 8; epoch++)
    for (int64_t i = 0; i < n; i++) {
      sample a = sample_take(sampler, epoch * n + i), b = sample_take(sampler, (epoch + 1) * n + i);
      equal += memcmp(a.view.tokens, b.view.tokens, 64 * sizeof(int32_t)) == 0;
      if (a.view.tokens[63] == 0) padded_at[epoch] = i;
      in_order += a.view.tokens[63] == 0 && i == n - 1;
      free(a.block);
      free(b.block);
    }
  CHECK(equal < 8);
  CHECK(in_order < 8);
  CHECK(padded_at[0] != padded_at[1] || padded_at[1] != padded_at[2] || padded_at[2] != padded_at[3]);
  fx_sampler_destroy(sampler);
  fixture_free(&f);
}

/* Which document follows which is drawn anew: without structure the target of a last token tells. */
static void document_order(void) {
  int64_t lengths[50];
  for (int d = 0; d < 50; d++) lengths[d] = 3 + d % 4;
  fixture f = fixture_make(lengths, 50);
  fx_sampler *sampler = sampler_make(&f.documents, 16, FX_PACKING_NONE, true, false, 13);
  int64_t n = fx_sampler_samples_per_epoch(sampler), kept = 0;
  int32_t *successor[2] = {calloc((size_t)f.total + 1, 4), calloc((size_t)f.total + 1, 4)};
  for (int64_t i = 0; i < 2 * n; i++) {
    sample s = sample_take(sampler, i);
    for (int t = 0; t < 16; t++) successor[i / n][s.view.tokens[t]] = s.view.targets[t];
    free(s.block);
  }
  for (int64_t i = 1; i <= f.total; i++) kept += f.is_last[i] && successor[0][i] == successor[1][i];
  CHECK_MSG(kept < 10, "expected about one of 50 documents before the same one in both epochs, got %lld",
            (long long)kept);
  free(successor[0]);
  free(successor[1]);
  fx_sampler_destroy(sampler);
  fixture_free(&f);
}

/* One long document is cut elsewhere in every epoch with rotate, and always at multiples of T without. */
static void rotation(void) {
  fixture f = fixture_make(fixture_lengths + 2, 1);
  for (int rotate = 0; rotate < 2; rotate++) {
    fx_sampler *sampler = sampler_make(&f.documents, 64, FX_PACKING_DOCUMENTS, true, rotate, 3);
    int64_t n = fx_sampler_samples_per_epoch(sampler), phases = 0;
    char seen[64] = {0};
    for (int64_t epoch = 0; epoch < 40; epoch++) {
      sample s = sample_take(sampler, epoch * n);
      int phase = (s.view.tokens[0] - 1) % 64;
      phases += !seen[phase];
      seen[phase] = 1;
      free(s.block);
    }
    if (rotate)
      CHECK_MSG(phases > 20, "expected more than 20 of 64 phases in 40 epochs, got %lld", (long long)phases);
    else
      CHECK_INT(phases, 1);
    fx_sampler_destroy(sampler);
  }
  fixture_free(&f);
}

/* A sample depends on nothing but its ordinal: backwards, across epochs, in a fresh sampler. */
static void random_access(void) {
  fixture f = fixture_make(fixture_lengths, FIXTURE_DOCUMENTS);
  fx_sampler *forward = sampler_make(&f.documents, 128, FX_PACKING_DOCUMENTS, true, true, 11);
  int64_t n = fx_sampler_samples_per_epoch(forward), count = 5 * n;
  sample *samples = calloc((size_t)count, sizeof *samples);
  for (int64_t i = 0; i < count; i++) samples[i] = sample_take(forward, i);
  fx_sampler *backward = sampler_make(&f.documents, 128, FX_PACKING_DOCUMENTS, true, true, 11);
  fx_sampler *other = sampler_make(&f.documents, 128, FX_PACKING_DOCUMENTS, true, true, 12);
  int64_t differ = 0, seed_differs = 0;
  for (int64_t j = 0; j < count; j++) {
    int64_t i = (count - 1 - j) * 17 % count;
    CHECK_INT(fx_sampler_valid(backward, i), samples[i].valid);
    sample s = sample_take(backward, i), o = sample_take(other, i);
    differ += memcmp(s.block, samples[i].block, 5 * 128 * sizeof(int32_t)) != 0;
    seed_differs += memcmp(o.block, samples[i].block, 5 * 128 * sizeof(int32_t)) != 0;
    free(s.block);
    free(o.block);
  }
  CHECK_INT(differ, 0);
  CHECK(seed_differs > count / 2);
  int64_t far = (int64_t)1 << 40; /* no epoch is too far */
  sample a = sample_take(forward, far), b = sample_take(backward, far);
  CHECK(memcmp(a.block, b.block, 5 * 128 * sizeof(int32_t)) == 0);
  free(a.block);
  free(b.block);
  for (int64_t i = 0; i < count; i++) free(samples[i].block);
  free(samples);
  fx_sampler_destroy(forward);
  fx_sampler_destroy(backward);
  fx_sampler_destroy(other);
  fixture_free(&f);
}

typedef struct asker {
  fx_sampler *sampler;
  int64_t count, sum;
} asker;

static void *ask_valid(void *argument) {
  asker *a = argument;
  for (int64_t i = a->count - 1; i >= 0; i--) a->sum += fx_sampler_valid(a->sampler, i);
  return NULL;
}

static void two_threads(void) {
  fixture f = fixture_make(fixture_lengths, FIXTURE_DOCUMENTS);
  fx_sampler *sampler = sampler_make(&f.documents, 64, FX_PACKING_DOCUMENTS, true, true, 5);
  asker a = {sampler, 20 * fx_sampler_samples_per_epoch(sampler), 0};
  pthread_t thread;
  if (CHECK_INT(pthread_create(&thread, NULL, ask_valid, &a), 0)) {
    int64_t sum = 0;
    for (int64_t i = 0; i < a.count; i++) {
      sample s = sample_take(sampler, i);
      sum += s.valid;
      free(s.block);
    }
    pthread_join(thread, NULL);
    CHECK_INT(sum, 20 * (f.total - f.documents.count));
    CHECK_INT(a.sum, sum);
  }
  fx_sampler_destroy(sampler);
  fixture_free(&f);
}

static void errors(void) {
  fixture f = fixture_make(fixture_lengths, 2);
  fx_documents none = {.corpus = f.corpus};
  fx_sampler *sampler = NULL;
  fx_sampler_options options = {.seq_length = 0};
  CHECK_STATUS(fx_sampler_create(&f.documents, &options, &sampler), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "seq_length is 0");
  options.seq_length = (int64_t)1 << 31;
  CHECK_STATUS(fx_sampler_create(&f.documents, &options, &sampler), FX_ERR_CONFIG);
  options.seq_length = 8;
  CHECK_STATUS(fx_sampler_create(&none, &options, &sampler), FX_ERR_DATA);
  CHECK_HAS(fx_error_text(), "no documents");
  CHECK(sampler == NULL);
  CHECK_INT(fx_packing_from_name("none"), FX_PACKING_NONE);
  CHECK_INT(fx_packing_from_name("doc"), FX_PACKING_COUNT);
  fixture_free(&f);
}

static const fx_test tests[] = {{"every pair once an epoch, structure of every sample", coverage},
                                {"a worked example", worked_example},
                                {"shuffles are uniform permutations", shuffles},
                                {"epochs differ", epochs_differ},
                                {"documents follow one another in another order", document_order},
                                {"rotation moves the cuts", rotation},
                                {"a sample is a function of its ordinal", random_access},
                                {"a second thread asks for valid counts", two_threads},
                                {"errors", errors}};
FX_TEST_MAIN("sampler", tests)
