/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA device hands to kernels as fx_kernel_args.gemm: the driver, the architecture, the compiled
 * kernels, the GEMM library. Everything lives as long as the device. */
#ifndef FX_DYNAMO_RT_DEVICE_CUDA_CONTEXT_H
#define FX_DYNAMO_RT_DEVICE_CUDA_CONTEXT_H

#include <stdint.h>

#include "dynamo_rt/device/cuda/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bad data that a kernel met first, in pinned memory; the layout of `fault` in ops/cuda/block.cuh. */
typedef struct fx_cuda_fault {
  int32_t kind; /* 0: none; 1: embedding id; 2: target; 3: index of an attention score */
  int32_t id;
  int64_t place, limit;
  int32_t *claimed; /* in memory of the device, where atomics are: who makes it 1 tells */
} fx_cuda_fault;

/* Kernels that a higher layer (attention/cuda) compiles when they are first asked for. */
typedef struct fx_cuda_late {
  void *kernels;
  void (*destroy)(void *kernels); /* called with the device's context current */
} fx_cuda_late;

typedef struct fx_cuda_context {
  const fx_cuda_driver *driver;
  void *handle; /* the primary context */
  int device;
  char arch[FX_CUDA_ARCH_BYTES]; /* for NVRTC: "sm_90a" */
  fx_cuda_info info;
  struct fx_cuda_kernels *kernels; /* ops/cuda/kernels_cuda.h */
  struct fx_cuda_gemm *gemm;       /* ops/cuda/gemm.h */
  fx_cuda_late *late;
  fx_cuda_fault *fault; /* readable by host and device */
} fx_cuda_context;

#ifdef __cplusplus
}
#endif
#endif
