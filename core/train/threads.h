/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has of its host: processors and a GPU; how many compute threads it gets under
 * `runtime.threads: auto`. */
#ifndef FX_CORE_TRAIN_THREADS_H
#define FX_CORE_TRAIN_THREADS_H

#include "dynamo_rt/base/log.h"
#include "dynamo_rt/base/status.h"
#include "dynamo_rt/device/cuda/driver.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_AFFINITY_WORDS = 16 }; /* 1024 processors */

/* Where a rank may run: exchanged between ranks as bytes, so plain data without gaps. */
typedef struct fx_affinity {
  uint64_t host; /* hash of the host name */
  uint64_t mask[FX_AFFINITY_WORDS];
  int64_t gpus;                    /* that the process sees */
  uint8_t gpu[FX_CUDA_UUID_BYTES]; /* the one of them that it takes (FX_DEVICE_BY_RANK); 0 without */
} fx_affinity;

fx_affinity fx_affinity_get(void);                                        /* of the calling process */
int fx_affinity_count(const fx_affinity *affinity);                       /* processors in the mask */
int fx_affinity_ranks_here(const fx_affinity *ranks, int size, int rank); /* ranks on rank's host */
/* An equal share of this rank's processors among the ranks of its host whose masks overlap it, at least 1.
 * Warns when ranks outnumber processors, as under mpirun's default binding of several ranks to one core. */
int fx_affinity_threads(const fx_affinity *ranks, int size, int rank, const fx_log *log);

#ifdef __cplusplus
}
#endif
#endif
