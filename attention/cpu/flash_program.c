/* SPDX-License-Identifier: Apache-2.0 */
/* A variant's functions at work: arguments for a group of rows and a range of keys, and who sees whom. */
#include <string.h>

#include "attention/cpu/flash_internal.h"

int64_t fx_flash_table_floats(const fx_attention_program *program) {
  int64_t floats = 0;
  for (int32_t i = 0; program && program->table_floats && i < program->num_buffers; i++)
    floats += program->table_floats[i];
  return floats;
}

void fx_flash_tile_begin(const fx_attention_shape *shape, int32_t b, int32_t h, float *tables, int *fault,
                         fx_flash_tile *tile) {
  const fx_attention_program *program = shape->program;
  tile->program = program;
  if (!program) return;
  tile->tile = program->tile;
  tile->fault = fault;
  for (int32_t i = 0; i < program->num_buffers; i++) {
    const fx_attention_buffer *buffer = &program->buffers[i];
    tile->buffer[i] = (const char *)buffer->data + b * buffer->batch_bytes;
    tile->table[i] = tables;
    if (tables && program->table_floats) tables += program->table_floats[i];
  }
  tile->args = (fx_tile_args){.self = program->tile->self,
                              .uniform = program->uniform,
                              .buffer = tile->buffer,
                              .table_grad = tile->table,
                              .h = shape->first_head + h,
                              .kv = tile->kv};
}

void fx_flash_tile_place(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g,
                         const fx_flash_keys *keys) {
  if (!tile->program) return;
  tile->args.q = rows->position + g * FX_LEAF_GROUP;
  tile->args.keys = keys->to - keys->from;
  for (int32_t n = 0; n < tile->args.keys; n++) tile->kv[n] = keys->from + n + keys->shift;
}

/* Bits of the rows of group g that exist. */
static uint32_t live_bits(const fx_flash_rows *rows, int32_t g) {
  int32_t live = rows->count - g * FX_LEAF_GROUP;
  return live >= 32 ? ~0u : (1u << live) - 1u;
}

fx_flash_seen fx_flash_tile_mask(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g,
                                 const fx_flash_keys *keys) {
  if (!tile->program || !tile->program->mask || !keys->partial) return FX_FLASH_ALL;
  tile->tile->mask(&tile->args, tile->bits);
  uint32_t live = live_bits(rows, g), any = 0, all = live;
  for (int32_t n = 0; n < tile->args.keys; n++) {
    tile->bits[n] &= live;
    any |= tile->bits[n];
    all &= tile->bits[n];
  }
  return all == live ? FX_FLASH_ALL : any ? FX_FLASH_SOME : FX_FLASH_NONE;
}

void fx_flash_tile_visible(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g,
                           const fx_flash_keys *keys, fx_flash_seen seen) {
  if (seen == FX_FLASH_SOME) return;
  uint32_t live = live_bits(rows, g);
  bool full = fx_flash_full(&rows->group[g], keys);
  for (int32_t n = 0; n < tile->args.keys; n++) {
    uint32_t word = live;
    for (int32_t r = 0; !full && r < FX_LEAF_GROUP; r++) {
      int32_t row = g * FX_LEAF_GROUP + r;
      if (tile->kv[n] < rows->lo[row] || tile->kv[n] >= rows->hi[row]) word &= ~(1u << r);
    }
    tile->bits[n] = word;
  }
}
