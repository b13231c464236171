/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/exec/trace.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

struct fx_trace {
  int64_t capacity;
  atomic_int_fast64_t next;
  fx_trace_span *spans;
};

fx_status fx_trace_create(int64_t capacity, fx_trace **out) {
  fx_trace *trace = NULL;
  FX_TRY(fx_calloc(&trace, 1, sizeof *trace));
  fx_status status = fx_calloc(&trace->spans, (size_t)capacity, sizeof *trace->spans);
  if (status != FX_OK) {
    free(trace);
    return status;
  }
  trace->capacity = capacity;
  *out = trace;
  return FX_OK;
}

void fx_trace_destroy(fx_trace *trace) {
  if (!trace) return;
  free(trace->spans);
  free(trace);
}

void fx_trace_add(fx_trace *trace, fx_trace_span span) {
  int64_t index = atomic_fetch_add(&trace->next, 1);
  if (index < trace->capacity) trace->spans[index] = span;
}

int64_t fx_trace_count(const fx_trace *trace) {
  return fx_min_i64(atomic_load(&trace->next), trace->capacity);
}

const fx_trace_span *fx_trace_spans(const fx_trace *trace) {
  return trace->spans;
}

int64_t fx_trace_overlap(const fx_trace *trace, fx_lane a, fx_lane b) {
  int64_t count = fx_trace_count(trace), total = 0;
  for (int64_t i = 0; i < count; i++)
    for (int64_t j = 0; trace->spans[i].lane == (int32_t)a && j < count; j++) {
      if (trace->spans[j].lane != (int32_t)b) continue;
      int64_t begin = fx_max_i64(trace->spans[i].begin_ns, trace->spans[j].begin_ns);
      int64_t end = fx_min_i64(trace->spans[i].end_ns, trace->spans[j].end_ns);
      if (end > begin) total += end - begin;
    }
  return total;
}

static fx_status save(const fx_trace *trace, const char *path, int rank) {
  FILE *file = fopen(path, "w");
  if (!file) return fx_error(FX_ERR_IO, "cannot write the trace %s", path);
  fprintf(file, "{\"traceEvents\": [\n");
  for (int l = 0; l < FX_LANE_COUNT; l++)
    fprintf(file,
            "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": "
            "\"%s\"}},\n",
            rank, l, fx_lane_name((fx_lane)l));
  for (int64_t i = 0; i < fx_trace_count(trace); i++) {
    const fx_trace_span *s = &trace->spans[i];
    fprintf(file,
            "{\"name\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
            "\"args\": {\"layer\": "
            "%d}},\n",
            s->name, rank, s->lane, (double)s->begin_ns / 1e3, (double)(s->end_ns - s->begin_ns) / 1e3,
            s->layer);
  }
  fprintf(file,
          "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}}\n]}\n",
          rank, rank);
  bool failed = ferror(file) != 0;
  if (fclose(file) != 0 || failed) return fx_error(FX_ERR_IO, "cannot write the trace %s", path);
  return FX_OK;
}

fx_status fx_trace_save(const fx_trace *trace, const char *path, int rank) {
  const char *mark = strstr(path, "%d");
  if (!mark) return rank == 0 ? save(trace, path, rank) : FX_OK;
  char *own = fx_strfmt("%.*s%d%s", (int)(mark - path), path, rank, mark + 2);
  if (!own) return fx_error(FX_ERR_MEMORY, "no memory for the name of a trace");
  fx_status status = save(trace, own, rank);
  free(own);
  return status;
}
