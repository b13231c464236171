/* SPDX-License-Identifier: Apache-2.0 */
/* Compiling and keeping kernels: concurrent processes, damaged and planted files, unsafe folders, no compiler
 * and bad ones. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "attention/tile/kernel.h"
#include "dynamo_rt/base/memory.h"
#include "tests/harness.h"

/* A variant: score + slope * (q - kv) under a parameter; `window` makes it another one. */
typedef struct simple {
  fx_variant variant;
  char text[64];
} simple;

static void simple_create(simple *s, int window) {
  const fx_ex_ranges ranges = {8, 4096, 4096};
  fx_variant *v = &s->variant;
  *v = (fx_variant){
      .score = FX_EX_NONE, .slope = FX_EX_NONE, .mask_fault = FX_EX_NONE, .score_fault = FX_EX_NONE};
  v->pool = fx_ex_pool_create(&ranges);
  snprintf(s->text, sizeof s->text, "q - kv < %d", window);
  v->text = s->text;
  fx_ex q = fx_ex_variable(v->pool, FX_EX_Q), kv = fx_ex_variable(v->pool, FX_EX_KV);
  fx_ex distance = fx_ex_binary(v->pool, FX_EX_SUB, q, kv);
  v->mask = fx_ex_binary(v->pool, FX_EX_LT, distance, fx_ex_int(v->pool, window));
  fx_ex bias =
      fx_ex_binary(v->pool, FX_EX_MUL, fx_ex_parameter(v->pool, fx_ex_declare_param(v->pool, "slope", 0.5f)),
                   fx_ex_convert(v->pool, distance, FX_EX_FLOAT));
  v->score = fx_ex_binary(v->pool, FX_EX_ADD, fx_ex_variable(v->pool, FX_EX_SCORE), bias);
}

static void simple_destroy(simple *s) {
  fx_ex_pool_destroy(s->variant.pool);
}

/* The kernel does what the variant says. */
static bool works(const fx_tile_kernel *kernel, int window) {
  const fx_tile_functions *f = fx_tile_kernel_functions(kernel);
  int32_t q[FX_TILE_ROWS], kv[2] = {3, 10};
  float uniform = 0.25f, s[2 * FX_TILE_ROWS];
  uint32_t bits[2];
  for (int r = 0; r < FX_TILE_ROWS; r++) q[r] = 5 + r;
  for (int i = 0; i < 2 * FX_TILE_ROWS; i++) s[i] = (float)i;
  fx_tile_args args = {.self = f->self, .uniform = &uniform, .h = 1, .keys = 2, .q = q, .kv = kv};
  f->mask(&args, bits);
  f->score(&args, s, FX_TILE_ROWS, 2.0f);
  for (int i = 0; i < 2 * FX_TILE_ROWS; i++) {
    int k = i / FX_TILE_ROWS, r = i % FX_TILE_ROWS;
    if (((bits[k] >> r) & 1) != (uint32_t)(q[r] - kv[k] < window)) return false;
    if (s[i] != 2.0f * ((float)i + 0.25f * (float)(q[r] - kv[k]))) return false;
  }
  return true;
}

static fx_tile_options compiled_in(const char *directory) {
  return (fx_tile_options){.mode = FX_TILE_COMPILED, .compile = {.directory = directory}};
}

/* Creates, checks and destroys one; whether it came from the cache. */
static bool once(const fx_tile_options *options, int window) {
  simple s;
  simple_create(&s, window);
  fx_tile_kernel *kernel = NULL;
  bool cached = false;
  if (CHECK_OK(fx_tile_kernel_create(&s.variant, options, &kernel))) {
    CHECK(fx_tile_kernel_is_compiled(kernel));
    CHECK(works(kernel, window));
    cached = fx_tile_kernel_from_cache(kernel);
  }
  fx_tile_kernel_destroy(kernel);
  simple_destroy(&s);
  return cached;
}

static int entries(const char *directory, char first[256]) {
  DIR *listing = opendir(directory);
  int count = 0;
  for (struct dirent *e; listing && (e = readdir(listing));) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    count++;
    snprintf(first, 256, "%.255s", e->d_name);
  }
  if (listing) closedir(listing);
  return count;
}

static const char *folder(const char *name) {
  static char path[4][512];
  static int next;
  char *made = path[next++ % 4];
  snprintf(made, sizeof path[0], "%s/%s", fx_temp_dir(), name);
  return made;
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void second_use_comes_from_the_cache(void) {
  char name[256];
  const char *directory = folder("twice");
  fx_tile_options options = compiled_in(directory);
  double start = seconds();
  CHECK(!once(&options, 7));
  double compiled = seconds() - start;
  double best = 1e9;
  for (int i = 0; i < 5; i++) {
    start = seconds();
    CHECK(once(&options, 7));
    double took = seconds() - start;
    best = took < best ? took : best;
  }
  printf("compiled in %.0f ms, from the cache in %.1f ms\n", 1e3 * compiled, 1e3 * best);
  CHECK(!once(&options, 8)); /* another variant */
  CHECK_INT(entries(directory, name), 2);
  struct stat about;
  CHECK(stat(directory, &about) == 0 && (about.st_mode & 0777) == 0700);
}

/* Two kernels live at once keep their own functions (libraries are told apart by name when they are opened).
 */
static void kernels_live_side_by_side(void) {
  fx_tile_options options = compiled_in(folder("side"));
  simple s[3];
  fx_tile_kernel *kernel[3] = {NULL};
  for (int i = 0; i < 3; i++) {
    simple_create(&s[i], 10 + i);
    CHECK_OK(fx_tile_kernel_create(&s[i].variant, &options, &kernel[i]));
  }
  for (int i = 0; i < 3; i++) CHECK(works(kernel[i], 10 + i));
  fx_tile_kernel_destroy(kernel[1]);
  CHECK_OK(fx_tile_kernel_create(&s[1].variant, &options, &kernel[1]));
  for (int i = 0; i < 3; i++) {
    CHECK(works(kernel[i], 10 + i));
    fx_tile_kernel_destroy(kernel[i]);
    simple_destroy(&s[i]);
  }
}

static void processes_compile_at_once(void) {
  enum { RANKS = 4 };
  char name[256];
  const char *directory = folder("ranks");
  fx_tile_options options = compiled_in(directory);
  pid_t child[RANKS];
  for (int i = 0; i < RANKS; i++) {
    child[i] = fork();
    if (child[i] != 0) continue;
    simple s;
    simple_create(&s, 20);
    fx_tile_kernel *kernel = NULL;
    bool good = fx_tile_kernel_create(&s.variant, &options, &kernel) == FX_OK && works(kernel, 20);
    fx_tile_kernel_destroy(kernel);
    simple_destroy(&s);
    _exit(good ? 0 : 1);
  }
  for (int i = 0; i < RANKS; i++) {
    int how = -1;
    waitpid(child[i], &how, 0);
    CHECK_INT(how, 0);
  }
  CHECK_INT(entries(directory, name), 1);
  CHECK(once(&options, 20));
}

static void damage(const char *path, int64_t at, bool truncated) {
  int file = open(path, O_RDWR);
  struct stat about;
  CHECK(file >= 0 && fstat(file, &about) == 0);
  int64_t offset = at < 0 ? about.st_size + at : at;
  unsigned char byte = 0;
  if (truncated) {
    CHECK(ftruncate(file, offset) == 0);
  } else {
    CHECK(pread(file, &byte, 1, offset) == 1);
    byte ^= 0x10;
    CHECK(pwrite(file, &byte, 1, offset) == 1);
  }
  close(file);
}

static void damaged_files_are_made_again(void) {
  static const struct {
    int64_t at;
    bool truncated;
  } ways[] = {{0, true},  {10, true},    {4000, true}, {-1, true},   {-24, true},
              {0, false}, {4500, false}, {-1, false},  {-20, false}, {-24, false}};
  char name[256];
  const char *directory = folder("damaged");
  fx_tile_options options = compiled_in(directory);
  once(&options, 30);
  CHECK_INT(entries(directory, name), 1);
  const char *path = fx_strfmt("%s/%s", directory, name);
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    damage(path, ways[i].at, ways[i].truncated);
    CHECK_MSG(!once(&options, 30), "damage %zu was not seen", i);
    CHECK_MSG(once(&options, 30), "damage %zu was not replaced", i);
  }
  CHECK_INT(entries(directory, name), 1);
  free((void *)(uintptr_t)path);
}

static void planted_files_are_made_again(void) {
  char first[256], second[256];
  const char *directory = folder("planted"), *other = folder("other");
  fx_tile_options options = compiled_in(directory), elsewhere = compiled_in(other);
  once(&options, 40);
  once(&elsewhere, 41);
  CHECK_INT(entries(directory, first), 1);
  CHECK_INT(entries(other, second), 1);
  char *path = fx_strfmt("%s/%s", directory, first), *source = fx_strfmt("%s/%s", other, second);
  struct stat about;
  CHECK(unlink(path) == 0 && symlink(source, path) == 0);
  CHECK(!once(&options, 40)); /* a link is not followed, and replaced */
  CHECK(lstat(path, &about) == 0 && S_ISREG(about.st_mode));
  CHECK(once(&elsewhere, 41));
  CHECK(rename(source, path) == 0); /* a good file of another kernel under this one's name */
  CHECK(!once(&options, 40));
  CHECK(once(&options, 40));
  CHECK(chmod(path, 0666) == 0); /* anybody may have written it */
  CHECK(!once(&options, 40));
  CHECK(once(&options, 40));
  free(path);
  free(source);
}

static void unusable_folders(void) {
  simple s;
  simple_create(&s, 50);
  fx_tile_kernel *kernel = NULL;
  const char *open_folder = folder("open"), *file = fx_temp_file(fx_temp_dir(), "file", "text");
  CHECK(mkdir(open_folder, 0700) == 0 && chmod(open_folder, 0777) == 0);
  fx_tile_options options = compiled_in(open_folder);
  CHECK_STATUS(fx_tile_kernel_create(&s.variant, &options, &kernel), FX_ERR_CONFIG);
  CHECK_HAS(fx_error_text(), "writable by others");
  options.mode = FX_TILE_AUTO;
  CHECK_OK(fx_tile_kernel_create(&s.variant, &options, &kernel));
  CHECK(!fx_tile_kernel_is_compiled(kernel) && works(kernel, 50));
  CHECK_HAS(fx_tile_kernel_reason(kernel), "writable by others");
  fx_tile_kernel_destroy(kernel);
  fx_tile_options below = compiled_in(fx_strfmt("%s/below", file)); /* cannot be made: compiled, not kept */
  CHECK(!once(&below, 50));
  CHECK(!once(&below, 50));
  free((void *)(uintptr_t)below.compile.directory);
  if (geteuid() != 0) {
    fx_tile_options closed = compiled_in(folder("closed"));
    CHECK(mkdir(closed.compile.directory, 0500) == 0);
    CHECK(!once(&closed, 50));
    CHECK(!once(&closed, 50));
    CHECK(chmod(closed.compile.directory, 0700) == 0);
  }
  simple_destroy(&s);
}

static const char *script(const char *name, const char *text) {
  const char *path = fx_temp_file(fx_temp_dir(), name, text);
  CHECK(chmod(path, 0700) == 0);
  return path;
}

static void compilers_that_fail(void) {
  const struct {
    const char *compiler, *says;
    fx_status status;
  } cases[] = {
      {"no-such-compiler", "there is no C compiler no-such-compiler", FX_ERR_UNSUPPORTED},
      {"/no/such/compiler", "there is no C compiler", FX_ERR_UNSUPPORTED},
      {script("refuses",
              "#!/bin/sh\n[ \"$1\" = --version ] || { echo 'tile.c: bad weather' >&2; exit 3; }\n"),
       "exit code 3: tile.c: bad weather", FX_ERR_IO},
      {script("sleeps", "#!/bin/sh\n[ \"$1\" = --version ] || sleep 100\n"), "was killed", FX_ERR_IO},
      {script("silent", "#!/bin/sh\nexit 0\n"), "cannot be read", FX_ERR_IO},
      {script("notelf",
              "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" = -o ] && echo junk > \"$2\"; shift; done\n"),
       "cannot be loaded", FX_ERR_IO},
  };
  simple s;
  simple_create(&s, 60);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fx_tile_options options = compiled_in(folder("failing"));
    options.compile.compiler = cases[i].compiler;
    options.compile.time_limit =
        strcmp(cases[i].says, "was killed") == 0 ? 0.5 : 60; /* others may take theirs */
    fx_tile_kernel *kernel = NULL;
    CHECK_STATUS(fx_tile_kernel_create(&s.variant, &options, &kernel), cases[i].status);
    CHECK_HAS(fx_error_text(), cases[i].says);
    options.mode = FX_TILE_AUTO;
    if (!CHECK_OK(fx_tile_kernel_create(&s.variant, &options, &kernel))) continue;
    CHECK(!fx_tile_kernel_is_compiled(kernel) && works(kernel, 60));
    CHECK_HAS(fx_tile_kernel_reason(kernel), cases[i].says);
    fx_tile_kernel_destroy(kernel);
  }
  simple_destroy(&s);
}

/* A new parameter value changes no kernel, but what people are shown; another compiler is another file. */
static void keys_follow_what_matters(void) {
  char name[256];
  const char *directory = folder("keys");
  fx_tile_options options = compiled_in(directory);
  once(&options, 70);
  simple s;
  simple_create(&s, 70);
  snprintf(s.text, sizeof s.text, "score + 0.75 * (q - kv) */ for people");
  fx_tile_kernel *kernel = NULL;
  CHECK_OK(fx_tile_kernel_create(&s.variant, &options, &kernel));
  CHECK(fx_tile_kernel_from_cache(kernel));
  fx_tile_kernel_destroy(kernel);
  char *source = NULL;
  CHECK_OK(fx_tile_kernel_source(&s.variant, &source));
  CHECK_HAS(source, "/* score + 0.75 * (q - kv) * / for people */");
  free(source);
  simple_destroy(&s);
  options.compile.compiler = script("mycc", "#!/bin/sh\nexec cc \"$@\"\n");
  CHECK(!once(&options, 70));
  CHECK(once(&options, 70));
  CHECK_INT(entries(directory, name), 2);
}

static const fx_test g_tests[] = {
    {"second use comes from the cache", second_use_comes_from_the_cache},
    {"kernels live side by side", kernels_live_side_by_side},
    {"processes compile at once", processes_compile_at_once},
    {"damaged files are made again", damaged_files_are_made_again},
    {"planted files are made again", planted_files_are_made_again},
    {"unusable folders", unusable_folders},
    {"compilers that fail", compilers_that_fail},
    {"keys follow what matters", keys_follow_what_matters},
};
FX_TEST_MAIN("tile_cache", g_tests)
