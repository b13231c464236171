/* SPDX-License-Identifier: Apache-2.0 */
/* Masks as data: from an expression to limits and run lists, decided once, built for every batch.
 *
 * A program says how a mask is represented: not at all (everything is visible), as limits (limits.h: at most
 * FX_LIMITS_MAX_R intervals a row), or as an expression that kernels evaluate inside partial tiles. Run lists
 * (runs.h) are exact in all cases.
 *
 * Planning gives shapes and sizes; building writes into the caller's memory, allocates nothing, and may run
 * on any thread, with scratch of its own for each. All positions are global: a rank's rows and keys may be
 * any part of the sequence, contiguous or in segments.
 *
 * Must not know: devices, the graph, where a variant came from. */
#ifndef FX_ATTENTION_MASK_MASK_H
#define FX_ATTENTION_MASK_MASK_H

#include "attention/lang/expr.h"
#include "attention/mask/limits.h"
#include "attention/mask/positions.h"
#include "attention/mask/runs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_mask_form { FX_MASK_FORM_NONE, FX_MASK_FORM_LIMITS, FX_MASK_FORM_EXPRESSION } fx_mask_form;

/* Capacity of an expression's lists where the caller has no better idea. */
enum { FX_MASK_CAPACITY = 32 };

typedef struct fx_mask_facts {
  fx_mask_form form;
  int32_t R;                     /* LIMITS: intervals a row, at most FX_LIMITS_MAX_R; else 0 */
  bool per_sample, per_head;     /* what the mask depends on */
  bool reads[FX_EX_MAX_BUFFERS]; /* buffers of the pool */
} fx_mask_facts;

/* Immutable, any number of threads. */
typedef struct fx_mask_program fx_mask_program;

/* `mask` is a condition over h, q, kv, or FX_EX_NONE; the pool is borrowed for the program's life.
 * FX_ERR_MEMORY; FX_ERR_UNSUPPORTED: too large an expression for the interpreter. */
fx_status fx_mask_program_create(const fx_ex_pool *pool, fx_ex mask, fx_mask_program **program);
void fx_mask_program_destroy(fx_mask_program *program);
const fx_mask_facts *fx_mask_program_facts(const fx_mask_program *program);

/* What a build reads; borrowed. */
typedef struct fx_mask_batch {
  int32_t B;
  const void *const *buffer; /* [buffers of the pool]: int32 or float, [B] of them where per_batch; NULL for
                                constant tables and for those that the mask does not read */
  const float *uniform;      /* [params of the pool]; NULL: the values in the pool */
  int32_t first_head;        /* global number of the first query head that is here */
  fx_positions q, kv;        /* of the rows and keys that are here */
} fx_mask_batch;

/* Verifies what is declared of the buffers that the mask reads (lo and hi, monotone, segments): the builds
 * rely on it. O(their size). FX_ERR_DATA: buffer, sample and position are named. */
fx_status fx_mask_check(const fx_mask_program *program, const fx_mask_batch *batch);

/* ---- LIMITS ---- */

/* Limits of T rows that are here, for B samples and H heads that are here; bind with fx_limits_bind. */
fx_limits fx_mask_limits_plan(const fx_mask_program *program, int32_t B, int32_t H, int32_t T);
size_t fx_mask_limits_scratch(const fx_mask_program *program);
/* Fills planned and bound limits; scratch is 64-byte aligned. FX_ERR_SHAPE: rows leave the sequence. */
fx_status fx_mask_limits_build(const fx_mask_program *program, const fx_mask_batch *batch, fx_limits *limits,
                               void *scratch);

/* ---- LIMITS and EXPRESSION ---- */

/* Row runs for T rows and T_kv keys that are here; bind with fx_runs_bind. capacity 0: 3 R for limits (enough
 * unless rows of one block see keys far apart), FX_MASK_CAPACITY for an expression. */
fx_runs fx_mask_runs_plan(const fx_mask_program *program, int32_t B, int32_t H, int32_t T, int32_t T_kv,
                          int32_t tile_q, int32_t tile_kv, int32_t capacity);
/* 0 for limits. */
size_t fx_mask_runs_scratch(const fx_mask_program *program, const fx_runs *runs);
/* Fills planned and bound row runs: from `limits`, which were built from the same batch, or (EXPRESSION,
 * limits NULL) from the mask itself. Transposed runs: fx_runs_transpose. FX_ERR_SHAPE as above. */
fx_status fx_mask_runs_build(const fx_mask_program *program, const fx_mask_batch *batch,
                             const fx_limits *limits, fx_runs *runs, void *scratch);

#ifdef __cplusplus
}
#endif
#endif
