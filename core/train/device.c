/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/flex_attention.h"
#include "dynamo_rt/base/memory.h"
#include "parallel/agree.h"

/* Another rank of the host that takes the same GPU; -1: none. How many a rank sees says nothing: launchers
 * may show each rank its own alone. */
static int sharer(const fx_affinity *ranks, int size, int rank) {
  const fx_affinity *own = &ranks[rank];
  for (int r = 0; r < size && own->gpus > 0; r++)
    if (r != rank && ranks[r].host == own->host && ranks[r].gpus > 0 &&
        memcmp(ranks[r].gpu, own->gpu, sizeof own->gpu) == 0)
      return r;
  return -1;
}

bool fx_device_wants_cuda(const fx_config *config, const fx_affinity *ranks, int size) {
  if (config->runtime.device != FX_RUNTIME_DEVICE_AUTO)
    return config->runtime.device == FX_RUNTIME_DEVICE_CUDA;
  bool wants = fx_flex_attention_runs_on(FX_BACKEND_CUDA, (int32_t)config->model.head_dim);
  for (int r = 0; r < size; r++) wants = wants && ranks[r].gpus > 0 && sharer(ranks, size, r) < 0;
  return wants;
}

fx_status fx_device_choose(const fx_config *config, const fx_affinity *ranks, int size, int rank, int threads,
                           fx_device **out) {
  int other = sharer(ranks, size, rank);
  if (!fx_device_wants_cuda(config, ranks, size)) {
    if (config->runtime.dtype == FX_RUNTIME_DTYPE_BFLOAT16)
      return fx_error(FX_ERR_CONFIG,
                      "%s: runtime.dtype=bfloat16 needs a GPU, and this run is on the CPU; set "
                      "runtime.dtype=auto or float32",
                      fx_config_where(config, "runtime.dtype"));
    return fx_device_create_cpu(threads, "auto", out);
  }
  if (other >= 0)
    return fx_error(
        FX_ERR_DEVICE,
        "runtime.device=cuda: ranks %d and %d would share a GPU (%d ranks on their host, which shows rank %d "
        "%lld GPU%s), and each needs a whole one of its own; start fewer ranks there, check "
        "CUDA_VISIBLE_DEVICES and what the launcher assigns, or set runtime.device=cpu",
        rank < other ? rank : other, rank < other ? other : rank, fx_affinity_ranks_here(ranks, size, rank),
        rank, (long long)ranks[rank].gpus, ranks[rank].gpus == 1 ? "" : "s");
  FX_TRY(fx_device_create_cuda(FX_DEVICE_BY_RANK, out));
  if ((*out)->vtable->autotune)
    (*out)->vtable->autotune(*out, config->runtime.autotune && !config->runtime.deterministic);
  return FX_OK;
}

const char *fx_device_why_cpu(const fx_config *config, const fx_affinity *ranks, int size, char *text,
                              size_t capacity) {
  bool any = false;
  for (int r = 0; r < size; r++) any = any || ranks[r].gpus > 0;
  if (!any || config->runtime.device != FX_RUNTIME_DEVICE_AUTO || fx_device_wants_cuda(config, ranks, size))
    return NULL;
  for (int r = 0; r < size; r++) {
    int other = sharer(ranks, size, r);
    if (ranks[r].gpus == 0) {
      snprintf(text, capacity, "rank %d sees no GPU", r);
      return text;
    }
    if (other >= 0) {
      snprintf(text, capacity, "ranks %d and %d would share a GPU", r, other);
      return text;
    }
  }
  snprintf(text, capacity, "there is no attention kernel on GPUs for model.head_dim=%lld",
           (long long)config->model.head_dim);
  return text;
}

typedef struct choice {
  const fx_config *config;
  const fx_affinity *ranks;
  int size, rank, threads;
  fx_device **out;
} choice;

/* Compiles kernels, on a GPU. */
static fx_status run_choice(void *made) {
  const choice *c = made;
  return fx_device_choose(c->config, c->ranks, c->size, c->rank, c->threads, c->out);
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
  char text[96];
  const char *why = fx_device_why_cpu(config, ranks, control->size, text, sizeof text);
  if (why) fx_warn(log, "runtime.device=auto takes the CPU: %s", why);
  choice made = {config, ranks, control->size, control->rank, threads, out};
  status = fx_agree_compiled(control, run_choice, &made, log);
  free(all);
  return status;
}

fx_status fx_device_choose_alone(const fx_config *config, int threads, fx_device **out) {
  fx_affinity here = fx_affinity_get();
  if (threads <= 0) threads = fx_affinity_threads(&here, 1, 0, NULL);
  return fx_device_choose(config, &here, 1, 0, threads, out);
}
