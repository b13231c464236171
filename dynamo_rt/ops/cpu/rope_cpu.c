/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/rope.h"

/* The angle is rounded to float before its sine, as the reference implementations in float32 do. */
fx_status fx_rope_table_cpu(const fx_kernel_args *args) {
  const fx_rope_table_attr *attr = args->attr;
  const int32_t *positions = args->in[0]->data;
  float *table = args->out[0]->data;
  int64_t rows = fx_type_numel(&args->in[0]->type), half = attr->head_dim / 2;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    float *row = table + r * attr->head_dim;
    for (int64_t i = 0; i < half; i++) {
      float frequency = (float)(1.0 / pow(attr->theta, (double)(2 * i) / (double)attr->head_dim));
      float angle = (float)positions[r] * frequency;
      row[i] = cosf(angle);
      row[half + i] = sinf(angle);
    }
  }
  return FX_OK;
}

FX_ISA_CLONES static void rotate_head(const float *x, const float *cosine, const float *sine, float sign,
                                      float *y, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    float a = x[i], b = x[half + i], s = sign * sine[i];
    y[i] = a * cosine[i] - b * s;
    y[half + i] = b * cosine[i] + a * s;
  }
}

fx_status fx_rope_cpu(const fx_kernel_args *args) {
  const fx_rope_attr *attr = args->attr;
  const float *x = args->in[0]->data, *table = args->in[1]->data;
  float *y = args->out[0]->data;
  int64_t rows = fx_type_rows(&args->in[0]->type), cols = fx_type_cols(&args->in[0]->type);
  int64_t d = attr->head_dim, rotated = attr->heads * d;
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t r = 0; r < rows; r++) {
    const float *cosine = table + r * d;
    for (int64_t h = 0; h < attr->heads; h++)
      rotate_head(x + r * cols + h * d, cosine, cosine + d / 2, (float)attr->sign, y + r * cols + h * d,
                  d / 2);
    if (x != y)
      memcpy(y + r * cols + rotated, x + r * cols + rotated, (size_t)(cols - rotated) * sizeof(float));
  }
  return FX_OK;
}
