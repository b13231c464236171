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
  float *raw, *slope; /* of one group, [keys][rows]: scores before the program, its slopes */
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
  scratch->raw = fx_flash_take(base, &at, (int64_t)tile.kv * tile.q);
  scratch->slope = fx_flash_take(base, &at, (int64_t)tile.kv * tile.q);
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
  float *tables;    /* this task's gradients of tables, or NULL */
  float *dk, *dv;   /* key 0 of the task's head, fp32: the outputs, or a place in the workspace */
  int64_t dk_row, dv_row;
  fx_flash_tile tile_program;
} backward_task;

/* What follows the threads' scratch in the workspace; each part may be empty. */
typedef struct shared_parts {
  float *partials, *tables, *dk, *dv; /* dk, dv: [B][K][T_kv][D] */
} shared_parts;

static int64_t shared_bind(const fx_attention_shape *shape, float *base, shared_parts *parts) {
  int64_t splits = fx_flash_splits(shape), at = 0, heads = (int64_t)shape->B * shape->K;
  int64_t keys = shape->bf16 ? heads * shape->T_kv * shape->D : 0;
  parts->partials =
      fx_flash_take(base, &at, splits > 1 ? splits * shape->B * shape->H * shape->T_q * shape->D : 0);
  parts->tables = fx_flash_take(base, &at, splits * heads * fx_flash_table_floats(shape->program));
  parts->dk = fx_flash_take(base, &at, keys);
  parts->dv = fx_flash_take(base, &at, keys);
  return at;
}

int64_t fx_flash_backward_shared(const fx_attention_shape *shape) {
  shared_parts parts;
  return shared_bind(shape, NULL, &parts);
}

static void split_keys(const fx_attention_shape *shape, int32_t tile, int32_t split, int32_t splits,
                       int32_t *from, int32_t *to) {
  int64_t tiles = ((int64_t)shape->T_kv + tile - 1) / tile;
  *from = fx_flash_at_most((int32_t)(tiles * split / splits) * tile, shape->T_kv);
  *to = split + 1 == splits ? shape->T_kv : (int32_t)(tiles * (split + 1) / splits) * tile;
}

/* Packs Q (scaled; into base 2 where no program sees the scores) and dO both ways, lse2 and delta. Rows that
 * see nothing are packed as zeros with lse2 = +inf, so that they give P = 0 and dS = 0 whatever their
 * content. */
static void pack_rows(const backward_task *task, int32_t h, const fx_flash_rows *rows,
                      const backward_scratch *scratch) {
  const fx_attention_backward *args = task->args;
  const fx_attention_shape *shape = &args->shape;
  int32_t D = shape->D, padded = (rows->count + FX_LEAF_GROUP - 1) / FX_LEAF_GROUP * FX_LEAF_GROUP;
  int64_t row = D + FX_FLASH_PAD, Tpad = fx_attention_tpad(shape->T_q);
  int64_t lse_at = ((int64_t)task->b * shape->H + h) * Tpad + rows->first;
  float factor = fx_flash_scores(&task->tile_program) ? shape->scale : (float)(shape->scale * FX_FLASH_LOG2E);
  float out[FX_FLASH_MOST_D];
  for (int32_t r = 0; r < padded; r++) {
    int64_t t = rows->first + r;
    bool seen = r < rows->count && rows->lo[r] < rows->hi[r] && args->lse[lse_at + r] != -INFINITY;
    scratch->lse2[r] = seen ? (float)(args->lse[lse_at + r] * FX_FLASH_LOG2E) : INFINITY;
    scratch->delta[r] = 0.0f;
    if (seen) {
      fx_flash_read(task->leaf, &args->q, task->b, h, t, 1, D, factor, scratch->q + r * row, row);
      fx_flash_read(task->leaf, &args->dout, task->b, h, t, 1, D, 1.0f, scratch->dout + r * row, row);
      fx_flash_read(task->leaf, &args->out, task->b, h, t, 1, D, 1.0f, out, D);
      scratch->delta[r] =
          task->leaf->dot(D, scratch->dout + r * row, out) - (args->dlse ? args->dlse[lse_at + r] : 0.0f);
    } else {
      memset(scratch->q + r * row, 0, (size_t)D * sizeof(float));
      memset(scratch->dout + r * row, 0, (size_t)D * sizeof(float));
    }
  }
  task->leaf->transpose(padded, D, scratch->q, row, scratch->qt, task->tile.q);
  task->leaf->transpose(padded, D, scratch->dout, row, scratch->dot, task->tile.q);
}

/* Base-2 scores in p become P, dP in ds becomes dS; the program's tables gather dF on the way. */
static void gradients_of_group(backward_task *task, const fx_flash_rows *rows,
                               const backward_scratch *scratch, int32_t g, const fx_flash_keys *keys,
                               fx_flash_seen seen, float *p, float *ds) {
  const fx_leaf *leaf = task->leaf;
  fx_flash_tile *tile = &task->tile_program;
  int32_t at = g * FX_LEAF_GROUP, count = keys->to - keys->from;
  int64_t q_row = task->tile.q;
  bool scores = fx_flash_scores(tile), sloped = scores && tile->tile->score_slope;
  if (task->tables) leaf->copy_rows(count, FX_LEAF_GROUP, 1.0f, p, q_row, scratch->raw, q_row);
  if (sloped)
    tile->tile->score_slope(&tile->args, p, scratch->slope, q_row, (float)FX_FLASH_LOG2E);
  else if (scores)
    tile->tile->score(&tile->args, p, q_row, (float)FX_FLASH_LOG2E);
  fx_leaf_mask limits = {rows->lo + at, rows->hi + at, keys->from + keys->shift, NULL};
  fx_leaf_mask bits = {.bits = tile->bits};
  bool cut = !fx_flash_full(&rows->group[g], keys);
  leaf->gradient(count, p, ds, q_row,
                 seen == FX_FLASH_SOME ? &bits
                 : cut                 ? &limits
                                       : NULL,
                 scratch->lse2 + at, scratch->delta + at);
  if (task->tables) {
    fx_flash_tile_visible(tile, rows, g, keys, seen);
    tile->tile->tables(&tile->args, tile->bits, scratch->raw, ds, q_row);
  }
  if (sloped) leaf->slope(count, p, ds, q_row, scratch->slope);
}

static void clear_keys(float *p, float *ds, int64_t q_row, int32_t keys) {
  for (int32_t n = 0; n < keys; n++) {
    memset(p + n * q_row, 0, FX_LEAF_GROUP * sizeof(float));
    memset(ds + n * q_row, 0, FX_LEAF_GROUP * sizeof(float));
  }
}

/* P^T and dS^T of a tile for group g; zeros for keys that no row of it sees. */
static void scores_of_group(backward_task *task, const fx_flash_rows *rows, const backward_scratch *scratch,
                            int32_t g, const fx_flash_keys *keys) {
  const fx_leaf *leaf = task->leaf;
  int32_t D = task->args->shape.D, at = g * FX_LEAF_GROUP;
  int32_t lanes = (fx_flash_at_most(rows->count - at, FX_LEAF_GROUP) + 7) / 8 * 8;
  int64_t row = D + FX_FLASH_PAD, q_row = task->tile.q;
  float *p = scratch->p + at, *ds = scratch->ds + at;
  fx_flash_keys cut;
  fx_flash_seen seen = FX_FLASH_NONE;
  if (fx_flash_cut(&rows->group[g], keys, &cut)) {
    fx_flash_tile_place(&task->tile_program, rows, g, &cut);
    seen = fx_flash_tile_mask(&task->tile_program, rows, g, &cut);
  }
  if (seen == FX_FLASH_NONE) {
    clear_keys(p, ds, q_row, keys->to - keys->from);
    return;
  }
  int64_t skip = cut.from - keys->from;
  clear_keys(p, ds, q_row, (int32_t)skip);
  clear_keys(p + (cut.to - keys->from) * q_row, ds + (cut.to - keys->from) * q_row, q_row, keys->to - cut.to);
  leaf->gemm(cut.to - cut.from, lanes, D, scratch->k + skip * row, row, 1, scratch->qt + at, q_row,
             p + skip * q_row, q_row, false);
  leaf->gemm(cut.to - cut.from, lanes, D, scratch->v + skip * row, row, 1, scratch->dot + at, q_row,
             ds + skip * q_row, q_row, false);
  gradients_of_group(task, rows, scratch, g, &cut, seen, p + skip * q_row, ds + skip * q_row);
}

/* The block's rows that see any of the local keys [from, to) by their limits lie in [*first, *last). */
static void rows_that_see(const fx_flash_rows *rows, int32_t from, int32_t to, int32_t shift, int32_t *first,
                          int32_t *last) {
  *first = *last = 0;
  for (int32_t r = 0; r < rows->count; r++) {
    if (rows->lo[r] >= to + shift || rows->hi[r] <= from + shift) continue;
    if (*first == *last) *first = r;
    *last = r + 1;
  }
}

/* One key tile, cut to what the block sees. */
static void backward_tile(backward_task *task, const fx_flash_rows *rows, const backward_scratch *scratch,
                          const fx_flash_keys *keys) {
  const fx_attention_backward *args = task->args;
  const fx_leaf *leaf = task->leaf;
  int32_t D = args->shape.D, from = keys->from, to = keys->to;
  int64_t row = D + FX_FLASH_PAD, q_row = task->tile.q;
  bool full = fx_flash_full(&rows->span, keys);
  fx_flash_read(leaf, &args->k, task->b, task->kv_head, from, to - from, D, 1.0f, scratch->k, row);
  fx_flash_read(leaf, &args->v, task->b, task->kv_head, from, to - from, D, 1.0f, scratch->v, row);
  for (int32_t g = 0; g * FX_LEAF_GROUP < rows->count; g++) scores_of_group(task, rows, scratch, g, keys);
  for (int32_t slice = from; slice < to; slice += full ? to - from : SLICE) {
    int32_t end = full ? to : fx_flash_at_most(slice + SLICE, to), first = 0, last = rows->count;
    if (!full) rows_that_see(rows, slice, end, keys->shift, &first, &last);
    if (first == last) continue;
    int64_t at = (slice - from) * q_row + first;
    leaf->gemm(end - slice, D, last - first, scratch->p + at, q_row, 1, scratch->dout + first * row, row,
               task->dv + slice * task->dv_row, task->dv_row, true);
    leaf->gemm(end - slice, D, last - first, scratch->ds + at, q_row, 1, scratch->q + first * row, row,
               task->dk + slice * task->dk_row, task->dk_row, true);
  }
  fx_leaf_mask mask = {rows->lo, rows->hi, from + keys->shift, NULL};
  if (full)
    leaf->gemm(rows->count, D, to - from, scratch->ds, 1, q_row, scratch->k, row, scratch->dq, row, true);
  else
    leaf->gemm_masked(rows->count, D, to - from, scratch->ds, q_row, scratch->k, row, scratch->dq, row,
                      &mask);
}

/* dQ of a row block: to the output, or to the split's share of the workspace. */
static void store_dq(const backward_task *task, int32_t h, const fx_flash_rows *rows, const float *dq) {
  const fx_attention_shape *shape = &task->args->shape;
  int32_t D = shape->D;
  int64_t row = D + FX_FLASH_PAD;
  if (!task->partials) {
    fx_flash_write(task->leaf, &task->args->dq, task->b, h, rows->first, rows->count, D, shape->scale, dq,
                   row);
    return;
  }
  int64_t head = ((int64_t)task->split * shape->B + task->b) * shape->H + h;
  task->leaf->copy_rows(rows->count, D, shape->scale, dq, row,
                        task->partials + (head * shape->T_q + rows->first) * D, D);
}

static void backward_block(backward_task *task, int32_t h, int32_t block, const backward_scratch *scratch) {
  const fx_attention_shape *shape = &task->args->shape;
  fx_flash_rows rows;
  fx_flash_rows_load(shape, task->b, h, block, task->tile.q, &rows);
  bool seen = fx_flash_sees(shape, task->b, h, block, task->tile.kv, &rows, task->from, task->to);
  if (!seen && task->partials) return; /* the sum skips this split */
  memset(scratch->dq, 0, (size_t)(rows.count * (shape->D + FX_FLASH_PAD)) * sizeof(float));
  if (seen) {
    fx_flash_keys keys;
    pack_rows(task, h, &rows, scratch);
    task->tile_program.args.h = shape->first_head + h;
    fx_flash_walk walk =
        fx_flash_walk_begin(shape, task->b, h, block, task->tile.kv, &rows, task->from, task->to);
    while (fx_flash_walk_next(&walk, &keys)) backward_tile(task, &rows, scratch, &keys);
  }
  store_dq(task, h, &rows, scratch->dq);
}

/* Where the task gathers dK and dV: the outputs themselves, or fp32 in the workspace where those are bf16. */
static void place_keys(backward_task *task, const shared_parts *parts) {
  const fx_attention_backward *args = task->args;
  const fx_attention_shape *shape = &args->shape;
  int64_t D = shape->D, at = ((int64_t)task->b * shape->K + task->kv_head) * shape->T_kv * D;
  task->dk = shape->bf16 ? parts->dk + at : fx_flash_out_at(&args->dk, task->b, task->kv_head, 0);
  task->dv = shape->bf16 ? parts->dv + at : fx_flash_out_at(&args->dv, task->b, task->kv_head, 0);
  task->dk_row = shape->bf16 ? D : args->dk.time;
  task->dv_row = shape->bf16 ? D : args->dv.time;
}

static void backward_split(backward_task *task, const backward_scratch *scratch) {
  const fx_attention_backward *args = task->args;
  const fx_attention_shape *shape = &args->shape;
  int32_t D = shape->D, group = shape->H / shape->K, blocks = (shape->T_q + task->tile.q - 1) / task->tile.q;
  int32_t keys = task->to - task->from;
  float *dk = task->dk + task->from * task->dk_row, *dv = task->dv + task->from * task->dv_row;
  for (int64_t n = 0; n < keys; n++) {
    memset(dk + n * task->dk_row, 0, (size_t)D * sizeof(float));
    memset(dv + n * task->dv_row, 0, (size_t)D * sizeof(float));
  }
  for (int32_t block = 0; block < blocks; block++)
    for (int32_t h = task->kv_head * group; h < (task->kv_head + 1) * group; h++)
      backward_block(task, h, block, scratch);
  /* the packed Q carries scale, and log2(e) where no program sees the scores */
  float factor = fx_flash_scores(&task->tile_program) ? 1.0f : (float)FX_FLASH_LN2;
  fx_flash_write(task->leaf, &args->dk, task->b, task->kv_head, task->from, keys, D, factor, dk,
                 task->dk_row);
  if (shape->bf16)
    fx_flash_write(task->leaf, &args->dv, task->b, task->kv_head, task->from, keys, D, 1.0f, dv,
                   task->dv_row);
}

/* dq of one row block = the splits that saw it, in order. */
static void sum_partials(const fx_attention_backward *args, fx_attention_tile tile, int32_t splits,
                         const float *partials, int32_t b, int32_t h, int32_t block) {
  const fx_attention_shape *shape = &args->shape;
  int32_t D = shape->D;
  fx_flash_rows rows;
  float sum[FX_FLASH_ROWS * FX_FLASH_MOST_D];
  fx_flash_rows_load(shape, b, h, block, tile.q, &rows);
  memset(sum, 0, (size_t)(rows.count * D) * sizeof(float));
  for (int32_t split = 0; split < splits; split++) {
    int32_t from, to;
    split_keys(shape, tile.kv, split, splits, &from, &to);
    if (!fx_flash_sees(shape, b, h, block, tile.kv, &rows, from, to)) continue;
    int64_t head = ((int64_t)split * shape->B + b) * shape->H + h;
    const float *partial = partials + (head * shape->T_q + rows.first) * D;
    for (int32_t i = 0; i < rows.count * D; i++) sum[i] += partial[i];
  }
  fx_flash_write(fx_leaf_get(shape->isa), &args->dq, b, h, rows.first, rows.count, D, 1.0f, sum, D);
}

/* dsink = -sum over samples and rows of exp(sink - lse) delta, one head a task, in order. */
static void sink_gradient(const fx_attention_backward *args, int32_t h) {
  const fx_attention_shape *shape = &args->shape;
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  int64_t Tpad = fx_attention_tpad(shape->T_q);
  float out[FX_FLASH_MOST_D], dout[FX_FLASH_MOST_D];
  double sum = 0;
  for (int32_t b = 0; b < shape->B; b++)
    for (int32_t t = 0; t < shape->T_q; t++) {
      int64_t at = ((int64_t)b * shape->H + h) * Tpad + t;
      fx_flash_read(leaf, &args->out, b, h, t, 1, shape->D, 1.0f, out, shape->D);
      fx_flash_read(leaf, &args->dout, b, h, t, 1, shape->D, 1.0f, dout, shape->D);
      double delta = (double)leaf->dot(shape->D, out, dout) - (args->dlse ? (double)args->dlse[at] : 0.0);
      if (args->lse[at] != -INFINITY) sum -= exp((double)args->sinks[h] - (double)args->lse[at]) * delta;
    }
  args->dsinks[h] = (float)sum;
}

/* Gradients of the tables: the tasks' shares in order. */
static void sum_tables(const fx_attention_backward *args, int64_t tasks, const float *shares) {
  const fx_attention_program *program = args->shape.program;
  int64_t floats = fx_flash_table_floats(program), at = 0;
  for (int32_t t = 0; t < program->num_buffers; t++) {
    for (int64_t i = 0; args->dtables[t] && i < program->table_floats[t]; i++) {
      float sum = 0.0f;
      for (int64_t task = 0; task < tasks; task++) sum += shares[task * floats + at + i];
      args->dtables[t][i] = sum;
    }
    at += program->table_floats[t];
  }
}

fx_status fx_attention_cpu_backward(const fx_attention_backward *args) {
  const fx_attention_shape *shape = &args->shape;
  FX_TRY(fx_attention_cpu_check(FX_ATTENTION_BACKWARD, shape));
  const fx_leaf *leaf = fx_leaf_get(shape->isa);
  fx_attention_tile tile = fx_attention_cpu_tile(FX_ATTENTION_BACKWARD, shape->D);
  int32_t splits = fx_flash_splits(shape), blocks = (shape->T_q + tile.q - 1) / tile.q;
  int threads = fx_flash_threads(shape->threads), fault = 0;
  int64_t floats = fx_flash_backward_scratch(shape->D), heads = (int64_t)shape->B * shape->K;
  int64_t table = args->dtables ? fx_flash_table_floats(shape->program) : 0;
  shared_parts parts;
  shared_bind(shape, (float *)args->workspace + threads * floats, &parts);
  if (table) memset(parts.tables, 0, (size_t)(heads * splits * table) * sizeof(float));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < heads * splits; i++) {
    backward_scratch scratch;
    scratch_bind(shape->D, (float *)args->workspace + omp_get_thread_num() * floats, &scratch);
    backward_task task;
    task.args = args, task.leaf = leaf, task.tile = tile;
    task.b = (int32_t)(i % heads / shape->K), task.kv_head = (int32_t)(i % heads % shape->K);
    task.split = (int32_t)(i / heads), task.splits = splits;
    task.partials = splits > 1 ? parts.partials : NULL;
    task.tables = table ? parts.tables + i * table : NULL;
    fx_flash_tile_begin(shape, task.b, task.kv_head, task.tables, &fault, &task.tile_program);
    place_keys(&task, &parts);
    split_keys(shape, tile.kv, task.split, splits, &task.from, &task.to);
    backward_split(&task, &scratch);
  }
  if (table) sum_tables(args, heads * splits, parts.tables);
  if (args->sinks) {
#pragma omp parallel for num_threads(threads)
    for (int32_t h = 0; h < shape->H; h++) sink_gradient(args, h);
  }
  if (splits == 1) return FX_OK;
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < (int64_t)shape->B * shape->H * blocks; i++)
    sum_partials(args, tile, splits, parts.partials, (int32_t)(i / blocks / shape->H),
                 (int32_t)(i / blocks % shape->H), (int32_t)(i % blocks));
  return FX_OK;
}
