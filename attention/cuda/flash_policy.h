/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels serve a key: those of mma.sync and FFMA (flash_*.cu), which take everything, or those of
 * wgmma and TMA (hopper_*.cu), and with what tiles. One table says it all. */
#ifndef FX_ATTENTION_CUDA_FLASH_POLICY_H
#define FX_ATTENTION_CUDA_FLASH_POLICY_H

#include "attention/cuda/flash_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_flash_part { FX_FLASH_FWD, FX_FLASH_KEYS, FX_FLASH_ROWS, FX_FLASH_PARTS } fx_flash_part;

/* A kernel for wgmma: a CTA is a block of rows (or keys) that passes over steps of the others. */
typedef struct fx_flash_plan {
  int32_t D;
  fx_flash_part part;
  int32_t groups;   /* warpgroups of a CTA: 1 or 2 */
  int32_t rows;     /* of the block: 64 a warpgroup; in FX_FLASH_KEYS two may share 64 keys */
  int32_t step;     /* keys, in FX_FLASH_KEYS rows, of a step: 64 or 128 */
  int32_t stages;   /* slots for the first tile of a step: K, in FX_FLASH_KEYS Q */
  int32_t second;   /* for its other one, V or dO: as many, or one fewer in FX_FLASH_ROWS */
  int32_t ctas;     /* of a multiprocessor: bounds the registers */
  int32_t producer; /* 1: one more warpgroup, which copies; with one CTA a multiprocessor */
} fx_flash_plan;

/* The plans of the parts that a key's pass has; NULL elsewhere, and everywhere where mma.sync serves it.
 * Returns whether wgmma does. */
bool fx_flash_plans(const fx_flash_key *key, const char *arch, const fx_flash_plan *plans[FX_FLASH_PARTS]);
/* Bytes of dynamic shared memory of a plan's kernel. */
unsigned fx_flash_plan_shared(const fx_flash_plan *plan);
/* Threads of a CTA. */
unsigned fx_flash_plan_threads(const fx_flash_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
