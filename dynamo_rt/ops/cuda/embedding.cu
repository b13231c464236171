/* SPDX-License-Identifier: Apache-2.0 */
/* Table lookup and its deterministic backward. */

/* A group of blockDim.x threads copies rows, one after the other, and looks up the next id meanwhile. The
 * table holds ids [first, first + held); of another id below vocab the row is zero, and one outside the
 * vocabulary leaves its row alone and is reported. */
KERNEL_RESIDENT(embedding, FLAT, 6)
(const int *ids, const T *table, T *y, i64 rows, i64 first, i64 held, i64 vocab, i64 cols, fault *report) {
  follow();
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

/* ---- backward: sums over the runs of equal ids that index.cu leaves ----
 *
 * A unit of work is a warp, of WIDE columns a lane. Most units take the runs that begin in CHUNK entries and
 * have at most SHORT (which may lie behind the chunk: such runs need no partial sums), with all rows of dy
 * and all old rows of the table of AHEAD entries under way before the first is added: what the table holds is
 * not waited for once a run. Other units take windows of WINDOW entries, and of each longer run the part
 * within; where a run crosses windows, its parts go to `head` (it came from the window before) or `tail` (it
 * begins there), and the last unit to come adds them in order: those of SUPER windows, then those sums.
 * Whoever is last adds the same numbers in the same order, so the bits are always the same, and however often
 * an id appears, no unit adds more than WINDOW rows. On an H200 65 us, with the sort of 11,
 * for 32,768 ids of 50,304 x 768; two rows ahead in 28 warps a multiprocessor, in place of four in 16, take
 * as long. */
enum { CHUNK = 8, SHORT = 16, AHEAD = 4, WINDOW = 32, SUPER = 32, SUM_THREADS = 128 };

struct embedding_sums {
  const T *dy;
  const int *keys, *rows, *first; /* of index.cu */
  float *table;
  float *head, *tail;             /* [windows, cols] */
  float *super_head, *super_tail; /* [ceil(windows / SUPER), cols] */
  int *counters;                  /* [slices][3][windows], zeros */
  i64 cols;
  int n, windows, chunks, clears;  /* clears: WARPs of ids, 0 where the table is added to */
  int vocab, add, slices, vectors; /* slices: of WARP WIDE columns */
};

template <int WIDE> __device__ inline uint4 read_wide(const T *p) {
  if constexpr (WIDE == 1)
    return make_uint4(__float_as_uint(get(p)), 0, 0, 0);
  else
    return stream_vector(p);
}
template <int WIDE> __device__ inline void add_wide(uint4 in, float (&sum)[WIDE]) {
  float x[WIDE];
  if constexpr (WIDE == 1)
    x[0] = __uint_as_float(in.x);
  else
    unpack(in, x);
  for (int i = 0; i < WIDE; i++) sum[i] += x[i];
}

/* Past L1: other multiprocessors may have written there. */
template <int WIDE> __device__ inline void read_sums(const float *from, float (&x)[WIDE]) {
  if constexpr (WIDE == 1)
    x[0] = __ldcg(from);
  else
    for (int i = 0; i < WIDE; i += 4) {
      float4 v = __ldcg((const float4 *)(from + i));
      x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
}
template <int WIDE> __device__ inline void write_sums(float *to, const float (&x)[WIDE]) {
  if constexpr (WIDE == 1)
    to[0] = x[0];
  else
    for (int i = 0; i < WIDE; i += 4) *(float4 *)(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

/* The columns of a lane: none where `in` is false. */
struct lane_columns {
  int col, slice;
  bool in;
};

/* sum += dy's rows rows[begin .. end), in order */
template <int WIDE>
__device__ inline void add_entries(const embedding_sums &p, const lane_columns &c, int begin, int end,
                                   float (&sum)[WIDE]) {
  int lane = threadIdx.x % WARP, mine = begin + lane < end ? p.rows[begin + lane] : 0;
  int count = end - begin; /* at most WINDOW, a warp */
  for (int e = 0; e < count; e += AHEAD) {
    uint4 x[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      int row = __shfl_sync(0xFFFFFFFFu, mine, (e + j) % WARP);
      if (c.in && e + j < count) x[j] = read_wide<WIDE>(p.dy + row * p.cols + c.col);
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
      if (c.in && e + j < count) add_wide<WIDE>(x[j], sum);
  }
}

/* sum = rows [begin, end) of parts, in order; the first of `lead` instead, unless that is NULL */
template <int WIDE>
__device__ inline void add_parts(const float *lead, const float *parts, int begin, int end, i64 cols,
                                 const lane_columns &c, float (&sum)[WIDE]) {
  for (int i = 0; i < WIDE; i++) sum[i] = 0.0f;
  for (int k = begin; c.in && k < end; k += AHEAD) {
    float x[AHEAD][WIDE];
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
      if (k + j < end)
        read_sums<WIDE>((k + j == begin && lead ? lead : parts) + (i64)(k + j) * cols + c.col, x[j]);
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
      for (int i = 0; i < WIDE && k + j < end; i++) sum[i] += x[j][i];
  }
}

template <int WIDE>
__device__ inline void into_table(const embedding_sums &p, const lane_columns &c, int id,
                                  float (&sum)[WIDE]) {
  float *to = p.table + id * p.cols + c.col, old[WIDE];
  if (!c.in) return;
  if (p.add) read_sums<WIDE>(to, old);
  for (int i = 0; i < WIDE && p.add; i++) sum[i] += old[i];
  write_sums<WIDE>(to, sum);
}

/* Whether this warp is the last of `count` to come here; what the others wrote before can be read then. */
__device__ inline bool last_warp(int *counter, int count) {
  int before = 0;
  __threadfence();
  __syncwarp();
  if (threadIdx.x % WARP == 0) before = atomicAdd(counter, 1);
  before = __shfl_sync(0xFFFFFFFFu, before, 0);
  __threadfence();
  return before == count - 1;
}

/* Window m's part of the run of `id`, entries [begin, end). A counter is that of the window where a run
 * begins (or, for SUPER windows into which it came, of their first): no two runs share one. */
template <int WIDE>
__device__ inline void sum_window(const embedding_sums &p, const lane_columns &c, int id, int m, int begin,
                                  int end) {
  float sum[WIDE] = {};
  int from = m * WINDOW, to = from + WINDOW, w0 = begin / WINDOW, w1 = (end - 1) / WINDOW;
  int s = m / SUPER, s0 = w0 / SUPER, s1 = w1 / SUPER;
  add_entries<WIDE>(p, c, begin > from ? begin : from, end < to ? end : to, sum);
  if (w0 == w1) return into_table<WIDE>(p, c, id, sum);
  if (c.in) write_sums<WIDE>((begin < from ? p.head : p.tail) + m * p.cols + c.col, sum);
  int a = w0 > s * SUPER ? w0 : s * SUPER, b = w1 < (s + 1) * SUPER ? w1 + 1 : (s + 1) * SUPER;
  int *counter = p.counters + c.slice * 3 * p.windows;
  if (!last_warp(counter + (w0 < a ? 0 : p.windows) + a, b - a)) return;
  add_parts<WIDE>(w0 == a ? p.tail : nullptr, p.head, a, b, p.cols, c, sum);
  if (s0 == s1) return into_table<WIDE>(p, c, id, sum);
  if (c.in) write_sums<WIDE>((s0 < s ? p.super_head : p.super_tail) + s * p.cols + c.col, sum);
  if (!last_warp(counter + 2 * p.windows + w0, s1 - s0 + 1)) return;
  add_parts<WIDE>(p.super_tail, p.super_head, s0, s1 + 1, p.cols, c, sum);
  into_table<WIDE>(p, c, id, sum);
}

/* Runs of more than SHORT entries that touch window m. */
template <int WIDE>
__device__ inline void sum_long_runs(const embedding_sums &p, const lane_columns &c, int m) {
  int lane = threadIdx.x % WARP, at = m * WINDOW + lane;
  int id = at < p.n ? p.keys[at] : p.vocab, before = __shfl_up_sync(0xFFFFFFFFu, id, 1);
  bool begins = id < p.vocab && (lane == 0 || before != id);
  int from = begins ? p.first[id] : 0, to = begins ? p.first[id + 1] : 0;
  for (u32 left = __ballot_sync(0xFFFFFFFFu, to - from > SHORT); left; left &= left - 1) {
    int l = __ffs((int)left) - 1;
    sum_window<WIDE>(p, c, __shfl_sync(0xFFFFFFFFu, id, l), m, __shfl_sync(0xFFFFFFFFu, from, l),
                     __shfl_sync(0xFFFFFFFFu, to, l));
  }
}

/* What a warp holds of a chunk: lane l has entry begin - 1 + l, so the chunk is lanes 1 .. CHUNK and its
 * short runs end by lane CHUNK + SHORT - 1. */
struct chunk_runs {
  int id, row;
  u32 take, ends; /* lanes whose entries belong to short runs of the chunk; lanes that end a run */
};

__device__ inline chunk_runs find_runs(const embedding_sums &p, int begin) {
  chunk_runs r;
  int lane = threadIdx.x % WARP, at = begin - 1 + lane;
  bool there = at >= 0 && at < p.n;
  r.id = there ? p.keys[at] : -1; /* behind the end: a run that is left out */
  r.row = there ? p.rows[at] : 0;
  int before = __shfl_up_sync(0xFFFFFFFFu, r.id, 1), after = __shfl_down_sync(0xFFFFFFFFu, r.id, 1);
  int far = __shfl_down_sync(0xFFFFFFFFu, r.id, SHORT);
  u32 begins = __ballot_sync(0xFFFFFFFFu, lane > 0 && r.id != before);
  u32 longer = __ballot_sync(0xFFFFFFFFu, lane < WARP - SHORT && r.id == far);
  r.ends = __ballot_sync(0xFFFFFFFFu, r.id != after || lane == WARP - 1);
  r.take = 0;
  for (u32 left = begins & ((2u << CHUNK) - 2) & ~longer; left; left &= left - 1) {
    u32 one = left & (0u - left), behind = r.ends & ~(one - 1), last = behind & (0u - behind);
    r.take |= (last << 1) - one;
  }
  r.take &= __ballot_sync(0xFFFFFFFFu, r.id >= 0 && r.id < p.vocab);
  return r;
}

/* Runs of at most SHORT entries that begin in the chunk. */
template <int WIDE>
__device__ inline void sum_short_runs(const embedding_sums &p, const lane_columns &c, int begin) {
  chunk_runs r = find_runs(p, begin);
  float sum[WIDE] = {};
  while (r.take) {
    uint4 x[AHEAD];
    float old[AHEAD][WIDE];
    int ids[AHEAD]; /* of a run that ends there, else -1 */
    u32 chosen = r.take;
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      int l = __ffs((int)chosen) - 1, from = l & (WARP - 1); /* l -1: none is left */
      int row = __shfl_sync(0xFFFFFFFFu, r.row, from), id = __shfl_sync(0xFFFFFFFFu, r.id, from);
      ids[j] = l >= 0 && (r.ends >> l & 1) ? id : -1;
      if (l >= 0 && c.in) x[j] = read_wide<WIDE>(p.dy + row * p.cols + c.col);
      if (ids[j] >= 0 && c.in && p.add) read_sums<WIDE>(p.table + ids[j] * p.cols + c.col, old[j]);
      chosen &= chosen - 1;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      if (!r.take) break;
      r.take &= r.take - 1;
      if (c.in) add_wide<WIDE>(x[j], sum);
      if (ids[j] < 0) continue;
      for (int i = 0; i < WIDE && p.add; i++) sum[i] += old[j][i];
      if (c.in) write_sums<WIDE>(p.table + ids[j] * p.cols + c.col, sum);
      for (int i = 0; i < WIDE; i++) sum[i] = 0.0f;
    }
  }
}

/* The columns of a slice, in the rows of those of WARP ids from `begin` on that do not appear, become zeros.
 */
template <int WIDE> __device__ inline void clear_rows(const embedding_sums &p, int slice, int begin) {
  enum { STORED = WIDE == 1 ? 1 : 4 }; /* of a lane at a time */
  int lane = threadIdx.x % WARP, id = begin + lane;
  bool unused = id < p.vocab && p.first[id] == p.first[id + 1];
  const float zeros[STORED] = {};
  for (u32 left = __ballot_sync(0xFFFFFFFFu, unused); left; left &= left - 1) {
    float *row = p.table + (i64)(begin + __ffs((int)left) - 1) * p.cols;
    for (int i = 0; i < WIDE / STORED; i++) {
      int col = ((slice * (WIDE / STORED) + i) * WARP + lane) * STORED;
      if (col < p.cols) write_sums<STORED>(row + col, zeros);
    }
  }
}

/* Windows first: they take longest. */
template <int WIDE> __device__ inline void sum_unit(const embedding_sums &p) {
  i64 unit = grid_index() / WARP;
  int part = (int)(unit / p.slices), slice = (int)(unit - (i64)part * p.slices);
  int col = (slice * WARP + threadIdx.x % WARP) * WIDE;
  lane_columns c = {col, slice, col < p.cols};
  if (part < p.windows)
    sum_long_runs<WIDE>(p, c, part);
  else if (part < p.windows + p.chunks)
    sum_short_runs<WIDE>(p, c, (part - p.windows) * CHUNK);
  else if (part < p.windows + p.chunks + p.clears)
    clear_rows<WIDE>(p, slice, (part - p.windows - p.chunks) * WARP);
}

/* grid: a warp a unit, (windows + chunks + clears) slices of them */
KERNEL_RESIDENT(embedding_grad, SUM_THREADS, 4)(embedding_sums p) {
  follow();
  if (p.vectors)
    sum_unit<VEC>(p);
  else
    sum_unit<1>(p);
}
