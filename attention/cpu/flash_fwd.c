/* SPDX-License-Identifier: Apache-2.0 */
/* One task is one row block of one head: Q is packed once (transposed, scaled into base 2), key tiles stream
 * past it. Per group of 32 rows: S^T = K Q^T, online softmax by lanes, O = alpha O + P V. */
#include "attention/cpu/flash_fwd.h"

#include <omp.h>
#include <string.h>

#include "attention/cpu/flash_internal.h"

/* A thread's scratch. Strides: q [group][D][32], k, v [keys][D + pad], s [keys][32], o [rows][D + pad]. */
typedef struct forward_scratch {
  float *q, *k, *v, *s, *o, *m, *l, *alpha;
} forward_scratch;

static int64_t scratch_bind(int32_t D, float *base, forward_scratch *scratch) {
  fx_attention_tile tile = fx_attention_cpu_tile(FX_ATTENTION_FORWARD, D);
  int64_t row = D + FX_FLASH_PAD, at = 0;
  scratch->q = fx_flash_take(base, &at, (int64_t)tile.q * D);
  scratch->k = fx_flash_take(base, &at, tile.kv * row);
  scratch->v = fx_flash_take(base, &at, tile.kv * row);
  scratch->s = fx_flash_take(base, &at, (int64_t)tile.kv * FX_LEAF_GROUP);
  scratch->o = fx_flash_take(base, &at, tile.q * row);
  scratch->m = fx_flash_take(base, &at, FX_FLASH_ROWS);
  scratch->l = fx_flash_take(base, &at, FX_FLASH_ROWS);
  scratch->alpha = fx_flash_take(base, &at, FX_FLASH_ROWS);
  return at;
}

int64_t fx_flash_forward_scratch(int32_t D) {
  forward_scratch scratch;
  return scratch_bind(D, NULL, &scratch);
}

/* The inputs of a task; the same for the whole forward and for a chunk. */
typedef struct forward_task {
  const fx_attention_shape *shape;
  const fx_leaf *leaf;
  fx_attention_in q, k, v;
  int32_t b, h, block;
} forward_task;

/* Packs the block's queries as scale * log2(e) * Q^T, groups apart, rows past the end zero. */
static void pack_queries(const forward_task *task, const fx_flash_rows *rows,
                         const forward_scratch *scratch) {
  int32_t D = task->shape->D, groups = (rows->count + FX_LEAF_GROUP - 1) / FX_LEAF_GROUP;
  int64_t row = D + FX_FLASH_PAD;
  const float *q = fx_flash_in_head(&task->q, task->b, task->h) + rows->first * task->q.time;
  float factor = (float)(task->shape->scale * FX_FLASH_LOG2E);
  task->leaf->copy_rows(rows->count, D, factor, q, task->q.time, scratch->o, row);
  for (int32_t r = rows->count; r < groups * FX_LEAF_GROUP; r++)
    memset(scratch->o + r * row, 0, (size_t)D * sizeof(float));
  for (int32_t g = 0; g < groups; g++)
    task->leaf->transpose(FX_LEAF_GROUP, D, scratch->o + g * FX_LEAF_GROUP * row, row,
                          scratch->q + g * FX_LEAF_GROUP * D, FX_LEAF_GROUP);
}

/* Keys [from, to), packed at tile_k and tile_v, for group g. */
static void attend_group(const forward_task *task, const fx_flash_rows *rows, const forward_scratch *scratch,
                         int32_t g, int32_t from, int32_t to, const float *tile_k, const float *tile_v) {
  const fx_leaf *leaf = task->leaf;
  int32_t D = task->shape->D, at = g * FX_LEAF_GROUP, keys = to - from;
  int32_t live = fx_flash_at_most(rows->count - at, FX_LEAF_GROUP);
  int64_t row = D + FX_FLASH_PAD;
  fx_leaf_mask mask = {rows->lo + at, rows->hi + at, from};
  bool full = fx_flash_full(&rows->group[g], from, to);
  /* lanes past the live rows (rounded up to 8) keep stale scores; nothing reads what becomes of them */
  leaf->gemm(keys, (live + 7) / 8 * 8, D, tile_k, row, 1, scratch->q + (int64_t)at * D, FX_LEAF_GROUP,
             scratch->s, FX_LEAF_GROUP, false);
  leaf->softmax(keys, scratch->s, FX_LEAF_GROUP, full ? NULL : &mask, scratch->m + at, scratch->l + at,
                scratch->alpha + at);
  float *o = scratch->o + at * row;
  leaf->scale_rows(live, D, scratch->alpha + at, o, row, o, row);
  if (full)
    leaf->gemm(live, D, keys, scratch->s, 1, FX_LEAF_GROUP, tile_v, row, o, row, true);
  else
    leaf->gemm_masked(live, D, keys, scratch->s, FX_LEAF_GROUP, tile_v, row, o, row, &mask);
}

/* Adds all keys the block sees to o, m, l in scratch. */
static void attend_block(const forward_task *task, const fx_flash_rows *rows,
                         const forward_scratch *scratch) {
  const fx_attention_shape *shape = task->shape;
  int32_t D = shape->D, kv_head = task->h / (shape->H / shape->K), from, to;
  int64_t row = D + FX_FLASH_PAD;
  const float *k = fx_flash_in_head(&task->k, task->b, kv_head),
              *v = fx_flash_in_head(&task->v, task->b, kv_head);
  fx_flash_walk walk = fx_flash_walk_begin(
      shape, task->b, task->block, fx_attention_cpu_tile(FX_ATTENTION_FORWARD, D).kv, rows, 0, shape->T_kv);
  while (fx_flash_walk_next(&walk, &from, &to)) {
    task->leaf->copy_rows(to - from, D, 1.0f, k + from * task->k.time, task->k.time, scratch->k, row);
    task->leaf->copy_rows(to - from, D, 1.0f, v + from * task->v.time, task->v.time, scratch->v, row);
    for (int32_t g = 0; g * FX_LEAF_GROUP < rows->count; g++) {
      int32_t low, high;
      if (fx_flash_cut(&rows->group[g], from, to, &low, &high))
        attend_group(task, rows, scratch, g, low, high, scratch->k + (low - from) * row,
                     scratch->v + (low - from) * row);
    }
  }
}

static void state_clear(const fx_flash_rows *rows, int32_t D, const forward_scratch *scratch) {
  for (int32_t r = 0; r < FX_FLASH_ROWS; r++) {
    scratch->m[r] = -INFINITY;
    scratch->l[r] = 0.0f;
  }
  memset(scratch->o, 0, (size_t)rows->count * (size_t)(D + FX_FLASH_PAD) * sizeof(float));
}

/* ln(sum of exp) from base-2 maximum and sum; -inf for an empty row. In double: one a row. */
static float natural_lse(float m, float l) {
  return l == 0.0f ? -INFINITY : (float)(m * FX_FLASH_LN2 + log((double)l));
}

static void finish_rows(const fx_leaf *leaf, int32_t D, int32_t count, const float *m, const float *l,
                        const float *o, int64_t o_row, float *out, int64_t out_row, float *lse) {
  float inverse[FX_FLASH_ROWS];
  for (int32_t r = 0; r < count; r++) {
    inverse[r] = l[r] == 0.0f ? 0.0f : 1.0f / l[r];
    lse[r] = natural_lse(m[r], l[r]);
  }
  leaf->scale_rows(count, D, inverse, o, o_row, out, out_row);
}

static void forward_block(const fx_attention_forward *args, const forward_task *task,
                          const forward_scratch *scratch) {
  const fx_attention_shape *shape = &args->shape;
  int32_t size = fx_attention_cpu_tile(FX_ATTENTION_FORWARD, shape->D).q;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, task->b, task->block, size, &rows);
  pack_queries(task, &rows, scratch);
  state_clear(&rows, shape->D, scratch);
  attend_block(task, &rows, scratch);
  const fx_attention_out *out = &args->out;
  finish_rows(task->leaf, shape->D, rows.count, scratch->m, scratch->l, scratch->o, shape->D + FX_FLASH_PAD,
              out->data + task->b * out->batch + task->h * out->head + rows.first * out->time, out->time,
              args->lse + ((int64_t)task->b * shape->H + task->h) * fx_attention_tpad(shape->T_q) +
                  rows.first);
}

static void partial_block(const fx_attention_partial *args, const forward_task *task,
                          const forward_scratch *scratch) {
  const fx_attention_shape *shape = &args->shape;
  const fx_attention_out *state = &args->state.o;
  int32_t D = shape->D;
  int64_t row = D + FX_FLASH_PAD;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, task->b, task->block, fx_attention_cpu_tile(FX_ATTENTION_FORWARD, D).q, &rows);
  float *o = state->data + task->b * state->batch + task->h * state->head + rows.first * state->time;
  int64_t at = ((int64_t)task->b * shape->H + task->h) * fx_attention_tpad(shape->T_q) + rows.first;
  pack_queries(task, &rows, scratch);
  state_clear(&rows, D, scratch);
  if (!args->first) {
    memcpy(scratch->m, args->state.m + at, (size_t)rows.count * sizeof(float));
    memcpy(scratch->l, args->state.l + at, (size_t)rows.count * sizeof(float));
    task->leaf->copy_rows(rows.count, D, 1.0f, o, state->time, scratch->o, row);
  }
  attend_block(task, &rows, scratch);
  memcpy(args->state.m + at, scratch->m, (size_t)rows.count * sizeof(float));
  memcpy(args->state.l + at, scratch->l, (size_t)rows.count * sizeof(float));
  task->leaf->copy_rows(rows.count, D, 1.0f, scratch->o, row, o, state->time);
}

static void pad_lse(const fx_attention_shape *shape, float *lse) {
  int64_t Tpad = fx_attention_tpad(shape->T_q);
  for (int64_t head = 0; head < (int64_t)shape->B * shape->H; head++)
    for (int64_t t = shape->T_q; t < Tpad; t++) lse[head * Tpad + t] = -INFINITY;
}

/* Runs all row blocks; blocks of one head follow each other, last (for causal masks the longest) first.
 * Exactly one of forward and partial is given. */
static void run_blocks(const fx_attention_shape *shape, fx_attention_in q, fx_attention_in k,
                       fx_attention_in v, float *workspace, const fx_attention_forward *forward,
                       const fx_attention_partial *partial) {
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  int64_t floats = fx_flash_forward_scratch(shape->D);
  int32_t size = fx_attention_cpu_tile(FX_ATTENTION_FORWARD, shape->D).q;
  int32_t blocks = (shape->T_q + size - 1) / size;
  int64_t tasks = (int64_t)shape->B * shape->H * blocks;
#pragma omp parallel for schedule(dynamic, 1) num_threads(fx_flash_threads(shape->threads))
  for (int64_t i = 0; i < tasks; i++) {
    forward_scratch scratch;
    scratch_bind(shape->D, workspace + omp_get_thread_num() * floats, &scratch);
    int32_t head = (int32_t)(i / blocks);
    forward_task task = {.shape = shape,
                         .leaf = leaf,
                         .q = q,
                         .k = k,
                         .v = v,
                         .b = head / shape->H,
                         .h = head % shape->H,
                         .block = blocks - 1 - (int32_t)(i % blocks)};
    if (forward)
      forward_block(forward, &task, &scratch);
    else
      partial_block(partial, &task, &scratch);
  }
}

fx_status fx_attention_cpu_forward(const fx_attention_forward *args) {
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_FORWARD, &args->shape));
  run_blocks(&args->shape, args->q, args->k, args->v, args->workspace, args, NULL);
  pad_lse(&args->shape, args->lse);
  return FX_OK;
}

fx_status fx_attention_cpu_partial(const fx_attention_partial *args) {
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_FORWARD, &args->shape));
  run_blocks(&args->shape, args->q, args->k, args->v, args->workspace, NULL, args);
  return FX_OK;
}

fx_status fx_attention_cpu_finalize(const fx_attention_shape *shape, const fx_attention_state *state,
                                    fx_attention_out out, float *lse) {
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_FORWARD, shape));
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  int32_t blocks = (shape->T_q + FX_FLASH_ROWS - 1) / FX_FLASH_ROWS;
  int64_t tasks = (int64_t)shape->B * shape->H * blocks, Tpad = fx_attention_tpad(shape->T_q);
  const fx_attention_out *o = &state->o;
#pragma omp parallel for num_threads(fx_flash_threads(shape->threads))
  for (int64_t i = 0; i < tasks; i++) {
    int64_t head = i / blocks, b = head / shape->H, h = head % shape->H, first = i % blocks * FX_FLASH_ROWS;
    int64_t at = head * Tpad + first;
    finish_rows(leaf, shape->D, fx_flash_at_most(shape->T_q - (int32_t)first, FX_FLASH_ROWS), state->m + at,
                state->l + at, o->data + b * o->batch + h * o->head + first * o->time, o->time,
                out.data + b * out.batch + h * out.head + first * out.time, out.time, lse + at);
  }
  pad_lse(shape, lse);
  return FX_OK;
}
