/* SPDX-License-Identifier: Apache-2.0 */
/* Norms: a block a row. The mean is taken off before squaring, as on the CPU. */

/* layer: LayerNorm, else RMSNorm. bias, mean_out, rstd_out may be NULL. */
extern "C" __global__ void norm_forward(const float *x, const float *w, const float *b, float *y,
                                        float *mean_out, float *rstd_out, int layer, float eps, i64 cols) {
  i64 row = blockIdx.x;
  const float *in = x + row * cols;
  float *out = y + row * cols, mean = 0.0f, sum = 0.0f;
  if (layer) {
    for (i64 i = threadIdx.x; i < cols; i += blockDim.x) sum += in[i];
    mean = block_sum(sum) / (float)cols;
    sum = 0.0f;
  }
  for (i64 i = threadIdx.x; i < cols; i += blockDim.x) sum += (in[i] - mean) * (in[i] - mean);
  float rstd = 1.0f / sqrtf(block_sum(sum) / (float)cols + eps);
  for (i64 i = threadIdx.x; i < cols; i += blockDim.x)
    out[i] = (in[i] - mean) * rstd * w[i] + (b ? b[i] : 0.0f);
  if (threadIdx.x == 0 && mean_out) mean_out[row] = mean;
  if (threadIdx.x == 0 && rstd_out) rstd_out[row] = rstd;
}

/* With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - xhat mean(g xhat)); no mean(g) for
 * RMSNorm. mean may be NULL (0). */
extern "C" __global__ void norm_dx(const float *dy, const float *x, const float *w, const float *mean,
                                   const float *rstd, float *dx, int layer, int add, i64 cols) {
  i64 row = blockIdx.x, base = row * cols;
  float mu = mean ? mean[row] : 0.0f, scale = rstd[row], sum_g = 0.0f, sum_gx = 0.0f;
  for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
    float g = dy[base + i] * w[i];
    sum_g += g;
    sum_gx += g * ((x[base + i] - mu) * scale);
  }
  float mean_g = block_sum(sum_g) / (float)cols, mean_gx = block_sum(sum_gx) / (float)cols;
  if (!layer) mean_g = 0.0f;
  for (i64 i = threadIdx.x; i < cols; i += blockDim.x) {
    float xhat = (x[base + i] - mu) * scale;
    float d = scale * (dy[base + i] * w[i] - mean_g - xhat * mean_gx);
    dx[base + i] = add ? dx[base + i] + d : d;
  }
}

enum { TILE = 32, LANES = 8 };

/* Partial sums of dy xhat and of dy over the rows of a chunk: block (TILE, LANES), grid (tiles, chunks).
 * db may be NULL. */
extern "C" __global__ void norm_dw_partial(const float *dy, const float *x, const float *mean,
                                           const float *rstd, float *dw, float *db, i64 rows, i64 cols,
                                           i64 step) {
  __shared__ float part_w[LANES][TILE + 1], part_b[LANES][TILE + 1];
  i64 col = (i64)blockIdx.x * TILE + threadIdx.x, begin = blockIdx.y * step;
  i64 end = begin + step < rows ? begin + step : rows;
  float sum_w = 0.0f, sum_b = 0.0f;
  for (i64 r = begin + threadIdx.y; col < cols && r < end; r += LANES) {
    float d = dy[r * cols + col], mu = mean ? mean[r] : 0.0f;
    sum_w += d * ((x[r * cols + col] - mu) * rstd[r]);
    sum_b += d;
  }
  part_w[threadIdx.y][threadIdx.x] = sum_w;
  part_b[threadIdx.y][threadIdx.x] = sum_b;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (int l = 1; l < LANES; l++) {
    sum_w += part_w[l][threadIdx.x];
    sum_b += part_b[l][threadIdx.x];
  }
  dw[blockIdx.y * cols + col] = sum_w;
  if (db) db[blockIdx.y * cols + col] = sum_b;
}
