/* SPDX-License-Identifier: Apache-2.0 */
/* The flash kernels on CUDA, sm_80 and up: their source for a variant and shape, machine code, launches.
 * There are two families (flash_policy.h); on sm_90a 16-bit types run on wgmma.
 *
 * What is compiled depends on the key below and on nothing else; lengths, strides, heads, masks and float
 * parameters are arguments. One key is a module of a few kernels. The backward
 * in fp32 at D = 256 takes 173 KiB of shared memory, which sm_90 has and sm_80 has not. */
#ifndef FX_ATTENTION_CUDA_FLASH_CUDA_H
#define FX_ATTENTION_CUDA_FLASH_CUDA_H

#include <stdbool.h>

#include "attention/cuda/flash_args.h"
#include "attention/variant/variant.h"
#include "dynamo_rt/base/cache.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_flash_pass {
  FX_FLASH_FORWARD,
  FX_FLASH_PARTIAL, /* a forward that merges into a running state in fp32 */
  FX_FLASH_BACKWARD,
  FX_FLASH_BACKWARD_ADD /* a backward that adds to running sums in fp32 */
} fx_flash_pass;

static inline bool fx_flash_is_backward(fx_flash_pass pass) {
  return pass >= FX_FLASH_BACKWARD;
}

typedef struct fx_flash_key {
  const fx_variant *variant; /* borrowed; NULL: plain scores */
  fx_flash_pass pass;
  fx_dtype dtype; /* FX_F32, FX_BF16 or FX_F16 */
  int32_t D;      /* 64, 96, 128 or 256 */
  int32_t R;      /* intervals of limits a row; 0: no limits */
  bool ask;       /* partial tiles ask the variant's mask */
  bool any_scale; /* the scale may be 0 or negative */
} fx_flash_key;

/* Rows and keys of a tile of the run lists, of every pass, dtype and D. */
enum { FX_FLASH_TILE = 64 };

bool fx_flash_has_dim(int32_t D);
/* FX_ERR_UNSUPPORTED with a sentence: no kernel of this D or dtype. */
fx_status fx_flash_key_check(const fx_flash_key *key);
/* The whole text that NVRTC gets, malloc'ed. FX_ERR_MEMORY. */
fx_status fx_flash_source(const fx_flash_key *key, const char *arch, char **source);
/* Machine code for "sm_80", "sm_90a", ...; from the cache where it is there. Errors: fx_nvrtc_compile's. */
fx_status fx_flash_cubin(const fx_flash_key *key, const char *arch, fx_cache_image *out);

typedef struct fx_flash_module fx_flash_module;

/* The module of a key on a device, compiled or loaded when it is first asked for and kept until the device
 * goes. Like all kernels of a device, for one thread at a time. */
fx_status fx_flash_module_get(const fx_cuda_context *context, const fx_flash_key *key,
                              const fx_flash_module **out);

/* Asynchronous on `stream`; allocate nothing. forward: also the partial pass. backward: `work` is
 * any of FX_FLASH_WORK: PREPARE fills lse2, delta and span, which the others read; SINKS dsinks, KEYS dk and
 * dv (and gradients of tables, which must have been cleared), ROWS dq. finish: `q` is
 * the fp32 state, of a FORWARD module. */
fx_status fx_flash_forward(const fx_flash_module *module, const fx_flash_args *args, void *stream);
fx_status fx_flash_finish(const fx_flash_module *module, const fx_flash_args *args, void *stream);
enum { FX_FLASH_WORK_PREPARE = 1, FX_FLASH_WORK_SINKS = 2, FX_FLASH_WORK_KEYS = 4, FX_FLASH_WORK_ROWS = 8 };
fx_status fx_flash_backward(const fx_flash_module *module, const fx_flash_args *args, unsigned work,
                            void *stream);

#ifdef __cplusplus
}
#endif
#endif
