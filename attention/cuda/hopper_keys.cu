/* SPDX-License-Identifier: Apache-2.0 */
/* dK and dV on sm_90a: a block of keys against steps of FX_STEP rows of the heads of its group; S^T = K Q^T
 * and dP^T = V dO^T, so that P^T and dS^T feed dV and dK from registers. */
enum { ROW_WORDS = 2 + 2 * FX_R }; /* lse2, delta, lo, hi of FX_STEP rows */

typedef struct keys_block {
  const fx_flash_args *args;
  const fx_flash_maps *maps;
  ring *slots;
  const step_list *list;
  float (*rows)[ROW_WORDS][FX_STEP];
  int32_t b, head, blocks; /* head of the keys; steps a query head has */
  int32_t key;             /* this warpgroup's first */
  uint32_t k, v, ring;     /* addresses of this warpgroup's rows, of the ring's tiles */
} keys_block;

FX_DEVICE int32_t head_of(const keys_block *c, int32_t step) {
  return c->head * (c->args->H / c->args->K) + step / 2 / c->blocks;
}

/* Q with the rows' words, and dO; one thread. */
FX_DEVICE void fill(const keys_block *c, int kind, int32_t i, uint32_t slot) {
  const fx_flash_args *args = c->args;
  bool q = carries(kind, 0), dout = carries(kind, 1);
  int32_t h = head_of(c, c->list->step[i]), t = c->list->step[i] / 2 % c->blocks * FX_STEP;
  uint32_t barrier = shared_address(&c->slots->full[kind][slot]);
  float(*words)[FX_STEP] = c->rows[slot];
  int64_t place = ((int64_t)c->b * args->H + h) * args->Tpad + t;
  barrier_expect(barrier, (q + dout) * STEP_BYTES + (q ? ROW_WORDS * FX_STEP * 4 : 0));
  if (q) copy_tile<FX_STEP>(tile_at(c->ring, 0, slot), &c->maps->q, c->b, h, t, barrier);
  if (dout) copy_tile<FX_STEP>(tile_at(c->ring, 1, slot), &c->maps->dout, c->b, h, t, barrier);
  if (!q) return;
  copy_words(shared_address(words[0]), args->lse2 + place, FX_STEP * 4, barrier);
  copy_words(shared_address(words[1]), args->delta + place, FX_STEP * 4, barrier);
#if FX_R > 0
#pragma unroll
  for (int r = 0; r < FX_R; r++) {
    int64_t limit = limits_at(args, r, c->b, h) + t;
    copy_words(shared_address(words[2 + 2 * r]), args->lo + limit, FX_STEP * 4, barrier);
    copy_words(shared_address(words[3 + 2 * r]), args->hi + limit, FX_STEP * 4, barrier);
  }
#endif
}
/* Where a pair of the tile lies: its row, as far as it is there, and its key. */
typedef struct keys_pair {
  int32_t position, kv;
  bool seen;
} keys_pair;

template <bool CHECK>
FX_DEVICE keys_pair pair_at(const keys_block *c, const float (*words)[FX_STEP], int32_t h, int32_t t,
                            int32_t row, int32_t key) {
  const fx_flash_args *args = c->args;
  int32_t legal = !CHECK || t + row < args->T_q ? t + row : args->T_q - 1;
  bool exists = !CHECK || key < args->T_kv;
  keys_pair pair;
  row_info info;
  info.position = args->q_bases ? args->q_bases[legal / 128] + legal % 128 : legal;
  pair.position = info.position;
  pair.kv = (exists ? key : args->T_kv - 1) + key_shift(args, c->key);
  pair.seen = true;
  if (!CHECK) return pair;
#if FX_R > 0
#pragma unroll
  for (int r = 0; r < FX_R; r++)
    info.lo[r] = __float_as_int(words[2 + 2 * r][row]), info.hi[r] = __float_as_int(words[3 + 2 * r][row]);
#endif
  pair.seen = exists && t + row < args->T_q && sees(args, c->b, h, &info, pair.kv);
  return pair;
}

/* s becomes P^T; with slopes or tables also dp becomes dS^T, or, where it is still to come, what it will have
 * to be multiplied by. */
template <bool CHECK>
FX_DEVICE void keys_weights(const keys_block *c, const float (*words)[FX_STEP], int32_t h, int32_t t,
                            float (&s)[NB][4], float (&dp)[NB][4]) {
  const fx_flash_args *args = c->args;
  int32_t lane = threadIdx.x % 32, key = c->key + threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int32_t row = n * 8 + lane % 4 * 2 + e % 2;
      keys_pair pair = pair_at<CHECK>(c, words, h, t, row, key + e / 2 * 8);
      float slope = 1.0f, raw = s[n][e];
      float score = pair_score(args, c->b, h, pair.position, pair.kv, raw, &slope);
      float p = s[n][e] = pair_weight(args, pair.seen, score, raw, words[0][row]);
#if FX_LATE
      float df = pair_gradient(p, dp[n][e], words[1][row]);
#if FX_HAS_TABLES
      if (p != 0.0f) fx_tables(args, c->b, h, pair.position, pair.kv, raw * args->scale, df);
#endif
      dp[n][e] = p == 0.0f ? 0.0f : df * slope;
#elif FX_SHARE
      dp[n][e] = !FX_HAS_SLOPE ? p : p == 0.0f ? 0.0f : p * slope;
#endif
    }
}

FX_DEVICE void keys_gradients(const float (*words)[FX_STEP], const float (&s)[NB][4], float (&dp)[NB][4]) {
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      dp[n][e] = pair_gradient(s[n][e], dp[n][e], words[1][n * 8 + threadIdx.x % 4 * 2 + e % 2]);
}

#if FX_SHARE
/* Two warpgroups for 64 keys, whose dK and dV would fill all registers of one: the first makes S^T, dS^T and
 * dK from Q, the second dP^T and dV from dO. P^T and dP^T change hands in shared memory, a thread's elements
 * to the thread in the same place.
 *
 * The products of a step take turns, S | dP | dV | dK: the second warpgroup waits for S before it begins, so
 * that P is made while dP runs, and dS while dV does. Without that both would be done at the same time, and
 * the tensor cores wait for P.
 *
 * Everybody passes each of these barriers once a step, and another one before the same again: no arrival is
 * ever one too many. */
enum { SCORES_DONE = 3, WEIGHTS_WANTED, WEIGHTS_GIVEN, GRADIENTS_GIVEN };
typedef struct exchange {
  uint4 weights[NB / 2][128]; /* P^T, packed as an operand */
  float4 gradients[NB][128];  /* dP^T */
} exchange;

template <int BARRIER> FX_DEVICE void announce(void) {
  asm volatile("bar.arrive %0, 256;" ::"n"(BARRIER) : "memory");
}
template <int BARRIER> FX_DEVICE void await(void) {
  asm volatile("bar.sync %0, 256;" ::"n"(BARRIER) : "memory");
}

FX_DEVICE void give_weights(exchange *between, const uint32_t (&p)[NB / 2][4]) {
  await<WEIGHTS_WANTED>();
#pragma unroll
  for (int n = 0; n < NB / 2; n++)
    between->weights[n][threadIdx.x % 128] = make_uint4(p[n][0], p[n][1], p[n][2], p[n][3]);
  announce<WEIGHTS_GIVEN>();
}
FX_DEVICE void take_weights(const exchange *between, uint32_t (&p)[NB / 2][4]) {
  await<WEIGHTS_GIVEN>();
#pragma unroll
  for (int n = 0; n < NB / 2; n++) {
    uint4 taken = between->weights[n][threadIdx.x % 128];
    p[n][0] = taken.x, p[n][1] = taken.y, p[n][2] = taken.z, p[n][3] = taken.w;
  }
}
/* Nobody reads the former ones any more: their step's dK was issued before the scores that were waited for.
 */
FX_DEVICE void give_gradients(exchange *between, const float (&dp)[NB][4]) {
#pragma unroll
  for (int n = 0; n < NB; n++)
    between->gradients[n][threadIdx.x % 128] = make_float4(dp[n][0], dp[n][1], dp[n][2], dp[n][3]);
  announce<GRADIENTS_GIVEN>();
}
FX_DEVICE void take_gradients(const exchange *between, float (&dp)[NB][4]) {
  await<GRADIENTS_GIVEN>();
#pragma unroll
  for (int n = 0; n < NB; n++) {
    float4 taken = between->gradients[n][threadIdx.x % 128];
    dp[n][0] = taken.x, dp[n][1] = taken.y, dp[n][2] = taken.z, dp[n][3] = taken.w;
  }
}

FX_DEVICE void scores_walk(const keys_block *c, exchange *between, ring_place *at, int32_t count,
                           float (&dk)[DB][4]) {
  float s[NB][4], dp[NB][4];
  uint32_t p[NB / 2][4], before = 0;
  for (int32_t i = 0; i < count; i++) {
    int32_t step = c->list->step[i], h = head_of(c, step), t = step / 2 % c->blocks * FX_STEP;
    const float(*words)[FX_STEP] = c->rows[at->slot];
    uint32_t q = tile_at(c->ring, 0, at->slot);
    ring_wait(c->slots, 0, at);
    product<BLOCK_ROWS>(s, c->k, q);
    wgmma_wait<1>(dk);
    if (i > 0) leave(c, 0, i - 1, before, count);
    wgmma_wait<0>(s);
    announce<SCORES_DONE>();
    if (FX_LATE) take_gradients(between, dp);
    if (step & 1)
      keys_weights<false>(c, words, h, t, s, dp);
    else
      keys_weights<true>(c, words, h, t, s, dp);
    to_operand(s, p);
    give_weights(between, p);
    if (!FX_LATE) take_gradients(between, s), keys_gradients(words, dp, s);
    to_operand(FX_LATE ? dp : s, p);
    add_product(dk, p, q);
    before = at->slot, ring_next(at);
  }
  wgmma_wait<0>(dk);
  leave(c, 0, count - 1, before, count);
}

FX_DEVICE void values_walk(const keys_block *c, exchange *between, ring_place *at, int32_t count,
                           float (&dv)[DB][4]) {
  float dp[NB][4];
  uint32_t p[NB / 2][4], before = 0;
  for (int32_t i = 0; i < count; i++) {
    uint32_t dout = tile_at(c->ring, 1, at->slot);
    announce<WEIGHTS_WANTED>();
    ring_wait(c->slots, 1, at);
    await<SCORES_DONE>();
    product<BLOCK_ROWS>(dp, c->v, dout);
    wgmma_wait<1>(dv);
    if (i > 0) leave(c, 1, i - 1, before, count);
    wgmma_wait<0>(dp);
    give_gradients(between, dp);
    take_weights(between, p);
    add_product(dv, p, dout);
    before = at->slot, ring_next(at);
  }
  wgmma_wait<0>(dv);
  leave(c, 1, count - 1, before, count);
}

/* The list's `count` steps. */
FX_DEVICE void keys_walk(const keys_block *c, ring_place *at, int32_t count, float (&dk)[DB][4],
                         float (&dv)[DB][4]) {
  __shared__ exchange between;
  if (my_group() == 0)
    scores_walk(c, &between, at, count, dk);
  else
    values_walk(c, &between, at, count, dv);
}
#else
/* The list's `count` steps. */
FX_DEVICE void keys_walk(const keys_block *c, ring_place *at, int32_t count, float (&dk)[DB][4],
                         float (&dv)[DB][4]) {
  float s[NB][4], dp[NB][4];
  uint32_t p[NB / 2][4], ds[NB / 2][4], before = 0;
  for (int32_t i = 0; i < count; i++) {
    int32_t step = c->list->step[i], h = head_of(c, step), t = step / 2 % c->blocks * FX_STEP;
    const float(*words)[FX_STEP] = c->rows[at->slot];
    uint32_t q = tile_at(c->ring, 0, at->slot), dout = tile_at(c->ring, 1, at->slot);
    ring_wait(c->slots, 0, at);
    product<BLOCK_ROWS>(s, c->k, q);
    product<BLOCK_ROWS>(dp, c->v, dout);
    wgmma_wait<1>(s);
    if (i > 0) leave(c, 0, i - 1, before, count);
    if (FX_LATE) wgmma_wait<0>(dp);
    if (step & 1)
      keys_weights<false>(c, words, h, t, s, dp);
    else
      keys_weights<true>(c, words, h, t, s, dp);
    to_operand(s, p);
    add_product(dv, p, dout);
    if (!FX_LATE) wgmma_wait<1>(dp), keys_gradients(words, s, dp);
    to_operand(dp, ds);
    add_product(dk, ds, q);
    before = at->slot, ring_next(at);
  }
  wgmma_wait<0>(dk), pin(dv);
  leave(c, 0, count - 1, before, count);
}
#endif

/* What FX_STEP rows from block `step` (of FX_STEP) on see of the CTA's keys. */
FX_DEVICE int keys_step_kind(const keys_block *c, int32_t candidate, int32_t first_key) {
  const fx_flash_args *args = c->args;
  int32_t h = head_of(c, 2 * candidate), t = candidate % c->blocks * FX_STEP;
  int kind = EMPTY;
  if (args->runs) {
    kind = listed_kind(args, c->b, h, t / ROWS, FX_STEP / ROWS, first_key / KEYS, BLOCK_ROWS / KEYS);
  } else {
    const int32_t *span = args->span + (((int64_t)c->b * args->H + h) * (args->Tpad / ROWS) + t / ROWS) * 2;
    int32_t from = first_key + key_shift(args, first_key);
    for (int32_t r = 0; r < FX_STEP / ROWS; r++, span += 2)
      if (span[0] < from + BLOCK_ROWS && from < span[1]) kind = FX_R || FX_ASK ? PARTIAL : FULL;
  }
  bool edge = first_key + BLOCK_ROWS > args->T_kv || t + FX_STEP > args->T_q;
  return kind == FULL && edge ? PARTIAL : kind;
}

/* Everything of the CTA's keys, from `first` on. */
FX_DEVICE void consume(const keys_block *c, step_list *list, int32_t first, int32_t candidates) {
  const fx_flash_args *args = c->args;
#if FX_SHARE
  float dk[DB][4], (&dv)[DB][4] = dk; /* a thread has one or the other */
#else
  float dk[DB][4], dv[DB][4];
#endif
  clear(dk), clear(dv);
  ring_place at = {0, 0};
  meeting all = meeting_of(c->slots);
  bool any = false;
  for (int32_t from = 0; from < candidates; from += CONSUMERS) {
    int32_t mine = from + threadIdx.x;
    int kind = mine < candidates ? keys_step_kind(c, mine, first) : EMPTY;
    int32_t count = steps_keep(list, &all, mine, kind);
    begin_list(c, &at, count, RINGS_USED);
    barrier_wait(shared_address(&c->slots->block), 0);
    if (count > 0) keys_walk(c, &at, count, dk, dv);
    any |= count > 0;
    meet(&all);
  }
  if (FX_PARTIAL && !args->first && !any) return;
  if (!FX_SHARE || my_group() == 0)
    give_tile(args, &args->dk, &c->maps->dk, c->b, c->head, c->key, args->T_kv, c->k, args->scale, dk);
  if (!FX_SHARE || my_group() == 1)
    give_tile(args, &args->dv, &c->maps->dv, c->b, c->head, c->key, args->T_kv, c->v, 1.0f, dv);
}

/* grid (K, B, blocks of keys): blocks that most rows see first, if masks are causal */
extern "C" __global__ void __launch_bounds__(THREADS, FX_CTAS)
    flex_bwd_keys(const __grid_constant__ fx_flash_args a, const __grid_constant__ fx_flash_maps maps) {
  extern __shared__ char memory[];
  __shared__ ring slots;
  __shared__ step_list list;
  __shared__ __align__(128) float rows[FX_STAGES][ROW_WORDS][FX_STEP];
  int32_t head = blockIdx.x, b = blockIdx.y, first = blockIdx.z * BLOCK_ROWS;
  int32_t part = FX_SHARE ? 0 : my_group(); /* of the block */
  uint32_t k = tiles_begin(memory), v = k + BLOCK_BYTES, arrived = shared_address(&slots.block);
  keys_block c = {&a,
                  &maps,
                  &slots,
                  &list,
                  rows,
                  b,
                  head,
                  (a.T_q + FX_STEP - 1) / FX_STEP,
                  first + part * 64,
                  k + part * BOX,
                  v + part * BOX,
                  v + BLOCK_BYTES};
  if (threadIdx.x == 0)
    map_prefetch(&maps.q), map_prefetch(&maps.k), map_prefetch(&maps.v), map_prefetch(&maps.dout);
  ring_init(&slots);
  if (threadIdx.x == 0) {
    barrier_expect(arrived, 2 * BLOCK_BYTES);
    copy_tile<BLOCK_ROWS>(k, &maps.k, b, head, first, arrived);
    copy_tile<BLOCK_ROWS>(v, &maps.v, b, head, first, arrived);
  }
  int32_t candidates = a.H / a.K * c.blocks;
#if FX_PRODUCER
  if (my_group() == FX_GROUPS) {
    produce(&c, &list, candidates, RINGS_USED);
  } else {
    registers_take();
    consume(&c, &list, first, candidates);
  }
#else
  consume(&c, &list, first, candidates);
#endif
}
