/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the next token from logits: temperature, the k likeliest, the nucleus (top-p; Holtzman et al.,
 * "The Curious Case of Neural Text Degeneration", ICLR 2020).
 *
 * There is no generator state: the random number of a token is Philox(seed, "generate", position in the
 * text), so a text can be continued or repeated from any place. Temperature first, then top-k, then top-p
 * over what top-k kept, renormalised. Equal logits rank by token id. */
#ifndef FX_CORE_GENERATE_DRAW_H
#define FX_CORE_GENERATE_DRAW_H

#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_draw_options {
  double temperature; /* 0: the likeliest token, always; else logits are divided by it */
  int32_t top_k;      /* only the k likeliest; 0: all */
  double top_p;       /* only the smallest set of likeliest ones whose probability reaches it; 1: all */
  uint64_t seed;
} fx_draw_options;

typedef struct fx_candidate {
  float logit;
  int32_t token;
  double probability; /* over the kept candidates */
} fx_candidate;

typedef struct fx_draw {
  fx_draw_options options;
  fx_candidate *candidate; /* [vocab], owned; after a draw the first `kept` are the set it drew from */
  int32_t vocab, kept;
} fx_draw;

/* FX_ERR_USAGE: an option out of range. */
fx_status fx_draw_init(fx_draw *draw, const fx_draw_options *options, int32_t vocab);
void fx_draw_fini(fx_draw *draw);

/* logits [vocab], borrowed; position: of the token to be drawn, from the start of the text. *token is in
 * [0, vocab). Allocates nothing. FX_ERR_CHECKPOINT: a logit is not finite. */
fx_status fx_draw_next(fx_draw *draw, const float *logits, uint64_t position, int32_t *token);

#ifdef __cplusplus
}
#endif
#endif
