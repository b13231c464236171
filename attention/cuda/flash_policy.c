/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cuda/flash_policy.h"

#include <stddef.h>
#include <string.h>

/* {D, part, warpgroups, rows, step, stages, second, CTAs, producer}, and TFLOP/s on one H200, causal
 * bf16, at T 1024 (D 64: B 32, H 12) and T 4096 (D 96: H 16; D 128: H 32/4; D 256: H 8): of the forward, of
 * the backward's kernels by their own products where these were timed alone, else of both together, five
 * products counted for seven.
 *
 * Small CTAs hide each other's beginnings and ends, which is what short sequences are made of: with two
 * warpgroups a CTA D 64 ran at 250, 256, 329, with a third that copies at 205 and 214 (but 326 for 293 at T
 * 4096). Three CTAs of FX_FLASH_KEYS at D 64 leave so few registers that products run one after the other
 * (two CTAs, which do not: 285), and the producer of FX_FLASH_KEYS at D 128 would leave too few. At D 256 dK
 * and dV of 64 keys would fill all registers of a warpgroup, so two share them; and Q and dO of 128 rows
 * leave memory for three tiles of 64 keys, two of them K, which is read first and last. */
static const fx_flash_plan g_plans[] = {
    {64, FX_FLASH_FWD, 1, 64, 64, 2, 2, 4, 0},    /* 283; steps of 128 keys 273, but 374 to 352 at T 4096 */
    {64, FX_FLASH_KEYS, 1, 64, 64, 2, 2, 3, 0},   /* 310 */
    {64, FX_FLASH_ROWS, 1, 64, 64, 3, 3, 3, 0},   /* 408 */
    {96, FX_FLASH_FWD, 2, 128, 128, 2, 2, 1, 1},  /* 438, without a producer 361 */
    {96, FX_FLASH_KEYS, 2, 128, 64, 3, 3, 1, 1},  /* both 356 */
    {96, FX_FLASH_ROWS, 2, 128, 64, 4, 4, 1, 1},  /* without producers, with 128 keys: both 327 */
    {128, FX_FLASH_FWD, 2, 128, 128, 2, 2, 1, 1}, /* 558, T 16384 616 */
    {128, FX_FLASH_KEYS, 2, 128, 64, 2, 2, 1, 0}, /* 557 alone; both 397 */
    {128, FX_FLASH_ROWS, 2, 128, 64, 3, 3, 1, 1}, /* four stages: both 399; 128 keys, no producer: 388 */
    {256, FX_FLASH_FWD, 2, 128, 64, 2, 2, 1, 1},  /* 632 */
    {256, FX_FLASH_KEYS, 2, 64, 64, 2, 2, 1, 1},  /* both 388, without producers 345 */
    {256, FX_FLASH_ROWS, 2, 128, 64, 2, 1, 1, 1}, /* one slot for V, two for K */
};

static const fx_flash_plan *plan_of(int32_t D, fx_flash_part part) {
  for (size_t i = 0; i < sizeof g_plans / sizeof g_plans[0]; i++)
    if (g_plans[i].D == D && g_plans[i].part == part) return &g_plans[i];
  return NULL;
}

bool fx_flash_plans(const fx_flash_key *key, const char *arch, const fx_flash_plan *plans[FX_FLASH_PARTS]) {
  bool backward = fx_flash_is_backward(key->pass), all = true;
  bool able = strcmp(arch, "sm_90a") == 0 && key->dtype != FX_F32 && !key->any_scale;
  for (int part = 0; part < FX_FLASH_PARTS; part++) {
    bool wanted = backward == (part != FX_FLASH_FWD);
    plans[part] = able && wanted ? plan_of(key->D, (fx_flash_part)part) : NULL;
    all = all && (!wanted || plans[part]);
  }
  for (int part = 0; part < FX_FLASH_PARTS && !all; part++) plans[part] = NULL;
  return all;
}

/* Tiles are columns in blocks of 64, and begin at a multiple of 1024; the sums of hopper_*.cu. */
unsigned fx_flash_plan_shared(const fx_flash_plan *plan) {
  int row = (plan->D + 63) / 64 * 128, blocks = plan->part == FX_FLASH_FWD ? 1 : 2;
  return (unsigned)(1024 + (blocks * plan->rows + (plan->stages + plan->second) * plan->step) * row);
}

unsigned fx_flash_plan_threads(const fx_flash_plan *plan) {
  return (unsigned)(plan->groups + plan->producer) * 128;
}
