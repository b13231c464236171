/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/ops/cuda/kernels_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"

enum {
  MAX_SOURCES = 16,
  TYPES = 2,
  MAX_JOBS = MAX_SOURCES * TYPES,
  MAX_WORKERS = 8,
  FLAT_ELEMENTS = 16 /* of a thread: EACH vectors of VEC in ops/cuda/block.cuh */
};

struct fx_cuda_kernels {
  fx_cuda_module *module[MAX_JOBS];
  fx_cuda_function function[FX_CUDA_KERNEL_COUNT][TYPES]; /* the same twice where there is one */
  unsigned shared_limit;                                  /* dynamic shared memory of a block */
};

enum { SINGLE, TYPED };

static const struct kernel_row {
  const char *file, *function;
  int types;
} g_rows[FX_CUDA_KERNEL_COUNT] = {
#define FX_CUDA_KERNEL_ROW(name, file, function, types) {file, function, types},
    FX_CUDA_KERNEL_LIST(FX_CUDA_KERNEL_ROW)
#undef FX_CUDA_KERNEL_ROW
};

static const fx_cuda_source *find_source(const char *name) {
  for (int i = 0; i < fx_cuda_op_sources_count; i++)
    if (strcmp(fx_cuda_op_sources[i].name, name) == 0) return &fx_cuda_op_sources[i];
  return NULL;
}

bool fx_cuda_op_typed(const fx_cuda_source *source) {
  for (int k = 0; k < FX_CUDA_KERNEL_COUNT; k++)
    if (g_rows[k].types == TYPED && strcmp(g_rows[k].file, source->name) == 0) return true;
  return false;
}

fx_status fx_cuda_op_compile(const fx_cuda_source *source, fx_dtype dtype, const char *arch,
                             fx_cache_image *image) {
  const fx_cuda_source *prelude = find_source("block.cuh");
  FX_ASSERT(prelude && (dtype == FX_F32 || dtype == FX_BF16));
  char *text = fx_strfmt("#define T_IS_BF16 %d\n%s\n#line 1 \"%s\"\n%s", dtype == FX_BF16, prelude->text,
                         source->name, source->text);
  if (!text) return fx_error(FX_ERR_MEMORY, "no memory for the text of %s", source->name);
  fx_status status = fx_nvrtc_compile(text, source->name, arch, NULL, 0, image);
  free(text);
  return status;
}

/* ---- compiling on several threads ---- */

typedef struct job {
  const fx_cuda_source *source;
  fx_dtype dtype;
  fx_cache_image image;
  fx_status status;
  char *text; /* of the error, which is kept per thread; NULL: none, or no memory for it */
} job;

typedef struct job_list {
  job job[MAX_JOBS];
  int count;
  atomic_int next;
  const char *arch;
} job_list;

static void *work(void *data) {
  job_list *list = data;
  for (;;) {
    int i = atomic_fetch_add(&list->next, 1);
    if (i >= list->count) return NULL;
    job *j = &list->job[i];
    j->status = fx_cuda_op_compile(j->source, j->dtype, list->arch, &j->image);
    if (j->status != FX_OK) j->text = fx_strfmt("%s", fx_error_text());
  }
}

static void add_jobs(job_list *list) {
  FX_ASSERT(fx_cuda_op_sources_count <= MAX_SOURCES);
  for (int i = 0; i < fx_cuda_op_sources_count; i++) {
    const fx_cuda_source *source = &fx_cuda_op_sources[i];
    if (strstr(source->name, ".cuh")) continue;
    list->job[list->count++] = (job){.source = source, .dtype = FX_F32};
    if (fx_cuda_op_typed(source)) list->job[list->count++] = (job){.source = source, .dtype = FX_BF16};
  }
}

/* Leaves an image in every job, or the first error; the images are the caller's either way. */
static fx_status compile_jobs(job_list *list) {
  pthread_t thread[MAX_WORKERS];
  long processors = sysconf(_SC_NPROCESSORS_ONLN);
  int workers = (int)fx_min_i64(MAX_WORKERS, fx_max_i64(1, processors)), started = 0;
  while (started < workers - 1 && pthread_create(&thread[started], NULL, work, list) == 0) started++;
  work(list);
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < list->count; i++)
    if (list->job[i].status != FX_OK)
      return fx_error(list->job[i].status, "%s",
                      list->job[i].text ? list->job[i].text : "a CUDA source does not compile");
  return FX_OK;
}

/* ---- loading ---- */

static fx_status load_functions(const fx_cuda_module *module, const job *j, bool follow,
                                fx_cuda_kernels *kernels) {
  char name[64];
  int type = j->dtype == FX_BF16;
  for (int k = 0; k < FX_CUDA_KERNEL_COUNT; k++) {
    const struct kernel_row *row = &g_rows[k];
    if (strcmp(row->file, j->source->name) != 0 || (row->types == SINGLE && type)) continue;
    snprintf(name, sizeof name, row->types == SINGLE ? "%s" : type ? "%s_bf16" : "%s_f32", row->function);
    FX_TRY(fx_cuda_module_function(module, name, &kernels->function[k][type]));
    kernels->function[k][type].follows = follow;
    if (row->types == SINGLE) kernels->function[k][1] = kernels->function[k][0];
  }
  return FX_OK;
}

static bool allow(const fx_cuda_kernels *kernels, unsigned bytes) {
  static const fx_cuda_kernel users[] = {
      FX_CUDA_CROSS_ENTROPY,     FX_CUDA_INDEX_SORT,       FX_CUDA_RMS_RING_2,      FX_CUDA_RMS_RING_3,
      FX_CUDA_LAYER_RING_2,      FX_CUDA_LAYER_RING_3,     FX_CUDA_RMS_GRAD_RING_2, FX_CUDA_RMS_GRAD_RING_3,
      FX_CUDA_LAYER_GRAD_RING_2, FX_CUDA_LAYER_GRAD_RING_3};
  for (size_t i = 0; i < sizeof users / sizeof users[0]; i++)
    for (int type = 0; type < TYPES; type++)
      if (fx_cuda_function_allow_shared(&kernels->function[users[i]][type], (int)bytes) != FX_OK)
        return false;
  return true;
}

/* The most that this GPU gives a block: 227 KiB on Hopper, less elsewhere. Static shared memory of the
 * kernels comes on top. */
static void allow_shared(fx_cuda_kernels *kernels) {
  static const unsigned sizes[] = {224 << 10, 160 << 10, 96 << 10, 48 << 10};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && kernels->shared_limit == 0; i++)
    if (allow(kernels, sizes[i])) kernels->shared_limit = sizes[i];
  fx_error_clear();
}

fx_status fx_cuda_kernels_load(const fx_cuda_driver *driver, const char *arch, fx_cuda_kernels **out) {
  job_list list = {.arch = arch};
  fx_cuda_kernels *kernels = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&kernels, 1, sizeof *kernels));
  add_jobs(&list);
  FX_TRY_GOTO(compile_jobs(&list), free_jobs);
  for (int i = 0; i < list.count; i++) {
    job *j = &list.job[i];
    status = fx_cuda_module_load(driver, &j->image, &kernels->module[i]);
    if (status != FX_OK) {
      fx_error_prefix(status, "%s for %s", j->source->name, arch);
      goto free_jobs;
    }
    FX_TRY_GOTO(load_functions(kernels->module[i], j, fx_cuda_arch_number(arch) >= 90, kernels), free_jobs);
  }
  allow_shared(kernels);
  *out = kernels;
free_jobs:
  if (status != FX_OK) fx_cuda_kernels_unload(kernels);
  for (int i = 0; i < list.count; i++) {
    free(list.job[i].image.data);
    free(list.job[i].text);
  }
  return status;
}

void fx_cuda_kernels_unload(fx_cuda_kernels *kernels) {
  if (!kernels) return;
  for (int i = 0; i < MAX_JOBS; i++) fx_cuda_module_unload(kernels->module[i]);
  free(kernels);
}

const fx_cuda_function *fx_cuda_kernels_get(const fx_cuda_kernels *kernels, fx_cuda_kernel kernel,
                                            fx_dtype dtype) {
  FX_ASSERT(dtype == FX_F32 || dtype == FX_BF16);
  return &kernels->function[kernel][dtype == FX_BF16];
}

fx_status fx_cuda_run_shared(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype,
                             fx_cuda_dim grid, fx_cuda_dim block, unsigned shared_bytes, void **params) {
  const fx_cuda_context *context = args->gemm;
  if (grid.x == 0 || grid.y == 0) return FX_OK;
  return fx_cuda_launch(fx_cuda_kernels_get(context->kernels, kernel, dtype), grid, block, shared_bytes,
                        args->stream, params);
}

fx_status fx_cuda_run(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, fx_cuda_dim grid,
                      fx_cuda_dim block, void **params) {
  return fx_cuda_run_shared(args, kernel, dtype, grid, block, 0, params);
}

unsigned fx_cuda_shared_limit(const fx_kernel_args *args) {
  return ((const fx_cuda_context *)args->gemm)->kernels->shared_limit;
}

fx_status fx_cuda_run_flat(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, int64_t n,
                           void **params) {
  int64_t blocks = fx_min_i64(fx_ceil_div(n, (int64_t)FX_CUDA_BLOCK * FLAT_ELEMENTS), INT32_MAX);
  return fx_cuda_run(args, kernel, dtype, (fx_cuda_dim){(unsigned)blocks, 1, 1},
                     (fx_cuda_dim){FX_CUDA_BLOCK, 1, 1}, params);
}

fx_cuda_dim fx_cuda_row_block(int64_t cols, int held, unsigned most) {
  unsigned group = 32;
  while (group < most && (int64_t)group * held < cols) group *= 2;
  return (fx_cuda_dim){group, group < FX_CUDA_BLOCK ? FX_CUDA_BLOCK / group : 1, 1};
}

fx_status fx_cuda_run_rows(const fx_kernel_args *args, fx_cuda_kernel kernel, fx_dtype dtype, int64_t rows,
                           int64_t cols, int held, int resident, void **params) {
  fx_cuda_dim block = fx_cuda_row_block(cols, held, FX_CUDA_BLOCK);
  const fx_cuda_context *context = args->gemm;
  int64_t most = (int64_t)context->info.multiprocessors * resident, turns = fx_ceil_div(rows, block.y);
  int64_t each =
      fx_max_i64(1, fx_ceil_div(turns, most)); /* equal shares: no block is left with one more turn */
  fx_cuda_dim grid = {(unsigned)fx_ceil_div(turns, each), 1, 1};
  return fx_cuda_run(args, kernel, dtype, grid, block, params);
}

bool fx_cuda_rows_fit_vectors(fx_dtype dtype, int64_t cols, const void *const *address, int count) {
  bool fit = cols * (int64_t)fx_dtype_bytes(dtype) % 16 == 0;
  for (int i = 0; i < count; i++) fit &= (uintptr_t)address[i] % 16 == 0;
  return fit;
}

fx_status fx_cuda_run_copy(const fx_kernel_args *args, void *to, const void *from, size_t bytes) {
  const fx_cuda_context *context = args->gemm;
  if (bytes == 0) return FX_OK;
  return fx_cuda_check(
      context->driver,
      context->driver->copy((uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, bytes, args->stream),
      "a copy");
}

fx_status fx_cuda_run_sum_partials2(const fx_kernel_args *args, float *const partial[2], float *const sum[2],
                                    int chunks, int64_t cols, int add) {
  enum { TILE = 32, LANES = 32 }; /* of sum_partials */
  void *from[2] = {partial[0], partial[1]}, *to[2] = {sum[0], sum[1]};
  fx_cuda_dim grid = {(unsigned)fx_ceil_div(cols, TILE), to[1] ? 2 : 1, 1};
  return fx_cuda_run(args, FX_CUDA_SUM_PARTIALS, FX_F32, grid, (fx_cuda_dim){TILE, LANES, 1},
                     FX_CUDA_ARGS(&from[0], &to[0], &from[1], &to[1], &chunks, &cols, &add));
}

fx_status fx_cuda_run_sum_partials(const fx_kernel_args *args, float *partial, float *sum, int chunks,
                                   int64_t cols, int add) {
  return fx_cuda_run_sum_partials2(args, (float *const[2]){partial, NULL}, (float *const[2]){sum, NULL},
                                   chunks, cols, add & 1);
}

/* As many chunks as give about SUM_BLOCKS blocks, which all run at a time on a large GPU; a constant, so that
 * the bits do not depend on the GPU. */
fx_status fx_cuda_run_sum_rows(const fx_kernel_args *args, const fx_tensor *x, float *partial, int chunks,
                               float *sum, int add) {
  enum { TILE = 64, LANES = 4, SUM_BLOCKS = 640 }; /* the first two of sum_rows_partial */
  void *data = x->data;
  int64_t rows = fx_type_rows(&x->type), cols = fx_type_cols(&x->type), tiles = fx_ceil_div(cols, TILE);
  int64_t most = fx_max_i64(1, fx_min_i64(chunks, SUM_BLOCKS / tiles)), step = fx_ceil_div(rows, most);
  fx_cuda_dim grid = {(unsigned)tiles, (unsigned)fx_ceil_div(rows, step), 1};
  FX_TRY(fx_cuda_run(args, FX_CUDA_SUM_ROWS_PARTIAL, x->type.dtype, grid, (fx_cuda_dim){TILE, LANES, 1},
                     FX_CUDA_ARGS(&data, &partial, &rows, &cols, &step)));
  return fx_cuda_run_sum_partials(args, partial, sum, (int)grid.y, cols, add);
}
