/* SPDX-License-Identifier: Apache-2.0 */
/* How many pairs a mask shows: by its run lists, and inside partial tiles by asking the mask. */
#ifndef FX_CORE_BENCH_VISIBLE_H
#define FX_CORE_BENCH_VISIBLE_H

#include "attention/mask/runs.h"
#include "attention/tile/interp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The mask of one sample and head; borrowed. */
typedef struct fx_visible {
  const fx_interp *mask;     /* its only output */
  const void *const *buffer; /* of the sample */
  int32_t head;
} fx_visible;

enum { FX_VISIBLE_CELL = 8 }; /* points a side where pairs are not counted one by one */

/* The visible part, 0..1, of rows [q0, q1) x keys [k0, k1): of all pairs, or of a grid of `most` x `most`. */
double fx_visible_part(const fx_visible *visible, int64_t q0, int64_t q1, int64_t k0, int64_t k1,
                       int64_t most);
/* Pairs of the lists of sample b and head h; *exact becomes false where partial tiles were too many. */
double fx_visible_pairs(const fx_visible *visible, const fx_runs *rows, int32_t b, int32_t h, bool *exact);

#ifdef __cplusplus
}
#endif
#endif
