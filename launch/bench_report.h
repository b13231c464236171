/* SPDX-License-Identifier: Apache-2.0 */
/* What `bench step` and `bench gemm` print: a table, and one JSON object with --json, which the caller takes.
 */
#ifndef FX_LAUNCH_BENCH_REPORT_H
#define FX_LAUNCH_BENCH_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "core/bench/gemm.h"
#include "core/bench/step.h"

#ifdef __cplusplus
extern "C" {
#endif

void fx_bench_step_print(FILE *out, const fx_bench_step_report *report);
json_t *fx_bench_step_json(const fx_bench_step_report *report);
void fx_bench_gemm_print(FILE *out, const fx_bench_gemm_report *report);
json_t *fx_bench_gemm_json(const fx_bench_gemm_report *report);

#ifdef __cplusplus
}
#endif
#endif
