/* SPDX-License-Identifier: Apache-2.0 */
/* The device that `runtime.device` asks for. */
#ifndef FX_CORE_TRAIN_DEVICE_H
#define FX_CORE_TRAIN_DEVICE_H

#include "core/config/config.h"
#include "core/train/threads.h"
#include "dynamo_rt/comm/control.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the ranks of a job compute on GPUs, the same answer on all of them: runtime.device says cuda, or it
 * says auto, every rank would take another GPU than the others of its host, and every op of a model has a
 * kernel for it. */
bool fx_device_wants_cuda(const fx_config *config, const fx_affinity *ranks, int size);
/* Why runtime.device=auto does not take GPUs that are there, in text; NULL where it does, or is not asked. */
const char *fx_device_why_cpu(const fx_config *config, const fx_affinity *ranks, int size, char *text,
                              size_t capacity);
/* The device of `rank`; threads: of a CPU. FX_ERR_DEVICE: no GPU of its own (NCCL wants a whole one a rank,
 * so slices of one do not count), or what a GPU lacks; FX_ERR_CONFIG: bfloat16 on a CPU. */
fx_status fx_device_choose(const fx_config *config, const fx_affinity *ranks, int size, int rank, int threads,
                           fx_device **out);
/* The same for the ranks of a control channel, each with its own threads: runtime.threads, or an equal share
 * of the processors. Collective; every rank returns the same status. log: NULL, or for warnings. */
fx_status fx_device_choose_job(const fx_config *config, fx_control *control, const fx_log *log,
                               fx_device **out);
/* The same for a job of this process alone; threads 0: as many as it may use. */
fx_status fx_device_choose_alone(const fx_config *config, int threads, fx_device **out);

#ifdef __cplusplus
}
#endif
#endif
