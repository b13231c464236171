/* SPDX-License-Identifier: Apache-2.0 */
/* Reads NAME.bin and NAME.txt of this folder. */
#ifndef FX_TESTS_GOLDEN_GOLDEN_H
#define FX_TESTS_GOLDEN_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

typedef struct golden {
  char *data;
  struct {
    char name[160];
    long offset;
    int64_t numel;
  } tensor[320];
  int count;
} golden;

static inline bool golden_load(golden *g, const char *name) {
  char path[160], line[512];
  memset(g, 0, sizeof *g);
  snprintf(path, sizeof path, "tests/golden/%s.bin", name);
  FILE *bin = fopen(fx_source_path(path), "rb");
  snprintf(path, sizeof path, "tests/golden/%s.txt", name);
  FILE *txt = fopen(fx_source_path(path), "r");
  if (!CHECK_MSG(bin && txt, "tests/golden/%s.{bin,txt} are missing", name)) return false;
  fseek(bin, 0, SEEK_END);
  long bytes = ftell(bin);
  rewind(bin);
  g->data = malloc((size_t)bytes);
  CHECK_INT(fread(g->data, 1, (size_t)bytes, bin), bytes);
  while (fgets(line, sizeof line, txt)) {
    char kind[16];
    int used = 0, more = 0;
    long long dim;
    sscanf(line, "%159s %15s %ld%n", g->tensor[g->count].name, kind, &g->tensor[g->count].offset, &used);
    g->tensor[g->count].numel = 1;
    while (sscanf(line + used, "%lld%n", &dim, &more) == 1) {
      g->tensor[g->count].numel *= dim;
      used += more;
    }
    g->count++;
  }
  fclose(bin);
  fclose(txt);
  return CHECK(g->count > 10);
}

static inline const void *golden_get(const golden *g, const char *kind, const char *name, int64_t numel) {
  char full[180];
  snprintf(full, sizeof full, "%s%s", kind, name);
  for (int i = 0; i < g->count; i++)
    if (strcmp(g->tensor[i].name, full) == 0) {
      CHECK_INT(g->tensor[i].numel, numel);
      return g->data + g->tensor[i].offset;
    }
  CHECK_MSG(false, "no golden tensor %s", full);
  return NULL;
}

static inline void golden_free(golden *g) {
  free(g->data);
}

#endif
