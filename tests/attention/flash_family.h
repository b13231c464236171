/* SPDX-License-Identifier: Apache-2.0 */
/* Which family of kernels attention runs for an architecture, by its machine code: "compute_80" is PTX for
 * sm_80 that multiplies by mma.sync in every pass, "sm_90a" a cubin with wgmma in the 16-bit types. Needs
 * NVRTC, no GPU. */
#ifndef FX_TESTS_ATTENTION_FLASH_FAMILY_H
#define FX_TESTS_ATTENTION_FLASH_FAMILY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/cuda/flash_cuda.h"
#include "attention/cuda/flash_policy.h"
#include "tests/harness.h"

static inline bool image_has(const fx_cache_image *image, const char *text) {
  size_t length = strlen(text);
  for (size_t i = 0; i + length <= image->size; i++)
    if (image->data[i] == (unsigned char)text[0] && memcmp(image->data + i, text, length) == 0) return true;
  return false;
}

/* image: NULL, or gets the code, to be freed. */
static inline void flash_family_check_pass(const char *arch, fx_flash_pass pass, fx_dtype dtype,
                                           fx_cache_image *image) {
  fx_flash_key key = {.pass = pass, .dtype = dtype, .D = 64, .R = 1};
  const fx_flash_plan *plans[FX_FLASH_PARTS];
  bool text = strncmp(arch, "compute_", 8) == 0;
  char target[64];
  fx_cache_image own = {NULL, 0};
  if (!image) image = &own;
  CHECK_INT(fx_flash_plans(&key, arch, plans), strcmp(arch, "sm_90a") == 0 && dtype != FX_F32);
  if (!CHECK_OK(fx_flash_cubin(&key, arch, image))) return;
  snprintf(target, sizeof target, ".target sm_%s", arch + (text ? 8 : 3));
  CHECK_MSG(image_has(image, target) == text, "%s, pass %d: expected %s", arch, pass,
            text ? target : "machine code");
  CHECK(!text || !image_has(image, "wgmma"));
  CHECK(!text || dtype == FX_F32 || image_has(image, "mma.sync"));
  free(own.data);
}

static inline void flash_family_check(const char *arch) {
  static const fx_dtype dtypes[] = {FX_F32, FX_BF16, FX_F16};
  for (int pass = FX_FLASH_FORWARD; pass <= FX_FLASH_BACKWARD_ADD; pass++)
    for (int t = 0; t < 3; t++) flash_family_check_pass(arch, (fx_flash_pass)pass, dtypes[t], NULL);
}

#endif
