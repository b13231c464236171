/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/ops/cpu/kernels_cpu.h"
#include "dynamo_rt/ops/optimizer.h"

enum { BLOCK = 16384 };

FX_ISA_CLONES static double sum_squares(const float *x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return sum;
}

static int64_t blocks_of(const fx_type *const *in) {
  int64_t blocks = 0;
  for (int i = 0; i < FX_MAX_SQUARES; i++)
    if (in[i]) blocks += fx_ceil_div(fx_type_numel(in[i]), BLOCK);
  return blocks;
}

size_t fx_squares_workspace_cpu(const fx_type *const *in, const fx_type *out, const void *attr, int threads) {
  (void)out, (void)attr, (void)threads;
  return (size_t)blocks_of(in) * sizeof(double);
}

fx_status fx_squares_cpu(const fx_kernel_args *args) {
  double *partial = args->workspace, sum = 0;
  for (int r = 0; r < FX_MAX_SQUARES; r++) {
    if (!args->in[r]) continue;
    const float *grad = args->in[r]->data;
    int64_t n = fx_type_numel(&args->in[r]->type), blocks = fx_ceil_div(n, BLOCK);
#pragma omp parallel for schedule(static) num_threads(args->threads)
    for (int64_t i = 0; i < blocks; i++)
      partial[i] = sum_squares(grad + i * BLOCK, fx_min_i64(BLOCK, n - i * BLOCK));
    for (int64_t i = 0; i < blocks; i++) sum += partial[i];
  }
  *(double *)args->out[0]->data = sum;
  return FX_OK;
}

fx_status fx_clip_cpu(const fx_kernel_args *args) {
  double max_norm = ((const fx_clip_attr *)args->attr)->max_norm;
  double norm = sqrt(*(const double *)args->in[0]->data),
         factor = max_norm > 0 ? max_norm / (norm + 1e-6) : 1.0;
  *(float *)args->out[0]->data = (float)norm;
  *(float *)args->out[1]->data = (float)(factor < 1.0 ? factor : 1.0);
  return FX_OK;
}

typedef struct adamw_factors {
  float grad_factor, decay, beta1, beta2, step_size, inv_sqrt_bias2, eps;
} adamw_factors;

FX_ISA_CLONES static void adamw_block(float *p, const float *g, float *m, float *v, int64_t n,
                                      const adamw_factors *f) {
  float gf = f->grad_factor, decay = f->decay, b1 = f->beta1, b2 = f->beta2;
  float step_size = f->step_size, bias2 = f->inv_sqrt_bias2, eps = f->eps;
  for (int64_t i = 0; i < n; i++) {
    float grad = g[i] * gf;
    float mean = m[i] + (1.0f - b1) * (grad - m[i]);
    float square = b2 * v[i] + (1.0f - b2) * grad * grad;
    m[i] = mean;
    v[i] = square;
    p[i] = p[i] * decay - step_size * (mean / (sqrtf(square) * bias2 + eps));
  }
}

/* The block is still in the cache that wrote it. */
static void copy_block(const fx_kernel_args *args, int64_t begin, int64_t n) {
  for (int i = 0; i < 3; i++)
    memcpy((float *)args->out[3 + i]->data + begin, (float *)args->out[i]->data + begin,
           (size_t)n * sizeof(float));
}

static uint16_t round_stochastically(float x, uint32_t random16) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7F800000u) == 0x7F800000u) return fx_f32_to_bf16(x);
  return (uint16_t)((bits + random16) >> 16);
}

/* Elements [begin, begin + n) of the parameters, rounded. A draw holds the bits of eight. */
static void round_block(const fx_kernel_args *args, int64_t begin, int64_t n) {
  const fx_adamw_attr *a = args->attr;
  const float *p = args->out[0]->data;
  uint16_t *to = args->out[6]->data;
  uint64_t site = fx_hash64_text(FX_ADAMW_SITE), step = (uint64_t) * (const int64_t *)args->in[5]->data;
  fx_philox random = {{0}};
  for (int64_t i = begin; i < begin + n; i++) {
    uint64_t place = (uint64_t)(a->first + i);
    if (!a->stochastic) {
      to[i] = fx_f32_to_bf16(p[i]);
      continue;
    }
    if (i == begin || place % 8 == 0) random = fx_philox_at(a->seed, site, place / 8, step);
    to[i] = round_stochastically(p[i], random.word[place % 8 / 2] >> (place % 2 * 16) & 0xFFFFu);
  }
}

/* A gradient that is not finite leaves parameters and moments as they were; a snapshot is taken all the same.
 */
fx_status fx_adamw_cpu(const fx_kernel_args *args) {
  const fx_adamw_attr *a = args->attr;
  const float *grad = args->in[1]->data;
  float *p = args->out[0]->data, *m = args->out[1]->data, *v = args->out[2]->data;
  bool update = isfinite(*(const float *)args->in[6]->data), snapshot = args->out[3] != NULL;
  double lr = (double)*(const float *)args->in[4]->data, step = (double)*(const int64_t *)args->in[5]->data;
  adamw_factors f = {.grad_factor = *(const float *)args->in[7]->data,
                     .decay = (float)(1.0 - lr * a->weight_decay),
                     .beta1 = (float)a->beta1,
                     .beta2 = (float)a->beta2,
                     .step_size = (float)(lr / (1.0 - pow(a->beta1, step))),
                     .inv_sqrt_bias2 = (float)(1.0 / sqrt(1.0 - pow(a->beta2, step))),
                     .eps = (float)a->eps};
  int64_t n = fx_type_numel(&args->in[0]->type);
#pragma omp parallel for schedule(static) num_threads(args->threads)
  for (int64_t i = 0; i < n; i += BLOCK) {
    int64_t length = fx_min_i64(BLOCK, n - i);
    if (update) adamw_block(p + i, grad + i, m + i, v + i, length, &f);
    if (update && args->out[6]) round_block(args, i, length);
    if (snapshot) copy_block(args, i, length);
  }
  return FX_OK;
}
