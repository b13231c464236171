/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in rank order: the arithmetic that CPU transports share, so that every transport, message size and
 * segment length gives the same bits. */
#ifndef FX_PARALLEL_COMM_REDUCE_H
#define FX_PARALLEL_COMM_REDUCE_H

#include "dynamo_rt/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FX_ERR_UNSUPPORTED with a sentence when the call reduces a type that is only copied (bfloat16, float16,
 * uint8). */
fx_status fx_reduce_check(const fx_comm *comm, const fx_comm_call *call);

/* dst[i] = ((src[0][i] + src[1][i]) + src[2][i]) + ..., or the maximum (NaN wins). Each src[r] holds `count`
 * elements; dst may be one of them, at the same address. Integers wrap around. */
void fx_reduce_ranks(fx_dtype dtype, fx_reduce reduce, const void *const *src, int num_ranks, void *dst,
                     int64_t count);

#ifdef __cplusplus
}
#endif
#endif
