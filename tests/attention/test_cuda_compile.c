/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels compile, without a GPU: every named variant at every head dimension, forward and backward,
 * plain and one with a costly score also in every type and pass, for sm_80 and sm_90a; registers and stack as
 * tables allow; on sm_90a 16-bit types on wgmma, its products not one by one, in the shared memory that there
 * is. Without NVRTC the suite says so and counts as skipped (77), unless FX_REQUIRE_NVRTC=1. */
#include <stdio.h>
#include <stdlib.h>

#include "attention/cuda/emit_cuda.h"
#include "attention/cuda/flash_cuda.h"
#include "attention/cuda/flash_policy.h"
#include "core/config/builtin.h"
#include "core/config/config.h"
#include "dynamo_rt/codegen/cuda/nvrtc.h"
#include "tests/attention/cubin.h"
#include "tests/attention/flash_family.h"
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
     {{{136, 0}, {168, 0}}, {{154, 8}, {168, 0}}, {{192, 0}, {168, 0}}, {{255, 56}, {255, 0}}}},
    {"flex_bwd_keys",
     true,
     {{{152, 8}, {168, 0}}, {{184, 0}, {168, 0}}, {{255, 0}, {255, 0}}, {{255, 88}, {248, 0}}}},
    {"flex_bwd_rows",
     true,
     {{{144, 8}, {128, 0}}, {{152, 0}, {168, 0}}, {{192, 0}, {168, 0}}, {{255, 56}, {255, 0}}}},
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

/* The same of the kernels on wgmma, whose registers are given by their plan: {plain or limits, any variant or
 * sums in place}; and whether their products may run one by one (flash_policy.c says why). */
static const struct {
  const char *kernel;
  fx_flash_part part;
  int32_t D;
  int stack[2];
  bool serial;
} g_hopper[] = {{"flex_fwd", FX_FLASH_FWD, 64, {16, 16}, false},
                {"flex_fwd", FX_FLASH_FWD, 96, {0, 0}, false},
                {"flex_fwd", FX_FLASH_FWD, 128, {0, 8}, false},
                {"flex_fwd", FX_FLASH_FWD, 256, {0, 0}, false},
                {"flex_bwd_keys", FX_FLASH_KEYS, 64, {16, 48}, true},
                {"flex_bwd_keys", FX_FLASH_KEYS, 96, {0, 8}, false},
                {"flex_bwd_keys", FX_FLASH_KEYS, 128, {0, 0}, false},
                {"flex_bwd_keys", FX_FLASH_KEYS, 256, {8, 8}, false},
                {"flex_bwd_rows", FX_FLASH_ROWS, 64, {0, 0}, false},
                {"flex_bwd_rows", FX_FLASH_ROWS, 96, {0, 0}, false},
                {"flex_bwd_rows", FX_FLASH_ROWS, 128, {0, 0}, false},
                {"flex_bwd_rows", FX_FLASH_ROWS, 256, {0, 0}, false}};
/* Masks that are asked pair by pair, and a score, that take more: what partial tiles load for them. */
static const struct {
  const char *variant, *kernel;
  int32_t D;
  int stack;
} g_spills[] = {{"conversation", "flex_fwd", 64, 48},    {"conversation", "flex_fwd", 128, 32},
                {"document", "flex_fwd", 64, 32},        {"document", "flex_fwd", 128, 24},
                {"document_prefix", "flex_fwd", 64, 40}, {"document_prefix", "flex_fwd", 128, 24},
                {"alibi", "flex_bwd_keys", 128, 16}};
/* Shared memory of a multiprocessor, the system's part of each CTA included. */
enum { SHARED_BYTES = 228 * 1024 };

/* One compilation. They run on two threads, checks afterwards on one. */
typedef struct job {
  fx_flash_key key;
  const char *name, *arch;
  fx_cache_image image;
  fx_status status;
  char error[400];
} job;
static job g_jobs[512];
static int g_num_jobs;

static void add_jobs(fx_flash_key key, const char *name, int archs) {
  for (int arch = 0; arch < 2; arch++)
    if (archs & 1 << arch) g_jobs[g_num_jobs++] = (job){.key = key, .name = name, .arch = g_archs[arch]};
}

static void check_mma(const job *j) {
  int d = 0, type = j->key.dtype == FX_F32;
  while (g_dims[d] != j->key.D) d++;
  for (size_t i = 0; i < sizeof g_bounds / sizeof g_bounds[0]; i++) {
    const bound *most = &g_bounds[i];
    if (most->backward != fx_flash_is_backward(j->key.pass)) continue;
    cubin_usage got = cubin_usage_of(&j->image, most->kernel);
    int registers = most->of[d][type].registers, stack = most->of[d][type].stack;
    CHECK_MSG(got.registers > 0 && got.registers <= registers && got.stack >= 0 && got.stack <= stack,
              "%s, %s, D %d, %s, R %d, ask %d: %s has %d registers and %d bytes of stack, at most %d and %d",
              j->name, fx_dtype_name(j->key.dtype), j->key.D, j->arch, j->key.R, j->key.ask, most->kernel,
              got.registers, got.stack, registers, stack);
  }
}

static int spills_of(const job *j, const char *kernel) {
  for (size_t i = 0; i < sizeof g_spills / sizeof g_spills[0]; i++)
    if (strcmp(g_spills[i].variant, j->name) == 0 && strcmp(g_spills[i].kernel, kernel) == 0 &&
        g_spills[i].D == j->key.D)
      return g_spills[i].stack;
  return 0;
}

static void check_hopper(const job *j, const fx_flash_plan *const plans[FX_FLASH_PARTS]) {
  int seen = 0;
  for (size_t i = 0; i < sizeof g_hopper / sizeof g_hopper[0]; i++) {
    const fx_flash_plan *plan = plans[g_hopper[i].part];
    if (!plan || g_hopper[i].D != j->key.D) continue;
    cubin_usage got = cubin_usage_of(&j->image, g_hopper[i].kernel);
    cubin_wgmma wgmma = cubin_wgmma_of(&j->image, g_hopper[i].kernel);
    int stack = g_hopper[i].stack[j->key.variant != NULL || j->key.pass == FX_FLASH_BACKWARD_ADD];
    int spills = spills_of(j, g_hopper[i].kernel);
    if (stack < spills) stack = spills;
    seen++;
    CHECK_MSG(got.stack >= 0 && got.stack <= stack,
              "%s, %s, D %d, R %d, ask %d: %s has %d bytes of stack, at most %d", j->name,
              fx_dtype_name(j->key.dtype), j->key.D, j->key.R, j->key.ask, g_hopper[i].kernel, got.stack,
              stack);
    CHECK_MSG(wgmma.products > 0 && (g_hopper[i].serial || wgmma.marks <= wgmma.products),
              "%s, %s, D %d, R %d, ask %d: %s has %d products on wgmma and %d marks between them", j->name,
              fx_dtype_name(j->key.dtype), j->key.D, j->key.R, j->key.ask, g_hopper[i].kernel, wgmma.products,
              wgmma.marks);
    bool forward = g_hopper[i].part == FX_FLASH_FWD; /* 64 rows of a step by 128 threads */
    CHECK_MSG(!forward || wgmma.beside >= plan->step / 2,
              "%s, %s, D %d, R %d, ask %d: %d exponentials of a step beside its products, expected %d",
              j->name, fx_dtype_name(j->key.dtype), j->key.D, j->key.R, j->key.ask, wgmma.beside,
              plan->step / 2);
    uint64_t shared = cubin_shared_of(&j->image, g_hopper[i].kernel) + fx_flash_plan_shared(plan);
    CHECK_MSG(shared * (uint64_t)plan->ctas <= SHARED_BYTES,
              "%s, D %d, R %d: %d CTAs of %s take %llu bytes each", j->name, j->key.D, j->key.R, plan->ctas,
              g_hopper[i].kernel, (unsigned long long)shared);
  }
  CHECK(seen == (fx_flash_is_backward(j->key.pass) ? 2 : 1));
}

static void run_jobs(void) {
#pragma omp parallel for schedule(dynamic) num_threads(2)
  for (int i = 0; i < g_num_jobs; i++) {
    job *j = &g_jobs[i];
    j->status = fx_flash_cubin(&j->key, j->arch, &j->image);
    if (j->status != FX_OK) snprintf(j->error, sizeof j->error, "%s", fx_error_text());
  }
  for (int i = 0; i < g_num_jobs; i++) {
    job *j = &g_jobs[i];
    const fx_flash_plan *plans[FX_FLASH_PARTS];
    if (!CHECK_MSG(j->status == FX_OK, "%s, D %d, %s: %s", j->name, j->key.D, j->arch, j->error)) continue;
    bool hopper = fx_flash_plans(&j->key, j->arch, plans);
    CHECK(hopper == (strcmp(j->arch, "sm_90a") == 0 && j->key.dtype != FX_F32));
    if (hopper)
      check_hopper(j, plans);
    else
      check_mma(j);
    free(j->image.data);
  }
  g_num_jobs = 0;
}

/* Named variants, their masks asked, forward and backward. */
static void named_variants(void) {
  fx_variant *variants[64] = {NULL};
  for (int i = 0; i < fx_builtin_variants_count; i++) {
    fx_variant *variant = variants[i] = named_variant(fx_builtin_variants[i].name);
    if (!variant) continue;
    for (int d = 0; d < 4; d++) {
      fx_flash_key key = {.variant = variant,
                          .pass = FX_FLASH_FORWARD,
                          .dtype = FX_BF16,
                          .D = g_dims[d],
                          .ask = variant->mask != FX_EX_NONE};
      add_jobs(key, fx_builtin_variants[i].name, 3);
      key.pass = FX_FLASH_BACKWARD;
      add_jobs(key, fx_builtin_variants[i].name, 3);
    }
  }
  run_jobs();
  for (int i = 0; i < fx_builtin_variants_count; i++) fx_variant_destroy(variants[i]);
}

/* All head dimensions and types with limits (fp32 on either architecture, fp16 where it is on wgmma); in
 * bfloat16 also the passes that add in place, limits of two intervals or none, a scale of any sign, and a
 * variant with a costly score. */
static void shapes(void) {
  static const fx_dtype dtypes[] = {FX_F32, FX_BF16, FX_F16};
  fx_variant *softcap = named_variant("softcap");
  for (int d = 0; d < 4; d++)
    for (int pass = FX_FLASH_FORWARD; pass <= FX_FLASH_BACKWARD_ADD; pass++) {
      fx_flash_key key = {.pass = (fx_flash_pass)pass, .D = g_dims[d], .R = 1};
      bool in_place = pass == FX_FLASH_PARTIAL || pass == FX_FLASH_BACKWARD_ADD;
      for (int t = 0; t < 3; t++) {
        key.dtype = dtypes[t];
        if (!in_place || t == 1) add_jobs(key, "limits", t == 1 ? 3 : t == 2 ? 2 : 1 << d % 2);
      }
      if (in_place) continue;
      key.dtype = FX_BF16, key.R = 2 * (d % 2);
      add_jobs(key, "plain, or limits of two intervals", 2);
      key.R = 1, key.variant = softcap;
      add_jobs(key, "softcap", 3);
    }
  run_jobs();
  fx_variant_destroy(softcap);
}

/* What wgmma's kernels do not take goes to the others. */
static void fallbacks(void) {
  const fx_flash_plan *plans[FX_FLASH_PARTS];
  fx_flash_key key = {.pass = FX_FLASH_BACKWARD, .dtype = FX_BF16, .D = 128, .R = 1};
  CHECK(fx_flash_plans(&key, "sm_90a", plans) && plans[FX_FLASH_KEYS] && plans[FX_FLASH_ROWS] &&
        !plans[FX_FLASH_FWD]);
  CHECK(!fx_flash_plans(&key, "sm_90", plans) && !plans[FX_FLASH_KEYS] && !plans[FX_FLASH_ROWS]);
  key.any_scale = true;
  CHECK(!fx_flash_plans(&key, "sm_90a", plans));
  key.any_scale = false, key.pass = FX_FLASH_PARTIAL;
  CHECK(fx_flash_plans(&key, "sm_90a", plans) && plans[FX_FLASH_FWD] && !plans[FX_FLASH_KEYS]);
  key.dtype = FX_F32;
  CHECK(!fx_flash_plans(&key, "sm_90a", plans));
}

/* A later GPU that is given the code of sm_80. */
static void families(void) {
  flash_family_check("compute_80");
  flash_family_check("sm_90a");
}

static void refusals(void) {
  fx_cache_image image;
  fx_flash_key key = {.pass = FX_FLASH_FORWARD, .dtype = FX_BF16, .D = 80};
  CHECK_STATUS(fx_flash_cubin(&key, "sm_80", &image), FX_ERR_UNSUPPORTED);
  CHECK_HAS(fx_error_text(), "head dimension 80, expected 64, 96, 128 or 256");
  key.D = 64, key.dtype = FX_I32;
  CHECK_STATUS(fx_flash_cubin(&key, "sm_80", &image), FX_ERR_UNSUPPORTED);
  key.dtype = FX_BF16, key.R = 3;
  CHECK_STATUS(fx_flash_cubin(&key, "sm_80", &image), FX_ERR_UNSUPPORTED);
}

static const fx_test g_tests[] = {{"named variants", named_variants},
                                  {"shapes", shapes},
                                  {"fallbacks", fallbacks},
                                  {"families", families},
                                  {"refusals", refusals}};

int main(void) {
  int major, minor;
  const char *require = getenv("FX_REQUIRE_NVRTC");
  if (fx_nvrtc_version(&major, &minor) != FX_OK) {
    fprintf(stderr, "skipped: no NVRTC (%s)\n", fx_error_text());
    return require && strcmp(require, "1") == 0 ? 1 : 77;
  }
  return fx_test_main("CUDA attention kernels compile", g_tests, (int)(sizeof g_tests / sizeof g_tests[0]));
}
