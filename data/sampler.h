/* SPDX-License-Identifier: Apache-2.0 */
/* Packs documents into samples of T positions, with random access by ordinal.
 *
 * An epoch lays its documents (in shuffled order) end to end into one stream and cuts it every T tokens; the
 * samples are then visited in a second shuffled order. ordinal = epoch * samples_per_epoch + i, and
 * samples_per_epoch = ceil(tokens / T) never changes, so a sample is a pure function of (documents, options,
 * ordinal): no state exists to be saved, and no rank needs another rank's tokens.
 *
 * Every token is an input once an epoch. Its target is the next token of the same document, or -1 (masked)
 * when it is the last. A document that is cut goes on in the next sample at position 0; the last input before
 * the cut keeps its true target, which is the first input of the next piece. */
#ifndef FX_DATA_SAMPLER_H
#define FX_DATA_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, name in configs)
 * documents: positions restart and [doc_start, doc_end) is the piece of the document within the sample.
 * none: the same stream as one document a sample; targets cross document ends, only the last token of the
 *   stream is masked. */
#define FX_PACKING_LIST(X)  \
  X(DOCUMENTS, "documents") \
  X(NONE, "none")

typedef enum fx_packing {
#define FX_PACKING_ENUM(name, text) FX_PACKING_##name,
  FX_PACKING_LIST(FX_PACKING_ENUM)
#undef FX_PACKING_ENUM
      FX_PACKING_COUNT
} fx_packing;

/* FX_PACKING_COUNT when no packing has that name. */
fx_packing fx_packing_from_name(const char *name);

typedef struct fx_sampler_options {
  int64_t seq_length; /* T >= 1 */
  fx_packing packing;
  bool shuffle; /* documents and samples, anew each epoch; false (evaluation): corpus order, all epochs equal
                 */
  /* Start each epoch's stream a Philox-drawn 0..T-1 tokens later and append what was passed over to its end,
   * so that a corpus of few long documents is not cut at the same places in every epoch. Ignored without
   * shuffle. */
  bool rotate;
  uint64_t seed;
} fx_sampler_options;

/* Where one sample goes: each [T] int32, caller-owned, overwritten. doc_start and doc_end are positions
 * within the sample. */
typedef struct fx_sample_view {
  int32_t *tokens, *targets, *positions, *doc_start, *doc_end;
} fx_sample_view;

typedef struct fx_sampler fx_sampler;

/* The spans and the corpus of `documents` are borrowed and must outlive the sampler. All memory is allocated
 * here: 16 bytes a document and 8 a sample, for two epochs. FX_ERR_CONFIG: T outside [1, 2^31). FX_ERR_DATA:
 * no token. FX_ERR_MEMORY. */
fx_status fx_sampler_create(const fx_documents *documents, const fx_sampler_options *options,
                            fx_sampler **out);
void fx_sampler_destroy(fx_sampler *sampler);

int64_t fx_sampler_seq_length(const fx_sampler *sampler);
int64_t fx_sampler_samples_per_epoch(const fx_sampler *sampler);

/* Writes sample `ordinal` (>= 0) and returns its number of targets other than -1. Positions past the end of
 * an epoch's stream are padding: token 0, target -1, a document of their own with positions from 0.
 * Thread-safe: calls from several threads (the prefetch thread and one that asks fx_sampler_valid) take
 * turns. The tables of the two epochs used last are kept; entering another epoch rebuilds one of them, in
 * O(documents + samples), without allocating. */
int64_t fx_sampler_sample(fx_sampler *sampler, int64_t ordinal, const fx_sample_view *out);

/* The same number without touching a token: two binary searches. Thread-safe, as above. */
int64_t fx_sampler_valid(fx_sampler *sampler, int64_t ordinal);

#ifdef __cplusplus
}
#endif
#endif
