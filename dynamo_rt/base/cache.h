/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled kernels on disk, by key, and how those that are shared libraries get into the process.
 *
 * A file is <key>.<suffix> with a trailer that holds the hash of what stands before it. Files are written
 * under another name and renamed, so that readers see whole files or none, and any number of processes may
 * store the same key. Nothing is trusted by its name: a file must be regular, the user's own, writable by
 * nobody else, and its hash must hold; the bytes that were hashed are the ones that are loaded, from
 * anonymous memory. The directory must be the user's own and writable by nobody else.
 *
 * Private to the code that compiles kernels: attention/tile and dynamo_rt/codegen. */
#ifndef FX_DYNAMO_RT_BASE_CACHE_H
#define FX_DYNAMO_RT_BASE_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a library or of a cubin, released with free(). */
typedef struct fx_cache_image {
  unsigned char *data;
  size_t size;
} fx_cache_image;

/* Opens `directory`, made with mode 0700 when it does not exist; NULL: $XDG_CACHE_HOME/flexion, else
 * $HOME/.cache/flexion. *fd = -1 when there is none or nothing can be written there (no error: nothing is
 * kept then). FX_ERR_CONFIG: others can write there, or it is not the user's. */
fx_status fx_cache_open(const char *directory, int *fd);
/* suffix: "so" or "cubin". False when there is no such file, or none that holds what was stored. */
bool fx_cache_get(int fd, const char *key, const char *suffix, fx_cache_image *image);
/* Stores the image. Failures are silent: the image is then made again next time. */
void fx_cache_put(int fd, const char *key, const char *suffix, const fx_cache_image *image);

/* The whole file at `path`. FX_ERR_IO, FX_ERR_MEMORY. */
fx_status fx_cache_read(const char *path, fx_cache_image *image);
/* dlopen of the bytes; *fd stays open until the library is closed (its name would be taken for another's).
 * FX_ERR_IO. */
fx_status fx_cache_load(const fx_cache_image *image, int *fd, void **library);

#ifdef __cplusplus
}
#endif

#endif
