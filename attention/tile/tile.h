/* SPDX-License-Identifier: Apache-2.0 */
/* Tile functions: the only part of attention that is made at run time.
 *
 * A score tile is [keys][32 rows]: one key of 32 query rows side by side (the layout of cpu/leaf.h). The
 * kernels around it (products, softmax) are compiled ahead of time; what a variant adds are the four
 * functions below. They exist in two forms that agree bit for bit: C source compiled by the system compiler,
 * and an interpreter that needs none.
 *
 * All functions are pure but for their outputs, and may run on any number of threads at once. */
#ifndef FX_ATTENTION_TILE_TILE_H
#define FX_ATTENTION_TILE_TILE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_TILE_ROWS = 32, FX_TILE_KEYS = 256 /* at most */ };

typedef struct fx_tile_args {
  const void *self;          /* fx_tile_functions.self */
  const float *uniform;      /* [params of the pool] */
  const void *const *buffer; /* [buffers of the pool]: int32 or float, of this tile's sample where per_batch;
                                constant tables too */
  float *const
      *table_grad;   /* [buffers of the pool]: where to add a learnable table's gradient; whole table */
  int32_t h;         /* global query head */
  int32_t keys;      /* 1..FX_TILE_KEYS */
  const int32_t *q;  /* [32] global positions, all legal (rows that do not exist repeat one that does) */
  const int32_t *kv; /* [keys] global positions, all legal */
} fx_tile_args;

/* Absent functions are NULL: nothing masked, score kept, no tables, no index that could leave its buffer. */
typedef struct fx_tile_functions {
  const void *self;
  /* bits[key]: bit r is set where row r sees the key. */
  void (*mask)(const fx_tile_args *args, uint32_t *bits);
  /* s[key * stride + r]: score in natural units becomes factor * f(score) (the caller's factor is log2 e).
   * Rows past the end and masked pairs hold finite garbage, before and after, or NaN: callers select. */
  void (*score)(const fx_tile_args *args, float *s, int64_t stride, float factor);
  /* The same, and slope[key * stride + r] = df/dscore. NULL where the slope is 1 everywhere (ALiBi): use
   * `score`. */
  void (*score_slope)(const fx_tile_args *args, float *s, float *slope, int64_t stride, float factor);
  /* For pairs whose bit is set: table_grad[t][index] += ds * df/dtable[index], key by key, and for each key
   * read by read, then row by row. raw: the score in natural units before f; ds: the gradient of f's result.
   */
  void (*tables)(const fx_tile_args *args, const uint32_t *bits, const float *raw, const float *ds,
                 int64_t stride);
  /* False when an index of mask or score leaves its buffer at a pair whose bit is set and whose branch is
   * taken. (Loads clamp their indices, so that nothing is read out of place.) raw as above; NULL if the
   * variant's indices do not depend on the score. */
  bool (*in_bounds)(const fx_tile_args *args, const uint32_t *bits, const float *raw, int64_t stride);
} fx_tile_functions;

#ifdef __cplusplus
}
#endif
#endif
