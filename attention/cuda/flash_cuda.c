/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/cuda/flash_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cuda/emit_cuda.h"
#include "attention/cuda/flash_policy.h"
#include "attention/cuda/sources.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "dynamo_rt/device/cuda/driver_api.h"

/* Kernels of a module: X(NAME, name in the source, of the backward) */
#define FX_FLASH_KERNELS(X)            \
  X(FORWARD, "flex_fwd", false)        \
  X(FINISH, "flex_finish", false)      \
  X(PREPARE, "flex_bwd_prepare", true) \
  X(SINKS, "flex_bwd_sinks", true)     \
  X(KEY_BLOCKS, "flex_bwd_keys", true) \
  X(ROW_BLOCKS, "flex_bwd_rows", true)

enum {
#define FX_FLASH_ENUM(name, text, backward) KERNEL_##name,
  FX_FLASH_KERNELS(FX_FLASH_ENUM)
#undef FX_FLASH_ENUM
      KERNEL_COUNT
};

static const struct {
  const char *name;
  bool backward;
} g_kernels[] = {
#define FX_FLASH_ROW(name, text, backward) {text, backward},
    FX_FLASH_KERNELS(FX_FLASH_ROW)
#undef FX_FLASH_ROW
};

static const int32_t g_dims[] = {64, 96, 128, 256};

bool fx_flash_has_dim(int32_t D) {
  for (size_t i = 0; i < sizeof g_dims / sizeof g_dims[0]; i++)
    if (g_dims[i] == D) return true;
  return false;
}

fx_status fx_flash_key_check(const fx_flash_key *key) {
  if (!fx_flash_has_dim(key->D))
    return fx_error(FX_ERR_UNSUPPORTED, "attention on CUDA: head dimension %d, expected 64, 96, 128 or 256",
                    key->D);
  if (key->dtype != FX_F32 && key->dtype != FX_BF16 && key->dtype != FX_F16)
    return fx_error(FX_ERR_UNSUPPORTED, "attention on CUDA: no kernels for %s", fx_dtype_name(key->dtype));
  if (key->R < 0 || key->R > 2)
    return fx_error(FX_ERR_UNSUPPORTED, "attention on CUDA: limits of %d intervals a row, at most 2", key->R);
  return FX_OK;
}

/* ---- source ---- */

static const char *source_text(const char *name) {
  for (int i = 0; i < fx_cuda_attention_sources_count; i++)
    if (strcmp(fx_cuda_attention_sources[i].name, name) == 0) return fx_cuda_attention_sources[i].text;
  FX_ASSERT(false);
  return "";
}

static void append_file(FILE *out, const char *name) {
  fprintf(out, "#line 1 \"%s\"\n", name);
  fputs(source_text(name), out);
}

/* Texts of a family's pass; those of a part are compiled in a namespace of its own, under its plan's macros.
 */
static void append_mma(FILE *out, bool backward) {
  static const char *const files[2][4] = {
      {"flash_tile.cuh", "flash_mma.cuh", "flash_rows.cuh", "flash_fwd.cu"},
      {"flash_tile.cuh", "flash_mma.cuh", "flash_prepare.cuh", "flash_bwd.cu"}};
  for (int i = 0; i < 4; i++) append_file(out, files[backward][i]);
}

static void append_hopper(FILE *out, bool backward, const fx_flash_plan *const plans[FX_FLASH_PARTS]) {
  static const char *const kernels[FX_FLASH_PARTS] = {"hopper_fwd.cu", "hopper_keys.cu", "hopper_rows.cu"};
  append_file(out, "flash_tile.cuh");
  append_file(out, backward ? "flash_prepare.cuh" : "flash_rows.cuh");
  append_file(out, "hopper_wgmma.cuh");
  for (int part = 0; part < FX_FLASH_PARTS; part++) {
    const fx_flash_plan *plan = plans[part];
    if (!plan) continue;
    fprintf(out,
            "namespace part%d {\n#define FX_BLOCK %d\n#define FX_STEP %d\n#define FX_STAGES %d\n"
            "#define FX_SECOND %d\n#define FX_CTAS %d\n#define FX_GROUPS %d\n"
            "#define FX_PRODUCER %d\n#define FX_WORDS %d\n",
            part, plan->rows, plan->step, plan->stages, plan->second, plan->ctas, plan->groups,
            plan->producer, part == FX_FLASH_KEYS);
    append_file(out, "hopper_tile.cuh");
    if (backward) append_file(out, "hopper_pair.cuh");
    append_file(out, kernels[part]);
    fputs("}\n#undef FX_BLOCK\n#undef FX_STEP\n#undef FX_STAGES\n#undef FX_SECOND\n#undef FX_CTAS\n"
          "#undef FX_GROUPS\n#undef FX_PRODUCER\n#undef FX_WORDS\n",
          out);
  }
}

fx_status fx_flash_source(const fx_flash_key *key, const char *arch, char **source) {
  char *variant = NULL, *text = NULL;
  size_t size = 0;
  int type = key->dtype == FX_F32 ? 0 : key->dtype == FX_BF16 ? 1 : 2;
  bool backward = fx_flash_is_backward(key->pass);
  const fx_flash_plan *plans[FX_FLASH_PARTS];
  FX_TRY(fx_emit_cuda(key->variant, &variant));
  FILE *out = open_memstream(&text, &size);
  if (!out) {
    free(variant);
    return fx_error(FX_ERR_MEMORY, "no memory for generated code");
  }
  fprintf(
      out, "#define FX_D %d\n#define FX_TYPE %d\n#define FX_R %d\n#define FX_ASK %d\n#define FX_PARTIAL %d\n",
      key->D, type, key->R, key->ask, key->pass == FX_FLASH_PARTIAL || key->pass == FX_FLASH_BACKWARD_ADD);
  fputs("#pragma nv_diag_suppress 177\n" /* functions that this kernel does not use */
        "typedef signed char int8_t;\ntypedef int int32_t;\ntypedef unsigned uint32_t;\n"
        "typedef long long int64_t;\ntypedef unsigned long long uint64_t;\n",
        out);
  append_file(out, "flash_args.h");
  fputs(variant, out);
  free(variant);
  if (fx_flash_plans(key, arch, plans))
    append_hopper(out, backward, plans);
  else
    append_mma(out, backward);
  bool failed = ferror(out) != 0;
  if (fclose(out) != 0 || failed) {
    free(text);
    return fx_error(FX_ERR_MEMORY, "no memory for generated code");
  }
  *source = text;
  return FX_OK;
}

fx_status fx_flash_cubin(const fx_flash_key *key, const char *arch, fx_cache_image *out) {
  static const char *const options[] = {"--fmad=false"};
  char *source = NULL;
  FX_TRY(fx_flash_key_check(key));
  FX_TRY(fx_flash_source(key, arch, &source));
  fx_status status = fx_nvrtc_compile(
      source, fx_flash_is_backward(key->pass) ? "flash_bwd.cu" : "flash_fwd.cu", arch, options, 1, out);
  free(source);
  return status;
}

/* ---- modules ---- */

typedef struct module_id {
  fx_hash128 variant;
  int32_t pass, dtype, D, R, plain;
  int32_t ask; /* and any_scale, in bit 1: no padding, ids are compared as bytes */
} module_id;

struct fx_flash_module {
  module_id id;
  fx_cuda_module *loaded;
  fx_cuda_function function[KERNEL_COUNT];
  unsigned shared[KERNEL_COUNT];
  const fx_cuda_driver *driver;
  const fx_flash_plan *plan[FX_FLASH_PARTS]; /* NULL: mma.sync */
  fx_flash_module *next;
};

/* Bytes of dynamic shared memory: `fixed` rows that stay, `step` rows a stage twice; fp32 kernels have a
 * piece of 16 x (step + 4) floats a warp. The sums of flash_fwd.cu and flash_bwd.cu. */
static unsigned shared_bytes(const module_id *id, int fixed, int step, int warps) {
  int size = id->dtype == FX_F32 ? 4 : 2, stages = id->dtype == FX_F32 ? 1 : 2;
  int row = id->D * size + 16, pieces = id->dtype == FX_F32 ? warps * 16 * (step + 4) * 4 : 0;
  return (unsigned)((fixed + stages * 2 * step) * row + pieces);
}

static void plan_shared(fx_flash_module *module) {
  static const int kernels[FX_FLASH_PARTS] = {KERNEL_FORWARD, KERNEL_KEY_BLOCKS, KERNEL_ROW_BLOCKS};
  const module_id *id = &module->id;
  bool wide = id->D > 128;
  int step = id->dtype == FX_F32 && wide ? 16 : 32;
  module->shared[KERNEL_FORWARD] = shared_bytes(id, FX_FLASH_TILE, wide ? 32 : 64, 4);
  module->shared[KERNEL_KEY_BLOCKS] = shared_bytes(id, 2 * FX_FLASH_TILE, step, wide ? 8 : 4);
  module->shared[KERNEL_ROW_BLOCKS] = shared_bytes(id, 2 * FX_FLASH_TILE, step, 4);
  for (int part = 0; part < FX_FLASH_PARTS; part++)
    if (module->plan[part]) module->shared[kernels[part]] = fx_flash_plan_shared(module->plan[part]);
}

static void destroy_modules(void *first) {
  for (fx_flash_module *module = first, *next; module; module = next) {
    next = module->next;
    fx_cuda_module_unload(module->loaded);
    free(module);
  }
}

static fx_status load_functions(fx_flash_module *module) {
  for (int i = 0; i < KERNEL_COUNT; i++) {
    if (g_kernels[i].backward != fx_flash_is_backward((fx_flash_pass)module->id.pass)) continue;
    FX_TRY(fx_cuda_module_function(module->loaded, g_kernels[i].name, &module->function[i]));
    if (module->shared[i] > 0)
      FX_TRY(fx_cuda_function_allow_shared(&module->function[i], (int)module->shared[i]));
  }
  return FX_OK;
}

static fx_status create(const fx_cuda_context *context, const fx_flash_key *key, const module_id *id,
                        fx_flash_module **out) {
  fx_cache_image image = {NULL, 0};
  FX_TRY(fx_flash_cubin(key, context->arch, &image));
  fx_flash_module *module = NULL;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&module, 1, sizeof *module), free_image);
  module->id = *id, module->driver = context->driver;
  fx_flash_plans(key, context->arch, module->plan);
  plan_shared(module);
  FX_TRY_GOTO(fx_cuda_module_load(context->driver, &image, &module->loaded), destroy_module);
  FX_TRY_GOTO(load_functions(module), destroy_module);
  *out = module;
  module = NULL;
destroy_module:
  destroy_modules(module);
free_image:
  free(image.data);
  return status;
}

fx_status fx_flash_module_get(const fx_cuda_context *context, const fx_flash_key *key,
                              const fx_flash_module **out) {
  module_id id;
  memset(&id, 0, sizeof id);
  if (key->variant) id.variant = key->variant->hash;
  id.plain = !key->variant;
  id.pass = key->pass, id.dtype = key->dtype, id.D = key->D, id.R = key->R,
  id.ask = key->ask | key->any_scale << 1;
  fx_flash_module *found = context->late->kernels;
  while (found && memcmp(&found->id, &id, sizeof id) != 0) found = found->next;
  if (!found) {
    FX_TRY(create(context, key, &id, &found));
    found->next = context->late->kernels;
    context->late->kernels = found;
    context->late->destroy = destroy_modules;
  }
  *out = found;
  return FX_OK;
}

/* ---- tensor maps ---- */

/* Of a view of `length` rows and `heads`. Along a dimension of one element the stride is anything. */
static fx_status map_of(const fx_flash_module *module, const fx_flash_args *args, const fx_flash_view *view,
                        int32_t length, int32_t heads, fx_flash_map *map) {
  enum { BFLOAT16 = 9, FLOAT16 = 6, SWIZZLE_128B = 3, L2_256B = 3 };
  int32_t D = module->id.D;
  uint64_t dims[4] = {(uint64_t)D, (uint64_t)length, (uint64_t)heads, (uint64_t)args->B};
  const int64_t strides[3] = {view->time, view->head, view->batch};
  uint64_t bytes[3];
  const uint32_t box[4] = {64, 64, 1, 1}, steps[4] = {1, 1, 1, 1};
  for (int i = 0; i < 3; i++) bytes[i] = dims[i + 1] == 1 ? (uint64_t)D * 2 : (uint64_t)strides[i] * 2;
  return fx_cuda_check(
      module->driver,
      module->driver->tensor_map(map->opaque, module->id.dtype == FX_BF16 ? BFLOAT16 : FLOAT16, 4, view->data,
                                 dims, bytes, box, steps, 0, SWIZZLE_128B, L2_256B, 0),
      "a tensor map");
}

static fx_status maps_of(const fx_flash_module *module, const fx_flash_args *args, fx_flash_maps *maps) {
  memset(maps, 0, sizeof *maps);
  if (!module->driver->tensor_map)
    return fx_error(FX_ERR_DEVICE,
                    "the driver has no cuTensorMapEncodeTiled; a driver for CUDA 12 is needed");
  FX_TRY(map_of(module, args, &args->q, args->T_q, args->H, &maps->q));
  FX_TRY(map_of(module, args, &args->k, args->T_kv, args->K, &maps->k));
  FX_TRY(map_of(module, args, &args->v, args->T_kv, args->K, &maps->v));
  if (module->id.pass == FX_FLASH_PARTIAL) return FX_OK; /* its out is a state in fp32 */
  if (module->id.pass == FX_FLASH_FORWARD)
    return map_of(module, args, &args->out, args->T_q, args->H, &maps->out);
  FX_TRY(map_of(module, args, &args->dout, args->T_q, args->H, &maps->dout));
  if (module->id.pass == FX_FLASH_BACKWARD_ADD) return FX_OK; /* its results are sums in fp32 */
  FX_TRY(map_of(module, args, &args->dq, args->T_q, args->H, &maps->dq));
  FX_TRY(map_of(module, args, &args->dk, args->T_kv, args->K, &maps->dk));
  return map_of(module, args, &args->dv, args->T_kv, args->K, &maps->dv);
}

/* ---- launches ---- */

typedef struct launch_args {
  const fx_flash_args *flash;
  fx_flash_maps maps; /* where the kernel takes them */
} launch_args;

static fx_status launch(const fx_flash_module *module, int kernel, fx_cuda_dim grid, unsigned threads,
                        const launch_args *args, void *stream) {
  void *parameters[] = {(void *)(uintptr_t)args->flash, (void *)(uintptr_t)&args->maps};
  return fx_cuda_launch(&module->function[kernel], grid, (fx_cuda_dim){threads, 1, 1}, module->shared[kernel],
                        stream, parameters);
}

static fx_cuda_dim grid_of(int32_t length, int32_t size, int32_t heads, int32_t B) {
  return (fx_cuda_dim){(unsigned)((length + size - 1) / size), (unsigned)heads, (unsigned)B};
}

fx_status fx_flash_forward(const fx_flash_module *module, const fx_flash_args *args, void *stream) {
  launch_args all = {.flash = args};
  const fx_flash_plan *plan = module->plan[FX_FLASH_FWD];
  if (!plan)
    return launch(module, KERNEL_FORWARD, grid_of(args->Tpad, FX_FLASH_TILE, args->H, args->B), 128, &all,
                  stream);
  FX_TRY(maps_of(module, args, &all.maps));
  return launch(module, KERNEL_FORWARD, grid_of(args->Tpad, plan->rows, args->H, args->B),
                fx_flash_plan_threads(plan), &all, stream);
}

fx_status fx_flash_finish(const fx_flash_module *module, const fx_flash_args *args, void *stream) {
  launch_args all = {.flash = args};
  return launch(module, KERNEL_FINISH, grid_of(args->Tpad, 4, args->H, args->B), 128, &all, stream);
}

static fx_status key_blocks(const fx_flash_module *module, const launch_args *args, void *stream) {
  const fx_flash_args *flash = args->flash;
  const fx_flash_plan *plan = module->plan[FX_FLASH_KEYS];
  fx_cuda_dim grid = grid_of(flash->T_kv, plan ? plan->rows : FX_FLASH_TILE, flash->K, flash->B);
  unsigned threads = plan ? fx_flash_plan_threads(plan) : module->id.D > 128 ? 256 : 128;
  if (plan) grid = (fx_cuda_dim){grid.y, grid.z, grid.x};
  return launch(module, KERNEL_KEY_BLOCKS, grid, threads, args, stream);
}

static fx_status row_blocks(const fx_flash_module *module, const launch_args *args, void *stream) {
  const fx_flash_args *flash = args->flash;
  const fx_flash_plan *plan = module->plan[FX_FLASH_ROWS];
  return launch(module, KERNEL_ROW_BLOCKS,
                grid_of(flash->T_q, plan ? plan->rows : FX_FLASH_TILE, flash->H, flash->B),
                plan ? fx_flash_plan_threads(plan) : 128, args, stream);
}

fx_status fx_flash_backward(const fx_flash_module *module, const fx_flash_args *args, unsigned work,
                            void *stream) {
  launch_args all = {.flash = args};
  if (work & FX_FLASH_WORK_PREPARE)
    FX_TRY(launch(module, KERNEL_PREPARE, grid_of(args->Tpad, FX_FLASH_TILE, args->H, args->B), 128, &all,
                  stream));
  if (work & FX_FLASH_WORK_SINKS)
    FX_TRY(launch(module, KERNEL_SINKS, (fx_cuda_dim){(unsigned)args->H, 1, 1}, 256, &all, stream));
  if (module->plan[FX_FLASH_KEYS] && work >= FX_FLASH_WORK_KEYS) FX_TRY(maps_of(module, args, &all.maps));
  if (work & FX_FLASH_WORK_KEYS) FX_TRY(key_blocks(module, &all, stream));
  return work & FX_FLASH_WORK_ROWS ? row_blocks(module, &all, stream) : FX_OK;
}
