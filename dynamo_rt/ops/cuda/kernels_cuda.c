/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"

enum { MAX_SOURCES = 16, BLOCKS_A_MULTIPROCESSOR = 16 };

struct fx_cuda_kernels {
  fx_cuda_module *module[MAX_SOURCES]; /* by place in fx_cuda_op_sources */
  fx_cuda_function function[FX_CUDA_KERNEL_COUNT];
};

static const fx_cuda_source *find_source(const char *name) {
  for (int i = 0; i < fx_cuda_op_sources_count; i++)
    if (strcmp(fx_cuda_op_sources[i].name, name) == 0) return &fx_cuda_op_sources[i];
  return NULL;
}

fx_status fx_cuda_op_compile(const fx_cuda_source *source, const char *arch, fx_cache_image *image) {
  const fx_cuda_source *prelude = find_source("block.cuh");
  FX_ASSERT(prelude);
  char *text = fx_strfmt("%s\n#line 1 \"%s\"\n%s", prelude->text, source->name, source->text);
  if (!text) return fx_error(FX_ERR_MEMORY, "no memory for the text of %s", source->name);
  fx_status status = fx_nvrtc_compile(text, source->name, arch, NULL, 0, image);
  free(text);
  return status;
}

static fx_status load_module(const fx_cuda_driver *driver, const fx_cuda_source *source, const char *arch,
                             fx_cuda_module **out) {
  fx_cache_image image = {NULL, 0};
  FX_TRY(fx_cuda_op_compile(source, arch, &image));
  fx_status status = fx_cuda_module_load(driver, &image, out);
  free(image.data);
  return status == FX_OK ? FX_OK : fx_error_prefix(status, "%s for %s", source->name, arch);
}

fx_status fx_cuda_kernels_load(const fx_cuda_driver *driver, const char *arch, fx_cuda_kernels **out) {
  static const struct {
    const char *file, *function;
  } rows[FX_CUDA_KERNEL_COUNT] = {
#define FX_CUDA_KERNEL_ROW(name, file, function) {file, function},
      FX_CUDA_KERNEL_LIST(FX_CUDA_KERNEL_ROW)
#undef FX_CUDA_KERNEL_ROW
  };
  fx_cuda_kernels *kernels = NULL;
  fx_status status = FX_OK;
  FX_ASSERT(fx_cuda_op_sources_count <= MAX_SOURCES);
  FX_TRY(fx_calloc(&kernels, 1, sizeof *kernels));
  for (int k = 0; k < FX_CUDA_KERNEL_COUNT; k++) {
    const fx_cuda_source *source = find_source(rows[k].file);
    FX_ASSERT(source);
    fx_cuda_module **module = &kernels->module[source - fx_cuda_op_sources];
    if (!*module) FX_TRY_GOTO(load_module(driver, source, arch, module), unload_kernels);
    FX_TRY_GOTO(fx_cuda_module_function(*module, rows[k].function, &kernels->function[k]), unload_kernels);
  }
  *out = kernels;
  return FX_OK;
unload_kernels:
  fx_cuda_kernels_unload(kernels);
  return status;
}

void fx_cuda_kernels_unload(fx_cuda_kernels *kernels) {
  if (!kernels) return;
  for (int i = 0; i < MAX_SOURCES; i++) fx_cuda_module_unload(kernels->module[i]);
  free(kernels);
}

const fx_cuda_function *fx_cuda_kernels_get(const fx_cuda_kernels *kernels, fx_cuda_kernel kernel) {
  return &kernels->function[kernel];
}

fx_status fx_cuda_run(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_cuda_dim grid, fx_cuda_dim block,
                      void **params) {
  const fx_cuda_context *context = args->gemm;
  return fx_cuda_launch(&context->kernels->function[kernel], grid, block, 0, args->stream, params);
}

fx_status fx_cuda_run_flat(const fx_kernel_args *args, fx_cuda_kernel kernel, int64_t n, void **params) {
  const fx_cuda_context *context = args->gemm;
  int64_t most = (int64_t)context->info.multiprocessors * BLOCKS_A_MULTIPROCESSOR;
  int64_t blocks = fx_min_i64(fx_ceil_div(n, FX_CUDA_BLOCK), most);
  return fx_cuda_run(args, kernel, (fx_cuda_dim){(unsigned)blocks, 1, 1}, (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1},
                     params);
}

fx_status fx_cuda_run_rows(const fx_kernel_args *args, fx_cuda_kernel kernel, int64_t rows, int64_t cols,
                           void **params) {
  unsigned threads = 32;
  while (threads < 1024 && (int64_t)threads * 4 < cols) threads *= 2;
  return fx_cuda_run(args, kernel, (fx_cuda_dim){(unsigned)rows, 1, 1}, (fx_cuda_dim){threads, 1, 1}, params);
}

fx_status fx_cuda_run_copy(const fx_kernel_args *args, void *to, const void *from, size_t bytes) {
  const fx_cuda_context *context = args->gemm;
  if (bytes == 0) return FX_OK;
  return fx_cuda_check(
      context->driver,
      context->driver->copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, args->stream),
      "a copy");
}

fx_status fx_cuda_run_sum_partials(const fx_kernel_args *args, float *partial, float *sum, int chunks,
                                   int64_t cols, int add) {
  return fx_cuda_run_flat(args, FX_CUDA_SUM_PARTIALS, cols,
                          FX_CUDA_ARGS(&partial, &sum, &chunks, &cols, &add));
}
