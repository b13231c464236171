/* SPDX-License-Identifier: Apache-2.0 */
/* wgmma, sm_90a: a warpgroup multiplies 64 rows of A by B into its accumulators, fp32 sums of 16-bit factors.
 *
 * Every tile in shared memory is blocks of 64 columns; a block is one row of 128 bytes after another,
 * swizzled by 128 bytes as TMA writes it, and begins at a multiple of 1024. Seen with k along the columns
 * ("K-major": A, and B of Q K^T) a step of 16 k is 32 bytes further and groups of 8 rows are 1024 bytes
 * apart; seen with k along the rows ("MN-major": B of P V) a step of 16 k is 2048 bytes further, and the next
 * 64 columns are a block away.
 *
 * The products are asynchronous: what they read and write is not to be touched before wgmma_wait, and the
 * accumulators are passed to it so that the compiler does not either. */
#if FX_TYPE == 1
#define FX_WGMMA_TYPES "bf16.bf16"
#else
#define FX_WGMMA_TYPES "f16.f16"
#endif

#define FX_ACC4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define FX_ACC16(n) FX_ACC4(n), FX_ACC4(n + 1), FX_ACC4(n + 2), FX_ACC4(n + 3)
#define FX_ACC64 FX_ACC16(0), FX_ACC16(4)
#define FX_ACC96 FX_ACC64, FX_ACC16(8)
#define FX_ACC128 FX_ACC96, FX_ACC16(12)
#define FX_OUT64                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define FX_OUT96                                                     \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}"
#define FX_OUT128                                                    \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

/* Descriptors: address, distance of blocks of columns, of groups of 8 rows; all in units of 16 bytes. */
FX_DEVICE uint64_t describe(uint32_t address, uint32_t block) {
  return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(block >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
         (uint64_t)1 << 62;
}

/* d = A B, or d += A B with `add`; both K-major. */
FX_DEVICE void wgmma(float (&d)[8][4], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." FX_WGMMA_TYPES
      " " FX_OUT64 ", %32, %33, p, 1, 1, 0, 0;}"
      : FX_ACC64
      : "l"(a), "l"(b), "r"(add)
      : "memory");
}
FX_DEVICE void wgmma(float (&d)[16][4], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." FX_WGMMA_TYPES
      " " FX_OUT128 ", %64, %65, p, 1, 1, 0, 0;}"
      : FX_ACC128
      : "l"(a), "l"(b), "r"(add)
      : "memory");
}

/* d += A B, A from registers, B MN-major. */
FX_DEVICE void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." FX_WGMMA_TYPES " " FX_OUT64
               ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : FX_ACC64
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
               : "memory");
}
FX_DEVICE void wgmma(float (&d)[12][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." FX_WGMMA_TYPES " " FX_OUT96
               ", {%48,%49,%50,%51}, %52, 1, 1, 1, 1;"
               : FX_ACC96
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
               : "memory");
}
FX_DEVICE void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." FX_WGMMA_TYPES " " FX_OUT128
               ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : FX_ACC128
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
               : "memory");
}

/* Before the first product, and between writes to registers and a product that reads them. */
FX_DEVICE void wgmma_fence(void) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
FX_DEVICE void wgmma_commit(void) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int NB> FX_DEVICE void pin(float (&acc)[NB][4]) {
#pragma unroll
  for (int n = 0; n < NB; n++)
    asm volatile("" : "+f"(acc[n][0]), "+f"(acc[n][1]), "+f"(acc[n][2]), "+f"(acc[n][3])::"memory");
}
/* All but the last LEFT groups are done, and with them `acc`. */
template <int LEFT, int NB> FX_DEVICE void wgmma_wait(float (&acc)[NB][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
  pin(acc);
}

/* ---- products over tiles ---- */

/* acc[64][8 NB] = A B^T over FX_D: rows of A from address a on, of a tile of A_ROWS rows; b: 8 NB rows. */
template <int A_ROWS, int NB> FX_DEVICE void product_rows(float (&acc)[NB][4], uint32_t a, uint32_t b) {
  uint64_t left = describe(a, 16), right = describe(b, 16);
#pragma unroll
  for (int k = 0; k < FX_D / 16; k++)
    wgmma(acc, left + (k / 4 * (A_ROWS * 128) + k % 4 * 32) / 16,
          right + (k / 4 * (NB * 8 * 128) + k % 4 * 32) / 16, k > 0);
}

/* acc[64][FX_D] += P B for P of 64 x 16 KB in A's layout; b: a tile of 16 KB rows. */
template <int KB, int NB>
FX_DEVICE void product_registers(float (&acc)[NB][4], const uint32_t (&p)[KB][4], uint32_t b) {
  enum { BLOCK = KB * 16 * 128 };
  uint64_t right = describe(b, BLOCK);
#pragma unroll
  for (int k = 0; k < KB; k++) {
#if FX_D == 256
    wgmma((float(&)[16][4])acc[0], p[k], right + k * 2048 / 16);
    wgmma((float(&)[16][4])acc[16], p[k], right + (2 * BLOCK + k * 2048) / 16);
#else
    wgmma(acc, p[k], right + k * 2048 / 16);
#endif
  }
}

/* An accumulator as A: columns 16 k .. 16 k + 15 are step k. */
template <int NB> FX_DEVICE void to_operand(const float (&acc)[NB][4], uint32_t (&p)[NB / 2][4]) {
#pragma unroll
  for (int k = 0; k < NB / 2; k++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      p[k][e] = pack(acc[2 * k + e / 2][e % 2 * 2], acc[2 * k + e / 2][e % 2 * 2 + 1]);
}
