/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/ops/cpu/gemm.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/cpu/vmath.h"
#include "dynamo_rt/ops/embedding.h"

/* ---- embedding ---- */

fx_status fx_embedding_cpu(const fx_kernel_args *args) {
  const int32_t *ids = args->in[0]->data;
  const float *table = args->in[1]->data;
  float *y = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[0]->type), vocab = args->in[1]->type.dim[0],
          cols = args->in[1]->type.dim[1];
  for (int64_t r = 0; r < rows; r++) {
    if (ids[r] < 0 || ids[r] >= vocab)
      return fx_error(
          FX_ERR_DATA,
          "id %d at place %lld of the batch is outside the embedding's %lld rows; check model.vocab_size and "
          "model.max_position_embeddings against the tokenizer and train.seq_length",
          ids[r], (long long)r, (long long)vocab);
    memcpy(y + r * cols, table + ids[r] * cols, (size_t)cols * sizeof(float));
  }
  return FX_OK;
}

fx_status fx_embedding_grad_cpu(const fx_kernel_args *args) {
  const float *dy = args->in[0]->data;
  const int32_t *ids = args->in[1]->data;
  float *dtable = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[1]->type), vocab = args->out[0]->type.dim[0],
          cols = args->out[0]->type.dim[1];
  bool add = args->accumulate & 1;
  int64_t width =
      fx_max_i64(16, fx_ceil_div(cols, args->threads)); /* columns a thread: at least a cache line */
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t c = 0; c < cols; c += width) {
    int64_t end = fx_min_i64(cols, c + width);
    for (int64_t v = 0; !add && v < vocab; v++)
      memset(dtable + v * cols + c, 0, (size_t)(end - c) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
      float *row = dtable + ids[r] * cols;
      for (int64_t i = c; i < end; i++) row[i] += dy[r * cols + i];
    }
  }
  return FX_OK;
}

/* ---- head with cross-entropy ---- */

enum { LOGITS_BYTES = 64 << 20, MIN_CHUNK = 64 };

/* Each chunk reads the head twice and, after the first, adds to its whole gradient: chunks of equal size, as
 * few as fit. (250 rows and 6 rows of GPT-2's vocabulary would read 600 MB for the 6.) */
int64_t fx_head_chunk_rows_cpu(int64_t rows, int64_t vocab) {
  int64_t fit = fx_max_i64(MIN_CHUNK, LOGITS_BYTES / ((int64_t)sizeof(float) * vocab));
  return fx_max_i64(1, fx_ceil_div(rows, fx_max_i64(1, fx_ceil_div(rows, fit))));
}

size_t fx_head_ce_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr, int threads) {
  (void)out, (void)attr, (void)threads;
  int64_t vocab = in[1]->dim[0];
  return (size_t)(fx_head_chunk_rows_cpu(fx_type_rows(in[0]), vocab) * vocab) * sizeof(float);
}

FX_ISA_CLONES float fx_row_max(const float *x, int64_t n) {
  float m = -INFINITY;
#pragma omp simd reduction(max : m)
  for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
  return m;
}

/* Blocks are summed in float, the blocks in double: a vocabulary of 100,000 loses no digits, whatever the
 * width of the vectors. */
FX_ISA_CLONES float fx_row_exp(float *x, float m, int64_t n) {
  enum { SUM_BLOCK = 256 };
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += SUM_BLOCK) {
    float sum = 0.0f;
    int64_t end = begin + SUM_BLOCK < n ? begin + SUM_BLOCK : n;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++) {
      float e = fx_vexp(x[i] - m);
      x[i] = e;
      sum += e;
    }
    total += (double)sum;
  }
  return (float)total;
}

FX_ISA_CLONES void fx_row_scale(float *x, float s, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] *= s;
}

/* One row of logits -> its nll; the row becomes factor * (softmax - onehot), or is left alone when !grad. */
static float cross_entropy_row(float *logits, int64_t vocab, int64_t valid, int32_t target, float factor,
                               bool grad) {
  if (target < 0 || target >= valid) {
    if (grad) memset(logits, 0, (size_t)vocab * sizeof(float));
    return 0.0f;
  }
  float m = fx_row_max(logits, valid), picked = logits[target];
  float sum = fx_row_exp(logits, m, valid);
  if (grad) {
    fx_row_scale(logits, factor / sum, valid);
    logits[target] -= factor;
    memset(logits + valid, 0, (size_t)(vocab - valid) * sizeof(float));
  }
  return logf(sum) + (m - picked);
}

static fx_status head_chunk(const fx_kernel_args *args, int64_t begin, int64_t rows) {
  int64_t vocab = args->in[1]->type.dim[0], e = args->in[1]->type.dim[1];
  int64_t valid = ((const fx_head_ce_attr *)args->attr)->valid_vocab;
  const float *x = (const float *)args->in[0]->data + begin * e, *w = args->in[1]->data;
  const int32_t *targets = (const int32_t *)args->in[2]->data + begin;
  float factor = *(const float *)args->in[3]->data, *nll = (float *)args->out[0]->data + begin;
  float *logits = args->workspace;
  float *dx = args->out[2] ? (float *)args->out[2]->data + begin * e : NULL;
  float *dw = args->out[3] ? args->out[3]->data : NULL;
  if (valid == 0) valid = vocab;
  FX_TRY(fx_gemm_f32(args->gemm, false, true, rows, vocab, e, x, e, w, e, 0.0f, logits, vocab));
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++)
    nll[r] = cross_entropy_row(logits + r * vocab, vocab, valid, targets[r], factor, dx || dw);
  if (dx) FX_TRY(fx_gemm_f32(args->gemm, false, false, rows, e, vocab, logits, vocab, w, e, 0.0f, dx, e));
  float beta = begin > 0 || args->accumulate & 8 ? 1.0f : 0.0f;
  if (dw) FX_TRY(fx_gemm_f32(args->gemm, true, false, vocab, e, rows, logits, vocab, x, e, beta, dw, e));
  return FX_OK;
}

fx_status fx_head_ce_cpu(const fx_kernel_args *args) {
  int64_t rows = fx_type_rows(&args->in[0]->type), vocab = args->in[1]->type.dim[0];
  int64_t step = fx_head_chunk_rows_cpu(rows, vocab),
          valid = ((const fx_head_ce_attr *)args->attr)->valid_vocab;
  const int32_t *targets = args->in[2]->data;
  if (valid == 0) valid = vocab;
  for (int64_t r = 0; r < rows; r++)
    if (targets[r] >= valid)
      return fx_error(FX_ERR_DATA, "target %d is outside the vocabulary of %lld; check model.vocab_size",
                      targets[r], (long long)valid);
  for (int64_t begin = 0; begin < rows; begin += step)
    FX_TRY(head_chunk(args, begin, fx_min_i64(step, rows - begin)));
  const float *nll = args->out[0]->data;
  double sum = 0;
  for (int64_t r = 0; r < rows; r++) sum += (double)nll[r];
  *(float *)args->out[1]->data = (float)(sum * (double)*(const float *)args->in[3]->data);
  return FX_OK;
}

/* ---- dropout ---- */

fx_status fx_dropout_cpu(const fx_kernel_args *args) {
  const fx_dropout_attr *attr = args->attr;
  const float *x = args->in[0]->data;
  const int64_t *ordinal = args->in[1]->data;
  const int32_t *blocks = args->in[3] ? args->in[3]->data : NULL;
  uint64_t step = (uint64_t) * (const int64_t *)args->in[2]->data;
  uint64_t site = attr->site + 0x9E3779B97F4A7C15ull * (uint64_t)args->layer;
  fx_dropout_rule rule = fx_dropout_rule_of(attr->p);
  float *y = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type),
          length = attr->length ? attr->length : args->in[0]->type.dim[1];
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    /* counter: 8 channels a draw; positions of a sample stay apart by `draws` counters, samples by 2^40 */
    int64_t draws = fx_ceil_div(cols, 8), row = attr->first_row + r, t = row % length;
    int64_t position = blocks ? blocks[t / 128] + t % 128 : t;
    uint64_t base = ((uint64_t)ordinal[row / length] << 40) + (uint64_t)(position * draws);
    for (int64_t q = 0; q < draws; q++) {
      fx_philox random = fx_philox_at(attr->seed, site, base + (uint64_t)q, step);
      for (int64_t i = 8 * q; i < fx_min_i64(cols, 8 * q + 8); i++) {
        uint32_t bits = random.word[i % 8 / 2] >> i % 2 * 16 & 0xFFFF;
        y[r * cols + i] = bits < rule.below ? 0.0f : x[r * cols + i] * rule.keep;
      }
    }
  }
  return FX_OK;
}
