/* SPDX-License-Identifier: Apache-2.0 */
/* A trace of kernels on lanes: fixed capacity, written by the lanes' threads, saved as Chrome / Perfetto
 * JSON. */
#ifndef FX_DYNAMO_RT_EXEC_TRACE_H
#define FX_DYNAMO_RT_EXEC_TRACE_H

#include <stdint.h>

#include "dynamo_rt/base/status.h"
#include "dynamo_rt/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_trace_span {
  const char *name; /* op name */
  int32_t lane, layer;
  int64_t begin_ns, end_ns; /* fx_now_ns */
} fx_trace_span;

typedef struct fx_trace fx_trace;

fx_status fx_trace_create(int64_t capacity, fx_trace **out);
void fx_trace_destroy(fx_trace *trace); /* NULL is fine */
/* Any thread; spans past the capacity are counted and dropped. */
void fx_trace_add(fx_trace *trace, fx_trace_span span);
int64_t fx_trace_count(const fx_trace *trace); /* after the lanes are synchronised */
const fx_trace_span *fx_trace_spans(const fx_trace *trace);
/* Nanoseconds during which a span of lane a and a span of lane b ran at the same time. */
int64_t fx_trace_overlap(const fx_trace *trace, fx_lane a, fx_lane b);
/* Writes the Chrome trace event format, one row a lane of process `rank`. %d in the path becomes the rank;
 * without it only rank 0 writes. */
fx_status fx_trace_save(const fx_trace *trace, const char *path, int rank);

#ifdef __cplusplus
}
#endif
#endif
