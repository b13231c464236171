/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of norms: dx, and partial sums of dy xhat and of dy over the rows of a block, for which
 * reduce.cu has the second stage. A group of threads owns a row: blockDim.x of them, whole warps; blockDim.y
 * groups share a block. With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - xhat mean(g
 * xhat)), that is rstd g - far - near x; no mean(g) for RMSNorm. */

enum { THREADS = 256, HELD_BACKWARD = 2 /* vectors of a thread */ };

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

/* g is kept, so that the weights are read once. dw, db: the thread's running sums. */
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
__device__ inline void add_groups(const float (&mine)[HELD_BACKWARD][VEC], float *partial, i64 cols,
                                  meeting &all) {
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
  meet(all);
  for (i64 col = threadIdx.y * blockDim.x + threadIdx.x; col < cols; col += THREADS) {
    float sum = part[col];
    for (unsigned g = 1; g < blockDim.y; g++) sum += part[g * cols + col];
    partial[blockIdx.x * cols + col] = sum;
  }
  meet(all);
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
  follow();
  i64 begin = blockIdx.x * n.step, end = begin + n.step < n.rows ? begin + n.step : n.rows;
  if (!held) {
    for (i64 row = begin; row < end; row++) back_row_unheld(n, row, row == begin);
    return;
  }
  __shared__ u64 together;
  meeting all = meeting_begin(&together, threadIdx.x == 0 && threadIdx.y == 0);
  float dw[HELD_BACKWARD][VEC] = {}, db[HELD_BACKWARD][VEC] = {};
  back_in in, next;
  __syncthreads();
  i64 row = begin + threadIdx.y;
  if (row < end) read_row(n, row, in);
  for (; row < end; row += blockDim.y) {
    if (T_IS_BF16 && row + blockDim.y < end)
      read_row(n, row + blockDim.y, next); /* fp32: no registers left */
    back_row(n, row, in, dw, db);
    if (!T_IS_BF16 && row + blockDim.y < end) read_row(n, row + blockDim.y, next);
    in = next;
  }
  add_groups(dw, n.dw, n.cols, all);
  add_groups(db, n.db, n.cols, all);
}

/* ---- the coming rows lie in shared memory ----
 *
 * A block stays on a multiprocessor. Bulk copies bring rows of dy, x (and dx, where it is added to) into a
 * ring of `stages` rows of each group, about 110 KB under way without registers or instructions of the warps
 * (with twice as much it is no faster), and weights and running sums stay in registers for all rows. A group
 * is a warp where HELD vectors of a thread are a row, and needs no barrier then, or as many warps as it
 * takes. On an H200 45.1 us for 32,768 rows of 768 bfloat16 (LayerNorm), 55.1 us for 16,384 of 2,048
 * (RMSNorm): 81 and 88 % of a copy, from 72 and 80 with `norm_grad`, whose groups wait at two barriers a row.
 */

#if __CUDA_ARCH__ >= 900
/* What a thread has of a row, and for all rows. */
template <int HELD> struct ring_row { uint4 above[HELD], x[HELD], old[HELD]; };
template <int HELD, bool LAYER> struct ring_sums {
  float w[HELD][VEC], dw[HELD][VEC], db[LAYER ? HELD : 1][VEC];
};

template <int HELD> __device__ inline void take_row(const row_ring &r, int stage, ring_row<HELD> &in) {
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    if (at >= r.vectors) continue;
    const uint4 *from = r.space + stage * r.slots * r.vectors + at;
    in.above[j] = from[0], in.x[j] = from[r.vectors];
    if (r.slots == 3) in.old[j] = from[2 * r.vectors];
  }
}

/* sum: of g xhat, and for LayerNorm of g, with the names of back_row */
template <int HELD, bool LAYER>
__device__ inline void add_row(const ring_row<HELD> &in, int vectors, float mean, float rstd,
                               ring_sums<HELD, LAYER> &t, float (&sum)[LAYER ? 2 : 1]) {
  float shift = -mean * rstd;
  for (int i = 0; i <= LAYER; i++) sum[i] = 0.0f;
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    float d[VEC], x[VEC];
    if ((int)threadIdx.x + j * (int)blockDim.x >= vectors) continue;
    unpack(in.above[j], d), unpack(in.x[j], x);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      float xhat = LAYER ? fmaf(x[i], rstd, shift) : x[i] * rstd, g = d[i] * t.w[j][i];
      sum[0] = fmaf(g, xhat, sum[0]);
      t.dw[j][i] = fmaf(d[i], xhat, t.dw[j][i]);
      if (LAYER) sum[LAYER] += g, t.db[LAYER ? j : 0][i] += d[i];
    }
  }
}

template <int HELD, bool LAYER>
__device__ inline void store_row(const norm_back &n, i64 row, const ring_row<HELD> &in, float mean,
                                 float rstd, const ring_sums<HELD, LAYER> &t,
                                 const float (&sum)[LAYER ? 2 : 1]) {
  float scale = 1.0f / (float)n.cols, shift = -mean * rstd, mean_gx = sum[0] * scale;
  float near = rstd * rstd * mean_gx, far = rstd * ((LAYER ? sum[LAYER] * scale : 0.0f) + shift * mean_gx);
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    float d[VEC], x[VEC];
    if (at >= (int)n.cols / VEC) continue;
    unpack(in.above[j], d), unpack(in.x[j], x);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      float g = d[i] * t.w[j][i];
      d[i] = fmaf(-near, x[i], LAYER ? fmaf(rstd, g, -far) : rstd * g);
    }
    if (n.add) {
      unpack(in.old[j], x);
#pragma unroll
      for (int i = 0; i < VEC; i++) d[i] += x[i];
    }
    store_vector(n.dx + row * n.cols + at * VEC, d);
  }
}

/* The groups' sums of a column added in order, through space [groups][cols], into the block's partial sums.
 */
template <int HELD>
__device__ inline void join_groups(const float (&mine)[HELD][VEC], float *space, float *partial, i64 cols,
                                   meeting &all) {
  int threads = (int)(blockDim.x * blockDim.y);
  if (!partial) return;
  meet(all);
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    i64 col = (threadIdx.x + j * blockDim.x) * VEC;
    float4 *to = (float4 *)(space + threadIdx.y * cols + col);
    for (int i = 0; i < VEC && col < cols; i += 4)
      to[i / 4] = make_float4(mine[j][i], mine[j][i + 1], mine[j][i + 2], mine[j][i + 3]);
  }
  meet(all);
  for (i64 col = threadIdx.y * blockDim.x + threadIdx.x; col < cols; col += threads) {
    float sum = space[col];
    for (unsigned g = 1; g < blockDim.y; g++) sum += space[g * cols + col];
    partial[blockIdx.x * cols + col] = sum;
  }
}

/* Groups of all blocks take rows in turn, so that at any time the GPU reads one range. A stage is fetched
 * again behind the sums over the group: all of it have read the stage by then. dx is given; dynamic shared
 * memory: the groups' rings, which then hold a float a column and group. */
template <int HELD, bool LAYER> __device__ inline void grad_ring(const norm_back &n, int stages) {
  __shared__ float part[RING_WARPS * 2 * (LAYER ? 2 : 1)];
  __shared__ __align__(8) u64 full[RING_WARPS][MAX_STAGES], together;
  extern __shared__ __align__(128) uint4 space[];
  meeting all = meeting_begin(&together, threadIdx.x == 0 && threadIdx.y == 0);
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y, step = (i64)gridDim.x * blockDim.y;
  int vectors = (int)n.cols / VEC, slots = n.add ? 3 : 2, turn = 0;
  row_ring r = {space + threadIdx.y * stages * slots * vectors, full[threadIdx.y], slots, vectors};
  ring_sums<HELD, LAYER> t = {};
  float mean = 0.0f, rstd = 0.0f, next_mean = 0.0f, next_rstd = 0.0f;
  if (threadIdx.x == 0) {
    ring_begin(r, stages);
    for (int s = 0; s < stages && row + s * step < n.rows; s++)
      fetch_row(r, s, (row + s * step) * n.cols, n.dy, n.x, n.dx);
  }
#pragma unroll
  for (int j = 0; j < HELD; j++) {
    int at = (int)threadIdx.x + j * (int)blockDim.x;
    if (at < vectors) load_floats(n.w + at * VEC, t.w[j]);
  }
  if (row < n.rows) next_rstd = n.rstd[row], next_mean = LAYER ? n.mean[row] : 0.0f;
  __syncthreads();
  for (int s = 0, parity = 0; row < n.rows; row += step) {
    ring_row<HELD> in;
    float sum[LAYER ? 2 : 1];
    mean = next_mean, rstd = next_rstd;
    if (row + step < n.rows) next_rstd = n.rstd[row + step], next_mean = LAYER ? n.mean[row + step] : 0.0f;
    ring_wait(r, s, parity);
    take_row(r, s, in);
    add_row<HELD, LAYER>(in, vectors, mean, rstd, t, sum);
    group_sums(sum, part, turn++);
    if (threadIdx.x == 0 && row + stages * step < n.rows)
      fetch_row(r, s, (row + stages * step) * n.cols, n.dy, n.x, n.dx);
    if (++s == stages) s = 0, parity ^= 1;
    store_row<HELD, LAYER>(n, row, in, mean, rstd, t, sum);
  }
  join_groups<HELD>(t.dw, (float *)space, n.dw, n.cols, all);
  if constexpr (LAYER) join_groups<HELD>(t.db, (float *)space, n.db, n.cols, all);
}
#else /* not launched */
template <int HELD, bool LAYER> __device__ inline void grad_ring(const norm_back &n, int stages) {}
#endif

/* Vectors of a thread and threads of a block: what fits into the registers of a multiprocessor. */
KERNEL(rms_grad_ring_2, 512)(norm_back n, int stages) {
  follow();
  grad_ring<2, false>(n, stages);
}
KERNEL(rms_grad_ring_3, 384)(norm_back n, int stages) {
  follow();
  grad_ring<3, false>(n, stages);
}
KERNEL(layer_grad_ring_2, 512)(norm_back n, int stages) {
  follow();
  grad_ring<2, true>(n, stages);
}
KERNEL(layer_grad_ring_3, 384)(norm_back n, int stages) {
  follow();
  grad_ring<3, true>(n, stages);
}
