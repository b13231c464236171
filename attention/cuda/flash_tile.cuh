/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels share: conversions, accumulators, who sees whom. Compiled by NVRTC behind flash_args.h and
 * a variant's functions, with --fmad=false.
 *
 * The host defines FX_D (64, 96, 128, 256), FX_TYPE (0 fp32, 1 bf16, 2 fp16), FX_R (intervals of limits a
 * row, 0: no limits), FX_ASK (1: partial tiles ask fx_mask).
 *
 * A warp's accumulator is 16 rows by 8 NB columns in the layout of mma.m16n8k16, which wgmma's are too: lane
 * 4 g + t holds of every block of 8 columns row g, columns 2t and 2t + 1 (elements 0, 1), and row g + 8
 * (elements 2, 3). */
#define FX_LOG2E 1.44269504088896340736f
#define FX_LN2 0.69314718055994530942f
#define FX_INF __int_as_float(0x7f800000)

enum { ROWS = 64, KEYS = 64 }; /* of a tile of the run lists */
enum { EMPTY = -1, PARTIAL = 0, FULL = 1 };

#if FX_TYPE == 0
typedef float elem;
#else
typedef unsigned short elem;
#endif
enum { CHUNK = 16 / sizeof(elem), CHUNKS = FX_D / CHUNK }; /* what a thread moves at once */

#define FX_DEVICE static __forceinline__ __device__

/* ---- conversions ---- */

FX_DEVICE float widen(elem x) {
#if FX_TYPE == 0
  return x;
#elif FX_TYPE == 1
  return __uint_as_float((uint32_t)x << 16);
#else
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
  return wide;
#endif
}

/* lo in the lower half */
FX_DEVICE uint32_t pack(float lo, float hi) {
  uint32_t both;
#if FX_TYPE == 2
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(hi), "f"(lo));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(hi), "f"(lo));
#endif
  return both;
}

FX_DEVICE void store_pair(elem *to, float lo, float hi) {
#if FX_TYPE == 0
  *(float2 *)to = make_float2(lo, hi);
#else
  *(uint32_t *)to = pack(lo, hi);
#endif
}

/* 2^x; exactly 0 below -126 */
FX_DEVICE float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

FX_DEVICE elem *at(const fx_flash_view *view, int32_t b, int32_t head, int32_t t) {
  return (elem *)view->data + b * view->batch + head * view->head + t * view->time;
}

/* Row t of a result, times `factor`: a thread's pairs of columns `column` + 8 n, from half `half` of its part
 * of the tile. Rounded to their place, or onto a running sum in fp32: a few pairs at a time, so that what is
 * read fits the registers. */
template <int COUNT>
FX_DEVICE void give_row(const fx_flash_args *args, const fx_flash_view *view, int32_t b, int32_t head,
                        int32_t t, int32_t column, float factor, const float (&acc)[COUNT][4], int half) {
#if FX_PARTIAL
  enum { AT_ONCE = 4 };
  float *sum = (float *)view->data + b * view->batch + head * view->head + t * view->time + column;
#pragma unroll
  for (int first = 0; first < COUNT; first += AT_ONCE) {
    float lo[AT_ONCE] = {}, hi[AT_ONCE] = {};
    if (!args->first)
#pragma unroll
      for (int n = 0; n < AT_ONCE; n++)
        asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
                     : "=f"(lo[n]), "=f"(hi[n])
                     : "l"(sum + (first + n) * 8)
                     : "memory");
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++)
      asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(sum + (first + n) * 8),
                   "f"(lo[n] + acc[first + n][2 * half] * factor),
                   "f"(hi[n] + acc[first + n][2 * half + 1] * factor)
                   : "memory");
  }
#else
  elem *to = at(view, b, head, t) + column;
#pragma unroll
  for (int n = 0; n < COUNT; n++)
    store_pair(to + n * 8, acc[n][2 * half] * factor, acc[n][2 * half + 1] * factor);
#endif
}

FX_DEVICE uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- accumulators ---- */

template <int NB> FX_DEVICE void clear(float (&acc)[NB][4]) {
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = 0.0f;
}

/* Sum and maximum over the four lanes that share a row. */
FX_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
FX_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* ---- who sees whom ---- */

/* Where a row lies in the sequence and the keys it sees by limits; rows past the end see nothing. */
typedef struct row_info {
  int32_t position;
#if FX_R > 0
  int32_t lo[FX_R], hi[FX_R];
#endif
} row_info;

FX_DEVICE int64_t limits_at(const fx_flash_args *args, int r, int32_t b, int32_t h) {
  int64_t list = ((int64_t)r * args->limits_Bm + (args->limits_Bm == 1 ? 0 : b)) * args->limits_Hm;
  return (list + (args->limits_Hm == 1 ? 0 : h)) * args->Tpad;
}

FX_DEVICE row_info row_load(const fx_flash_args *args, int32_t b, int32_t h, int32_t t) {
  row_info row;
  int32_t legal = t < args->T_q ? t : args->T_q - 1;
  row.position = args->q_bases ? args->q_bases[legal / 128] + legal % 128 : legal;
#if FX_R > 0
#pragma unroll
  for (int r = 0; r < FX_R; r++) {
    int64_t place = limits_at(args, r, b, h) + legal;
    row.lo[r] = t < args->T_q ? args->lo[place] : 0;
    row.hi[r] = t < args->T_q ? args->hi[place] : 0;
  }
#endif
  return row;
}

/* Global position of a local key of the same 128: local + shift. */
FX_DEVICE int32_t key_shift(const fx_flash_args *args, int32_t key) {
  return args->kv_bases ? args->kv_bases[key / 128] - key / 128 * 128 : 0;
}

/* In a tile that is not full. key: local and legal; kv: its global position. */
FX_DEVICE bool sees(const fx_flash_args *args, int32_t b, int32_t h, const row_info *row, int32_t kv) {
  bool seen = true;
#if FX_R > 0
  seen = row->lo[0] <= kv && kv < row->hi[0];
#if FX_R > 1
  seen = seen || (row->lo[1] <= kv && kv < row->hi[1]);
#endif
#endif
#if FX_ASK
  seen = seen && fx_mask(args, b, h, row->position, kv);
#endif
  return seen;
}

/* Global keys that the 64 rows from `first` on see by limits: [*from, *to). All threads call it; `both` are
 * two words of shared memory. */
FX_DEVICE void rows_span(const fx_flash_args *args, int32_t b, int32_t h, int32_t first, int32_t *both) {
  if (threadIdx.x == 0) both[0] = 0x7fffffff, both[1] = 0;
  __syncthreads();
#if FX_R > 0
  int32_t t = first + threadIdx.x;
  if (threadIdx.x < ROWS && t < args->T_q) {
    row_info row = row_load(args, b, h, t);
#pragma unroll
    for (int r = 0; r < FX_R; r++)
      if (row.lo[r] < row.hi[r]) atomicMin(&both[0], row.lo[r]), atomicMax(&both[1], row.hi[r]);
  }
#else
  if (threadIdx.x == 0) both[0] = 0, both[1] = 0x7fffffff;
#endif
  __syncthreads();
}

FX_DEVICE const int32_t *runs_of(const fx_flash_args *args, int32_t b, int32_t h, int32_t block,
                                 int32_t *count) {
  int64_t list = ((int64_t)(args->runs_Bm == 1 ? 0 : b) * args->runs_Hm + (args->runs_Hm == 1 ? 0 : h)) *
                     args->runs_blocks +
                 block;
  *count = args->runs_count[list];
  return args->runs + list * args->runs_capacity * 3;
}

/* Whether none of `blocks` blocks of rows from `block` on sees a key: nothing then happens to what is summed
 * up over chunks of keys. */
FX_DEVICE bool adds_nothing(const fx_flash_args *args, int32_t b, int32_t h, int32_t block, int32_t blocks) {
  bool any = !FX_PARTIAL || args->first || !args->runs;
  for (int32_t r = block; r < block + blocks && r < args->runs_blocks && !any; r++) {
    int32_t count;
    runs_of(args, b, h, r, &count);
    any = count > 0;
  }
  return !any;
}

/* Without run lists: what limits say of a key tile. */
FX_DEVICE int kind_by_span(const fx_flash_args *args, const int32_t *span, int32_t tile) {
#if FX_R > 0
  int32_t from = tile * KEYS + key_shift(args, tile * KEYS);
  return span[0] < from + KEYS && from < span[1] ? PARTIAL : EMPTY;
#else
  return FX_ASK ? PARTIAL : FULL;
#endif
}
