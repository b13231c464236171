/* SPDX-License-Identifier: Apache-2.0 */
/* The compute devices as a run would open them, the CPU and the first GPU, and a quick rate of their GEMM.
 * The rate is one square product on an otherwise unloaded moment: enough to see a wrong kernel or a core
 * shared, no benchmark. */
#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/machine.h"
#include "core/bench/product.h"
#include "core/train/threads.h"
#include "dynamo_rt/device/device.h"
#include "launch/doctor.h"

enum { GEMM_SIZE = 1024, GPU_GEMM_SIZE = 8192, GEMM_REPEATS = 5 };

/* Median GFLOP/s of products of n^3, after one that warms up. */
static fx_status measure_gemm(fx_device *device, fx_dtype dtype, int64_t n, double *gflops) {
  fx_bench_product *product = NULL;
  double times[GEMM_REPEATS];
  fx_status status = FX_OK;
  FX_TRY(fx_bench_product_create(device, dtype, FX_BENCH_FORWARD, n, n, n, &product));
  for (int i = 0; i < GEMM_REPEATS && status == FX_OK; i++) status = fx_bench_product_run(product, &times[i]);
  fx_bench_product_destroy(product);
  if (status == FX_OK) *gflops = 2e-6 * (double)(n * n * n) / fx_median(times, GEMM_REPEATS);
  return status;
}

/* OpenBLAS picks its kernel when it is loaded; only the copy that GEMM has opened is asked. */
static void report_openblas(fx_doctor *doctor) {
  const char *forced = getenv("OPENBLAS_CORETYPE");
  bool fixed = forced && forced[0];
  fx_doctor_fact(doctor, "openblas_coretype", fixed ? json_string(forced) : json_null(), "coretype",
                 "OPENBLAS_CORETYPE %s%s", fixed ? "is " : "is not set", fixed ? forced : "");
  void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_NOLOAD);
  if (fixed)
    fx_doctor_warn(
        doctor,
        "OPENBLAS_CORETYPE=%s is set: it fixes the kernel of OpenBLAS and may slow GEMM%s; unset it unless "
        "this processor needs it",
        forced, library ? "" : " (another library is in use here)");
  if (!library) return;
  char *(*text)(void);
  *(void **)&text = dlsym(library, "openblas_get_corename");
  if (text) fx_doctor_fact(doctor, "openblas_kernel", json_string(text()), "kernel", "%s", text());
  *(void **)&text = dlsym(library, "openblas_get_config");
  if (text) fx_doctor_fact(doctor, "openblas_config", json_string(text()), "config", "%s", text());
  dlclose(library);
}

static void report_gemm(fx_doctor *doctor, fx_device *device) {
  double gflops = 0;
  fx_doctor_fact(doctor, "gemm", json_string(device->gemm_name), "gemm", "%s", device->gemm_name);
  report_openblas(doctor);
  if (measure_gemm(device, FX_F32, GEMM_SIZE, &gflops) == FX_OK)
    fx_doctor_fact(doctor, "gemm_gflops", json_real(gflops), "gemm rate",
                   "%.0f GFLOP/s (fp32, %d^3, median of %d)", gflops, GEMM_SIZE, GEMM_REPEATS);
  else
    fx_doctor_warn(doctor, "GEMM could not be measured: %s", fx_error_text());
}

/* What a run on the first GPU would get, against what its maker says. */
static void report_gpu(fx_doctor *doctor) {
  fx_device *device = NULL;
  fx_machine_bounds bounds = {0, 0};
  double gflops = 0;
  if (fx_device_create_cuda(0, &device) != FX_OK) {
    fx_doctor_warn(doctor, "GPU 0 cannot be used: %s", fx_error_text());
    return;
  }
  fx_doctor_fact(doctor, "gpu_gemm", json_string(device->gemm_name), "gpu gemm", "%s", device->gemm_name);
  fx_status status = fx_machine_measure_device(device, FX_BF16, &bounds);
  if (status == FX_OK) status = measure_gemm(device, FX_BF16, GPU_GEMM_SIZE, &gflops);
  if (status == FX_OK) {
    fx_doctor_fact(doctor, "gpu_copy_gbps", json_real(bounds.copy_gbps), "gpu copy",
                   "%.0f GB/s read and written", bounds.copy_gbps);
    fx_doctor_fact(doctor, "gpu_gemm_gflops", json_real(gflops), "gpu rate",
                   bounds.gflops > 0 ? "%.0f TFLOP/s (bfloat16, %d^3) of %.0f nominal"
                                     : "%.0f TFLOP/s (bfloat16, %d^3); its peak is not known",
                   gflops / 1e3, GPU_GEMM_SIZE, bounds.gflops / 1e3);
  } else {
    fx_doctor_warn(doctor, "GPU 0 could not be measured: %s", fx_error_text());
  }
  fx_device_destroy(device);
}

void fx_doctor_compute(fx_doctor *doctor) {
  fx_affinity affinity = fx_affinity_get();
  int threads = fx_affinity_threads(&affinity, 1, 0, NULL), allowed = omp_get_max_threads();
  fx_device *device = NULL;
  fx_doctor_fact(doctor, "threads", json_integer(threads), "threads",
                 "%d under runtime.threads: auto, one rank", threads);
  fx_doctor_fact(doctor, "openmp_threads", json_integer(allowed), "OpenMP",
                 "%d threads before flexion sets its own", allowed);
  if (fx_device_create_cpu(threads, "auto", &device) != FX_OK) {
    fx_doctor_warn(doctor, "the CPU device cannot be opened: %s", fx_error_text());
    return;
  }
  fx_doctor_fact(doctor, "isa", json_string(device->isa), "isa", "%s", device->isa);
  report_gemm(doctor, device);
  fx_device_destroy(device);
  if (affinity.gpus > 0) report_gpu(doctor);
}
