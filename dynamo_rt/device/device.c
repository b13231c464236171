/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/device/device.h"

#include <string.h>

const char *fx_lane_name(fx_lane lane) {
  static const char *const names[FX_LANE_COUNT] = {
#define FX_LANE_ROW(name, text) text,
      FX_LANE_LIST(FX_LANE_ROW)
#undef FX_LANE_ROW
  };
  return (unsigned)lane < FX_LANE_COUNT ? names[lane] : "unknown";
}

void fx_device_destroy(fx_device *device) {
  if (device) device->vtable->destroy(device);
}

typedef struct call_task {
  fx_task_fn task;
  void *arg;
  fx_status status;
  char text[2048];
} call_task;

/* A failing call is the caller's to judge: it must not poison the device. */
static fx_status run_call(void *arg, void *stream) {
  call_task *call = arg;
  call->status = call->task(call->arg, stream);
  if (call->status != FX_OK) strncpy(call->text, fx_error_text(), sizeof call->text - 1);
  return FX_OK;
}

fx_status fx_device_call(fx_device *device, fx_lane lane, fx_task_fn task, void *arg) {
  call_task call = {.task = task, .arg = arg};
  FX_TRY(fx_device_launch(device, lane, run_call, &call));
  FX_TRY(fx_device_sync(device));
  return call.status == FX_OK ? FX_OK : fx_error(call.status, "%s", call.text);
}
