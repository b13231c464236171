/* SPDX-License-Identifier: Apache-2.0 */
/* The compute device as a run with `device: cpu` would open it, and a quick rate of its GEMM. The rate is one
 * square product on an otherwise unloaded moment: enough to see a wrong kernel or a core shared, no
 * benchmark. */
#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/machine.h"
#include "core/train/threads.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/exec/trace.h"
#include "dynamo_rt/ops/cpu/gemm.h"
#include "launch/doctor.h"

enum { GEMM_SIZE = 1024, GEMM_REPEATS = 5 };

/* Median GFLOP/s of fp32 products of GEMM_SIZE^3, after one that warms up. */
static fx_status measure_gemm(const fx_gemm *gemm, double *gflops) {
  const int64_t n = GEMM_SIZE;
  float *matrices = NULL;
  double times[GEMM_REPEATS];
  fx_status status = fx_alloc_aligned(&matrices, (size_t)(3 * n * n) * sizeof *matrices);
  if (status != FX_OK) return status;
  for (int64_t i = 0; i < 3 * n * n; i++) matrices[i] = (float)(i % 17) * 0.125f - 1.0f;
  for (int i = -1; i < GEMM_REPEATS; i++) {
    int64_t start = fx_now_ns();
    FX_TRY_GOTO(fx_gemm_f32(gemm, false, false, n, n, n, matrices, n, matrices + n * n, n, 0.0f,
                            matrices + 2 * n * n, n),
                free_matrices);
    if (i >= 0) times[i] = (double)(fx_now_ns() - start) / 1e9;
  }
  *gflops = 2e-9 * (double)(n * n * n) / fx_median(times, GEMM_REPEATS);
free_matrices:
  free(matrices);
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

static void report_gemm(fx_doctor *doctor, const fx_gemm *gemm) {
  double gflops = 0;
  fx_doctor_fact(doctor, "gemm", json_string(fx_gemm_name(gemm)), "gemm", "%s", fx_gemm_name(gemm));
  report_openblas(doctor);
  if (measure_gemm(gemm, &gflops) == FX_OK)
    fx_doctor_fact(doctor, "gemm_gflops", json_real(gflops), "gemm rate",
                   "%.0f GFLOP/s (fp32, %d^3, median of %d)", gflops, GEMM_SIZE, GEMM_REPEATS);
  else
    fx_doctor_warn(doctor, "GEMM could not be measured: %s", fx_error_text());
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
  report_gemm(doctor, device->gemm);
  fx_device_destroy(device);
}
