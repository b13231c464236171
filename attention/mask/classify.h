/* SPDX-License-Identifier: Apache-2.0 */
/* Row runs of masks that are no limits: which tiles are empty, partial, full, exactly.
 *
 * For each block of rows a walk over a pyramid of key ranges (16 tiles, 256 tiles, ...), 16 siblings at a
 * time by interval arithmetic: what the intervals decide is done, the rest goes down. A tile that they leave
 * open is partial as soon as one pair is known to be visible and another hidden: its corners are tried, then
 * its 16 cells by intervals, a few pairs of open cells, and at last all pairs of the open pieces of cells.
 *
 * Must not know: limits, transposed lists, how many samples there are. */
#ifndef FX_ATTENTION_MASK_CLASSIFY_H
#define FX_ATTENTION_MASK_CLASSIFY_H

#include "attention/mask/positions.h"
#include "attention/mask/runs.h"
#include "attention/tile/interp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A mask made ready; immutable, any number of threads. */
typedef struct fx_classifier fx_classifier;

/* `mask` is a condition of the pool, which must outlive the result. FX_ERR_MEMORY,
 * FX_ERR_UNSUPPORTED. */
fx_status fx_classifier_create(const fx_ex_pool *pool, fx_ex mask, fx_classifier **classifier);
void fx_classifier_destroy(fx_classifier *classifier);

/* Bytes of 64-byte aligned scratch for lists of this shape. */
size_t fx_classify_scratch(const fx_classifier *classifier, const fx_runs *runs);
/* Summarises the sample's buffers in `scratch`; before the builds on it. */
void fx_classify_begin(const fx_classifier *classifier, const fx_interp_inputs *sample, void *scratch);
/* Appends to the lists first_list .. + runs->blocks (cleared before) the tiles of one sample and head. q and
 * kv say where the rows and keys that are here lie in the sequence. */
void fx_classify_build(const fx_classifier *classifier, const fx_interp_inputs *sample, int32_t h,
                       const fx_positions *q, const fx_positions *kv, fx_runs *runs, int64_t first_list,
                       void *scratch);

#ifdef __cplusplus
}
#endif
#endif
