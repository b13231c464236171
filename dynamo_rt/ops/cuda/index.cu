/* SPDX-License-Identifier: Apache-2.0 */
/* The places of every id in order of appearance: a stable radix sort of (id, place) by the id, one digit of 8
 * bits a pass. A block takes CHUNK places of a pass, a warp of it a range of them. Keys are ids less
 * `first`; those outside [0, vocab) sort as `vocab`, behind all others. */

enum { DIGITS = 256, BLOCK = 256, WARPS = BLOCK / WARP, CHUNK = 1024, WARP_KEYS = CHUNK / WARPS };

__device__ inline int key_at(const int *keys, i64 i, int first, int vocab) {
  int key = keys[i] - first;
  return key < 0 || key >= vocab ? vocab : key;
}

/* count[digit * blocks + block] */
SINGLE_KERNEL(index_count, BLOCK)(const int *keys, int *count, i64 n, int shift, int first, int vocab) {
  __shared__ int mine[DIGITS];
  i64 begin = (i64)blockIdx.x * CHUNK;
  mine[threadIdx.x] = 0;
  __syncthreads();
  for (int j = 0; j < CHUNK / BLOCK; j++) {
    i64 i = begin + j * BLOCK + threadIdx.x;
    if (i < n) atomicAdd(&mine[key_at(keys, i, first, vocab) >> shift & (DIGITS - 1)], 1);
  }
  __syncthreads();
  count[(i64)threadIdx.x * gridDim.x + blockIdx.x] = mine[threadIdx.x];
}

/* Exclusive sums of count[n], in place; one block of 1024. */
SINGLE_KERNEL(index_scan, 1024)(int *count, i64 n) {
  enum { OWN = 8 };
  __shared__ int part[WARP];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, carry = 0;
  for (i64 begin = 0; begin < n; begin += 1024 * OWN) {
    int own[OWN], total = 0;
    i64 first = begin + (i64)threadIdx.x * OWN;
    for (int j = 0; j < OWN; j++) own[j] = first + j < n ? count[first + j] : 0;
    for (int j = 0; j < OWN; j++) total += own[j];
    int upto = total; /* of this thread and those before it in the warp, then in the block */
    for (int step = 1; step < WARP; step *= 2) {
      int other = __shfl_up_sync(0xFFFFFFFFu, upto, step);
      upto += lane >= step ? other : 0;
    }
    if (lane == WARP - 1) part[warp] = upto;
    __syncthreads();
    int below = 0, all = 0;
    for (int w = 0; w < WARP; w++) {
      below += w < warp ? part[w] : 0;
      all += part[w];
    }
    int at = carry + below + upto - total;
    for (int j = 0; j < OWN; j++) {
      if (first + j < n) count[first + j] = at;
      at += own[j];
    }
    carry += all;
    __syncthreads();
  }
}

/* rows: NULL in the first pass, where the place is the row. */
SINGLE_KERNEL(index_place, BLOCK)
(const int *keys, const int *rows, int *keys_out, int *rows_out, const int *count, i64 n, int shift,
 int first, int vocab) {
  __shared__ int next[WARPS][DIGITS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  i64 begin = (i64)blockIdx.x * CHUNK + warp * WARP_KEYS;
  int key[WARP_KEYS / WARP];
  for (int w = 0; w < WARPS; w++) next[w][threadIdx.x] = 0;
  __syncthreads();
  for (int j = 0; j < WARP_KEYS / WARP; j++) {
    i64 i = begin + j * WARP + lane;
    key[j] = i < n ? key_at(keys, i, first, vocab) : -1;
    if (i < n) atomicAdd(&next[warp][key[j] >> shift & (DIGITS - 1)], 1);
  }
  __syncthreads();
  int at = count[(i64)threadIdx.x * gridDim.x + blockIdx.x];
  for (int w = 0; w < WARPS; w++) {
    int mine = next[w][threadIdx.x];
    next[w][threadIdx.x] = at;
    at += mine;
  }
  __syncthreads();
  for (int j = 0; j < WARP_KEYS / WARP; j++) {
    i64 i = begin + j * WARP + lane;
    int digit = i < n ? key[j] >> shift & (DIGITS - 1) : -1;
    u32 same = __match_any_sync(0xFFFFFFFFu, digit), before = same & ((1u << lane) - 1);
    int to = i < n ? next[warp][digit] + __popc(before) : 0;
    __syncwarp();
    if (i < n && before == 0) next[warp][digit] += __popc(same);
    __syncwarp();
    if (i >= n) continue;
    keys_out[to] = key[j];
    rows_out[to] = rows ? rows[i] : (int)i;
  }
}
