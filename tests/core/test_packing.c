/* SPDX-License-Identifier: Apache-2.0 */
/* Packing changes no document's loss: every piece of every document of a packed sample is evaluated again
 * alone, at the front of a sample of its own, with the same trained weights; each token's loss agrees to
 * 1e-5. Lengths are odd and unaligned (1, 2, 127, 129, ...), documents repeat each other's words so that a
 * leak would help. Control: without the document mask the losses move by far more. */
#include <math.h>
#include <stdio.h>

#include "data/corpus.h"
#include "data/sampler.h"
#include "dynamo_rt/base/philox.h"
#include "tests/core/fixture.h"

enum { T = 192, B = 2, VOCAB = 32, DOCUMENTS = 60 };

#define TAIL                                                                                \
  "optimizer: {lr: 5.0e-3, min_lr: 1.0e-3}\ntrain: {seq_length: 192, micro_batch_size: 2, " \
  "global_batch_size: 2}\n"
#define LLAMA                                                                               \
  "model: {vocab_size: 32, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, " \
  "num_key_value_heads: 2, "                                                                \
  "intermediate_size: 64}\n" TAIL
#define GPT2                                                                                               \
  "model: {model_type: gpt2, vocab_size: 32, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: " \
  "4}\n" TAIL

/* Documents in which each second half repeats the first: in-context copying is there to be learned. */
static fx_corpus *make_corpus(void) {
  static const int64_t sizes[] = {1, 2, 127, 129, 63, 65, 31, 191, 192, 193, 7, 3};
  int64_t lengths[DOCUMENTS], total = 0;
  static int32_t tokens[DOCUMENTS * 200];
  fx_corpus *corpus = NULL;
  for (int d = 0; d < DOCUMENTS; d++) {
    lengths[d] = sizes[fx_philox_at(1, 2, (uint64_t)d, 0).word[0] % 12];
    if (d < 12) lengths[d] = sizes[d];
    for (int64_t i = 0; i < lengths[d]; i++) {
      int64_t half = (lengths[d] + 1) / 2, at = i % half;
      tokens[total + i] = (int32_t)(fx_philox_at(3, 4, (uint64_t)(d % 5 * 1000 + at), 0).word[0] % VOCAB);
    }
    total += lengths[d];
  }
  CHECK_OK(fx_corpus_from_tokens(tokens, lengths, DOCUMENTS, VOCAB, &corpus));
  return corpus;
}

typedef struct sample {
  int32_t tokens[T], targets[T], positions[T], doc_start[T], doc_end[T];
} sample;

static sample get_sample(fx_sampler *sampler, int64_t ordinal) {
  sample s;
  fx_sample_view view = {s.tokens, s.targets, s.positions, s.doc_start, s.doc_end};
  fx_sampler_sample(sampler, ordinal, &view);
  return s;
}

/* Evaluates B samples; nll [B, T]. The positions of the sample must be what the fixture derives from
 * doc_start. */
static void evaluate(fixture *f, const sample s[B], float nll[B * T]) {
  static int32_t tokens[B * T], targets[B * T], start[B * T];
  for (int b = 0; b < B; b++) {
    memcpy(tokens + b * T, s[b].tokens, sizeof s[b].tokens);
    memcpy(targets + b * T, s[b].targets, sizeof s[b].targets);
    memcpy(start + b * T, s[b].doc_start, sizeof s[b].doc_start);
  }
  fixture_fill(f, tokens, targets, start, 1);
  const int32_t *positions = fx_inputs_data(f->inputs, 0, "positions");
  for (int i = 0; i < B * T; i++) CHECK_INT(positions[i], s[i / T].positions[i % T]);
  CHECK_OK(fx_stepper_run(f->stepper, FX_PHASE_EVAL, 0));
  memcpy(nll, fx_stepper_results(f->stepper)->nll, B * T * sizeof(float));
}

static void train(fixture *f, fx_sampler *sampler, int steps) {
  for (int64_t step = 0; step < steps; step++) {
    static int32_t tokens[B * T], targets[B * T], start[B * T];
    for (int b = 0; b < B; b++) {
      sample s = get_sample(sampler, step * B + b);
      memcpy(tokens + b * T, s.tokens, sizeof s.tokens);
      memcpy(targets + b * T, s.targets, sizeof s.targets);
      memcpy(start + b * T, s.doc_start, sizeof s.doc_start);
    }
    fixture_fill(f, tokens, targets, start, 1.0f / (B * T));
    fixture_optimizer(f, 5e-3f, step + 1);
    CHECK_OK(fx_stepper_run(f->stepper, FX_PHASE_MICRO_ONLY, 0));
    CHECK_OK(fx_stepper_run(f->stepper, FX_PHASE_UPDATE, 0));
  }
}

/* The piece [begin, end) of s at the front of a sample; what follows is padding, a document of its own. */
static sample piece_alone(const sample *s, int begin, int end) {
  sample alone;
  for (int t = 0; t < T; t++) {
    bool inside = t < end - begin;
    alone.tokens[t] = inside ? s->tokens[begin + t] : 0;
    alone.targets[t] = inside ? s->targets[begin + t] : -1;
    alone.doc_start[t] = inside ? 0 : end - begin;
    alone.doc_end[t] = inside ? end - begin : T;
    alone.positions[t] = t - alone.doc_start[t];
  }
  return alone;
}

static void check_packing(const char *yaml, const char *leaky_yaml) {
  fixture f, leaky;
  fx_sampler *sampler = NULL;
  fx_documents documents;
  fx_phase phases[] = {FX_PHASE_MICRO_ONLY, FX_PHASE_UPDATE, FX_PHASE_EVAL};
  fx_corpus *corpus = make_corpus();
  CHECK_OK(fx_documents_all(corpus, &documents));
  CHECK_OK(fx_sampler_create(
      &documents,
      &(fx_sampler_options){.seq_length = T, .packing = FX_PACKING_DOCUMENTS, .shuffle = true, .seed = 9},
      &sampler));
  if (!fixture_init(&f, yaml, B, T, (fixture_options){.threads = 2})) return;
  if (!fixture_init(&leaky, leaky_yaml, B, T, (fixture_options){.threads = 2})) return;
  if (!fixture_prepare(&f, phases, 3) || !fixture_prepare(&leaky, phases, 3)) return;
  CHECK_OK(fx_params_initialize(&f.model->params, 4));
  train(&f, sampler, 150);
  memcpy(leaky.model->params.weight, f.model->params.weight, (size_t)f.model->params.numel * sizeof(float));
  double worst = 0, leak = 0, total = 0;
  int pieces = 0, lengths_seen = 0;
  for (int64_t ordinal = 0; ordinal < fx_sampler_samples_per_epoch(sampler); ordinal += B) {
    sample packed[B] = {get_sample(sampler, ordinal), get_sample(sampler, ordinal + 1)};
    static float nll[B * T], nll_leaky[B * T], nll_alone[B * T];
    evaluate(&f, packed, nll);
    evaluate(&leaky, packed, nll_leaky);
    for (int i = 0; i < B * T; i++) {
      leak = fmax(leak, fabs((double)nll[i] - (double)nll_leaky[i]));
      total += (double)nll[i];
    }
    for (int b = 0; b < B; b++)
      for (int begin = 0; begin < T; begin = packed[b].doc_end[begin]) {
        int end = packed[b].doc_end[begin];
        sample alone[B] = {piece_alone(&packed[b], begin, end), packed[1 - b]};
        evaluate(&f, alone, nll_alone);
        for (int t = begin; t < end; t++)
          worst = fx_worse(worst, fabs((double)nll[b * T + t] - (double)nll_alone[t - begin]) /
                                      fmax(1, (double)nll_alone[t - begin]));
        pieces++;
        lengths_seen |= (end - begin == 1) | (end - begin == 2) << 1 | (end - begin == 127) << 2 |
                        (end - begin == 129) << 3;
      }
  }
  CHECK_MSG(worst <= 1e-5, "a token's loss moves by %.3g when its document is packed", worst);
  CHECK_MSG(leak >= 1e-3, "control: without the document mask losses move by %.3g only", leak);
  CHECK_MSG(pieces > DOCUMENTS && lengths_seen == 15, "%d pieces, lengths seen %d", pieces, lengths_seen);
  CHECK_MSG(total > 0 && isfinite(total), "total loss %g", total);
  fixture_fini(&f);
  fixture_fini(&leaky);
  fx_sampler_destroy(sampler);
  fx_documents_fini(&documents);
  fx_corpus_destroy(corpus);
}

static void llama(void) {
  check_packing(LLAMA "attention: {variant: document_causal}\n", LLAMA "attention: {variant: causal}\n");
}
static void gpt2(void) {
  check_packing(GPT2 "attention: {variant: document_causal}\n", GPT2 "attention: {variant: causal}\n");
}

static const fx_test tests[] = {{"rotary positions", llama}, {"learned positions", gpt2}};
FX_TEST_MAIN("packing", tests)
