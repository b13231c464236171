/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/nearest.h"

#include <stdbool.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 };

static int least(int a, int b) {
  return a < b ? a : b;
}

/* Levenshtein: insertions, deletions and substitutions cost one each. */
static int edit_distance(const char *a, const char *b) {
  int rows[2][NAME_MAX_BYTES + 1];
  int n = (int)strnlen(a, NAME_MAX_BYTES), m = (int)strnlen(b, NAME_MAX_BYTES);
  for (int j = 0; j <= m; j++) rows[0][j] = j;
  for (int i = 1; i <= n; i++) {
    int *row = rows[i % 2], *above = rows[(i + 1) % 2];
    row[0] = i;
    for (int j = 1; j <= m; j++)
      row[j] = least(least(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
  }
  return rows[n % 2][m];
}

int fx_name_distance(const char *a, const char *b) {
  enum { PART_LEAST = 4, PART_DISTANCE = 3 };
  int edits = edit_distance(a, b);
  const char *in_b = strlen(a) >= PART_LEAST ? strstr(b, a) : NULL;
  const char *in_a = strlen(b) >= PART_LEAST ? strstr(a, b) : NULL;
  if (in_a == a || in_b == b) return least(edits, PART_DISTANCE - 1);
  return in_a || in_b ? least(edits, PART_DISTANCE) : edits;
}
