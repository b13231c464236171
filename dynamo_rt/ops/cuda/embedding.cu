/* SPDX-License-Identifier: Apache-2.0 */
/* Table lookup and its deterministic backward. */

/* A group of blockDim.x threads copies rows, one after the other, and looks up the next id meanwhile. The
 * table holds ids [first, first + held); of another id below vocab the row is zero, and one outside the
 * vocabulary leaves its row alone and is reported. */
KERNEL_RESIDENT(embedding, FLAT, 6)
(const int *ids, const T *table, T *y, i64 rows, i64 first, i64 held, i64 vocab, i64 cols, fault *report) {
  i64 r = (i64)blockIdx.x * blockDim.y + threadIdx.y, step = (i64)gridDim.x * blockDim.y;
  int vectors = aligned(table, y) && cols % VEC == 0 ? (int)(cols / VEC) : 0, group = (int)blockDim.x;
  int id = r < rows ? ids[r] : 0, next = 0;
  for (; r < rows; r += step, id = next) {
    if (r + step < rows) next = ids[r + step];
    if (id < 0 || id >= vocab) {
      if (threadIdx.x == 0) tell(report, FAULT_ID, id, r, vocab);
      continue;
    }
    bool here = id >= first && id - first < held;
    const T *from = table + (here ? id - first : 0) * cols;
    T *to = y + r * cols;
    for (int i = (int)threadIdx.x; i < vectors; i += 2 * group) {
      bool two = i + group < vectors;
      uint4 a = make_uint4(0, 0, 0, 0), b = a;
      if (here) a = load_vector(from + i * VEC);
      if (here && two) b = load_vector(from + (i + group) * VEC);
      *(uint4 *)(to + i * VEC) = a;
      if (two) *(uint4 *)(to + (i + group) * VEC) = b;
    }
    for (i64 i = vectors * VEC + threadIdx.x; i < cols; i += blockDim.x) to[i] = here ? from[i] : T(0);
  }
}

/* ---- backward: sums over runs of equal ids in the order of ops/cuda/index.cu ----
 *
 * A block adds the rows of dy of RUN entries, each thread WIDE columns. A run that lies inside them goes to
 * the table; of one that goes on, the block's part goes to `tail` where it begins there and to `head` where
 * it came from the block before: [blocks, cols] both. embedding_join adds those parts in order: however often
 * an id appears, no block adds more than RUN rows and the sums have one order. */
enum { RUN = 64, AT_ONCE = 8, JOIN_COLS = 32, JOIN_LANES = 8 };

template <int WIDE> __device__ inline uint4 read_wide(const T *p) {
  if constexpr (WIDE == 1)
    return make_uint4(__float_as_uint(get(p)), 0, 0, 0);
  else
    return load_vector(p);
}
template <int WIDE> __device__ inline void add_wide(uint4 in, float (&sum)[WIDE]) {
  float x[WIDE];
  if constexpr (WIDE == 1)
    x[0] = __uint_as_float(in.x);
  else
    unpack(in, x);
  for (int i = 0; i < WIDE; i++) sum[i] += x[i];
}

template <int WIDE> __device__ inline void write_wide(float *to, const float (&x)[WIDE], bool add) {
  if constexpr (WIDE == 1) {
    to[0] = add ? to[0] + x[0] : x[0];
  } else {
    float old[WIDE] = {};
    if (add) load_floats(to, old);
    for (int i = 0; i < WIDE; i += 4)
      *(float4 *)(to + i) =
          make_float4(old[i] + x[i], old[i + 1] + x[i + 1], old[i + 2] + x[i + 2], old[i + 3] + x[i + 3]);
  }
}

template <int WIDE>
__device__ inline void sum_runs(const T *dy, const int *keys, const int *rows, float *dtable, float *head,
                                float *tail, i64 n, i64 cols, int vocab, int add) {
  __shared__ int key[RUN + 2], row[RUN]; /* with the neighbours' keys; -1 where there are none */
  i64 begin = (i64)blockIdx.x * RUN, col = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * WIDE;
  int count = (int)(n - begin < RUN ? n - begin : RUN);
  for (int i = threadIdx.x; i < RUN + 2; i += blockDim.x) {
    i64 at = begin + i - 1;
    key[i] = at >= 0 && at < n ? keys[at] : -1;
    if (i < RUN && begin + i < n) row[i] = rows[begin + i];
  }
  __syncthreads();
  if (col >= cols) return;
  float sum[WIDE] = {};
  bool came = key[0] == key[1];
  for (int k = 0; k < count; k += AT_ONCE) {
    uint4 in[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++)
      if (k + j < count) in[j] = read_wide<WIDE>(dy + row[k + j] * cols + col);
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
      if (k + j >= count) break;
      int id = key[k + j + 1];
      add_wide<WIDE>(in[j], sum);
      bool last = k + j + 1 == count, ends = id != key[k + j + 2];
      if (!ends && !last) continue;
      if (came)
        write_wide<WIDE>(head + blockIdx.x * cols + col, sum, false);
      else if (!ends)
        write_wide<WIDE>(tail + blockIdx.x * cols + col, sum, false);
      else if (id < vocab)
        write_wide<WIDE>(dtable + id * cols + col, sum, add);
      came = false;
      for (int i = 0; i < WIDE; i++) sum[i] = 0.0f;
    }
  }
}

KERNEL(embedding_grad, FLAT)
(const T *dy, const int *keys, const int *rows, float *dtable, float *head, float *tail, i64 n, i64 cols,
 int vocab, int add, int vectors) {
  if (vectors)
    sum_runs<VEC>(dy, keys, rows, dtable, head, tail, n, cols, vocab, add);
  else
    sum_runs<1>(dy, keys, rows, dtable, head, tail, n, cols, vocab, add);
}

#if !T_IS_BF16 /* of no type */
/* The run that begins in block blockIdx.x of embedding_grad and goes on behind it: its tail, then the heads.
 * block (JOIN_COLS, JOIN_LANES), grid.y ceil(cols / JOIN_COLS). */
SINGLE_KERNEL(embedding_join, JOIN_COLS *JOIN_LANES)
(const int *keys, float *dtable, const float *head, const float *tail, i64 n, i64 cols, int vocab, int add) {
  __shared__ float part[JOIN_LANES][JOIN_COLS];
  i64 begin = (i64)blockIdx.x * RUN, end = begin + RUN, col = (i64)blockIdx.y * JOIN_COLS + threadIdx.x;
  if (end >= n) return;
  int id = keys[end - 1];
  if (id != keys[end] || id >= vocab || (begin > 0 && keys[begin - 1] == id)) return;
  float sum = 0.0f;
  i64 at = end + (i64)threadIdx.y * RUN, step = (i64)JOIN_LANES * RUN;
  for (; col < cols && at + 3 * step < n && keys[at + 3 * step] == id; at += 4 * step) {
    const float *in = head + at / RUN * cols + col;
    i64 next = JOIN_LANES * cols;
    float a = in[0], b = in[next], c = in[2 * next], d = in[3 * next];
    sum += a, sum += b, sum += c, sum += d;
  }
  for (; col < cols && at < n && keys[at] == id; at += step) sum += head[at / RUN * cols + col];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  sum = tail[blockIdx.x * cols + col];
  for (int l = 0; l < JOIN_LANES; l++) sum += part[l][threadIdx.x];
  dtable[id * cols + col] = add ? dtable[id * cols + col] + sum : sum;
}
#endif
