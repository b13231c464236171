/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's libraries, opened at run time. Nothing of CUDA is needed to build flexion or to start it. */
#ifndef FX_DYNAMO_RT_DEVICE_CUDA_LIBRARY_H
#define FX_DYNAMO_RT_DEVICE_CUDA_LIBRARY_H

#include <stddef.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One function pointer of a table of them. */
typedef struct fx_cuda_symbol {
  const char *name;
  size_t offset; /* of the pointer inside the table */
} fx_cuda_symbol;

/* Opens lib<stem>.so.<major> for the first of `majors` (0 ends the list) that the loader knows, that lies in
 * $CUDA_HOME/lib64 or in /usr/local/cuda/lib64. The library stays open until the process ends: NVIDIA's do
 * not unload safely. FX_ERR_DEVICE names what was tried. */
fx_status fx_cuda_library_open(const char *stem, const int *majors, void **library);
/* Fills `table`. FX_ERR_DEVICE names the first function that the library lacks. */
fx_status fx_cuda_library_bind(void *library, const char *stem, const fx_cuda_symbol *symbols, int count,
                               void *table);

#ifdef __cplusplus
}
#endif
#endif
