/* SPDX-License-Identifier: Apache-2.0 */
/* Pointwise ops, blocks, linear layers, norms, rope, dropout and the optimizer, each from its definition. */
#include "tests/double_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/elementwise.h"
#include "dynamo_rt/ops/embedding.h"
#include "dynamo_rt/ops/linear.h"
#include "dynamo_rt/ops/norm.h"
#include "dynamo_rt/ops/optimizer.h"
#include "dynamo_rt/ops/rope.h"
#include "tests/double_reference.h"

/* ---- pointwise ---- */

fx_status fx_double_add(const fx_double_call *c) {
  for (int64_t i = 0; i < c->out[0].n; i++) c->out[0].data[i] = c->in[0].data[i] + c->in[1].data[i];
  return FX_OK;
}

/* The sum is the memory of its first input. */
fx_status fx_double_accumulate(const fx_double_call *c) {
  return fx_double_add(c);
}

fx_status fx_double_scale(const fx_double_call *c) {
  for (int64_t i = 0; i < c->out[0].n; i++) c->out[0].data[i] = c->in[0].data[i] * c->in[1].data[0];
  return FX_OK;
}

fx_status fx_double_copy(const fx_double_call *c) {
  memcpy(c->out[0].data, c->in[0].data, (size_t)c->out[0].n * sizeof(double));
  return FX_OK;
}

fx_status fx_double_store(const fx_double_call *c) {
  memcpy(c->out[0].data, c->in[1].data, (size_t)c->out[0].n * sizeof(double));
  return FX_OK;
}

/* To a narrower type only: what is in a type already fits it and wider ones, up to rounding that this
 * reference leaves out. */
fx_status fx_double_cast(const fx_double_call *c) {
  fx_dtype from = c->in[0].type.dtype, to = c->out[0].type.dtype;
  bool narrower = fx_dtype_bytes(to) < fx_dtype_bytes(from);
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < c->out[0].n; i++)
    c->out[0].data[i] = narrower ? fx_double_round(c->in[0].data[i], to) : c->in[0].data[i];
  return FX_OK;
}

fx_status fx_double_fill(const fx_double_call *c) {
  double number = (double)((const fx_fill_attr *)c->attr)->number;
  for (int64_t i = 0; i < c->out[0].n; i++) c->out[0].data[i] = number;
  return FX_OK;
}

/* ---- blocks: [B, T, heads, D], block k of a sample its rows [128 k, 128 (k + 1)) ---- */

fx_status fx_double_take_blocks(const fx_double_call *c) {
  const fx_double_tensor *x = &c->in[0], *y = &c->out[0];
  int64_t width = x->type.dim[2] * x->type.dim[3], rows = y->type.dim[1];
  for (int64_t b = 0; b < y->type.dim[0]; b++)
    for (int64_t r = 0; r < rows; r++) {
      double number = c->in[1].data[r / FX_BLOCK_ROWS];
      int64_t from = (int64_t)number * FX_BLOCK_ROWS + r % FX_BLOCK_ROWS;
      for (int64_t i = 0; i < width; i++)
        y->data[(b * rows + r) * width + i] =
            number < 0 ? 0 : x->data[(b * x->type.dim[1] + from) * width + i];
    }
  return FX_OK;
}

fx_status fx_double_add_blocks(const fx_double_call *c) {
  const fx_double_tensor *sum = &c->out[0], *x = &c->in[1];
  int64_t width = x->type.dim[2] * x->type.dim[3], rows = x->type.dim[1];
  for (int64_t b = 0; b < x->type.dim[0]; b++)
    for (int64_t r = 0; r < rows; r++) {
      double number = c->in[2].data[r / FX_BLOCK_ROWS];
      int64_t to = (int64_t)number * FX_BLOCK_ROWS + r % FX_BLOCK_ROWS;
      for (int64_t i = 0; number >= 0 && i < width; i++)
        sum->data[(b * sum->type.dim[1] + to) * width + i] += x->data[(b * rows + r) * width + i];
    }
  return FX_OK;
}

/* ---- linear ---- */

/* c[j] = sum over p of a[p step] b[p, j] */
FX_ISA_CLONES static void product_row(const double *a, int64_t step, const double *b, int64_t n, int64_t k,
                                      double *c) {
  for (int64_t j = 0; j < n; j++) c[j] = 0;
  for (int64_t p = 0; p < k; p++) {
    double factor = a[p * step];
    for (int64_t j = 0; j < n; j++) c[j] += factor * b[p * n + j];
  }
}

/* c [m, n] = a b, with a[i, p] at i row + p col and b [k, n], or its transpose [n, k]. */
static fx_status product(const double *a, int64_t row, int64_t col, const double *b, bool transposed,
                         int64_t m, int64_t n, int64_t k, double *c) {
  double *turned = NULL;
  if (transposed) {
    FX_TRY(fx_calloc(&turned, (size_t)(k * n), sizeof *turned));
    for (int64_t j = 0; j < n; j++)
      for (int64_t p = 0; p < k; p++) turned[p * n + j] = b[j * k + p];
  }
  const double *right = turned ? turned : b;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < m; i++) product_row(a + i * row, col, right, n, k, c + i * n);
  free(turned);
  return FX_OK;
}

/* x Phi(x), and 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): arXiv:1606.08415 */
static double activate(double x, int32_t activation) {
  if (activation == FX_ACT_GELU) return x * 0.5 * erfc(-x / sqrt(2));
  if (activation == FX_ACT_GELU_TANH)
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return x;
}

/* d activate / dx; the derivative of Phi is the normal density. */
static double activate_slope(double x, int32_t activation) {
  if (activation == FX_ACT_GELU) return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
  if (activation == FX_ACT_GELU_TANH) {
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  }
  return 1;
}

/* y = act(x W^T + b); W is [O, I], or [I, O] with in_out. */
fx_status fx_double_linear(const fx_double_call *c) {
  const fx_linear_attr *a = c->attr;
  const fx_double_tensor *x = &c->in[0], *bias = &c->in[2], *pre = &c->out[1];
  int64_t width = a->in_out ? c->in[1].type.dim[1] : c->in[1].type.dim[0];
  double *y = c->out[0].data ? c->out[0].data : pre->data;
  FX_TRY(product(x->data, x->cols, 1, c->in[1].data, !a->in_out, x->rows, width, x->cols, y));
  for (int64_t i = 0; i < x->rows * width; i++) {
    if (bias->data) y[i] += bias->data[i % width];
    if (pre->data) pre->data[i] = y[i];
    if (c->out[0].data) y[i] = activate(y[i], a->activation);
  }
  return FX_OK;
}

/* dx = dy W */
fx_status fx_double_linear_dx(const fx_double_call *c) {
  const fx_linear_attr *a = c->attr;
  const fx_double_tensor *dy = &c->in[0], *dx = &c->out[0];
  return product(dy->data, dy->cols, 1, c->in[1].data, a->in_out, dy->rows, dx->cols, dy->cols, dx->data);
}

/* dW = dy^T x, or x^T dy for W [I, O]; db = the sum of dy over its rows. */
fx_status fx_double_linear_dw(const fx_double_call *c) {
  const fx_linear_attr *a = c->attr;
  const fx_double_tensor *dy = &c->in[0], *x = &c->in[1], *left = a->in_out ? x : dy,
                         *right = a->in_out ? dy : x;
  double *db = c->out[1].data;
  if (c->out[0].data)
    FX_TRY(product(left->data, 1, left->cols, right->data, false, left->cols, right->cols, dy->rows,
                   c->out[0].data));
  for (int64_t i = 0; db && i < dy->cols; i++) db[i] = 0;
  for (int64_t i = 0; db && i < dy->n; i++) db[i % dy->cols] += dy->data[i];
  return FX_OK;
}

fx_status fx_double_act_grad(const fx_double_call *c) {
  int32_t activation = ((const fx_linear_attr *)c->attr)->activation;
  for (int64_t i = 0; i < c->out[0].n; i++)
    c->out[0].data[i] = c->in[0].data[i] * activate_slope(c->in[1].data[i], activation);
  return FX_OK;
}

fx_status fx_double_add_bias(const fx_double_call *c) {
  for (int64_t i = 0; i < c->out[0].n; i++)
    c->out[0].data[i] = c->in[0].data[i] + c->in[1].data[i % c->out[0].cols];
  return FX_OK;
}

/* silu(gate) up with silu(x) = x sigmoid(x): arXiv:2002.05202 */
fx_status fx_double_swiglu(const fx_double_call *c) {
  int64_t cols = c->out[0].cols;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < c->out[0].n; i++) {
    const double *gate = c->in[0].data + i / cols * 2 * cols + i % cols;
    c->out[0].data[i] = gate[0] / (1 + exp(-gate[0])) * gate[cols];
  }
  return FX_OK;
}

/* silu'(x) = s + x s (1 - s) with s = sigmoid(x) */
fx_status fx_double_swiglu_grad(const fx_double_call *c) {
  const fx_double_tensor *dy = &c->in[0];
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < dy->n; i++) {
    int64_t at = i / dy->cols * 2 * dy->cols + i % dy->cols;
    double gate = c->in[1].data[at], up = c->in[1].data[at + dy->cols], s = 1 / (1 + exp(-gate));
    c->out[0].data[at] = dy->data[i] * up * (s + gate * s * (1 - s));
    c->out[0].data[at + dy->cols] = dy->data[i] * gate * s;
  }
  return FX_OK;
}

/* ---- norms ---- */

typedef struct statistics {
  double mean, rstd;
} statistics;

/* Of a row: RMSNorm (arXiv:1910.07467) takes no mean off; eps is inside the root. */
static statistics statistics_of(const double *x, int64_t n, const fx_norm_attr *attr) {
  double sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i];
  double mean = attr->kind == FX_NORM_LAYER ? sum / (double)n : 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
  return (statistics){mean, 1 / sqrt(squares / (double)n + (double)attr->eps)};
}

fx_status fx_double_norm(const fx_double_call *c) {
  const fx_double_tensor *x = &c->in[0], *w = &c->in[1], *b = &c->in[2], *y = &c->out[0];
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < x->rows; r++) {
    statistics s = statistics_of(x->data + r * x->cols, x->cols, c->attr);
    for (int64_t i = 0, at = r * x->cols; y->data && i < x->cols; i++)
      y->data[at + i] = (x->data[at + i] - s.mean) * s.rstd * w->data[i] + (b->data ? b->data[i] : 0);
    if (c->out[1].data) c->out[1].data[r] = s.mean;
    if (c->out[2].data) c->out[2].data[r] = s.rstd;
  }
  return FX_OK;
}

/* Through y = (x - mean) rstd w + b by the chain rule, from x alone: with u = x - mean and g = dy w,
 * du = rstd g - rstd^3 u sum(g u) / n, and dx is du without its mean where a mean was taken off. */
static void norm_row_dx(const double *dy, const double *x, const double *w, int64_t n, statistics s,
                        bool centred, double *dx) {
  double inner = 0, sum = 0;
#pragma omp simd reduction(+ : inner)
  for (int64_t i = 0; i < n; i++) inner += dy[i] * w[i] * (x[i] - s.mean);
  double cubic = pow(s.rstd, 3) * inner / (double)n;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += dx[i] = s.rstd * dy[i] * w[i] - cubic * (x[i] - s.mean);
  for (int64_t i = 0; centred && i < n; i++) dx[i] -= sum / (double)n;
}

/* The kept statistics, inputs 3 and 4, are not looked at. */
fx_status fx_double_norm_grad(const fx_double_call *c) {
  const fx_double_tensor *dy = &c->in[0], *x = &c->in[1];
  double *dx = c->out[0].data, *dw = c->out[1].data, *db = c->out[2].data;
  bool centred = ((const fx_norm_attr *)c->attr)->kind == FX_NORM_LAYER;
  for (int64_t i = 0; i < x->cols; i++) {
    if (dw) dw[i] = 0;
    if (db) db[i] = 0;
  }
  for (int64_t r = 0; r < x->rows; r++) {
    const double *dy_row = dy->data + r * x->cols, *x_row = x->data + r * x->cols;
    statistics s = statistics_of(x_row, x->cols, c->attr);
    if (dx) norm_row_dx(dy_row, x_row, c->in[2].data, x->cols, s, centred, dx + r * x->cols);
    for (int64_t i = 0; dw && i < x->cols; i++) dw[i] += dy_row[i] * (x_row[i] - s.mean) * s.rstd;
    for (int64_t i = 0; db && i < x->cols; i++) db[i] += dy_row[i];
  }
  return FX_OK;
}

/* ---- rope (arXiv:2104.09864) ---- */

/* Frequencies and angles are float32 numbers, as in the models that are trained with them: at position 70,000
 * the angle's last digit is 2^-8, so another precision is another model. */
fx_status fx_double_rope_table(const fx_double_call *c) {
  const fx_rope_table_attr *a = c->attr;
  int64_t half = a->head_dim / 2;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < c->in[0].n * half; i++) {
    double power = -2.0 * (double)(i % half) / (double)a->head_dim;
    double frequency = fx_double_round(pow(a->theta, power), FX_F32);
    double angle = fx_double_round(c->in[0].data[i / half] * frequency, FX_F32);
    double *row = c->out[0].data + i / half * a->head_dim;
    row[i % half] = cos(angle);
    row[half + i % half] = sin(angle);
  }
  return FX_OK;
}

/* Lanes i and D/2 + i of a head are one complex number, turned by the angle of lane i. */
fx_status fx_double_rope(const fx_double_call *c) {
  const fx_rope_attr *a = c->attr;
  const fx_double_tensor *x = &c->in[0];
  int64_t half = a->head_dim / 2;
  for (int64_t i = 0; i < x->n; i++) {
    int64_t row = i / x->cols, col = i % x->cols, lane = col % a->head_dim;
    const double *angle = c->in[1].data + row * a->head_dim + lane % half;
    double sine = (double)a->sign * angle[half];
    if (col >= a->heads * a->head_dim)
      c->out[0].data[i] = x->data[i];
    else if (lane < half)
      c->out[0].data[i] = x->data[i] * angle[0] - x->data[i + half] * sine;
    else
      c->out[0].data[i] = x->data[i] * angle[0] + x->data[i - half] * sine;
  }
  return FX_OK;
}

/* ---- dropout ---- */

/* Element (position, channel) of a sample has the 16 bits `channel % 8` of the draw that is counted by the
 * sample's ordinal, the position and channel / 8; p counts in units of 2^-16. */
fx_status fx_double_dropout(const fx_double_call *c) {
  const fx_dropout_attr *a = c->attr;
  const fx_double_tensor *x = &c->in[0];
  double below = fmin(65535, floor((double)a->p * 65536 + 0.5)), keep = 65536 / (65536 - below);
  int64_t length = a->length ? a->length : x->type.dim[1], draws = (x->cols + 7) / 8;
  uint64_t site = a->site + 0x9E3779B97F4A7C15ull * (uint64_t)c->layer, step = (uint64_t)c->in[2].data[0];
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < x->n; i++) {
    int64_t row = a->first_row + i / x->cols, channel = i % x->cols, position = row % length;
    if (c->in[3].data) position = (int64_t)c->in[3].data[position / 128] + position % 128;
    uint64_t index = (uint64_t)c->in[1].data[row / length] * ((uint64_t)1 << 40) +
                     (uint64_t)(position * draws + channel / 8);
    uint32_t word = fx_philox_at(a->seed, site, index, step).word[channel / 2 % 4];
    uint32_t bits = channel % 2 ? word / 65536 : word % 65536;
    c->out[0].data[i] = bits < below ? 0 : x->data[i] * keep;
  }
  return FX_OK;
}

/* ---- optimizer ---- */

fx_status fx_double_squares(const fx_double_call *c) {
  double sum = 0;
  for (int k = 0; k < FX_MAX_SQUARES; k++)
    for (int64_t i = 0; c->in[k].data && i < c->in[k].n; i++) sum += c->in[k].data[i] * c->in[k].data[i];
  c->out[0].data[0] = sum;
  return FX_OK;
}

/* As torch.nn.utils.clip_grad_norm_. */
fx_status fx_double_clip(const fx_double_call *c) {
  double most = ((const fx_clip_attr *)c->attr)->max_norm, norm = sqrt(c->in[0].data[0]);
  if (c->out[0].data) c->out[0].data[0] = norm;
  if (c->out[1].data) c->out[1].data[0] = most > 0 ? fmin(1, most / (norm + 1e-6)) : 1;
  return FX_OK;
}

/* x lies between two numbers of 8 binary digits; the upper one in size is taken with the probability of what
 * is cut off, in units of 2^-16: where that and the draw together reach 2^16. */
static double round_stochastically(double x, uint32_t draw) {
  int exponent;
  frexp(x, &exponent);
  double unit = ldexp(1, (exponent < -125 ? -125 : exponent) - 8), digits = floor(fabs(x) / unit),
         cut = (fabs(x) / unit - digits) * 65536;
  return copysign((digits + (cut + draw >= 65536 ? 1 : 0)) * unit, x);
}

static double rounded_parameter(const fx_adamw_attr *a, double x, int64_t i, uint64_t step) {
  uint64_t at = (uint64_t)(a->first + i);
  if (!a->stochastic) return fx_double_round(x, FX_BF16);
  uint32_t word = fx_philox_at(a->seed, fx_hash64_text(FX_ADAMW_SITE), at / 8, step).word[at / 2 % 4];
  return round_stochastically(x, at % 2 ? word / 65536 : word % 65536);
}

/* Algorithm 2 of arXiv:1711.05101. Inputs: parameter, gradient, moments, rate, step, norm and factor of the
 * gradient, three snapshots, a rounded copy. */
fx_status fx_double_adamw(const fx_double_call *c) {
  const fx_adamw_attr *a = c->attr;
  double *p = c->out[0].data, *m = c->out[1].data, *v = c->out[2].data;
  double lr = c->in[4].data[0], step = c->in[5].data[0], factor = c->in[7].data[0];
  bool update = isfinite(c->in[6].data[0]);
  for (int64_t i = 0; update && i < c->out[0].n; i++) {
    double grad = c->in[1].data[i] * factor;
    m[i] = a->beta1 * m[i] + (1 - a->beta1) * grad;
    v[i] = a->beta2 * v[i] + (1 - a->beta2) * grad * grad;
    double mean = m[i] / (1 - pow(a->beta1, step)), square = v[i] / (1 - pow(a->beta2, step));
    p[i] = p[i] - lr * a->weight_decay * p[i] - lr * mean / (sqrt(square) + a->eps);
    if (c->out[6].data) c->out[6].data[i] = rounded_parameter(a, p[i], i, (uint64_t)step);
  }
  for (int k = 0; k < 3; k++)
    if (c->out[3 + k].data) memcpy(c->out[3 + k].data, c->out[k].data, (size_t)c->out[k].n * sizeof(double));
  return FX_OK;
}
