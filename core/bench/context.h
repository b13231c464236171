/* SPDX-License-Identifier: Apache-2.0 */
/* How evenly ranks that share a sequence would share its work, and how many keys would travel: the assignment
 * of a training batch, for one made-up sample. */
#ifndef FX_CORE_BENCH_CONTEXT_H
#define FX_CORE_BENCH_CONTEXT_H

#include "core/model/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_bench_context {
  int ranks;
  int64_t blocks;    /* of 128 positions, a rank */
  double *share;     /* [ranks] of the visible pairs of all layers and heads; they sum to 1. By alltoall,
                        which deals heads: equal */
  double imbalance;  /* largest share over the mean; 1 where nothing is visible */
  double contiguous; /* the same, were every rank given neighbouring blocks */
  fx_ring_room need; /* most blocks of a rank whose keys travel, and how many ranks on; all but in a ring */
  const char *exchange; /* what the ranks would use: "ring", "allgather" */
} fx_bench_context;

/* length: 0 stands for train.seq_length. documents, seed: as in core/bench/mask.h. Pairs are counted as the
 * assignment counts them (core/model/context.h). FX_ERR_USAGE: fewer than 2 ranks; FX_ERR_CONFIG: the length
 * cannot be dealt, or the variant cannot be built for it. Release with fini. */
fx_status fx_bench_context_init(const fx_config *config, int ranks, int64_t length, int64_t documents,
                                uint64_t seed, fx_bench_context *out);
/* The same of a batch: memory holds the fields that fx_attention_fill filled for a rank of several. A kind
 * whose `layers` are 0 does not count. */
fx_status fx_bench_context_measure(const fx_attention_setup *setup, void *const *memory,
                                   fx_bench_context *out);
void fx_bench_context_fini(fx_bench_context *context);

#ifdef __cplusplus
}
#endif
#endif
