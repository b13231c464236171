/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "core/train/threads.h"

#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "dynamo_rt/base/hash.h"

_Static_assert(sizeof(fx_affinity) == (2 + FX_AFFINITY_WORDS) * sizeof(uint64_t) + FX_CUDA_UUID_BYTES,
               "no gaps in what travels");

fx_affinity fx_affinity_get(void) {
  fx_affinity affinity;
  char host[256] = "";
  cpu_set_t set;
  memset(&affinity, 0, sizeof affinity);
  gethostname(host, sizeof host - 1);
  affinity.host = fx_hash64_text(host);
  fx_cuda_probe probe;
  fx_cuda_probe_get(&probe);
  affinity.gpus = probe.count;
  if (probe.count > 0)
    memcpy(affinity.gpu, probe.device[fx_cuda_ordinal_by_rank(probe.count)].uuid, sizeof affinity.gpu);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return affinity;
  for (int cpu = 0; cpu < CPU_SETSIZE && cpu < FX_AFFINITY_WORDS * 64; cpu++)
    if (CPU_ISSET(cpu, &set)) affinity.mask[cpu / 64] |= 1ull << (cpu % 64);
  return affinity;
}

int fx_affinity_count(const fx_affinity *affinity) {
  int count = 0;
  for (int i = 0; i < FX_AFFINITY_WORDS; i++) count += __builtin_popcountll(affinity->mask[i]);
  return count;
}

int fx_affinity_ranks_here(const fx_affinity *ranks, int size, int rank) {
  int count = 0;
  for (int r = 0; r < size; r++) count += ranks[r].host == ranks[rank].host;
  return count;
}

static bool overlap(const fx_affinity *a, const fx_affinity *b) {
  bool any = false;
  for (int i = 0; i < FX_AFFINITY_WORDS; i++) any |= (a->mask[i] & b->mask[i]) != 0;
  return any && a->host == b->host;
}

int fx_affinity_threads(const fx_affinity *ranks, int size, int rank, const fx_log *log) {
  int cpus = fx_affinity_count(&ranks[rank]), sharing = 1;
  for (int r = 0; r < size; r++) sharing += r != rank && overlap(&ranks[r], &ranks[rank]);
  if (sharing > cpus && cpus > 0)
    fx_warn(log,
            "%d ranks share %d processor%s; start with launch/run.sh (or mpirun --bind-to none) and at most "
            "one rank a core",
            sharing, cpus, cpus == 1 ? "" : "s");
  return cpus > sharing ? cpus / sharing : 1;
}
