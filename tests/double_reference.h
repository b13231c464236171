/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded graphs in double precision, node by node in the order of recording: what the kernels of every
 * backend are tested against. Each op is a small function written from its definition (double_ops.c); no
 * kernel and no helper of one is called.
 *
 * Nothing is rounded but what the op itself is: a cast to a narrower type rounds to nearest even, so that a
 * graph that begins with casts to bfloat16 computes on the numbers that a device gets, and the angles of rope
 * are float32 products, as in the models that use them. Results of other ops stay doubles whatever their type
 * says; the bounds of the comparison are for that. */
#ifndef FX_TESTS_DOUBLE_REFERENCE_H
#define FX_TESTS_DOUBLE_REFERENCE_H

#include "dynamo_rt/graph/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs `graph`, which no pass has changed, from what its persistent memory holds now; that memory is only
 * read. result[i] receives every element of the persistent storage that begins at data[i] as it is after the
 * run. Memory that nothing has written holds NaN. FX_ERR_UNSUPPORTED: the reference lacks an op, which the
 * sentence names. */
fx_status fx_double_reference_run(const fx_graph *graph, const void *const *data, double *const *result,
                                  int count);

/* Element i of `data`, which need not be aligned; `number` rounded to nearest, ties to even, as `dtype` holds
 * it. */
double fx_double_load(const void *data, fx_dtype dtype, int64_t i);
double fx_double_round(double number, fx_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
