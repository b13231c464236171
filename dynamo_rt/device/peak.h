/* SPDX-License-Identifier: Apache-2.0 */
/* Nominal peak arithmetic of GPUs, from their makers' data sheets: dense matrix products, fp32 accumulation,
 * at the boost clock. What model FLOPs utilisation (MFU) is measured against. */
#ifndef FX_DYNAMO_RT_DEVICE_PEAK_H
#define FX_DYNAMO_RT_DEVICE_PEAK_H

#include "dynamo_rt/device/device.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FLOP/s of a device by its product name ("NVIDIA H200") computing in dtype; 0: not in the table. */
double fx_device_peak(const char *name, fx_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
