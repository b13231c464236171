/* SPDX-License-Identifier: Apache-2.0 */
/* What sharing a sequence costs by each exchange, to choose one before a plan is made. */
#ifndef FX_PARALLEL_CONTEXT_COST_H
#define FX_PARALLEL_CONTEXT_COST_H

#include "parallel/ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_context_shape {
  fx_backend backend;
  int ranks;
  int64_t B, T;    /* samples; positions of all ranks */
  int64_t H, K, D; /* heads and key heads of a tensor rank, columns of one */
  fx_dtype dtype;
  double density;    /* visible pairs of all T * T; a causal mask's is a half */
  fx_ring_room room; /* what would travel in a ring */
} fx_context_shape;

/* Seconds that a layer's forward and backward take on a rank beyond its share of the arithmetic: exchanges as
 * far as kernels do not hide them, passes over what is packed, merged or summed, a call's own time. Rates are
 * those of one kind of machine (context_cost.c), so only the order of the three counts. INFINITY: it cannot
 * be done (alltoall: the ranks do not divide the heads), or takes more memory than FX_CONTEXT_GATHER_BYTES
 * (allgather: all keys and values, their gradients in their type and in fp32). */
#define FX_CONTEXT_GATHER_BYTES ((int64_t)2 << 30)
double fx_context_cost(const fx_context_shape *shape, fx_context_exchange exchange);
/* The one that costs least. */
fx_context_exchange fx_context_choose(const fx_context_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
