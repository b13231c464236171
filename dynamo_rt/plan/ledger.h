/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered ledger of a plan's collectives, as text: one line an entry, the same line on ranks that agree.
 * Ranks exchange it before a plan first runs (parallel/agree). */
#ifndef FX_DYNAMO_RT_PLAN_LEDGER_H
#define FX_DYNAMO_RT_PLAN_LEDGER_H

#include "dynamo_rt/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* malloc'ed "dp#1 all_reduce sum float32 x 8192 comm.bulk (core/model/step.c:88, layer 0)\n..." in issue
 * order, "" when the plan has no collectives, NULL when out of memory. */
char *fx_plan_ledger(const fx_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
