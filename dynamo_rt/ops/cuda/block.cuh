/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels of this folder begin with: fixed-width types (NVRTC has no headers here), the element type
 * T of this compilation with its 16-byte vectors, and reductions over a block whose order is fixed, so that a
 * kernel gives the same bits every time. All arithmetic is fp32; T is rounded to nearest even at the store.
 */
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned u32;

enum { WARP = 32, MAX_WARPS = 32 };

__device__ inline float warp_sum(float x) {
  for (int step = WARP / 2; step > 0; step >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}
__device__ inline double warp_sum(double x) {
  for (int step = WARP / 2; step > 0; step >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = WARP / 2; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
  return x;
}

/* Every kernel begins with it, before it reads or writes memory: it was launched while the kernel before it
 * on its lane still ran (driver.h, `follows`) and waits here until that one's results can be read. From then
 * on the next kernel may come to the multiprocessors that this one leaves. */
__device__ inline void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- elements ---- */

#if T_IS_BF16
typedef unsigned short T;
#define NAME(name) name##_bf16
#else
typedef float T;
#define NAME(name) name##_f32
#endif
/* A kernel of type T, and one of no type, for blocks of at most `threads`. */
#define KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) NAME(name)
#define KERNEL_RESIDENT(name, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) NAME(name) /* that many a multiprocessor */
#define SINGLE_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name

/* VEC: elements of 16 bytes. FLAT: threads of a pointwise block, EACH: vectors of one thread of it, all of
 * which are under way before the first is used. */
enum { VEC = 16 / sizeof(T), FLAT = 256, EACH = 16 / VEC };

__device__ inline u32 pack_bf16(float low, float high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ inline float low_bf16(u32 both) {
  return __uint_as_float(both << 16);
}
__device__ inline float high_bf16(u32 both) {
  return __uint_as_float(both & 0xFFFF0000u);
}

__device__ inline float get(const T *p) {
#if T_IS_BF16
  return __uint_as_float((u32)*p << 16);
#else
  return *p;
#endif
}
__device__ inline void put(T *p, float x) {
#if T_IS_BF16
  *p = (T)pack_bf16(x, 0.0f);
#else
  *p = x;
#endif
}

__device__ inline uint4 load_vector(const T *p) {
  return *(const uint4 *)p;
}
/* Of what is read once: it is not kept in L1, where what is read again (weights) stays. Coherent, so that a
 * kernel may write where it reads. */
__device__ inline uint4 stream_vector(const T *p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ inline void unpack(uint4 v, float (&x)[VEC]) {
  u32 word[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < 4; i++) {
#if T_IS_BF16
    x[2 * i] = low_bf16(word[i]), x[2 * i + 1] = high_bf16(word[i]);
#else
    x[i] = __uint_as_float(word[i]);
#endif
  }
}
__device__ inline uint4 pack(const float (&x)[VEC]) {
  u32 word[4];
  for (int i = 0; i < 4; i++) {
#if T_IS_BF16
    word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
#else
    word[i] = __float_as_uint(x[i]);
#endif
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}
__device__ inline void store_vector(T *p, const float (&x)[VEC]) {
  *(uint4 *)p = pack(x);
}
/* VEC floats from a place that is a multiple of 16 bytes */
__device__ inline void load_floats(const float *p, float (&x)[VEC]) {
  for (int i = 0; i < VEC; i += 4) {
    float4 v = *(const float4 *)(p + i);
    x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
  }
}

/* Whether vectors may be read or written there; NULL may. */
template <typename... P> __device__ inline bool aligned(const P *...p) {
  return (((u64)p | ...) & 15) == 0;
}

/* exp: to the last bits in fp32, to a few units of 2^-23 where bfloat16 hides them. */
__device__ inline float exponential(float x) {
#if T_IS_BF16
  return __expf(x);
#else
  return expf(x);
#endif
}

/* ---- sums over a block ---- */

/* Sum over the threads of a one-dimensional block, given to all of them; every thread must call. */
template <typename T> __device__ inline T block_sum(T x) {
  __shared__ T part[MAX_WARPS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
  x = warp_sum(x);
  __syncthreads(); /* `part` of an earlier call has been read */
  if (lane == 0) part[warp] = x;
  __syncthreads();
  x = lane < warps ? part[lane] : T(0);
  return warp_sum(x);
}

__device__ inline float block_max(float x) {
  __shared__ float part[MAX_WARPS];
  int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
  x = warp_max(x);
  __syncthreads();
  if (lane == 0) part[warp] = x;
  __syncthreads();
  x = lane < warps ? part[lane] : part[0];
  return warp_max(x);
}

/* ---- sums over a group: the threads of one threadIdx.y, whole warps; at most 15 groups of several ---- */

/* A barrier of the threads of a group. */
__device__ inline void group_barrier() {
  asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "r"(blockDim.x) : "memory");
}

/* Both sums over a group, given to all of its threads; every thread of the group must call. */
__device__ inline float2 group_sum(float2 x) {
  __shared__ float2 part[MAX_WARPS];
  int warps = (int)blockDim.x / WARP, first = (int)threadIdx.y * warps;
  x.x = warp_sum(x.x), x.y = warp_sum(x.y);
  if (warps == 1) return x;
  group_barrier(); /* `part` was read */
  if (threadIdx.x % WARP == 0) part[first + threadIdx.x / WARP] = x;
  group_barrier();
  x = part[first];
  for (int w = 1; w < warps; w++) x.x += part[first + w].x, x.y += part[first + w].y;
  return x;
}
__device__ inline float group_sum(float x) {
  return group_sum(make_float2(x, 0.0f)).x;
}

/* ---- all groups of a block ---- */

__device__ inline u32 shared_address(const void *p) {
  return (u32)__cvta_generic_to_shared(p);
}

/* Where all threads of a block wait for each other while some may still be at barriers of their groups: a
 * barrier in memory, since racecheck mistakes who has passed barrier 0 when others complete while some wait
 * at it. __syncthreads has to follow its beginning, by one thread. */
struct meeting {
  u32 barrier, parity;
};
__device__ inline meeting meeting_begin(u64 *barrier, bool mine) {
  u32 at = shared_address(barrier);
  if (mine)
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(blockDim.x * blockDim.y) : "memory");
  return {at, 0};
}
__device__ inline void meet(meeting &all) {
  asm volatile("{\n.reg .pred done;\n.reg .b64 phase;\n"
               "mbarrier.arrive.shared.b64 phase, [%0];\n"
               "again:\n"
               "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
               "@!done bra again;\n}" ::"r"(all.barrier),
               "r"(all.parity)
               : "memory");
  all.parity ^= 1;
}

#if __CUDA_ARCH__ >= 900
/* ---- rows that bulk copies bring into shared memory, a ring of them for each group ---- */

enum { MAX_STAGES = 6, RING_WARPS = 16 /* of a block */ };

/* [stages][slots][vectors]: rows of `slots` tensors a stage; full[stage] completes when they are there. */
struct row_ring {
  uint4 *space;
  u64 *full;
  int slots, vectors;
};

/* One thread of the group; the block's barrier has to follow before others wait. */
__device__ inline void ring_begin(const row_ring &r, int stages) {
  for (int s = 0; s < stages; s++)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(r.full + s)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void bulk_load(uint4 *to, const T *from, u32 bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

/* The rows at `offset` of a and, as there are slots, of b and c; one thread, when the whole group has read
 * what lay there. */
__device__ inline void fetch_row(const row_ring &r, int stage, i64 offset, const T *a, const T *b,
                                 const T *c) {
  u32 bytes = (u32)r.vectors * 16, barrier = shared_address(r.full + stage);
  uint4 *to = r.space + stage * r.slots * r.vectors;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes * r.slots)
               : "memory");
  bulk_load(to, a + offset, bytes, barrier);
  if (r.slots > 1) bulk_load(to + r.vectors, b + offset, bytes, barrier);
  if (r.slots > 2) bulk_load(to + 2 * r.vectors, c + offset, bytes, barrier);
}

/* parity: of how often the ring has gone round */
__device__ inline void ring_wait(const row_ring &r, int stage, u32 parity) {
  asm volatile("{\n.reg .pred done;\nagain:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n}" ::"r"(shared_address(r.full + stage)),
               "r"(parity)
               : "memory");
}

/* N sums over a group, given to all of its threads. part: [groups][2][warps][N]; `turn` alternates from call
 * to call, so that one barrier a call is enough: who writes a half again has passed the one behind its
 * reading. */
template <int N> __device__ inline void group_sums(float (&v)[N], float *part, int turn) {
  int warps = (int)blockDim.x / WARP;
  float *mine = part + ((int)threadIdx.y * 2 + (turn & 1)) * warps * N;
#pragma unroll
  for (int step = WARP / 2; step > 0; step >>= 1)
#pragma unroll
    for (int i = 0; i < N; i++) v[i] += __shfl_xor_sync(0xFFFFFFFFu, v[i], step);
  if (warps == 1) return __syncwarp();
  for (int i = 0; i < N && threadIdx.x % WARP == 0; i++) mine[(int)threadIdx.x / WARP * N + i] = v[i];
  group_barrier();
#pragma unroll
  for (int i = 0; i < N; i++) {
    v[i] = mine[i];
    for (int w = 1; w < warps; w++) v[i] += mine[w * N + i];
  }
}
#endif

__device__ inline i64 grid_index() {
  return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ inline i64 grid_stride() {
  return (i64)gridDim.x * blockDim.x;
}

/* y[i] = f(a[i], b[i]) for a grid of FLAT threads a block; y may be a or b. */
template <typename F> __device__ inline void map(const T *a, const T *b, T *y, i64 n, F f) {
  i64 vectors = aligned(a, b, y) ? n / VEC : 0, step = (i64)gridDim.x * FLAT * EACH;
  for (i64 first = (i64)blockIdx.x * FLAT * EACH + threadIdx.x; first < vectors; first += step) {
    uint4 in[EACH][2];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      i64 at = first + j * FLAT;
      if (at < vectors) in[j][0] = load_vector(a + at * VEC), in[j][1] = load_vector(b + at * VEC);
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      i64 at = first + j * FLAT;
      float u[VEC], v[VEC];
      unpack(in[j][0], u), unpack(in[j][1], v);
#pragma unroll
      for (int i = 0; i < VEC; i++) u[i] = f(u[i], v[i]);
      if (at < vectors) store_vector(y + at * VEC, u);
    }
  }
  for (i64 i = vectors * VEC + grid_index(); i < n; i += grid_stride()) put(y + i, f(get(a + i), get(b + i)));
}
/* y[i] = f(x[i]) */
template <typename F> __device__ inline void map(const T *x, T *y, i64 n, F f) {
  i64 vectors = aligned(x, y) ? n / VEC : 0, step = (i64)gridDim.x * FLAT * EACH;
  for (i64 first = (i64)blockIdx.x * FLAT * EACH + threadIdx.x; first < vectors; first += step) {
    uint4 in[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++)
      if (first + j * FLAT < vectors) in[j] = load_vector(x + (first + j * FLAT) * VEC);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      float u[VEC];
      unpack(in[j], u);
#pragma unroll
      for (int i = 0; i < VEC; i++) u[i] = f(u[i]);
      if (first + j * FLAT < vectors) store_vector(y + (first + j * FLAT) * VEC, u);
    }
  }
  for (i64 i = vectors * VEC + grid_index(); i < n; i += grid_stride()) put(y + i, f(get(x + i)));
}

/* Philox4x32-10, the text of dynamo_rt/base/philox.h */
struct philox {
  u32 word[4];
};

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

/* What went wrong first on this device: filled once, read by the host (device/cuda/context.h). */
struct fault {
  int kind; /* 0: nothing */
  int id;
  i64 place, limit;
  int *claimed; /* by whoever fills it */
};
enum { FAULT_ID = 1, FAULT_TARGET = 2 };

__device__ inline void tell(fault *report, int kind, int id, i64 place, i64 limit) {
  if (atomicExch(report->claimed, 1) != 0) return;
  report->kind = kind;
  report->id = id;
  report->place = place;
  report->limit = limit;
}
