/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/kernel.h"

#include <stdlib.h>

#include "attention/tile/emit_c.h"
#include "attention/tile/interp.h"
#include "dynamo_rt/base/memory.h"

struct fx_tile_kernel {
  fx_tile_functions functions;
  fx_compiled *compiled; /* NULL: interpreted, or nothing to do */
  fx_tile_interp *interp;
  char *reason;
};

fx_status fx_tile_kernel_source(const fx_variant *variant, char **source) {
  return fx_emit_c(&variant, 1, true, source);
}

static fx_status compile(const fx_variant *variant, const fx_compile_options *options,
                         fx_tile_kernel *kernel) {
  char *source;
  FX_TRY(fx_emit_c(&variant, 1, false, &source));
  fx_status status = fx_compile(source, options, &kernel->compiled);
  free(source);
  if (status != FX_OK) return status;
  const fx_tile_functions *made = fx_compiled_symbol(kernel->compiled, "fx_tile0");
  if (!made) return fx_error(FX_ERR_INTERNAL, "a compiled kernel lacks its functions");
  kernel->functions = *made;
  return FX_OK;
}

static fx_status interpret(const fx_variant *variant, fx_tile_kernel *kernel) {
  FX_TRY(fx_tile_interp_create(variant, &kernel->interp));
  kernel->functions = fx_tile_interp_functions(kernel->interp);
  return FX_OK;
}

static bool has_functions(const fx_variant *variant) {
  return variant->mask != FX_EX_NONE || variant->score != FX_EX_NONE || variant->mask_fault != FX_EX_NONE ||
         variant->score_fault != FX_EX_NONE || variant->num_reads > 0;
}

fx_status fx_tile_kernel_create(const fx_variant *variant, const fx_tile_options *options,
                                fx_tile_kernel **out) {
  static const fx_tile_options defaults = {.mode = FX_TILE_AUTO};
  if (!options) options = &defaults;
  fx_tile_kernel *kernel;
  FX_TRY(fx_calloc(&kernel, 1, sizeof *kernel));
  fx_status status = FX_OK;
  bool wanted = has_functions(variant), interpreted = options->mode == FX_TILE_INTERPRETED;
  if (wanted && !interpreted) {
    status = compile(variant, &options->compile, kernel);
    interpreted = status != FX_OK && options->mode == FX_TILE_AUTO;
    if (interpreted) kernel->reason = fx_strdup(fx_error_text());
  }
  if (wanted && interpreted) status = interpret(variant, kernel);
  if (status == FX_OK)
    *out = kernel;
  else
    fx_tile_kernel_destroy(kernel);
  return status;
}

void fx_tile_kernel_destroy(fx_tile_kernel *kernel) {
  if (!kernel) return;
  fx_compiled_destroy(kernel->compiled);
  fx_tile_interp_destroy(kernel->interp);
  free(kernel->reason);
  free(kernel);
}

const fx_tile_functions *fx_tile_kernel_functions(const fx_tile_kernel *kernel) {
  return &kernel->functions;
}

bool fx_tile_kernel_is_compiled(const fx_tile_kernel *kernel) {
  return kernel->compiled && !kernel->interp;
}

const fx_compiled *fx_tile_kernel_compiled(const fx_tile_kernel *kernel) {
  return kernel->compiled;
}

bool fx_tile_kernel_from_cache(const fx_tile_kernel *kernel) {
  return kernel->compiled && fx_compiled_from_cache(kernel->compiled);
}

const char *fx_tile_kernel_reason(const fx_tile_kernel *kernel) {
  return kernel->reason ? kernel->reason : "";
}
