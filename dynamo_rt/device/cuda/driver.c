/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/device/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/device/cuda/library.h"

/* The driver is one a process whatever its callers do, so its table is too: written once, then constant. */
static struct {
  pthread_once_t once;
  fx_cuda_driver table;
  int version;
  fx_status status;
  char reason[512];
} g_driver = {.once = PTHREAD_ONCE_INIT};

fx_status fx_cuda_check(const fx_cuda_driver *driver, int result, const char *what) {
  const char *name = NULL, *text = NULL;
  if (result == 0) return FX_OK;
  if (driver->error_name(result, &name) != 0 || !name) name = "unknown error";
  if (driver->error_text(result, &text) != 0 || !text) text = "no text";
  return fx_error(result == 2 ? FX_ERR_MEMORY : FX_ERR_DEVICE, "%s: %s (%d, %s)", what, name, result, text);
}

static fx_status open_driver(void) {
  static const fx_cuda_symbol symbols[] = {
#define FX_CUDA_DRIVER_SYMBOL(field, name, parameters) {name, offsetof(fx_cuda_driver, field)},
      FX_CUDA_DRIVER_LIST(FX_CUDA_DRIVER_SYMBOL)};
  static const fx_cuda_symbol optional[] = {FX_CUDA_DRIVER_OPTIONAL_LIST(FX_CUDA_DRIVER_SYMBOL)
#undef FX_CUDA_DRIVER_SYMBOL
  };
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return fx_error(FX_ERR_DEVICE, "no driver (libcuda.so.1 not found)");
  FX_TRY(fx_cuda_library_bind(library, "cuda", symbols, (int)(sizeof symbols / sizeof symbols[0]),
                              &g_driver.table));
  for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
    void *function = dlsym(library, optional[i].name);
    memcpy((char *)&g_driver.table + optional[i].offset, &function, sizeof function);
  }
  if (g_driver.table.driver_version(&g_driver.version) != 0) g_driver.version = 0;
  return fx_cuda_check(&g_driver.table, g_driver.table.init(0), "the CUDA driver does not start");
}

static void open_once(void) {
  g_driver.status = open_driver();
  if (g_driver.status != FX_OK) snprintf(g_driver.reason, sizeof g_driver.reason, "%s", fx_error_text());
}

fx_status fx_cuda_driver_open(const fx_cuda_driver **out) {
  pthread_once(&g_driver.once, open_once);
  if (g_driver.status != FX_OK) return fx_error(g_driver.status, "%s", g_driver.reason);
  *out = &g_driver.table;
  return FX_OK;
}

/* ---- what there is ---- */

static bool describe(const fx_cuda_driver *driver, int ordinal, fx_cuda_info *info) {
  int device;
  return driver->device_get(&device, ordinal) == 0 &&
         driver->device_name(info->name, (int)sizeof info->name, device) == 0 &&
         driver->device_uuid(info->uuid, device) == 0 && driver->device_memory(&info->memory, device) == 0 &&
         driver->device_attribute(&info->major, FX_CU_ATTRIBUTE_MAJOR, device) == 0 &&
         driver->device_attribute(&info->minor, FX_CU_ATTRIBUTE_MINOR, device) == 0 &&
         driver->device_attribute(&info->multiprocessors, FX_CU_ATTRIBUTE_MULTIPROCESSORS, device) == 0;
}

void fx_cuda_probe_get(fx_cuda_probe *out) {
  const fx_cuda_driver *driver = &g_driver.table;
  int count = 0;
  memset(out, 0, sizeof *out);
  pthread_once(&g_driver.once, open_once);
  out->driver_version = g_driver.version;
  if (g_driver.status != FX_OK) {
    snprintf(out->reason, sizeof out->reason, "%s", g_driver.reason);
    return;
  }
  if (driver->device_count(&count) != 0) count = 0;
  for (int i = 0; i < count && out->count < FX_CUDA_MAX_DEVICES; i++)
    if (describe(driver, i, &out->device[out->count])) out->count++;
  if (out->count == 0)
    snprintf(out->reason, sizeof out->reason, "the driver shows no device%s",
             getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES is set)" : "");
}

int fx_cuda_local_rank(void) {
  static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const char *text = getenv(names[i]);
    if (text && text[0] >= '0' && text[0] <= '9') return (int)strtol(text, NULL, 10);
  }
  return 0;
}

int fx_cuda_ordinal_by_rank(int count) {
  return count > 0 ? fx_cuda_local_rank() % count : -1;
}

fx_status fx_cuda_arch_choose(const char *wanted, int major, int minor, char arch[FX_CUDA_ARCH_BYTES]) {
  int number = 0, end = 0;
  snprintf(arch, FX_CUDA_ARCH_BYTES, "sm_%d%d%s", major, minor, major >= 9 ? "a" : "");
  if (!wanted || !*wanted) return FX_OK;
  if (sscanf(wanted, "compute_%3d%n", &number, &end) != 1 || wanted[end] || number < 80 ||
      number > 10 * major + minor)
    return fx_error(
        FX_ERR_CONFIG,
        "FLEXION_CUDA_ARCH is \"%.32s\"; expected compute_80 to compute_%d%d for this GPU, or unset it",
        wanted, major, minor);
  snprintf(arch, FX_CUDA_ARCH_BYTES, "compute_%d", number);
  return FX_OK;
}

int fx_cuda_arch_number(const char *arch) {
  const char *number = strchr(arch, '_');
  return number ? (int)strtol(number + 1, NULL, 10) : 0;
}

/* ---- kernels ---- */

struct fx_cuda_module {
  const fx_cuda_driver *driver;
  void *handle;
};

fx_status fx_cuda_module_load(const fx_cuda_driver *driver, const fx_cache_image *image,
                              fx_cuda_module **out) {
  fx_cuda_module *module = NULL;
  FX_TRY(fx_calloc(&module, 1, sizeof *module));
  module->driver = driver;
  fx_status status =
      fx_cuda_check(driver, driver->module_load(&module->handle, image->data), "a cubin cannot be loaded");
  if (status != FX_OK) {
    free(module);
    return status;
  }
  *out = module;
  return FX_OK;
}

void fx_cuda_module_unload(fx_cuda_module *module) {
  if (!module) return;
  module->driver->module_unload(module->handle);
  free(module);
}

fx_status fx_cuda_module_function(const fx_cuda_module *module, const char *name, fx_cuda_function *out) {
  void *handle = NULL;
  FX_TRY(fx_cuda_check(module->driver, module->driver->module_function(&handle, module->handle, name), name));
  *out = (fx_cuda_function){.driver = module->driver, .handle = handle};
  return FX_OK;
}

fx_status fx_cuda_function_usage(const fx_cuda_function *function, int *registers, int *local_bytes) {
  const fx_cuda_driver *driver = function->driver;
  FX_TRY(fx_cuda_check(driver, driver->function_get(registers, FX_CU_FUNCTION_REGISTERS, function->handle),
                       "registers of a kernel"));
  return fx_cuda_check(driver,
                       driver->function_get(local_bytes, FX_CU_FUNCTION_LOCAL_BYTES, function->handle),
                       "local memory of a kernel");
}

fx_status fx_cuda_function_allow_shared(const fx_cuda_function *function, int bytes) {
  return fx_cuda_check(
      function->driver,
      function->driver->function_set(function->handle, FX_CU_FUNCTION_MAX_DYNAMIC_SHARED, bytes),
      "shared memory of a kernel");
}

typedef struct launch_attribute { /* CUlaunchAttribute */
  int id;
  char pad[4];
  union {
    char space[64];
    int allowed;
  } value;
} launch_attribute;

typedef struct launch_config { /* CUlaunchConfig */
  fx_cuda_dim grid, block;
  unsigned shared_bytes;
  void *stream;
  launch_attribute *attributes;
  unsigned count;
} launch_config;

fx_status fx_cuda_launch(const fx_cuda_function *function, fx_cuda_dim grid, fx_cuda_dim block,
                         unsigned shared_bytes, void *stream, void **args) {
  const fx_cuda_driver *driver = function->driver;
  int result;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return FX_OK;
  if (function->follows && driver->launch_with) {
    launch_attribute early = {.id = FX_CU_LAUNCH_PROGRAMMATIC_SERIALIZATION, .value.allowed = 1};
    launch_config config = {grid, block, shared_bytes, stream, &early, 1};
    result = driver->launch_with(&config, function->handle, args, NULL);
  } else {
    result = driver->launch(function->handle, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes,
                            stream, args, NULL);
  }
  return result == 0 ? FX_OK : fx_cuda_check(driver, result, "a kernel cannot be launched");
}
