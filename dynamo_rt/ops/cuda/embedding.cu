/* SPDX-License-Identifier: Apache-2.0 */
/* Table lookup, its deterministic backward, dropout. */

/* What went wrong first on this device: filled once, read by the host (device/cuda/context.h). */
struct fault {
  int kind; /* 0: nothing */
  int id;
  i64 place, limit;
};
enum { FAULT_ID = 1 };

/* grid: rows. An id outside the table leaves its row alone and is reported. */
extern "C" __global__ void embedding(const int *ids, const float *table, float *y, i64 vocab, i64 cols,
                                     fault *report) {
  i64 r = blockIdx.x;
  int id = ids[r];
  if (id < 0 || id >= vocab) {
    if (threadIdx.x == 0 && atomicCAS_system(&report->kind, 0, FAULT_ID) == 0) {
      report->id = id;
      report->place = r;
      report->limit = vocab;
    }
    return;
  }
  for (i64 i = threadIdx.x; i < cols; i += blockDim.x) y[r * cols + i] = table[id * cols + i];
}

/* A block owns one row of the table and up to SCAN * WIDE columns, looks through all ids and adds its rows of
 * dy in order of appearance: no atomics, the same bits every time. A thread looks at WIDE ids in a row, so
 * the order of the threads is the order of the ids; four loads are under way at a time and are added in
 * order. grid (vocab, column ranges), block SCAN. */
enum { SCAN = 256, WIDE = 8 };

extern "C" __global__ void __launch_bounds__(SCAN)
    embedding_grad(const float *dy, const int *ids, float *dtable, i64 rows, i64 cols, int add) {
  __shared__ int warp_count[SCAN / WARP];
  __shared__ int place[SCAN * WIDE];
  int mine = (int)blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  i64 first = (i64)blockIdx.y * SCAN * WIDE + threadIdx.x;
  float sum[WIDE];
  for (int j = 0; j < WIDE; j++) {
    i64 col = first + j * SCAN;
    sum[j] = add && col < cols ? dtable[(i64)mine * cols + col] : 0.0f;
  }
  for (i64 begin = 0; begin < rows; begin += SCAN * WIDE) {
    u32 hits = 0;
    for (int j = 0; j < WIDE; j++) {
      i64 r = begin + (i64)threadIdx.x * WIDE + j;
      if (r < rows && ids[r] == mine) hits |= 1u << j;
    }
    if (!__syncthreads_or(hits != 0)) continue;
    int upto = __popc(hits); /* hits of this lane and those before it */
    for (int step = 1; step < WARP; step *= 2) {
      int other = __shfl_up_sync(0xFFFFFFFFu, upto, step);
      upto += lane >= step ? other : 0;
    }
    if (lane == WARP - 1) warp_count[warp] = upto;
    __syncthreads();
    int at = upto - __popc(hits), total = 0;
    for (int w = 0; w < SCAN / WARP; w++) {
      at += w < warp ? warp_count[w] : 0;
      total += warp_count[w];
    }
    for (u32 left = hits; left; left &= left - 1)
      place[at++] = (int)threadIdx.x * WIDE + __ffs((int)left) - 1;
    __syncthreads();
    for (int j = 0; j < WIDE; j++) {
      i64 col = first + j * SCAN;
      const float *in = dy + begin * cols + col;
      int k = 0;
      for (; col < cols && k + 4 <= total; k += 4) {
        float a = in[place[k] * cols], b = in[place[k + 1] * cols], c = in[place[k + 2] * cols],
              d = in[place[k + 3] * cols];
        sum[j] += a, sum[j] += b, sum[j] += c, sum[j] += d;
      }
      for (; col < cols && k < total; k++) sum[j] += in[place[k] * cols];
    }
    __syncthreads();
  }
  for (int j = 0; j < WIDE; j++) {
    i64 col = first + j * SCAN;
    if (col < cols) dtable[(i64)mine * cols + col] = sum[j];
  }
}

/* ---- dropout ---- */

struct philox {
  u32 word[4];
};

/* Philox4x32-10, the text of dynamo_rt/base/philox.h */
__device__ inline philox philox_at(u64 seed, u64 site, u64 index, u64 step) {
  u64 key = seed * 0x9E3779B97F4A7C15ull ^ site;
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
  u32 c0 = (u32)index, c1 = (u32)(index >> 32), c2 = (u32)step, c3 = (u32)(step >> 32);
  for (int round = 0; round < 10; round++) {
    u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
    u32 n0 = (u32)(p1 >> 32) ^ c1 ^ k0, n2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c1 = (u32)p1, c3 = (u32)p0, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  philox out = {{c0, c1, c2, c3}};
  return out;
}

/* One draw of four channels a thread. x [samples * length, cols]; y may be x. */
extern "C" __global__ void dropout(const float *x, const i64 *ordinal, const i64 *iteration, float *y,
                                   u64 seed, u64 site, float p, float keep, i64 rows, i64 cols, i64 length) {
  i64 quads = (cols + 3) / 4, n = rows * quads;
  u64 step = (u64)*iteration;
  for (i64 k = grid_index(); k < n; k += grid_stride()) {
    i64 r = k / quads, q = k - r * quads;
    u64 index = ((u64)ordinal[r / length] << 40) + (u64)(r % length * quads) + (u64)q;
    philox random = philox_at(seed, site, index, step);
    for (int j = 0; j < 4 && 4 * q + j < cols; j++) {
      i64 at = r * cols + 4 * q + j;
      float uniform = (float)(random.word[j] >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
      y[at] = uniform < p ? 0.0f : x[at] * keep;
    }
  }
}
