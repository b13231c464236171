/* SPDX-License-Identifier: Apache-2.0 */
/* What PTX says of the order of kernels: they are launched before those in front of them end
 * (device/cuda/driver.h) and have to wait by themselves. */
#ifndef FX_TESTS_ATTENTION_PTX_H
#define FX_TESTS_ATTENTION_PTX_H

#include <string.h>

#include "tests/harness.h"

/* Every kernel waits ahead of whatever it does with global memory. Returns how many there are; `ptx` is cut
 * up. */
static inline int ptx_kernels_wait(const char *name, char *ptx) {
  static const char *const touches[] = {"ld.global",  "st.global", "atom.global",
                                        "red.global", "cp.async",  "ld.volatile"};
  int kernels = 0;
  for (char *entry = strstr(ptx, ".entry "), *next = NULL; entry; entry = next, kernels++) {
    next = strstr(entry + 1, ".entry ");
    if (next) next[-1] = '\0';
    char *wait = strstr(entry, "griddepcontrol.wait");
    if (!CHECK_MSG(wait != NULL, "%s: a kernel does not wait: %.60s", name, entry)) continue;
    CHECK_MSG(strstr(wait, "griddepcontrol.launch_dependents") != NULL, "%s: none may follow %.60s", name,
              entry);
    *wait = '\0';
    for (size_t i = 0; i < sizeof touches / sizeof touches[0]; i++)
      CHECK_MSG(!strstr(entry, touches[i]), "%s: %s before the wait in %.60s", name, touches[i], entry);
  }
  return kernels;
}

#endif
