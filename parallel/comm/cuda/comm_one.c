/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/comm/cuda/comm_one.h"

#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"

typedef struct one_comm {
  fx_comm base;
  const fx_cuda_driver *driver;
} one_comm;

/* Every kind that has a source moves `count` elements of it: the block of the only rank is all there is. */
static fx_status one_issue(fx_comm *base, const fx_comm_call *call) {
  const fx_cuda_driver *driver = ((one_comm *)base)->driver;
  size_t bytes = (size_t)call->count * fx_dtype_bytes(call->dtype);
  if (call->kind == FX_SEND || call->kind == FX_RECV)
    return fx_error(FX_ERR_COMM, "a %s on communicator %s of one rank has no partner",
                    fx_collective_name(call->kind), base->name);
  if (call->kind == FX_BROADCAST || call->kind == FX_BARRIER || call->src == call->dst || bytes == 0)
    return FX_OK;
  return fx_cuda_check(
      driver,
      driver->copy((uint64_t)(uintptr_t)call->dst, (uint64_t)(uintptr_t)call->src, bytes, call->stream),
      fx_collective_name(call->kind));
}

static void one_destroy(fx_comm *base) {
  free(base);
}

static const fx_comm_vtable g_one_vtable = {
    .transport = "one rank", .on_device = true, .issue = one_issue, .destroy = one_destroy};

fx_status fx_comm_one_create(fx_device *device, const char *name, int id, fx_comm **out) {
  one_comm *comm = NULL;
  FX_TRY(fx_calloc(&comm, 1, sizeof *comm));
  comm->base = (fx_comm){.vtable = &g_one_vtable, .size = 1, .id = id};
  snprintf(comm->base.name, sizeof comm->base.name, "%s", name);
  comm->driver = ((const fx_cuda_context *)device->gemm)->driver;
  *out = &comm->base;
  return FX_OK;
}
