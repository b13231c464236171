/* SPDX-License-Identifier: Apache-2.0 */
/* Whose code a suite runs: FLEXION_CUDA_ARCH is obeyed, and where it asks for the code of an earlier GPU the
 * driver says of the loaded kernels that this is what they were made from. */
#ifndef FX_TESTS_GPU_ARCH_CASE_H
#define FX_TESTS_GPU_ARCH_CASE_H

#include "dynamo_rt/device/cuda/context.h"
#include "dynamo_rt/device/cuda/driver_api.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/ops/cuda/kernels_cuda.h"
#include "tests/attention/flash_family.h"

enum { ATTRIBUTE_PTX_VERSION = 5, ATTRIBUTE_BINARY_VERSION = 6 }; /* CU_FUNC_ATTRIBUTE_* */

/* PTX that a kernel was made from and machine code that it is, as 80 and 90. */
static inline void check_origin(const fx_cuda_context *context, const fx_cuda_function *function,
                                const char *name) {
  const fx_cuda_driver *driver = context->driver;
  int ptx = 0, binary = 0, number = fx_cuda_arch_number(context->arch);
  CHECK_INT(driver->function_get(&ptx, ATTRIBUTE_PTX_VERSION, function->handle), 0);
  CHECK_INT(driver->function_get(&binary, ATTRIBUTE_BINARY_VERSION, function->handle), 0);
  printf("[%s: PTX %d, machine code %d] ", name, ptx, binary);
  if (strncmp(context->arch, "compute_", 8) == 0)
    CHECK_MSG(ptx == number, "%s: made from PTX of %d, expected %d", name, ptx, number);
}

static inline void check_attention(const fx_cuda_context *context, fx_flash_pass pass, const char *name) {
  fx_cache_image image = {NULL, 0};
  fx_cuda_module *module = NULL;
  fx_cuda_function function;
  flash_family_check_pass(context->arch, pass, FX_BF16, &image);
  if (image.data && CHECK_OK(fx_cuda_module_load(context->driver, &image, &module)) &&
      CHECK_OK(fx_cuda_module_function(module, name, &function)))
    check_origin(context, &function, name);
  fx_cuda_module_unload(module);
  free(image.data);
}

static inline fx_status arch_task(void *arg, void *stream) { /* with the device's context current */
  const fx_cuda_context *context = ((const fx_device *)arg)->gemm;
  (void)stream;
  check_origin(context, fx_cuda_kernels_get(context->kernels, FX_CUDA_NORM, FX_BF16), "norm_forward");
  check_origin(context, fx_cuda_kernels_get(context->kernels, FX_CUDA_ADAMW, FX_F32), "adamw");
  check_attention(context, FX_FLASH_FORWARD, "flex_fwd");
  check_attention(context, FX_FLASH_BACKWARD, "flex_bwd_keys");
  check_attention(context, FX_FLASH_PARTIAL, "flex_fwd");
  check_attention(context, FX_FLASH_BACKWARD_ADD, "flex_bwd_rows");
  return FX_OK;
}

static inline void arch_check(fx_device *device) {
  const char *wanted = getenv("FLEXION_CUDA_ARCH");
  if (wanted && *wanted) CHECK_STR(device->isa, wanted);
  printf("[kernels of %s on %s] ", device->isa, device->name);
  CHECK_OK(fx_device_launch(device, FX_LANE_COMPUTE, arch_task, device));
}

#endif
