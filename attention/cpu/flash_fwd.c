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
  fx_flash_tile tile;
} forward_task;

/* Packs the block's queries transposed, groups apart, rows past the end zero: times scale where a program
 * sees the scores, else times scale * log2(e). */
static void pack_queries(const forward_task *task, const fx_flash_rows *rows,
                         const forward_scratch *scratch) {
  int32_t D = task->shape->D, groups = (rows->count + FX_LEAF_GROUP - 1) / FX_LEAF_GROUP;
  int64_t row = D + FX_FLASH_PAD;
  float factor =
      fx_flash_scores(&task->tile) ? task->shape->scale : (float)(task->shape->scale * FX_FLASH_LOG2E);
  fx_flash_read(task->leaf, &task->q, task->b, task->h, rows->first, rows->count, D, factor, scratch->o, row);
  for (int32_t r = rows->count; r < groups * FX_LEAF_GROUP; r++)
    memset(scratch->o + r * row, 0, (size_t)D * sizeof(float));
  for (int32_t g = 0; g < groups; g++)
    task->leaf->transpose(FX_LEAF_GROUP, D, scratch->o + g * FX_LEAF_GROUP * row, row,
                          scratch->q + g * FX_LEAF_GROUP * D, FX_LEAF_GROUP);
}

/* The program's score, in place and in base 2; indices that may leave their buffers are checked. */
static void apply_score(fx_flash_tile *tile, const fx_flash_rows *rows, int32_t g, const fx_flash_keys *keys,
                        fx_flash_seen seen, float *s) {
  if (tile->tile->in_bounds) {
    fx_flash_tile_visible(tile, rows, g, keys, seen);
    if (!tile->tile->in_bounds(&tile->args, tile->bits, s, FX_LEAF_GROUP))
      __atomic_store_n(tile->fault, 1, __ATOMIC_RELAXED);
  }
  if (tile->tile->score) tile->tile->score(&tile->args, s, FX_LEAF_GROUP, (float)FX_FLASH_LOG2E);
}

/* Keys packed at tile_k and tile_v, for group g. */
static void attend_group(forward_task *task, const fx_flash_rows *rows, const forward_scratch *scratch,
                         int32_t g, const fx_flash_keys *keys, const float *tile_k, const float *tile_v) {
  const fx_leaf *leaf = task->leaf;
  int32_t D = task->shape->D, at = g * FX_LEAF_GROUP, count = keys->to - keys->from;
  int32_t live = fx_flash_at_most(rows->count - at, FX_LEAF_GROUP);
  int64_t row = D + FX_FLASH_PAD;
  fx_flash_tile_place(&task->tile, rows, g, keys);
  fx_flash_seen seen = fx_flash_tile_mask(&task->tile, rows, g, keys);
  if (seen == FX_FLASH_NONE) return;
  /* lanes past the live rows (rounded up to 8) keep stale scores; nothing reads what becomes of them */
  leaf->gemm(count, (live + 7) / 8 * 8, D, tile_k, row, 1, scratch->q + (int64_t)at * D, FX_LEAF_GROUP,
             scratch->s, FX_LEAF_GROUP, false);
  if (task->tile.program) apply_score(&task->tile, rows, g, keys, seen, scratch->s);
  fx_leaf_mask limits = {rows->lo + at, rows->hi + at, keys->from + keys->shift, NULL};
  fx_leaf_mask bits = {.bits = task->tile.bits};
  bool cut = !fx_flash_full(&rows->group[g], keys);
  leaf->softmax(count, scratch->s, FX_LEAF_GROUP,
                seen == FX_FLASH_SOME ? &bits
                : cut                 ? &limits
                                      : NULL,
                scratch->m + at, scratch->l + at, scratch->alpha + at);
  float *o = scratch->o + at * row;
  leaf->scale_rows(live, D, scratch->alpha + at, o, row, o, row);
  if (cut)
    leaf->gemm_masked(live, D, count, scratch->s, FX_LEAF_GROUP, tile_v, row, o, row, &limits);
  else
    leaf->gemm(live, D, count, scratch->s, 1, FX_LEAF_GROUP, tile_v, row, o, row, true);
}

/* Adds all keys the block sees to o, m, l in scratch. */
static void attend_block(forward_task *task, const fx_flash_rows *rows, const forward_scratch *scratch) {
  const fx_attention_shape *shape = task->shape;
  int32_t D = shape->D, kv_head = task->h / (shape->H / shape->K);
  int64_t row = D + FX_FLASH_PAD;
  fx_flash_keys keys, cut;
  fx_flash_walk walk =
      fx_flash_walk_begin(shape, task->b, task->h, task->block,
                          fx_attention_cpu_tile(FX_ATTENTION_FORWARD, D).kv, rows, 0, shape->T_kv);
  while (fx_flash_walk_next(&walk, &keys)) {
    int32_t count = keys.to - keys.from;
    fx_flash_read(task->leaf, &task->k, task->b, kv_head, keys.from, count, D, 1.0f, scratch->k, row);
    fx_flash_read(task->leaf, &task->v, task->b, kv_head, keys.from, count, D, 1.0f, scratch->v, row);
    for (int32_t g = 0; g * FX_LEAF_GROUP < rows->count; g++)
      if (fx_flash_cut(&rows->group[g], &keys, &cut))
        attend_group(task, rows, scratch, g, &cut, scratch->k + (cut.from - keys.from) * row,
                     scratch->v + (cut.from - keys.from) * row);
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

/* A sink joins the denominator: lse = ln(exp(lse) + exp(sink)); returns exp(old lse - new lse). */
static float add_sink(float sink, float *lse) {
  double a = (double)*lse, s = (double)sink, top = a > s ? a : s;
  double joined = top == -INFINITY ? -INFINITY : top + log(exp(a - top) + exp(s - top));
  *lse = (float)joined;
  return *lse == -INFINITY ? 0.0f : (float)exp(a - joined);
}

/* Rows of o, normalised, to rows t.. of a head of out; their lse to lse. sink NULL: none. */
static void finish_rows(const fx_leaf *leaf, int32_t D, int32_t count, const float *m, const float *l,
                        const float *sink, const float *o, int64_t o_row, const fx_attention_out *out,
                        int64_t b, int64_t h, int64_t t, float *lse) {
  float inverse[FX_FLASH_ROWS], line[FX_FLASH_MOST_D];
  for (int32_t r = 0; r < count; r++) {
    inverse[r] = l[r] == 0.0f ? 0.0f : 1.0f / l[r];
    lse[r] = natural_lse(m[r], l[r]);
    if (sink) inverse[r] *= add_sink(*sink, &lse[r]);
  }
  if (out->dtype == FX_F32)
    leaf->scale_rows(count, D, inverse, o, o_row, fx_flash_out_at(out, b, h, t), out->time);
  for (int32_t r = 0; out->dtype != FX_F32 && r < count; r++) {
    leaf->scale_rows(1, D, &inverse[r], o + r * o_row, o_row, line, D);
    fx_flash_write(leaf, out, b, h, t + r, 1, D, 1.0f, line, D);
  }
}

static int64_t lse_row(const fx_attention_shape *shape, int64_t b, int64_t h, int64_t t) {
  return (b * shape->H + h) * fx_attention_tpad(shape->T_q) + t;
}

static void forward_block(const fx_attention_forward *args, forward_task *task,
                          const forward_scratch *scratch) {
  const fx_attention_shape *shape = &args->shape;
  int32_t size = fx_attention_cpu_tile(FX_ATTENTION_FORWARD, shape->D).q;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, task->b, task->h, task->block, size, &rows);
  pack_queries(task, &rows, scratch);
  state_clear(&rows, shape->D, scratch);
  attend_block(task, &rows, scratch);
  finish_rows(task->leaf, shape->D, rows.count, scratch->m, scratch->l,
              args->sinks ? &args->sinks[task->h] : NULL, scratch->o, shape->D + FX_FLASH_PAD, &args->out,
              task->b, task->h, rows.first, args->lse + lse_row(shape, task->b, task->h, rows.first));
}

static void partial_block(const fx_attention_partial *args, forward_task *task,
                          const forward_scratch *scratch) {
  const fx_attention_shape *shape = &args->shape;
  const fx_attention_out *state = &args->state.o;
  int32_t D = shape->D;
  int64_t row = D + FX_FLASH_PAD;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, task->b, task->h, task->block, fx_attention_cpu_tile(FX_ATTENTION_FORWARD, D).q,
                     &rows);
  float *o = fx_flash_out_at(state, task->b, task->h, rows.first);
  int64_t at = lse_row(shape, task->b, task->h, rows.first);
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

/* Lists of a mask: one for all samples or each its own, and the same for heads (of those that are here). */
typedef struct list_counts {
  int32_t samples, heads;
} list_counts;

static list_counts lists_of(const fx_attention_shape *shape) {
  if (shape->runs) return (list_counts){shape->runs->Bm, fx_runs_heads(shape->runs) == 1 ? 1 : shape->H};
  if (shape->limits)
    return (list_counts){shape->limits->Bm, fx_limits_heads(shape->limits) == 1 ? 1 : shape->H};
  return (list_counts){1, 1};
}
static int64_t list_of(list_counts lists, int32_t b, int32_t h) {
  return (int64_t)(lists.samples == 1 ? 0 : b) * lists.heads + (lists.heads == 1 ? 0 : h);
}

/* A block and the keys that its walk visits. */
typedef struct block_cost {
  int64_t keys;
  int32_t block;
} block_cost;

/* Shell's sort: few elements, and no memory but their own. Equal ones: last first. */
static void sort_longest_first(block_cost *x, int32_t count) {
  for (int32_t gap = count / 2; gap > 0; gap /= 2)
    for (int32_t i = gap; i < count; i++) {
      block_cost moved = x[i];
      int32_t at = i;
      for (; at >= gap; at -= gap) {
        const block_cost *before = &x[at - gap];
        if (before->keys > moved.keys || (before->keys == moved.keys && before->block > moved.block)) break;
        x[at] = *before;
      }
      x[at] = moved;
    }
}

static int32_t blocks_of(const fx_attention_shape *shape) {
  int32_t size = fx_attention_cpu_tile(FX_ATTENTION_FORWARD, shape->D).q;
  return (shape->T_q + size - 1) / size;
}

int64_t fx_flash_forward_shared(const fx_attention_shape *shape) {
  list_counts lists = lists_of(shape);
  return (int64_t)lists.samples * lists.heads * blocks_of(shape) *
         (int64_t)(sizeof(block_cost) / sizeof(float));
}

/* order[lists][blocks]: each list's blocks, those that visit most keys first. */
static void order_blocks(const fx_attention_shape *shape, block_cost *order) {
  fx_attention_tile tile = fx_attention_cpu_tile(FX_ATTENTION_FORWARD, shape->D);
  int32_t blocks = blocks_of(shape);
  list_counts lists = lists_of(shape);
#pragma omp parallel for num_threads(fx_flash_threads(shape->threads))
  for (int32_t list = 0; list < lists.samples * lists.heads; list++) {
    int32_t b = list / lists.heads, h = list % lists.heads;
    for (int32_t i = 0; i < blocks; i++) {
      fx_flash_rows rows;
      fx_flash_keys keys;
      block_cost *cost = &order[(int64_t)list * blocks + i];
      *cost = (block_cost){0, i};
      fx_flash_rows_load(shape, b, h, i, tile.q, &rows);
      fx_flash_walk walk = fx_flash_walk_begin(shape, b, h, i, tile.kv, &rows, 0, shape->T_kv);
      while (fx_flash_walk_next(&walk, &keys)) cost->keys += keys.to - keys.from;
    }
    sort_longest_first(order + (int64_t)list * blocks, blocks);
  }
}

/* Runs all row blocks; those of one head follow each other, the longest first. Exactly one of forward and
 * partial is given. */
static fx_status run_blocks(const fx_attention_shape *shape, fx_attention_in q, fx_attention_in k,
                            fx_attention_in v, float *workspace, const fx_attention_forward *forward,
                            const fx_attention_partial *partial) {
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  int64_t floats = fx_flash_forward_scratch(shape->D);
  int32_t blocks = blocks_of(shape), threads = fx_flash_threads(shape->threads);
  int64_t tasks = (int64_t)shape->B * shape->H * blocks;
  block_cost *order = (block_cost *)(void *)(workspace + threads * floats);
  int fault = 0;
  order_blocks(shape, order);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < tasks; i++) {
    forward_scratch scratch;
    scratch_bind(shape->D, workspace + omp_get_thread_num() * floats, &scratch);
    int32_t head = (int32_t)(i / blocks);
    forward_task task;
    task.shape = shape;
    task.leaf = leaf;
    task.q = q, task.k = k, task.v = v;
    task.b = head / shape->H, task.h = head % shape->H;
    task.block = order[list_of(lists_of(shape), task.b, task.h) * blocks + i % blocks].block;
    fx_flash_tile_begin(shape, task.b, task.h, NULL, &fault, &task.tile);
    if (forward)
      forward_block(forward, &task, &scratch);
    else
      partial_block(partial, &task, &scratch);
  }
  if (fault)
    return fx_error(FX_ERR_DATA,
                    "an index in the score of this attention variant leaves its buffer for a pair that "
                    "the mask lets through; bound it with min and max, or mask the pair");
  return FX_OK;
}

fx_status fx_attention_cpu_forward(const fx_attention_forward *args) {
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_FORWARD, &args->shape));
  pad_lse(&args->shape, args->lse);
  return run_blocks(&args->shape, args->q, args->k, args->v, args->workspace, args, NULL);
}

fx_status fx_attention_cpu_partial(const fx_attention_partial *args) {
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_FORWARD, &args->shape));
  return run_blocks(&args->shape, args->q, args->k, args->v, args->workspace, NULL, args);
}

fx_status fx_attention_cpu_finalize(const fx_attention_shape *shape, const fx_attention_state *state,
                                    const float *sinks, fx_attention_out out, float *lse) {
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_FORWARD, shape));
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  int32_t blocks = (shape->T_q + FX_FLASH_ROWS - 1) / FX_FLASH_ROWS;
  int64_t tasks = (int64_t)shape->B * shape->H * blocks;
#pragma omp parallel for num_threads(fx_flash_threads(shape->threads))
  for (int64_t i = 0; i < tasks; i++) {
    int64_t head = i / blocks, b = head / shape->H, h = head % shape->H, first = i % blocks * FX_FLASH_ROWS;
    int64_t at = lse_row(shape, b, h, first);
    finish_rows(leaf, shape->D, fx_flash_at_most(shape->T_q - (int32_t)first, FX_FLASH_ROWS), state->m + at,
                state->l + at, sinks ? &sinks[h] : NULL, fx_flash_out_at(&state->o, b, h, first),
                state->o.time, &out, b, h, first, lse + at);
  }
  pad_lse(shape, lse);
  return FX_OK;
}
