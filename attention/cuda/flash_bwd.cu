/* SPDX-License-Identifier: Apache-2.0 */
/* Backward, deterministic but for learnable tables: P is recomputed from q, k and lse twice.
 *
 * Behind flash_prepare.cuh. flex_bwd_keys: one CTA a block of 64 keys, which walks over the query heads and
 * row blocks that see it; S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T feed dV and dK from registers.
 * Beyond D = 128 eight warps share the columns of dK and dV by halves. flex_bwd_rows: one CTA a block of 64
 * rows: dQ = dS K. */
#if FX_TYPE == 0
enum { STEP = FX_D > 128 ? 16 : 32 };
#else
enum { STEP = 32 };
#endif
enum {
  SUBS = ROWS / STEP,
  NB = STEP / 8,
  DB = FX_D / 8,
  HALVES = FX_D > 128 ? 2 : 1,
  DH = DB / HALVES,
  KEY_THREADS = 128 * HALVES
};

/* ---- one pair ---- */

/* What a pair's gradients need of its row. */
typedef struct row_state {
  row_info row;
  float lse2, delta;
} row_state;

FX_DEVICE row_state row_state_load(const fx_flash_args *args, int32_t b, int32_t h, int32_t t) {
  row_state state;
  state.row = row_load(args, b, h, t);
  int64_t place = ((int64_t)b * args->H + h) * args->Tpad + t;
  state.lse2 = t < args->Tpad ? args->lse2[place] : FX_INF;
  state.delta = t < args->Tpad ? args->delta[place] : 0.0f;
  return state;
}

/* s: q.k becomes P; dp: dO.v becomes dS. key: local. tables: whether this warp adds to them. */
FX_DEVICE void pair_gradients(const fx_flash_args *args, int32_t b, int32_t h, const row_state *row,
                              int32_t key, int32_t shift, int kind, bool tables, float *s, float *dp) {
  bool exists = key < args->T_kv;
  int32_t kv = (exists ? key : args->T_kv - 1) + shift;
  bool seen = exists && (kind == FULL || sees(args, b, h, &row->row, kv));
  float slope = 1.0f;
#if FX_HAS_SLOPE
  float score = fx_score_slope(args, b, h, row->row.position, kv, *s * args->scale, &slope) * FX_LOG2E;
#elif FX_HAS_SCORE
  float score = fx_score(args, b, h, row->row.position, kv, *s * args->scale) * FX_LOG2E;
#else
  float score = *s * (args->scale * FX_LOG2E);
#endif
  float p = seen ? exp2_of(score - row->lse2) : 0.0f;
  float df = p == 0.0f ? 0.0f : p * (*dp - row->delta);
#if FX_HAS_TABLES
  if (tables && p != 0.0f) fx_tables(args, b, h, row->row.position, kv, *s * args->scale, df);
#endif
  *s = p;
  *dp = p == 0.0f ? 0.0f : df * slope;
}

/* ---- dK, dV ---- */

/* Steps of rows that see the key block: heads of the group, row blocks of each, STEP rows at a time. */
typedef struct row_walk {
  int32_t head, block, sub, kind;
} row_walk;

/* What row block `block` makes of key tile `tile`. */
FX_DEVICE int tile_kind(const fx_flash_args *args, int32_t b, int32_t h, int32_t block, int32_t tile) {
  if (args->runs) {
    int32_t count;
    const int32_t *run = runs_of(args, b, h, block, &count);
    for (; count > 0; count--, run += 3)
      if (run[0] <= tile && tile < run[1]) return run[2];
    return EMPTY;
  }
  const int32_t *span = args->span + (((int64_t)b * args->H + h) * (args->Tpad / ROWS) + block) * 2;
  return kind_by_span(args, span, tile);
}

/* All threads call it; kinds: 128 bytes of shared memory, of the row blocks around the walk's. */
FX_DEVICE bool row_walk_next(row_walk *walk, const fx_flash_args *args, int32_t b, int32_t tile, int32_t end,
                             signed char *kinds) {
  int32_t blocks = (args->T_q + ROWS - 1) / ROWS;
  if (++walk->sub < SUBS && walk->block * ROWS + walk->sub * STEP < args->T_q) return true;
  walk->sub = 0;
  for (;;) {
    if (++walk->block == blocks) {
      walk->block = 0;
      if (++walk->head == end) return false;
    }
    if (walk->block % 128 == 0) {
      int32_t mine = walk->block + threadIdx.x;
      __syncthreads();
      if (threadIdx.x < 128)
        kinds[threadIdx.x] = mine < blocks ? tile_kind(args, b, walk->head, mine, tile) : EMPTY;
      __syncthreads();
    }
    walk->kind = kinds[walk->block % 128];
    if (walk->kind != EMPTY) return true;
  }
}

/* Q, dO and the rows' state of a step. */
typedef struct row_stage {
  elem *q, *dout;
  row_state *rows;
} row_stage;

FX_DEVICE void load_rows(const fx_flash_args *args, int32_t b, const row_walk *walk, const row_stage *to) {
  int32_t t = walk->block * ROWS + walk->sub * STEP;
  load_tile<STEP>(to->q, &args->q, b, walk->head, t, args->T_q);
  load_tile<STEP>(to->dout, &args->dout, b, walk->head, t, args->T_q);
  load_commit();
  if (threadIdx.x < STEP) to->rows[threadIdx.x] = row_state_load(args, b, walk->head, t + threadIdx.x);
}

FX_DEVICE void keys_step(const fx_flash_args *args, int32_t b, const row_walk *walk, int32_t key,
                         const row_stage *stage, const elem *k, const elem *v, int32_t column, float *piece,
                         float (&dk)[DH][4], float (&dv)[DH][4]) {
  int32_t lane = threadIdx.x % 32, shift = key_shift(args, key);
  float s[NB][4], dp[NB][4];
  product_rows(s, k, stage->q);
  product_rows(dp, v, stage->dout);
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      pair_gradients(args, b, walk->head, &stage->rows[n * 8 + lane % 4 * 2 + e % 2],
                     key + lane / 4 + e / 2 * 8, shift, walk->kind, column == 0, &s[n][e], &dp[n][e]);
  product_registers(dv, s, stage->dout + column, piece);
  product_registers(dk, dp, stage->q + column, piece);
}

FX_DEVICE void store_keys(const fx_flash_args *args, const fx_flash_view *view, int32_t b, int32_t head,
                          int32_t key, int32_t column, float factor, float (&acc)[DH][4]) {
  int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int32_t row = key + lane / 4 + 8 * r;
    if (row < args->T_kv) give_row(args, view, b, head, row, column + lane % 4 * 2, factor, acc, r);
  }
}

/* grid (blocks of 64 keys, K, B) */
extern "C" __global__ void __launch_bounds__(KEY_THREADS)
    flex_bwd_keys(const __grid_constant__ fx_flash_args a) {
  extern __shared__ __align__(16) char memory[];
  __shared__ signed char kinds[128];
  __shared__ row_state states[STAGES][STEP];
  const fx_flash_args *args = &a;
  int32_t tile = blockIdx.x, head = blockIdx.y, b = blockIdx.z, group = a.H / a.K, warp = threadIdx.x / 32;
  int32_t mine = warp % 4 * 16, key = tile * KEYS + mine, column = warp / 4 * DH * 8;
  elem *k = (elem *)memory, *v = k + KEYS * PITCH, *rows = v + KEYS * PITCH;
  float *piece = (float *)(rows + STAGES * 2 * STEP * PITCH) + warp * 16 * (STEP + 4);
  float dk[DH][4], dv[DH][4];
  clear(dk), clear(dv);
  load_tile<KEYS>(k, &a.k, b, head, tile * KEYS, a.T_kv);
  load_tile<KEYS>(v, &a.v, b, head, tile * KEYS, a.T_kv);
  row_walk walk = {head * group, -1, SUBS - 1, EMPTY};
  bool more = row_walk_next(&walk, args, b, tile, (head + 1) * group, kinds), any = more;
  int stage = 0;
  row_stage current = {rows, rows + STEP * PITCH, states[0]};
  if (more) load_rows(args, b, &walk, &current);
  while (more) {
    row_walk step = walk;
    more = row_walk_next(&walk, args, b, tile, (head + 1) * group, kinds);
    stage = STAGES - 1 - stage;
    row_stage next = {rows + stage * 2 * STEP * PITCH, rows + (stage * 2 + 1) * STEP * PITCH, states[stage]};
    if (STAGES == 2 && more) {
      load_rows(args, b, &walk, &next);
      load_wait<1>();
    } else {
      load_wait<0>();
    }
    __syncthreads();
    keys_step(args, b, &step, key, &current, k + mine * PITCH, v + mine * PITCH, column, piece, dk, dv);
    __syncthreads();
    if (STAGES == 1 && more) load_rows(args, b, &walk, &next);
    current = next;
  }
  load_wait<0>();
  if (FX_PARTIAL && !a.first && !any) return;
  store_keys(args, &a.dk, b, head, key, column, a.scale, dk);
  store_keys(args, &a.dv, b, head, key, column, 1.0f, dv);
}

/* ---- dQ ---- */

FX_DEVICE void load_keys(const fx_flash_args *args, int32_t b, int32_t head, int32_t key, elem *k, elem *v) {
  load_tile<STEP>(k, &args->k, b, head, key, args->T_kv);
  load_tile<STEP>(v, &args->v, b, head, key, args->T_kv);
  load_commit();
}

FX_DEVICE void rows_step(const fx_flash_args *args, int32_t b, int32_t h, const row_state (&rows)[2],
                         int32_t key, int kind, const elem *q, const elem *dout, const elem *k, const elem *v,
                         float *piece, float (&dq)[DB][4]) {
  int32_t t = threadIdx.x % 4, shift = key_shift(args, key);
  float s[NB][4], dp[NB][4];
  product_rows(s, q, k);
  product_rows(dp, dout, v);
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      pair_gradients(args, b, h, &rows[e / 2], key + n * 8 + 2 * t + e % 2, shift, kind, false, &s[n][e],
                     &dp[n][e]);
  product_registers(dq, dp, k, piece);
}

/* grid (blocks of 64 rows, H, B); 128 threads */
extern "C" __global__ void __launch_bounds__(128) flex_bwd_rows(const __grid_constant__ fx_flash_args a) {
  extern __shared__ __align__(16) char memory[];
  __shared__ int32_t span[2];
  const fx_flash_args *args = &a;
  int32_t block = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z, head = h / (a.H / a.K);
  int32_t warp = threadIdx.x / 32, t = block * ROWS + warp * 16 + threadIdx.x % 32 / 4;
  if (adds_nothing(args, b, h, block, 1)) return;
  elem *q = (elem *)memory, *dout = q + ROWS * PITCH, *kv = dout + ROWS * PITCH;
  float *piece = (float *)(kv + STAGES * 2 * STEP * PITCH) + warp * 16 * (STEP + 4);
  float dq[DB][4];
  clear(dq);
  row_state rows[2] = {row_state_load(args, b, h, t), row_state_load(args, b, h, t + 8)};
  rows_span(args, b, h, block * ROWS, span);
  load_tile<ROWS>(q, &a.q, b, h, block * ROWS, a.T_q);
  load_tile<ROWS>(dout, &a.dout, b, h, block * ROWS, a.T_q);
  key_walk walk = walk_begin(args, b, h, block, SUBS);
  bool more = walk_next(&walk, args, span, SUBS);
  int stage = 0;
  if (more) load_keys(args, b, head, walk.tile * KEYS + walk.sub * STEP, kv, kv + STEP * PITCH);
  while (more) {
    int32_t key = walk.tile * KEYS + walk.sub * STEP, kind = walk.kind;
    more = walk_next(&walk, args, span, SUBS);
    int32_t next = walk.tile * KEYS + walk.sub * STEP;
    elem *k = kv + stage * 2 * STEP * PITCH, *other = kv + (STAGES - 1 - stage) * 2 * STEP * PITCH;
    if (STAGES == 2 && more) {
      load_keys(args, b, head, next, other, other + STEP * PITCH);
      load_wait<1>();
    } else {
      load_wait<0>();
    }
    __syncthreads();
    rows_step(args, b, h, rows, key, kind, q + warp * 16 * PITCH, dout + warp * 16 * PITCH, k,
              k + STEP * PITCH, piece, dq);
    __syncthreads();
    if (STAGES == 1 && more) load_keys(args, b, head, next, k, k + STEP * PITCH);
    if (STAGES == 2) stage ^= 1;
  }
  load_wait<0>();
  for (int r = 0; r < 2; r++)
    if (t + 8 * r < a.T_q) give_row(args, &a.dq, b, h, t + 8 * r, threadIdx.x % 4 * 2, a.scale, dq, r);
}
