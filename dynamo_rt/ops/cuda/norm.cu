/* SPDX-License-Identifier: Apache-2.0 */
/* Norms. A group of threads owns a row: blockDim.x of them, a power of two from a warp up; blockDim.y groups
 * share a block. Rows of up to HELD columns are read once and stay in registers (`held`); others are read
 * once a pass. The mean is taken off before squaring, as on the CPU. */

enum {
  THREADS = 256,
  HELD_FORWARD = 32 / VEC,
  HELD_BACKWARD = 2 /* vectors of a thread */
};

/* Both sums over a group, given to all of its threads; every thread of the group must call. */
__device__ inline float2 group_sum(float2 x) {
  __shared__ float2 part[MAX_WARPS];
  int warps = (int)blockDim.x / WARP, first = (int)threadIdx.y * warps;
  x.x = warp_sum(x.x), x.y = warp_sum(x.y);
  if (warps == 1) return x;
  asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory"); /* `part` was read */
  if (threadIdx.x % WARP == 0) part[first + threadIdx.x / WARP] = x;
  asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
  x = part[first];
  for (int w = 1; w < warps; w++) x.x += part[first + w].x, x.y += part[first + w].y;
  return x;
}
__device__ inline float group_sum(float x) {
  return group_sum(make_float2(x, 0.0f)).x;
}

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

/* ---- backward: dx, and partial sums of dy xhat and of dy over the rows of a block ---- */

struct norm_back {
  const T *dy, *x;
  const float *w, *mean, *rstd; /* mean may be NULL (0) */
  T *dx;                        /* may be NULL, or where dy is */
  float *dw, *db;               /* [blocks, cols]; may be NULL */
  int layer, add;
  i64 rows, cols, step; /* step: rows of a block */
};

struct back_in {
  uint4 above[HELD_BACKWARD], x[HELD_BACKWARD]; /* dy and x */
  float mean, rstd;
};

__device__ inline void read_row(const norm_back &n, i64 row, back_in &in) {
  in.mean = n.mean ? n.mean[row] : 0.0f;
  in.rstd = n.rstd[row];
#pragma unroll
  for (int j = 0; j < HELD_BACKWARD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    if (at >= (int)(n.cols / VEC)) continue;
    in.above[j] = load_vector(n.dy + row * n.cols + at * VEC);
    in.x[j] = load_vector(n.x + row * n.cols + at * VEC);
  }
}

/* With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - xhat mean(g xhat)), that is
 * rstd g - far - near x; no mean(g) for RMSNorm. g is kept, so that the weights are read once. dw, db: the
 * thread's running sums. */
__device__ inline void back_row(const norm_back &n, i64 row, const back_in &in,
                                float (&dw)[HELD_BACKWARD][VEC], float (&db)[HELD_BACKWARD][VEC]) {
  int vectors = (int)(n.cols / VEC);
  uint4 old[HELD_BACKWARD];
  float g[HELD_BACKWARD][VEC], d[VEC], x[VEC], shift = -in.mean * in.rstd;
  float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < HELD_BACKWARD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    if (at >= vectors) continue;
    load_floats(n.w + at * VEC, g[j]);
    unpack(in.above[j], d), unpack(in.x[j], x);
    for (int i = 0; i < VEC; i++) {
      float xhat = fmaf(x[i], in.rstd, shift);
      g[j][i] *= d[i];
      sum.x += g[j][i], sum.y = fmaf(g[j][i], xhat, sum.y);
      dw[j][i] = fmaf(d[i], xhat, dw[j][i]), db[j][i] += d[i];
    }
    if (n.add) old[j] = load_vector(n.dx + row * n.cols + at * VEC);
  }
  if (!n.dx) return;
  sum = group_sum(sum);
  float mean_gx = sum.y / (float)n.cols, near = in.rstd * in.rstd * mean_gx;
  float far = in.rstd * ((n.layer ? sum.x / (float)n.cols : 0.0f) + shift * mean_gx);
#pragma unroll
  for (int j = 0; j < HELD_BACKWARD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    if (at >= vectors) continue;
    unpack(in.x[j], x);
    for (int i = 0; i < VEC; i++) d[i] = fmaf(-near, x[i], fmaf(in.rstd, g[j][i], -far));
    if (n.add) {
      unpack(old[j], x);
      for (int i = 0; i < VEC; i++) d[i] += x[i];
    }
    store_vector(n.dx + row * n.cols + at * VEC, d);
  }
}

/* The groups' sums of a column, added in order, into the block's row of the partial sums. */
__device__ inline void add_groups(const float (&mine)[HELD_BACKWARD][VEC], float *partial, i64 cols) {
  __shared__ float part[THREADS * HELD_BACKWARD * VEC]; /* one group, which needs none, may be larger */
  bool alone = blockDim.y == 1;
  if (!partial) return;
  for (int j = 0; j < HELD_BACKWARD; j++)
    for (int i = 0; i < VEC; i++) {
      i64 col = (threadIdx.x + j * blockDim.x) * VEC + i;
      if (col < cols && alone) partial[blockIdx.x * cols + col] = mine[j][i];
      if (col < cols && !alone) part[threadIdx.y * cols + col] = mine[j][i];
    }
  if (alone) return;
  __syncthreads();
  for (i64 col = threadIdx.y * blockDim.x + threadIdx.x; col < cols; col += THREADS) {
    float sum = part[col];
    for (unsigned g = 1; g < blockDim.y; g++) sum += part[g * cols + col];
    partial[blockIdx.x * cols + col] = sum;
  }
  __syncthreads();
}

/* A row of any length: a thread always has the same columns, so the block's partial sums need no barrier. */
__device__ inline void back_row_unheld(const norm_back &n, i64 row, bool first) {
  float rstd = n.rstd[row], shift = n.mean ? -n.mean[row] * rstd : 0.0f;
  float2 sum = make_float2(0.0f, 0.0f);
  i64 base = row * n.cols, part = blockIdx.x * n.cols;
  for (i64 i = threadIdx.x; i < n.cols; i += blockDim.x) {
    float d = get(n.dy + base + i), g = d * n.w[i], xhat = fmaf(get(n.x + base + i), rstd, shift);
    sum.x += g, sum.y = fmaf(g, xhat, sum.y);
    if (n.dw) n.dw[part + i] = first ? d * xhat : fmaf(d, xhat, n.dw[part + i]);
    if (n.db) n.db[part + i] = first ? d : n.db[part + i] + d;
  }
  if (!n.dx) return;
  sum = group_sum(sum);
  float mean_g = n.layer ? sum.x / (float)n.cols : 0.0f, mean_gx = sum.y / (float)n.cols;
  for (i64 i = threadIdx.x; i < n.cols; i += blockDim.x) {
    float xhat = fmaf(get(n.x + base + i), rstd, shift);
    float d = rstd * (get(n.dy + base + i) * n.w[i] - mean_g - xhat * mean_gx);
    put(n.dx + base + i, n.add ? get(n.dx + base + i) + d : d);
  }
}

/* grid: ceil(rows / step) */
KERNEL(norm_grad, 2 * THREADS)(norm_back n, int held) {
  i64 begin = blockIdx.x * n.step, end = begin + n.step < n.rows ? begin + n.step : n.rows;
  if (!held) {
    for (i64 row = begin; row < end; row++) back_row_unheld(n, row, row == begin);
    return;
  }
  float dw[HELD_BACKWARD][VEC] = {}, db[HELD_BACKWARD][VEC] = {};
  back_in in, next;
  i64 row = begin + threadIdx.y;
  if (row < end) read_row(n, row, in);
  for (; row < end; row += blockDim.y) {
    if (T_IS_BF16 && row + blockDim.y < end)
      read_row(n, row + blockDim.y, next); /* fp32: no registers left */
    back_row(n, row, in, dw, db);
    if (!T_IS_BF16 && row + blockDim.y < end) read_row(n, row + blockDim.y, next);
    in = next;
  }
  add_groups(dw, n.dw, n.cols);
  add_groups(db, n.db, n.cols);
}
