/* SPDX-License-Identifier: Apache-2.0 */
/* Arena planning: places blocks with known lifetimes in one address range (dynamic storage allocation).
 * Several planners run and the smallest result wins; it is reported against the largest sum of blocks alive
 * at once, which no plan can beat. */
#ifndef FX_DYNAMO_RT_PLAN_ARENA_H
#define FX_DYNAMO_RT_PLAN_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_block {
  size_t bytes;        /* 0: not placed */
  int32_t first, last; /* alive at steps first..last, both included */
  size_t offset;       /* result, a multiple of FX_ALIGN */
} fx_block;

typedef struct fx_arena_plan {
  size_t bytes;        /* address range needed */
  size_t lower_bound;  /* max over steps of the bytes alive */
  const char *planner; /* which one won */
} fx_arena_plan;

fx_status fx_arena_plan_blocks(fx_block *blocks, int64_t count, fx_arena_plan *out);

#ifdef __cplusplus
}
#endif
#endif
