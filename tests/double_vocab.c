/* SPDX-License-Identifier: Apache-2.0 */
/* Ops over a vocabulary, or the rows of it that a rank holds: embedding, cross-entropy. */
#include <math.h>
#include <stdlib.h>

#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/vocab_shard.h"
#include "tests/double_ops.h"

/* ---- embedding ---- */

/* y[r] = table[ids[r] - first], zeros where the table lacks that row. */
static fx_status look_up(const fx_double_call *c, int64_t first) {
  const fx_double_tensor *ids = &c->in[0], *table = &c->in[1];
  for (int64_t i = 0; i < c->out[0].n; i++) {
    int64_t row = (int64_t)ids->data[i / table->cols] - first;
    bool mine = row >= 0 && row < table->rows;
    c->out[0].data[i] = mine ? table->data[row * table->cols + i % table->cols] : 0;
  }
  return FX_OK;
}

static fx_status look_up_grad(const fx_double_call *c, int64_t first) {
  const fx_double_tensor *dy = &c->in[0], *dtable = &c->out[0];
  for (int64_t i = 0; i < dtable->n; i++) dtable->data[i] = 0;
  for (int64_t i = 0; i < dy->n; i++) {
    int64_t row = (int64_t)c->in[1].data[i / dy->cols] - first;
    if (row >= 0 && row < dtable->rows) dtable->data[row * dtable->cols + i % dy->cols] += dy->data[i];
  }
  return FX_OK;
}

fx_status fx_double_embedding(const fx_double_call *c) {
  return look_up(c, 0);
}
fx_status fx_double_embedding_grad(const fx_double_call *c) {
  return look_up_grad(c, 0);
}
fx_status fx_double_vocab_embedding(const fx_double_call *c) {
  return look_up(c, ((const fx_vocab_attr *)c->attr)->first);
}
fx_status fx_double_vocab_embedding_grad(const fx_double_call *c) {
  return look_up_grad(c, ((const fx_vocab_attr *)c->attr)->first); /* its attributes begin with these */
}

/* ---- head with cross-entropy ---- */

/* nll = log sum exp(logits) - logits[target]; its gradient softmax - onehot, times factor, goes through
 * logits = x W^T. Rows are taken a few at a time, so that what the weight's gradient adds up stays small. */
enum { SOME_ROWS = 16 };

/* The logits of row x become the gradient of factor nll, which is returned. */
FX_ISA_CLONES static double head_row(const double *x, const double *w, int64_t e, int64_t valid,
                                     int64_t target, double factor, double *logits) {
  double top = -INFINITY, sum = 0;
  for (int64_t v = 0; v < valid; v++) {
    logits[v] = 0;
    for (int64_t i = 0; i < e; i++) logits[v] += x[i] * w[v * e + i];
    top = fmax(top, logits[v]);
  }
  double nll = top - logits[target];
  for (int64_t v = 0; v < valid; v++) sum += logits[v] = exp(logits[v] - top);
  for (int64_t v = 0; v < valid; v++) logits[v] *= factor / sum;
  logits[target] -= factor;
  return nll + log(sum);
}

/* to[i] += sum over n of factor[n stride] from[n, i] */
FX_ISA_CLONES static void add_rows(double *to, const double *factor, int64_t stride, const double *from,
                                   int64_t n, int64_t e) {
  for (int64_t k = 0; k < n; k++)
    for (int64_t i = 0; i < e; i++) to[i] += factor[k * stride] * from[k * e + i];
}

/* Rows [begin, begin + rows), at most SOME_ROWS; delta: [SOME_ROWS, V] */
static void head_rows(const fx_double_call *c, int64_t begin, int64_t rows, double *delta) {
  const fx_double_tensor *x = &c->in[0], *w = &c->in[1];
  int64_t e = x->cols, valid = ((const fx_head_ce_attr *)c->attr)->valid_vocab;
  double *dx = c->out[2].data, *dw = c->out[3].data;
  if (valid == 0) valid = w->rows;
#pragma omp parallel for schedule(static)
  for (int64_t r = begin; r < begin + rows; r++) {
    double *row = delta + (r - begin) * w->rows;
    int64_t target = (int64_t)c->in[2].data[r];
    for (int64_t v = 0; v < w->rows; v++) row[v] = 0;
    c->out[0].data[r] = 0;
    if (target >= 0)
      c->out[0].data[r] = head_row(x->data + r * e, w->data, e, valid, target, c->in[3].data[0], row);
    for (int64_t i = 0; dx && i < e; i++) dx[r * e + i] = 0;
    if (dx) add_rows(dx + r * e, row, 1, w->data, w->rows, e);
  }
#pragma omp parallel for schedule(static)
  for (int64_t v = 0; v < w->rows; v++)
    if (dw) add_rows(dw + v * e, delta + v, w->rows, x->data + begin * e, rows, e);
}

fx_status fx_double_head_ce(const fx_double_call *c) {
  fx_double_call call = *c;
  double loss = 0, *delta = NULL, *nll = NULL;
  FX_TRY(fx_calloc(&delta, (size_t)(SOME_ROWS * c->in[1].rows), sizeof *delta));
  fx_status status = fx_calloc(&nll, (size_t)c->in[0].rows, sizeof *nll);
  if (!c->out[0].data) call.out[0].data = nll; /* nobody reads it, but the loss is its sum */
  for (int64_t i = 0; c->out[3].data && i < c->out[3].n; i++) c->out[3].data[i] = 0;
  for (int64_t r = 0; status == FX_OK && r < c->in[0].rows; r += SOME_ROWS)
    head_rows(&call, r, fx_min_i64(SOME_ROWS, c->in[0].rows - r), delta);
  for (int64_t r = 0; status == FX_OK && r < c->in[0].rows; r++) loss += call.out[0].data[r];
  if (c->out[1].data) c->out[1].data[0] = c->in[3].data[0] * loss;
  free(nll);
  free(delta);
  return status;
}

/* ---- the head of a rank that holds some of the ids ---- */

/* How many of `cols` ids from attr->first on are of the vocabulary. */
static int64_t ids_held(const fx_vocab_attr *attr, int64_t cols) {
  int64_t held = attr->valid - attr->first;
  return held < 0 ? 0 : held < cols ? held : cols;
}

/* The scores that a backend hands on are its own affair; here they are the logits. */
fx_status fx_double_vocab_numbers(const fx_double_call *c) {
  const fx_vocab_attr *a = c->attr;
  const fx_double_tensor *logits = &c->in[0];
  int64_t held = ids_held(a, logits->cols);
  for (int64_t r = 0; r < logits->rows; r++) {
    const double *row = logits->data + r * logits->cols;
    double top = -INFINITY, sum = 0, *numbers = c->out[1].data + r * FX_VOCAB_NUMBERS;
    int64_t target = (int64_t)c->in[1].data[r] - a->first;
    for (int64_t v = 0; v < held; v++) top = fmax(top, row[v]);
    for (int64_t v = 0; v < held; v++) sum += exp(row[v] - top);
    numbers[FX_VOCAB_MAX] = top;
    numbers[FX_VOCAB_SUM] = sum;
    numbers[FX_VOCAB_PICKED] = c->in[1].data[r] >= 0 && target >= 0 && target < held ? row[target] : 0;
    for (int64_t v = 0; c->out[0].data && v < logits->cols; v++)
      c->out[0].data[r * logits->cols + v] = row[v];
  }
  return FX_OK;
}

/* log of the sum over all ranks' ids of exp(logit); *picked: the target's logit */
static double log_sum(const double *numbers, int64_t ranks, int64_t stride, double *picked) {
  double top = -INFINITY, sum = 0;
  *picked = 0;
  for (int64_t k = 0; k < ranks; k++) top = fmax(top, numbers[k * stride + FX_VOCAB_MAX]);
  for (int64_t k = 0; k < ranks; k++) {
    sum += numbers[k * stride + FX_VOCAB_SUM] * exp(numbers[k * stride + FX_VOCAB_MAX] - top);
    *picked += numbers[k * stride + FX_VOCAB_PICKED];
  }
  return top + log(sum);
}

fx_status fx_double_vocab_merge(const fx_double_call *c) {
  const fx_vocab_attr *a = &((const fx_vocab_merge_attr *)c->attr)->vocab;
  const fx_double_tensor *logits = &c->in[0], *numbers = &c->in[1];
  int64_t held = ids_held(a, logits->cols), stride = logits->rows * FX_VOCAB_NUMBERS;
  for (int64_t r = 0; r < logits->rows; r++) {
    int64_t target = (int64_t)c->in[2].data[r] - a->first, at = r * logits->cols;
    bool masked = c->in[2].data[r] < 0;
    double picked,
        total = log_sum(numbers->data + r * FX_VOCAB_NUMBERS, numbers->type.dim[0], stride, &picked);
    for (int64_t v = 0; c->out[0].data && v < logits->cols; v++) {
      double softmax = masked || v >= held ? 0 : exp(logits->data[at + v] - total);
      c->out[0].data[at + v] = c->in[3].data[0] * (softmax - (!masked && v == target && v < held));
    }
    if (c->out[1].data) c->out[1].data[r] = masked ? 0 : total - picked;
  }
  return FX_OK;
}

fx_status fx_double_vocab_loss(const fx_double_call *c) {
  double sum = 0;
  for (int64_t r = 0; r < c->in[0].n; r++) sum += c->in[0].data[r];
  c->out[0].data[0] = sum * c->in[1].data[0];
  return FX_OK;
}
