/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter: expressions at points, and the tile functions of a variant, without a compiler.
 *
 * Both forms run the same loops over 256 lanes (semantics.h), so they agree with each other, with constant
 * folding and with generated C bit for bit (NaNs may differ in sign and payload). */
#ifndef FX_ATTENTION_TILE_INTERP_H
#define FX_ATTENTION_TILE_INTERP_H

#include "attention/lang/expr.h"
#include "attention/tile/tile.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_INTERP_MAX_OUTPUTS = 16 };

typedef struct fx_interp fx_interp; /* immutable: any number of threads may run it */

/* What expressions read besides variables. uniform NULL: the parameters' values in the pool. A constant table
 * may be NULL in `buffer`, and `buffer` may be NULL when there are only such. */
typedef struct fx_interp_inputs {
  const float *uniform;      /* [params of the pool] */
  const void *const *buffer; /* [buffers of the pool]: int32 or float, of one sample where per_batch */
} fx_interp_inputs;

/* outputs[num_outputs <= 16] are nodes of the pool. The pool may not be destroyed before the interpreter when
 * it has constant tables. FX_ERR_MEMORY; FX_ERR_UNSUPPORTED: too many values live at once. */
fx_status fx_interp_create(const fx_ex_pool *pool, const fx_ex *outputs, int num_outputs, fx_interp **interp);
void fx_interp_destroy(fx_interp *interp);

/* output[i][p] = value of output i at the point (h, q[p], kv[p]) with score[p], for 0 <= p < n: float, or
 * int32 for ints and bools (0 or 1). q, kv, score may be NULL where no output depends on them. Outputs
 * overlap neither one another nor the inputs. Allocates nothing; uses up to 170 KiB of stack. */
void fx_interp_run(const fx_interp *interp, const fx_interp_inputs *inputs, int32_t h, int64_t n,
                   const int32_t *q, const int32_t *kv, const float *score, void *const *output);

/* The variant's tile functions, interpreted; borrows nothing but the pool's constant tables. */
struct fx_variant;
typedef struct fx_tile_interp fx_tile_interp;
fx_status fx_tile_interp_create(const struct fx_variant *variant, fx_tile_interp **interp);
void fx_tile_interp_destroy(fx_tile_interp *interp);
/* Its `self` is the interpreter. */
fx_tile_functions fx_tile_interp_functions(const fx_tile_interp *interp);

#ifdef __cplusplus
}
#endif
#endif
