/* SPDX-License-Identifier: Apache-2.0 */
/* Norms. A group of threads owns a row: blockDim.x of them, a power of two from a warp up; blockDim.y groups
 * share a block. Rows of up to HELD columns are read once and stay in registers (`held`); others are read
 * once a pass. The mean is taken off before squaring, as on the CPU. */

enum {
  THREADS = 256,
  HELD_FORWARD = 4,
  HELD_BACKWARD = 2,
  HELD_WIDE = 4, /* vectors of a thread */
#if __CUDA_ARCH__ >= 900
  RESIDENT_BACKWARD = 3
#else
  RESIDENT_BACKWARD = 2 /* three would spill there */
#endif
};

/* threadIdx.x as a number that the compiler knows nothing of: it would keep the addresses of all of a
 * thread's columns in registers from row to row. */
__device__ inline int my_place() {
  int place = (int)threadIdx.x;
  asm volatile("" : "+r"(place));
  return place;
}

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

/* Asynchronous 16 bytes into shared memory. A thread fetches what it reads itself, so that no barrier is
 * needed, and fetches into a place only after it has used what was there. */
__device__ inline void fetch(uint4 *to, const T *from) {
  u32 place = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
}
__device__ inline void end_of_fetches() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LATER> __device__ inline void await_fetches() { /* all but the last LATER groups */
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

__device__ inline float sum_of(const uint4 (&in)[HELD_FORWARD]) {
  float sum = 0.0f, x[VEC];
#pragma unroll
  for (int j = 0; j < HELD_FORWARD; j++) {
    unpack(in[j], x);
    for (int i = 0; i < VEC; i++) sum += x[i];
  }
  return sum;
}

/* in: the row, VEC columns a vector, as the thread holds it, zeros behind it; sum: of those */
__device__ inline void norm_held(const row_norm &n, const uint4 (&in)[HELD_FORWARD], float sum, T *y,
                                 i64 row) {
  int vectors = (int)n.cols / VEC, place = my_place();
  float x[VEC], scale = 1.0f / (float)n.cols, mean = n.layer ? group_sum(sum) * scale : 0.0f;
  sum = 0.0f;
#pragma unroll
  for (int j = 0; j < HELD_FORWARD; j++) {
    if (place + j * (int)blockDim.x >= vectors) continue;
    unpack(in[j], x);
    for (int i = 0; i < VEC; i++) sum = fmaf(x[i] - mean, x[i] - mean, sum);
  }
  float rstd = 1.0f / sqrtf(group_sum(sum) * scale + n.eps);
#pragma unroll
  for (int j = 0; j < HELD_FORWARD; j++) {
    int at = place + j * (int)blockDim.x;
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

/* A grid that stays: a group takes rows one after the other, and the next one comes into shared memory while
 * it works. */
KERNEL_RESIDENT(norm_forward, THREADS, 4)(const T *x, T *y, row_norm n, int held, i64 rows) {
  __shared__ uint4 ring[2][HELD_FORWARD][THREADS];
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y, step = (i64)gridDim.x * blockDim.y;
  int vectors = (int)n.cols / VEC, thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
  auto ask = [&](i64 r, int side) {
    for (int j = 0, at = my_place(); j < HELD_FORWARD; j++, at += (int)blockDim.x)
      if (r < rows && at < vectors) fetch(&ring[side][j][thread], x + r * n.cols + at * VEC);
    end_of_fetches();
  };
  for (; !held && row < rows; row += step) norm_unheld(n, x + row * n.cols, y + row * n.cols, row);
  if (row >= rows) return;
  ask(row, 0);
  ask(row + step, 1);
  for (int side = 0; row < rows; row += step, side ^= 1) {
    uint4 in[HELD_FORWARD];
    await_fetches<1>();
#pragma unroll
    for (int j = 0; j < HELD_FORWARD; j++)
      in[j] =
          (int)threadIdx.x + j * (int)blockDim.x < vectors ? ring[side][j][thread] : make_uint4(0, 0, 0, 0);
    float sum = sum_of(in);
    ask(row + 2 * step, side);
    norm_held(n, in, sum, y, row);
  }
}

/* in := round(in + other) */
__device__ inline void add_held(uint4 (&in)[HELD_FORWARD], const uint4 (&other)[HELD_FORWARD]) {
#pragma unroll
  for (int j = 0; j < HELD_FORWARD; j++) {
    float u[VEC], v[VEC];
    unpack(in[j], u), unpack(other[j], v);
    for (int i = 0; i < VEC; i++) u[i] += v[i];
    in[j] = pack(u);
  }
}

/* sum = round(a + b), y = norm(sum): what add and norm give one after the other. sum may be NULL; y and sum
 * may be a or b. */
KERNEL_RESIDENT(add_norm, THREADS, 4)
(const T *a, const T *b, T *sum, T *y, row_norm n, int held, i64 rows) {
  i64 row = (i64)blockIdx.x * blockDim.y + threadIdx.y, step = (i64)gridDim.x * blockDim.y;
  uint4 in[HELD_FORWARD], other[HELD_FORWARD];
  for (; row < rows; row += step) {
    i64 base = row * n.cols;
    if (!held) {
      T *to = sum ? sum : y; /* from where a thread reads back what it wrote itself */
      for (i64 i = base + threadIdx.x; i < base + n.cols; i += blockDim.x)
        put(to + i, get(a + i) + get(b + i));
      norm_unheld(n, to + base, y + base, row);
      continue;
    }
    hold(a, row, n.cols, in), hold(b, row, n.cols, other);
    add_held(in, other);
#pragma unroll
    for (int j = 0; j < HELD_FORWARD; j++) {
      i64 at = threadIdx.x + j * blockDim.x;
      if (sum && at < n.cols / VEC) *(uint4 *)(sum + base + at * VEC) = in[j];
    }
    norm_held(n, in, sum_of(in), y, row);
  }
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

/* What a thread holds of dy and of x for the row it works on and for the next one: [2][2 HELD_BACKWARD]
 * vectors of each thread of the block. At the end the groups' sums take the same memory. */
extern __shared__ uint4 g_ring[];

template <int H> __device__ inline uint4 *ring_place(int side, int vector) {
  int threads = (int)(blockDim.x * blockDim.y), thread = (int)(threadIdx.y * blockDim.x + threadIdx.x);
  return g_ring + (side * 3 * H + vector) * threads + thread;
}

template <int H> __device__ inline void ask_row(const norm_back &n, i64 row, i64 end, int side) {
  int place = my_place();
#pragma unroll
  for (int j = 0; j < H; j++) {
    int at = place + j * (int)blockDim.x;
    if (row >= end || at >= (int)n.cols / VEC) continue;
    fetch(ring_place<H>(side, j), n.dy + row * n.cols + at * VEC);
    fetch(ring_place<H>(side, H + j), n.x + row * n.cols + at * VEC);
    if (n.add) fetch(ring_place<H>(side, 2 * H + j), n.dx + row * n.cols + at * VEC);
  }
  end_of_fetches();
}

/* With xhat = (x - mean) rstd and g = dy w: dx = rstd (g - mean(g) - xhat mean(g xhat)), that is
 * rstd g - far - near x; no mean(g) for RMSNorm. dw, db: the thread's running sums. */
template <int H>
__device__ inline void back_row(const norm_back &n, i64 row, int side, float mean, float rstd,
                                float (&dw)[H][VEC], float (&db)[H][VEC]) {
  int vectors = (int)n.cols / VEC, place = my_place();
  float d[VEC], x[VEC], w[VEC], shift = -mean * rstd;
  float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < H; j++) {
    int at = place + j * (int)blockDim.x;
    if (at >= vectors) continue;
    unpack(*ring_place<H>(side, j), d), unpack(*ring_place<H>(side, H + j), x);
    load_floats(n.w + at * VEC, w);
    for (int i = 0; i < VEC; i++) {
      float dxhat = d[i] * fmaf(x[i], rstd, shift);
      dw[j][i] += dxhat, sum.y = fmaf(dxhat, w[i], sum.y);
    }
    for (int i = 0; n.layer && i < VEC; i++) db[j][i] += d[i], sum.x = fmaf(d[i], w[i], sum.x);
  }
  if (!n.dx) return;
  sum = group_sum(sum);
  float mean_gx = sum.y / (float)n.cols, near = rstd * rstd * mean_gx;
  float far = rstd * (sum.x / (float)n.cols + shift * mean_gx);
#pragma unroll
  for (int j = 0; j < H; j++) {
    int at = place + j * (int)blockDim.x;
    if (at >= vectors) continue;
    unpack(*ring_place<H>(side, j), d), unpack(*ring_place<H>(side, H + j), x);
    load_floats(n.w + at * VEC, w);
    for (int i = 0; i < VEC; i++) d[i] = fmaf(-near, x[i], fmaf(rstd, d[i] * w[i], -far));
    if (n.add) {
      unpack(*ring_place<H>(side, 2 * H + j), x);
      for (int i = 0; i < VEC; i++) d[i] += x[i];
    }
    store_vector(n.dx + row * n.cols + at * VEC, d);
  }
}

/* The groups' sums of a column, added in order, into the block's row of the partial sums. */
template <int H> __device__ inline void add_groups(const float (&mine)[H][VEC], float *partial, i64 cols) {
  float *part = (float *)g_ring; /* [groups, cols], less than a quarter of it */
  if (!partial) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < H; j++)
    for (int i = 0; i < VEC; i++) {
      i64 col = (threadIdx.x + j * blockDim.x) * VEC + i;
      if (col < cols) part[threadIdx.y * cols + col] = mine[j][i];
    }
  __syncthreads();
  for (i64 col = threadIdx.y * blockDim.x + threadIdx.x; col < cols; col += blockDim.x * blockDim.y) {
    float sum = part[col];
    for (unsigned g = 1; g < blockDim.y; g++) sum += part[g * cols + col];
    partial[blockIdx.x * cols + col] = sum;
  }
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

template <int H> __device__ inline void back_rows(const norm_back &n, i64 begin, i64 end) {
  float dw[H][VEC] = {}, db[H][VEC] = {}, mean = 0.0f, rstd = 0.0f;
  i64 row = begin + threadIdx.y;
  if (row < end) mean = n.mean ? n.mean[row] : 0.0f, rstd = n.rstd[row];
  ask_row<H>(n, row, end, 0);
  for (int side = 0; row < end; row += blockDim.y, side ^= 1) {
    float next_mean = 0.0f, next_rstd = 0.0f;
    i64 next = row + blockDim.y;
    if (next < end) next_mean = n.mean ? n.mean[next] : 0.0f, next_rstd = n.rstd[next];
    ask_row<H>(n, next, end, side ^ 1);
    await_fetches<1>();
    back_row<H>(n, row, side, mean, rstd, dw, db);
    mean = next_mean, rstd = next_rstd;
  }
  await_fetches<0>();
  add_groups<H>(dw, n.dw, n.cols);
  add_groups<H>(db, n.db, n.cols);
}

/* grid: ceil(rows / step). Threads that hold HELD_BACKWARD vectors, or HELD_WIDE where a group is as large as
 * it may be, or none of them. */
KERNEL_RESIDENT(norm_grad, THREADS, RESIDENT_BACKWARD)(norm_back n, int held) {
  i64 begin = blockIdx.x * n.step, end = begin + n.step < n.rows ? begin + n.step : n.rows;
  if (held) return back_rows<HELD_BACKWARD>(n, begin, end);
  for (i64 row = begin; row < end; row++) back_row_unheld(n, row, row == begin);
}

KERNEL(norm_grad_wide, THREADS)(norm_back n) {
  i64 begin = blockIdx.x * n.step, end = begin + n.step < n.rows ? begin + n.step : n.rows;
  back_rows<HELD_WIDE>(n, begin, end);
}
