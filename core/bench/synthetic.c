/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/synthetic.h"

#include <math.h>
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"

static double uniform_at(uint64_t *state) { /* (0, 1] */
  *state += 0x9e3779b97f4a7c15ull;
  uint64_t z = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return ((double)((z ^ (z >> 31)) >> 11) + 1) * 0x1p-53;
}

/* A length of exponential distribution around `mean`, at least 1. */
static int64_t draw_length(uint64_t *state, double mean) {
  return 1 + (int64_t)(-log(uniform_at(state)) * fmax(mean - 0.5, 0));
}

int32_t fx_synthetic_fill(int32_t input, int32_t *x, int32_t n, int64_t mean, uint64_t seed) {
  uint64_t documents = seed, turns = seed + 1, tokens = seed + 2;
  int32_t count = 0;
  for (int64_t start = 0; start < n; count++) {
    int64_t end = mean > 0 ? fx_min_i64(start + draw_length(&documents, (double)mean), n) : n, turn = 0,
            next = 0;
    for (int64_t i = start; i < end; i++) {
      if (i == start) next = start + draw_length(&turns, (double)(end - start) / 6);
      if (i == next) turn++, next += draw_length(&turns, (double)(end - start) / 6);
      const int64_t values[] = {
          [FX_SYNTHETIC_DOC_START] = start,    [FX_SYNTHETIC_DOC_END] = end, [FX_SYNTHETIC_DOC_ID] = count,
          [FX_SYNTHETIC_POSITION] = i - start, [FX_SYNTHETIC_TOKEN] = 0,     [FX_SYNTHETIC_TURN] = turn,
          [FX_SYNTHETIC_ROLE] = turn % 2};
      x[i] = input == FX_SYNTHETIC_TOKEN ? (int32_t)(uniform_at(&tokens) * 255) : (int32_t)values[input];
    }
    start = end;
  }
  return count;
}

fx_status fx_synthetic_sample(int32_t *const rows[FX_SYNTHETIC_ROWS], int32_t n, int64_t mean, uint64_t seed,
                              int32_t end_of_turn, int32_t *documents) {
  static const int32_t inputs[FX_SYNTHETIC_ROWS] = {FX_SYNTHETIC_TOKEN, FX_SYNTHETIC_POSITION,
                                                    FX_SYNTHETIC_DOC_START, FX_SYNTHETIC_DOC_END};
  int32_t *tokens = rows[0], *start = rows[2], *turns = NULL;
  FX_TRY(fx_calloc(&turns, (size_t)n, sizeof *turns));
  for (int i = 0; i < FX_SYNTHETIC_ROWS; i++)
    *documents = fx_synthetic_fill(inputs[i], rows[i], n, mean, seed);
  (void)fx_synthetic_fill(FX_SYNTHETIC_TURN, turns, n, mean, seed);
  for (int32_t t = 0; t + 1 < n; t++) {
    bool ends = start[t + 1] == start[t] && turns[t + 1] != turns[t];
    if (ends)
      tokens[t] = end_of_turn;
    else if (tokens[t] == end_of_turn)
      tokens[t]++;
  }
  free(turns);
  return FX_OK;
}

void fx_synthetic_fill_buffer(const fx_ex_buffer *d, void *data, int64_t count, uint64_t seed) {
  uint64_t state = seed + 3;
  double range = fmin((double)d->hi - d->lo, 1e6), sum = 0;
  for (int64_t i = 0; i < count; i++) {
    double x = uniform_at(&state);
    sum += x;
    if (d->type == FX_EX_FLOAT)
      ((float *)data)[i] = (float)x;
    else
      ((int32_t *)data)[i] =
          d->lo + (int32_t)(d->monotone ? range * fmin(sum / (double)count, 1) : range * x);
  }
}
