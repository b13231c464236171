/* SPDX-License-Identifier: Apache-2.0 */
/* Norms. Statistics are summed in float with simd partial sums over one row; the mean is taken off before
 * squaring, so that a large common offset costs no digits. */
#include <math.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/norm.h"

FX_ISA_CLONES static float row_mean(const float *x, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i];
  return sum / (float)n;
}

FX_ISA_CLONES static float row_mean_square(const float *x, float mean, int64_t n) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
  return sum / (float)n;
}

FX_ISA_CLONES static void normalize_row(const float *x, const float *w, const float *b, float mean,
                                        float rstd, float *y, int64_t n) {
  if (b)
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
  else
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i];
}

typedef struct norm_rows {
  fx_norm_attr attr;
  const float *w, *b;
  float *mean, *rstd; /* either may be NULL */
  int64_t cols;
} norm_rows;

/* y may be x. */
static void norm_row(const norm_rows *n, const float *x, float *y, int64_t row) {
  float mu = n->attr.kind == FX_NORM_LAYER ? row_mean(x, n->cols) : 0.0f;
  float scale = 1.0f / sqrtf(row_mean_square(x, mu, n->cols) + n->attr.eps);
  normalize_row(x, n->w, n->b, mu, scale, y, n->cols);
  if (n->mean) n->mean[row] = mu;
  if (n->rstd) n->rstd[row] = scale;
}

static norm_rows rows_of(const fx_kernel_args *args, int weight) {
  const fx_tensor *b = args->in[weight + 1];
  return (norm_rows){.attr = *(const fx_norm_attr *)args->attr,
                     .w = args->in[weight]->data,
                     .b = b ? b->data : NULL,
                     .mean = args->out[1] ? args->out[1]->data : NULL,
                     .rstd = args->out[2] ? args->out[2]->data : NULL,
                     .cols = fx_type_cols(&args->in[0]->type)};
}

fx_status fx_norm_cpu(const fx_kernel_args *args) {
  const norm_rows n = rows_of(args, 1);
  const float *x = args->in[0]->data;
  float *y = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) norm_row(&n, x + r * n.cols, y + r * n.cols, r);
  return FX_OK;
}

FX_ISA_CLONES static void add_row(const float *a, const float *b, float *sum, int64_t n) {
  for (int64_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
}

fx_status fx_add_norm_cpu(const fx_kernel_args *args) {
  const norm_rows n = rows_of(args, 2);
  const float *a = args->in[0]->data, *b = args->in[1]->data;
  float *y = args->out[0]->data, *sum = args->out[3] ? args->out[3]->data : y;
  int64_t rows = fx_type_rows(&args->in[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    int64_t at = r * n.cols;
    add_row(a + at, b + at, sum + at, n.cols);
    norm_row(&n, sum + at, y + at, r);
  }
  return FX_OK;
}

/* With xhat = (x - mean) rstd and g = dy w:
 * dx = rstd (g - mean(g) - xhat mean(g xhat)), without the mean(g) term for RMSNorm. */
typedef struct grad_row {
  const float *dy, *x, *w;
  float *dx, *dw, *db; /* dw, db: running sums of this chunk; NULL where unwanted */
  float mean, rstd;
  int64_t n;
} grad_row;

FX_ISA_CLONES static void row_moments(const grad_row *g, float *mean_g, float *mean_gx) {
  float sum_g = 0.0f, sum_gx = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gx)
  for (int64_t i = 0; i < g->n; i++) {
    float gi = g->dy[i] * g->w[i];
    sum_g += gi;
    sum_gx += gi * ((g->x[i] - g->mean) * g->rstd);
  }
  *mean_g = sum_g / (float)g->n;
  *mean_gx = sum_gx / (float)g->n;
}

FX_ISA_CLONES static void row_dx(const grad_row *g, float mean_g, float mean_gx, bool add) {
  for (int64_t i = 0; i < g->n; i++) {
    float xhat = (g->x[i] - g->mean) * g->rstd;
    float d = g->rstd * (g->dy[i] * g->w[i] - mean_g - xhat * mean_gx);
    g->dx[i] = add ? g->dx[i] + d : d;
  }
}

FX_ISA_CLONES static void row_dw(const grad_row *g) {
  for (int64_t i = 0; i < g->n; i++) g->dw[i] += g->dy[i] * ((g->x[i] - g->mean) * g->rstd);
  if (g->db)
    for (int64_t i = 0; i < g->n; i++) g->db[i] += g->dy[i];
}

size_t fx_norm_grad_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr,
                                  int threads) {
  (void)out, (void)attr, (void)threads;
  return (size_t)(2 * FX_REDUCE_CHUNKS * fx_type_cols(in[1])) * sizeof(float);
}

static void reduce_chunks(const float *partial, int64_t chunks, int64_t cols, float *sum, bool add) {
  for (int64_t c = 0; c < cols; c++) {
    float s = add ? sum[c] : 0.0f;
    for (int64_t i = 0; i < chunks; i++) s += partial[i * cols + c];
    sum[c] = s;
  }
}

fx_status fx_norm_grad_cpu(const fx_kernel_args *args) {
  const fx_norm_attr *attr = args->attr;
  const float *dy = args->in[0]->data, *x = args->in[1]->data, *w = args->in[2]->data;
  const float *mean = args->in[3] ? args->in[3]->data : NULL, *rstd = args->in[4]->data;
  float *dx = args->out[0] ? args->out[0]->data : NULL;
  int64_t rows = fx_type_rows(&args->in[1]->type), cols = fx_type_cols(&args->in[1]->type);
  int64_t step = fx_ceil_div(rows, FX_REDUCE_CHUNKS), chunks = fx_ceil_div(rows, step);
  float *dw = args->workspace, *db = dw + FX_REDUCE_CHUNKS * cols;
  bool layer = attr->kind == FX_NORM_LAYER, want_db = args->out[2] != NULL;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < chunks; i++) {
    grad_row g = {.w = w, .dw = dw + i * cols, .db = want_db ? db + i * cols : NULL, .n = cols};
    memset(g.dw, 0, (size_t)cols * sizeof(float));
    if (want_db) memset(g.db, 0, (size_t)cols * sizeof(float));
    for (int64_t r = i * step; r < fx_min_i64(rows, (i + 1) * step); r++) {
      float mean_g, mean_gx;
      g.dy = dy + r * cols, g.x = x + r * cols;
      g.mean = mean ? mean[r] : 0.0f, g.rstd = rstd[r];
      if (dx) {
        g.dx = dx + r * cols;
        row_moments(&g, &mean_g, &mean_gx);
        row_dx(&g, layer ? mean_g : 0.0f, mean_gx, args->accumulate & 1);
      }
      row_dw(&g);
    }
  }
  if (args->out[1]) reduce_chunks(dw, chunks, cols, args->out[1]->data, args->accumulate & 2);
  if (want_db) reduce_chunks(db, chunks, cols, args->out[2]->data, args->accumulate & 4);
  return FX_OK;
}
