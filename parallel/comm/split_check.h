/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport does before it makes a communicator: all ranks meet, and their ideas of the groups are
 * compared, so that a wrong group is a sentence and not a hang inside the transport. */
#ifndef FX_PARALLEL_COMM_SPLIT_CHECK_H
#define FX_PARALLEL_COMM_SPLIT_CHECK_H

#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_SPLIT_TIMEOUT_MS = 120000 }; /* ranks start up to two minutes apart on a cold file system */

/* Collective over the control channel; arguments as fx_control_split. *group_rank: this rank's place among
 * `ranks`, -1 when count is 0. FX_ERR_COMM, on every rank, when a rank lists a member that lists another
 * group, or is not itself in its list. */
fx_status fx_split_check(fx_control *control, const char *name, int id, const int *ranks, int count,
                         int *group_rank);

#ifdef __cplusplus
}
#endif
#endif
