/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/device.h"

#include <stdlib.h>

#include "attention/flex_attention.h"
#include "dynamo_rt/base/memory.h"

bool fx_device_wants_cuda(const fx_config *config, const fx_affinity *ranks, int size) {
  if (config->runtime.device != FX_RUNTIME_DEVICE_AUTO)
    return config->runtime.device == FX_RUNTIME_DEVICE_CUDA;
  bool wants = fx_flex_attention_runs_on(FX_BACKEND_CUDA, (int32_t)config->model.head_dim);
  for (int r = 0; r < size; r++) wants = wants && ranks[r].gpus >= fx_affinity_ranks_here(ranks, size, r);
  return wants;
}

fx_status fx_device_choose(const fx_config *config, const fx_affinity *ranks, int size, int rank, int threads,
                           fx_device **out) {
  int here = fx_affinity_ranks_here(ranks, size, rank);
  long long gpus = ranks[rank].gpus;
  if (!fx_device_wants_cuda(config, ranks, size)) {
    if (config->runtime.dtype == FX_RUNTIME_DTYPE_BFLOAT16)
      return fx_error(FX_ERR_CONFIG,
                      "%s: runtime.dtype=bfloat16 needs a GPU, and this run is on the CPU; set "
                      "runtime.dtype=auto or float32",
                      fx_config_where(config, "runtime.dtype"));
    return fx_device_create_cpu(threads, "auto", out);
  }
  if (gpus > 0 && gpus < here)
    return fx_error(
        FX_ERR_DEVICE,
        "runtime.device=cuda: %d ranks on a host that shows %lld GPU%s, and each needs one of its "
        "own; start fewer ranks there, check CUDA_VISIBLE_DEVICES, or set runtime.device=cpu",
        here, gpus, gpus == 1 ? "" : "s");
  FX_TRY(fx_device_create_cuda(FX_DEVICE_BY_RANK, out));
  if ((*out)->vtable->autotune)
    (*out)->vtable->autotune(*out, config->runtime.autotune && !config->runtime.deterministic);
  return FX_OK;
}

fx_status fx_device_choose_job(const fx_config *config, fx_control *control, const fx_log *log,
                               fx_device **out) {
  enum { TIMEOUT_MS = 120000 };
  int threads = (int)config->runtime.threads;
  fx_affinity mine = fx_affinity_get();
  char *all = NULL;
  int64_t *offsets = NULL;
  FX_TRY(fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets));
  fx_status status = fx_control_all_gather(control, &mine, sizeof mine, &all, offsets, TIMEOUT_MS);
  free(offsets);
  if (status != FX_OK) return status;
  const fx_affinity *ranks = (const fx_affinity *)(const void *)all;
  int automatic = fx_affinity_threads(ranks, control->size, control->rank, log);
  if (threads == FX_CONFIG_AUTO) threads = automatic;
  status = fx_device_choose(config, ranks, control->size, control->rank, threads, out);
  free(all);
  return fx_control_agree_status(control, status, TIMEOUT_MS);
}

fx_status fx_device_choose_alone(const fx_config *config, int threads, fx_device **out) {
  fx_affinity here = fx_affinity_get();
  if (threads <= 0) threads = fx_affinity_threads(&here, 1, 0, NULL);
  return fx_device_choose(config, &here, 1, 0, threads, out);
}
