/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank of a context-parallel group computes of each batch: the assignment of blocks of 128 positions
 * to ranks, by the area that the model's masks let them see and by whose keys must travel for it, and the
 * rows of a batch that are this rank's. One assignment serves all layers: areas are summed over them. */
#ifndef FX_CORE_MODEL_CONTEXT_H
#define FX_CORE_MODEL_CONTEXT_H

#include "core/model/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FX_ERR_CONFIG: T does not divide into blocks of 128 for `ranks` ranks; names train.seq_length and
 * parallel.context. */
fx_status fx_context_check(const fx_config *config, int64_t T, int ranks);

/* What parallel.context_exchange=auto stands for, from a set-up made for a ring: the exchange that costs
 * least, where a batch may change the masks as for a causal one. Allocates; for set-up. */
fx_status fx_context_exchange_auto(const fx_config *config, fx_backend backend,
                                   const fx_attention_setup *ring, fx_context_exchange *out);

/* The values that fx_context_attention takes, from the fields context_blocks and context_shared (FX_NONE
 * without a ring) of a set-up of several ranks. */
fx_context_blocks fx_context_values(fx_graph *graph, const fx_attention_setup *setup, fx_value blocks,
                                    fx_value shared);

/* Scratch bytes of fx_context_assign. */
size_t fx_context_scratch(const fx_attention_setup *setup);

/* Of each block of 128 queries: the blocks of 128 keys [first, last) around all that its queries see in any
 * layer, head and sample; both 0 where they see nothing. May hold more than that, never less. */
typedef struct fx_context_reach {
  int32_t *first, *last; /* [T / 128] each, the caller's memory */
} fx_context_reach;

/* Visible pairs of each block's queries, summed over layers, heads and samples; exact where limits represent
 * the mask, else a partial tile counts as half of one. Kinds without layers do not count. buffer[kind]: the
 * kind's buffers by number in its variant's pool. area[T / 128]; reach: NULL if not asked for; scratch as
 * above. */
fx_status fx_context_area(const fx_attention_setup *setup, const void *const *const *buffer, double *area,
                          const fx_context_reach *reach, void *scratch);

/* blocks[T / 128]: global position of every block of 128, rank by rank. shared: what travels; NULL if not
 * asked for. */
fx_status fx_context_assign(const fx_attention_setup *setup, const void *const *const *buffer,
                            int32_t *blocks, const fx_attention_shared *shared, void *scratch);

/* What a ring must make room for where masks are fixed, and which part of all pairs is visible (may be NULL).
 * Allocates; for set-up. */
fx_status fx_context_need(const fx_attention_setup *setup, fx_ring_room *need, double *density);

/* This rank's rows of one number a position: whole int32 [B, T] -> local [B, rows], by the assignment. */
void fx_context_take_rows(const fx_attention_setup *setup, const int32_t *blocks, const int32_t *whole,
                          int32_t *local);

#ifdef __cplusplus
}
#endif
#endif
