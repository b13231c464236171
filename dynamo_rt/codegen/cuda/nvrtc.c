/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/codegen/cuda/nvrtc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/cuda/library.h"

enum { MAX_OPTIONS = 24, SHOWN = 1500 };

/* X(field, exported name, parameters); results are int, 0: success */
#define NVRTC_LIST(X)                                                                                      \
  X(version, "nvrtcVersion", (int *major, int *minor))                                                     \
  X(create, "nvrtcCreateProgram",                                                                          \
    (void **program, const char *source, const char *name, int headers, const char *const *header_sources, \
     const char *const *header_names))                                                                     \
  X(destroy, "nvrtcDestroyProgram", (void **program))                                                      \
  X(compile, "nvrtcCompileProgram", (void *program, int count, const char *const *options))                \
  X(log_size, "nvrtcGetProgramLogSize", (void *program, size_t *bytes))                                    \
  X(log, "nvrtcGetProgramLog", (void *program, char *text))                                                \
  X(cubin_size, "nvrtcGetCUBINSize", (void *program, size_t *bytes))                                       \
  X(cubin, "nvrtcGetCUBIN", (void *program, char *image))                                                  \
  X(ptx_size, "nvrtcGetPTXSize", (void *program, size_t *bytes))                                           \
  X(ptx, "nvrtcGetPTX", (void *program, char *text))

typedef struct nvrtc_table {
#define NVRTC_FIELD(field, name, parameters) int(*field) parameters;
  NVRTC_LIST(NVRTC_FIELD)
#undef NVRTC_FIELD
} nvrtc_table;

/* The library is one a process, so its table is too: written once, then constant. */
static struct {
  pthread_once_t once;
  nvrtc_table table;
  int major, minor;
  fx_status status;
  char reason[512];
} g_nvrtc = {.once = PTHREAD_ONCE_INIT};

static fx_status open_nvrtc(void) {
  static const int majors[] = {13, 12, 0};
  static const fx_cuda_symbol symbols[] = {
#define NVRTC_SYMBOL(field, name, parameters) {name, offsetof(nvrtc_table, field)},
      NVRTC_LIST(NVRTC_SYMBOL)
#undef NVRTC_SYMBOL
  };
  void *library = NULL;
  FX_TRY(fx_cuda_library_open("nvrtc", majors, &library));
  FX_TRY(fx_cuda_library_bind(library, "nvrtc", symbols, (int)(sizeof symbols / sizeof symbols[0]),
                              &g_nvrtc.table));
  if (g_nvrtc.table.version(&g_nvrtc.major, &g_nvrtc.minor) != 0)
    return fx_error(FX_ERR_DEVICE, "NVRTC does not tell its version");
  return FX_OK;
}

static void open_once(void) {
  g_nvrtc.status = open_nvrtc();
  if (g_nvrtc.status != FX_OK) snprintf(g_nvrtc.reason, sizeof g_nvrtc.reason, "%s", fx_error_text());
}

fx_status fx_nvrtc_version(int *major, int *minor) {
  pthread_once(&g_nvrtc.once, open_once);
  if (g_nvrtc.status != FX_OK) return fx_error(g_nvrtc.status, "%s", g_nvrtc.reason);
  *major = g_nvrtc.major;
  *minor = g_nvrtc.minor;
  return FX_OK;
}

static fx_status make_key(const char *source, const char *name, const char *const *options, int count,
                          char hex[33]) {
  fx_hasher *hasher = fx_hasher_create();
  char version[64];
  if (!hasher) return fx_error(FX_ERR_MEMORY, "no memory for a hash");
  snprintf(version, sizeof version, "%s nvrtc %d.%d", FX_VERSION, g_nvrtc.major, g_nvrtc.minor);
  fx_hasher_add(hasher, version, strlen(version) + 1);
  fx_hasher_add(hasher, name, strlen(name) + 1);
  for (int i = 0; i < count; i++) fx_hasher_add(hasher, options[i], strlen(options[i]) + 1);
  fx_hasher_add(hasher, source, strlen(source) + 1);
  fx_hash128_hex(fx_hasher_get(hasher), hex);
  fx_hasher_destroy(hasher);
  return FX_OK;
}

/* The sentence of a program that does not compile, with the beginning of the log. */
static fx_status refuse(void *program, const char *name, const char *arch, int result) {
  size_t bytes = 0;
  char *log = NULL;
  if (g_nvrtc.table.log_size(program, &bytes) == 0 && bytes > 1) log = calloc(bytes + 1, 1);
  if (log && g_nvrtc.table.log(program, log) != 0) log[0] = '\0';
  for (char *c = log; c && *c; c++)
    if (*c == '\n') *c = ' ';
  fx_status status = fx_error(FX_ERR_INTERNAL, "%s does not compile for %s (NVRTC %d.%d, error %d): %.*s",
                              name, arch, g_nvrtc.major, g_nvrtc.minor, result, SHOWN, log ? log : "no log");
  free(log);
  return status;
}

static fx_status compile(const char *source, const char *name, const char *arch, const char *const *options,
                         int count, fx_cache_image *out) {
  const nvrtc_table *nvrtc = &g_nvrtc.table;
  void *program = NULL;
  fx_cache_image image = {NULL, 0};
  fx_status status = FX_OK;
  int result = nvrtc->create(&program, source, name, 0, NULL, NULL);
  if (result != 0) return fx_error(FX_ERR_DEVICE, "NVRTC takes no program: error %d", result);
  result = nvrtc->compile(program, count, options);
  if (result != 0) {
    status = refuse(program, name, arch, result);
    goto destroy_program;
  }
  bool virtual = strncmp(arch, "compute_", 8) == 0; /* for the driver to compile */
  if ((virtual ? nvrtc->ptx_size : nvrtc->cubin_size)(program, &image.size) != 0 || image.size == 0) {
    status = fx_error(FX_ERR_DEVICE, "NVRTC made no machine code for %s of %s", arch, name);
    goto destroy_program;
  }
  image.data = malloc(image.size);
  if (!image.data) {
    status = fx_error(FX_ERR_MEMORY, "no memory for the machine code of %s", name);
    goto destroy_program;
  }
  if ((virtual ? nvrtc->ptx : nvrtc->cubin)(program, (char *)image.data) != 0) {
    free(image.data);
    status = fx_error(FX_ERR_DEVICE, "NVRTC does not hand over the machine code of %s", name);
    goto destroy_program;
  }
  *out = image;
destroy_program:
  nvrtc->destroy(&program);
  return status;
}

fx_status fx_nvrtc_compile(const char *source, const char *name, const char *arch, const char *const *options,
                           int n, fx_cache_image *out) {
  char target[64], key[33];
  const char *all[MAX_OPTIONS + 3];
  int count = 0, cache = -1, major, minor;
  if (n > MAX_OPTIONS) return fx_error(FX_ERR_INTERNAL, "%d options for NVRTC, at most %d", n, MAX_OPTIONS);
  FX_TRY(fx_nvrtc_version(&major, &minor));
  snprintf(target, sizeof target, "--gpu-architecture=%.32s", arch);
  all[count++] = target;
  all[count++] = "--std=c++17";
  all[count++] = "--device-as-default-execution-space";
  for (int i = 0; i < n; i++) all[count++] = options[i];
  FX_TRY(make_key(source, name, all, count, key));
  FX_TRY(fx_cache_open(NULL, &cache));
  fx_status status = FX_OK;
  if (cache < 0 || !fx_cache_get(cache, key, "cubin", out)) {
    status = compile(source, name, arch, all, count, out);
    if (status == FX_OK && cache >= 0) fx_cache_put(cache, key, "cubin", out);
  }
  if (cache >= 0) close(cache);
  return status;
}
