/* SPDX-License-Identifier: Apache-2.0 */
/* Forward: one CTA of four warps a block of 64 rows of one head; key tiles stream past it through two stages
 * of shared memory. Per warp 16 rows: S = Q K^T, online softmax in base 2, O = alpha O + P V with P from
 * registers. FX_PARTIAL 1: merges into a running state (out fp32 not normalised, m, l) instead.
 *
 * Not tuned. One H200, B 2, H 8, T 4096, causal pairs only, with launch and sync: bf16 at D 64, 128, 256 104,
 * 127 and 127 TFLOP/s, fp32 at D 128 (T 2048) 16; backward 96, 113, 89 and 12. */
enum { STEP = FX_D > 128 ? 32 : 64, SUBS = KEYS / STEP, NB = STEP / 8 };

/* Scores to base 2 and -inf where not visible. key: the step's first. */
FX_DEVICE void scores(const fx_flash_args *args, int32_t b, int32_t h, const forward_rows *rows, int32_t key,
                      int kind, float (&s)[NB][4]) {
  int32_t t = threadIdx.x % 4, shift = key_shift(args, key);
  bool check = kind != FULL || key + STEP > args->T_kv;
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int32_t local = key + n * 8 + 2 * t + e % 2;
      bool exists = local < args->T_kv;
      int32_t kv = (exists ? local : args->T_kv - 1) + shift;
      const row_info *row = &rows->row[e / 2];
      bool seen = !check || (exists && (kind == FULL || sees(args, b, h, row, kv)));
#if FX_HAS_FAULT || FX_HAS_SCORE
      float raw = s[n][e] * args->scale;
#endif
#if FX_HAS_FAULT
      if (seen && args->fault && fx_fault(args, b, h, row->position, kv, raw)) *args->fault = FX_FLASH_FAULT;
#endif
#if FX_HAS_SCORE
      float score = fx_score(args, b, h, row->position, kv, raw) * FX_LOG2E;
#else
      float score = s[n][e] * (args->scale * FX_LOG2E);
#endif
      s[n][e] = seen ? score : -FX_INF;
    }
}

/* s becomes exp2(s - m); the running maximum and sum move on and the accumulator is rescaled. */
FX_DEVICE void softmax(forward_rows *rows, float (&s)[NB][4], float (&o)[DB][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = -FX_INF, sum = 0.0f;
#pragma unroll
    for (int n = 0; n < NB; n++) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    float m = fmaxf(rows->m[r], quad_max(top));
    float shift = m == -FX_INF ? 0.0f : m, alpha = exp2_of(rows->m[r] - shift);
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) sum += s[n][e] = exp2_of(s[n][e] - shift);
    rows->m[r] = m;
    rows->l[r] = rows->l[r] * alpha + sum; /* of this lane's columns; lanes are added at the end */
    if (alpha == 1.0f) continue;
#pragma unroll
    for (int n = 0; n < DB; n++) o[n][2 * r] *= alpha, o[n][2 * r + 1] *= alpha;
  }
}

/* Normalised rows and their lse; t: the first of the lane's two rows. */
FX_DEVICE void finish(const fx_flash_args *args, int32_t b, int32_t h, int32_t t, const forward_rows *rows,
                      float (&o)[DB][4]) {
  float inverse[2];
  finish_rows(args, b, h, t, rows, inverse);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if (t + 8 * r >= args->T_q) continue;
    elem *out = at(&args->out, b, h, t + 8 * r) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < DB; n++)
      store_pair(out + n * 8, o[n][2 * r] * inverse[r], o[n][2 * r + 1] * inverse[r]);
  }
}

FX_DEVICE void load_keys(const fx_flash_args *args, int32_t b, int32_t head, int32_t key, elem *k, elem *v) {
  load_tile<STEP>(k, &args->k, b, head, key, args->T_kv);
  load_tile<STEP>(v, &args->v, b, head, key, args->T_kv);
  load_commit();
}

/* grid (blocks of 64 up to Tpad, H, B); 128 threads */
extern "C" __global__ void __launch_bounds__(128) flex_fwd(const __grid_constant__ fx_flash_args a) {
  extern __shared__ __align__(16) char memory[];
  __shared__ int32_t span[2];
  const fx_flash_args *args = &a;
  int32_t block = gridDim.x - 1 - blockIdx.x, h = blockIdx.y, b = blockIdx.z, head = h / (a.H / a.K);
  int32_t warp = threadIdx.x / 32, t = block * ROWS + warp * 16 + threadIdx.x % 32 / 4;
  if (adds_nothing(args, b, h, block, 1)) return;
  elem *q = (elem *)memory, *kv = q + ROWS * PITCH;
  float *piece = (float *)(kv + STAGES * 2 * STEP * PITCH) + warp * 16 * (STEP + 4);
  float o[DB][4];
  forward_rows rows;
  clear(o);
  for (int r = 0; r < 2; r++)
    rows.m[r] = -FX_INF, rows.l[r] = 0.0f, rows.row[r] = row_load(args, b, h, t + 8 * r);
#if FX_PARTIAL
  state_load(args, b, h, t, &rows, o);
#endif
  if (block * ROWS < a.T_q) {
    rows_span(args, b, h, block * ROWS, span);
    load_tile<ROWS>(q, &a.q, b, h, block * ROWS, a.T_q);
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
      float s[NB][4];
      product_rows(s, q + warp * 16 * PITCH, k);
      scores(args, b, h, &rows, key, kind, s);
      softmax(&rows, s, o);
      product_registers(o, s, k + STEP * PITCH, piece);
      __syncthreads();
      if (STAGES == 1 && more) load_keys(args, b, head, next, k, k + STEP * PITCH);
      if (STAGES == 2) stage ^= 1;
    }
    load_wait<0>();
  }
#if FX_PARTIAL
  state_store(args, b, h, t, &rows, o);
#else
  finish(args, b, h, t, &rows, o);
#endif
}
