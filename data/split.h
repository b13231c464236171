/* SPDX-License-Identifier: Apache-2.0 */
/* Splits a corpus into training and validation. A pure function of (corpus, rule, fraction, seed): the same
 * on every rank, and independent of the number of ranks. */
#ifndef FX_DATA_SPLIT_H
#define FX_DATA_SPLIT_H

#include <stdint.h>

#include "data/corpus.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, name in configs)
 * documents: indices are shuffled by Philox(seed, "data.split"); the last n_valid = ceil(fraction *
 * documents) of them, at least one and at most all but one, are validation. Either side keeps the corpus
 * order. tokens: the first n_train = floor(tokens * (1 - fraction)) tokens are training, the rest validation;
 * a document that is cut becomes a document on either side. */
#define FX_SPLIT_LIST(X)    \
  X(DOCUMENTS, "documents") \
  X(TOKENS, "tokens")

typedef enum fx_split_rule {
#define FX_SPLIT_ENUM(name, text) FX_SPLIT_##name,
  FX_SPLIT_LIST(FX_SPLIT_ENUM)
#undef FX_SPLIT_ENUM
      FX_SPLIT_COUNT
} fx_split_rule;

/* FX_SPLIT_COUNT when no rule has that name. */
fx_split_rule fx_split_from_name(const char *name);

/* valid_fraction in [0, 1); 0 leaves *valid empty. *train and *valid are overwritten and owned by the caller
 * (fx_documents_fini); both borrow the corpus. A seed that does not change with the run's seed keeps the
 * validation set comparable between runs.
 * FX_ERR_CONFIG: the fraction is out of range. FX_ERR_DATA: one document under `documents` (the sentence says
 * to use data.split: tokens), or a side of fewer than 2 tokens. On failure both outputs are empty. */
fx_status fx_split(const fx_corpus *corpus, fx_split_rule rule, double valid_fraction, uint64_t seed,
                   fx_documents *train, fx_documents *valid);

#ifdef __cplusplus
}
#endif
#endif
