/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/corpus_agree.h"

#include <string.h>

#include "parallel/agree.h"

enum { TRAIN, VALID, CORPORA };

typedef struct corpus_mark { /* zeros: there is none */
  int64_t documents, tokens;
  fx_hash128 hash;
} corpus_mark;

static corpus_mark mark_of(const fx_corpus *corpus) {
  corpus_mark mark;
  memset(&mark, 0, sizeof mark);
  if (!corpus) return mark;
  mark.documents = fx_corpus_documents(corpus);
  mark.tokens = fx_corpus_tokens(corpus);
  mark.hash = fx_corpus_hash(corpus);
  return mark;
}

static fx_status tell(const fx_agree_pair *pair) {
  static const char *const keys[CORPORA] = {"data.train", "data.valid"};
  corpus_mark left[CORPORA], right[CORPORA];
  FX_ASSERT(pair->left_bytes == sizeof left && pair->right_bytes == sizeof right);
  memcpy(left, pair->left, sizeof left);
  memcpy(right, pair->right, sizeof right);
  for (int i = 0; i < CORPORA; i++) {
    const corpus_mark *a = &left[i], *b = &right[i];
    if (memcmp(a, b, sizeof *a) == 0) continue;
    if (a->documents == b->documents && a->tokens == b->tokens)
      return fx_error(
          FX_ERR_DIVERGED,
          "ranks 0 and %d have read different data: %s has %lld documents of %lld tokens on both, "
          "but not the same ones%s; give all hosts the same files",
          pair->rank, keys[i], (long long)a->documents, (long long)a->tokens, pair->others);
    return fx_error(FX_ERR_DIVERGED,
                    "ranks 0 and %d have read different data: %s has %lld documents of %lld tokens on rank 0 "
                    "and %lld of %lld on rank %d%s; give all hosts the same files",
                    pair->rank, keys[i], (long long)a->documents, (long long)a->tokens,
                    (long long)b->documents, (long long)b->tokens, pair->rank, pair->others);
  }
  return FX_OK;
}

fx_status fx_corpus_agree(const fx_corpus *train, const fx_corpus *valid, fx_control *control,
                          int timeout_ms) {
  if (control->size == 1) return FX_OK;
  corpus_mark marks[CORPORA] = {[TRAIN] = mark_of(train), [VALID] = mark_of(valid)};
  fx_status status = fx_agree_text(control, (const char *)marks, sizeof marks, tell, timeout_ms);
  return status == FX_OK || status == FX_ERR_DIVERGED ? status : fx_error_prefix(status, "data agreement");
}
