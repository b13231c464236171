/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cuda/flash_policy.h"

#include <stddef.h>
#include <string.h>

/* {D, part, warpgroups, step, stages, CTAs, turns}. D = 256 has no backward here: dK and dV of 64 keys would fill
 * all registers. */
static const fx_flash_plan g_plans[] = {
    {64, FX_FLASH_FWD, 1, 64, 2, 4, 0},   {64, FX_FLASH_KEYS, 1, 64, 3, 3, 0},  {64, FX_FLASH_ROWS, 1, 64, 2, 3, 0},
    {96, FX_FLASH_FWD, 2, 128, 2, 1, 1},  {96, FX_FLASH_KEYS, 2, 64, 4, 1, 0},  {96, FX_FLASH_ROWS, 2, 128, 2, 1, 0},
    {128, FX_FLASH_FWD, 2, 128, 2, 1, 1}, {128, FX_FLASH_KEYS, 2, 64, 4, 1, 0}, {128, FX_FLASH_ROWS, 2, 128, 2, 1, 0},
    {256, FX_FLASH_FWD, 2, 64, 2, 1, 1},
};

static const fx_flash_plan *plan_of(int32_t D, fx_flash_part part) {
  for (size_t i = 0; i < sizeof g_plans / sizeof g_plans[0]; i++)
    if (g_plans[i].D == D && g_plans[i].part == part) return &g_plans[i];
  return NULL;
}

bool fx_flash_plans(const fx_flash_key *key, const char *arch, const fx_flash_plan *plans[FX_FLASH_PARTS]) {
  bool backward = key->pass == FX_FLASH_BACKWARD, all = true;
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
  return (unsigned)(1024 + (blocks * plan->groups * 64 + plan->stages * 2 * plan->step) * row);
}
