/* SPDX-License-Identifier: Apache-2.0 */
/* Interval arithmetic over expressions: what a condition can be anywhere in a rectangle of positions.
 *
 * A condition becomes a straight list of instructions, made once; a run evaluates it for up to 16 rectangles
 * side by side. Every value is an interval that holds whatever the expression gives anywhere in its rectangle
 * (wider where the analysis is not exact, never narrower): ints as int64 ends within int32, where a result
 * that wraps is the whole of int32 unless both ends wrap alike; floats as double ends that are floats, or
 * [-inf, inf], which alone may also be NaN; conditions as [0, 0] never, [1, 1] always, [0, 1] undecided.
 *
 * Instructions are sorted by what they depend on (nothing, q, kv, both), and a run evaluates these parts one
 * by one: what depends on one side only is computed once a block of that side and read from then on (`read`).
 *
 * Must not know: tiles, run lists, where positions come from. */
#ifndef FX_ATTENTION_MASK_INTERVAL_H
#define FX_ATTENTION_MASK_INTERVAL_H

#include <stddef.h>

#include "attention/lang/expr.h"
#include "attention/mask/summary.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_INTERVAL_LANES = 16 };

typedef enum fx_interval_part {
  FX_PART_FIXED, /* constants, parameters, h */
  FX_PART_Q,
  FX_PART_KV,
  FX_PART_PAIR,
  FX_PART_COUNT
} fx_interval_part;

/* Immutable, any number of threads. */
typedef struct fx_interval_code fx_interval_code;

/* `root` is no node that depends on the score. Nothing of the pool is kept. FX_ERR_MEMORY. */
fx_status fx_interval_create(const fx_ex_pool *pool, fx_ex root, fx_interval_code **code);
void fx_interval_destroy(fx_interval_code *code);

/* Interval of a node that `root` uses over everything that the pool's ranges and declarations allow. */
fx_interval fx_interval_domain(const fx_interval_code *code, fx_ex node);

/* Registers of a part that later parts (or the reader of the root) need: *count of them. */
const int32_t *fx_interval_live(const fx_interval_code *code, fx_interval_part part, int32_t *count);

/* One thread's evaluation. */
typedef struct fx_interval_run {
  const fx_interval_code *code;
  const fx_summary *summary;         /* [buffers of the pool]; NULL: only what is declared of them */
  const float *uniform;              /* [params of the pool] */
  fx_interval_end *own;              /* [registers][lo, hi][lanes] */
  const fx_interval_end *(*read)[2]; /* [registers][lo, hi] lanes that users of a register read */
} fx_interval_run;

/* Bytes of 64-byte aligned memory behind a run, a multiple of 64. */
size_t fx_interval_bytes(const fx_interval_code *code);
/* Points own and read into `memory`; every register reads its own lanes. */
void fx_interval_bind(fx_interval_run *run, const fx_interval_code *code, const fx_summary *summary,
                      const float *uniform, void *memory);

/* Evaluates the part FIXED; h in [lo, hi]. */
void fx_interval_fix(fx_interval_run *run, int32_t h_lo, int32_t h_hi);
/* The range of q (FX_EX_Q) or kv (FX_EX_KV) in one lane. */
void fx_interval_set(fx_interval_run *run, fx_ex_var var, int lane, int32_t lo, int32_t hi);
/* Evaluates the part Q, KV or PAIR in all lanes. */
void fx_interval_eval(fx_interval_run *run, fx_interval_part part);
/* lo and hi lanes of the root, after all parts it depends on. */
const fx_interval_end *const *fx_interval_root(const fx_interval_run *run);

static inline fx_interval_end *fx_interval_own(const fx_interval_run *run, int32_t reg, int end) {
  return run->own + ((int64_t)reg * 2 + end) * FX_INTERVAL_LANES;
}

#ifdef __cplusplus
}
#endif
#endif
