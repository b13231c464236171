/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators over NCCL, opened at run time: for ranks with a GPU each. A call is queued on its lane's
 * stream and may be recorded into a CUDA graph. Sums are NCCL's: the same bits on every rank and in every run
 * of one topology, but not in rank order. */
#ifndef FX_PARALLEL_COMM_CUDA_COMM_NCCL_H
#define FX_PARALLEL_COMM_CUDA_COMM_NCCL_H

#include "dynamo_rt/comm/control.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As fx_control_split, over which it is bootstrapped, for buffers of `device` (borrowed, outlives the
 * communicator). The connection is made by fx_comm_open. Groups of one rank need no NCCL (comm_one.h): the
 * library is opened when one of several is made. FX_ERR_DEVICE: there is none, the same on every rank. */
fx_status fx_nccl_split(fx_control *control, fx_device *device, const char *name, int id, const int *ranks,
                        int count, fx_comm **out);
/* One line for `flexion doctor`: "NCCL 2.28.9", or why there is none. Returns text. */
const char *fx_nccl_version(char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
