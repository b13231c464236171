/* SPDX-License-Identifier: Apache-2.0 */
/* What forward and backward share: tile sizes, the limits of a row block, the walk over its key tiles, and
 * the variant's functions at work. Keys are counted two ways: local, 0 is the first key of k and v; global,
 * as limits and expressions count. Global = local + shift, where a tile has one shift. Not for use outside
 * attention/cpu. */
#ifndef FX_ATTENTION_CPU_FLASH_INTERNAL_H
#define FX_ATTENTION_CPU_FLASH_INTERNAL_H

#include <math.h>
#include <stddef.h>

#include "attention/cpu/flash.h"
#include "attention/cpu/leaf.h"

enum {
  FX_FLASH_ROWS = 128,                             /* most rows of a block, of any pass */
  FX_FLASH_GROUPS = FX_FLASH_ROWS / FX_LEAF_GROUP, /* most groups of a block */
  FX_FLASH_MOST_D = 256,
  FX_FLASH_PAD = 16 /* floats between rows of D in scratch: keeps column panels out of a few L1 sets */
};

#define FX_FLASH_LOG2E 1.44269504088896340736
#define FX_FLASH_LN2 0.69314718055994530942

/* Global keys: those that some row sees lie in [from, to); keys of [inner_from, inner_to) are seen by all
 * rows. */
typedef struct fx_flash_span {
  int32_t from, to, inner_from, inner_to;
} fx_flash_span;

typedef struct fx_flash_rows {
  int32_t first, count;                         /* rows of the block that exist */
  int32_t lo[FX_FLASH_ROWS], hi[FX_FLASH_ROWS]; /* global keys; empty rows, and rows past count: 0, 0 */
  int32_t position[FX_FLASH_ROWS];              /* global; rows past count repeat the last */
  fx_flash_span span;                           /* of the block */
  fx_flash_span group[FX_FLASH_GROUPS];
} fx_flash_rows;

/* The rows of block `block` of sample b and head h in blocks of `size` rows. */
void fx_flash_rows_load(const fx_attention_shape *shape, int32_t b, int32_t h, int32_t block, int32_t size,
                        fx_flash_rows *rows);

/* A range of keys inside one tile. */
typedef struct fx_flash_keys {
  int32_t from, to; /* local */
  int32_t shift;    /* global - local */
  bool partial;     /* run lists do not say that every row sees every key */
} fx_flash_keys;

/* The walk over a row block's key tiles, in ascending order, cut to the keys its rows see and to [from, to).
 */
typedef struct fx_flash_walk {
  const fx_attention_shape *shape;
  const fx_run *run, *end; /* run lists, or NULL */
  int32_t next, size;      /* tile index, keys a tile */
  int32_t from, to;        /* local keys */
} fx_flash_walk;

fx_flash_walk fx_flash_walk_begin(const fx_attention_shape *shape, int32_t b, int32_t h, int32_t block,
                                  int32_t size, const fx_flash_rows *rows, int32_t from, int32_t to);
/* The next non-empty range of keys; false after the last. */
bool fx_flash_walk_next(fx_flash_walk *walk, fx_flash_keys *keys);
/* False when run lists or limits say that the block sees nothing of the local keys [from, to). */
bool fx_flash_sees(const fx_attention_shape *shape, int32_t b, int32_t h, int32_t block, int32_t size,
                   const fx_flash_rows *rows, int32_t from, int32_t to);

/* Number of KV splits of the backward: enough for 64 tasks, at most 8, never a function of the threads. */
int32_t fx_flash_splits(const fx_attention_shape *shape);

/* Floats of the forward's workspace that belong to no thread: the order of its blocks. */
int64_t fx_flash_forward_shared(const fx_attention_shape *shape);
/* Floats of the backward's workspace that belong to no thread: splits of dQ, tables, dK and dV of bf16. */
int64_t fx_flash_backward_shared(const fx_attention_shape *shape);
/* Floats of scratch a thread needs. */
int64_t fx_flash_forward_scratch(int32_t D);
int64_t fx_flash_backward_scratch(int32_t D);

int fx_flash_threads(int threads);

/* Row t of a head. */
static inline const void *fx_flash_in_at(const fx_attention_in *view, int64_t b, int64_t h, int64_t t) {
  int64_t at = b * view->batch + h * view->head + t * view->time;
  return view->dtype == FX_BF16 ? (const void *)((const uint16_t *)view->data + at)
                                : (const void *)((const float *)view->data + at);
}
static inline void *fx_flash_out_at(const fx_attention_out *view, int64_t b, int64_t h, int64_t t) {
  int64_t at = b * view->batch + h * view->head + t * view->time;
  return view->dtype == FX_BF16 ? (void *)((uint16_t *)view->data + at) : (void *)((float *)view->data + at);
}

/* out[r] = factor * rows t.. of a head of D, as floats. */
static inline void fx_flash_read(const fx_leaf *leaf, const fx_attention_in *view, int64_t b, int64_t h,
                                 int64_t t, int32_t rows, int32_t D, float factor, float *out,
                                 int64_t out_row) {
  const void *in = fx_flash_in_at(view, b, h, t);
  if (view->dtype == FX_BF16)
    leaf->widen_rows(rows, D, factor, (const uint16_t *)in, view->time, out, out_row);
  else
    leaf->copy_rows(rows, D, factor, (const float *)in, view->time, out, out_row);
}
/* The other way round of fx_flash_read. */
static inline void fx_flash_write(const fx_leaf *leaf, const fx_attention_out *view, int64_t b, int64_t h,
                                  int64_t t, int32_t rows, int32_t D, float factor, const float *in,
                                  int64_t in_row) {
  void *out = fx_flash_out_at(view, b, h, t);
  if (view->dtype == FX_BF16)
    leaf->narrow_rows(rows, D, factor, in, in_row, (uint16_t *)out, view->time);
  else
    leaf->copy_rows(rows, D, factor, in, in_row, (float *)out, view->time);
}

/* Cuts `floats` off a thread's scratch, 64-byte aligned; with base NULL only *at advances. */
static inline float *fx_flash_take(float *base, int64_t *at, int64_t floats) {
  float *part = base ? base + *at : NULL;
  *at += (floats + 15) / 16 * 16;
  return part;
}

/* Keys that the rows of a span see by their limits; false when there are none. */
static inline bool fx_flash_cut(const fx_flash_span *span, const fx_flash_keys *keys, fx_flash_keys *cut) {
  *cut = *keys;
  if (span->from >= span->to)
    return false; /* its ends are no positions: nothing may be subtracted from them */
  if (span->from > cut->from + cut->shift) cut->from = span->from - cut->shift;
  if (span->to < cut->to + cut->shift) cut->to = span->to - cut->shift;
  return cut->from < cut->to;
}
/* Limits hide none of the keys from any row of the span. */
static inline bool fx_flash_full(const fx_flash_span *span, const fx_flash_keys *keys) {
  return span->inner_from <= keys->from + keys->shift && keys->to + keys->shift <= span->inner_to;
}
static inline int32_t fx_flash_at_most(int32_t x, int32_t most) {
  return x < most ? x : most;
}

/* ---- a variant's functions at work on one row block of one head ---- */

typedef enum fx_flash_seen { FX_FLASH_NONE, FX_FLASH_SOME, FX_FLASH_ALL } fx_flash_seen;

typedef struct fx_flash_tile {
  const fx_attention_program *program; /* NULL: none, and nothing below is set */
  const fx_tile_functions *tile;
  fx_tile_args args;
  int *fault; /* set to 1 when an index left its buffer; shared by all threads */
  const void *buffer[FX_ATTENTION_MAX_BUFFERS];
  float *table[FX_ATTENTION_MAX_BUFFERS];
  int32_t kv[FX_TILE_KEYS];
  uint32_t bits[FX_TILE_KEYS];
} fx_flash_tile;

/* tables: where this task gathers gradients of learnable tables, one behind the other; NULL in the forward.
 */
void fx_flash_tile_begin(const fx_attention_shape *shape, int32_t b, int32_t h, float *tables, int *fault,
                         fx_flash_tile *tile);
/* Points the arguments at group g's rows and at these keys. */
void fx_flash_tile_place(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g,
                         const fx_flash_keys *keys);
/* Fills bits when the answer is SOME; ALL also where only limits mask (they may still hide keys). */
fx_flash_seen fx_flash_tile_mask(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g,
                                 const fx_flash_keys *keys);
/* Bits of what is visible by limits and rows that exist, or the program's own where seen is SOME. */
void fx_flash_tile_visible(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g,
                           const fx_flash_keys *keys, fx_flash_seen seen);
static inline bool fx_flash_scores(const fx_flash_tile *tile) {
  return tile->program && tile->tile->score;
}
/* Floats of all learnable tables of a program. */
int64_t fx_flash_table_floats(const fx_attention_program *program);

#endif
