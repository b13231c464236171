/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the stand-in, modules and launches. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/device/cuda/driver_api.h"
#include "tests/standin/standin.h"

/* ---- devices ---- */

static int count_gpus(void) {
  const char *text = getenv("FLEXION_STANDIN_GPUS");
  return text ? atoi(text) : 1;
}
STANDIN_EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGetErrorName(int result, const char **text) {
  *text = result ? "STANDIN_ERROR" : "STANDIN_SUCCESS";
  return STANDIN_OK;
}
STANDIN_EXPORT int cuGetErrorString(int result, const char **text) {
  *text = result ? "the stand-in has refused it" : "no error";
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDriverGetVersion(int *version) {
  *version = 13000;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDeviceGetCount(int *count) {
  *count = count_gpus();
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < count_gpus() ? STANDIN_OK : STANDIN_INVALID;
}
STANDIN_EXPORT int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, (size_t)size, "stand-in %d", device);
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDeviceGetUuid(void *bytes, int device) {
  memset(bytes, device + 1, 16);
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  *bytes = (size_t)STANDIN_MIB << 20;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == FX_CU_ATTRIBUTE_MULTIPROCESSORS ? 132 : attribute == FX_CU_ATTRIBUTE_MAJOR ? 9 : 0;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)(uintptr_t)(0x100 + device);
  return STANDIN_OK;
}
STANDIN_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuCtxSetCurrent(void *context) {
  return context ? STANDIN_OK : STANDIN_INVALID;
}

/* ---- kernels: a module is the text that it was compiled from ---- */

STANDIN_EXPORT int cuModuleLoadData(void **module, const void *image) {
  if (standin_not_in_capture("the loading of a module")) return STANDIN_IN_CAPTURE;
  *module = strdup(image);
  return *module ? STANDIN_OK : STANDIN_MEMORY;
}
STANDIN_EXPORT int cuModuleUnload(void *module) {
  free(module);
  return STANDIN_OK;
}
typedef struct function {
  int shared; /* dynamic, that it may have */
  bool tells;
} function;

/* Behind the name that the text has may follow the type that it was compiled for. */
STANDIN_EXPORT int cuModuleGetFunction(void **out, void *module, const char *name) {
  char stem[128];
  snprintf(stem, sizeof stem, "%s", name);
  char *type = strrchr(stem, '_');
  if (type && (strcmp(type, "_f32") == 0 || strcmp(type, "_bf16") == 0)) *type = 0;
  if (!strstr(module, stem)) return standin_fault(STANDIN_NOT_FOUND, "no kernel is called %s", name);
  function *f = calloc(1, sizeof *f);
  if (f) f->tells = strcmp(name, "tell_host") == 0;
  *out = f;
  return f ? STANDIN_OK : STANDIN_MEMORY;
}
STANDIN_EXPORT int cuFuncGetAttribute(int *value, int attribute, void *handle) {
  const function *f = handle;
  *value = attribute == FX_CU_FUNCTION_REGISTERS     ? 64
           : attribute == FX_CU_FUNCTION_LOCAL_BYTES ? 0
                                                     : f->shared;
  return STANDIN_OK;
}
STANDIN_EXPORT int cuFuncSetAttribute(void *handle, int attribute, int value) {
  enum { SHARED_LIMIT = 227 << 10 };
  function *f = handle;
  if (attribute == FX_CU_FUNCTION_MAX_DYNAMIC_SHARED) f->shared = value;
  return value <= SHARED_LIMIT ? STANDIN_OK
                               : standin_fault(STANDIN_INVALID, "%d bytes of shared memory", value);
}

static int check_launch(const void *handle, const unsigned grid[3], const unsigned threads[3],
                        unsigned shared) {
  enum { SHARED_DEFAULT = 48 << 10 };
  const function *f = handle;
  unsigned limit = f && f->shared > SHARED_DEFAULT ? (unsigned)f->shared : SHARED_DEFAULT;
  uint64_t block_threads = (uint64_t)threads[0] * threads[1] * threads[2];
  bool fits = f && grid[0] > 0 && grid[0] < 1u << 31 && grid[1] > 0 && grid[1] < 65536 && grid[2] > 0 &&
              grid[2] < 65536 && block_threads > 0 && block_threads <= 1024 && shared <= limit;
  return fits ? STANDIN_OK
              : standin_fault(STANDIN_INVALID,
                              "a launch of %u x %u x %u blocks of %u x %u x %u, %u bytes shared", grid[0],
                              grid[1], grid[2], threads[0], threads[1], threads[2], shared);
}

static int launch(const function *f, void *on, void **args) {
  if (!f->tells) return standin_kernel(on);
  uint64_t to = *(const uint64_t *)args[0];
  int result = standin_word(to + sizeof(uint32_t), *(const uint32_t *)args[2], on);
  return result ? result : standin_word(to, *(const uint32_t *)args[1], on);
}

STANDIN_EXPORT int cuLaunchKernel(void *f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                  void *on, void **args, void **extra) {
  const unsigned grid[3] = {grid_x, grid_y, grid_z}, threads[3] = {block_x, block_y, block_z};
  (void)extra;
  int result = check_launch(f, grid, threads, shared);
  return result ? result : launch(f, on, args);
}
STANDIN_EXPORT int cuLaunchKernelEx(const void *config, void *f, void **args, void **extra) {
  struct {
    unsigned grid[3], threads[3], shared;
    void *on;
  } c;
  (void)extra;
  memcpy(&c, config, sizeof c);
  int result = check_launch(f, c.grid, c.threads, c.shared);
  return result ? result : launch(f, c.on, args);
}

STANDIN_EXPORT int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *data,
                                          const uint64_t *dims, const uint64_t *stride_bytes,
                                          const uint32_t *box, const uint32_t *steps, int interleave,
                                          int swizzle, int l2, int fill) {
  bool fits = (uintptr_t)data % 16 == 0 && rank >= 1 && rank <= 5;
  (void)type, (void)interleave, (void)swizzle, (void)l2, (void)fill;
  for (uint32_t i = 0; i < rank && fits; i++)
    fits = dims[i] > 0 && dims[i] <= 1ull << 32 && box[i] > 0 && box[i] <= 256 && steps[i] > 0 &&
           (i + 1 == rank || (stride_bytes[i] % 16 == 0 && stride_bytes[i] < 1ull << 40));
  memset(map, 0, 128);
  return fits ? STANDIN_OK : standin_fault(STANDIN_INVALID, "a tensor map that no driver takes");
}
