/* SPDX-License-Identifier: Apache-2.0 */
/* The places of every id in order of appearance: a counting sort in one kernel. Each block owns a range of
 * ids and reads all of them (a few hundred KB, from L2): it counts those below its range, which is where its
 * part of the output begins without a word between blocks, and counts and places those inside. Nothing
 * depends on how many blocks there are. Keys are ids less `base`; those outside [0, vocab) sort as `vocab`,
 * behind all others. (A radix sort takes three launches for every 8 bits of an id.) */

enum {
  SORT_THREADS = 1024,
  SORT_WARPS = SORT_THREADS / WARP,
  AT_ONCE = __CUDA_ARCH__ >= 900 ? 32 : 16 /* keys of a thread: what registers there are for */
};

struct index_sort {
  const int *ids;
  int *keys, *rows; /* [n]: keys in order, and the place of each */
  int *first;       /* [vocab + 2]: where the entries of each key begin; the last is n */
  int *counters;    /* [count], cleared on the way */
  i64 n, count;
  int base, vocab, range; /* range: ids of a block, at most SORT_THREADS */
};

struct sort_share { /* a warp's part of the list, and its block's range of keys */
  int begin, end;
  int low, width;
};

/* AT_ONCE keys of each lane, WARP apart; behind the warp's share a key that no block owns. */
__device__ inline void read_keys(const index_sort &p, const sort_share &s, int at, int (&key)[AT_ONCE]) {
#pragma unroll
  for (int j = 0; j < AT_ONCE; j++) {
    int i = at + j * WARP + (int)threadIdx.x % WARP;
    key[j] = p.vocab + 1;
    if (i >= s.end) continue;
    key[j] = p.ids[i] - p.base;
    if (key[j] < 0 || key[j] > p.vocab) key[j] = p.vocab;
  }
}

/* next[id - low] += how many of each id these are. Returns how many of the lane's lie below the range. */
__device__ inline int count_keys(const sort_share &s, const int (&key)[AT_ONCE], int *next) {
  int below = 0;
#pragma unroll
  for (int j = 0; j < AT_ONCE; j++) {
    below += key[j] < s.low;
    if ((u32)(key[j] - s.low) < (u32)s.width) atomicAdd(&next[key[j] - s.low], 1);
  }
  return below;
}

/* next[id - low]: where the warp's entries of each id go. */
__device__ inline void place_keys(const index_sort &p, const sort_share &s, int at, const int (&key)[AT_ONCE],
                                  int *next) {
  int lane = threadIdx.x % WARP;
#pragma unroll
  for (int j = 0; j < AT_ONCE; j++) {
    bool in = (u32)(key[j] - s.low) < (u32)s.width;
    if (__ballot_sync(0xFFFFFFFFu, in) == 0) continue;
    u32 same = __match_any_sync(0xFFFFFFFFu, in ? key[j] : -1), before = same & ((1u << lane) - 1);
    int *place = &next[in ? key[j] - s.low : 0], to = in ? *place + __popc(before) : 0;
    __syncwarp();
    if (in && before == 0) *place += __popc(same);
    __syncwarp();
    if (!in) continue;
    p.keys[to] = key[j];
    p.rows[to] = at + j * WARP + lane;
  }
}

/* A thread an id: all warps' entries of it, and with `from` where those of each warp begin. */
__device__ inline int add_warps(const int *next, int range) {
  int sum = 0;
#pragma unroll 8
  for (int w = 0; w < SORT_WARPS; w++) sum += next[w * range];
  return sum;
}
__device__ inline void begin_warps(int *next, int range, int from) {
  enum { STEP = 8 };
  for (int w = 0; w < SORT_WARPS; w += STEP) {
    int count[STEP];
#pragma unroll
    for (int j = 0; j < STEP; j++) count[j] = next[(w + j) * range];
#pragma unroll
    for (int j = 0; j < STEP; j++) next[(w + j) * range] = from, from += count[j];
  }
}

/* Sum of x over the threads before this one. */
__device__ inline int sum_before(int x) {
  __shared__ int total[SORT_WARPS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, upto = x;
  for (int step = 1; step < WARP; step *= 2) {
    int other = __shfl_up_sync(0xFFFFFFFFu, upto, step);
    upto += lane >= step ? other : 0;
  }
  if (lane == WARP - 1) total[warp] = upto;
  __syncthreads();
  for (int w = 0; w < warp; w++) upto += total[w];
  return upto - x;
}

/* grid ceil((vocab + 1) / range); dynamic shared memory: ints [SORT_WARPS][range] */
SINGLE_KERNEL(index_sort_range, SORT_THREADS)(index_sort p) {
  follow();
  extern __shared__ __align__(16) int next[];
  __shared__ int below_all;
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, id = (int)threadIdx.x, own = 0;
  int n = (int)p.n, share = (n + SORT_THREADS - 1) / SORT_THREADS * WARP, begin = warp * share;
  int low = (int)blockIdx.x * p.range, rest = p.vocab + 1 - low;
  sort_share s = {begin, begin + share < n ? begin + share : n, low, rest < p.range ? rest : p.range};
  for (int i = threadIdx.x; i < SORT_WARPS * p.range; i += SORT_THREADS) next[i] = 0;
  for (i64 i = grid_index(); i < p.count; i += grid_stride()) p.counters[i] = 0;
  if (threadIdx.x == 0) below_all = 0;
  __syncthreads();
  int key[AT_ONCE], below = 0, *mine = next + warp * p.range;
  for (int at = s.begin; at < s.end; at += AT_ONCE * WARP) {
    read_keys(p, s, at, key);
    below += count_keys(s, key, mine);
  }
  for (int step = WARP / 2; step > 0; step >>= 1) below += __shfl_xor_sync(0xFFFFFFFFu, below, step);
  if (lane == 0) atomicAdd(&below_all, below);
  __syncthreads();
  if (id < s.width) own = add_warps(next + id, p.range);
  int from = below_all + sum_before(own);
  if (id < s.width) begin_warps(next + id, p.range, from), p.first[low + id] = from;
  if (id < s.width && low + id == p.vocab) p.first[p.vocab + 1] = from + own;
  __syncthreads();
  bool kept = s.end - s.begin <= AT_ONCE * WARP; /* the warp's share is in `key` */
  for (int at = s.begin; at < s.end; at += AT_ONCE * WARP) {
    if (!kept) read_keys(p, s, at, key);
    place_keys(p, s, at, key, mine);
  }
}
