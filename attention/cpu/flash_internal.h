/* SPDX-License-Identifier: Apache-2.0 */
/* What forward and backward share: tile sizes, the limits of a row block, the walk over its key tiles.
 * Key numbers here are local: 0 is the first key of the chunk, limits have kv_base subtracted.
 * Not for use outside attention/cpu. */
#ifndef FX_ATTENTION_CPU_FLASH_INTERNAL_H
#define FX_ATTENTION_CPU_FLASH_INTERNAL_H

#include <math.h>
#include <stddef.h>

#include "attention/cpu/flash.h"
#include "attention/cpu/leaf.h"

enum {
  FX_FLASH_ROWS = 128,                             /* most rows of a block, of any pass */
  FX_FLASH_GROUPS = FX_FLASH_ROWS / FX_LEAF_GROUP, /* most groups of a block */
  FX_FLASH_PAD = 16 /* floats between rows of D in scratch: keeps column panels out of a few L1 sets */
};

#define FX_FLASH_LOG2E 1.44269504088896340736
#define FX_FLASH_LN2 0.69314718055994530942

/* Keys that some row sees lie in [from, to); keys of [inner_from, inner_to) are seen by all rows. */
typedef struct fx_flash_span {
  int32_t from, to, inner_from, inner_to;
} fx_flash_span;

typedef struct fx_flash_rows {
  int32_t first, count;                         /* rows of the block that exist */
  int32_t lo[FX_FLASH_ROWS], hi[FX_FLASH_ROWS]; /* empty rows, and rows past count: 0, 0 */
  fx_flash_span span;                           /* of the block */
  fx_flash_span group[FX_FLASH_GROUPS];
} fx_flash_rows;

/* The rows of block `block` of sample b in blocks of `size` rows. */
void fx_flash_rows_load(const fx_attention_shape *shape, int32_t b, int32_t block, int32_t size,
                        fx_flash_rows *rows);

/* The walk over a row block's key tiles, in ascending order, cut to the keys its rows see and to [from, to).
 */
typedef struct fx_flash_walk {
  const fx_run *run, *end; /* run lists, or NULL */
  int32_t next, size;      /* tile index, keys a tile */
  int32_t from, to;        /* keys */
} fx_flash_walk;

fx_flash_walk fx_flash_walk_begin(const fx_attention_shape *shape, int32_t b, int32_t block, int32_t size,
                                  const fx_flash_rows *rows, int32_t from, int32_t to);
/* The next non-empty range of keys; false after the last. */
bool fx_flash_walk_next(fx_flash_walk *walk, int32_t *from, int32_t *to);

/* Number of KV splits of the backward: enough for 64 tasks, at most 8, never a function of the threads. */
int32_t fx_flash_splits(const fx_attention_shape *shape);

/* Floats of scratch a thread needs. */
int64_t fx_flash_forward_scratch(int32_t D);
int64_t fx_flash_backward_scratch(int32_t D);

int fx_flash_threads(int threads);

static inline const float *fx_flash_in_head(const fx_attention_in *view, int64_t b, int64_t h) {
  return view->data + b * view->batch + h * view->head;
}
static inline float *fx_flash_out_head(const fx_attention_out *view, int64_t b, int64_t h) {
  return view->data + b * view->batch + h * view->head;
}

/* Cuts `floats` off a thread's scratch, 64-byte aligned; with base NULL only *at advances. */
static inline float *fx_flash_take(float *base, int64_t *at, int64_t floats) {
  float *part = base ? base + *at : NULL;
  *at += (floats + 15) / 16 * 16;
  return part;
}

/* Keys of [from, to) that the rows of a span see; false when there are none. */
static inline bool fx_flash_cut(const fx_flash_span *span, int32_t from, int32_t to, int32_t *cut_from,
                                int32_t *cut_to) {
  *cut_from = span->from > from ? span->from : from;
  *cut_to = span->to < to ? span->to : to;
  return *cut_from < *cut_to;
}
static inline bool fx_flash_full(const fx_flash_span *span, int32_t from, int32_t to) {
  return span->inner_from <= from && to <= span->inner_to;
}
static inline int32_t fx_flash_at_most(int32_t x, int32_t most) {
  return x < most ? x : most;
}

#endif
