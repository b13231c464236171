/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels compile, without a GPU: every named variant at one head dimension, plain and one with a
 * costly score at all, forward, partial and backward, for sm_80 and sm_90a; registers and stack as a table
 * allows. Without NVRTC the suite says so and counts as skipped (77), unless FX_REQUIRE_NVRTC=1. */
#include <stdio.h>
#include <stdlib.h>

#include "attention/cuda/emit_cuda.h"
#include "attention/cuda/flash_cuda.h"
#include "core/config/builtin.h"
#include "core/config/config.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "tests/attention/cubin.h"
#include "tests/harness.h"

enum { LENGTH = 1024, HEADS = 4 };

static const char *const g_archs[] = {"sm_80", "sm_90a"};
static const int32_t g_dims[] = {64, 96, 128, 256};

/* Most registers and stack bytes (spills) of a kernel, by head dimension: {16-bit, fp32}. A thread has at
 * most 255 registers; where that is the bound the stack's says whether they were enough. */
typedef struct bound {
  const char *kernel;
  bool backward;
  struct {
    int registers, stack;
  } of[4][2];
} bound;
static const bound g_bounds[] = {
    {"flex_fwd",
     false,
     {{{136, 0}, {168, 0}}, {{152, 8}, {168, 0}}, {{192, 0}, {168, 0}}, {{255, 56}, {255, 0}}}},
    {"flex_bwd_keys",
     true,
     {{{152, 0}, {168, 0}}, {{184, 0}, {168, 0}}, {{255, 0}, {255, 0}}, {{255, 88}, {248, 0}}}},
    {"flex_bwd_rows",
     true,
     {{{144, 8}, {128, 0}}, {{136, 0}, {168, 0}}, {{192, 0}, {168, 0}}, {{255, 56}, {255, 0}}}},
};

/* Arguments that a named variant cannot do without. */
static const char *required(const char *name) {
  static const struct {
    const char *name, *text;
  } table[] = {{"block_diffusion", "block: 16"},  {"chunked", "chunk: 128"},
               {"dilated_window", "window: 128"}, {"document_prefix", "prefix: 100"},
               {"global_sliding", "window: 128"}, {"neighbourhood_2d", "width: 32"},
               {"prefix_lm", "prefix: 100"},      {"shared_prefix", "prefix: 100"},
               {"sliding_window", "window: 128"}, {"soft_sliding_window", "window: 128"}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
    if (strcmp(table[i].name, name) == 0) return table[i].text;
  return "";
}

static fx_variant *named_variant(const char *name) {
  char text[400];
  fx_config *config = NULL;
  fx_variant *variant = NULL;
  fx_ex_ranges ranges = {HEADS, LENGTH, LENGTH};
  snprintf(text, sizeof text, "attention: {variant: %s, params: {%s}}\ntrain: {seq_length: %d}\n", name,
           required(name), LENGTH);
  if (!CHECK_MSG(fx_config_parse(text, name, &config) == FX_OK, "%s: %s", name, fx_error_text())) return NULL;
  CHECK_MSG(fx_config_variant(config, 0, &ranges, &variant) == FX_OK, "%s: %s", name, fx_error_text());
  fx_config_destroy(config);
  return variant;
}

static void check_usage(const fx_flash_key *key, const char *name, const char *arch,
                        const fx_cache_image *image) {
  int d = 0;
  while (g_dims[d] != key->D) d++;
  for (size_t i = 0; i < sizeof g_bounds / sizeof g_bounds[0]; i++) {
    const bound *most = &g_bounds[i];
    if (most->backward != (key->pass == FX_FLASH_BACKWARD)) continue;
    cubin_usage got = cubin_usage_of(image, most->kernel);
    int registers = most->of[d][key->dtype == FX_F32].registers,
        stack = most->of[d][key->dtype == FX_F32].stack;
    CHECK_MSG(got.registers > 0 && got.registers <= registers && got.stack >= 0 && got.stack <= stack,
              "%s, %s, D %d, %s, R %d, ask %d: %s has %d registers and %d bytes of stack, at most %d and %d",
              name, fx_dtype_name(key->dtype), key->D, arch, key->R, key->ask, most->kernel, got.registers,
              got.stack, registers, stack);
  }
}

static void compile_key(fx_flash_key key, const char *name) {
  for (int arch = 0; arch < 2; arch++) {
    fx_cache_image image = {NULL, 0};
    if (!CHECK_MSG(fx_flash_cubin(&key, g_archs[arch], &image) == FX_OK, "%s, D %d: %s", name, key.D,
                   fx_error_text()))
      continue;
    check_usage(&key, name, g_archs[arch], &image);
    free(image.data);
  }
}

/* Named variants, their masks asked, each at one head dimension or another. */
static void named_variants(void) {
  for (int i = 0; i < fx_builtin_variants_count; i++) {
    fx_variant *variant = named_variant(fx_builtin_variants[i].name);
    if (!variant) continue;
    fx_flash_key key = {variant, FX_FLASH_FORWARD, FX_BF16, g_dims[i % 4], 0, variant->mask != FX_EX_NONE};
    compile_key(key, fx_builtin_variants[i].name);
    key.pass = FX_FLASH_BACKWARD;
    compile_key(key, fx_builtin_variants[i].name);
    fx_variant_destroy(variant);
  }
}

/* All head dimensions and types: plain with limits, and one variant with a costly score. */
static void shapes(void) {
  static const fx_dtype dtypes[] = {FX_F32, FX_BF16, FX_F16};
  fx_variant *softcap = named_variant("softcap");
  for (int d = 0; d < 4; d++)
    for (int t = 0; t < 3; t++)
      for (int pass = FX_FLASH_FORWARD; pass <= FX_FLASH_BACKWARD; pass++) {
        fx_flash_key key = {NULL, (fx_flash_pass)pass, dtypes[t], g_dims[d], 1, false};
        compile_key(key, "limits");
        if (t == 2 || pass == FX_FLASH_PARTIAL || !softcap) continue;
        key.variant = softcap;
        compile_key(key, "softcap");
        key.variant = NULL, key.R = 2 * (d % 2);
        compile_key(key, "plain, or limits of two intervals");
      }
  fx_variant_destroy(softcap);
}

static void refusals(void) {
  fx_cache_image image;
  fx_flash_key key = {NULL, FX_FLASH_FORWARD, FX_BF16, 80, 0, false};
  CHECK_STATUS(fx_flash_cubin(&key, "sm_80", &image), FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "head dimension 80, expected 64, 96, 128 or 256");
  key.D = 64, key.dtype = FX_I32;
  CHECK_STATUS(fx_flash_cubin(&key, "sm_80", &image), FX_ERR_UNSUPPORTED);
  key.dtype = FX_BF16, key.R = 3;
  CHECK_STATUS(fx_flash_cubin(&key, "sm_80", &image), FX_ERR_UNSUPPORTED);
}

static const fx_test g_tests[] = {
    {"named variants", named_variants}, {"shapes", shapes}, {"refusals", refusals}};

int main(void) {
  int major, minor;
  const char *require = getenv("FX_REQUIRE_NVRTC");
  if (fx_nvrtc_version(&major, &minor) != FX_OK) {
    fprintf(stderr, "skipped: no NVRTC (%s)\n", fx_error_text());
    return require && strcmp(require, "1") == 0 ? 1 : 77;
  }
  return fx_test_main("CUDA attention kernels compile", g_tests, (int)(sizeof g_tests / sizeof g_tests[0]));
}
