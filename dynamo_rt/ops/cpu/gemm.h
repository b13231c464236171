/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on the CPU, through a library opened at run time: oneDNN where its major version is the one
 * the headers had, else a CBLAS. One entry, row-major, so that kernels never see which. */
#ifndef FX_DYNAMO_RT_OPS_CPU_GEMM_H
#define FX_DYNAMO_RT_OPS_CPU_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_gemm fx_gemm;

/* provider: "auto" (first that opens), "onednn" or "cblas". FX_ERR_DEVICE names what was tried. */
fx_status fx_gemm_open(const char *provider, int threads, fx_gemm **out);
void fx_gemm_close(fx_gemm *gemm);             /* NULL is fine */
const char *fx_gemm_name(const fx_gemm *gemm); /* "oneDNN 2.6.3", "CBLAS (libopenblas.so.0)" */

/* C[M, N] = op(A)[M, K] op(B)[K, N] + beta C, fp32 row-major; op transposes where the flag is set (then A is
 * stored [K, M], B [N, K]); ld*: elements between rows as stored. beta is 0 or 1; with 0, C is not read.
 * Runs on the calling thread's OpenMP team. */
fx_status fx_gemm_f32(const fx_gemm *gemm, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                      int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                      float *c, int64_t ldc);

#ifdef __cplusplus
}
#endif
#endif
