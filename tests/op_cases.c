/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/op_cases.h"

#include <math.h>
#include <string.h>

#include "dynamo_rt/graph/autograd.h"
#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/ops/rope.h"
#include "dynamo_rt/ops/vocab_shard.h"
#include "tests/harness.h"

/* A gradient of y that differs from element to element: through a projection and a GELU. */
static fx_value weigh(fx_world *w, fx_value y) {
  int64_t cols = fx_type_cols(fx_graph_type(w->graph, y));
  fx_value mix = fx_world_elements(w, "mix", fx_type_2d(FX_F32, 24, cols), 1.0f / sqrtf((float)cols));
  fx_value z = fx_linear(FX_AT(w->graph), y, mix, FX_NONE, (fx_linear_attr){0, FX_ACT_GELU_TANH});
  return fx_cast(FX_AT(w->graph), z, FX_F32);
}

/* wrt: an activation, then parameters */
static void outputs_and_gradients(fx_world *w, fx_value y, const fx_value *wrt, const char *const *names,
                                  int count) {
  fx_value grads[8], loss = weigh(w, y);
  fx_world_output(w, "y", y);
  CHECK_OK(fx_autograd(w->graph, loss, wrt, count, grads));
  fx_world_output(w, names[0], grads[0]);
  for (int i = 1; i < count; i++) fx_world_gradient(w, names[i], grads[i]);
}

/* ---- pointwise ---- */

static void build_pointwise(fx_world *w) {
  fx_graph *g = w->graph;
  fx_type type = fx_type_3d(FX_F32, 3, w->rows, w->cols);
  fx_value a = fx_world_elements(w, "a", type, 1), b = fx_world_elements(w, "b", type, 2);
  fx_value sum = fx_add(FX_AT(g), a, b), s = fx_world_number(w, "s", 0.37f);
  fx_value rows = fx_world_elements(w, "rows", fx_type_3d(FX_F32, 2, w->rows, 3 * w->cols), 1);
  fx_world_output(w, "sum", sum);
  fx_world_output(w, "scaled", fx_scale(FX_AT(g), sum, s));
  fx_world_output(w, "heads", fx_copy(FX_AT(g), fx_slice_heads(FX_AT(g), rows, w->cols, 2, w->cols / 2)));
  if (w->half) return;
  fx_world_output(w, "fill", fx_fill(FX_AT(g), type, -2.5f));
  fx_accumulate(FX_AT(g), fx_world_normals(w, "total", type, 1, true), sum);
}

static void build_casts(fx_world *w) {
  fx_value x = fx_world_normals(w, "x", fx_type_1d(FX_F32, w->rows * w->cols), 3, false);
  fx_value half = fx_cast(FX_AT(w->graph), x, FX_BF16), wide = fx_cast(FX_AT(w->graph), x, FX_F64);
  fx_world_output(w, "half", half);
  fx_world_output(w, "wide", wide);
  fx_world_output(w, "back", fx_cast(FX_AT(w->graph), half, FX_F32));
  fx_world_output(w, "narrow", fx_cast(FX_AT(w->graph), wide, FX_BF16));
}

/* Blocks of rows of heads of 64 (q, k, v of one projection), picked, added and cast between strided places.
 */
static void build_blocks(fx_world *w) {
  enum { B = 2, N = 5, H = 3, D = 64, COUNT = 4, WIDE = 2 * H * D };
  static const int32_t numbers[COUNT] = {3, 0, -1, 4};
  fx_graph *g = w->graph;
  fx_world_buffer *picked = fx_world_new_buffer(w, "index", fx_type_1d(FX_I32, COUNT), false);
  memcpy(picked->data, numbers, sizeof numbers);
  fx_value index = fx_graph_persistent(FX_AT(g), "index", picked->data, picked->type);
  fx_value x = fx_world_elements(w, "x", fx_type_3d(FX_F32, B, N * FX_BLOCK_ROWS, WIDE), 1), parts[2];
  fx_dtype dtype = fx_graph_type(g, x)->dtype;
  fx_type small = fx_type_3d(dtype, B, COUNT * FX_BLOCK_ROWS, WIDE);
  for (int i = 0; i < 2; i++)
    parts[i] = fx_take_blocks(FX_AT(g), fx_slice_heads(FX_AT(g), x, (1 - i) * H * D, H, D), index, COUNT);
  fx_world_output(w, "picked", fx_assemble(FX_AT(g), parts, (int64_t[]){0, H * D}, 2, small));
  if (w->half) return;
  fx_value sum =
      fx_world_normals(w, "sum", fx_type_of(FX_F32, 4, (int64_t[]){B, N * FX_BLOCK_ROWS, H, D}), 1, true);
  fx_value more = fx_world_normals(
      w, "more", fx_type_of(FX_F32, 4, (int64_t[]){B, COUNT * FX_BLOCK_ROWS, H, D}), 1, false);
  fx_add_blocks(FX_AT(g), sum, more, index);
  for (int i = 0; i < 2; i++) parts[i] = fx_cast(FX_AT(g), more, FX_BF16);
  small.dtype = FX_BF16;
  fx_world_output(w, "cast", fx_assemble(FX_AT(g), parts, (int64_t[]){H * D, 0}, 2, small));
}

/* Values that look at others' memory: rows, exchanged dimensions, parts put together; memory that is read,
 * changed and read again. cols: a multiple of 4 */
static void build_views(fx_world *w) {
  enum { TOP = 3 };
  fx_graph *g = w->graph;
  int64_t rows = TOP + w->rows, cols = w->cols;
  fx_type type = fx_type_2d(FX_F32, rows, cols);
  fx_value x = fx_world_elements(w, "x", type, 1), s = fx_world_number(w, "s", -1.7f), parts[2], dx;
  parts[0] = fx_scale(FX_AT(g), fx_slice_rows(FX_AT(g), x, TOP, w->rows), s);
  parts[1] = fx_scale(FX_AT(g), fx_slice_rows(FX_AT(g), x, 0, TOP), s);
  fx_value y = fx_assemble_rows(FX_AT(g), parts, 2);
  fx_value split = fx_reshape(FX_AT(g), y, 3, (int64_t[]){rows, 4, cols / 4});
  fx_world_output(w, "turned", fx_copy(FX_AT(g), fx_swap_dims(FX_AT(g), split, 0, 1)));
  CHECK_OK(fx_autograd(g, weigh(w, y), &x, 1, &dx));
  fx_world_output(w, "dx", dx);
  if (w->half) return;
  fx_value total = fx_world_normals(w, "total", type, 1, true);
  fx_world_output(w, "before", total);
  fx_value after = fx_accumulate(FX_AT(g), total, y);
  fx_world_output(w, "after", fx_scale(FX_AT(g), after, s));
  fx_value both[] = {fx_slice_rows(FX_AT(g), x, 1, 2), y};
  fx_world_output(w, "joined", fx_join(FX_AT(g), both, (int64_t[]){rows * cols, 0}, 2, (rows + 2) * cols));
}

/* ---- linear ---- */

static void build_linear(fx_world *w, int in_out, fx_activation activation, bool with_bias) {
  static const char *const names[] = {"dx", "dw", "db"};
  int64_t I = 72, O = w->cols;
  fx_type type = in_out ? fx_type_2d(FX_F32, I, O) : fx_type_2d(FX_F32, O, I);
  fx_value x = fx_world_elements(w, "x", fx_type_3d(FX_F32, 2, w->rows, I), 1);
  fx_value weight = fx_world_elements(w, "w", type, 0.1f);
  fx_value bias = with_bias ? fx_world_elements(w, "b", fx_type_1d(FX_F32, O), 1) : FX_NONE;
  fx_value y = fx_linear(FX_AT(w->graph), x, weight, bias, (fx_linear_attr){in_out, (int32_t)activation});
  outputs_and_gradients(w, y, (fx_value[]){x, weight, bias}, names, with_bias ? 3 : 2);
}

static void build_linear_plain(fx_world *w) {
  build_linear(w, 0, FX_ACT_NONE, false);
}
static void build_linear_gelu(fx_world *w) {
  build_linear(w, 0, FX_ACT_GELU, true);
}
static void build_linear_conv1d(fx_world *w) {
  build_linear(w, 1, FX_ACT_GELU_TANH, true);
}
static void build_linear_bias(fx_world *w) {
  build_linear(w, 1, FX_ACT_NONE, true);
}

static void build_add_bias(fx_world *w) {
  static const char *const names[] = {"dx", "db"};
  fx_value x = fx_world_elements(w, "x", fx_type_3d(FX_F32, 2, w->rows, w->cols), 1);
  fx_value bias = fx_world_elements(w, "b", fx_type_1d(FX_F32, w->cols), 1);
  outputs_and_gradients(w, fx_add_bias(FX_AT(w->graph), x, bias), (fx_value[]){x, bias}, names, 2);
  fx_world_output(w, "x too",
                  fx_add_bias(FX_AT(w->graph), fx_add(FX_AT(w->graph), x, x), bias)); /* in place */
}

static void build_swiglu(fx_world *w) {
  static const char *const names[] = {"dx"};
  fx_value x = fx_world_elements(w, "x", fx_type_3d(FX_F32, 1, w->rows, 2 * w->cols), 2);
  outputs_and_gradients(w, fx_swiglu(FX_AT(w->graph), x), &x, names, 1);
}

/* ---- norm, rope ---- */

/* sigma: of x, whose square is far above eps or about as small. residual: the norm of a sum whose gradient
 * has two parts, so that dx is added to what is there. */
static void build_norm(fx_world *w, fx_norm_kind kind, float sigma, bool residual) {
  static const char *const names[] = {"dx", "dw", "db"};
  bool layer = kind == FX_NORM_LAYER;
  fx_type rows = fx_type_3d(FX_F32, 1, w->rows, w->cols), row = fx_type_1d(FX_F32, w->cols);
  fx_value x = fx_world_elements(w, "x", rows, sigma), sum = x;
  fx_value weight = fx_world_normals(w, "w", row, 1, false);
  fx_value bias = layer ? fx_world_normals(w, "b", row, 1, false) : FX_NONE;
  if (residual) sum = fx_add(FX_AT(w->graph), x, fx_world_elements(w, "other", rows, 1));
  fx_value y = fx_norm(FX_AT(w->graph), sum, weight, bias, (fx_norm_attr){(int32_t)kind, 1e-5f});
  if (residual) fx_world_output(w, "normed", y);
  if (residual) y = fx_add(FX_AT(w->graph), y, sum);
  outputs_and_gradients(w, y, (fx_value[]){x, weight, bias}, names, layer ? 3 : 2);
}

static void build_rmsnorm(fx_world *w) {
  build_norm(w, FX_NORM_RMS, 2, false);
}
static void build_layernorm(fx_world *w) {
  build_norm(w, FX_NORM_LAYER, 2, false);
}
static void build_rmsnorm_small(fx_world *w) {
  build_norm(w, FX_NORM_RMS, 0.004f, false);
}
static void build_layernorm_small(fx_world *w) {
  build_norm(w, FX_NORM_LAYER, 0.004f, false);
}
static void build_rms_residual(fx_world *w) {
  build_norm(w, FX_NORM_RMS, 2, true);
}
static void build_layer_residual(fx_world *w) {
  build_norm(w, FX_NORM_LAYER, 2, true);
}

/* cols: of a head */
static void build_rope(fx_world *w) {
  enum { B = 2, HEADS = 3, REST = 24 };
  static const char *const names[] = {"dx"};
  int64_t length = w->rows, D = w->cols;
  fx_value positions = fx_world_integers(w, "positions", fx_type_2d(FX_I32, B, length), 0, 70000);
  fx_value table = fx_rope_table(FX_AT(w->graph), positions, (fx_rope_table_attr){D, 10000.0});
  fx_value x = fx_world_elements(w, "x", fx_type_3d(FX_F32, B, length, HEADS * D + REST), 1);
  fx_value y = fx_rope(FX_AT(w->graph), x, table, (fx_rope_attr){HEADS, D, 1});
  fx_world_output(w, "table", table);
  outputs_and_gradients(w, y, &x, names, 1);
}

/* ---- embedding, head, dropout ---- */

/* Ids in [low, high) of `vocab`: some rows are used often and some never. */
static void build_lookup(fx_world *w, int32_t low, int32_t high, int64_t vocab) {
  fx_value ids = fx_world_integers(w, "ids", fx_type_2d(FX_I32, 1, w->rows), low, high), grads[1];
  fx_value table = fx_world_elements(w, "table", fx_type_2d(FX_F32, vocab, w->cols), 1);
  fx_value y = fx_embedding(FX_AT(w->graph), ids, table), loss = weigh(w, y);
  fx_world_output(w, "y", y);
  CHECK_OK(fx_autograd(w->graph, loss, &table, 1, grads));
  fx_world_gradient(w, "dtable", grads[0]);
}

static void build_embedding(fx_world *w) {
  build_lookup(w, 3, 47, 50);
}
static void build_embedding_of_one(fx_world *w) {
  build_lookup(w, 7, 8, 300);
}
static void build_embedding_large(fx_world *w) {
  build_lookup(w, 0, 70000, 70000);
}
/* More ids than 132 blocks of the sort own at 1,024 each. */
static void build_embedding_huge(fx_world *w) {
  build_lookup(w, 0, 199999, 200000);
}

static void build_head(fx_world *w, int64_t valid, int64_t E) {
  int64_t rows = w->rows, vocab = w->cols;
  fx_value x = fx_world_elements(w, "x", fx_type_3d(FX_F32, 1, rows, E), 1), nll, grads[2];
  fx_value weight = fx_world_elements(w, "w", fx_type_2d(FX_F32, vocab, E), 0.3f);
  fx_value targets =
      fx_world_integers(w, "targets", fx_type_2d(FX_I32, 1, rows), -2, (int32_t)(valid ? valid : vocab));
  fx_value factor = fx_world_number(w, "factor", 1.0f / (float)rows);
  fx_value loss = fx_head_ce(FX_AT(w->graph), x, weight, targets, factor, (fx_head_ce_attr){valid}, &nll);
  CHECK_OK(fx_autograd(w->graph, loss, (fx_value[]){x, weight}, 2, grads));
  fx_world_output(w, "loss", loss);
  fx_world_output(w, "nll", nll);
  fx_world_output(w, "dx", grads[0]);
  fx_world_gradient(w, "dw", grads[1]);
}

static void build_head_padded(fx_world *w) {
  build_head(w, w->cols - 83, 40);
}
static void build_head_whole(fx_world *w) {
  build_head(w, 0, 8);
}

/* ---- embedding and head of ranks that share a vocabulary, all ranks in one graph ---- */

enum { SHARDS = 3 };

/* The last shard is mostly padding. */
static void build_vocab_embedding(fx_world *w) {
  enum { SHARD = 64, VALID = 2 * SHARD + 11 };
  static const char *const tables[] = {"table 0", "table 1", "table 2"}, *const ys[] = {"y 0", "y 1", "y 2"},
                           *const grads[] = {"dtable 0", "dtable 1", "dtable 2"};
  fx_value ids = fx_world_integers(w, "ids", fx_type_2d(FX_I32, 1, w->rows), 0, VALID), dtable;
  for (int s = 0; s < SHARDS; s++) {
    fx_value table = fx_world_elements(w, tables[s], fx_type_2d(FX_F32, SHARD, w->cols), 1);
    fx_value y = fx_vocab_embedding(FX_AT(w->graph), ids, table, (fx_vocab_attr){s * SHARD, VALID});
    CHECK_OK(fx_autograd(w->graph, weigh(w, y), &table, 1, &dtable));
    fx_world_output(w, ys[s], y);
    fx_world_gradient(w, grads[s], dtable);
  }
}

/* cols: logits of a shard. Of the last one `valid` counts; with 0 it is nothing but padding. */
static void build_vocab_head(fx_world *w, int64_t last) {
  static const char *const names[] = {"logits 0", "logits 1", "logits 2"}, *const grads[] = {"dlogits 0",
                                                                                             "dlogits 1",
                                                                                             "dlogits 2"};
  int64_t valid = 2 * w->cols + last;
  fx_value targets = fx_world_integers(w, "targets", fx_type_1d(FX_I32, w->rows), -2, (int32_t)valid);
  fx_value factor = fx_world_number(w, "factor", 1.0f / (float)w->rows), scores[SHARDS], numbers[SHARDS],
           x = fx_world_elements(w, "x", fx_type_2d(FX_F32, w->rows, 16), 1);
  for (int s = 0; s < SHARDS; s++) {
    fx_value weight = fx_world_elements(w, names[s], fx_type_2d(FX_F32, w->cols, 16), 1);
    fx_value logits = fx_linear(FX_AT(w->graph), x, weight, FX_NONE, (fx_linear_attr){0, FX_ACT_NONE});
    fx_vocab_row_numbers(FX_AT(w->graph), logits, targets, (fx_vocab_attr){s * w->cols, valid}, &scores[s],
                         &numbers[s]);
  }
  fx_value all = fx_assemble_rows(FX_AT(w->graph), numbers, SHARDS);
  for (int s = 0; s < SHARDS; s++) {
    fx_value dlogits, nll;
    fx_vocab_merge(FX_AT(w->graph), scores[s], all, targets, factor, (fx_vocab_attr){s * w->cols, valid}, s,
                   &dlogits, &nll);
    fx_world_output(w, grads[s], dlogits);
    if (s > 0) continue;
    fx_world_output(w, "nll", nll);
    fx_world_output(w, "loss", fx_vocab_loss(FX_AT(w->graph), nll, factor, x, x, x, x));
  }
}

static void build_vocab_head_padded(fx_world *w) {
  build_vocab_head(w, w->cols - 7);
}
static void build_vocab_head_idle(fx_world *w) {
  build_vocab_head(w, 0);
}

/* shape: of x; blocks: of 128 rows of a sample, or NULL */
static void dropped(fx_world *w, fx_type shape, const int32_t *blocks, int count, fx_dropout_attr attr) {
  enum { B = 3 };
  fx_value places = FX_NONE, x = fx_world_elements(w, "x", shape, 1);
  fx_world_buffer *ordinals = fx_world_new_buffer(w, "ordinals", fx_type_1d(FX_I64, B), false);
  for (int i = 0; i < B; i++) ((int64_t *)ordinals->data)[i] = 1000000 + 7 * i;
  fx_value ordinal = fx_graph_persistent(FX_AT(w->graph), "ordinals", ordinals->data, ordinals->type);
  fx_value iteration = fx_world_count(w, "iteration", 12345678901);
  if (blocks) {
    fx_world_buffer *b = fx_world_new_buffer(w, "blocks", fx_type_1d(FX_I32, count), false);
    memcpy(b->data, blocks, (size_t)count * sizeof *blocks);
    places = fx_graph_persistent(FX_AT(w->graph), "blocks", b->data, b->type);
  }
  attr.seed = 5, attr.site = 77, attr.p = 0.3f;
  fx_graph_set_layer(w->graph, 3);
  fx_world_output(w, "y", fx_dropout_at(FX_AT(w->graph), x, ordinal, iteration, places, attr));
}

static void build_dropout(fx_world *w) {
  dropped(w, fx_type_3d(FX_F32, 3, w->rows, w->cols), NULL, 0, (fx_dropout_attr){0});
}
/* Rows from the middle of a sample on, whose blocks of 128 lie apart in their sequence. */
static void build_dropout_shard(fx_world *w) {
  static const int32_t blocks[] = {256, 0, 1280};
  dropped(w, fx_type_2d(FX_F32, w->rows, w->cols), blocks, 3,
          (fx_dropout_attr){.first_row = 100, .length = 384});
}

/* ---- optimizer ---- */

typedef struct update {
  float sigma, lr;
  double max_norm; /* the norm of the gradient is 224 sigma */
  bool snapshot, compute;
  int32_t stochastic;
  int64_t first;
} update;

/* Of normal numbers, as second moments are; changed in place. */
static fx_value squares(fx_world *w, const char *name, fx_type type, float sigma) {
  fx_value value = fx_world_normals(w, name, type, sigma, true);
  float *data = w->buffer[w->count - 1].data;
  for (int64_t i = 0; i < fx_type_numel(&type); i++) data[i] *= data[i];
  return value;
}

static void build_adamw(fx_world *w, update u) {
  fx_type type = fx_type_1d(FX_F32, 50003);
  float moments = isfinite(u.sigma) ? u.sigma : 1;
  fx_value copies[3], factor, grad = fx_world_normals(w, "grad", type, u.sigma, false);
  fx_value norm =
      fx_clip(FX_AT(w->graph), fx_squares(w->graph, &grad, 1), (fx_clip_attr){u.max_norm}, &factor);
  for (int i = 0; u.snapshot && i < 3; i++) {
    static const char *const names[] = {"copy p", "copy m", "copy v"};
    copies[i] = fx_world_normals(w, names[i], type, 1, true);
  }
  fx_adamw_values v = {.param = fx_world_normals(w, "p", type, 1, true),
                       .grad = grad,
                       .exp_avg = fx_world_normals(w, "m", type, moments, true),
                       .exp_avg_sq = squares(w, "v", type, moments),
                       .lr = fx_world_number(w, "lr", u.lr),
                       .step = fx_world_count(w, "step", 7),
                       .norm = norm,
                       .factor = factor,
                       .compute = FX_NONE};
  if (u.compute) {
    fx_world_buffer *b = fx_world_new_buffer(w, "compute", fx_type_1d(FX_BF16, 50003), true);
    v.compute = fx_graph_persistent(FX_AT(w->graph), b->name, b->data, b->type);
  }
  fx_adamw_attr attr = {.beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .seed = 11,
                        .first = u.first,
                        .stochastic = u.stochastic};
  fx_world_output(w, "norm", norm);
  fx_world_output(w, "factor", factor);
  fx_adamw(FX_AT(w->graph), &v, u.snapshot ? copies : NULL, attr);
}

static void build_update(fx_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .lr = 0.1f, .max_norm = 1});
}
static void build_update_snapshot(fx_world *w) {
  build_adamw(w, (update){.sigma = 1e-5f, .lr = 0.1f, .max_norm = 1e-3, .snapshot = true});
}
void fx_op_case_not_finite(fx_world *w) {
  build_adamw(w, (update){.sigma = INFINITY, .lr = 1e-3f, .max_norm = 1, .snapshot = true, .compute = true});
}
/* A rate of 0 leaves the parameters: what is rounded is the same everywhere, and so must its bits be. */
static void build_rounded(fx_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .max_norm = 100, .compute = true, .snapshot = true});
}
static void build_rounded_stochastically(fx_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .max_norm = 100, .compute = true, .stochastic = 1, .first = 80000});
}
static void build_rounded_from_the_middle(fx_world *w) {
  build_adamw(w, (update){.sigma = 0.1f, .max_norm = 100, .compute = true, .stochastic = 1, .first = 80003});
}

/* ---- cases ---- */

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

/* Bounds of the relative norm, in roundings: the most that one is off is 2^-24 of a float32, 2^-9 of a
 * bfloat16.
 *
 * CPU: a few sums in vectors, blocks and chunks are some hundred roundings in either direction, which add up
 * to 4 to 14; up to four times that is allowed, for vectors and products of other machines. Where a build has
 * no vectors (sanitizers), a row's 9,000 squares are added one after the other: 64. Rows of one id always
 * are, and equal ones are rounded in the same direction for long: n / 4.
 *
 * GPU: sums in other orders, and the tanh of cuBLASLt's epilogue, good to 3e-6, in the gradient of y. Equal
 * rows are three sums of at most 32 terms, a rounding each; half a million ids a thousand terms a thread,
 * half of one each.
 *
 * bfloat16: once for a result, two or three times for a product's gradients, up to five on the longest way.
 *
 * AdamW: 1 - beta is the difference of two rounded numbers, up to 8 in float32. */
enum { EXACT = 0, NONE = -1 };
#define F32(n) ((n)*0x1p-24)
#define BF16(n) ((n)*0x1p-9)

static const fx_op_case g_cases[] = {
    /* bounds: CPU, GPU, GPU with bfloat16 */
    {"pointwise", build_pointwise, F32(2), F32(2), BF16(2.2), {ODD_SHAPES, {37, 130}}},
    {"casts", build_casts, EXACT, EXACT, NONE, {{1, 24}, {3, 1667}}},
    {"blocks of rows", build_blocks, EXACT, EXACT, BF16(2.2), {{1, 1}}},
    {"views", build_views, F32(24), F32(40), BF16(5.2), {{1, 24}, {257, 768}}},
    {"linear", build_linear_plain, F32(20), F32(40), BF16(3.2), {{33, 52}, {3, 24}}},
    {"linear bias gelu", build_linear_gelu, F32(20), F32(56), BF16(5.2), {{33, 52}, {300, 104}}},
    {"linear in_out bias", build_linear_bias, F32(24), F32(56), BF16(3.2), {{33, 52}, {1500, 100}}},
    {"linear in_out bias gelu_tanh",
     build_linear_conv1d,
     F32(20),
     F32(56),
     BF16(5.2),
     {{33, 52}, {300, 100}}},
    {"bias of its own", build_add_bias, F32(20), F32(40), BF16(4.2), {ODD_SHAPES}},
    {"swiglu", build_swiglu, F32(32), F32(40), BF16(4.2), {ODD_SHAPES}},
    {"rmsnorm", build_rmsnorm, F32(128), F32(40), BF16(4.2), {NORM_SHAPES}},
    {"layernorm", build_layernorm, F32(128), F32(72), BF16(4.2), {NORM_SHAPES}},
    {"rmsnorm near eps", build_rmsnorm_small, F32(20), F32(40), BF16(4.2), {{3, 100}, {257, 768}}},
    {"layernorm near eps", build_layernorm_small, F32(20), F32(72), BF16(4.2), {{3, 100}, {257, 768}}},
    {"rmsnorm of a sum", build_rms_residual, F32(128), F32(40), BF16(4.2), {NORM_SHAPES}},
    {"layernorm of a sum", build_layer_residual, F32(128), F32(72), BF16(4.2), {NORM_SHAPES}},
    {"layernorm of 5", build_layernorm, F32(40), F32(72), NONE, {{3, 5}}},
    {"rope", build_rope, F32(20), F32(40), BF16(4.2), {{1, 16}, {40, 16}, {257, 64}, {40, 20}, {9, 1600}}},
    {"embedding", build_embedding, F32(52), F32(40), BF16(4.2), {ODD_SHAPES, {2100, 333}, {9000, 40}}},
    {"embedding of one id",
     build_embedding_of_one,
     F32(8192),
     F32(96),
     BF16(5.2),
     {{64, 24}, {5000, 100}, {33000, 24}}},
    {"embedding of many ids", build_embedding_large, F32(20), F32(40), BF16(4.2), {{3000, 24}, {40000, 24}}},
    {"embedding of more ids", build_embedding_huge, F32(20), F32(40), BF16(4.2), {{3000, 24}, {3000, 20}}},
    {"head, padded", build_head_padded, F32(28), F32(56), BF16(5.2), {{130, 384}, {3, 384}, {257, 101}}},
    {"head, whole", build_head_whole, F32(28), F32(56), BF16(5.2), {{257, 2048}, {9, 50304}}},
    {"head, in two chunks", build_head_whole, F32(32), F32(56), BF16(5.2), {{140, 130000}}},
    {"head, in chunks", build_head_whole, NONE, F32(512), BF16(6.2), {{300, 530000}, {600, 530000}}},
    {"vocabulary shards, embedding",
     build_vocab_embedding,
     F32(20),
     F32(40),
     BF16(4.2),
     {ODD_SHAPES, {2100, 333}}},
    {"vocabulary shards, head",
     build_vocab_head_padded,
     F32(28),
     F32(56),
     BF16(5.2),
     {{1, 128}, {257, 101}, {33, 16000}}},
    {"vocabulary shards, one idle", build_vocab_head_idle, F32(28), F32(56), BF16(5.2), {{257, 384}}},
    {"dropout", build_dropout, F32(2), F32(2), BF16(2.2), {ODD_SHAPES, {37, 20}, {700, 40}, {40, 2048}}},
    {"dropout of a shard", build_dropout_shard, F32(2), F32(2), BF16(2.2), {{650, 40}, {650, 42}, {3, 768}}},
    {"clip and adamw", build_update, F32(8), F32(17), NONE, {{1, 1}}},
    {"adamw with snapshot", build_update_snapshot, F32(8), F32(17), NONE, {{1, 1}}},
    {"adamw, rounded", build_rounded, F32(8), F32(17), NONE, {{1, 1}}},
    {"adamw, rounded stochastically", build_rounded_stochastically, F32(8), F32(17), NONE, {{1, 1}}},
    {"adamw, from the middle", build_rounded_from_the_middle, F32(8), F32(17), NONE, {{1, 1}}},
};

const fx_op_case *fx_op_cases(int *count) {
  *count = (int)(sizeof g_cases / sizeof g_cases[0]);
  return g_cases;
}
