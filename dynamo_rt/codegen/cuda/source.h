/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA sources compiled into the program as text by embed.cmake: nothing is searched for at run time. */
#ifndef FX_DYNAMO_RT_CODEGEN_CUDA_SOURCE_H
#define FX_DYNAMO_RT_CODEGEN_CUDA_SOURCE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_cuda_source {
  const char *name; /* of the file, "norm.cu" */
  const char *text; /* its contents, NUL-terminated */
  size_t bytes;
} fx_cuda_source;

/* dynamo_rt/ops/cuda, by name. block.cuh is the text that every .cu there begins with. */
extern const fx_cuda_source fx_cuda_op_sources[];
extern const int fx_cuda_op_sources_count;

#ifdef __cplusplus
}
#endif
#endif
