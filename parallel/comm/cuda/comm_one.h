/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank with a GPU: its collectives are copies on the lane's stream, which may be
 * recorded into a CUDA graph. So a job of one GPU needs no NCCL. */
#ifndef FX_PARALLEL_COMM_CUDA_COMM_ONE_H
#define FX_PARALLEL_COMM_CUDA_COMM_ONE_H

#include "dynamo_rt/comm/comm.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For buffers of `device` (borrowed, outlives the communicator). Not collective. */
fx_status fx_comm_one_create(fx_device *device, const char *name, int id, fx_comm **out);

#ifdef __cplusplus
}
#endif
#endif
