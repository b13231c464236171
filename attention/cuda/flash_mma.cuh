/* SPDX-License-Identifier: Apache-2.0 */
/* sm_80 and up, and fp32 everywhere: products of a warp, tiles by cp.async, the walk over a row block's key
 * tiles. The fp32 kernels compute mma.sync's layout with FFMA from shared memory, so that everything but the
 * products is one text. Their A operand from registers takes a detour through a warp's own piece of shared
 * memory. */
#if FX_TYPE == 0
enum { PAD = 4, STAGES = 1 };
#else
enum { PAD = 8, STAGES = 2 };
#endif
enum { PITCH = FX_D + PAD };

/* ---- tiles from global to shared memory ---- */

/* Rows t.. of a head, those from `end` on as zeros; asynchronous. */
template <int COUNT>
FX_DEVICE void load_tile(elem *to, const fx_flash_view *view, int32_t b, int32_t head, int32_t t,
                         int32_t end) {
  const elem *from = at(view, b, head, 0);
  for (int32_t i = threadIdx.x; i < COUNT * CHUNKS; i += blockDim.x) {
    int32_t row = i / CHUNKS, column = i % CHUNKS * CHUNK;
    bool exists = t + row < end;
    const elem *source = exists ? from + (int64_t)(t + row) * view->time + column : from;
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to + row * PITCH + column)),
        "l"(source), "r"(exists ? 16 : 0)
        : "memory");
  }
}
FX_DEVICE void load_commit(void) {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the last `LEFT` groups have arrived, for this thread. */
template <int LEFT> FX_DEVICE void load_wait(void) {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ---- products of a warp ---- */

#if FX_TYPE == 0
/* acc += A B for A(row, k) = a[row * a_row + k], B(k, n) = b[k * b_k + n * b_n] */
template <int K, int NB>
FX_DEVICE void product_strided(float (&acc)[NB][4], const float *a, int a_row, const float *b, int b_k,
                               int b_n) {
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 4
  for (int k = 0; k < K; k++) {
    float top = a[g * a_row + k], bottom = a[(g + 8) * a_row + k];
#pragma unroll
    for (int n = 0; n < NB; n++) {
      float left = b[k * b_k + (n * 8 + 2 * t) * b_n], right = b[k * b_k + (n * 8 + 2 * t + 1) * b_n];
      acc[n][0] = __fmaf_rn(top, left, acc[n][0]);
      acc[n][1] = __fmaf_rn(top, right, acc[n][1]);
      acc[n][2] = __fmaf_rn(bottom, left, acc[n][2]);
      acc[n][3] = __fmaf_rn(bottom, right, acc[n][3]);
    }
  }
}

/* acc[16 rows][8 NB] = A B^T over FX_D; a: 16 rows, b: 8 NB rows in shared memory. */
template <int NB> FX_DEVICE void product_rows(float (&acc)[NB][4], const elem *a, const elem *b) {
  clear(acc);
  product_strided<FX_D, NB>(acc, a, PITCH, b, 1, PITCH);
}

/* acc[16][8 NB] += P B for P an accumulator of 16 x 8 KB, b: 8 KB rows, from a column on. */
template <int KB, int NB>
FX_DEVICE void product_registers(float (&acc)[NB][4], const float (&p)[KB][4], const elem *b, float *piece) {
  enum { ROW = KB * 8 + 4 };
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < KB; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) piece[(g + e / 2 * 8) * ROW + n * 8 + 2 * t + e % 2] = p[n][e];
  __syncwarp();
  product_strided<KB * 8, NB>(acc, piece, ROW, b, PITCH, 1);
}
#else
FX_DEVICE void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if FX_TYPE == 1
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
               "{%0,%1,%2,%3};"
#endif
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* Four 8x8 blocks; lanes 8 i .. 8 i + 7 point at the rows of block i. */
FX_DEVICE void load_blocks(uint32_t (&r)[4], const elem *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
FX_DEVICE void load_blocks_transposed(uint32_t (&r)[4], const elem *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

template <int NB> FX_DEVICE void product_rows(float (&acc)[NB][4], const elem *a, const elem *b) {
  int lane = threadIdx.x % 32, block = lane / 8, row = lane % 8;
  const elem *a_row = a + lane % 16 * PITCH + lane / 16 * 8;
  const elem *b_row = b + (block / 2 * 8 + row) * PITCH + block % 2 * 8;
  clear(acc);
#pragma unroll
  for (int k = 0; k < FX_D / 16; k++) {
    uint32_t left[4], right[4];
    load_blocks(left, a_row + k * 16);
#pragma unroll
    for (int n = 0; n < NB; n += 2) {
      load_blocks(right, b_row + n * 8 * PITCH + k * 16);
      mma(acc[n], left, right[0], right[1]);
      mma(acc[n + 1], left, right[2], right[3]);
    }
  }
}

template <int KB, int NB>
FX_DEVICE void product_registers(float (&acc)[NB][4], const float (&p)[KB][4], const elem *b, float *piece) {
  int lane = threadIdx.x % 32, block = lane / 8, row = lane % 8;
  const elem *b_row = b + (block % 2 * 8 + row) * PITCH + block / 2 * 8;
  (void)piece;
#pragma unroll
  for (int k = 0; k < KB / 2; k++) {
    const float(&low)[4] = p[2 * k], (&high)[4] = p[2 * k + 1];
    uint32_t left[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
                        pack(high[2], high[3])};
#pragma unroll
    for (int n = 0; n < NB; n += 2) {
      uint32_t right[4];
      load_blocks_transposed(right, b_row + k * 16 * PITCH + n * 8);
      mma(acc[n], left, right[0], right[1]);
      mma(acc[n + 1], left, right[2], right[3]);
    }
  }
}
#endif

/* ---- the walk over a row block's key tiles, in ascending order, cut into steps ---- */

typedef struct key_walk {
  const int32_t *run;
  int32_t runs, tile, end, kind, sub;
} key_walk;

FX_DEVICE key_walk walk_begin(const fx_flash_args *args, int32_t b, int32_t h, int32_t block, int subs) {
  key_walk walk;
  walk.run = 0, walk.runs = 0, walk.tile = -1, walk.kind = PARTIAL, walk.sub = subs - 1;
  walk.end = (args->T_kv + KEYS - 1) / KEYS;
  if (args->runs) {
    walk.run = runs_of(args, b, h, block, &walk.runs);
    walk.end = 0;
  }
  return walk;
}

/* The next step: keys tile * KEYS + sub * KEYS / subs on. False after the last. */
FX_DEVICE bool walk_next(key_walk *walk, const fx_flash_args *args, const int32_t *span, int subs) {
  if (++walk->sub < subs && walk->tile * KEYS + walk->sub * (KEYS / subs) < args->T_kv) return true;
  walk->sub = 0;
  for (;;) {
    walk->tile++;
    while (walk->tile >= walk->end) {
      if (walk->runs == 0) return false;
      walk->tile = walk->run[0], walk->end = walk->run[1], walk->kind = walk->run[2];
      walk->run += 3, walk->runs--;
    }
    if (args->runs) return true;
    walk->kind = kind_by_span(args, span, walk->tile);
    if (walk->kind != EMPTY) return true;
  }
}
