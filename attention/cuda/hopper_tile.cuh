/* SPDX-License-Identifier: Apache-2.0 */
/* sm_90a: tiles by TMA, the ring of stages that they pass through, the list of steps of a CTA.
 *
 * A CTA is one or two warpgroups that compute. One has 64 rows of the CTA's block, or two share 64
 * (FX_SHARE): then each reads one of a step's two tiles. With FX_PRODUCER there is one more, which gives its
 * registers to them and fills the slots of the ring, so that who leaves a slot says so and goes on. Without,
 * the last warp that leaves a slot refills it: where several CTAs of a multiprocessor hide what that takes,
 * and need the registers. Which steps there are is found for as many candidates as there are threads that
 * compute.
 *
 * The host defines FX_GROUPS (warpgroups that compute), FX_BLOCK (rows of the block), FX_STEP (keys, or rows,
 * of a step), FX_STAGES and FX_SECOND (slots for the first and for the second tile of a step, the latter at
 * most one fewer), FX_CTAS (of a multiprocessor), FX_PRODUCER, FX_WORDS (a slot holds words of rows, too). */
enum { CONSUMERS = 128 * FX_GROUPS, THREADS = CONSUMERS + 128 * FX_PRODUCER };
enum { WARPS = 4 * FX_GROUPS, BLOCK_ROWS = FX_BLOCK }; /* warps that compute */
#define FX_SHARE (FX_BLOCK < 64 * FX_GROUPS)
enum { COLUMN_BLOCKS = (FX_D + 63) / 64 };
enum { BOX = 64 * 128 }; /* bytes of one copy: 64 rows by 64 columns, also where columns end earlier */

/* ---- barriers ---- */

FX_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
FX_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/* Returns the phase that it belongs to. */
FX_DEVICE uint64_t barrier_arrive(uint32_t barrier) {
  uint64_t phase;
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1];"
               : "=l"(phase)
               : "r"(barrier)
               : "memory");
  return phase;
}
FX_DEVICE bool barrier_try_phase(uint32_t barrier, uint64_t phase) {
  uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "l"(phase)
               : "memory");
  return done != 0;
}
FX_DEVICE bool barrier_try(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}
FX_DEVICE uint64_t nanoseconds(void) {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
/* A copy that never arrives is an error of the launch, not a GPU that hangs: a store to nowhere, because with
 * a trap in the kernel ptxas gives no part of it more registers than it has at entry. */
FX_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  if (barrier_try(barrier, parity)) return;
  uint64_t begin = nanoseconds();
  while (!barrier_try(barrier, parity))
    if (nanoseconds() - begin > 2000000000ull)
      asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0) : "memory");
}

/* ---- copies ---- */

FX_DEVICE void copy_box(uint32_t to, const fx_flash_map *map, int32_t column, int32_t t, int32_t head,
                        int32_t b, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
               "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
               "l"(map), "r"(barrier), "r"(column), "r"(t), "r"(head), "r"(b)
               : "memory");
}
FX_DEVICE void copy_words(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}
/* `COUNT` rows of a head from t on, rows past the end as zeros: COUNT * COLUMN_BLOCKS * 128 bytes. One
 * thread. */
template <int COUNT>
FX_DEVICE void copy_tile(uint32_t to, const fx_flash_map *map, int32_t b, int32_t head, int32_t t,
                         uint32_t barrier) {
#pragma unroll
  for (int c = 0; c < COLUMN_BLOCKS; c++)
#pragma unroll
    for (int r = 0; r < COUNT / 64; r++)
      copy_box(to + (c * (COUNT / 64) + r) * BOX, map, c * 64, t + r * 64, head, b, barrier);
}

/* 64 rows by FX_D of an accumulator, times `factor`, to rows t.. of a head, those past the end left out; all
 * threads of a warpgroup. `from`: their rows of a tile of BLOCK_ROWS, which nobody reads any more. */
template <int NB>
FX_DEVICE void store_tile(const fx_flash_map *map, int32_t b, int32_t head, int32_t t, uint32_t from,
                          const float (&factor)[2], const float (&acc)[NB][4]) {
  int32_t row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 4;
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int n = 0; n < NB; n++) {
      uint32_t to = from + n / 8 * (BLOCK_ROWS * 128) + (row + 8 * r) * 128 + (n % 8 ^ row % 8) * 16 + pair;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(to),
                   "r"(pack(acc[n][2 * r] * factor[r], acc[n][2 * r + 1] * factor[r]))
                   : "memory");
    }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
  if (threadIdx.x % 128 != 0) return;
#pragma unroll
  for (int c = 0; c < COLUMN_BLOCKS; c++)
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(from + c * (BLOCK_ROWS * 128)), "r"(c * 64), "r"(t), "r"(head), "r"(b)
        : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
FX_DEVICE void map_prefetch(const fx_flash_map *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* A warp's warpgroup, known to be the same in all its lanes. */
FX_DEVICE int32_t my_group(void) {
  return __shfl_sync(~0u, threadIdx.x / 128, 0);
}

enum { BLOCK_BYTES = BLOCK_ROWS * COLUMN_BLOCKS * 128, STEP_BYTES = FX_STEP * COLUMN_BLOCKS * 128 };

/* The dynamic shared memory from a multiple of 1024 on. */
FX_DEVICE uint32_t tiles_begin(const char *memory) {
  return (shared_address(memory) + 1023) & ~1023u;
}

/* ---- the ring ---- */

/* Slots of two kinds: whether data is there, and who of those that read it is done with it. Tiles are read by
 * products, which a warp's first lane can answer for; rows' words (FX_WORDS) by all lanes, and each arrives.
 */
enum { RINGS = 2, READERS = FX_SHARE ? 4 : WARPS, ARRIVALS = READERS * (FX_WORDS ? 32 : 1) };
typedef struct ring {
  uint64_t full[RINGS][FX_STAGES], block;
#if FX_PRODUCER || FX_WORDS
  uint64_t left[RINGS][FX_STAGES];
#endif
#if !FX_PRODUCER
  uint32_t warps[RINGS][FX_STAGES]; /* how many have left */
#endif
#if FX_SHARE
  uint64_t all;
#endif
} ring;

FX_DEVICE void ring_init(ring *r) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < RINGS; i++)
      for (int s = 0; s < FX_STAGES; s++) {
        barrier_init(shared_address(&r->full[i][s]), 1);
#if FX_PRODUCER || FX_WORDS
        barrier_init(shared_address(&r->left[i][s]), ARRIVALS);
#endif
#if !FX_PRODUCER
        r->warps[i][s] = 0;
#endif
      }
    barrier_init(shared_address(&r->block), 1);
#if FX_SHARE
    barrier_init(shared_address(&r->all), THREADS);
#endif
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

/* Where all threads of the CTA wait for each other. Where warpgroups do so in the meantime (FX_SHARE), it is
 * a barrier in memory: racecheck mistakes who has passed barrier 0 when other barriers complete while some
 * wait at it. */
typedef struct meeting {
  uint32_t barrier, parity;
} meeting;
#if FX_SHARE
FX_DEVICE meeting meeting_of(const ring *r) {
  meeting all = {shared_address(&r->all), 0};
  return all;
}
FX_DEVICE void meet(meeting *all) {
  barrier_arrive(all->barrier);
  while (!barrier_try(all->barrier, all->parity)) continue;
  all->parity ^= 1;
}
#else
FX_DEVICE meeting meeting_of(const ring *r) {
  meeting all = {0, 0};
  return all;
}
FX_DEVICE void meet(meeting *all) {
  __syncthreads();
}
#endif

/* Where a walk is: a slot, and the parity of its round. */
typedef struct ring_place {
  uint32_t slot, parity;
} ring_place;
FX_DEVICE int32_t slots_of(int ring) {
  return ring == 0 ? FX_STAGES : FX_SECOND;
}
FX_DEVICE void ring_next(ring_place *at, int kind = 0) {
  if (++at->slot == slots_of(kind)) at->slot = 0, at->parity ^= 1;
}
FX_DEVICE void ring_wait(const ring *r, int kind, const ring_place *at) {
  barrier_wait(shared_address(&r->full[kind][at->slot]), at->parity);
}
/* Address of a slot's tile in the ring that begins at `ring`. */
FX_DEVICE uint32_t tile_at(uint32_t ring, int kind, uint32_t slot) {
  return ring + (slot * RINGS + kind) * STEP_BYTES;
}
#if FX_PRODUCER
/* This warp has read a slot. */
FX_DEVICE void ring_leave(ring *r, int kind, uint32_t slot) {
  if (FX_WORDS || threadIdx.x % 32 == 0) barrier_arrive(shared_address(&r->left[kind][slot]));
}
/* All warps have read what was in the slot; one thread of the producer. */
FX_DEVICE void ring_refill(const ring *r, int kind, const ring_place *at) {
  barrier_wait(shared_address(&r->left[kind][at->slot]), at->parity ^ 1);
}
/* Registers of the producer's threads for those that compute: as many as THREADS, with one CTA a
 * multiprocessor, leave. */
FX_DEVICE void registers_give(void) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
FX_DEVICE void registers_take(void) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}
#else
/* This warp has read a slot; true in the one thread that is to refill it. Where only products have read, it
 * is enough that they are complete (wgmma_wait); else that thread has seen all lanes arrive. (It cannot be
 * told by its arrival: lanes that arrive together may all see the same pending count.) */
FX_DEVICE bool ring_leave(ring *r, int kind, uint32_t slot) {
  uint32_t before = 0;
#if FX_WORDS
  uint32_t barrier = shared_address(&r->left[kind][slot]);
  uint64_t phase = barrier_arrive(barrier);
#endif
  if (threadIdx.x % 32 != 0) return false;
  asm volatile("atom.relaxed.cta.shared::cta.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(&r->warps[kind][slot])), "n"(READERS - 1)
               : "memory");
  if (before != READERS - 1) return false;
#if FX_WORDS
  while (!barrier_try_phase(barrier, phase)) continue;
#endif
  return true;
}
#endif

/* ---- the steps of a CTA ---- */

typedef struct step_list {
  int32_t step[CONSUMERS]; /* 2 * candidate + (it is full) */
  int32_t warp[THREADS / 32];
} step_list;

/* Keeps those of the threads' candidates that are not EMPTY, in order; returns how many. All threads call it,
 * when nobody reads the former list any more. */
FX_DEVICE int32_t steps_keep(step_list *list, meeting *threads, int32_t candidate, int kind) {
  uint32_t kept = __ballot_sync(~0u, kind != EMPTY), lane = threadIdx.x % 32;
  int32_t before = 0, all = 0;
  if (lane == 0) list->warp[threadIdx.x / 32] = __popc(kept);
  meet(threads);
  for (int32_t w = 0; w < THREADS / 32; w++) {
    if (w < (int32_t)threadIdx.x / 32) before += list->warp[w];
    all += list->warp[w];
  }
  if (kind != EMPTY) list->step[before + __popc(kept & ((1u << lane) - 1))] = 2 * candidate + (kind == FULL);
  meet(threads);
  return all;
}

/* ---- who fills the slots: the kernel's own `fill(c, kind, i, slot)` copies entry i of the list ---- */

/* This warp has read entry i, which lay in `slot`, of a list of `count`. */
template <typename C> FX_DEVICE void leave(const C *c, int kind, int32_t i, uint32_t slot, int32_t count) {
#if FX_PRODUCER
  ring_leave(c->slots, kind, slot);
#else
  if (ring_leave(c->slots, kind, slot) && i + slots_of(kind) < count) fill(c, kind, i + slots_of(kind), slot);
  __syncwarp();
#endif
}

/* The first entries of a list, whose rings begin at `at`, of two rings or one. */
template <typename C> FX_DEVICE void begin_list(const C *c, const ring_place *at, int32_t count, int rings) {
#if !FX_PRODUCER
  if (threadIdx.x == 0)
    for (int i = 0; i < FX_STAGES && i < count; i++)
      for (int kind = 0; kind < rings; kind++)
        if (i < slots_of(kind)) fill(c, kind, i, (at->slot + i) % slots_of(kind));
  __syncwarp();
#endif
}

#if FX_PRODUCER
/* What the producer does: each ring is filled by a thread of its own. */
template <typename C> FX_DEVICE void produce(const C *c, step_list *list, int32_t candidates, int rings) {
  int32_t kind = threadIdx.x % 128 / 32;
  bool mine = kind < rings && threadIdx.x % 32 == 0;
  ring_place at = {0, 0};
  meeting all = meeting_of(c->slots);
  registers_give();
  for (int32_t first = 0; first < candidates; first += CONSUMERS) {
    int32_t count = steps_keep(list, &all, 0, EMPTY);
    for (int32_t i = 0; mine && i < count; i++) {
      ring_refill(c->slots, kind, &at);
      fill(c, kind, i, at.slot);
      ring_next(&at, kind);
    }
    meet(&all);
  }
}
#endif

/* What run lists say of `keys` key tiles from `tile` on (of 64) for `rows` row blocks from `block` on (of
 * 64). */
FX_DEVICE int listed_kind(const fx_flash_args *args, int32_t b, int32_t h, int32_t block, int32_t rows,
                          int32_t tile, int32_t keys) {
  int32_t some = 0, full = 0, last = (args->T_q + ROWS - 1) / ROWS;
  if (block + rows > last) rows = last - block;
#pragma unroll 2
  for (int32_t r = 0; r < rows; r++) {
    int32_t count;
    const int32_t *run = runs_of(args, b, h, block + r, &count);
    int32_t begin = run[0], end = run[1],
            kind = run[2]; /* of the first, whether or not it is: one latency less */
    while (count-- > 0) {
      int32_t tiles = max(min(end, tile + keys) - max(begin, tile), 0);
      some += tiles, full += kind == FULL ? tiles : 0;
      if (count > 0) run += 3, begin = run[0], end = run[1], kind = run[2];
    }
  }
  return some == 0 ? EMPTY : full == rows * keys ? FULL : PARTIAL;
}

/* Keys of the block's rows from `first` on by limits: some row sees [both[0], both[1]), all rows see
 * [both[2], both[3]). All threads call it. */
FX_DEVICE void block_span(const fx_flash_args *args, int32_t b, int32_t h, int32_t first, int32_t *both) {
  if (threadIdx.x == 0) both[0] = both[3] = 0x7fffffff, both[1] = both[2] = 0;
  __syncthreads();
#if FX_R > 0
  int32_t t = first + threadIdx.x;
  if (threadIdx.x < BLOCK_ROWS && t < args->T_q) {
    row_info row = row_load(args, b, h, t);
#pragma unroll
    for (int r = 0; r < FX_R; r++)
      if (row.lo[r] < row.hi[r]) atomicMin(&both[0], row.lo[r]), atomicMax(&both[1], row.hi[r]);
    atomicMax(&both[2], row.lo[0]), atomicMin(&both[3], row.hi[0]);
  }
#else
  if (threadIdx.x == 0) both[0] = 0, both[1] = 0x7fffffff;
#endif
  __syncthreads();
}

/* What the block's rows see of the FX_STEP keys from `key` on; past the end PARTIAL at most. */
FX_DEVICE int row_step_kind(const fx_flash_args *args, int32_t b, int32_t h, int32_t block,
                            const int32_t *span, int32_t key) {
  int kind = PARTIAL;
  if (key >= args->T_kv) return EMPTY;
  if (args->runs) {
    kind = listed_kind(args, b, h, block, BLOCK_ROWS / ROWS, key / KEYS, FX_STEP / KEYS);
  } else {
    int32_t from = key + key_shift(args, key);
    if (span[0] >= from + FX_STEP || from >= span[1]) return EMPTY;
    if (!FX_ASK && span[2] <= from && from + FX_STEP <= span[3]) kind = FULL;
  }
  return kind == FULL && key + FX_STEP > args->T_kv ? PARTIAL : kind;
}
