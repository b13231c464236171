/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cpu/flash.h"

#include <omp.h>

#include "attention/cpu/flash_internal.h"
#include "dynamo_rt/base/memory.h"

/* Rows of a block, keys of a tile; a block's working set stays within 512 KiB of L2. */
static const struct {
  int32_t most_D;
  fx_attention_tile forward, backward;
} g_tiles[] = {
    {128, {128, 128}, {64, 64}},
    {256, {64, 64}, {64, 64}},
};

fx_attention_tile fx_attention_cpu_tile(fx_attention_pass pass, int32_t D) {
  size_t i = 0;
  while (i + 1 < sizeof g_tiles / sizeof g_tiles[0] && D > g_tiles[i].most_D) i++;
  return pass == FX_ATTENTION_FORWARD ? g_tiles[i].forward : g_tiles[i].backward;
}

int fx_flash_threads(int threads) {
  return threads > 0 ? threads : omp_get_max_threads();
}

int32_t fx_flash_splits(const fx_attention_shape *shape) {
  int64_t heads = (int64_t)shape->B * shape->K;
  int32_t tile = fx_attention_cpu_tile(FX_ATTENTION_BACKWARD, shape->D).kv;
  int64_t splits = fx_min_i64(fx_ceil_div(64, heads), 8);
  return (int32_t)fx_max_i64(fx_min_i64(splits, fx_ceil_div(shape->T_kv, tile) / 4), 1);
}

size_t fx_attention_cpu_workspace(fx_attention_pass pass, const fx_attention_shape *shape, int threads) {
  int64_t scratch =
      pass == FX_ATTENTION_FORWARD ? fx_flash_forward_scratch(shape->D) : fx_flash_backward_scratch(shape->D);
  int64_t floats = fx_flash_threads(threads) * scratch;
  floats += pass == FX_ATTENTION_FORWARD ? fx_flash_forward_shared(shape) : fx_flash_backward_shared(shape);
  return fx_align_up((size_t)floats * sizeof(float), FX_ALIGN);
}

static fx_status check_mask(fx_attention_pass pass, const fx_attention_shape *shape) {
  const fx_limits *limits = shape->limits;
  const fx_runs *runs = shape->runs;
  int32_t H = shape->all_heads ? shape->all_heads : shape->H;
  if (limits && (limits->R != 1 || limits->T != shape->T_q || (limits->Bm != 1 && limits->Bm != shape->B) ||
                 (fx_limits_heads(limits) != 1 && limits->Hm != H)))
    return fx_error(
        FX_ERR_SHAPE,
        "attention: limits are R=%d Bm=%d Hm=%d T=%d, expected R=1, Bm=1 or %d, Hm=1 or %d, T=%d (one "
        "row a query)",
        limits->R, limits->Bm, limits->Hm, limits->T, shape->B, H, shape->T_q);
  if (!runs) return FX_OK;
  fx_attention_tile tile = fx_attention_cpu_tile(pass, shape->D);
  if (runs->block != tile.q || runs->tile != tile.kv || runs->block_length != shape->T_q ||
      runs->tile_length != shape->T_kv || (runs->Bm != 1 && runs->Bm != shape->B) ||
      (fx_runs_heads(runs) != 1 && runs->Hm != H) || (!shape->kv_bases && runs->kv_base != shape->kv_base))
    return fx_error(
        FX_ERR_SHAPE,
        "attention: runs are %d lists of %d x %d in tiles of %d x %d at key %lld, expected 1 or %d "
        "lists of %d x %d in tiles of %d x %d at key %lld",
        runs->Bm, runs->block_length, runs->tile_length, runs->block, runs->tile, (long long)runs->kv_base,
        shape->B, shape->T_q, shape->T_kv, tile.q, tile.kv, (long long)shape->kv_base);
  return FX_OK;
}

fx_status fx_attention_cpu_check(fx_attention_pass pass, const fx_attention_shape *shape) {
  if (shape->B < 1 || shape->T_q < 1 || shape->T_kv < 1 || shape->K < 1 || shape->H < 1)
    return fx_error(FX_ERR_SHAPE, "attention: B=%d T_q=%d T_kv=%d H=%d K=%d, expected all positive", shape->B,
                    shape->T_q, shape->T_kv, shape->H, shape->K);
  if (shape->H % shape->K != 0)
    return fx_error(FX_ERR_SHAPE, "attention: %d query heads cannot share %d key heads evenly", shape->H,
                    shape->K);
  if (shape->D < 8 || shape->D > 256 || shape->D % 8 != 0)
    return fx_error(FX_ERR_UNSUPPORTED, "attention: head dimension %d, expected a multiple of 8 up to 256",
                    shape->D);
  if (!fx_leaf_get(shape->isa))
    return fx_error(FX_ERR_UNSUPPORTED, "attention: this processor lacks instruction set %d",
                    (int)shape->isa);
  if (shape->program && shape->program->mask && !shape->program->tile->mask)
    return fx_error(FX_ERR_INTERNAL, "attention: a mask program without a mask function");
  return check_mask(pass, shape);
}

static const fx_flash_span g_nothing = {INT32_MAX, 0, 0, INT32_MAX};

static void widen(fx_flash_span *span, int32_t lo, int32_t hi) {
  if (lo < hi) {
    if (lo < span->from) span->from = lo;
    if (hi > span->to) span->to = hi;
  }
  if (lo > span->inner_from) span->inner_from = lo;
  if (hi < span->inner_to) span->inner_to = hi;
}

static void load_positions(const fx_attention_shape *shape, fx_flash_rows *rows, int32_t size) {
  for (int32_t r = 0; r < size; r++) {
    int32_t t = rows->first + fx_flash_at_most(r, rows->count - 1);
    rows->position[r] = shape->q_bases ? shape->q_bases[t / FX_LIMITS_ALIGN] + t % FX_LIMITS_ALIGN : t;
  }
}

void fx_flash_rows_load(const fx_attention_shape *shape, int32_t b, int32_t h, int32_t block, int32_t size,
                        fx_flash_rows *rows) {
  const fx_limits *limits = shape->limits;
  rows->first = block * size;
  rows->count = fx_flash_at_most(shape->T_q - rows->first, size);
  rows->span = g_nothing;
  for (int32_t g = 0; g < FX_FLASH_GROUPS; g++) rows->group[g] = g_nothing;
  int64_t at = limits ? fx_limits_at(limits, 0, b, shape->first_head + h) + rows->first : 0;
  for (int32_t r = 0; r < size; r++) {
    bool exists = r < rows->count;
    int32_t lo = limits && exists ? limits->lo[at + r] : 0;
    int32_t hi = !exists ? 0 : limits ? limits->hi[at + r] : INT32_MAX;
    rows->lo[r] = lo < hi ? lo : 0;
    rows->hi[r] = lo < hi ? hi : 0;
    if (!exists) continue;
    widen(&rows->span, rows->lo[r], rows->hi[r]);
    widen(&rows->group[r / FX_LEAF_GROUP], rows->lo[r], rows->hi[r]);
  }
  if (shape->program) load_positions(shape, rows, size);
}

static int32_t shift_of(const fx_attention_shape *shape, int32_t key) {
  if (!shape->kv_bases) return (int32_t)shape->kv_base;
  int32_t block = key / FX_LIMITS_ALIGN;
  return shape->kv_bases[block] - block * FX_LIMITS_ALIGN;
}

fx_flash_walk fx_flash_walk_begin(const fx_attention_shape *shape, int32_t b, int32_t h, int32_t block,
                                  int32_t size, const fx_flash_rows *rows, int32_t from, int32_t to) {
  fx_flash_walk walk = {.shape = shape, .size = size, .from = from, .to = to};
  if (!shape->kv_bases) { /* one shift: cut to the keys the block sees */
    walk.from = (int32_t)fx_max_i64(from, rows->span.from - shape->kv_base);
    walk.to = (int32_t)fx_min_i64(to, rows->span.to - shape->kv_base);
  } else if (rows->span.from >= rows->span.to) {
    walk.to = walk.from;
  }
  if (walk.from >= walk.to) walk.from = walk.to = 0;
  walk.next = walk.from / size;
  if (shape->runs) {
    int32_t count;
    walk.run = fx_runs_get_head(shape->runs, b, shape->first_head + h, block, &count);
    walk.end = walk.run + count;
  }
  return walk;
}

bool fx_flash_walk_next(fx_flash_walk *walk, fx_flash_keys *keys) {
  while (walk->run && walk->run < walk->end && walk->run->end <= walk->next) walk->run++;
  if (walk->run) {
    if (walk->run == walk->end) return false;
    if (walk->next < walk->run->begin) walk->next = walk->run->begin;
  }
  int64_t begin = fx_max_i64((int64_t)walk->next * walk->size, walk->from);
  int64_t end = fx_min_i64(((int64_t)walk->next + 1) * walk->size, walk->to);
  walk->next++;
  if (begin >= end) return false;
  keys->from = (int32_t)begin;
  keys->to = (int32_t)end;
  keys->shift = shift_of(walk->shape, keys->from);
  keys->partial = !walk->run || walk->run->kind == FX_RUN_PARTIAL;
  return true;
}

bool fx_flash_sees(const fx_attention_shape *shape, int32_t b, int32_t h, int32_t block, int32_t size,
                   const fx_flash_rows *rows, int32_t from, int32_t to) {
  fx_flash_keys keys;
  fx_flash_walk walk = fx_flash_walk_begin(shape, b, h, block, size, rows, from, to);
  return fx_flash_walk_next(&walk, &keys);
}
