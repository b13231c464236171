/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/memory.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

static int64_t status_bytes(const char *field) {
  char line[256];
  long long kib = 0;
  FILE *file = fopen("/proc/self/status", "r");
  if (!file) return 0;
  size_t length = strlen(field);
  while (fgets(line, sizeof line, file))
    if (strncmp(line, field, length) == 0 && sscanf(line + length, ": %lld kB", &kib) == 1) break;
  fclose(file);
  return (int64_t)kib * 1024;
}

int64_t fx_memory_peak(void) {
  return status_bytes("VmHWM");
}
int64_t fx_memory_resident(void) {
  return status_bytes("VmRSS");
}

void fx_memory_reset_peak(void) {
  malloc_trim(0);
  FILE *file = fopen("/proc/self/clear_refs", "w");
  if (!file) return;
  fputs("5", file); /* proc(5) */
  fclose(file);
}

int64_t fx_memory_params(const fx_memory_account *a) {
  return a->weights + a->gradients + a->moments;
}

int64_t fx_memory_planned(const fx_memory_account *a) {
  int64_t computed = a->gpu ? 0 : fx_memory_params(a) + a->arena;
  return a->libraries + computed + a->inputs + a->data + a->snapshot;
}

int64_t fx_memory_planned_gpu(const fx_memory_account *a) {
  return a->gpu ? a->gpu_start + fx_memory_params(a) + a->arena + a->gpu_comm : 0;
}

void fx_memory_print(const fx_memory_account *a, char text[FX_MEMORY_TEXT]) {
  char snapshot[48] = "", comm[48] = "", computed[160], gpu[256] = "";
  snprintf(computed, sizeof computed,
           "weights %.1f + gradients %.1f + moments %.1f + arena %.1f (bound %.1f)", fx_mib(a->weights),
           fx_mib(a->gradients), fx_mib(a->moments), fx_mib(a->arena), fx_mib(a->arena_bound));
  if (a->snapshot) snprintf(snapshot, sizeof snapshot, " + snapshot %.1f", fx_mib(a->snapshot));
  if (a->gpu_comm) snprintf(comm, sizeof comm, " + communicators %.1f", fx_mib(a->gpu_comm));
  if (a->gpu)
    snprintf(gpu, sizeof gpu, "GPU %.1f MiB: contexts and libraries %.1f + %s%s; host ",
             fx_mib(fx_memory_planned_gpu(a)), fx_mib(a->gpu_start), computed, comm);
  snprintf(text, FX_MEMORY_TEXT, "%s%.1f MiB: %s%sinputs %.1f + data %.1f%s + libraries at start %.1f", gpu,
           fx_mib(fx_memory_planned(a)), a->gpu ? "" : computed, a->gpu ? "" : " + ", fx_mib(a->inputs),
           fx_mib(a->data), snapshot, fx_mib(a->libraries));
}

double fx_memory_excess_percent(int64_t planned, int64_t actual) {
  return planned > 0 ? 100 * (double)(actual - planned) / (double)planned : 0;
}
