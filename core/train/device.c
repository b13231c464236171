/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/device.h"

#include "attention/flex_attention.h"
#include "dynamo_rt/device/cuda/driver.h"

bool fx_device_wants_cuda(const fx_config *config, int ranks) {
  fx_cuda_probe probe;
  if (config->runtime.device != FX_RUNTIME_DEVICE_AUTO)
    return config->runtime.device == FX_RUNTIME_DEVICE_CUDA;
  int32_t head_dim = (int32_t)config->model.head_dim;
  if (ranks > 1 || !fx_flex_attention_runs_on(FX_BACKEND_CUDA, head_dim)) return false;
  fx_cuda_probe_get(&probe);
  return probe.count > 0;
}

fx_status fx_device_choose(const fx_config *config, int threads, int ranks, fx_device **out) {
  if (!fx_device_wants_cuda(config, ranks)) {
    if (config->runtime.dtype == FX_RUNTIME_DTYPE_BFLOAT16)
      return fx_error(FX_ERR_CONFIG,
                      "%s: runtime.dtype=bfloat16 needs a GPU, and this run is on the CPU; set "
                      "runtime.dtype=auto or float32",
                      fx_config_where(config, "runtime.dtype"));
    return fx_device_create_cpu(threads, "auto", out);
  }
  if (ranks > 1)
    return fx_error(FX_ERR_UNSUPPORTED,
                    "runtime.device=cuda with %d ranks: GPUs cannot exchange data yet; start one rank or set "
                    "runtime.device=cpu",
                    ranks);
  return fx_device_create_cuda(FX_DEVICE_BY_RANK, out);
}
