/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of linear layers beside the GEMM: bias and activation, their gradients, SwiGLU, sums of rows.
 */

enum { ACT_NONE = 0, ACT_GELU = 1, ACT_GELU_TANH = 2 };

__device__ inline float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + exponential(-x));
}

/* (1 + tanh u) / 2 is the sigmoid of 2 u, which loses no digits where tanh is near -1 */
__device__ inline float twice_inner(float x) {
  return 1.59576912160573072f * fmaf(0.044715f * x * x, x, x);
}

__device__ inline float activate(float x, int activation) {
  if (activation == ACT_GELU) return x * normcdff(x);
  if (activation == ACT_GELU_TANH) return x * sigmoid(twice_inner(x));
  return x;
}

/* With s = sigmoid(2 u), u = sqrt(2 / pi) (x + c x^3): d/dx x s = s + x s (1 - s) 2 u'; with the exact form
 * Phi + x phi. */
__device__ inline float slope(float x, int activation) {
  if (activation == ACT_GELU) return normcdff(x) + x * 0.3989422804014327f * exponential(-0.5f * x * x);
  if (activation == ACT_NONE) return 1.0f;
  float s = sigmoid(twice_inner(x)), du = 1.59576912160573072f * fmaf(3.0f * 0.044715f * x, x, 1.0f);
  return fmaf(x * s * (1.0f - s), du, s);
}

/* pre = product + bias; y = act(pre). bias and pre may be NULL, y may be the product. */
KERNEL(bias_act, FLAT)(const T *product, T *y, const T *bias, T *pre, int activation, i64 n, i64 cols) {
  follow();
  i64 vectors = aligned(product, y, bias, pre) && cols % VEC == 0 ? n / VEC : 0, width = cols / VEC;
  for (i64 k = grid_index(); k < vectors; k += grid_stride()) {
    float x[VEC], b[VEC];
    unpack(load_vector(product + k * VEC), x);
    if (bias) {
      unpack(load_vector(bias + k % width * VEC), b);
      for (int i = 0; i < VEC; i++) x[i] += b[i];
    }
    if (pre) store_vector(pre + k * VEC, x);
    for (int i = 0; i < VEC; i++) x[i] = activate(x[i], activation);
    store_vector(y + k * VEC, x);
  }
  for (i64 i = vectors * VEC + grid_index(); i < n; i += grid_stride()) {
    float x = get(product + i) + (bias ? get(bias + i % cols) : 0.0f);
    if (pre) put(pre + i, x);
    put(y + i, activate(x, activation));
  }
}

KERNEL(act_grad, FLAT)(const T *dy, const T *pre, T *dx, int activation, i64 n) {
  follow();
  map(dy, pre, dx, n, [activation](float d, float x) { return d * slope(x, activation); });
}

/* x [rows, 2 cols] = gate | up -> y [rows, cols] */
KERNEL(swiglu, FLAT)(const T *x, T *y, i64 n, i64 cols) {
  follow();
  i64 vectors = aligned(x, y) && cols % VEC == 0 ? n / VEC : 0, width = cols / VEC;
  for (i64 k = grid_index(); k < vectors; k += grid_stride()) {
    const T *at = x + (k + k / width * width) * VEC;
    uint4 left = load_vector(at), right = load_vector(at + cols);
    float gate[VEC], up[VEC];
    unpack(left, gate), unpack(right, up);
    for (int i = 0; i < VEC; i++) gate[i] *= sigmoid(gate[i]) * up[i];
    store_vector(y + k * VEC, gate);
  }
  for (i64 i = vectors * VEC + grid_index(); i < n; i += grid_stride()) {
    const T *at = x + i + i / cols * cols;
    float gate = get(at);
    put(y + i, gate * (sigmoid(gate) * get(at + cols)));
  }
}

__device__ inline void swiglu_slopes(float d, float &gate, float &up) {
  float s = sigmoid(gate), silu = gate * s;
  gate = d * up * fmaf(silu, 1.0f - s, s);
  up = d * silu;
}

/* dx may be x: a thread reads what it needs of both halves before it writes them. */
KERNEL(swiglu_grad, FLAT)(const T *dy, const T *x, T *dx, i64 n, i64 cols) {
  follow();
  i64 vectors = aligned(dy, x, dx) && cols % VEC == 0 ? n / VEC : 0, width = cols / VEC;
  for (i64 k = grid_index(); k < vectors; k += grid_stride()) {
    i64 at = (k + k / width * width) * VEC;
    uint4 above = load_vector(dy + k * VEC), left = load_vector(x + at), right = load_vector(x + at + cols);
    float d[VEC], gate[VEC], up[VEC];
    unpack(above, d), unpack(left, gate), unpack(right, up);
    for (int i = 0; i < VEC; i++) swiglu_slopes(d[i], gate[i], up[i]);
    store_vector(dx + at, gate);
    store_vector(dx + at + cols, up);
  }
  for (i64 i = vectors * VEC + grid_index(); i < n; i += grid_stride()) {
    i64 at = i + i / cols * cols;
    float gate = get(x + at), up = get(x + at + cols);
    swiglu_slopes(get(dy + i), gate, up);
    put(dx + at, gate);
    put(dx + at + cols, up);
  }
}

/* ---- sums over rows: [chunks, cols] partial sums, which sum_partials adds in order ---- */

enum { TILE = 64, LANES = 4, WIDTH = TILE / VEC, BELOW = LANES * VEC };

/* block (TILE, LANES); grid (ceil(cols / TILE), chunks). A block sums TILE columns of the rows of one chunk:
 * WIDTH threads lie side by side, BELOW of them below each other. */
KERNEL(sum_rows_partial, TILE *LANES)(const T *x, float *partial, i64 rows, i64 cols, i64 step) {
  follow();
  enum { UNROLL = 8 };
  __shared__ float part[BELOW][TILE + 1];
  int thread = threadIdx.y * TILE + threadIdx.x, lane = thread / WIDTH, place = thread % WIDTH * VEC;
  i64 col = (i64)blockIdx.x * TILE + place, end = (blockIdx.y + 1) * step, r = blockIdx.y * step + lane;
  bool vectors = aligned(x) && cols % VEC == 0;
  float sum[VEC] = {}, v[VEC];
  end = end < rows ? end : rows;
  for (; vectors && col < cols && r + (UNROLL - 1) * BELOW < end; r += UNROLL * BELOW) {
    uint4 in[UNROLL];
#pragma unroll
    for (int j = 0; j < UNROLL; j++) in[j] = load_vector(x + (r + j * BELOW) * cols + col);
#pragma unroll
    for (int j = 0; j < UNROLL; j++) {
      unpack(in[j], v);
      for (int i = 0; i < VEC; i++) sum[i] += v[i];
    }
  }
  for (; r < end; r += BELOW)
    for (int i = 0; i < VEC; i++)
      if (col + i < cols) sum[i] += get(x + r * cols + col + i);
  for (int i = 0; i < VEC; i++) part[lane][place + i] = sum[i];
  __syncthreads();
  float total = 0.0f;
  for (int l = 0; l < VEC; l++) total += part[threadIdx.y * VEC + l][threadIdx.x];
  __syncthreads();
  part[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  col = (i64)blockIdx.x * TILE + threadIdx.x;
  if (threadIdx.y != 0 || col >= cols) return;
  for (int l = 1; l < LANES; l++) total += part[l][threadIdx.x];
  partial[blockIdx.y * cols + col] = total;
}
