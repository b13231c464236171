/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/memory.h"

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
