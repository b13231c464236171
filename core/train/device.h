/* SPDX-License-Identifier: Apache-2.0 */
/* The device that `runtime.device` asks for. */
#ifndef FX_CORE_TRAIN_DEVICE_H
#define FX_CORE_TRAIN_DEVICE_H

#include "core/config/config.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether `runtime.device` means the GPU here: cuda, or auto where there is one and every op of a model has a
 * kernel for it. Equal on ranks of equal machines. */
bool fx_device_wants_cuda(const fx_config *config, int ranks);
/* threads: of a CPU device. FX_ERR_UNSUPPORTED for runtime.device=cuda with several ranks. */
fx_status fx_device_choose(const fx_config *config, int threads, int ranks, fx_device **out);

#ifdef __cplusplus
}
#endif
#endif
