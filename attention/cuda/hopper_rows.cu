/* SPDX-License-Identifier: Apache-2.0 */
/* dQ on sm_90a: a block of rows against steps of FX_STEP keys, dQ += dS K. */
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

/* K and V; one thread. */
FX_DEVICE void fill(const rows_block *c, int kind, int32_t i, uint32_t slot) {
  bool k = carries(kind, 0), v = carries(kind, 1);
  uint32_t barrier = shared_address(&c->slots->full[kind][slot]);
  int32_t key = c->list->step[i] / 2 * FX_STEP;
  barrier_expect(barrier, (k + v) * STEP_BYTES);
  if (k) copy_tile<FX_STEP>(tile_at(c->ring, 0, slot), &c->maps->k, c->b, c->head, key, barrier);
  if (v) copy_tile<FX_STEP>(tile_at(c->ring, 1, slot), &c->maps->v, c->b, c->head, key, barrier);
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

FX_DEVICE void rows_gradients(const rows_block *c, const float (&s)[NB][4], float (&dp)[NB][4]) {
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) dp[n][e] = pair_gradient(s[n][e], dp[n][e], c->rows[e / 2].delta);
}

/* Where V is while K is at `at`: in the only slot of its own ring the rounds take turns as K's two slots do.
 */
static_assert(!FX_APART || (FX_STAGES == 2 && FX_SECOND == 1), "the place of V");
FX_DEVICE ring_place place_of_v(const ring_place *at) {
  ring_place only = {0, at->slot};
  return FX_APART ? only : *at;
}
/* dP of step i is there, and V is not needed any more. */
FX_DEVICE void values_done(const rows_block *c, int32_t i, int32_t count, float (&dp)[NB][4]) {
  wgmma_wait<0>(dp);
  if (FX_APART) leave(c, 1, i, 0, count);
}

/* The list's `count` steps. */
FX_DEVICE void rows_walk(const rows_block *c, ring_place *at, int32_t count, float (&dq)[DB][4]) {
  float s[NB][4], dp[NB][4];
  uint32_t ds[NB / 2][4], before = 0;
  for (int32_t i = 0; i < count; i++) {
    int32_t step = c->list->step[i], key = step / 2 * FX_STEP;
    uint32_t k = tile_at(c->ring, 0, at->slot);
    ring_place v = place_of_v(at);
    ring_wait(c->slots, 0, at);
    product<BLOCK_ROWS>(s, c->q, k);
    if (FX_APART) ring_wait(c->slots, 1, &v);
    product<BLOCK_ROWS>(dp, c->dout, tile_at(c->ring, 1, v.slot));
    wgmma_wait<1>(s);
    if (i > 0) leave(c, 0, i - 1, before, count);
    if (FX_LATE) values_done(c, i, count, dp);
    if (step & 1)
      rows_weights<false>(c, key, s, dp);
    else
      rows_weights<true>(c, key, s, dp);
    if (!FX_LATE) values_done(c, i, count, dp), rows_gradients(c, s, dp);
    to_operand(dp, ds);
    add_product(dq, ds, k);
    before = at->slot, ring_next(at);
  }
  wgmma_wait<0>(dq);
  leave(c, 0, count - 1, before, count);
}

/* Everything of a block of rows; `span` as block_span leaves it. */
FX_DEVICE void consume(rows_block *c, step_list *list, int32_t block, const int32_t *span,
                       int32_t candidates) {
  const fx_flash_args *args = c->args;
  int32_t t = block * BLOCK_ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  float dq[DB][4];
  clear(dq);
  for (int r = 0; r < 2; r++) c->rows[r] = row_state_load(args, c->b, c->h, t + 8 * r);
  ring_place at = {0, 0};
  meeting all = meeting_of(c->slots);
  for (int32_t first = 0; first < candidates; first += CONSUMERS) {
    int32_t mine = first + threadIdx.x;
    int32_t kind = row_step_kind(args, c->b, c->h, block * (BLOCK_ROWS / ROWS), span, mine * FX_STEP);
    int32_t count = steps_keep(list, &all, mine, kind);
    begin_list(c, &at, count, RINGS_USED);
    barrier_wait(shared_address(&c->slots->block), 0);
    if (count > 0) rows_walk(c, &at, count, dq);
    meet(&all);
  }
  give_tile(args, &args->dq, &c->maps->dq, c->b, c->h, (block * FX_GROUPS + my_group()) * 64, args->T_q, c->q,
            args->scale, dq);
}

/* grid (blocks of rows, H, B) */
extern "C" __global__ void __launch_bounds__(THREADS, FX_CTAS)
    flex_bwd_rows(const __grid_constant__ fx_flash_args a, const __grid_constant__ fx_flash_maps maps) {
  extern __shared__ char memory[];
  __shared__ ring slots;
  __shared__ step_list list;
  __shared__ int32_t span[4];
  int32_t block = gridDim.x - 1 - blockIdx.x, group = my_group(), h = blockIdx.y, b = blockIdx.z;
  if (adds_nothing(&a, b, h, block * (BLOCK_ROWS / ROWS), BLOCK_ROWS / ROWS)) return;
  uint32_t q = tiles_begin(memory), dout = q + BLOCK_BYTES, arrived = shared_address(&slots.block);
  rows_block c = {&a,
                  &maps,
                  &slots,
                  &list,
                  b,
                  h,
                  h / (a.H / a.K),
                  q + group * BOX,
                  dout + group * BOX,
                  dout + BLOCK_BYTES};
  if (threadIdx.x == 0)
    map_prefetch(&maps.q), map_prefetch(&maps.k), map_prefetch(&maps.v), map_prefetch(&maps.dout);
  ring_init(&slots);
  if (threadIdx.x == 0) {
    barrier_expect(arrived, 2 * BLOCK_BYTES);
    copy_tile<BLOCK_ROWS>(q, &maps.q, b, h, block * BLOCK_ROWS, arrived);
    copy_tile<BLOCK_ROWS>(dout, &maps.dout, b, h, block * BLOCK_ROWS, arrived);
  }
  if (!a.runs) block_span(&a, b, h, block * BLOCK_ROWS, span);
  int32_t candidates = (a.T_kv + FX_STEP - 1) / FX_STEP;
#if FX_PRODUCER
  if (group == FX_GROUPS) {
    produce(&c, &list, candidates, RINGS_USED);
  } else {
    registers_take();
    consume(&c, &list, block, span, candidates);
  }
#else
  consume(&c, &list, block, span, candidates);
#endif
}
