/* SPDX-License-Identifier: Apache-2.0 */
/* Every CUDA source of the ops compiles, for each architecture, without a GPU; the cache; what a mistake
 * says. Without NVRTC there is one line and nothing to test, unless FX_REQUIRE_NVRTC=1 makes that a failure.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dynamo_rt/codegen/cuda/source.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "tests/attention/cubin.h"
#include "tests/harness.h"

/* In the place of the library's, so that a test can tell it another version of NVRTC. */
#include "dynamo_rt/codegen/cuda/nvrtc.c"

/* Every kernel of a cubin keeps its numbers in registers. */
static int kernels_do_not_spill(const fx_cache_image *image, const char *arch) {
  const Elf64_Shdr *symbols = cubin_section(image, ".symtab"), *strings = cubin_section(image, ".strtab");
  int kernels = 0;
  if (!CHECK(symbols && strings)) return 0;
  const Elf64_Sym *symbol = (const void *)(image->data + symbols->sh_offset);
  for (size_t i = 1; i < symbols->sh_size / sizeof *symbol; i++) {
    const char *name = (const char *)image->data + strings->sh_offset + symbol[i].st_name;
    if (ELF64_ST_TYPE(symbol[i].st_info) != STT_FUNC || name[0] == '$') continue; /* the compiler's own */
    bool large_angles = strcmp(name, "rope_table") == 0; /* cosf keeps 2 / pi in local memory for those */
    cubin_usage usage = cubin_usage_of(image, name);
    CHECK_MSG(usage.registers > 0 && (usage.stack == 0 || large_angles),
              "%s for %s: %d registers, %d bytes of stack", name, arch, usage.registers, usage.stack);
    if (getenv("FX_SHOW")) printf("%-24s %s %d registers\n", name, arch, usage.registers);
    kernels++;
  }
  return kernels;
}

/* Returns how many kernels there are. */
static int compiles(const fx_cuda_source *source, fx_dtype dtype, const char *arch) {
  fx_cache_image image = {NULL, 0};
  int kernels = 0;
  if (CHECK_OK(fx_cuda_op_compile(source, dtype, arch, &image)) &&
      CHECK_MSG(image.size > 500 && memcmp(image.data, "\177ELF", 4) == 0,
                "%s for %s: %zu bytes that are no cubin", source->name, arch, image.size))
    kernels = kernels_do_not_spill(&image, arch);
  free(image.data);
  return kernels;
}

static void all_sources_compile(void) {
  static const char *const archs[] = {"sm_80", "sm_90a"};
  enum { ARCHS = sizeof archs / sizeof archs[0] };
  int sources = 0, kernels = 0;
  for (int i = 0; i < fx_cuda_op_sources_count; i++) {
    const fx_cuda_source *source = &fx_cuda_op_sources[i];
    if (!strstr(source->name, ".cuh")) sources++;
    for (int a = 0; !strstr(source->name, ".cuh") && a < ARCHS; a++)
      for (int type = 0; type <= fx_cuda_op_typed(source); type++)
        kernels += compiles(source, type ? FX_BF16 : FX_F32, archs[a]);
  }
  CHECK_MSG(sources >= 6, "%d sources are embedded, expected at least 6", sources);
  CHECK_MSG(kernels > ARCHS * FX_CUDA_KERNEL_COUNT, "only %d kernels were looked at", kernels);
}

/* Every kernel waits ahead of whatever it does with global memory. Returns how many there are; `ptx` is cut
 * up. */
static int ptx_kernels_wait(const char *name, char *ptx) {
  static const char *const touches[] = {"ld.global",  "st.global", "atom.global",
                                        "red.global", "cp.async",  "ld.volatile"};
  int kernels = 0;
  for (char *entry = strstr(ptx, ".entry "), *next = NULL; entry; entry = next, kernels++) {
    next = strstr(entry + 1, ".entry ");
    if (next) next[-1] = '\0';
    char *wait = strstr(entry, "griddepcontrol.wait");
    if (!CHECK_MSG(wait != NULL, "%s: a kernel does not wait: %.60s", name, entry)) continue;
    CHECK_MSG(strstr(wait, "griddepcontrol.launch_dependents") != NULL, "%s: none may follow %.60s", name,
              entry);
    *wait = '\0';
    for (size_t i = 0; i < sizeof touches / sizeof touches[0]; i++)
      CHECK_MSG(!strstr(entry, touches[i]), "%s: %s before the wait in %.60s", name, touches[i], entry);
  }
  return kernels;
}

/* Kernels are launched early on sm_90 and later (device/cuda/driver.h), and sm_80 knows no such wait. */
static void kernels_wait_for_those_before(void) {
  int kernels = 0;
  for (int i = 0; i < fx_cuda_op_sources_count; i++) {
    const fx_cuda_source *source = &fx_cuda_op_sources[i];
    fx_cache_image image = {NULL, 0};
    for (int type = 0; !strstr(source->name, ".cuh") && type <= fx_cuda_op_typed(source); type++) {
      fx_dtype dtype = type ? FX_BF16 : FX_F32;
      if (CHECK_OK(fx_cuda_op_compile(source, dtype, "compute_90a", &image)))
        kernels += ptx_kernels_wait(source->name, (char *)image.data);
      free(image.data), image.data = NULL;
      if (CHECK_OK(fx_cuda_op_compile(source, dtype, "compute_80", &image)))
        CHECK(strstr((char *)image.data, ".entry ") && !strstr((char *)image.data, "griddepcontrol"));
      free(image.data), image.data = NULL;
    }
  }
  CHECK_MSG(kernels > FX_CUDA_KERNEL_COUNT, "only %d kernels were looked at", kernels);
}

/* ---- the cache ---- */

static const char g_one[] = "extern \"C\" __global__ void one(float *y) { *y = 1.0f; }\n";
static const char g_two[] = "extern \"C\" __global__ void two(float *y) { *y = 2.0f; }\n";

/* A cache that no other test has; its path in static storage. */
static const char *fresh_cache(void) {
  static char path[600];
  static int count;
  char home[512];
  snprintf(home, sizeof home, "%s/cache%d", fx_temp_dir(), count++);
  CHECK_INT(mkdir(home, 0700), 0);
  setenv("XDG_CACHE_HOME", home, 1);
  snprintf(path, sizeof path, "%s/flexion", home);
  return path;
}

/* How many cubins a cache holds; name: of one of them. */
static int cubins_in(const char *cache, char name[64]) {
  DIR *folder = opendir(cache);
  int count = 0;
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    const char *dot = strchr(entry->d_name, '.');
    if (!dot || strcmp(dot, ".cubin") != 0) continue;
    snprintf(name, 64, "%.63s", entry->d_name);
    count++;
  }
  closedir(folder);
  return count;
}

static fx_cache_image compiled(const char *source, const char *arch, const char *option) {
  fx_cache_image image = {NULL, 0};
  CHECK_OK(fx_nvrtc_compile(source, "test.cu", arch, &option, option ? 1 : 0, &image));
  return image;
}

static bool same_image(fx_cache_image a, fx_cache_image b) {
  return a.data && b.data && a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
}

/* One compilation, of which nothing but the number of cubins is wanted. */
static void makes(const char *cache, int cubins, const char *source, const char *arch, const char *option) {
  char name[64];
  fx_cache_image image = compiled(source, arch, option);
  CHECK_INT(cubins_in(cache, name), cubins);
  free(image.data);
}

/* Twice, so that none is made again under another name either. */
static void a_cubin_for_each_thing_it_depends_on(void) {
  const char *cache = fresh_cache();
  for (int round = 0; round < 2; round++) {
    makes(cache, round ? 6 : 1, g_one, "sm_80", NULL);
    makes(cache, round ? 6 : 2, g_one, "sm_90a", NULL);
    makes(cache, round ? 6 : 3, g_two, "sm_80", NULL);
    makes(cache, round ? 6 : 4, g_two, "sm_90a", NULL);
    makes(cache, round ? 6 : 5, g_one, "sm_80", "-DONE=1");
    makes(cache, round ? 6 : 6, g_one, "sm_80", "-DONE=2");
  }
}

/* Another NVRTC, which the table is told of: what the first one made is not taken, nor lost. */
static void another_nvrtc_makes_its_own(void) {
  const char *cache = fresh_cache();
  makes(cache, 1, g_one, "sm_80", NULL);
  g_nvrtc.minor++;
  makes(cache, 2, g_one, "sm_80", NULL);
  g_nvrtc.minor--;
  g_nvrtc.major++;
  makes(cache, 3, g_one, "sm_80", NULL);
  g_nvrtc.major--;
  makes(cache, 3, g_one, "sm_80", NULL);
}

/* Bytes that no compiler makes stand in the place of a cubin: they come back, and for their source alone. */
static void what_is_kept_is_read(void) {
  static unsigned char planted_bytes[] = "planted";
  const fx_cache_image planted = {planted_bytes, sizeof planted_bytes};
  const char *cache = fresh_cache();
  char name[64] = "";
  int fd = -1;
  fx_cache_image first = compiled(g_one, "sm_80", NULL);
  if (!CHECK_INT(cubins_in(cache, name), 1) || !CHECK_OK(fx_cache_open(NULL, &fd)) || !CHECK(fd >= 0)) return;
  name[strcspn(name, ".")] = '\0'; /* the key */
  fx_cache_put(fd, name, "cubin", &planted);
  fx_cache_image again = compiled(g_one, "sm_80", NULL), other = compiled(g_one, "sm_90a", NULL);
  CHECK_MSG(same_image(again, planted), "%s was not read: %zu bytes came", name, again.size);
  CHECK(!same_image(other, planted));
  free(again.data), free(other.data), free(first.data);
  close(fd);
}

/* One bit of it, in its middle: the cubin is made again, and kept again. */
static void a_damaged_cubin_is_made_again(void) {
  const char *cache = fresh_cache();
  char name[64] = "", path[700];
  fx_cache_image first = compiled(g_one, "sm_80", NULL), whole = {NULL, 0}, kept = {NULL, 0};
  if (!CHECK_INT(cubins_in(cache, name), 1)) return;
  snprintf(path, sizeof path, "%s/%s", cache, name);
  if (!CHECK_OK(fx_cache_read(path, &whole))) return;
  FILE *file = fopen(path, "r+");
  if (!CHECK(file != NULL)) return;
  fseek(file, (long)whole.size / 2, SEEK_SET);
  fputc(whole.data[whole.size / 2] ^ 1, file);
  fclose(file);
  fx_cache_image again = compiled(g_one, "sm_80", NULL);
  CHECK(same_image(again, first));
  CHECK(CHECK_OK(fx_cache_read(path, &kept)) && same_image(kept, whole));
  free(first.data), free(whole.data), free(again.data), free(kept.data);
}

static void mistakes_are_told(void) {
  fx_cache_image image = {NULL, 0};
  CHECK_STATUS(fx_nvrtc_compile("extern \"C\" __global__ void f() { nonsense; }\n", "wrong.cu", "sm_80", NULL,
                                0, &image),
               FX_ERR_INTERNAL);
  CHECK_HAS(fx_error_text(), "wrong.cu");
  CHECK_HAS(fx_error_text(), "nonsense");
  CHECK(image.data == NULL);
  CHECK_STATUS(fx_nvrtc_compile("", "empty.cu", "sm_1", NULL, 0, &image), FX_ERR_INTERNAL);
  CHECK_HAS(fx_error_text(), "sm_1");
}

/* Compiled by threads of their own, whose sentence is another thread's. */
static void mistakes_of_threads_are_told(void) {
  fx_cuda_kernels *kernels = NULL;
  fx_error_clear();
  CHECK_STATUS(fx_cuda_kernels_load(NULL, "sm_1", &kernels), FX_ERR_INTERNAL);
  CHECK_HAS(fx_error_text(), "does not compile for sm_1");
  CHECK(kernels == NULL);
}

int main(void) {
  static const fx_test tests[] = {{"all sources compile for sm_80 and sm_90a", all_sources_compile},
                                  {"kernels wait for those before them", kernels_wait_for_those_before},
                                  {"a cubin is kept for each source, architecture and set of options",
                                   a_cubin_for_each_thing_it_depends_on},
                                  {"another NVRTC makes its own", another_nvrtc_makes_its_own},
                                  {"what is kept is read", what_is_kept_is_read},
                                  {"a damaged cubin is made again", a_damaged_cubin_is_made_again},
                                  {"mistakes are told with the compiler's words", mistakes_are_told},
                                  {"mistakes of the threads are told", mistakes_of_threads_are_told}};
  const char *required = getenv("FX_REQUIRE_NVRTC");
  int major, minor;
  if (fx_nvrtc_version(&major, &minor) != FX_OK) {
    bool fail = required && strcmp(required, "1") == 0;
    printf("%s: no NVRTC: %s\n", fail ? "FAILED" : "skipped", fx_error_text());
    return fail ? 1 : FX_TEST_SKIPPED;
  }
  setenv("XDG_CACHE_HOME", fx_temp_dir(), 1);
  return fx_test_main("nvrtc", tests, (int)(sizeof tests / sizeof tests[0]));
}
