/* SPDX-License-Identifier: Apache-2.0 */
/* Backward on sm_90a, deterministic but for learnable tables: P is recomputed from q, k and lse twice.
 *
 * Two kernels of seven products in place of one of five: dQ needs no sum over CTAs, so there is neither an order
 * to keep nor an fp32 accumulator in memory, and dS never leaves the registers. Both are CTAs of two warpgroups
 * of 64 rows of their block each.
 *
 * flex_bwd_keys: a block of 128 keys against steps of FX_STEP rows of the heads of its group; S^T = K Q^T and
 * dP^T = V dO^T, so that P^T and dS^T feed dV and dK from registers. flex_bwd_rows: a block of 128 rows against
 * steps of FX_STEP keys: dQ += dS K. A step's last product runs while the next one's first do. */
enum { NB = FX_STEP / 8, DB = FX_D / 8 };

/* P and dS at once, from the raw score: no register is left to keep slopes in. */
#define FX_LATE (FX_HAS_SLOPE || FX_HAS_TABLES)

FX_DEVICE void store_block(const fx_flash_view *view, int32_t b, int32_t head, int32_t row, int32_t end, float factor,
                           float (&acc)[DB][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if (row + 8 * r >= end) continue;
    elem *to = at(view, b, head, row + 8 * r) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < DB; n++) store_pair(to + n * 8, acc[n][2 * r] * factor, acc[n][2 * r + 1] * factor);
  }
}

#if FX_KEYS
/* ---- dK, dV ---- */

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

FX_DEVICE uint32_t slot_of(const keys_block *c, int kind, int32_t n) {
  return c->ring + (n % FX_STAGES * RINGS + kind) * STEP_BYTES;
}
FX_DEVICE int32_t head_of(const keys_block *c, int32_t step) {
  return c->head * (c->args->H / c->args->K) + step / 2 / c->blocks;
}

/* Q, dO and the rows' words; one thread. */
FX_DEVICE void fill(const keys_block *c, int32_t i, int32_t n) {
  const fx_flash_args *args = c->args;
  int32_t h = head_of(c, c->list->step[i]), t = c->list->step[i] / 2 % c->blocks * FX_STEP;
  uint32_t barrier = shared_address(&c->slots->full[0][n % FX_STAGES]);
  float(*words)[FX_STEP] = c->rows[n % FX_STAGES];
  int64_t place = ((int64_t)c->b * args->H + h) * args->Tpad + t;
  barrier_expect(barrier, 2 * STEP_BYTES + ROW_WORDS * FX_STEP * 4);
  copy_tile<FX_STEP>(slot_of(c, 0, n), &c->maps->q, c->b, h, t, barrier);
  copy_tile<FX_STEP>(slot_of(c, 1, n), &c->maps->dout, c->b, h, t, barrier);
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
FX_DEVICE void leave(const keys_block *c, int32_t i, int32_t n, int32_t count) {
  if (ring_leave(c->slots, 0, n) && i + FX_STAGES < count) fill(c, i + FX_STAGES, n + FX_STAGES);
  __syncwarp();
}

/* Where a pair of the tile lies: its row, as far as it is there, and its key. */
typedef struct keys_pair {
  int32_t position, kv;
  bool seen;
} keys_pair;

template <bool CHECK>
FX_DEVICE keys_pair pair_at(const keys_block *c, const float (*words)[FX_STEP], int32_t h, int32_t t, int32_t row,
                            int32_t key) {
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

/* s becomes P^T; with slopes or tables also dp becomes dS^T. */
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

FX_DEVICE void keys_step(const keys_block *c, int32_t i, int32_t n, int32_t count, float (&dk)[DB][4],
                         float (&dv)[DB][4]) {
  float s[NB][4], dp[NB][4];
  uint32_t p[NB / 2][4], ds[NB / 2][4];
  int32_t step = c->list->step[i], h = head_of(c, step), t = step / 2 % c->blocks * FX_STEP;
  const float(*words)[FX_STEP] = c->rows[n % FX_STAGES];
  ring_wait(c->slots, 0, n);
  wgmma_fence();
  product_rows<BLOCK_ROWS>(s, c->k, slot_of(c, 0, n));
  wgmma_commit();
  product_rows<BLOCK_ROWS>(dp, c->v, slot_of(c, 1, n));
  wgmma_commit();
  wgmma_wait<1>(s);
  if (i > 0) leave(c, i - 1, n - 1, count);
#if FX_LATE
  wgmma_wait<0>(dp);
#endif
  if (step & 1)
    keys_weights<false>(c, words, h, t, s, dp);
  else
    keys_weights<true>(c, words, h, t, s, dp);
  to_operand(s, p);
  wgmma_fence();
  product_registers(dv, p, slot_of(c, 1, n));
  wgmma_commit();
#if !FX_LATE
  wgmma_wait<1>(dp);
  keys_gradients(words, s, dp);
#endif
  to_operand(dp, ds);
  wgmma_fence();
  product_registers(dk, ds, slot_of(c, 0, n));
  wgmma_commit();
}

/* What FX_STEP rows from block `step` (of FX_STEP) on see of the CTA's 128 keys. */
FX_DEVICE int keys_step_kind(const keys_block *c, int32_t candidate, int32_t first_key) {
  const fx_flash_args *args = c->args;
  int32_t h = head_of(c, 2 * candidate), t = candidate % c->blocks * FX_STEP;
  int kind = EMPTY;
  if (args->runs) {
    kind = listed_kind_of(args, c->b, h, t / ROWS, FX_STEP / ROWS, first_key / KEYS, BLOCK_ROWS / KEYS);
  } else {
    const int32_t *span = args->span + (((int64_t)c->b * args->H + h) * (args->Tpad / ROWS) + t / ROWS) * 2;
    int32_t from = first_key + key_shift(args, first_key);
    for (int32_t r = 0; r < FX_STEP / ROWS; r++, span += 2)
      if (span[0] < from + BLOCK_ROWS && from < span[1]) kind = FX_R || FX_ASK ? PARTIAL : FULL;
  }
  bool edge = first_key + BLOCK_ROWS > args->T_kv || t + FX_STEP > args->T_q;
  return kind == FULL && edge ? PARTIAL : kind;
}

/* grid (K, B, blocks of 128 keys): blocks that most rows see first, if masks are causal */
extern "C" __global__ void __launch_bounds__(THREADS, FX_CTAS)
    flex_bwd_keys(const __grid_constant__ fx_flash_args a, const __grid_constant__ fx_flash_maps maps) {
  extern __shared__ char memory[];
  __shared__ ring slots;
  __shared__ step_list list;
  __shared__ __align__(128) float rows[FX_STAGES][ROW_WORDS][FX_STEP];
  int32_t head = blockIdx.x, b = blockIdx.y, first = blockIdx.z * BLOCK_ROWS, group = threadIdx.x / 128;
  uint32_t k = tiles_begin(memory), v = k + BLOCK_BYTES, arrived = shared_address(&slots.block);
  keys_block c = {&a, &maps, &slots, &list, rows, b, head, (a.T_q + FX_STEP - 1) / FX_STEP, first + group * 64,
                  k + group * BOX, v + group * BOX, v + BLOCK_BYTES};
  float dk[DB][4], dv[DB][4];
  ring_init(&slots);
  if (threadIdx.x == 0) {
    barrier_expect(arrived, 2 * BLOCK_BYTES);
    copy_tile<BLOCK_ROWS>(k, &maps.k, b, head, first, arrived);
    copy_tile<BLOCK_ROWS>(v, &maps.v, b, head, first, arrived);
  }
  clear(dk), clear(dv);
  barrier_wait(arrived, 0);
  int32_t n = 0, candidates = a.H / a.K * c.blocks;
  for (int32_t from = 0; from < candidates; from += THREADS) {
    int32_t mine = from + threadIdx.x;
    int32_t count = steps_keep(&list, mine, mine < candidates ? keys_step_kind(&c, mine, first) : EMPTY);
    if (threadIdx.x == 0)
      for (int i = 0; i < FX_STAGES && i < count; i++) fill(&c, i, n + i);
    __syncwarp();
    for (int32_t i = 0; i < count; i++) keys_step(&c, i, n + i, count, dk, dv);
    wgmma_wait<0>(dk), pin(dv);
    if (count > 0) leave(&c, count - 1, n + count - 1, count);
    n += count;
    __syncthreads();
  }
  int32_t key = c.key + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  store_block(&a.dk, b, head, key, a.T_kv, a.scale, dk);
  store_block(&a.dv, b, head, key, a.T_kv, 1.0f, dv);
}
#else
/* ---- dQ ---- */

typedef struct row_state {
  row_info row;
  float lse2, delta;
} row_state;

typedef struct rows_block {
  const fx_flash_args *args;
  const fx_flash_maps *maps;
  ring *slots;
  const step_list *list;
  int32_t b, h, head;     /* head of the queries, of the keys */
  uint32_t q, dout, ring; /* addresses of this warpgroup's rows, of the ring's tiles */
  row_state rows[2];
} rows_block;

FX_DEVICE row_state row_state_load(const fx_flash_args *args, int32_t b, int32_t h, int32_t t) {
  row_state state;
  int64_t place = ((int64_t)b * args->H + h) * args->Tpad + t;
  state.row = row_load(args, b, h, t);
  state.lse2 = args->lse2[place], state.delta = args->delta[place];
  return state;
}

FX_DEVICE uint32_t slot_of(const rows_block *c, int kind, int32_t n) {
  return c->ring + (n % FX_STAGES * RINGS + kind) * STEP_BYTES;
}
FX_DEVICE void fill(const rows_block *c, int32_t i, int32_t n) {
  uint32_t barrier = shared_address(&c->slots->full[0][n % FX_STAGES]);
  int32_t key = c->list->step[i] / 2 * FX_STEP;
  barrier_expect(barrier, 2 * STEP_BYTES);
  copy_tile<FX_STEP>(slot_of(c, 0, n), &c->maps->k, c->b, c->head, key, barrier);
  copy_tile<FX_STEP>(slot_of(c, 1, n), &c->maps->v, c->b, c->head, key, barrier);
}
FX_DEVICE void leave(const rows_block *c, int32_t i, int32_t n, int32_t count) {
  if (ring_leave(c->slots, 0, n) && i + FX_STAGES < count) fill(c, i + FX_STAGES, n + FX_STAGES);
  __syncwarp();
}

/* s becomes P; with slopes dp becomes dS. */
template <bool CHECK>
FX_DEVICE void rows_weights(const rows_block *c, int32_t key, float (&s)[NB][4], float (&dp)[NB][4]) {
  const fx_flash_args *args = c->args;
  int32_t column = key + threadIdx.x % 4 * 2, shift = key_shift(args, key);
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const row_state *row = &c->rows[e / 2];
      int32_t local = column + n * 8 + e % 2;
      bool exists = !CHECK || local < args->T_kv;
      int32_t kv = (exists ? local : args->T_kv - 1) + shift;
      bool seen = !CHECK || (exists && sees(args, c->b, c->h, &row->row, kv));
      float slope = 1.0f, score = pair_score(args, c->b, c->h, row->row.position, kv, s[n][e], &slope);
      s[n][e] = pair_weight(args, seen, score, s[n][e], row->lse2);
#if FX_LATE
      dp[n][e] = s[n][e] == 0.0f ? 0.0f : pair_gradient(s[n][e], dp[n][e], row->delta) * slope;
#endif
    }
}

FX_DEVICE void rows_step(const rows_block *c, int32_t i, int32_t n, int32_t count, float (&dq)[DB][4]) {
  float s[NB][4], dp[NB][4];
  uint32_t ds[NB / 2][4];
  int32_t step = c->list->step[i], key = step / 2 * FX_STEP;
  ring_wait(c->slots, 0, n);
  wgmma_fence();
  product_rows<BLOCK_ROWS>(s, c->q, slot_of(c, 0, n));
  wgmma_commit();
  product_rows<BLOCK_ROWS>(dp, c->dout, slot_of(c, 1, n));
  wgmma_commit();
  wgmma_wait<1>(s);
  if (i > 0) leave(c, i - 1, n - 1, count);
#if FX_LATE
  wgmma_wait<0>(dp);
#endif
  if (step & 1)
    rows_weights<false>(c, key, s, dp);
  else
    rows_weights<true>(c, key, s, dp);
#if !FX_LATE
  wgmma_wait<0>(dp);
#pragma unroll
  for (int m = 0; m < NB; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) dp[m][e] = pair_gradient(s[m][e], dp[m][e], c->rows[e / 2].delta);
#endif
  to_operand(dp, ds);
  wgmma_fence();
  product_registers(dq, ds, slot_of(c, 0, n));
  wgmma_commit();
}

/* grid (blocks of 128 rows, H, B) */
extern "C" __global__ void __launch_bounds__(THREADS, FX_CTAS)
    flex_bwd_rows(const __grid_constant__ fx_flash_args a, const __grid_constant__ fx_flash_maps maps) {
  extern __shared__ char memory[];
  __shared__ ring slots;
  __shared__ step_list list;
  __shared__ int32_t span[4];
  int32_t block = gridDim.x - 1 - blockIdx.x, group = threadIdx.x / 128, h = blockIdx.y, b = blockIdx.z;
  int32_t t = block * BLOCK_ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  uint32_t q = tiles_begin(memory), dout = q + BLOCK_BYTES, arrived = shared_address(&slots.block);
  rows_block c = {&a, &maps, &slots, &list, b, h, h / (a.H / a.K), q + group * BOX, dout + group * BOX,
                  dout + BLOCK_BYTES};
  float dq[DB][4];
  ring_init(&slots);
  if (threadIdx.x == 0) {
    barrier_expect(arrived, 2 * BLOCK_BYTES);
    copy_tile<BLOCK_ROWS>(q, &maps.q, b, h, block * BLOCK_ROWS, arrived);
    copy_tile<BLOCK_ROWS>(dout, &maps.dout, b, h, block * BLOCK_ROWS, arrived);
  }
  clear(dq);
  for (int r = 0; r < 2; r++) c.rows[r] = row_state_load(&a, b, h, t + 8 * r);
  if (!a.runs) block_span(&a, b, h, block * BLOCK_ROWS, span);
  barrier_wait(arrived, 0);
  int32_t n = 0, candidates = (a.T_kv + FX_STEP - 1) / FX_STEP;
  for (int32_t first = 0; first < candidates; first += THREADS) {
    int32_t mine = first + threadIdx.x;
    int32_t count = steps_keep(&list, mine, row_step_kind(&a, b, h, block * (BLOCK_ROWS / ROWS), span, mine * FX_STEP));
    if (threadIdx.x == 0)
      for (int i = 0; i < FX_STAGES && i < count; i++) fill(&c, i, n + i);
    __syncwarp();
    for (int32_t i = 0; i < count; i++) rows_step(&c, i, n + i, count, dq);
    wgmma_wait<0>(dq);
    if (count > 0) leave(&c, count - 1, n + count - 1, count);
    n += count;
    __syncthreads();
  }
  store_block(&a.dq, b, h, t, a.T_q, a.scale, dq);
}
#endif
