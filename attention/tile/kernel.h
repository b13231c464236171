/* SPDX-License-Identifier: Apache-2.0 */
/* The tile functions of a variant, ready to run: compiled where there is a compiler, else interpreted. */
#ifndef FX_ATTENTION_TILE_KERNEL_H
#define FX_ATTENTION_TILE_KERNEL_H

#include "attention/tile/compile.h"
#include "attention/tile/tile.h"
#include "attention/variant/variant.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_tile_mode {
  FX_TILE_AUTO,     /* compiled; interpreted when that fails, and the reason is kept */
  FX_TILE_COMPILED, /* compiled or an error */
  FX_TILE_INTERPRETED
} fx_tile_mode;

typedef struct fx_tile_options {
  fx_tile_mode mode;
  fx_compile_options compile;
} fx_tile_options;

typedef struct fx_tile_kernel fx_tile_kernel; /* immutable: any number of threads may call its functions */

/* The variant's pool may not be destroyed before an interpreted kernel when it has constant tables. options
 * NULL: AUTO. Errors: those of fx_compile when COMPILED; FX_ERR_UNSUPPORTED: too large to interpret;
 * FX_ERR_MEMORY. */
fx_status fx_tile_kernel_create(const fx_variant *variant, const fx_tile_options *options,
                                fx_tile_kernel **kernel);
void fx_tile_kernel_destroy(fx_tile_kernel *kernel);
/* The functions' args->self is functions->self. */
const fx_tile_functions *fx_tile_kernel_functions(const fx_tile_kernel *kernel);
bool fx_tile_kernel_is_compiled(const fx_tile_kernel *kernel);
bool fx_tile_kernel_from_cache(const fx_tile_kernel *kernel);
/* NULL: interpreted, or there was nothing to compile. */
const fx_compiled *fx_tile_kernel_compiled(const fx_tile_kernel *kernel);
/* Why AUTO interprets: the compiler's sentence; "" when it does not. */
const char *fx_tile_kernel_reason(const fx_tile_kernel *kernel);

/* The C source that is compiled, with comments, malloc'ed. FX_ERR_MEMORY. */
fx_status fx_tile_kernel_source(const fx_variant *variant, char **source);

#ifdef __cplusplus
}
#endif
#endif
