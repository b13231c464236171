/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a job that does not run: communicators of the right shape that carry no data, for plans that are
 * made to be looked at. */
#ifndef FX_PARALLEL_COMM_DRY_H
#define FX_PARALLEL_COMM_DRY_H

#include "dynamo_rt/comm/control.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The control channel of `rank` of `size`, without the others: fx_control_split answers at once with a
 * communicator on which every call fails (FX_ERR_UNSUPPORTED), as every message does. Not collective. */
fx_status fx_control_create_dry(int rank, int size, fx_control **out);

#ifdef __cplusplus
}
#endif
#endif
