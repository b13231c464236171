/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels of this folder begin with: fixed-width types (NVRTC has no headers here), and reductions
 * over a block whose order is fixed, so that a kernel gives the same bits every time. */
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned u32;

enum { WARP = 32, MAX_WARPS = 32 };

__device__ inline float warp_sum(float x) {
  for (int step = WARP / 2; step > 0; step >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}
__device__ inline double warp_sum(double x) {
  for (int step = WARP / 2; step > 0; step >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = WARP / 2; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

/* Sum over the threads of a one-dimensional block, given to all of them; every thread must call. */
template <typename T> __device__ inline T block_sum(T x) {
  __shared__ T part[MAX_WARPS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
  x = warp_sum(x);
  __syncthreads(); /* `part` of an earlier call has been read */
  if (lane == 0) part[warp] = x;
  __syncthreads();
  x = lane < warps ? part[lane] : T(0);
  return warp_sum(x);
}

__device__ inline float block_max(float x) {
  __shared__ float part[MAX_WARPS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) part[warp] = x;
  __syncthreads();
  x = lane < warps ? part[lane] : part[0];
  return warp_max(x);
}

__device__ inline i64 grid_index() {
  return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ inline i64 grid_stride() {
  return (i64)gridDim.x * blockDim.x;
}
