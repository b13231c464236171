/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the CPU: what forward, partial and backward share. Tiled, never T x T; fp32 or bf16 storage,
 * fp32 arithmetic.
 *
 * All tensors are strided views [B, T, heads, D] with unit stride along D, usually into the fused QKV buffer
 * or its gradient. Query head h reads key head h / (H / K). Kernels allocate nothing: scratch is the caller's
 * `workspace`. Results do not depend on the number of threads, bit for bit; they do depend on the instruction
 * set. A key that a row's limits exclude never influences that row, not even as NaN; one that a mask program
 * excludes inside a partial tile is multiplied by an exact zero.
 *
 * Method: Dao et al., "FlashAttention" (2022) and "FlashAttention-2" (2023); online softmax of Milakov and
 * Gimelshein (2018). */
#ifndef FX_ATTENTION_CPU_FLASH_H
#define FX_ATTENTION_CPU_FLASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention/mask/limits.h"
#include "attention/mask/runs.h"
#include "attention/tile/tile.h"
#include "dynamo_rt/base/status.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A [B, T, heads, D] view: pointer to element 0 and strides in elements; D has stride 1. FX_F32 or FX_BF16.
 * Borrowed. */
typedef struct fx_attention_in {
  const void *data;
  int64_t batch, time, head;
  fx_dtype dtype;
} fx_attention_in;
typedef struct fx_attention_out {
  void *data;
  int64_t batch, time, head;
  fx_dtype dtype;
} fx_attention_out;

/* A buffer of the variant's expressions: element 0 of sample 0, bytes from one sample to the next (0:
 * shared). */
typedef struct fx_attention_buffer {
  const void *data;
  int64_t batch_bytes;
} fx_attention_buffer;

/* What a variant adds to plain attention; borrowed. */
typedef struct fx_attention_program {
  const fx_tile_functions *tile;
  bool mask;            /* partial tiles ask tile->mask; otherwise limits say it all */
  const float *uniform; /* float parameters */
  int32_t num_buffers;  /* at most FX_ATTENTION_MAX_BUFFERS */
  const fx_attention_buffer *buffers;
  /* Learnable tables among the buffers: floats of each, 0 for the others; NULL when there are none. */
  const int64_t *table_floats;
} fx_attention_program;
enum { FX_ATTENTION_MAX_BUFFERS = 32 };

/* Instruction sets of the inner loops. AUTO takes the best the processor has; the others exist for tests and
 * for `doctor`, and are refused with FX_ERR_UNSUPPORTED where the processor lacks them. */
typedef enum fx_attention_isa {
  FX_ISA_AUTO,
  FX_ISA_PORTABLE,
  FX_ISA_AVX2,
  FX_ISA_AVX512,
  FX_ISA_COUNT
} fx_attention_isa;

typedef struct fx_attention_shape {
  int32_t B, T_q, T_kv; /* >= 1 */
  int32_t H, K;         /* query heads, key heads; K divides H */
  /* Head 0 is head first_head of all_heads for masks and programs, which may differ between heads; all_heads
   * 0: of H. */
  int32_t first_head, all_heads;
  int32_t D;       /* a multiple of 8, at most 256 */
  float scale;     /* score = scale * q.k */
  bool bf16;       /* q, k, v, out and their gradients are FX_BF16, else FX_F32; running states are FX_F32 */
  int64_t kv_base; /* global position of key 0; 0 unless the keys are a chunk of the sequence */
  /* NULL: queries begin at 0, keys at kv_base, and each side is contiguous. Else the global position of every
   * block of 128 queries, of 128 keys (kv_base is not read then): ranks may hold any blocks of a sequence. */
  const int32_t *q_bases, *kv_bases;
  const fx_attention_program *program; /* NULL: scores are scale * q.k, and limits say who sees whom */
  /* NULL: every row sees all keys. Else T = T_q rows of R = 1 intervals in global positions, Bm 1 or B. */
  const fx_limits *limits;
  /* NULL: the kernel finds its tiles from the limits, and a mask program is asked in every tile. Else row
   * runs of exactly this mask (and these bases) in the kernel's own tile, see fx_attention_cpu_tile. */
  const fx_runs *runs;
  fx_attention_isa isa;
  int threads; /* 0: OpenMP's default */
} fx_attention_shape;

typedef struct fx_attention_tile {
  int32_t q, kv;
} fx_attention_tile;

typedef enum fx_attention_pass { FX_ATTENTION_FORWARD, FX_ATTENTION_BACKWARD } fx_attention_pass;

/* Tile in which `runs` must be built for a pass at this D (also the pass's row block). */
fx_attention_tile fx_attention_cpu_tile(fx_attention_pass pass, int32_t D);

/* Bytes of workspace, 64-byte aligned memory, for a pass run by at most `threads` threads (0: OpenMP's
 * default). The partial and finalize entries need the forward's. */
size_t fx_attention_cpu_workspace(fx_attention_pass pass, const fx_attention_shape *shape, int threads);

/* Checks everything above; FX_ERR_SHAPE or FX_ERR_UNSUPPORTED with a sentence. Every entry calls it. */
fx_status fx_attention_cpu_check(fx_attention_pass pass, const fx_attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif
