/* SPDX-License-Identifier: Apache-2.0 */
/* Norms. A group of threads owns a row: blockDim.x of them, a power of two from a warp up; blockDim.y groups
 * share a block. Rows of up to HELD columns are read once and stay in registers (`held`); others are read
 * once a pass. The mean is taken off before squaring, as on the CPU. */

enum { THREADS = 256, HELD_FORWARD = 32 / VEC /* vectors of a thread */ };

struct row_norm {
  const float *w, *b;
  float *mean, *rstd; /* of all rows; may be NULL */
  int layer;          /* LayerNorm, else RMSNorm */
  float eps;
  i64 cols;
};

__device__ inline void keep_statistics(const row_norm &n, i64 row, float mean, float rstd) {
  if (threadIdx.x != 0) return;
  if (n.mean) n.mean[row] = mean;
  if (n.rstd) n.rstd[row] = rstd;
}

/* in: the row, VEC columns a vector, as the thread holds it */
__device__ inline void norm_held(const row_norm &n, const uint4 (&in)[HELD_FORWARD], T *y, i64 row) {
  int vectors = (int)n.cols / VEC;
  float x[VEC], mean = 0.0f, sum = 0.0f, scale = 1.0f / (float)n.cols;
  if (n.layer) {
    for (int j = 0; j < HELD_FORWARD; j++) {
      unpack(in[j], x); /* zeros behind the row */
      for (int i = 0; i < VEC; i++) sum += x[i];
    }
    mean = group_sum(sum) * scale;
    sum = 0.0f;
  }
  for (int j = 0; j < HELD_FORWARD; j++) {
    unpack(in[j], x);
    for (int i = 0; i < VEC && threadIdx.x + j * blockDim.x < vectors; i++)
      sum = fmaf(x[i] - mean, x[i] - mean, sum);
  }
  float rstd = 1.0f / sqrtf(group_sum(sum) * scale + n.eps);
  for (int j = 0; j < HELD_FORWARD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    float w[VEC], b[VEC] = {};
    if (at >= vectors) continue;
    unpack(in[j], x);
    load_floats(n.w + at * VEC, w);
    if (n.b) load_floats(n.b + at * VEC, b);
    for (int i = 0; i < VEC; i++) x[i] = (x[i] - mean) * rstd * w[i] + b[i];
    store_vector(y + row * n.cols + at * VEC, x);
  }
  keep_statistics(n, row, mean, rstd);
}

__device__ inline void norm_unheld(const row_norm &n, const T *in, T *out, i64 row) {
  float mean = 0.0f, sum = 0.0f, scale = 1.0f / (float)n.cols;
  for (i64 i = threadIdx.x; n.layer && i < n.cols; i += blockDim.x) sum += get(in + i);
  if (n.layer) mean = group_sum(sum) * scale;
  sum = 0.0f;
  for (i64 i = threadIdx.x; i < n.cols; i += blockDim.x) sum += (get(in + i) - mean) * (get(in + i) - mean);
  float rstd = 1.0f / sqrtf(group_sum(sum) * scale + n.eps);
  for (i64 i = threadIdx.x; i < n.cols; i += blockDim.x)
    put(out + i, (get(in + i) - mean) * rstd * n.w[i] + (n.b ? n.b[i] : 0.0f));
  keep_statistics(n, row, mean, rstd);
}

/* The vectors of a row that a thread holds; zeros behind it. */
__device__ inline void hold(const T *x, i64 row, i64 cols, uint4 (&in)[HELD_FORWARD]) {
  const T *from = x + row * cols;
#pragma unroll
  for (int j = 0; j < HELD_FORWARD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    in[j] = at < (int)cols / VEC ? load_vector(from + at * VEC) : make_uint4(0, 0, 0, 0);
  }
}

/* A grid that stays: a group takes rows one after the other and reads the next one while it works. */
KERNEL_RESIDENT(norm_forward, THREADS, T_IS_BF16 ? 3 : 2)(const T *x, T *y, row_norm n, int held, i64 rows) {
  follow();
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y, step = (i64)gridDim.x * blockDim.y;
  uint4 in[HELD_FORWARD], next[HELD_FORWARD];
  if (held && row < rows) hold(x, row, n.cols, in);
  for (; row < rows; row += step) {
    if (!held) {
      norm_unheld(n, x + row * n.cols, y + row * n.cols, row);
      continue;
    }
    if (row + step < rows) hold(x, row + step, n.cols, next);
    norm_held(n, in, y, row);
#pragma unroll
    for (int j = 0; j < HELD_FORWARD; j++) in[j] = next[j];
  }
}

/* sum = round(a + b), y = norm(sum): what add and norm give one after the other. sum may be NULL; y and sum
 * may be a or b. */
KERNEL(add_norm, THREADS)(const T *a, const T *b, T *sum, T *y, row_norm n, int held, i64 rows) {
  follow();
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y, vectors = n.cols / VEC, base = row * n.cols;
  uint4 in[HELD_FORWARD], other[HELD_FORWARD];
  if (row >= rows) return;
  if (!held) {
    T *to = sum ? sum : y; /* from where a thread reads back what it wrote itself */
    for (i64 i = base + threadIdx.x; i < base + n.cols; i += blockDim.x) put(to + i, get(a + i) + get(b + i));
    return norm_unheld(n, to + base, y + base, row);
  }
  for (int j = 0; j < HELD_FORWARD; j++) {
    i64 at = threadIdx.x + j * blockDim.x;
    in[j] = at < vectors ? load_vector(a + base + at * VEC) : make_uint4(0, 0, 0, 0);
    other[j] = at < vectors ? load_vector(b + base + at * VEC) : make_uint4(0, 0, 0, 0);
  }
  for (int j = 0; j < HELD_FORWARD; j++) {
    i64 at = threadIdx.x + j * blockDim.x;
    float u[VEC], v[VEC];
    unpack(in[j], u), unpack(other[j], v);
    for (int i = 0; i < VEC; i++) u[i] += v[i];
    in[j] = pack(u);
    if (sum && at < vectors) *(uint4 *)(sum + base + at * VEC) = in[j];
  }
  norm_held(n, in, y, row);
}

/* ---- the coming rows lie in shared memory ----
 *
 * As in norm_grad.cu: a block stays on a multiprocessor, bulk copies bring the rows, and weights stay in
 * registers for all of them, which are four times the bytes of a row of bfloat16. */

#if __CUDA_ARCH__ >= 900
template <int HELD, bool LAYER>
__device__ inline void norm_ring(const T *x, T *y, const row_norm &n, int stages, i64 rows) {
  __shared__ float part[RING_WARPS * 2];
  __shared__ __align__(8) u64 full[RING_WARPS][MAX_STAGES];
  extern __shared__ __align__(128) uint4 space[];
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y, step = (i64)gridDim.x * blockDim.y;
  int vectors = (int)n.cols / VEC, turn = 0;
  row_ring r = {space + threadIdx.y * stages * vectors, full[threadIdx.y], 1, vectors};
  float w[HELD][VEC], b[LAYER ? HELD : 1][VEC] = {}, scale = 1.0f / (float)n.cols;
  if (threadIdx.x == 0) {
    ring_begin(r, stages);
    for (int s = 0; s < stages && row + s * step < rows; s++)
      fetch_row(r, s, (row + s * step) * n.cols, x, nullptr, nullptr);
  }
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    if (at < vectors) load_floats(n.w + at * VEC, w[j]);
    if (LAYER && n.b && at < vectors) load_floats(n.b + at * VEC, b[LAYER ? j : 0]);
  }
  __syncthreads();
  for (int s = 0, parity = 0; row < rows; row += step) {
    uint4 in[HELD];
    float v[VEC], mean = 0.0f, sum[1] = {};
    ring_wait(r, s, parity);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
      int at = (int)threadIdx.x + j * (int)blockDim.x;
      in[j] = at < vectors ? r.space[s * vectors + at] : make_uint4(0, 0, 0, 0);
    }
    if (LAYER) {
#pragma unroll
      for (int j = 0; j < HELD; j++) {
        unpack(in[j], v);
        for (int i = 0; i < VEC; i++) sum[0] += v[i];
      }
      group_sums(sum, part, turn++);
      mean = sum[0] * scale, sum[0] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < HELD; j++) {
      unpack(in[j], v);
      for (int i = 0; i < VEC && (int)threadIdx.x + j * (int)blockDim.x < vectors; i++)
        sum[0] = fmaf(v[i] - mean, v[i] - mean, sum[0]);
    }
    group_sums(sum, part, turn++);
    if (threadIdx.x == 0 && row + stages * step < rows)
      fetch_row(r, s, (row + stages * step) * n.cols, x, nullptr, nullptr);
    if (++s == stages) s = 0, parity ^= 1;
    float rstd = 1.0f / sqrtf(sum[0] * scale + n.eps);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
      int at = (int)threadIdx.x + j * (int)blockDim.x;
      unpack(in[j], v);
      for (int i = 0; i < VEC; i++)
        v[i] = LAYER ? fmaf((v[i] - mean) * rstd, w[j][i], b[LAYER ? j : 0][i]) : v[i] * rstd * w[j][i];
      if (at < vectors) store_vector(y + row * n.cols + at * VEC, v);
    }
    keep_statistics(n, row, mean, rstd);
  }
}
#else /* not launched */
template <int HELD, bool LAYER>
__device__ inline void norm_ring(const T *x, T *y, const row_norm &n, int stages, i64 rows) {}
#endif

KERNEL(rms_ring_2, 512)(const T *x, T *y, row_norm n, int stages, i64 rows) {
  follow();
  norm_ring<2, false>(x, y, n, stages, rows);
}
KERNEL(rms_ring_3, 512)(const T *x, T *y, row_norm n, int stages, i64 rows) {
  follow();
  norm_ring<3, false>(x, y, n, stages, rows);
}
KERNEL(layer_ring_2, 512)(const T *x, T *y, row_norm n, int stages, i64 rows) {
  follow();
  norm_ring<2, true>(x, y, n, stages, rows);
}
KERNEL(layer_ring_3, 512)(const T *x, T *y, row_norm n, int stages, i64 rows) {
  follow();
  norm_ring<3, true>(x, y, n, stages, rows);
}
