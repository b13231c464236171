/* SPDX-License-Identifier: Apache-2.0 */
/* What is done to a captured graph before it becomes a recording. */
#ifndef FX_DYNAMO_RT_DEVICE_CUDA_RECORDING_CUDA_H
#define FX_DYNAMO_RT_DEVICE_CUDA_RECORDING_CUDA_H

#include "dynamo_rt/device/cuda/context.h"

/* Short memsets become kernels, as far as the driver allows; the rest stays. In the current context. */
void fx_cuda_fill_by_kernels(const fx_cuda_context *context, void *graph);

#endif
