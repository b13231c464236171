/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver: what it offers on this machine, kernels from cubins, launches. libcuda is opened at run
 * time; a machine without it gets a sentence. CUDA_VISIBLE_DEVICES is the driver's own and holds here too. */
#ifndef FX_DYNAMO_RT_DEVICE_CUDA_DRIVER_H
#define FX_DYNAMO_RT_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "dynamo_rt/base/cache.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_CUDA_MAX_DEVICES = 16, FX_CUDA_UUID_BYTES = 16 };

typedef struct fx_cuda_info {
  char name[96];
  int major, minor; /* compute capability */
  int multiprocessors;
  size_t memory;                    /* bytes */
  uint8_t uuid[FX_CUDA_UUID_BYTES]; /* of the whole GPU, also where only a slice of it (MIG) is shown */
} fx_cuda_info;

typedef struct fx_cuda_probe {
  int driver_version; /* 13000 for CUDA 13.0; 0 without a driver */
  int count;          /* devices that can be used, at most FX_CUDA_MAX_DEVICES */
  char reason[512];   /* why there is none; "" otherwise */
  fx_cuda_info device[FX_CUDA_MAX_DEVICES];
} fx_cuda_probe;

/* Creates no context. Leaves fx_error_text alone. */
void fx_cuda_probe_get(fx_cuda_probe *out);
/* Number of this process among those of its host, as mpirun or srun says it; 0 without them. */
int fx_cuda_local_rank(void);
/* The GPU that this process takes of `count`: ranks of a host take theirs in turn. -1 of none. */
int fx_cuda_ordinal_by_rank(int count);

typedef struct fx_cuda_driver fx_cuda_driver; /* device/cuda/driver_api.h */

/* Opens and starts the driver, once a process. FX_ERR_DEVICE says why there is none. */
fx_status fx_cuda_driver_open(const fx_cuda_driver **out);
/* FX_OK for result 0, else FX_ERR_DEVICE (FX_ERR_MEMORY) with "what: the driver's name and sentence". */
fx_status fx_cuda_check(const fx_cuda_driver *driver, int result, const char *what);

/* The architecture to compile for on a GPU of that compute capability: its own ("sm_90a"), or where `wanted`
 * (the variable FLEXION_CUDA_ARCH; may be NULL or "") names an earlier one, as "compute_80", that one's PTX:
 * what sm_80 runs can then be tried on a later GPU. FX_ERR_CONFIG: it names something else. */
enum { FX_CUDA_ARCH_BYTES = 24 };
fx_status fx_cuda_arch_choose(const char *wanted, int major, int minor, char arch[FX_CUDA_ARCH_BYTES]);
/* 90 of "sm_90a", 80 of "compute_80" */
int fx_cuda_arch_number(const char *arch);

/* ---- kernels; the device's context must be the calling thread's ---- */

typedef struct fx_cuda_module fx_cuda_module;

typedef struct fx_cuda_function {
  const fx_cuda_driver *driver;
  void *handle;
  /* The kernel waits by itself for the kernel before it (griddepcontrol.wait, sm_90 and later), so the driver
   * may start it before that one has ended: no time passes between the two. */
  bool follows;
} fx_cuda_function;

typedef struct fx_cuda_dim {
  unsigned x, y, z;
} fx_cuda_dim;

/* image: a cubin or PTX for the device of the current context. */
fx_status fx_cuda_module_load(const fx_cuda_driver *driver, const fx_cache_image *image,
                              fx_cuda_module **out);
void fx_cuda_module_unload(fx_cuda_module *module); /* NULL is fine */
fx_status fx_cuda_module_function(const fx_cuda_module *module, const char *name, fx_cuda_function *out);
/* Registers a thread and bytes spilled to local memory a thread. */
fx_status fx_cuda_function_usage(const fx_cuda_function *function, int *registers, int *local_bytes);
/* Needed once before launches with more than 48 KiB of dynamic shared memory. */
fx_status fx_cuda_function_allow_shared(const fx_cuda_function *function, int bytes);
/* args: addresses of the kernel's parameters. Asynchronous on `stream`; allocates nothing. */
fx_status fx_cuda_launch(const fx_cuda_function *function, fx_cuda_dim grid, fx_cuda_dim block,
                         unsigned shared_bytes, void *stream, void **args);

#ifdef __cplusplus
}
#endif
#endif
