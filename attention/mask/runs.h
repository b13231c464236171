/* SPDX-License-Identifier: Apache-2.0 */
/* Run lists: which tiles of the score matrix a kernel visits.
 *
 * For each *block* of one side (rows of queries, or, transposed, of keys) a short list of ranges of *tiles*
 * of the other side. Kernels own their tile sizes, so lists are built per kernel tile; sizes need not be
 * equal, nor powers of two (176, 192, 80 are legal). A range is [begin, end) in tile indices, all partial or
 * all full; tiles in no range are empty and never touched. Lists are sorted and disjoint.
 *
 * The classification is exact: a tile is full iff every row of the block sees all of it, empty iff no row
 * sees any of it. Where a list would exceed its capacity, the neighbours that are cheapest to join become one
 * partial run: still exact results (kernels compare limits inside partial tiles), only slower, and counted in
 * `merged`.
 *
 * Must not know: who evaluates the mask, devices. */
#ifndef FX_ATTENTION_MASK_RUNS_H
#define FX_ATTENTION_MASK_RUNS_H

#include <stddef.h>
#include <stdint.h>

#include "attention/mask/limits.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_run_kind { FX_RUN_PARTIAL = 0, FX_RUN_FULL = 1 } fx_run_kind;

/* Tiles [begin, end) of one kind; 12 bytes, the layout kernels read. */
typedef struct fx_run {
  int32_t begin, end, kind;
} fx_run;

/* The lists of one mask for one tile shape. Row runs: block = query rows, tile = keys, block_length = T,
 * tile_length = T_kv. Transposed runs: block = keys, tile = query rows. The last block or tile may be short.
 */
typedef struct fx_runs {
  int32_t Bm;                        /* samples with lists of their own, or 1 */
  int32_t block, tile;               /* sizes in positions, any positive number */
  int32_t block_length, tile_length; /* positions on either side */
  int32_t blocks, tiles;             /* counts, rounded up */
  int32_t capacity;                  /* runs a list */
  int64_t kv_base;                   /* global position of key 0 (0 unless the keys are a chunk) */
  int32_t *count;                    /* [Bm][Hm][blocks] */
  fx_run *run;                       /* [Bm][Hm][blocks][capacity] */
  int32_t *scratch;                  /* [2][max(blocks, tiles) + 1], only while building */
  int64_t merged;                    /* how many joins the last build needed; 0 = every list fitted */
  int32_t Hm;                        /* heads with lists of their own, or 1 (or 0, which counts as 1) */
  /* Global position of the first of every FX_LIMITS_ALIGN keys that are here, borrowed: keys made of several
   * segments of the sequence. NULL: they are contiguous from kv_base. Only row runs are built from it. */
  const int32_t *key_base;
} fx_runs;

static inline int32_t fx_runs_heads(const fx_runs *runs) {
  return runs->Hm > 1 ? runs->Hm : 1;
}

/* Capacity that named variants never exceed: partial, full, partial for each of R intervals. */
static inline int32_t fx_runs_capacity(int32_t R) {
  return 3 * R;
}

/* Shape of row runs for `T` query rows and `T_kv` keys in tiles of tile_q x tile_kv. Sizes must be positive.
 */
fx_runs fx_runs_plan(int32_t Bm, int32_t T, int32_t T_kv, int32_t tile_q, int32_t tile_kv, int32_t capacity);
/* Shape of the transposed lists of `rows` (blocks and tiles trade places). */
fx_runs fx_runs_plan_transposed(const fx_runs *rows, int32_t capacity);
/* Bytes of count, run and scratch together, a multiple of 64. */
size_t fx_runs_bytes(const fx_runs *runs);
/* Points count, run and scratch into `memory` (fx_runs_bytes, 4-byte aligned, borrowed). */
void fx_runs_bind(fx_runs *runs, void *memory);

/* Fills row runs from limits (same T, Bm and Hm; the keys are those at key_base, or kv_base on). Allocates
 * nothing. FX_ERR_SHAPE: limits and runs are of different shapes. */
fx_status fx_runs_build(const fx_limits *limits, fx_runs *runs);
/* Fills transposed runs from row runs, kinds included: tile (i, j) is in `columns` with the kind it has in
 * `rows`. FX_ERR_SHAPE: `columns` was not planned from `rows`. */
fx_status fx_runs_transpose(const fx_runs *rows, fx_runs *columns);

/* For builders. Empties all lists; then for each list in any order, tiles in ascending order: appends
 * [begin, end), joining where it touches a run of its kind or the list is at its capacity. */
void fx_runs_clear(fx_runs *runs);
void fx_runs_append(fx_runs *runs, int64_t list, int32_t begin, int32_t end, fx_run_kind kind);

/* Number of a block's list; b and h are ignored where lists are not per sample or per head. */
static inline int64_t fx_runs_list(const fx_runs *runs, int64_t b, int64_t h, int64_t block) {
  int64_t of_sample = (runs->Bm == 1 ? 0 : b) * fx_runs_heads(runs) + (fx_runs_heads(runs) == 1 ? 0 : h);
  return of_sample * runs->blocks + block;
}
/* The list of a block of sample b and head h: *count runs. */
static inline const fx_run *fx_runs_get_head(const fx_runs *runs, int64_t b, int64_t h, int64_t block,
                                             int32_t *count) {
  int64_t list = fx_runs_list(runs, b, h, block);
  *count = runs->count[list];
  return runs->run + list * runs->capacity;
}
static inline const fx_run *fx_runs_get(const fx_runs *runs, int64_t b, int64_t block, int32_t *count) {
  return fx_runs_get_head(runs, b, 0, block, count);
}

typedef struct fx_runs_totals {
  int64_t full, partial, tiles; /* visited full, visited partial, all (blocks x tiles x Bm x Hm) */
} fx_runs_totals;
/* Counts of visited tiles, for `flexion mask` and tests. */
fx_runs_totals fx_runs_count(const fx_runs *runs);

#ifdef __cplusplus
}
#endif
#endif
