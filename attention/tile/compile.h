/* SPDX-License-Identifier: Apache-2.0 */
/* C source into functions of this process: the system's compiler and a cache on disk.
 *
 * The cache's key is the XXH3-128 of the source, the compiler's path and version, the flags, the processor's
 * model and features, and flexion's version, so that a directory shared by unlike machines serves each its
 * own; the library holds its key, which is compared after loading. */
#ifndef FX_ATTENTION_TILE_COMPILE_H
#define FX_ATTENTION_TILE_COMPILE_H

#include <stdbool.h>
#include <stddef.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_compile_options {
  const char *compiler;  /* a name in PATH or a path; NULL: cc */
  const char *directory; /* of the cache; NULL: $XDG_CACHE_HOME/flexion, else $HOME/.cache/flexion */
  double time_limit;     /* seconds; 0: 60 */
} fx_compile_options;

typedef struct fx_compiled fx_compiled;

/* FX_ERR_UNSUPPORTED: no such compiler; FX_ERR_CONFIG: the cache is not safe; FX_ERR_IO: the compiler failed
 * (its first lines are in the sentence), ran too long, or its output cannot be loaded. options may be NULL.
 */
fx_status fx_compile(const char *source, const fx_compile_options *options, fx_compiled **compiled);
/* NULL when there is no such symbol. */
const void *fx_compiled_symbol(const fx_compiled *compiled, const char *name);
bool fx_compiled_from_cache(const fx_compiled *compiled);
/* For people. */
typedef struct fx_compiled_facts {
  const char *compiler; /* its path; valid as long as `compiled` */
  const char *key;      /* 32 hexadecimal digits, the file's name in the cache without .so; likewise */
  size_t bytes;         /* of the library */
} fx_compiled_facts;
fx_compiled_facts fx_compiled_describe(const fx_compiled *compiled);
/* Flag number `index` that the compiler is given; NULL past the last. */
const char *fx_compile_flag(int index);
void fx_compiled_destroy(fx_compiled *compiled);

#ifdef __cplusplus
}
#endif
#endif
