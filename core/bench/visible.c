/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/visible.h"

#include "dynamo_rt/base/memory.h"

enum { POINTS = 4096 };
#define MAX_EXACT_PAIRS ((int64_t)1 << 28) /* pairs of partial tiles that are counted one by one */

/* Visible pairs among n points. */
static int64_t ask(const fx_visible *visible, int64_t n, const int32_t *q, const int32_t *kv) {
  int32_t out[POINTS];
  void *output = out;
  fx_interp_run(visible->mask, &(fx_interp_inputs){NULL, visible->buffer}, visible->head, n, q, kv, NULL,
                &output);
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) count += out[i] != 0;
  return count;
}

double fx_visible_part(const fx_visible *visible, int64_t q0, int64_t q1, int64_t k0, int64_t k1,
                       int64_t most) {
  int32_t q[POINTS], kv[POINTS];
  int64_t rows = q1 - q0, keys = k1 - k0, down = fx_min_i64(rows, most), across = fx_min_i64(keys, most);
  int64_t n = 0, count = 0;
  for (int64_t i = 0; i < down; i++)
    for (int64_t j = 0; j < across; j++) {
      q[n] = (int32_t)(q0 + (2 * i + 1) * rows / (2 * down));
      kv[n++] = (int32_t)(k0 + (2 * j + 1) * keys / (2 * across));
      if (n == POINTS) count += ask(visible, n, q, kv), n = 0;
    }
  if (n) count += ask(visible, n, q, kv);
  return (double)count / (double)(down * across);
}

static int64_t partial_tiles(const fx_runs *rows, int32_t b, int32_t h) {
  int64_t partial = 0;
  for (int32_t i = 0; i < rows->blocks; i++) {
    int32_t count;
    const fx_run *run = fx_runs_get_head(rows, b, h, i, &count);
    for (int32_t k = 0; k < count; k++)
      if (run[k].kind == FX_RUN_PARTIAL) partial += run[k].end - run[k].begin;
  }
  return partial;
}

double fx_visible_pairs(const fx_visible *visible, const fx_runs *rows, int32_t b, int32_t h, bool *exact) {
  bool all = partial_tiles(rows, b, h) * rows->block <= MAX_EXACT_PAIRS / rows->tile;
  *exact = all;
  double pairs = 0;
  for (int64_t i = 0; i < rows->blocks; i++) {
    int32_t count;
    const fx_run *run = fx_runs_get_head(rows, b, h, i, &count);
    int64_t q0 = i * rows->block, q1 = fx_min_i64(q0 + rows->block, rows->block_length);
    for (int32_t k = 0; k < count; k++)
      for (int64_t j = run[k].begin; j < run[k].end; j++) {
        int64_t k0 = j * rows->tile, k1 = fx_min_i64(k0 + rows->tile, rows->tile_length);
        double part = run[k].kind == FX_RUN_FULL
                          ? 1
                          : fx_visible_part(visible, q0, q1, k0, k1, all ? INT32_MAX : FX_VISIBLE_CELL);
        pairs += part * (double)(q1 - q0) * (double)(k1 - k0);
      }
  }
  return pairs;
}
