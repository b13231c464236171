/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do at best: the bounds that benchmarks are read against. */
#ifndef FX_CORE_BENCH_MACHINE_H
#define FX_CORE_BENCH_MACHINE_H

#include "dynamo_rt/device/device.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_machine_bounds {
  double gflops;    /* CPU: independent fp32 multiply-adds in registers, all threads, measured. GPU: what its
                       maker says of the type computed in; 0: unknown */
  double copy_gbps; /* bytes read + written by a copy far larger than the caches, GB/s, measured */
} fx_machine_bounds;

/* About half a second; median of several runs. FMA uses the widest vectors the processor has. */
fx_machine_bounds fx_machine_measure(int threads);
/* Of the device that a bench runs on, computing in dtype. */
fx_status fx_machine_measure_device(fx_device *device, fx_dtype dtype, fx_machine_bounds *out);

/* The middle of `count` values (the upper one of two); sorts them. */
double fx_median(double *values, int count);

#ifdef __cplusplus
}
#endif
#endif
