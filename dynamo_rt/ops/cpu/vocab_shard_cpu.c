/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/vocab_shard.h"

/* ---- embedding ---- */

fx_status fx_vocab_embedding_cpu(const fx_kernel_args *args) {
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
fx_status fx_vocab_embedding_grad_cpu(const fx_kernel_args *args) {
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

/* ---- cross-entropy ---- */

fx_status fx_vocab_numbers_cpu(const fx_kernel_args *args) {
  const fx_vocab_attr *a = args->attr;
  const float *logits = args->in[0]->data;
  const int32_t *targets = args->in[1]->data;
  float *e = args->out[0]->data, *numbers = args->out[1]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t valid = fx_vocab_counted(a, cols);
  for (int64_t r = 0; r < rows; r++)
    if (targets[r] >= a->valid)
      return fx_error(FX_ERR_DATA, "target %d is outside the vocabulary of %lld; check model.vocab_size",
                      targets[r], (long long)a->valid);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    float *row = e + r * cols, *of_row = numbers + r * FX_VOCAB_NUMBERS;
    int64_t target = targets[r] - a->first;
    if (e != logits) memcpy(row, logits + r * cols, (size_t)cols * sizeof *row);
    bool here = targets[r] >= 0 && target >= 0 && target < valid;
    of_row[FX_VOCAB_PICKED] = here ? row[target] : 0.0f;
    of_row[FX_VOCAB_MAX] = fx_row_max(row, valid); /* -inf where all is padding */
    of_row[FX_VOCAB_SUM] = valid > 0 ? fx_row_exp(row, of_row[FX_VOCAB_MAX], valid) : 0.0f;
  }
  return FX_OK;
}

/* The maximum, the sum of exponentials relative to it and the target's logit over all ranks, in rank order;
 * the same bits everywhere. */
static void merge_row(const float *numbers, int64_t ranks, int64_t stride, float *top, double *sum,
                      float *picked) {
  *top = -INFINITY;
  *sum = 0;
  *picked = 0;
  for (int64_t k = 0; k < ranks; k++) *top = fmaxf(*top, numbers[k * stride + FX_VOCAB_MAX]);
  for (int64_t k = 0; k < ranks; k++) {
    const float *of_rank = numbers + k * stride;
    if (of_rank[FX_VOCAB_SUM] > 0)
      *sum += (double)of_rank[FX_VOCAB_SUM] * exp((double)of_rank[FX_VOCAB_MAX] - (double)*top);
    else if (isnan(of_rank[FX_VOCAB_SUM]))
      *sum = NAN;
    *picked += of_rank[FX_VOCAB_PICKED]; /* zero but on the owner */
  }
}

fx_status fx_vocab_merge_cpu(const fx_kernel_args *args) {
  const fx_vocab_merge_attr *a = args->attr;
  const float *e = args->in[0]->data, *numbers = args->in[1]->data;
  const int32_t *targets = args->in[2]->data;
  float factor = *(const float *)args->in[3]->data;
  float *nll = args->out[1]->data, *grad = args->out[0] ? args->out[0]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t ranks = args->in[1]->type.dim[0], valid = fx_vocab_counted(&a->vocab, cols),
          stride = rows * FX_VOCAB_NUMBERS;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    float top, picked, *row = grad ? grad + r * cols : NULL;
    double sum;
    nll[r] = 0.0f;
    if (targets[r] < 0) {
      if (row) memset(row, 0, (size_t)cols * sizeof *row);
      continue;
    }
    const float *of_row = numbers + r * FX_VOCAB_NUMBERS;
    merge_row(of_row, ranks, stride, &top, &sum, &picked);
    nll[r] = (float)(log(sum) + ((double)top - (double)picked));
    if (!row) continue;
    if (row != e + r * cols) memcpy(row, e + r * cols, (size_t)cols * sizeof *row);
    double mine = exp((double)of_row[a->rank * stride + FX_VOCAB_MAX] - (double)top);
    fx_row_scale(row, (float)((double)factor * mine / sum), valid);
    int64_t target = targets[r] - a->vocab.first;
    if (target >= 0 && target < valid) row[target] -= factor;
    memset(row + valid, 0, (size_t)(cols - valid) * sizeof *row);
  }
  return FX_OK;
}

fx_status fx_vocab_loss_cpu(const fx_kernel_args *args) {
  const float *nll = args->in[0]->data;
  double sum = 0;
  for (int64_t r = 0; r < fx_type_numel(&args->in[0]->type); r++) sum += (double)nll[r];
  *(float *)args->out[0]->data = (float)(sum * (double)*(const float *)args->in[1]->data);
  return FX_OK;
}
