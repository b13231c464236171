/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/comm/control.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

fx_status fx_control_all_gather(fx_control *control, const void *mine, int64_t bytes, char **all,
                                int64_t *offsets, int timeout_ms) {
  return control->vtable->all_gather(control, mine, bytes, all, offsets, timeout_ms);
}

fx_status fx_control_broadcast(fx_control *control, void *data, int64_t bytes, int timeout_ms) {
  int64_t *offsets = NULL;
  char *all = NULL;
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  fx_status status =
      fx_control_all_gather(control, data, control->rank == 0 ? bytes : 0, &all, offsets, timeout_ms);
  if (status == FX_OK && offsets[1] != bytes)
    status = fx_error(FX_ERR_COMM, "a broadcast of %lld bytes was met by one of %lld bytes on rank 0",
                      (long long)bytes, (long long)offsets[1]);
  if (status == FX_OK) memcpy(data, all, (size_t)bytes);
  free(all);
  free(offsets);
  return status;
}

fx_status fx_control_barrier(fx_control *control, int timeout_ms) {
  return fx_control_agree_status(control, FX_OK, timeout_ms);
}

fx_status fx_control_largest(fx_control *control, double mine, double *out, int timeout_ms) {
  int64_t *offsets = NULL;
  char *all = NULL;
  double most = mine;
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  fx_status status = fx_control_all_gather(control, &mine, sizeof mine, &all, offsets, timeout_ms);
  for (int r = 0; status == FX_OK && r < control->size; r++) {
    double theirs;
    memcpy(&theirs, all + offsets[r], sizeof theirs);
    most = theirs > most || isnan(theirs) ? theirs : most;
  }
  if (status == FX_OK) *out = most;
  free(all);
  free(offsets);
  return status;
}

fx_status fx_control_agree_status(fx_control *control, fx_status mine, int timeout_ms) {
  char text[2048] = "";
  int64_t *offsets = NULL;
  char *all = NULL;
  if (mine != FX_OK) {
    text[0] = (char)mine;
    strncpy(text + 1, fx_error_text(), sizeof text - 2);
  }
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  int64_t bytes = mine == FX_OK ? 0 : 1 + (int64_t)strlen(text + 1) + 1;
  fx_status status = fx_control_all_gather(control, text, bytes, &all, offsets, timeout_ms);
  for (int r = 0; status == FX_OK && r < control->size; r++) {
    if (offsets[r + 1] == offsets[r]) continue;
    const char *record = all + offsets[r];
    if (control->size > 1)
      status = fx_error((fx_status)record[0], "rank %d: %s", r, record + 1);
    else
      status = fx_error((fx_status)record[0], "%s", record + 1);
  }
  free(all);
  free(offsets);
  return status;
}

fx_status fx_control_split(fx_control *control, const char *name, int id, const int *ranks, int count,
                           fx_comm **out) {
  return control->vtable->split(control, name, id, ranks, count, out);
}

fx_status fx_control_duplicate(fx_control *control, fx_control **out) {
  if (control->vtable->duplicate) return control->vtable->duplicate(control, out);
  return fx_error(FX_ERR_UNSUPPORTED, "the %s control channel has no second one", control->vtable->transport);
}

fx_status fx_control_meet(fx_control *control, const void *mine, int64_t bytes, void *all, bool *here,
                          int timeout_ms) {
  return control->vtable->meet(control, mine, bytes, all, here, timeout_ms);
}

void fx_control_destroy(fx_control *control) {
  if (control) control->vtable->destroy(control);
}
