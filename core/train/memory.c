/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/memory.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

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

int64_t fx_memory_planned(const fx_memory_account *a) {
  return a->libraries + a->params + a->arena + a->inputs + a->data + a->snapshot;
}

static double mib(int64_t bytes) {
  return (double)bytes / 1048576.0;
}

void fx_memory_print(const fx_memory_account *a, char text[FX_MEMORY_TEXT]) {
  char snapshot[48] = "";
  if (a->snapshot) snprintf(snapshot, sizeof snapshot, " + snapshot %.1f", mib(a->snapshot));
  snprintf(
      text, FX_MEMORY_TEXT,
      "%.1f MiB: weights, gradients, moments %.1f + arena %.1f (bound %.1f) + inputs %.1f + data %.1f%s + "
      "libraries at start %.1f",
      mib(fx_memory_planned(a)), mib(a->params), mib(a->arena), mib(a->arena_bound), mib(a->inputs),
      mib(a->data), snapshot, mib(a->libraries));
}

double fx_memory_excess_percent(const fx_memory_account *a, int64_t actual) {
  double planned = (double)fx_memory_planned(a);
  return planned > 0 ? 100 * ((double)actual - planned) / planned : 0;
}
