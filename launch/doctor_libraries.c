/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of the transport, of checkpoints and of the GPU. The CUDA driver and NVRTC are opened at
 * run time and only asked for their versions and devices. */
#include <stdbool.h>
#include <stdio.h>

#include "data/h5/h5_file.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/driver.h"
#include "launch/doctor.h"
#include "parallel/comm/cuda/comm_nccl.h"
#include "parallel/comm/mpi/bootstrap.h"

static void report_mpi(fx_doctor *doctor) {
  char text[512];
  const char *version = fx_mpi_version(text, sizeof text);
  fx_doctor_fact(doctor, "mpi", json_string(version), "mpi", "%s", version);
}

static void report_hdf5(fx_doctor *doctor) {
  char text[64];
  fx_h5_version(text, sizeof text);
  fx_doctor_fact(doctor, "hdf5", json_string(text), "hdf5", "%s", text);
}

static void report_devices(fx_doctor *doctor, const fx_cuda_probe *probe) {
  json_t *list = json_array();
  for (int i = 0; i < probe->count; i++) {
    const fx_cuda_info *d = &probe->device[i];
    char text[192];
    json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:I}", "name", d->name, "sm",
                                          d->major * 10 + d->minor, "multiprocessors", d->multiprocessors,
                                          "memory_bytes", (json_int_t)d->memory));
    snprintf(text, sizeof text, "%d: %s, sm_%d%d, %d multiprocessors, %.1f GiB", i, d->name, d->major,
             d->minor, d->multiprocessors, (double)d->memory / (1024.0 * 1024.0 * 1024.0));
    json_array_append_new(doctor->texts, json_pack("[ss]", "gpu", text));
  }
  fx_doctor_fact(doctor, "cuda_gpus", list, NULL, NULL);
}

static void report_cuda(fx_doctor *doctor) {
  fx_cuda_probe probe;
  char version[32], compiler[32];
  int major = 0, minor = 0;
  fx_cuda_probe_get(&probe);
  snprintf(version, sizeof version, "%d.%d", probe.driver_version / 1000, probe.driver_version % 1000 / 10);
  if (probe.driver_version)
    fx_doctor_fact(doctor, "cuda_driver", json_string(version), "cuda", "driver for CUDA %s, %d device%s",
                   version, probe.count, probe.count == 1 ? "" : "s");
  else
    fx_doctor_fact(doctor, "cuda_driver", json_null(), "cuda", "%s", probe.reason);
  fx_doctor_fact(doctor, "cuda_devices", json_integer(probe.count), NULL, NULL);
  report_devices(doctor, &probe);
  if (probe.driver_version && probe.count == 0)
    fx_doctor_warn(doctor, "a CUDA driver is installed but %s; check the device and its permissions",
                   probe.reason);
  char nccl[256];
  fx_nccl_version(nccl, sizeof nccl);
  fx_doctor_fact(doctor, "nccl", json_string(nccl), "nccl", "%s", nccl);
  bool found = fx_nvrtc_version(&major, &minor) == FX_OK;
  snprintf(compiler, sizeof compiler, "%d.%d", major, minor);
  fx_doctor_fact(doctor, "nvrtc", found ? json_string(compiler) : json_null(), "nvrtc", "%s",
                 found ? compiler : "not found: no kernel can be compiled for a GPU");
}

void fx_doctor_libraries(fx_doctor *doctor) {
  report_mpi(doctor);
  report_hdf5(doctor);
  report_cuda(doctor);
}
