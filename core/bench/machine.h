/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do at best: the bounds that benchmarks are read against. */
#ifndef FX_CORE_BENCH_MACHINE_H
#define FX_CORE_BENCH_MACHINE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_machine_bounds {
  double fma_gflops; /* independent fp32 multiply-adds in registers, all threads */
  double copy_gbps;  /* bytes read + written by a copy far larger than the caches, GB/s, all threads */
} fx_machine_bounds;

/* About half a second; median of several runs. FMA uses the widest vectors the processor has. */
fx_machine_bounds fx_machine_measure(int threads);

/* The middle of `count` values (the upper one of two); sorts them. */
double fx_median(double *values, int count);

#ifdef __cplusplus
}
#endif
#endif
