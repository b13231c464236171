/* SPDX-License-Identifier: Apache-2.0 */
/* Table lookups, the language-model head with its loss, and dropout. */
#ifndef FX_DYNAMO_RT_OPS_EMBEDDING_H
#define FX_DYNAMO_RT_OPS_EMBEDDING_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* T: F32 or BF16. ids [B, T] int32 in [0, V), table [V, E] T -> [B, T, E] T. An id out of range fails the
 * step with FX_ERR_DATA. The gradient of the table is F32; it adds rows of one id in order of appearance
 * (CUDA: of more than 16, in pieces that end at every 32nd place of all rows sorted by id, and those sums by
 * 32 and then all, in order), so it has the same bits every time. */
fx_value fx_embedding(fx_graph *graph, fx_value ids, fx_value table);

typedef struct fx_head_ce_attr {
  int64_t valid_vocab; /* logits from here on are padding and masked; 0: all are valid */
} fx_head_ce_attr;

/* Language-model head fused with cross-entropy. x [B, T, E] and weight [V, E] of one type T (F32 or BF16,
 * which the logits and dx are of too), targets [B, T] int32 (negative: masked), factor [1] F32 -> nll [B, T]
 * (0 where masked) and loss [1] = factor * sum(nll), both F32, as the gradient of the weight. Rows are
 * processed in chunks: the logits of a chunk become probabilities and then their own gradient in place, and
 * give dx and dweight at once, so neither logits nor probabilities of all B*T rows ever exist. The backward
 * only scales those by dloss (free when it is the constant 1). nll itself is not differentiable. */
fx_value fx_head_ce(fx_graph *graph, fx_value x, fx_value weight, fx_value targets, fx_value factor,
                    fx_head_ce_attr attr, fx_value *nll);

/* How many of `rows` rows of logits over `vocab` ids, T `dtype`, a device of `backend` holds at a time. */
int64_t fx_head_chunk_rows(fx_backend backend, int64_t rows, int64_t vocab, fx_dtype dtype);

typedef struct fx_dropout_attr {
  uint64_t seed, site; /* site: fx_hash64_text of the module's name without its layer number */
  float p;
  int32_t reserved;
  int64_t first_row, length; /* x holds rows from first_row on of all B * length; length 0: all, as shaped */
} fx_dropout_attr;

/* Each element has 16 bits of a draw, eight of them share one; it is zeroed where those are less than
 * `below`, so that p counts in units of 2^-16, and multiplied by `keep` else, so that the mean stays. */
typedef struct fx_dropout_rule {
  uint32_t below;
  float keep;
} fx_dropout_rule;

static inline fx_dropout_rule fx_dropout_rule_of(float p) {
  uint32_t below = (uint32_t)(p * 65536.0f + 0.5f), most = 65535;
  if (below > most) below = most;
  return (fx_dropout_rule){below, 65536.0f / (float)(65536 - below)};
}

/* x [B, T, E] T, or with `length` [rows, E] (a sequence shard), with each element zeroed with probability p,
 * the others divided by 1 - p (fx_dropout_rule). The draw depends only on (seed, site, layer, sample ordinal,
 * position, channel, iteration): no mask is stored and no layout changes it. ordinal [B] int64, iteration [1]
 * int64. */
fx_value fx_dropout(fx_graph *graph, fx_value x, fx_value ordinal, fx_value iteration, fx_dropout_attr attr);
/* The same for rows that are part of a longer sequence: blocks int32, [T / 128] elements, is the position of
 * every 128 rows in it (T a multiple of 128). FX_NONE: the rows are the sequence. */
fx_value fx_dropout_at(fx_graph *graph, fx_value x, fx_value ordinal, fx_value iteration, fx_value blocks,
                       fx_dropout_attr attr);

#ifdef __cplusplus
}
#endif
#endif
