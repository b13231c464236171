/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements that all ranks of a job make together and one prints. */
#ifndef FX_LAUNCH_RANKS_H
#define FX_LAUNCH_RANKS_H

#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts MPI, measures, prints on rank 0 and ends MPI; returns the exit code. `measure` is collective and
 * gives every rank the same status, whose sentence rank 0 prints; after FX_ERR_COMM the job is aborted. */
int fx_measure_on_ranks(fx_status (*measure)(fx_control *control, void *measurement),
                        void (*print)(const void *measurement), void *measurement);

#ifdef __cplusplus
}
#endif
#endif
