/* SPDX-License-Identifier: Apache-2.0 */
/* Forward on sm_90a: one CTA a block of rows of one head, steps of FX_STEP keys.
 *
 * Per warpgroup 64 rows: S = Q K^T from shared memory, online softmax in base 2, O += P V with P from
 * registers. Q K^T of the next step is issued ahead of P V of this one, so that the softmax runs while the
 * tensor cores do P V, and other warpgroups fill what gaps are left. FX_PARTIAL 1: merges into a running
 * state. */
enum { NB = FX_STEP / 8, KEY_RING = 0, VALUE_RING = 1 };

typedef struct forward_block {
  const fx_flash_args *args;
  const fx_flash_maps *maps;
  ring *slots;
  const step_list *list;
  int32_t b, h, head; /* head: of the keys */
  uint32_t q, kv;     /* addresses of this warpgroup's rows, of the ring's tiles */
} forward_block;

/* Entry i of the list into a slot. One thread. */
FX_DEVICE void fill(const forward_block *c, int kind, int32_t i, uint32_t slot) {
  uint32_t barrier = shared_address(&c->slots->full[kind][slot]);
  barrier_expect(barrier, STEP_BYTES);
  copy_tile<FX_STEP>(tile_at(c->kv, kind, slot), kind == KEY_RING ? &c->maps->k : &c->maps->v, c->b, c->head,
                     c->list->step[i] / 2 * FX_STEP, barrier);
}

/* Scores of a variant to base 2, -inf where not visible; plain scores stay raw. */
template <bool CHECK>
FX_DEVICE void scores(const forward_block *c, const forward_rows *rows, int32_t key, float (&s)[NB][4]) {
  const fx_flash_args *args = c->args;
  int32_t column = key + threadIdx.x % 4 * 2, shift = key_shift(args, key);
#pragma unroll
  for (int n = 0; n < NB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int32_t local = column + n * 8 + e % 2;
      bool exists = !CHECK || local < args->T_kv;
      int32_t kv = (exists ? local : args->T_kv - 1) + shift;
      const row_info *row = &rows->row[e / 2];
      bool seen = !CHECK || (exists && sees(args, c->b, c->h, row, kv));
#if FX_HAS_FAULT || FX_HAS_SCORE
      float raw = s[n][e] * args->scale;
#endif
#if FX_HAS_FAULT
      if (seen && args->fault && fx_fault(args, c->b, c->h, row->position, kv, raw))
        *args->fault = FX_FLASH_FAULT;
#endif
#if FX_HAS_SCORE
      s[n][e] = fx_score(args, c->b, c->h, row->position, kv, raw) * FX_LOG2E;
#endif
      if (CHECK) s[n][e] = seen ? s[n][e] : -FX_INF;
    }
}

/* s becomes exp2(factor s - m); the running sum moves on; alpha: what the accumulator shrinks by. m is the
 * running maximum, or up to 8 below it: nothing has to shrink then, and 2^8 does no harm. */
FX_DEVICE void softmax(forward_rows *rows, float factor, float (&s)[NB][4], float (&alpha)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float top = -FX_INF, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < NB; n++) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    top = quad_max(top) * factor;
    float m = top > rows->m[r] + 8.0f ? top : rows->m[r], shift = m == -FX_INF ? 0.0f : m;
    alpha[r] = exp2_of(rows->m[r] - shift);
#pragma unroll
    for (int n = 0; n < NB; n++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        sum[e] += s[n][2 * r + e] = exp2_of(__fmaf_rn(s[n][2 * r + e], factor, -shift));
    rows->m[r] = m;
    rows->l[r] =
        rows->l[r] * alpha[r] + (sum[0] + sum[1]); /* of this lane's columns; lanes are added at the end */
  }
}

FX_DEVICE void score_step(const forward_block *c, forward_rows *rows, int32_t step, float (&s)[NB][4],
                          float (&alpha)[2]) {
  int32_t key = step / 2 * FX_STEP;
  if (step & 1)
    scores<false>(c, rows, key, s);
  else
    scores<true>(c, rows, key, s);
  softmax(rows, FX_HAS_SCORE ? 1.0f : c->args->scale * FX_LOG2E, s, alpha);
}

/* What follows in the text is also carried out after these sums and what they are made of. Without this,
 * ptxas puts the wait for P V first of all that comes after a tile's scores, and the softmax does not run
 * while the tensor cores do P V. A loop, whose condition never holds, ends a basic block; one that does
 * nothing would be left out. */
FX_DEVICE void settle(const forward_rows *rows) {
  asm volatile("{.reg .pred p; again: setp.lt.f32 p, %0, 0f00000000; @!p bra done;\n"
               "nanosleep.u32 1; bra again; done:}" ::"f"(rows->l[0] + rows->l[1])
               : "memory");
}

FX_DEVICE void shrink(const float (&alpha)[2], float (&o)[DB][4]) {
  if (!__any_sync(~0u, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < DB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[n][e] *= alpha[e / 2];
}

/* The list's `count` steps. */
FX_DEVICE void walk(const forward_block *c, ring_place *at, int32_t count, forward_rows *rows,
                    float (&o)[DB][4]) {
  float s[NB][4], alpha[2];
  uint32_t p[NB / 2][4];
  ring_place value = *at; /* of the step whose P is at hand; *at is that of the scores */
  begin_list(c, at, count, RINGS);
  barrier_wait(shared_address(&c->slots->block), 0);
  ring_wait(c->slots, KEY_RING, at);
  wgmma_fence();
  product_rows<BLOCK_ROWS>(s, c->q, tile_at(c->kv, KEY_RING, at->slot));
  wgmma_commit();
  wgmma_wait<0>(s);
  leave(c, KEY_RING, 0, at->slot, count);
  score_step(c, rows, c->list->step[0], s, alpha);
  shrink(alpha, o);
  to_operand(s, p);
  ring_next(at);
  for (int32_t i = 1; i < count; i++) {
    ring_wait(c->slots, KEY_RING, at);
    ring_wait(c->slots, VALUE_RING, &value);
    wgmma_fence();
    product_rows<BLOCK_ROWS>(s, c->q, tile_at(c->kv, KEY_RING, at->slot));
    wgmma_commit();
    wgmma_fence();
    product_registers(o, p, tile_at(c->kv, VALUE_RING, value.slot));
    wgmma_commit();
    wgmma_wait<1>(s);
    leave(c, KEY_RING, i, at->slot, count);
    score_step(c, rows, c->list->step[i], s, alpha);
    settle(rows);
    wgmma_wait<0>(o);
    leave(c, VALUE_RING, i - 1, value.slot, count);
    shrink(alpha, o);
    to_operand(s, p);
    value = *at, ring_next(at);
  }
  ring_wait(c->slots, VALUE_RING, &value);
  wgmma_fence();
  product_registers(o, p, tile_at(c->kv, VALUE_RING, value.slot));
  wgmma_commit();
  wgmma_wait<0>(o);
  leave(c, VALUE_RING, count - 1, value.slot, count);
}

/* What a CTA works on; `span` as block_span leaves it. */
typedef struct forward_work {
  int32_t block, h, b;
  const int32_t *span;
} forward_work;

FX_DEVICE void consume(const forward_block *c, const forward_work *w, step_list *list, int32_t candidates) {
  const fx_flash_args *args = c->args;
  int32_t t = w->block * BLOCK_ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  float o[DB][4];
  forward_rows rows;
  clear(o);
  for (int r = 0; r < 2; r++)
    rows.m[r] = -FX_INF, rows.l[r] = 0.0f, rows.row[r] = row_load(args, w->b, w->h, t + 8 * r);
#if FX_PARTIAL
  state_load(args, w->b, w->h, t, &rows, o);
#endif
  ring_place at = {0, 0};
  meeting all = meeting_of(c->slots);
  for (int32_t first = 0; first < candidates; first += CONSUMERS) {
    int32_t mine = first + threadIdx.x;
    int kind = row_step_kind(args, w->b, w->h, w->block * (BLOCK_ROWS / ROWS), w->span, mine * FX_STEP);
    int32_t count = steps_keep(list, &all, mine, kind);
    if (count > 0) walk(c, &at, count, &rows, o);
    meet(&all);
  }
  barrier_wait(shared_address(&c->slots->block), 0); /* also where there was no step */
#if FX_PARTIAL
  state_store(args, w->b, w->h, t, &rows, o);
#else
  float inverse[2];
  finish_rows(args, w->b, w->h, t, &rows, inverse);
  store_tile(&c->maps->out, w->b, w->h, (w->block * FX_GROUPS + my_group()) * 64, c->q, inverse, o);
#endif
}

/* grid (blocks up to Tpad, H, B) */
extern "C" __global__ void __launch_bounds__(THREADS, FX_CTAS)
    flex_fwd(const __grid_constant__ fx_flash_args a, const __grid_constant__ fx_flash_maps maps) {
  extern __shared__ char memory[];
  __shared__ ring slots;
  __shared__ step_list list;
  __shared__ int32_t span[4];
  forward_work w = {(int32_t)(gridDim.x - 1 - blockIdx.x), (int32_t)blockIdx.y, (int32_t)blockIdx.z, span};
  if (adds_nothing(&a, w.b, w.h, w.block * (BLOCK_ROWS / ROWS), BLOCK_ROWS / ROWS)) return;
  uint32_t q = tiles_begin(memory);
  forward_block c = {
      &a, &maps, &slots, &list, w.b, w.h, w.h / (a.H / a.K), q + my_group() * BOX, q + BLOCK_BYTES};
  if (threadIdx.x == 0) map_prefetch(&maps.q), map_prefetch(&maps.k), map_prefetch(&maps.v);
  ring_init(&slots);
  if (threadIdx.x == 0) {
    barrier_expect(shared_address(&slots.block), BLOCK_BYTES);
    copy_tile<BLOCK_ROWS>(q, &maps.q, w.b, w.h, w.block * BLOCK_ROWS, shared_address(&slots.block));
  }
  if (!a.runs) block_span(&a, w.b, w.h, w.block * BLOCK_ROWS, span);
  int32_t candidates = (a.T_kv + FX_STEP - 1) / FX_STEP;
#if FX_PRODUCER
  if (my_group() == FX_GROUPS) {
    produce(&c, &list, candidates, RINGS);
  } else {
    registers_take();
    consume(&c, &w, &list, candidates);
  }
#else
  consume(&c, &w, &list, candidates);
#endif
}
