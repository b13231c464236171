/* SPDX-License-Identifier: Apache-2.0 */
/* The text of attention/cuda's kernels and of flash_args.h, embedded at build time. */
#ifndef FX_ATTENTION_CUDA_SOURCES_H
#define FX_ATTENTION_CUDA_SOURCES_H

#include "dynamo_rt/codegen/cuda/source.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const fx_cuda_source fx_cuda_attention_sources[];
extern const int fx_cuda_attention_sources_count;

#ifdef __cplusplus
}
#endif
#endif
