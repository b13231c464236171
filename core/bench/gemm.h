/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix products of a training step of a configuration, one by one, on its device and in its type. */
#ifndef FX_CORE_BENCH_GEMM_H
#define FX_CORE_BENCH_GEMM_H

#include "core/bench/machine.h"
#include "core/bench/product.h"
#include "core/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_BENCH_PRODUCTS = 15 };

typedef struct fx_bench_gemm_row {
  const char *name; /* "qkv" */
  fx_bench_pass pass;
  int64_t m, n, k, calls; /* calls a step */
  double ms, gflops;      /* of one call, median */
} fx_bench_gemm_row;

typedef struct fx_bench_gemm_report {
  fx_bench_gemm_row product[FX_BENCH_PRODUCTS];
  int count;
  char provider[200]; /* "oneDNN 2.6.3, 2 threads, avx512", "cuBLASLt 13.0.2, NVIDIA H200, bfloat16" */
  bool gpu;
  double step_ms; /* sum over calls */
  fx_machine_bounds bounds;
} fx_bench_gemm_report;

fx_status fx_bench_gemm(const fx_config *config, fx_bench_gemm_report *report);

#ifdef __cplusplus
}
#endif
#endif
