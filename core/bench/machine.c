/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/machine.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/peak.h"
#include "dynamo_rt/base/isa.h"

enum { REPEATS = 7, LANES = 16, CHAINS = 12, FMA_LOOPS = 1000000, COPY_BYTES = 256 << 20 };

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

/* CHAINS independent accumulators of LANES floats hide the latency of the multiply-add on every ISA. This
 * file alone is compiled with contraction (CMakeLists.txt), so that the two operations become one. */
FX_ISA_CLONES static float fma_loop(float x, int64_t loops) {
  lanes acc[CHAINS], factor = {0}, half = {0};
  factor += x;
  half += 0.5f;
  for (int c = 0; c < CHAINS; c++) acc[c] = factor * (float)c;
  for (int64_t i = 0; i < loops; i++) {
#pragma GCC unroll 12
    for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * factor + half;
  }
  float sum = 0;
  for (int c = 0; c < CHAINS; c++)
    for (int l = 0; l < LANES; l++) sum += acc[c][l];
  return sum;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double fx_median(double *values, int count) {
  qsort(values, (size_t)count, sizeof *values, by_value);
  return values[count / 2];
}

static double measure_fma(int threads) {
  double seconds[REPEATS];
  volatile float sink = 0.999f;
  for (int r = 0; r < REPEATS; r++) {
    float total = 0, x = sink;
    int64_t begin = fx_now_ns();
#pragma omp parallel for num_threads(threads) reduction(+ : total)
    for (int t = 0; t < threads; t++) total += fma_loop(x, FMA_LOOPS);
    seconds[r] = (double)(fx_now_ns() - begin) / 1e9;
    sink = total > 0 ? 0.999f : 0.998f;
  }
  return 2e-9 * CHAINS * LANES * (double)FMA_LOOPS * threads / fx_median(seconds, REPEATS);
}

static double measure_copy(int threads) {
  double seconds[REPEATS];
  char *memory = NULL;
  const int64_t half = COPY_BYTES / 2;
  if (fx_alloc_aligned(&memory, COPY_BYTES) != FX_OK) return 0;
  memset(memory, 1, COPY_BYTES);
  for (int r = 0; r < REPEATS; r++) {
    int64_t begin = fx_now_ns();
#pragma omp parallel for num_threads(threads)
    for (int t = 0; t < threads; t++) {
      int64_t from = half / threads * t, length = half / threads;
      memcpy(memory + half + from, memory + from, (size_t)length);
    }
    seconds[r] = (double)(fx_now_ns() - begin) / 1e9;
  }
  free(memory);
  return 1e-9 * COPY_BYTES / fx_median(seconds, REPEATS);
}

fx_machine_bounds fx_machine_measure(int threads) {
  return (fx_machine_bounds){.gflops = measure_fma(threads), .copy_gbps = measure_copy(threads)};
}

static fx_status measure_device_copy(fx_device *device, double *gbps) {
  enum { COPIES = 20 };
  const size_t bytes = 1u << 30;
  void *from = NULL, *to = NULL;
  double seconds[REPEATS];
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_device_alloc(device, bytes, &from), release);
  FX_TRY_GOTO(fx_device_alloc(device, bytes, &to), release);
  FX_TRY_GOTO(fx_device_fill(device, FX_LANE_COMPUTE, from, 1, bytes), release);
  for (int r = 0; r < REPEATS; r++) {
    FX_TRY_GOTO(fx_device_sync(device), release);
    int64_t begin = fx_now_ns();
    for (int i = 0; i < COPIES; i++)
      FX_TRY_GOTO(fx_device_copy(device, FX_LANE_COMPUTE, to, from, bytes), release);
    FX_TRY_GOTO(fx_device_sync(device), release);
    seconds[r] = (double)(fx_now_ns() - begin) / 1e9 / COPIES;
  }
  *gbps = 2e-9 * (double)bytes / fx_median(seconds, REPEATS);
release:
  fx_device_release(device, from);
  fx_device_release(device, to);
  return status;
}

fx_status fx_machine_measure_device(fx_device *device, fx_dtype dtype, fx_machine_bounds *out) {
  if (device->backend == FX_BACKEND_CPU) {
    *out = fx_machine_measure(device->threads);
    return FX_OK;
  }
  out->gflops = fx_device_peak(device->name, dtype) / 1e9;
  return measure_device_copy(device, &out->copy_gbps);
}
