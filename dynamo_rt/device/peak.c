/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/device/peak.h"

#include <stdbool.h>
#include <string.h>

/* The first row whose words all occur in the name counts: special forms come before the plain product. Those
 * that have less of it, by how much the sheets do not say, are 0. */
static const struct {
  const char *word, *also;
  double bf16, fp32; /* TFLOP/s; fp32 without TF32 */
} g_peaks[] = {
    {"MIG", NULL, 0, 0},           {"B300", NULL, 2500, 80},        {"B200", NULL, 2250, 80},
    {"GH200", NULL, 989.4, 66.9},  {"H200", "NVL", 835.5, 60},      {"H200", NULL, 989.4, 66.9},
    {"H100", "PCIe", 756.5, 51.2}, {"H100", "NVL", 835.5, 60},      {"H100", NULL, 989.4, 66.9},
    {"H800", "PCIe", 756.5, 51.2}, {"H800", NULL, 989.4, 66.9},     {"H20", NULL, 148, 44},
    {"A100", NULL, 312, 19.5},     {"A800", NULL, 312, 19.5},       {"A40", NULL, 149.7, 37.4},
    {"A30", NULL, 165, 10.3},      {"A10", NULL, 125, 31.2},        {"L40S", NULL, 362, 91.6},
    {"L40", NULL, 181, 90.5},      {"L4", NULL, 121, 30.3},         {"RTX 4090", "Laptop", 0, 0},
    {"RTX 4090", " D", 0, 0},      {"RTX 4090", NULL, 165.2, 82.6},
};

/* Whether `word` stands in the name, not as the beginning of a longer one. */
static bool has_word(const char *name, const char *word) {
  size_t length = strlen(word);
  for (const char *at = strstr(name, word); at; at = strstr(at + 1, word)) {
    char next = at[length];
    if ((at == name || at[-1] == ' ') && (next == '\0' || next == ' ' || next == '-')) return true;
  }
  return false;
}

double fx_device_peak(const char *name, fx_dtype dtype) {
  for (size_t i = 0; i < sizeof g_peaks / sizeof g_peaks[0]; i++) {
    if (!has_word(name, g_peaks[i].word) || (g_peaks[i].also && !strstr(name, g_peaks[i].also))) continue;
    if (dtype == FX_BF16 || dtype == FX_F16) return 1e12 * g_peaks[i].bf16;
    return dtype == FX_F32 ? 1e12 * g_peaks[i].fp32 : 0;
  }
  return 0;
}
