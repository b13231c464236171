/* SPDX-License-Identifier: Apache-2.0 */
/* Every op's CUDA kernels against its CPU kernels, forward and backward, and what the device says of bad
 * data. Without a GPU there is one line and nothing to test. */
#include <math.h>
#include <stdio.h>

#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/ops/rope.h"
#include "dynamo_rt/ops/vocab_shard.h"
#include "tests/gpu/gpu_case.h"

static fx_device *g_cpu, *g_gpu;

/* A gradient of y that differs from element to element: through a projection and a GELU. */
static fx_value weigh(gpu_world *w, fx_value y) {
  int64_t cols = fx_type_cols(fx_graph_type(w->graph, y));
  fx_value mix = world_elements(w, "mix", fx_type_2d(FX_F32, 24, cols), 1.0f / sqrtf((float)cols));
  fx_value z = fx_linear(FX_AT(w->graph), y, mix, FX_NONE, (fx_linear_attr){0, FX_ACT_GELU_TANH});
  return fx_cast(FX_AT(w->graph), z, FX_F32);
}

/* Gradients of float32 parameters once stored and once added to what is there. */
static void outputs_and_gradients(gpu_world *w, fx_value y, const fx_value *wrt, const char *const *names,
                                  int count) {
  fx_value grads[8], loss = weigh(w, y);
  world_output(w, "y", y);
  CHECK_OK(fx_autograd(w->graph, loss, wrt, count, grads));
  for (int i = 0; i < count; i++) {
    world_output(w, names[i], grads[i]);
    if (i == 0) continue; /* of activations */
    fx_value total = world_normals(w, names[i], *fx_graph_type(w->graph, grads[i]), 1, true);
    fx_accumulate(FX_AT(w->graph), total, grads[i]);
  }
}

/* ---- pointwise ---- */

static void build_pointwise(gpu_world *w) {
  fx_graph *g = w->graph;
  fx_type type = fx_type_3d(FX_F32, 3, w->rows, w->cols);
  fx_value a = world_elements(w, "a", type, 1), b = world_elements(w, "b", type, 2);
  fx_value sum = fx_add(FX_AT(g), a, b), s = world_number(w, "s", 0.37f);
  fx_value rows = world_elements(w, "rows", fx_type_3d(FX_F32, 2, w->rows, 3 * w->cols), 1);
  world_output(w, "sum", sum);
  world_output(w, "scaled", fx_scale(FX_AT(g), sum, s));
  world_output(w, "heads", fx_copy(FX_AT(g), fx_slice_heads(FX_AT(g), rows, w->cols, 2, w->cols / 2)));
  if (w->half) return;
  world_output(w, "fill", fx_fill(FX_AT(g), type, -2.5f));
  fx_accumulate(FX_AT(g), world_normals(w, "total", type, 1, true), sum);
}

static void build_casts(gpu_world *w) {
  fx_value x = world_normals(w, "x", fx_type_1d(FX_F32, w->rows * w->cols), 3, false);
  fx_value half = fx_cast(FX_AT(w->graph), x, FX_BF16), wide = fx_cast(FX_AT(w->graph), x, FX_F64);
  world_output(w, "half", half);
  world_output(w, "wide", wide);
  world_output(w, "back", fx_cast(FX_AT(w->graph), half, FX_F32));
  world_output(w, "narrow", fx_cast(FX_AT(w->graph), wide, FX_BF16));
}

/* Blocks of rows of heads of 64 (q, k, v of one projection), picked, added and cast between strided places.
 */
static void build_blocks(gpu_world *w) {
  enum { B = 2, N = 5, H = 3, D = 64, COUNT = 4, WIDE = 2 * H * D };
  static const int32_t numbers[COUNT] = {3, 0, -1, 4};
  fx_graph *g = w->graph;
  gpu_buffer *picked = world_buffer(w, "index", fx_type_1d(FX_I32, COUNT), false);
  memcpy(picked->data, numbers, sizeof numbers);
  fx_value index = fx_graph_persistent(FX_AT(g), "index", picked->data, picked->type);
  fx_value x = world_elements(w, "x", fx_type_3d(FX_F32, B, N * FX_BLOCK_ROWS, WIDE), 1), parts[2];
  fx_dtype dtype = fx_graph_type(g, x)->dtype;
  fx_type small = fx_type_3d(dtype, B, COUNT * FX_BLOCK_ROWS, WIDE);
  for (int i = 0; i < 2; i++)
    parts[i] = fx_take_blocks(FX_AT(g), fx_slice_heads(FX_AT(g), x, (1 - i) * H * D, H, D), index, COUNT);
  world_output(w, "picked", fx_assemble(FX_AT(g), parts, (int64_t[]){0, H * D}, 2, small));
  if (w->half) return;
  fx_value sum =
      world_normals(w, "sum", fx_type_of(FX_F32, 4, (int64_t[]){B, N * FX_BLOCK_ROWS, H, D}), 1, true);
  fx_value more =
      world_normals(w, "more", fx_type_of(FX_F32, 4, (int64_t[]){B, COUNT * FX_BLOCK_ROWS, H, D}), 1, false);
  fx_add_blocks(FX_AT(g), sum, more, index);
  for (int i = 0; i < 2; i++) parts[i] = fx_cast(FX_AT(g), more, FX_BF16);
  small.dtype = FX_BF16;
  world_output(w, "cast", fx_assemble(FX_AT(g), parts, (int64_t[]){H * D, 0}, 2, small));
}

/* ---- linear ---- */

static void build_linear(gpu_world *w, int in_out, fx_activation activation, bool with_bias) {
  static const char *const names[] = {"dx", "dw", "db"};
  int64_t I = 72, O = w->cols;
  fx_type type = in_out ? fx_type_2d(FX_F32, I, O) : fx_type_2d(FX_F32, O, I);
  fx_value x = world_elements(w, "x", fx_type_3d(FX_F32, 2, w->rows, I), 1);
  fx_value weight = world_elements(w, "w", type, 0.1f);
  fx_value bias = with_bias ? world_elements(w, "b", fx_type_1d(FX_F32, O), 1) : FX_NONE;
  fx_value y = fx_linear(FX_AT(w->graph), x, weight, bias, (fx_linear_attr){in_out, (int32_t)activation});
  outputs_and_gradients(w, y, (fx_value[]){x, weight, bias}, names, with_bias ? 3 : 2);
}

static void build_linear_plain(gpu_world *w) {
  build_linear(w, 0, FX_ACT_NONE, false);
}
static void build_linear_gelu(gpu_world *w) {
  build_linear(w, 0, FX_ACT_GELU, true);
}
static void build_linear_conv1d(gpu_world *w) {
  build_linear(w, 1, FX_ACT_GELU_TANH, true);
}
static void build_linear_bias(gpu_world *w) {
  build_linear(w, 1, FX_ACT_NONE, true);
}

static void build_add_bias(gpu_world *w) {
  static const char *const names[] = {"dx", "db"};
  fx_value x = world_elements(w, "x", fx_type_3d(FX_F32, 2, w->rows, w->cols), 1);
  fx_value bias = world_elements(w, "b", fx_type_1d(FX_F32, w->cols), 1);
  outputs_and_gradients(w, fx_add_bias(FX_AT(w->graph), x, bias), (fx_value[]){x, bias}, names, 2);
  world_output(w, "x too", fx_add_bias(FX_AT(w->graph), fx_add(FX_AT(w->graph), x, x), bias)); /* in place */
}

static void build_swiglu(gpu_world *w) {
  static const char *const names[] = {"dx"};
  fx_value x = world_elements(w, "x", fx_type_3d(FX_F32, 1, w->rows, 2 * w->cols), 2);
  outputs_and_gradients(w, fx_swiglu(FX_AT(w->graph), x), &x, names, 1);
}

/* ---- norm, rope ---- */

/* residual: the norm of a sum whose gradient has two parts, so that dx is added to what is there. */
static void build_norm(gpu_world *w, fx_norm_kind kind, bool residual) {
  static const char *const names[] = {"dx", "dw", "db"};
  bool layer = kind == FX_NORM_LAYER;
  fx_type rows = fx_type_3d(FX_F32, 1, w->rows, w->cols), row = fx_type_1d(FX_F32, w->cols);
  fx_value x = world_elements(w, "x", rows, 2), sum = x;
  fx_value weight = world_normals(w, "w", row, 1, false);
  fx_value bias = layer ? world_normals(w, "b", row, 1, false) : FX_NONE;
  if (residual) sum = fx_add(FX_AT(w->graph), x, world_elements(w, "other", rows, 1));
  fx_value y = fx_norm(FX_AT(w->graph), sum, weight, bias, (fx_norm_attr){(int32_t)kind, 1e-5f});
  if (residual) world_output(w, "normed", y);
  if (residual) y = fx_add(FX_AT(w->graph), y, sum);
  outputs_and_gradients(w, y, (fx_value[]){x, weight, bias}, names, layer ? 3 : 2);
}

static void build_rmsnorm(gpu_world *w) {
  build_norm(w, FX_NORM_RMS, false);
}
static void build_layernorm(gpu_world *w) {
  build_norm(w, FX_NORM_LAYER, false);
}
static void build_rms_residual(gpu_world *w) {
  build_norm(w, FX_NORM_RMS, true);
}
static void build_layer_residual(gpu_world *w) {
  build_norm(w, FX_NORM_LAYER, true);
}

/* cols: of a head */
static void build_rope(gpu_world *w) {
  enum { B = 2, HEADS = 3, REST = 24 };
  static const char *const names[] = {"dx"};
  int64_t length = w->rows, D = w->cols;
  fx_value positions = world_integers(w, "positions", fx_type_2d(FX_I32, B, length), 0, 70000);
  fx_value table = fx_rope_table(FX_AT(w->graph), positions, (fx_rope_table_attr){D, 10000.0});
  fx_value x = world_elements(w, "x", fx_type_3d(FX_F32, B, length, HEADS * D + REST), 1);
  fx_value y = fx_rope(FX_AT(w->graph), x, table, (fx_rope_attr){HEADS, D, 1});
  world_output(w, "table", table);
  outputs_and_gradients(w, y, &x, names, 1);
}

/* ---- embedding, head, dropout ---- */

/* Ids in [low, high) of `vocab`: some rows are used often and some never. The gradient is stored, and added.
 */
static void build_lookup(gpu_world *w, int32_t low, int32_t high, int64_t vocab) {
  static const char *const names[] = {"none", "dtable"};
  fx_value ids = world_integers(w, "ids", fx_type_2d(FX_I32, 1, w->rows), low, high), grads[1];
  fx_value table = world_elements(w, "table", fx_type_2d(FX_F32, vocab, w->cols), 1);
  fx_value y = fx_embedding(FX_AT(w->graph), ids, table), loss = weigh(w, y);
  world_output(w, "y", y);
  CHECK_OK(fx_autograd(w->graph, loss, &table, 1, grads));
  world_output(w, names[1], grads[0]);
  fx_value total = world_normals(w, "total", *fx_graph_type(w->graph, grads[0]), 1, true);
  fx_accumulate(FX_AT(w->graph), total, grads[0]);
}

static void build_embedding(gpu_world *w) {
  build_lookup(w, 3, 47, 50);
}
static void build_embedding_of_one(gpu_world *w) {
  build_lookup(w, 7, 8, 300);
}
static void build_embedding_large(gpu_world *w) {
  build_lookup(w, 0, 70000, 70000);
}
/* More ids than 132 blocks of the sort own at 1,024 each. */
static void build_embedding_huge(gpu_world *w) {
  build_lookup(w, 0, 199999, 200000);
}

static void build_head(gpu_world *w, int64_t valid, int64_t E) {
  int64_t rows = w->rows, vocab = w->cols;
  fx_value x = world_elements(w, "x", fx_type_3d(FX_F32, 1, rows, E), 1), nll, grads[2];
  fx_value weight = world_elements(w, "w", fx_type_2d(FX_F32, vocab, E), 0.3f);
  fx_value targets =
      world_integers(w, "targets", fx_type_2d(FX_I32, 1, rows), -2, (int32_t)(valid ? valid : vocab));
  fx_value factor = world_number(w, "factor", 1.0f / (float)rows);
  fx_value loss = fx_head_ce(FX_AT(w->graph), x, weight, targets, factor, (fx_head_ce_attr){valid}, &nll);
  CHECK_OK(fx_autograd(w->graph, loss, (fx_value[]){x, weight}, 2, grads));
  world_output(w, "loss", loss);
  world_output(w, "nll", nll);
  world_output(w, "dx", grads[0]);
  world_output(w, "dw", grads[1]);
}

static void build_head_padded(gpu_world *w) {
  build_head(w, w->cols - 83, 40);
}
static void build_head_whole(gpu_world *w) {
  build_head(w, 0, 8);
}

/* ---- embedding and head of ranks that share a vocabulary, all ranks in one graph ---- */

enum { SHARDS = 3 };

/* The last shard is mostly padding. */
static void build_vocab_embedding(gpu_world *w) {
  enum { SHARD = 64, VALID = 2 * SHARD + 11 };
  static const char *const tables[] = {"table 0", "table 1", "table 2"}, *const ys[] = {"y 0", "y 1", "y 2"},
                           *const grads[] = {"dtable 0", "dtable 1", "dtable 2"};
  fx_value ids = world_integers(w, "ids", fx_type_2d(FX_I32, 1, w->rows), 0, VALID), dtable;
  for (int s = 0; s < SHARDS; s++) {
    fx_value table = world_elements(w, tables[s], fx_type_2d(FX_F32, SHARD, w->cols), 1);
    fx_value y = fx_vocab_embedding(FX_AT(w->graph), ids, table, (fx_vocab_attr){s * SHARD, VALID});
    CHECK_OK(fx_autograd(w->graph, weigh(w, y), &table, 1, &dtable));
    world_output(w, ys[s], y);
    world_output(w, grads[s], dtable);
  }
}

/* cols: logits of a shard. Of the last one `valid` counts; with 0 it is nothing but padding. */
static void build_vocab_head(gpu_world *w, int64_t last) {
  static const char *const names[] = {"logits 0", "logits 1", "logits 2"}, *const grads[] = {"dlogits 0",
                                                                                             "dlogits 1",
                                                                                             "dlogits 2"};
  int64_t valid = 2 * w->cols + last;
  fx_value targets = world_integers(w, "targets", fx_type_1d(FX_I32, w->rows), -2, (int32_t)valid);
  fx_value factor = world_number(w, "factor", 1.0f / (float)w->rows), scores[SHARDS], numbers[SHARDS],
           x = world_elements(w, "x", fx_type_2d(FX_F32, w->rows, 16), 1);
  for (int s = 0; s < SHARDS; s++) {
    fx_value weight = world_elements(w, names[s], fx_type_2d(FX_F32, w->cols, 16), 1);
    fx_value logits = fx_linear(FX_AT(w->graph), x, weight, FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
    fx_vocab_row_numbers(FX_AT(w->graph), logits, targets, (fx_vocab_attr){s * w->cols, valid}, &scores[s],
                         &numbers[s]);
  }
  fx_value all = fx_assemble_rows(FX_AT(w->graph), numbers, SHARDS);
  for (int s = 0; s < SHARDS; s++) {
    fx_value dlogits, nll;
    fx_vocab_merge(FX_AT(w->graph), scores[s], all, targets, factor, (fx_vocab_attr){s * w->cols, valid}, s,
                   &dlogits, &nll);
    world_output(w, grads[s], dlogits);
    if (s > 0) continue;
    world_output(w, "nll", nll);
    world_output(w, "loss", fx_vocab_loss(FX_AT(w->graph), nll, factor, x, x, x, x));
  }
}

static void build_vocab_head_padded(gpu_world *w) {
  build_vocab_head(w, w->cols - 7);
}
static void build_vocab_head_idle(gpu_world *w) {
  build_vocab_head(w, 0);
}

/* shape: of x; blocks: of 128 rows of a sample, or NULL */
static void dropped(gpu_world *w, fx_type shape, const int32_t *blocks, int count, fx_dropout_attr attr) {
  enum { B = 3 };
  fx_value places = FX_NONE, x = world_elements(w, "x", shape, 1);
  gpu_buffer *ordinals = world_buffer(w, "ordinals", fx_type_1d(FX_I64, B), false);
  for (int i = 0; i < B; i++) ((int64_t *)ordinals->data)[i] = 1000000 + 7 * i;
  fx_value ordinal = fx_graph_persistent(FX_AT(w->graph), "ordinals", ordinals->data, ordinals->type);
  fx_value iteration = world_count(w, "iteration", 12345678901);
  if (blocks) {
    gpu_buffer *b = world_buffer(w, "blocks", fx_type_1d(FX_I32, count), false);
    memcpy(b->data, blocks, (size_t)count * sizeof *blocks);
    places = fx_graph_persistent(FX_AT(w->graph), "blocks", b->data, b->type);
  }
  attr.seed = 5, attr.site = 77, attr.p = 0.3f;
  fx_graph_set_layer(w->graph, 3);
  world_output(w, "y", fx_dropout_at(FX_AT(w->graph), x, ordinal, iteration, places, attr));
}

static void build_dropout(gpu_world *w) {
  dropped(w, fx_type_3d(FX_F32, 3, w->rows, w->cols), NULL, 0, (fx_dropout_attr){0});
}
/* Rows from the middle of a sample on, whose blocks of 128 lie apart in their sequence. */
static void build_dropout_shard(gpu_world *w) {
  static const int32_t blocks[] = {256, 0, 1280};
  dropped(w, fx_type_2d(FX_F32, w->rows, w->cols), blocks, 3,
          (fx_dropout_attr){.first_row = 100, .length = 384});
}

/* ---- optimizer ---- */

typedef struct update {
  float sigma, lr;
  bool snapshot, compute;
  int32_t stochastic;
  int64_t first;
} update;

static void build_adamw(gpu_world *w, update u) {
  fx_type type = fx_type_1d(FX_F32, 50003);
  fx_value copies[3], factor, grad = world_normals(w, "grad", type, u.sigma, false);
  fx_value norm = fx_clip(FX_AT(w->graph), fx_squares(w->graph, &grad, 1), (fx_clip_attr){1.0}, &factor);
  for (int i = 0; u.snapshot && i < 3; i++) {
    static const char *const names[] = {"copy p", "copy m", "copy v"};
    copies[i] = world_normals(w, names[i], type, 1, true);
  }
  fx_adamw_values v = {.param = world_normals(w, "p", type, 1, true),
                       .grad = grad,
                       .exp_avg = world_normals(w, "m", type, 0.01f, true),
                       .exp_avg_sq = world_normals(w, "v", type, 0, true),
                       .lr = world_number(w, "lr", u.lr),
                       .step = world_count(w, "step", 7),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  if (u.compute) {
    gpu_buffer *b = world_buffer(w, "compute", fx_type_1d(FX_BF16, 50003), true);
    v.compute = fx_graph_persistent(FX_AT(w->graph), b->name, b->data, b->type);
  }
  fx_adamw_attr attr = {.beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .seed = 11,
                        .first = u.first,
                        .stochastic = u.stochastic};
  world_output(w, "norm", norm);
  world_output(w, "factor", factor);
  fx_adamw(FX_AT(w->graph), &v, u.snapshot ? copies : NULL, attr);
}

static void build_update(gpu_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .lr = 1e-3f});
}
static void build_update_snapshot(gpu_world *w) {
  build_adamw(w, (update){.sigma = 1e-5f, .lr = 1e-3f, .snapshot = true});
}
static void build_update_not_finite(gpu_world *w) {
  build_adamw(w, (update){.sigma = INFINITY, .lr = 1e-3f, .snapshot = true, .compute = true});
}
/* A rate of 0 leaves the parameters: what is rounded is the same everywhere, and so must its bits be. */
static void build_rounded(gpu_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .compute = true, .snapshot = true});
}
static void build_rounded_stochastically(gpu_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .compute = true, .stochastic = 1, .first = 80000});
}
static void build_rounded_from_the_middle(gpu_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .compute = true, .stochastic = 1, .first = 80003});
}

/* ---- cases ---- */

/* Bounds of the relative norm: fp32 sums in another order (the CPU adds 33,000 rows of one id one after the
 * other, which leaves it 2e-4 off; the GPU adds sums of 32); bfloat16 rounds to 2^-9 of an element (1.7e-3
 * root mean square), a few times on the way to a gradient. */
typedef struct op_case {
  const char *name;
  void (*build)(gpu_world *world);
  double bound, half_bound; /* half_bound 0: no bfloat16 */
  int64_t shape[12][2];     /* rows, cols; ends with 0 */
} op_case;

#define ODD_SHAPES                 \
  {1, 24}, {3, 100}, {257, 770}, { \
    257, 768                       \
  }
/* The last five: rows enough that the rings of their gradient (ops/cuda/norm_grad.cu) go round, for 1, 2, 4,
 * 8 and 10 warps a row of bfloat16. */
#define NORM_SHAPES                                                                                      \
  ODD_SHAPES, {700, 2048}, {3, 8192}, {5, 9000}, {5000, 768}, {3500, 1000}, {1700, 2048}, {900, 4096}, { \
    900, 5120                                                                                            \
  }

static const op_case g_cases[] = {
    {"pointwise", build_pointwise, 1e-7, 4e-3, {ODD_SHAPES, {37, 130}}},
    {"casts", build_casts, 0, 0, {{1, 24}, {3, 1667}}},
    {"blocks of rows", build_blocks, 0, 4e-3, {{1, 1}}},
    {"linear", build_linear_plain, 2e-6, 6e-3, {{33, 52}, {3, 24}}},
    {"linear bias gelu", build_linear_gelu, 3e-6, 1e-2, {{33, 52}, {300, 104}}},
    {"linear in_out bias", build_linear_bias, 3e-6, 6e-3, {{33, 52}, {1500, 100}}},
    {"linear in_out bias gelu_tanh", build_linear_conv1d, 3e-6, 1e-2, {{33, 52}, {300, 100}}},
    {"bias of its own", build_add_bias, 2e-6, 8e-3, {ODD_SHAPES}},
    {"swiglu", build_swiglu, 2e-6, 8e-3, {ODD_SHAPES}},
    {"rmsnorm", build_rmsnorm, 2e-6, 8e-3, {NORM_SHAPES}},
    {"layernorm", build_layernorm, 4e-6, 8e-3, {NORM_SHAPES}},
    {"rmsnorm of a sum", build_rms_residual, 2e-6, 8e-3, {NORM_SHAPES}},
    {"layernorm of a sum", build_layer_residual, 4e-6, 8e-3, {NORM_SHAPES}},
    {"layernorm of 5", build_layernorm, 4e-6, 0, {{3, 5}}},
    {"rope", build_rope, 2e-6, 8e-3, {{1, 16}, {40, 16}, {257, 64}, {40, 20}, {9, 1600}}},
    {"embedding", build_embedding, 2e-6, 8e-3, {ODD_SHAPES, {2100, 333}, {9000, 40}}},
    {"embedding of one id", build_embedding_of_one, 4e-4, 1e-2, {{64, 24}, {5000, 100}, {33000, 24}}},
    {"embedding of many ids", build_embedding_large, 2e-6, 8e-3, {{3000, 24}, {40000, 24}}},
    {"embedding of more ids", build_embedding_huge, 2e-6, 8e-3, {{3000, 24}, {3000, 20}}},
    {"head, padded", build_head_padded, 3e-6, 1e-2, {{130, 384}, {3, 384}, {257, 101}}},
    {"head, whole", build_head_whole, 3e-6, 1e-2, {{257, 2048}, {9, 50304}}},
    {"head, in chunks", build_head_whole, 3e-5, 1.2e-2, {{300, 530000}, {600, 530000}}},
    {"vocabulary shards, embedding", build_vocab_embedding, 2e-6, 8e-3, {ODD_SHAPES, {2100, 333}}},
    {"vocabulary shards, head", build_vocab_head_padded, 3e-6, 1e-2, {{1, 128}, {257, 101}, {33, 16000}}},
    {"vocabulary shards, one idle", build_vocab_head_idle, 3e-6, 1e-2, {{257, 384}}},
    {"dropout", build_dropout, 0, 4e-3, {ODD_SHAPES, {37, 20}, {700, 40}, {40, 2048}}},
    {"dropout of a shard", build_dropout_shard, 0, 4e-3, {{650, 40}, {650, 42}, {3, 768}}},
    {"clip and adamw", build_update, 1e-6, 0, {{1, 1}}},
    {"adamw with snapshot", build_update_snapshot, 1e-6, 0, {{1, 1}}},
    {"adamw, rounded", build_rounded, 1e-6, 0, {{1, 1}}},
    {"adamw, rounded stochastically", build_rounded_stochastically, 1e-6, 0, {{1, 1}}},
    {"adamw, from the middle", build_rounded_from_the_middle, 1e-6, 0, {{1, 1}}},
};

static void every_op_against_the_cpu(void) {
  int index, of;
  fx_test_slice(&index, &of);
  for (size_t i = (size_t)index; i < sizeof g_cases / sizeof g_cases[0]; i += (size_t)of) {
    const op_case *o = &g_cases[i];
    for (int k = 0; k < 12 && o->shape[k][0] > 0; k++) {
      gpu_case c = {o->name, o->build, o->bound, false, o->shape[k][0], o->shape[k][1]};
      run_case(&c, g_cpu, g_gpu);
      c.half = true;
      c.bound = o->half_bound;
      if (c.bound > 0) run_case(&c, g_cpu, g_gpu);
    }
  }
}

static void a_bad_gradient_changes_nothing(void) {
  static const gpu_case c = {.name = "adamw, gradient not finite", .build = build_update_not_finite};
  gpu_world shape;
  char *outputs = world_run(&c, g_gpu, FX_EXEC_REPLAY, &shape);
  size_t at = 0;
  for (int i = 0; outputs && i < shape.count; i++) {
    const gpu_buffer *b = &shape.buffer[i];
    if (!b->output) continue;
    const float *data = (const float *)(const void *)(outputs + at);
    if (strcmp(b->name, "compute") == 0)
      for (size_t k = 0; k < fx_type_bytes(&b->type); k++) CHECK((unsigned char)outputs[at + k] == 0xFF);
    if (strcmp(b->name, "p") == 0 || strcmp(b->name, "copy p") == 0)
      for (int64_t k = 0; k < 16; k++) CHECK(isfinite(data[k]));
    if (strcmp(b->name, "norm") == 0) CHECK(!isfinite(data[0]));
    at += fx_type_bytes(&b->type);
  }
  free(outputs);
}

/* ---- what the device says ---- */

static void bad_data_is_told(void) {
  for (int head = 0; head < 2; head++) {
    gpu_world w = {.device = g_gpu, .graph = fx_graph_create(NULL)};
    fx_plan *plan = NULL;
    void *arena = NULL;
    fx_value ids = world_integers(&w, "ids", fx_type_2d(FX_I32, 1, 40), 0, 9);
    ((int32_t *)w.buffer[0].data)[33] = 12;
    fx_value table = world_normals(&w, "table", fx_type_2d(FX_F32, 10, 8), 1, false);
    fx_value x = world_normals(&w, "x", fx_type_3d(FX_F32, 1, 40, 8), 1, false);
    fx_value y =
        head ? fx_head_ce(FX_AT(w.graph), x, table, ids, world_number(&w, "f", 1), (fx_head_ce_attr){0}, NULL)
             : fx_embedding(FX_AT(w.graph), ids, table);
    world_output(&w, "y", y);
    CHECK_OK(fx_plan_prepare(w.graph, (fx_plan_options){.name = "bad"}, g_gpu, &plan));
    CHECK_OK(fx_device_alloc(g_gpu, fx_plan_stats_get(plan)->arena.bytes + 64, &arena));
    CHECK_OK(fx_plan_bind(plan, arena));
    CHECK_OK(fx_plan_run(plan, 0));
    CHECK_STATUS(fx_device_sync(g_gpu), FX_ERR_DATA);
    CHECK_HAS(fx_error_text(), head ? "target 12 is outside the vocabulary of 10" : "id 12 at place 33");
    CHECK_OK(fx_device_sync(g_gpu)); /* told once */
    fx_plan_destroy(plan);
    fx_device_release(g_gpu, arena);
    for (int i = 0; i < w.count; i++) fx_device_release_host(g_gpu, w.buffer[i].data);
  }
}

static void memory_is_counted(void) {
  size_t before = 0, after = 0, total = 0;
  void *memory = NULL;
  CHECK_OK(fx_device_memory_info(g_gpu, &before, &total));
  CHECK_OK(fx_device_alloc(g_gpu, (size_t)256 << 20, &memory));
  CHECK_OK(fx_device_memory_info(g_gpu, &after, &total));
  CHECK_MSG(after >= before + ((size_t)256 << 20) && after < total, "%zu, then %zu of %zu bytes", before,
            after, total);
  fx_device_release(g_gpu, memory);
  CHECK_STATUS(fx_device_alloc(g_gpu, total * 2, &memory), FX_ERR_MEMORY);
  CHECK_HAS(fx_error_text(), "of GPU memory");
}

static fx_status no_shapes(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[0];
  return FX_OK;
}

static void a_missing_kernel_is_named(void) {
  static const fx_op lonely = {.name = "lonely", .min_in = 1, .max_in = 1, .num_out = 1, .infer = no_shapes};
  gpu_world w = {.device = g_gpu, .graph = fx_graph_create(NULL)};
  fx_plan *plan = NULL;
  fx_value x = world_normals(&w, "x", fx_type_1d(FX_F32, 8), 1, false);
  world_output(&w, "y", fx_graph_record(w.graph, &lonely, NULL, (fx_value[]){x}, NULL));
  CHECK_STATUS(fx_plan_prepare(w.graph, (fx_plan_options){.name = "p"}, g_gpu, &plan), FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "op lonely has no kernel for the cuda backend");
  for (int i = 0; i < w.count; i++) fx_device_release_host(g_gpu, w.buffer[i].data);
}

static void runtime_inputs_are_copied(void) {
  fx_inputs *inputs = NULL;
  void *memory = NULL, *arena = NULL;
  fx_plan *plan = NULL;
  CHECK_OK(fx_inputs_create(2, &inputs));
  CHECK_OK(fx_inputs_add(inputs, "pad", fx_type_1d(FX_F32, 3)));
  CHECK_OK(fx_inputs_add(inputs, "x", fx_type_1d(FX_F32, 1000)));
  CHECK_OK(fx_inputs_allocate_on(inputs, g_gpu));
  CHECK_OK(fx_device_alloc_host(g_gpu, 4000, &memory));
  fx_graph *graph = fx_graph_create(inputs);
  fx_value x = fx_graph_input(FX_AT(graph), "x");
  fx_store(FX_AT(graph), fx_graph_persistent(FX_AT(graph), "y", memory, fx_type_1d(FX_F32, 1000)),
           fx_add(FX_AT(graph), x, x));
  CHECK_OK(fx_plan_prepare(graph, (fx_plan_options){.name = "p"}, g_gpu, &plan));
  CHECK_OK(fx_device_alloc(g_gpu, fx_plan_stats_get(plan)->arena.bytes + 64, &arena));
  CHECK_OK(fx_plan_bind(plan, arena));
  for (int slot = 0; slot < 2; slot++) {
    float *data = fx_inputs_data(inputs, slot, "x");
    for (int i = 0; i < 1000; i++) data[i] = (float)(i + 1000 * slot);
    CHECK_OK(fx_plan_run(plan, slot));
    CHECK_OK(fx_device_sync(g_gpu));
    for (int i = 0; i < 1000; i++) CHECK(((float *)memory)[i] == (float)(2 * (i + 1000 * slot)));
  }
  fx_plan_destroy(plan);
  fx_device_release(g_gpu, arena);
  fx_device_release_host(g_gpu, memory);
  fx_inputs_destroy(inputs);
}

int main(void) {
  static const fx_test tests[] = {
      {"every op against the CPU", every_op_against_the_cpu},
      {"a gradient that is not finite changes nothing", a_bad_gradient_changes_nothing},
      {"bad ids and targets are told", bad_data_is_told},
      {"memory is counted", memory_is_counted},
      {"a missing kernel is named", a_missing_kernel_is_named},
      {"runtime inputs are copied from their slot", runtime_inputs_are_copied}};
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  if (probe.count == 0) {
    printf("skipped: no GPU: %s\n", probe.reason);
    return FX_TEST_SKIPPED;
  }
  if (fx_device_create_cuda(0, &g_gpu) != FX_OK || fx_device_create_cpu(2, "auto", &g_cpu) != FX_OK) {
    printf("FAILED: %s\n", fx_error_text());
    return 1;
  }
  printf("GPU: %s, %s, %s\n", probe.device[0].name, g_gpu->isa, g_gpu->gemm_name);
  int code = fx_test_main("cuda ops", tests, (int)(sizeof tests / sizeof tests[0]));
  fx_device_destroy(g_gpu);
  fx_device_destroy(g_cpu);
  return code;
}
