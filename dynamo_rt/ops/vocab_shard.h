/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding and head of a rank that holds rows [first, first + n) of a vocabulary: what it computes alone.
 * parallel/vocab_parallel.h puts the collectives between. T: F32 or BF16. */
#ifndef FX_DYNAMO_RT_OPS_VOCAB_SHARD_H
#define FX_DYNAMO_RT_OPS_VOCAB_SHARD_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_vocab_attr {
  int64_t first; /* id of this rank's first row */
  int64_t valid; /* ids of the whole vocabulary; rows from there on are padding and masked */
} fx_vocab_attr;

/* ids [B, T] int32 in [0, valid), table [n, E] T -> [B, T, E] T with rows of zeros where another rank holds
 * the id: the sum over ranks is the embedding. An id out of range fails the step with FX_ERR_DATA. The
 * gradient of the table is F32, its sums in the order of fx_embedding's. */
fx_value fx_vocab_embedding(fx_graph *graph, fx_value ids, fx_value table, fx_vocab_attr attr);

/* The three numbers of a row of logits that other ranks need. */
enum { FX_VOCAB_MAX, FX_VOCAB_SUM, FX_VOCAB_PICKED, FX_VOCAB_NUMBERS };

/* logits [R, n] T, targets [R] int32 (negative: masked) -> *numbers F32 [1, R, FX_VOCAB_NUMBERS]: maximum m
 * of this rank's logits (padding apart), sum of exp(logit - m), and the target's logit, 0 where another rank
 * has it. *scores, [R, n] T in the logits' place: what fx_vocab_merge reads on the same backend (CPU: the
 * exponentials; CUDA: the logits). A target >= valid fails the step with FX_ERR_DATA. */
void fx_vocab_row_numbers(fx_graph *graph, fx_value logits, fx_value targets, fx_vocab_attr attr,
                          fx_value *scores, fx_value *numbers);

/* numbers F32 [ranks, R, FX_VOCAB_NUMBERS] of all ranks, in their order; factor [1] F32 -> *nll F32 [R] (0
 * where masked), and *dlogits [R, n] T = factor (softmax - onehot) in the scores' place, 0 in padding and
 * masked rows. rank: this one. */
void fx_vocab_merge(fx_graph *graph, fx_value scores, fx_value numbers, fx_value targets, fx_value factor,
                    fx_vocab_attr attr, int rank, fx_value *dlogits, fx_value *nll);

/* nll [R] -> loss [1] = factor sum(nll), whose backward hands out the gradients dx [R, E] T and dweight [n,
 * E] F32 of x and weight, recorded before it. */
fx_value fx_vocab_loss(fx_graph *graph, fx_value nll, fx_value factor, fx_value x, fx_value weight,
                       fx_value dx, fx_value dweight);

typedef struct fx_vocab_merge_attr { /* of the op that fx_vocab_merge records, for its kernels */
  fx_vocab_attr vocab;
  int64_t rank;
} fx_vocab_merge_attr;

/* Of `cols` ids from attr.first on, how many are no padding. */
int64_t fx_vocab_counted(const fx_vocab_attr *attr, int64_t cols);

#ifdef __cplusplus
}
#endif
#endif
