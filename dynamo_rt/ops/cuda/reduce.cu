/* SPDX-License-Identifier: Apache-2.0 */
/* Second stages of sums, in fixed order, and the global norm. */

enum { TILE = 32, LANES = 32, AT_ONCE = 8 };

/* sum[cols] (+)= the `chunks` rows of partial; grid.y 1 does the same for partial2 and sum2, unless sum2 is
 * NULL. add: bit 0 for sum, bit 1 for sum2. block (TILE, LANES), grid.x ceil(cols / TILE). Lane l adds rows
 * l, l + LANES ... and the lanes are added in order. */
SINGLE_KERNEL(sum_partials, TILE *LANES)
(const float *partial, float *sum, const float *partial2, float *sum2, int chunks, i64 cols, int add) {
  follow();
  __shared__ float part[LANES][TILE + 1];
  i64 col = (i64)blockIdx.x * TILE + threadIdx.x;
  const float *in = blockIdx.y ? partial2 : partial;
  float *out = blockIdx.y ? sum2 : sum, total = 0.0f;
  for (int c = threadIdx.y; out && col < cols && c < chunks; c += LANES * AT_ONCE) {
    float x[AT_ONCE];
    for (int j = 0; j < AT_ONCE; j++)
      x[j] = c + j * LANES < chunks ? in[(i64)(c + j * LANES) * cols + col] : 0.0f;
    for (int j = 0; j < AT_ONCE; j++) total += x[j];
  }
  part[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || !out || col >= cols) return;
  for (int l = 1; l < LANES; l++) total += part[l][threadIdx.x];
  out[col] = (add >> blockIdx.y & 1) ? out[col] + total : total;
}

/* loss = factor sum(nll), in double; one block */
SINGLE_KERNEL(sum_nll, 1024)(const float *nll, const float *factor, float *loss, i64 rows) {
  follow();
  double sum = 0;
  for (i64 r = threadIdx.x; r < rows; r += blockDim.x) sum += (double)nll[r];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss = (float)(sum * (double)*factor);
}

__device__ inline double square(float x) {
  return (double)x * (double)x;
}

/* partial[b]: sum of squares of elements [b chunk, (b + 1) chunk) in double; chunk is a multiple of FLAT * 4
 * * AT_ONCE. */
SINGLE_KERNEL(square_partial, FLAT)(const float *grad, double *partial, i64 n, i64 chunk) {
  follow();
  i64 begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
  double sum = 0;
  if (end - begin == chunk && aligned(grad)) {
    const float4 *in = (const float4 *)(grad + begin);
    for (i64 i = threadIdx.x; i < chunk / 4; i += FLAT * AT_ONCE) {
      float4 x[AT_ONCE];
      for (int j = 0; j < AT_ONCE; j++) x[j] = in[i + j * FLAT];
      for (int j = 0; j < AT_ONCE; j++)
        sum += (square(x[j].x) + square(x[j].y)) + (square(x[j].z) + square(x[j].w));
    }
  } else {
    for (i64 i = begin + threadIdx.x; i < end; i += FLAT) sum += square(grad[i]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One block: their sum, in a fixed order. */
SINGLE_KERNEL(sum_squares, 1024)(const double *partial, double *squares, i64 chunks) {
  follow();
  double sum = 0;
  for (i64 i = threadIdx.x; i < chunks; i += 1024 * AT_ONCE) {
    double x[AT_ONCE];
    for (int j = 0; j < AT_ONCE; j++) x[j] = i + j * 1024 < chunks ? partial[i + j * 1024] : 0;
    for (int j = 0; j < AT_ONCE; j++) sum += x[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) *squares = sum;
}

/* One thread: norm, and the factor min(1, max_norm / (norm + 1e-6)); max_norm 0: 1. */
SINGLE_KERNEL(clip_factor, 32)(const double *squares, float *norm_out, float *factor_out, double max_norm) {
  follow();
  if (threadIdx.x != 0) return;
  double norm = sqrt(*squares), factor = max_norm > 0 ? max_norm / (norm + 1e-6) : 1.0;
  *norm_out = (float)norm;
  *factor_out = (float)(factor < 1.0 ? factor : 1.0);
}
