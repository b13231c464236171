/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up documents, turns and tokens: what `mask` and `bench attention` give to masks instead of data. */
#ifndef FX_CORE_BENCH_SYNTHETIC_H
#define FX_CORE_BENCH_SYNTHETIC_H

#include "attention/variant/inputs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of attention/variant/inputs.h. */
enum {
  FX_SYNTHETIC_DOC_START,
  FX_SYNTHETIC_DOC_END,
  FX_SYNTHETIC_DOC_ID,
  FX_SYNTHETIC_POSITION,
  FX_SYNTHETIC_TOKEN,
  FX_SYNTHETIC_TURN,
  FX_SYNTHETIC_ROLE
};

/* x[n]: one input of one sequence, packed from documents whose lengths are exponential around `mean` (0: one
 * document), each of about six turns; tokens are in [0, 255). Equal seeds make inputs that belong together.
 * Returns how many documents there are. */
int32_t fx_synthetic_fill(int32_t input, int32_t *x, int32_t n, int64_t mean, uint64_t seed);
/* One sample of a batch: rows[i] [n] tokens, positions, doc_start, doc_end. The token `end_of_turn` stands
 * where the made-up turns end and nowhere else. *documents: how many there are. */
enum { FX_SYNTHETIC_ROWS = 4 };
fx_status fx_synthetic_sample(int32_t *const rows[FX_SYNTHETIC_ROWS], int32_t n, int64_t mean, uint64_t seed,
                              int32_t end_of_turn, int32_t *documents);
/* A buffer that a user declared: `count` values of its range, ascending where that is promised. */
void fx_synthetic_fill_buffer(const fx_ex_buffer *buffer, void *data, int64_t count, uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
