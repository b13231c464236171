/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA source to cubin by NVRTC, which needs neither a GPU nor a driver. Cubins are kept on disk by the hash
 * of all that they depend on (dynamo_rt/base/cache.h), in $XDG_CACHE_HOME/flexion or $HOME/.cache/flexion. */
#ifndef FX_DYNAMO_RT_CODEGEN_CUDA_NVRTC_H
#define FX_DYNAMO_RT_CODEGEN_CUDA_NVRTC_H

#include "dynamo_rt/base/cache.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* FX_ERR_DEVICE: NVRTC cannot be opened, and what was tried. */
fx_status fx_nvrtc_version(int *major, int *minor);

/* source: text of one file, no includes of ours; name: what messages call it ("norm.cu"); arch: "sm_90a",
 * "sm_80", or "compute_80" for PTX in place of a cubin, which the driver compiles for a later GPU; options:
 * more of NVRTC's, n of them. out->data is the caller's, to free(). FX_ERR_DEVICE: no NVRTC; FX_ERR_INTERNAL:
 * the source does not compile, and the compiler's first lines. */
fx_status fx_nvrtc_compile(const char *source, const char *name, const char *arch, const char *const *options,
                           int n, fx_cache_image *out);

#ifdef __cplusplus
}
#endif
#endif
