/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on the GPU by cuBLASLt, opened at run time. fp32 products are fp32: TF32 is off, and
 * reductions that depend on timing are not chosen. The first product of a shape asks the library for an
 * algorithm; later ones find it in a table. */
#ifndef FX_DYNAMO_RT_OPS_CUDA_GEMM_H
#define FX_DYNAMO_RT_OPS_CUDA_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/device/cuda/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_cuda_gemm fx_cuda_gemm;

/* In the current context. FX_ERR_DEVICE names what was tried. */
fx_status fx_cuda_gemm_open(const fx_cuda_driver *driver, fx_cuda_gemm **out);
void fx_cuda_gemm_close(fx_cuda_gemm *gemm);             /* NULL is fine */
const char *fx_cuda_gemm_name(const fx_cuda_gemm *gemm); /* "cuBLASLt 13.0.2" */

/* As fx_gemm_f32 (dynamo_rt/ops/cpu/gemm.h), on device memory and asynchronous on `stream`, which must be the
 * same one in every call: the workspace is shared. */
fx_status fx_cuda_gemm_f32(fx_cuda_gemm *gemm, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                           int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                           float *c, int64_t ldc, void *stream);

#ifdef __cplusplus
}
#endif
#endif
