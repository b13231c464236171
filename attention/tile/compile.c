/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/compile.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attention/tile/spawn.h"
#include "dynamo_rt/base/cache.h"
#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"

struct fx_compiled {
  void *library;
  int fd; /* of the library's bytes, or -1 */
  bool from_cache;
  char *compiler, key[33];
  size_t bytes;
};

/* The same arithmetic as the library itself (CMakeLists.txt): no contraction, no reassociation. */
static const char *const g_flags[] = {
    "-std=gnu11",         "-O3",           "-march=native", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fopenmp-simd", "-fPIC",         "-shared",           "-w"};
enum { NUM_FLAGS = sizeof g_flags / sizeof g_flags[0], TEXT = 4096 };

/* ---- the key ---- */

/* What /proc/cpuinfo says of the first processor that machine code depends on; the file of a large machine is
 * long, and its frequencies differ from call to call. */
static void add_processor(fx_hasher *hasher) {
  static const char *const fields[] = {"vendor_id", "cpu family",      "model",    "stepping",    "flags",
                                       "Features",  "CPU implementer", "CPU part", "CPU variant", "isa"};
  char text[8192];
  int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
  ssize_t got = file >= 0 ? read(file, text, sizeof text - 1) : 0;
  if (file >= 0) close(file);
  text[got > 0 ? got : 0] = '\0';
  char *end = strstr(text, "\n\n");
  if (end) *end = '\0';
  char *rest;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
      if (strncmp(line, fields[i], strlen(fields[i])) == 0) {
        fx_hasher_add(hasher, line, strlen(line) + 1);
        break;
      }
}

/* A compiler says its version in the first line. */
static fx_status add_version(fx_hasher *hasher, const char *compiler) {
  char text[TEXT];
  char *argv[] = {(char *)(uintptr_t)compiler, (char *)(uintptr_t) "--version", NULL};
  int code;
  FX_TRY(fx_spawn(compiler, argv, 10.0, text, sizeof text, &code));
  fx_hasher_add(hasher, text, strcspn(text, "\n"));
  return FX_OK;
}

static fx_status make_key(const char *source, const char *compiler, char hex[33]) {
  fx_hasher *hasher = fx_hasher_create();
  if (!hasher) return fx_error(FX_ERR_MEMORY, "no memory for a hash");
  fx_hasher_add(hasher, source, strlen(source) + 1);
  fx_hasher_add(hasher, compiler, strlen(compiler) + 1);
  for (int i = 0; i < NUM_FLAGS; i++) fx_hasher_add(hasher, g_flags[i], strlen(g_flags[i]) + 1);
  fx_hasher_add(hasher, FX_VERSION, sizeof FX_VERSION);
  add_processor(hasher);
  fx_status status = add_version(hasher, compiler);
  fx_hash128_hex(fx_hasher_get(hasher), hex);
  fx_hasher_destroy(hasher);
  return status;
}

/* ---- compiling ---- */

static fx_status write_source(const char *path, const char *source, const char *key) {
  FILE *file = fopen(path, "wxe");
  if (!file) return fx_error(FX_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
  fprintf(file, "%s\nconst char fx_tile_key[] = \"%s\";\n", source, key);
  bool failed = ferror(file) != 0;
  if (fclose(file) != 0 || failed)
    return fx_error(FX_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
  return FX_OK;
}

static fx_status run_compiler(const char *compiler, double limit, char *from, char *to) {
  char *argv[NUM_FLAGS + 6], text[TEXT];
  int count = 0, code;
  argv[count++] = (char *)(uintptr_t)compiler;
  for (int i = 0; i < NUM_FLAGS; i++) argv[count++] = (char *)(uintptr_t)g_flags[i];
  argv[count++] = (char *)(uintptr_t) "-o";
  argv[count++] = to;
  argv[count++] = from;
  argv[count++] = (char *)(uintptr_t) "-lm";
  argv[count] = NULL;
  FX_TRY(fx_spawn(compiler, argv, limit, text, sizeof text, &code));
  if (code == 0 || (code == -1 && access(to, R_OK) == 0)) return FX_OK;
  int lines = 0;
  for (char *c = text; *c; c++) { /* the first three lines, as one */
    if (*c != '\n') continue;
    *c = ++lines == 3 || !c[1] ? '\0' : ';';
    if (!*c) break;
  }
  return fx_error(FX_ERR_IO, "the C compiler %s failed with exit code %d: %.900s", compiler, code, text);
}

/* A folder of its own, removed with what is in it. */
static fx_status make(const char *compiler, const char *source, const char *key, double limit,
                      fx_cache_image *image) {
  const char *temporary = getenv("TMPDIR");
  char *folder = fx_strfmt("%s/flexion-XXXXXX", temporary && temporary[0] == '/' ? temporary : "/tmp");
  char *from = NULL, *to = NULL;
  fx_status status = FX_OK;
  if (!folder || !mkdtemp(folder)) {
    status = fx_error(FX_ERR_IO, "no temporary folder %s: %s", folder ? folder : "", strerror(errno));
    goto free_names;
  }
  from = fx_strfmt("%s/tile.c", folder);
  to = fx_strfmt("%s/tile.so", folder);
  if (!from || !to) status = fx_error(FX_ERR_MEMORY, "no memory for a file name");
  if (status != FX_OK) goto remove_files;
  FX_TRY_GOTO(write_source(from, source, key), remove_files);
  FX_TRY_GOTO(run_compiler(compiler, limit, from, to), remove_files);
  FX_TRY_GOTO(fx_cache_read(to, image), remove_files);
remove_files:
  if (from) unlink(from);
  if (to) unlink(to);
  rmdir(folder);
free_names:
  free(to);
  free(from);
  free(folder);
  return status;
}

/* Loads the image and compares the key that it holds. */
static fx_status load(const fx_cache_image *image, const char *key, fx_compiled *compiled) {
  FX_TRY(fx_cache_load(image, &compiled->fd, &compiled->library));
  const char *holds = dlsym(compiled->library, "fx_tile_key");
  compiled->bytes = image->size;
  if (holds && strncmp(holds, key, 33) == 0) return FX_OK;
  dlclose(compiled->library);
  compiled->library = NULL;
  if (compiled->fd >= 0) close(compiled->fd);
  compiled->fd = -1;
  return fx_error(FX_ERR_IO, "a compiled kernel holds another key than %s", key);
}

static fx_status compile(const char *source, const fx_compile_options *options, const char *path,
                         fx_compiled *compiled) {
  char *key = compiled->key;
  int cache;
  FX_TRY(fx_cache_open(options->directory, &cache));
  fx_cache_image image = {NULL, 0};
  fx_status status;
  FX_TRY_GOTO(make_key(source, path, key), close_cache);
  if (cache >= 0 && fx_cache_get(cache, key, "so", &image)) {
    compiled->from_cache = load(&image, key, compiled) == FX_OK;
    free(image.data);
    image.data = NULL;
    if (compiled->from_cache) goto close_cache;
    fx_error_clear();
  }
  FX_TRY_GOTO(make(path, source, key, options->time_limit > 0.0 ? options->time_limit : 60.0, &image),
              close_cache);
  FX_TRY_GOTO(load(&image, key, compiled), close_cache);
  if (cache >= 0) fx_cache_put(cache, key, "so", &image);
close_cache:
  free(image.data);
  if (cache >= 0) close(cache);
  return status;
}

fx_status fx_compile(const char *source, const fx_compile_options *options, fx_compiled **out) {
  static const fx_compile_options defaults = {0};
  if (!options) options = &defaults;
  const char *name = options->compiler ? options->compiler : "cc";
  char *path = fx_spawn_find(name);
  if (!path)
    return fx_error(FX_ERR_UNSUPPORTED, "there is no C compiler %s; install one or name another", name);
  fx_compiled *compiled;
  fx_status status = fx_calloc(&compiled, 1, sizeof *compiled);
  if (status == FX_OK) {
    compiled->fd = -1;
    compiled->compiler = path;
    status = compile(source, options, path, compiled);
    if (status == FX_OK)
      *out = compiled;
    else
      fx_compiled_destroy(compiled);
  } else {
    free(path);
  }
  return status;
}

const void *fx_compiled_symbol(const fx_compiled *compiled, const char *name) {
  return dlsym(compiled->library, name);
}

bool fx_compiled_from_cache(const fx_compiled *compiled) {
  return compiled->from_cache;
}

fx_compiled_facts fx_compiled_describe(const fx_compiled *compiled) {
  return (fx_compiled_facts){compiled->compiler, compiled->key, compiled->bytes};
}

const char *fx_compile_flag(int index) {
  return index >= 0 && index < NUM_FLAGS ? g_flags[index] : NULL;
}

void fx_compiled_destroy(fx_compiled *compiled) {
  if (!compiled) return;
  if (compiled->library) dlclose(compiled->library);
  if (compiled->fd >= 0) close(compiled->fd);
  free(compiled->compiler);
  free(compiled);
}
