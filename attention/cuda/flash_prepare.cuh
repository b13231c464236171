/* SPDX-License-Identifier: Apache-2.0 */
/* The backward's small kernels: lse2, delta = rowsum(dO O) - dlse and, where there are no run lists, the keys
 * that limits let each block of 64 rows see; gradients of the sinks. */

/* Lanes of a row: each moves 16 bytes at a time. */
enum { ROW_LANES = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32 };

FX_DEVICE float row_delta(const elem *out, const elem *dout, int32_t lane) {
  float sum = 0.0f;
#pragma unroll
  for (int32_t c = lane; c < CHUNKS; c += ROW_LANES) {
    int4 both[2] = {((const int4 *)out)[c], ((const int4 *)dout)[c]};
    const elem *x = (const elem *)&both[0], *y = (const elem *)&both[1];
#pragma unroll
    for (int i = 0; i < CHUNK; i++) sum = __fmaf_rn(widen(x[i]), widen(y[i]), sum);
  }
#pragma unroll
  for (int step = ROW_LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

/* grid (Tpad / 64, H, B); 128 threads */
extern "C" __global__ void __launch_bounds__(128) flex_bwd_prepare(const __grid_constant__ fx_flash_args a) {
  __shared__ int32_t span[2];
  int32_t block = blockIdx.x, h = blockIdx.y, b = blockIdx.z, lane = threadIdx.x % ROW_LANES;
  for (int32_t r = threadIdx.x / ROW_LANES; r < ROWS; r += 128 / ROW_LANES) {
    int32_t row = block * ROWS + r, legal = row < a.T_q ? row : a.T_q - 1;
    int64_t place = ((int64_t)b * a.H + h) * a.Tpad + row;
    float lse = row < a.T_q ? a.lse[place] : -FX_INF;
    float delta = row_delta(at(&a.out, b, h, legal), at(&a.dout, b, h, legal), lane);
    if (a.dlse && row < a.T_q) delta -= a.dlse[place];
    if (lane == 0) {
      a.lse2[place] = lse == -FX_INF ? FX_INF : lse * FX_LOG2E;
      a.delta[place] = lse == -FX_INF ? 0.0f : delta;
    }
  }
  if (a.runs) return;
  rows_span(&a, b, h, block * ROWS, span);
  if (threadIdx.x < 2)
    a.span[(((int64_t)b * a.H + h) * gridDim.x + block) * 2 + threadIdx.x] = span[threadIdx.x];
}

/* dsink = -sum over samples and rows of exp(sink - lse) delta. grid (H); 256 threads */
extern "C" __global__ void __launch_bounds__(256) flex_bwd_sinks(const __grid_constant__ fx_flash_args a) {
  __shared__ double part[256];
  int32_t h = blockIdx.x;
  double sum = 0;
  for (int32_t b = 0; b < a.B; b++)
    for (int32_t t = threadIdx.x; t < a.T_q; t += 256) {
      int64_t place = ((int64_t)b * a.H + h) * a.Tpad + t;
      if (a.lse[place] != -FX_INF) sum -= (double)expf(a.sinks[h] - a.lse[place]) * (double)a.delta[place];
    }
  part[threadIdx.x] = sum;
  for (int step = 128; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
  }
  if (threadIdx.x == 0) a.dsinks[h] = (float)part[0];
}
