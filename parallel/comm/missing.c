/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/comm/missing.h"

#include <stdio.h>

enum { MOST_NAMED = 16 };

const char *fx_rank_list(const bool *here, bool value, int size, char *text, size_t capacity) {
  size_t used = 0;
  int total = 0, named = 0;
  text[0] = '\0';
  for (int r = 0; r < size; r++) {
    if (here[r] != value) continue;
    total++;
    /* a rank takes at most 11 characters; 20 stay for the tail */
    if (named >= MOST_NAMED || used + 32 > capacity) continue;
    used += (size_t)snprintf(text + used, capacity - used, "%s%d", named ? " " : "", r);
    named++;
  }
  if (named < total) snprintf(text + used, capacity - used, " and %d more", total - named);
  return text;
}

fx_status fx_missing_error(const bool *here, int size, int timeout_ms) {
  char absent[256];
  int answered = 0;
  for (int r = 0; r < size; r++) answered += here[r];
  return fx_error(FX_ERR_COMM, "%d of %d ranks answered within %d ms; missing: rank %s", answered, size,
                  timeout_ms, fx_rank_list(here, false, size, absent, sizeof absent));
}
