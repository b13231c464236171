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

/* A block owns one row of the table and a range of columns, looks through all ids and adds its rows of dy in
 * order of appearance: no atomics, the same bits every time. grid (vocab, column ranges), block SCAN threads
 * with one column each. */
enum { SCAN = 256 };

extern "C" __global__ void __launch_bounds__(SCAN)
    embedding_grad(const float *dy, const int *ids, float *dtable, i64 rows, i64 cols, int add) {
  __shared__ u32 found[SCAN / WARP];
  int mine = (int)blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  i64 col = (i64)blockIdx.y * SCAN + threadIdx.x;
  float *out = dtable + (i64)mine * cols + col;
  float sum = add && col < cols ? *out : 0.0f;
  for (i64 begin = 0; begin < rows; begin += SCAN) {
    i64 r = begin + threadIdx.x;
    u32 bits = __ballot_sync(0xFFFFFFFFu, r < rows && ids[r] == mine);
    if (!__syncthreads_or(bits != 0)) continue;
    if (lane == 0) found[warp] = bits;
    __syncthreads();
    for (int w = 0; w < SCAN / WARP; w++)
      for (u32 left = found[w]; left; left &= left - 1) {
        i64 row = begin + w * WARP + __ffs((int)left) - 1;
        if (col < cols) sum += dy[row * cols + col];
      }
    __syncthreads();
  }
  if (col < cols) *out = sum;
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
