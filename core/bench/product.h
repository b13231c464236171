/* SPDX-License-Identifier: Apache-2.0 */
/* What benchmarks run on a device: random tensors in its memory, and matrix products as the ops of a linear
 * layer run them. */
#ifndef FX_CORE_BENCH_PRODUCT_H
#define FX_CORE_BENCH_PRODUCT_H

#include "dynamo_rt/device/device.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* n numbers of variance 1 in FX_F32 or FX_BF16, in memory of the device (fx_device_release). */
fx_status fx_bench_random(fx_device *device, fx_dtype dtype, int64_t n, uint64_t seed, void **out);

/* C [m, n] of a product over k: a layer's forward, the gradient of its input, the gradient of its weight
 * (which is FX_F32 whatever the type). */
typedef enum fx_bench_pass { FX_BENCH_FORWARD, FX_BENCH_DX, FX_BENCH_DW } fx_bench_pass;
typedef struct fx_bench_product fx_bench_product;

fx_status fx_bench_product_create(fx_device *device, fx_dtype dtype, fx_bench_pass pass, int64_t m, int64_t n,
                                  int64_t k, fx_bench_product **out);
/* One call by the clock of the device, ms. */
fx_status fx_bench_product_run(fx_bench_product *product, double *ms);
void fx_bench_product_destroy(fx_bench_product *product); /* NULL is fine; before the device */

#ifdef __cplusplus
}
#endif
#endif
