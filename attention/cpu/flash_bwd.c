/* SPDX-License-Identifier: Apache-2.0 */
/* One task is one split of the keys of one key head. It walks over row blocks and, inside, over key tiles:
 * the block's Q and dO are packed once for all its tiles, dQ gathers in scratch, dK and dV gather in the
 * outputs, of which the task owns its keys. With several splits each leaves its dQ in the workspace and a
 * second pass adds them in order. Tasks and orders are functions of the shape alone, so results do not depend
 * on the number of threads. Five products a tile (all on transposed score tiles, [keys][rows]): S^T = K Q^T,
 * dP^T = V dO^T, dV += P^T dO, dK += dS^T Q, dQ += dS K. */
#include "attention/cpu/flash_bwd.h"

#include <omp.h>
#include <string.h>

#include "attention/cpu/flash_internal.h"

enum { SLICE = 16 }; /* keys of a partial tile whose dK and dV share a range of rows */

/* A thread's scratch. Strides: qt, dot [D][rows]; q, dout, dq [rows][D + pad]; k, v [keys][D + pad];
 * p, ds [keys][rows]. */
typedef struct backward_scratch {
  float *qt, *dot, *q, *dout, *dq, *k, *v, *p, *ds, *lse2, *delta;
} backward_scratch;

static int64_t scratch_bind(int32_t D, float *base, backward_scratch *scratch) {
  fx_attention_tile tile = fx_attention_cpu_tile(FX_ATTENTION_BACKWARD, D);
  int64_t row = D + FX_FLASH_PAD, at = 0;
  scratch->qt = fx_flash_take(base, &at, (int64_t)tile.q * D);
  scratch->dot = fx_flash_take(base, &at, (int64_t)tile.q * D);
  scratch->q = fx_flash_take(base, &at, tile.q * row);
  scratch->dout = fx_flash_take(base, &at, tile.q * row);
  scratch->dq = fx_flash_take(base, &at, tile.q * row);
  scratch->k = fx_flash_take(base, &at, tile.kv * row);
  scratch->v = fx_flash_take(base, &at, tile.kv * row);
  scratch->p = fx_flash_take(base, &at, (int64_t)tile.q * tile.kv);
  scratch->ds = fx_flash_take(base, &at, (int64_t)tile.q * tile.kv);
  scratch->lse2 = fx_flash_take(base, &at, FX_FLASH_ROWS);
  scratch->delta = fx_flash_take(base, &at, FX_FLASH_ROWS);
  return at;
}

int64_t fx_flash_backward_scratch(int32_t D) {
  backward_scratch scratch;
  return scratch_bind(D, NULL, &scratch);
}

typedef struct backward_task {
  const fx_attention_backward *args;
  const fx_leaf *leaf;
  fx_attention_tile tile;
  int32_t b, kv_head, split, splits;
  int32_t from, to; /* the task's keys */
  float *partials;  /* [splits][B][H][T_q][D], or NULL with one split */
} backward_task;

static void split_keys(const fx_attention_shape *shape, int32_t tile, int32_t split, int32_t splits,
                       int32_t *from, int32_t *to) {
  int64_t tiles = ((int64_t)shape->T_kv + tile - 1) / tile;
  *from = fx_flash_at_most((int32_t)(tiles * split / splits) * tile, shape->T_kv);
  *to = split + 1 == splits ? shape->T_kv : (int32_t)(tiles * (split + 1) / splits) * tile;
}

/* Packs Q (scaled into base 2) and dO both ways, lse2 and delta. Rows that see nothing are packed as zeros
 * with lse2 = +inf, so that they give P = 0 and dS = 0 whatever their content. */
static void pack_rows(const backward_task *task, int32_t h, const fx_flash_rows *rows,
                      const backward_scratch *scratch) {
  const fx_attention_backward *args = task->args;
  const fx_attention_shape *shape = &args->shape;
  int32_t D = shape->D, padded = (rows->count + FX_LEAF_GROUP - 1) / FX_LEAF_GROUP * FX_LEAF_GROUP;
  int64_t row = D + FX_FLASH_PAD, Tpad = fx_attention_tpad(shape->T_q);
  const float *q = fx_flash_in_head(&args->q, task->b, h), *dout = fx_flash_in_head(&args->dout, task->b, h),
              *out = fx_flash_in_head(&args->out, task->b, h);
  int64_t lse_at = ((int64_t)task->b * shape->H + h) * Tpad + rows->first;
  float factor = (float)(shape->scale * FX_FLASH_LOG2E);
  for (int32_t r = 0; r < padded; r++) {
    int64_t t = rows->first + r;
    bool seen = r < rows->count && rows->lo[r] < rows->hi[r] && args->lse[lse_at + r] != -INFINITY;
    scratch->lse2[r] = seen ? (float)(args->lse[lse_at + r] * FX_FLASH_LOG2E) : INFINITY;
    scratch->delta[r] = 0.0f;
    if (seen) {
      task->leaf->copy_rows(1, D, factor, q + t * args->q.time, 0, scratch->q + r * row, 0);
      task->leaf->copy_rows(1, D, 1.0f, dout + t * args->dout.time, 0, scratch->dout + r * row, 0);
      scratch->delta[r] = task->leaf->dot(D, scratch->dout + r * row, out + t * args->out.time) -
                          (args->dlse ? args->dlse[lse_at + r] : 0.0f);
    } else {
      memset(scratch->q + r * row, 0, (size_t)D * sizeof(float));
      memset(scratch->dout + r * row, 0, (size_t)D * sizeof(float));
    }
  }
  task->leaf->transpose(padded, D, scratch->q, row, scratch->qt, task->tile.q);
  task->leaf->transpose(padded, D, scratch->dout, row, scratch->dot, task->tile.q);
}

/* P^T and dS^T of keys [from, to) for group g; zeros for keys that no row of it sees. */
static void scores_of_group(const backward_task *task, const fx_flash_rows *rows,
                            const backward_scratch *scratch, int32_t g, int32_t from, int32_t to) {
  const fx_leaf *leaf = task->leaf;
  int32_t D = task->args->shape.D, at = g * FX_LEAF_GROUP, low, high;
  int32_t lanes = (fx_flash_at_most(rows->count - at, FX_LEAF_GROUP) + 7) / 8 * 8;
  int64_t row = D + FX_FLASH_PAD, q_row = task->tile.q;
  float *p = scratch->p + at, *ds = scratch->ds + at;
  if (!fx_flash_cut(&rows->group[g], from, to, &low, &high)) low = high = to;
  for (int32_t n = from; n < to; n++) {
    if (n == low) n = high;
    if (n >= to) break;
    memset(p + (n - from) * q_row, 0, FX_LEAF_GROUP * sizeof(float));
    memset(ds + (n - from) * q_row, 0, FX_LEAF_GROUP * sizeof(float));
  }
  if (low == high) return;
  int64_t skip = low - from;
  fx_leaf_mask mask = {rows->lo + at, rows->hi + at, low};
  bool full = fx_flash_full(&rows->group[g], low, high);
  leaf->gemm(high - low, lanes, D, scratch->k + skip * row, row, 1, scratch->qt + at, q_row, p + skip * q_row,
             q_row, false);
  leaf->gemm(high - low, lanes, D, scratch->v + skip * row, row, 1, scratch->dot + at, q_row,
             ds + skip * q_row, q_row, false);
  leaf->gradient(high - low, p + skip * q_row, ds + skip * q_row, q_row, full ? NULL : &mask,
                 scratch->lse2 + at, scratch->delta + at);
}

/* The block's rows that see any key of [from, to) lie in [*first, *last). */
static void rows_that_see(const fx_flash_rows *rows, int32_t from, int32_t to, int32_t *first,
                          int32_t *last) {
  *first = *last = 0;
  for (int32_t r = 0; r < rows->count; r++) {
    if (rows->lo[r] >= to || rows->hi[r] <= from) continue;
    if (*first == *last) *first = r;
    *last = r + 1;
  }
}

/* One key tile [from, to), cut to what the block sees. dk, dv: key 0 of the outputs. */
static void backward_tile(const backward_task *task, const fx_flash_rows *rows,
                          const backward_scratch *scratch, int32_t from, int32_t to, float *dk, float *dv) {
  const fx_attention_backward *args = task->args;
  const fx_leaf *leaf = task->leaf;
  int32_t D = args->shape.D;
  int64_t row = D + FX_FLASH_PAD, q_row = task->tile.q;
  bool full = fx_flash_full(&rows->span, from, to);
  const float *k = fx_flash_in_head(&args->k, task->b, task->kv_head),
              *v = fx_flash_in_head(&args->v, task->b, task->kv_head);
  leaf->copy_rows(to - from, D, 1.0f, k + from * args->k.time, args->k.time, scratch->k, row);
  leaf->copy_rows(to - from, D, 1.0f, v + from * args->v.time, args->v.time, scratch->v, row);
  for (int32_t g = 0; g * FX_LEAF_GROUP < rows->count; g++) scores_of_group(task, rows, scratch, g, from, to);
  for (int32_t slice = from; slice < to; slice += full ? to - from : SLICE) {
    int32_t end = full ? to : fx_flash_at_most(slice + SLICE, to), first = 0, last = rows->count;
    if (!full) rows_that_see(rows, slice, end, &first, &last);
    if (first == last) continue;
    int64_t at = (slice - from) * q_row + first;
    leaf->gemm(end - slice, D, last - first, scratch->p + at, q_row, 1, scratch->dout + first * row, row,
               dv + slice * args->dv.time, args->dv.time, true);
    leaf->gemm(end - slice, D, last - first, scratch->ds + at, q_row, 1, scratch->q + first * row, row,
               dk + slice * args->dk.time, args->dk.time, true);
  }
  fx_leaf_mask mask = {rows->lo, rows->hi, from};
  if (full)
    leaf->gemm(rows->count, D, to - from, scratch->ds, 1, q_row, scratch->k, row, scratch->dq, row, true);
  else
    leaf->gemm_masked(rows->count, D, to - from, scratch->ds, q_row, scratch->k, row, scratch->dq, row,
                      &mask);
}

/* Where a split leaves dQ of a row block: the output, or its share of the workspace. */
static float *dq_place(const backward_task *task, int32_t h, int32_t first, int64_t *stride) {
  const fx_attention_shape *shape = &task->args->shape;
  if (!task->partials) {
    *stride = task->args->dq.time;
    return fx_flash_out_head(&task->args->dq, task->b, h) + first * *stride;
  }
  *stride = shape->D;
  int64_t head = ((int64_t)task->split * shape->B + task->b) * shape->H + h;
  return task->partials + (head * shape->T_q + first) * shape->D;
}

static void backward_block(const backward_task *task, int32_t h, int32_t block,
                           const backward_scratch *scratch) {
  const fx_attention_backward *args = task->args;
  const fx_attention_shape *shape = &args->shape;
  int32_t D = shape->D, from, to;
  int64_t row = D + FX_FLASH_PAD, stride;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, task->b, block, task->tile.q, &rows);
  bool seen = fx_flash_cut(&rows.span, task->from, task->to, &from, &to);
  if (!seen && task->partials) return; /* the sum skips this split */
  memset(scratch->dq, 0, (size_t)(rows.count * row) * sizeof(float));
  if (seen) {
    pack_rows(task, h, &rows, scratch);
    float *dk = fx_flash_out_head(&args->dk, task->b, task->kv_head),
          *dv = fx_flash_out_head(&args->dv, task->b, task->kv_head);
    fx_flash_walk walk =
        fx_flash_walk_begin(shape, task->b, block, task->tile.kv, &rows, task->from, task->to);
    while (fx_flash_walk_next(&walk, &from, &to)) backward_tile(task, &rows, scratch, from, to, dk, dv);
  }
  float *dq = dq_place(task, h, rows.first, &stride);
  task->leaf->copy_rows(rows.count, D, shape->scale, scratch->dq, row, dq, stride);
}

static void backward_split(const backward_task *task, const backward_scratch *scratch) {
  const fx_attention_backward *args = task->args;
  const fx_attention_shape *shape = &args->shape;
  int32_t group = shape->H / shape->K, blocks = (shape->T_q + task->tile.q - 1) / task->tile.q;
  int64_t keys = task->to - task->from;
  float *dk = fx_flash_out_head(&args->dk, task->b, task->kv_head) + task->from * args->dk.time;
  float *dv = fx_flash_out_head(&args->dv, task->b, task->kv_head) + task->from * args->dv.time;
  for (int64_t n = 0; n < keys; n++) {
    memset(dk + n * args->dk.time, 0, (size_t)shape->D * sizeof(float));
    memset(dv + n * args->dv.time, 0, (size_t)shape->D * sizeof(float));
  }
  for (int32_t block = 0; block < blocks; block++)
    for (int32_t h = task->kv_head * group; h < (task->kv_head + 1) * group; h++)
      backward_block(task, h, block, scratch);
  /* the packed Q carries scale * log2(e) */
  task->leaf->copy_rows((int)keys, shape->D, (float)FX_FLASH_LN2, dk, args->dk.time, dk, args->dk.time);
}

/* dq of one row block = the splits that saw it, in order. */
static void sum_partials(const fx_attention_backward *args, fx_attention_tile tile, int32_t splits,
                         const float *partials, int32_t b, int32_t h, int32_t block) {
  const fx_attention_shape *shape = &args->shape;
  int32_t D = shape->D;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, b, block, tile.q, &rows);
  float *dq = fx_flash_out_head(&args->dq, b, h) + rows.first * args->dq.time;
  for (int32_t r = 0; r < rows.count; r++) memset(dq + r * args->dq.time, 0, (size_t)D * sizeof(float));
  for (int32_t split = 0; split < splits; split++) {
    int32_t from, to;
    split_keys(shape, tile.kv, split, splits, &from, &to);
    if (!fx_flash_cut(&rows.span, from, to, &from, &to)) continue;
    int64_t head = ((int64_t)split * shape->B + b) * shape->H + h;
    const float *partial = partials + (head * shape->T_q + rows.first) * D;
    for (int32_t r = 0; r < rows.count; r++)
      for (int32_t d = 0; d < D; d++) dq[r * args->dq.time + d] += partial[(int64_t)r * D + d];
  }
}

fx_status fx_attention_cpu_backward(const fx_attention_backward *args) {
  const fx_attention_shape *shape = &args->shape;
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_BACKWARD, shape));
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  fx_attention_tile tile = fx_attention_cpu_tile(FX_ATTENTION_BACKWARD, shape->D);
  int32_t splits = fx_flash_splits(shape), blocks = (shape->T_q + tile.q - 1) / tile.q;
  int threads = fx_flash_threads(shape->threads);
  int64_t floats = fx_flash_backward_scratch(shape->D), heads = (int64_t)shape->B * shape->K;
  float *workspace = args->workspace, *partials = splits > 1 ? workspace + threads * floats : NULL;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < heads * splits; i++) {
    backward_scratch scratch;
    scratch_bind(shape->D, workspace + omp_get_thread_num() * floats, &scratch);
    backward_task task = {.args = args,
                          .leaf = leaf,
                          .tile = tile,
                          .b = (int32_t)(i % heads / shape->K),
                          .kv_head = (int32_t)(i % heads % shape->K),
                          .split = (int32_t)(i / heads),
                          .splits = splits,
                          .partials = partials};
    split_keys(shape, tile.kv, task.split, splits, &task.from, &task.to);
    backward_split(&task, &scratch);
  }
  if (!partials) return FX_OK;
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < (int64_t)shape->B * shape->H * blocks; i++)
    sum_partials(args, tile, splits, partials, (int32_t)(i / blocks / shape->H),
                 (int32_t)(i / blocks % shape->H), (int32_t)(i % blocks));
  return FX_OK;
}
