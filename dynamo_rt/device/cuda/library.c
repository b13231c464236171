/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/device/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *open_in(const char *folder, const char *name) {
  char path[4096];
  if (!folder) return dlopen(name, RTLD_NOW | RTLD_LOCAL);
  int length = snprintf(path, sizeof path, "%s/lib64/%s", folder, name);
  return length > 0 && (size_t)length < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

fx_status fx_cuda_library_open(const char *stem, const int *majors, void **library) {
  const char *home = getenv("CUDA_HOME");
  const char *folders[] = {NULL, home && home[0] == '/' ? home : "/usr/local/cuda", "/usr/local/cuda"};
  char name[64], tried[256] = "";
  for (int m = 0; majors[m]; m++) {
    snprintf(name, sizeof name, "lib%s.so.%d", stem, majors[m]);
    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; f++) {
      void *opened = open_in(folders[f], name);
      if (!opened) continue;
      *library = opened;
      return FX_OK;
    }
    size_t used = strlen(tried);
    snprintf(tried + used, sizeof tried - used, "%s%s", m ? " and " : "", name);
  }
  return fx_error(
      FX_ERR_DEVICE,
      "%s cannot be opened; install the CUDA libraries, or name their folder in LD_LIBRARY_PATH or "
      "CUDA_HOME",
      tried);
}

fx_status fx_cuda_library_bind(void *library, const char *stem, const fx_cuda_symbol *symbols, int count,
                               void *table) {
  for (int i = 0; i < count; i++) {
    void *function = dlsym(library, symbols[i].name);
    if (!function)
      return fx_error(FX_ERR_DEVICE, "lib%s has no function %s; a newer version is needed", stem,
                      symbols[i].name);
    memcpy((char *)table + symbols[i].offset, &function, sizeof function);
  }
  return FX_OK;
}
