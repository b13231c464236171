/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on the GPU by cuBLASLt, opened at run time. Sums are made in fp32 whatever the operands:
 * fp32 products are fp32 (TF32 is off), bfloat16 ones are rounded once, at the store. Reductions that depend
 * on timing are not chosen. The first product of a shape asks the library for an algorithm; later ones find
 * it in a table. */
#ifndef FX_DYNAMO_RT_OPS_CUDA_GEMM_H
#define FX_DYNAMO_RT_OPS_CUDA_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/device/cuda/driver.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_cuda_gemm fx_cuda_gemm;

/* What happens to the fp32 sums before they are stored. */
typedef enum fx_cuda_epilogue {
  FX_CUDA_EPILOGUE_NONE,
  FX_CUDA_EPILOGUE_BIAS,     /* + bias[n] */
  FX_CUDA_EPILOGUE_GELU,     /* tanh form; + bias first and what went in to aux, where they are given */
  FX_CUDA_EPILOGUE_GELU_GRAD /* c = product * gelu'(aux), tanh form */
} fx_cuda_epilogue;

/* c[m, n] = epilogue(op(a) op(b) + beta c), row-major; op(a) is [m, k], op(b) [k, n], and a transposed
 * operand lies in memory as its transpose. All on the device; an output overlaps no input. */
typedef struct fx_cuda_product {
  bool transpose_a, transpose_b;
  int64_t m, n, k;
  fx_dtype in, out; /* F32 -> F32, BF16 -> BF16, BF16 -> F32 */
  const void *a, *b;
  int64_t lda, ldb; /* elements from row to row */
  void *c;
  int64_t ldc;
  float beta; /* 0 (c is not read) with the two GELU epilogues */
  fx_cuda_epilogue epilogue;
  const void *bias; /* [n] of type out */
  void *aux;        /* [m, n] of type out, rows ldc apart; ldc is then a multiple of 8, and out is in */
} fx_cuda_product;

/* In the current context. FX_ERR_DEVICE names what was tried. */
fx_status fx_cuda_gemm_open(const fx_cuda_driver *driver, fx_cuda_gemm **out);
void fx_cuda_gemm_close(fx_cuda_gemm *gemm);             /* NULL is fine */
const char *fx_cuda_gemm_name(const fx_cuda_gemm *gemm); /* "cuBLASLt 13.0.2" */

/* Asynchronous on `stream`, which must be the same one in every call: the workspace is shared. May be
 * recorded by a stream capture once the shape has run: the library loads a kernel when it is first used.
 * FX_ERR_UNSUPPORTED: the library has no algorithm for it, or a type or an epilogue is not as fx_cuda_product
 * says; nothing was launched. */
fx_status fx_cuda_gemm_run(fx_cuda_gemm *gemm, const fx_cuda_product *product, void *stream);

/* On: the next product of each shape first times the library's best few algorithms (on the caller's operands
 * and scratch outputs; it waits for the stream) and keeps the fastest one, or the library's own first
 * choice where that is as good. Which one it is depends on timing, and so then do the last bits of results,
 * from process to process; within a process a shape keeps its algorithm. Nothing is timed while the stream is
 * being captured, or where there is no memory for scratch. Off at first; turning it off again keeps what was
 * chosen. */
void fx_cuda_gemm_autotune(fx_cuda_gemm *gemm, bool on);

#ifdef __cplusplus
}
#endif
#endif
