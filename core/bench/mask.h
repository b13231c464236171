/* SPDX-License-Identifier: Apache-2.0 */
/* The mask of a configuration, looked at: how it is represented, how many tiles a kernel visits, what
 * building that takes, and a picture. Documents, turns and tokens are made up from a seed; no data is read.
 */
#ifndef FX_CORE_BENCH_MASK_H
#define FX_CORE_BENCH_MASK_H

#include "attention/mask/mask.h"
#include "core/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_bench_mask_options {
  int64_t length;    /* of the sequence; 0: train.seq_length */
  int64_t documents; /* tokens a document has on average; 0: one document */
  uint64_t seed;
  int64_t layer, head;
  int32_t tile_q, tile_kv;
} fx_bench_mask_options;

typedef struct fx_bench_mask_report {
  char name[64];
  const char *text; /* canonical, owned by the mask */
  fx_mask_form form;
  int32_t R;
  bool per_sample, per_head;
  int64_t length, documents;                       /* positions; how many documents */
  int64_t full, partial, empty;                    /* tiles */
  int64_t joined;                                  /* lists that were too short: joins */
  double density;                                  /* visible pairs over all pairs */
  bool density_exact;                              /* else estimated inside partial tiles */
  int64_t limit_bytes, run_bytes, scratch_bytes;   /* runs: rows and transposed */
  double analysis_ms;                              /* from the expression to the program, once */
  double check_ms, limits_ms, rows_ms, columns_ms; /* of one batch: best of three */
} fx_bench_mask_report;

typedef struct fx_bench_mask fx_bench_mask;

/* FX_ERR_CONFIG: the mask cannot be built for this length. FX_ERR_USAGE: no such layer or head, a length or
 * tile out of range. FX_ERR_MEMORY. */
fx_status fx_bench_mask_create(const fx_config *config, const fx_bench_mask_options *options,
                               fx_bench_mask **mask);
void fx_bench_mask_destroy(fx_bench_mask *mask);
const fx_bench_mask_report *fx_bench_mask_get(const fx_bench_mask *mask);
/* density[rows][columns]: the visible part, 0..1, of each cell of a grid over queries (down) and keys; exact
 * where cells have at most 64 pairs, else from 64 of them. */
fx_status fx_bench_mask_draw(const fx_bench_mask *mask, int32_t rows, int32_t columns, float *density);

#ifdef __cplusplus
}
#endif
#endif
