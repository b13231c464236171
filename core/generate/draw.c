/* SPDX-License-Identifier: Apache-2.0 */
#include "core/generate/draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"

fx_status fx_draw_init(fx_draw *draw, const fx_draw_options *options, int32_t vocab) {
  memset(draw, 0, sizeof *draw);
  if (!(options->temperature >= 0 && options->temperature <= 1000))
    return fx_error(FX_ERR_USAGE, "temperature %g is not between 0 and 1000", options->temperature);
  if (options->top_k < 0) return fx_error(FX_ERR_USAGE, "top-k %d is below 0", (int)options->top_k);
  if (!(options->top_p > 0 && options->top_p <= 1))
    return fx_error(FX_ERR_USAGE, "top-p %g is not above 0 and at most 1", options->top_p);
  FX_ASSERT(vocab > 0);
  draw->options = *options;
  draw->vocab = vocab;
  return fx_calloc(&draw->candidate, (size_t)vocab, sizeof *draw->candidate);
}

void fx_draw_fini(fx_draw *draw) {
  free(draw->candidate);
  memset(draw, 0, sizeof *draw);
}

/* Likeliest first; total, so that every sort gives one order. */
static int by_logit(const void *left, const void *right) {
  const fx_candidate *a = left, *b = right;
  if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
  return (a->token > b->token) - (a->token < b->token);
}

static fx_status rank_candidates(fx_draw *draw, const float *logits) {
  for (int32_t i = 0; i < draw->vocab; i++) {
    if (!isfinite(logits[i]))
      return fx_error(FX_ERR_CHECKPOINT,
                      "the logit of token %d is %g: the weights of this checkpoint are not usable", (int)i,
                      (double)logits[i]);
    draw->candidate[i] = (fx_candidate){.logit = logits[i], .token = i};
  }
  qsort(draw->candidate, (size_t)draw->vocab, sizeof *draw->candidate, by_logit);
  return FX_OK;
}

/* Softmax over the first `count` candidates, in double from the largest logit down. */
static void set_probabilities(fx_draw *draw, int32_t count) {
  fx_candidate *c = draw->candidate;
  double largest = (double)c[0].logit, sum = 0;
  for (int32_t i = 0; i < count; i++)
    sum += c[i].probability = exp(((double)c[i].logit - largest) / draw->options.temperature);
  for (int32_t i = 0; i < count; i++) c[i].probability /= sum;
}

static void keep(fx_draw *draw) {
  const fx_draw_options *o = &draw->options;
  int32_t count = o->top_k > 0 && o->top_k < draw->vocab ? o->top_k : draw->vocab;
  set_probabilities(draw, count);
  if (o->top_p < 1) {
    double reached = 0;
    int32_t nucleus = 0;
    while (nucleus < count && reached < o->top_p) reached += draw->candidate[nucleus++].probability;
    for (int32_t i = 0; i < nucleus; i++) draw->candidate[i].probability /= reached;
    count = nucleus;
  }
  draw->kept = count;
}

fx_status fx_draw_next(fx_draw *draw, const float *logits, uint64_t position, int32_t *token) {
  FX_TRY(rank_candidates(draw, logits));
  if (draw->options.temperature == 0) {
    draw->kept = 1;
    draw->candidate[0].probability = 1;
    *token = draw->candidate[0].token;
    return FX_OK;
  }
  keep(draw);
  fx_philox random = fx_philox_at(draw->options.seed, fx_hash64_text("generate"), position, 0);
  double left = fx_philox_open(random.word[0]);
  int32_t i = 0;
  while (i + 1 < draw->kept && left >= draw->candidate[i].probability)
    left -= draw->candidate[i++].probability;
  *token = draw->candidate[i].token;
  return FX_OK;
}
