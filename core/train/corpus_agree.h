/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks compare the documents that they have read: files of one name may be others on another host, and a
 * rank with other tokens would train on with the same collectives, and wrongly. */
#ifndef FX_CORE_TRAIN_CORPUS_AGREE_H
#define FX_CORE_TRAIN_CORPUS_AGREE_H

#include "data/corpus.h"
#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* train, valid: what stands at data.train and data.valid (NULL: nothing does). Compares numbers of documents
 * and tokens, and a hash of all of them. Collective over the control channel; one exchange of a digest when
 * all are alike. FX_ERR_DIVERGED: the sentence, the same on every rank, names the key and both ranks.
 * FX_ERR_COMM: a rank did not arrive within timeout_ms; named. */
fx_status fx_corpus_agree(const fx_corpus *train, const fx_corpus *valid, fx_control *control,
                          int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
