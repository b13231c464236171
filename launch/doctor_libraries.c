/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries of the transport, of checkpoints and of the GPU. The CUDA driver is opened here as it is
 * everywhere, at run time, and only asked for its version and devices. */
#include <dlfcn.h>

#include "data/h5/h5_file.h"
#include "launch/doctor.h"
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

typedef int (*cu_init_fn)(unsigned flags);
typedef int (*cu_get_int_fn)(int *out);

static void report_cuda(fx_doctor *doctor) {
  int version = 0, devices = 0, result;
  cu_init_fn init;
  cu_get_int_fn driver_version, device_count;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fx_doctor_fact(doctor, "cuda_driver", json_null(), "cuda", "no driver (libcuda.so.1 not found)");
    fx_doctor_fact(doctor, "cuda_devices", json_integer(0), NULL, NULL);
    return;
  }
  *(void **)&init = dlsym(library, "cuInit");
  *(void **)&driver_version = dlsym(library, "cuDriverGetVersion");
  *(void **)&device_count = dlsym(library, "cuDeviceGetCount");
  if (driver_version && driver_version(&version) != 0) version = 0;
  result = init ? init(0) : -1;
  if (result == 0 && (!device_count || device_count(&devices) != 0)) devices = 0;
  char name[32];
  snprintf(name, sizeof name, "%d.%d", version / 1000, version % 1000 / 10);
  fx_doctor_fact(doctor, "cuda_driver", json_string(name), "cuda", "driver for CUDA %s, %d device%s", name,
                 devices, devices == 1 ? "" : "s");
  fx_doctor_fact(doctor, "cuda_devices", json_integer(devices), NULL, NULL);
  if (result != 0)
    fx_doctor_warn(doctor,
                   "a CUDA driver is installed but cuInit returned %d; check the device and its permissions",
                   result);
  /* The library stays open: closing a driver that started is not safe. */
}

void fx_doctor_libraries(fx_doctor *doctor) {
  report_mpi(doctor);
  report_hdf5(doctor);
  report_cuda(doctor);
}
