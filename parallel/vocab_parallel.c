/* SPDX-License-Identifier: Apache-2.0 */
/* The head per chunk of rows: logits of this rank's ids; exponentials in their place and three numbers a row;
 * those of all ranks; gradients of the logits in place; dx and dW. All of it is recorded with the forward, as
 * head_ce does, and the last op hands both gradients to autograd. */
#include "parallel/vocab_parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/graph/graph_internal.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/input.h"
#include "dynamo_rt/ops/linear.h"
#include "parallel/collective.h"

/* ---- embedding ---- */

static fx_status embedding_kernel(const fx_kernel_args *args) {
  const fx_vocab_attr *a = args->attr;
  const int32_t *ids = args->in[0]->data;
  const float *table = args->in[1]->data;
  float *y = args->out[0]->data;
  int64_t n = fx_type_numel(&args->in[0]->type), cols = fx_type_cols(&args->in[1]->type);
  int64_t mine = args->in[1]->type.dim[0];
  for (int64_t r = 0; r < n; r++) {
    int64_t row = ids[r] - a->first;
    if (ids[r] < 0 || ids[r] >= a->valid)
      return fx_error(FX_ERR_DATA,
                      "id %d at place %lld of the batch is outside the vocabulary of %lld; check "
                      "model.vocab_size against the tokenizer",
                      ids[r], (long long)r, (long long)a->valid);
    if (row >= 0 && row < mine)
      memcpy(y + r * cols, table + row * cols, (size_t)cols * sizeof *y);
    else
      memset(y + r * cols, 0, (size_t)cols * sizeof *y);
  }
  return FX_OK;
}

/* Rows of one id are added in order of appearance; threads divide the columns. */
static fx_status embedding_grad_kernel(const fx_kernel_args *args) {
  const fx_vocab_attr *a = args->attr;
  const float *dy = args->in[0]->data;
  const int32_t *ids = args->in[1]->data;
  float *dtable = args->out[0]->data;
  int64_t n = fx_type_numel(&args->in[1]->type), mine = args->out[0]->type.dim[0];
  int64_t cols = args->out[0]->type.dim[1], width = fx_max_i64(16, fx_ceil_div(cols, args->threads));
  bool add = args->accumulate & 1;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t c = 0; c < cols; c += width) {
    int64_t end = fx_min_i64(cols, c + width);
    for (int64_t v = 0; !add && v < mine; v++)
      memset(dtable + v * cols + c, 0, (size_t)(end - c) * sizeof *dtable);
    for (int64_t r = 0; r < n; r++) {
      int64_t row = ids[r] - a->first;
      for (int64_t i = c; row >= 0 && row < mine && i < end; i++) dtable[row * cols + i] += dy[r * cols + i];
    }
  }
  return FX_OK;
}

static fx_status embedding_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[0]->ndim != 2 || in[0]->dtype != FX_I32 || in[1]->ndim != 2 || in[1]->dtype != FX_F32)
    return fx_error(FX_ERR_SHAPE, "expected int32 ids [B, T] and a float32 table [V / n, E]");
  out[0] = fx_type_3d(FX_F32, in[0]->dim[0], in[0]->dim[1], in[1]->dim[1]);
  return FX_OK;
}

static fx_status embedding_grad_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  out[0] = *in[2];
  return FX_OK;
}

static const fx_op g_embedding_grad = {
    .name = "vocab_embedding_grad", /* dy [B, T, E], ids, table (its shape) -> dtable */
    .min_in = 3,
    .max_in = 3,
    .num_out = 1,
    .attr_bytes = sizeof(fx_vocab_attr),
    .can_accumulate = 1,
    .infer = embedding_grad_infer,
    .kernel = {[FX_BACKEND_CPU] = embedding_grad_kernel},
};

static fx_status embedding_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  din[1] = fx_graph_record(graph, &g_embedding_grad, node->attr,
                           (fx_value[]){dout[0], node->in[0], node->in[1]}, NULL);
  return fx_graph_status(graph);
}

static const fx_op g_embedding = {
    .name = "vocab_embedding",
    .min_in = 2,
    .max_in = 2,
    .num_out = 1,
    .attr_bytes = sizeof(fx_vocab_attr),
    .infer = embedding_infer,
    .vjp = embedding_vjp,
    .kernel = {[FX_BACKEND_CPU] = embedding_kernel},
};

fx_value fx_vocab_embedding(fx_graph *graph, fx_value ids, fx_value table, fx_vocab_attr attr) {
  return fx_graph_record(graph, &g_embedding, &attr, (fx_value[]){ids, table}, NULL);
}

/* ---- the three numbers of a row ---- */

enum { ROW_MAX, ROW_SUM, ROW_PICKED, ROW_NUMBERS };

/* How many of this rank's `cols` ids are no padding. */
static int64_t valid_here(const fx_vocab_attr *a, int64_t cols) {
  return fx_max_i64(0, fx_min_i64(cols, a->valid - a->first));
}

static fx_status numbers_kernel(const fx_kernel_args *args) {
  const fx_vocab_attr *a = args->attr;
  const float *logits = args->in[0]->data;
  const int32_t *targets = args->in[1]->data;
  float *e = args->out[0]->data, *numbers = args->out[1]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t valid = valid_here(a, cols);
  for (int64_t r = 0; r < rows; r++)
    if (targets[r] >= a->valid)
      return fx_error(FX_ERR_DATA, "target %d is outside the vocabulary of %lld; check model.vocab_size",
                      targets[r], (long long)a->valid);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    float *row = e + r * cols, *of_row = numbers + r * ROW_NUMBERS;
    int64_t target = targets[r] - a->first;
    if (e != logits) memcpy(row, logits + r * cols, (size_t)cols * sizeof *row);
    bool here = targets[r] >= 0 && target >= 0 && target < valid;
    of_row[ROW_PICKED] = here ? row[target] : 0.0f;
    of_row[ROW_MAX] = fx_row_max(row, valid); /* -inf where all is padding */
    of_row[ROW_SUM] = valid > 0 ? fx_row_exp(row, of_row[ROW_MAX], valid) : 0.0f;
  }
  return FX_OK;
}

static fx_status numbers_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[0]->ndim != 2 || in[0]->dtype != FX_F32 || in[1]->dtype != FX_I32 ||
      fx_type_numel(in[1]) != in[0]->dim[0])
    return fx_error(FX_ERR_SHAPE, "logits and targets do not fit");
  out[0] = *in[0];
  out[1] = fx_type_3d(FX_F32, 1, in[0]->dim[0], ROW_NUMBERS);
  return FX_OK;
}

static const fx_op g_numbers = {
    .name =
        "vocab_numbers", /* logits [n, V / ranks], targets -> exp(logits - max) in place, numbers [1, n, 3] */
    .min_in = 2,
    .max_in = 2,
    .num_out = 2,
    .attr_bytes = sizeof(fx_vocab_attr),
    .may_alias = {1},
    .infer = numbers_infer,
    .kernel = {[FX_BACKEND_CPU] = numbers_kernel},
};

/* ---- from all ranks' numbers to nll and the gradient of the logits ---- */

typedef struct merge_attr {
  fx_vocab_attr vocab;
  int64_t rank;
} merge_attr;

/* The maximum, the sum of exponentials relative to it and the target's logit over all ranks, in rank order;
 * the same bits everywhere. */
static void merge_row(const float *numbers, int64_t ranks, int64_t stride, float *top, double *sum,
                      float *picked) {
  *top = -INFINITY;
  *sum = 0;
  *picked = 0;
  for (int64_t k = 0; k < ranks; k++) *top = fmaxf(*top, numbers[k * stride + ROW_MAX]);
  for (int64_t k = 0; k < ranks; k++) {
    const float *of_rank = numbers + k * stride;
    if (of_rank[ROW_SUM] > 0)
      *sum += (double)of_rank[ROW_SUM] * exp((double)of_rank[ROW_MAX] - (double)*top);
    else if (isnan(of_rank[ROW_SUM]))
      *sum = NAN;
    *picked += of_rank[ROW_PICKED]; /* zero but on the owner */
  }
}

static fx_status merge_kernel(const fx_kernel_args *args) {
  const merge_attr *a = args->attr;
  const float *e = args->in[0]->data, *numbers = args->in[1]->data;
  const int32_t *targets = args->in[2]->data;
  float factor = *(const float *)args->in[3]->data;
  float *nll = args->out[1]->data, *grad = args->out[0] ? args->out[0]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t ranks = args->in[1]->type.dim[0], valid = valid_here(&a->vocab, cols), stride = rows * ROW_NUMBERS;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    float top, picked, *row = grad ? grad + r * cols : NULL;
    double sum;
    nll[r] = 0.0f;
    if (targets[r] < 0) {
      if (row) memset(row, 0, (size_t)cols * sizeof *row);
      continue;
    }
    const float *of_row = numbers + r * ROW_NUMBERS;
    merge_row(of_row, ranks, stride, &top, &sum, &picked);
    nll[r] = (float)(log(sum) + ((double)top - (double)picked));
    if (!row) continue;
    if (row != e + r * cols) memcpy(row, e + r * cols, (size_t)cols * sizeof *row);
    double mine = exp((double)of_row[a->rank * stride + ROW_MAX] - (double)top);
    fx_row_scale(row, (float)((double)factor * mine / sum), valid);
    int64_t target = targets[r] - a->vocab.first;
    if (target >= 0 && target < valid) row[target] -= factor;
    memset(row + valid, 0, (size_t)(cols - valid) * sizeof *row);
  }
  return FX_OK;
}

static fx_status merge_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)attr;
  if (in[1]->ndim != 3 || in[1]->dim[1] != in[0]->dim[0] || in[1]->dim[2] != ROW_NUMBERS)
    return fx_error(FX_ERR_SHAPE, "the numbers of all ranks do not fit the rows");
  out[0] = *in[0];
  out[1] = fx_type_1d(FX_F32, in[0]->dim[0]);
  return FX_OK;
}

static const fx_op g_merge = {
    .name =
        "vocab_merge", /* exponentials, numbers [ranks, n, 3], targets, factor -> dlogits in place, nll [n] */
    .min_in = 4,
    .max_in = 4,
    .num_out = 2,
    .attr_bytes = sizeof(merge_attr),
    .optional_out = 1,
    .may_alias = {1},
    .infer = merge_infer,
    .kernel = {[FX_BACKEND_CPU] = merge_kernel},
};

/* ---- the loss ---- */

typedef struct loss_attr {
  fx_value dx, dweight; /* recorded before it; not inputs, so that they may be written where they belong */
} loss_attr;

static fx_status loss_kernel(const fx_kernel_args *args) {
  const float *nll = args->in[0]->data;
  double sum = 0;
  for (int64_t r = 0; r < fx_type_numel(&args->in[0]->type); r++) sum += (double)nll[r];
  *(float *)args->out[0]->data = (float)(sum * (double)*(const float *)args->in[1]->data);
  return FX_OK;
}

static fx_status loss_infer(const fx_type *const *in, const void *attr, fx_type *out) {
  (void)in, (void)attr;
  out[0] = fx_type_1d(FX_F32, 1);
  return FX_OK;
}

static fx_status loss_vjp(fx_graph *graph, const fx_node *node, const fx_value *dout, fx_value *din) {
  const loss_attr *a = node->attr;
  bool unit = fx_is_fill(graph, dout[0], 1.0f);
  din[2] = unit ? a->dx : fx_scale(graph, a->dx, dout[0]);
  din[3] = unit ? a->dweight : fx_scale(graph, a->dweight, dout[0]);
  return fx_graph_status(graph);
}

static const fx_op g_loss = {
    .name = "vocab_loss", /* nll, factor; x and weight, whose gradients are known -> loss [1] */
    .min_in = 4,
    .max_in = 4,
    .num_out = 1,
    .attr_bytes = sizeof(loss_attr),
    .infer = loss_infer,
    .vjp = loss_vjp,
    .kernel = {[FX_BACKEND_CPU] = loss_kernel},
};

/* ---- recording ---- */

typedef struct head {
  fx_comm *comm;
  fx_value x, weight, targets, factor; /* x [R, E], targets [R] */
  fx_vocab_attr attr;
  fx_value *dx, *nll; /* [chunks] */
  fx_value dweight;
} head;

static void record_chunk(fx_graph *graph, head *h, int chunk, int64_t first, int64_t rows) {
  fx_linear_attr layout = {0, FX_ACT_NONE};
  fx_value x = fx_slice_rows(graph, h->x, first, rows),
           targets = fx_slice_rows(graph, h->targets, first, rows);
  fx_value numbers[2] = {FX_NONE, FX_NONE}, merged[2] = {FX_NONE, FX_NONE};
  merge_attr merge;
  memset(&merge, 0, sizeof merge);
  merge.vocab = h->attr;
  merge.rank = h->comm->rank;
  fx_value logits = fx_linear(graph, x, h->weight, FX_NONE, layout);
  fx_graph_record(graph, &g_numbers, &h->attr, (fx_value[]){logits, targets}, numbers);
  fx_value all = fx_all_gather(graph, h->comm, FX_LANE_COMM_CRITICAL, numbers[1]);
  fx_graph_record(graph, &g_merge, &merge, (fx_value[]){numbers[0], all, targets, h->factor}, merged);
  h->nll[chunk] = merged[1];
  h->dx[chunk] = fx_linear_dx(graph, merged[0], h->weight, layout);
  fx_value dweight = fx_linear_dw(graph, merged[0], x, layout);
  h->dweight = chunk ? fx_add(graph, h->dweight, dweight) : dweight;
}

fx_value fx_vocab_head_ce(fx_graph *graph, fx_comm *comm, fx_value x, fx_value weight, fx_value targets,
                          fx_value factor, fx_vocab_attr attr, fx_value *nll) {
  if (fx_graph_status(graph) != FX_OK) return FX_NONE;
  fx_type x_type = *fx_graph_type(graph, x), targets_type = *fx_graph_type(graph, targets);
  int64_t rows = fx_type_rows(&x_type), cols = fx_type_cols(&x_type);
  int64_t step = fx_head_chunk_rows(rows, fx_graph_type(graph, weight)->dim[0]);
  head h = {.comm = comm, .weight = weight, .factor = factor, .attr = attr, .dweight = FX_NONE};
  fx_status status = fx_calloc(&h.dx, 2 * (size_t)fx_ceil_div(rows, step), sizeof *h.dx);
  if (status != FX_OK) return fx_graph_fail(graph, status);
  h.nll = h.dx + fx_ceil_div(rows, step);
  h.x = x_type.ndim == 2 ? x : fx_reshape(graph, x, 2, (int64_t[]){rows, cols});
  h.targets = fx_reshape(graph, targets, 1, &rows);
  int chunks = 0;
  for (int64_t first = 0; first < rows; first += step)
    record_chunk(graph, &h, chunks++, first, fx_min_i64(step, rows - first));
  loss_attr loss = {fx_assemble_rows(graph, h.dx, chunks), h.dweight};
  fx_value terms = fx_assemble_rows(graph, h.nll, chunks);
  free(h.dx);
  if (nll) *nll = fx_reshape(graph, terms, targets_type.ndim, targets_type.dim);
  return fx_graph_record(graph, &g_loss, &loss, (fx_value[]){terms, factor, h.x, weight}, NULL);
}
