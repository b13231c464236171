/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of linear layers beside the GEMM: bias and activation, their gradients, SwiGLU. */

enum { ACT_NONE = 0, ACT_GELU = 1, ACT_GELU_TANH = 2 };

__device__ inline float gelu_inner(float x) {
  return 0.79788456080286536f * fmaf(0.044715f * x * x, x, x);
}

__device__ inline float activate(float x, int activation) {
  if (activation == ACT_GELU) return x * normcdff(x);
  if (activation == ACT_GELU_TANH) return 0.5f * x * (1.0f + tanhf(gelu_inner(x)));
  return x;
}

/* y holds the product: pre = y + bias; y = act(pre). bias and pre may be NULL. */
extern "C" __global__ void bias_act(float *y, const float *bias, float *pre, int activation, i64 n,
                                    i64 cols) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    float x = y[i] + (bias ? bias[i % cols] : 0.0f);
    if (pre) pre[i] = x;
    y[i] = activate(x, activation);
  }
}

/* With t = tanh u, u = sqrt(2 / pi) (x + c x^3): d/dx x (1 + t) / 2; with the exact form Phi + x phi. */
__device__ inline float slope(float x, int activation) {
  if (activation == ACT_GELU) return normcdff(x) + x * 0.3989422804014327f * expf(-0.5f * x * x);
  if (activation == ACT_NONE) return 1.0f;
  float t = tanhf(gelu_inner(x));
  float du = 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

extern "C" __global__ void act_grad(const float *dy, const float *pre, float *dx, int activation, i64 n) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) dx[i] = dy[i] * slope(pre[i], activation);
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

/* x [rows, 2 cols] = gate | up -> y [rows, cols] */
extern "C" __global__ void swiglu(const float *x, float *y, i64 n, i64 cols) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    i64 row = i / cols, at = row * 2 * cols + (i - row * cols);
    float gate = x[at];
    y[i] = gate * sigmoid(gate) * x[at + cols];
  }
}

/* dx may be x: a thread reads both of its elements before it writes them. */
extern "C" __global__ void swiglu_grad(const float *dy, const float *x, float *dx, i64 n, i64 cols) {
  for (i64 i = grid_index(); i < n; i += grid_stride()) {
    i64 row = i / cols, at = row * 2 * cols + (i - row * cols);
    float gate = x[at], up = x[at + cols], s = sigmoid(gate), silu = gate * s, d = dy[i];
    dx[at] = d * up * fmaf(silu, 1.0f - s, s);
    dx[at + cols] = d * silu;
  }
}

/* ---- sums over rows, in two stages: [chunks, cols] partial sums, then their sum in order ---- */

enum { TILE = 32, LANES = 8 };

/* block (TILE, LANES); grid (ceil(cols / TILE), chunks). Lane l adds every LANES-th row of the chunk. */
extern "C" __global__ void sum_rows_partial(const float *x, float *partial, i64 rows, i64 cols, i64 step) {
  __shared__ float part[LANES][TILE + 1];
  i64 col = (i64)blockIdx.x * TILE + threadIdx.x, begin = blockIdx.y * step;
  i64 end = begin + step < rows ? begin + step : rows;
  float sum = 0.0f;
  for (i64 r = begin + threadIdx.y; col < cols && r < end; r += LANES) sum += x[r * cols + col];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (int l = 1; l < LANES; l++) sum += part[l][threadIdx.x];
  partial[blockIdx.y * cols + col] = sum;
}

extern "C" __global__ void sum_partials(const float *partial, float *sum, int chunks, i64 cols, int add) {
  for (i64 c = grid_index(); c < cols; c += grid_stride()) {
    float s = add ? sum[c] : 0.0f;
    for (int i = 0; i < chunks; i++) s += partial[i * cols + c];
    sum[c] = s;
  }
}
