/* SPDX-License-Identifier: Apache-2.0 */
/* Nominal peaks by the names that drivers give, against the makers' data sheets (dense, without sparsity). */
#include "dynamo_rt/device/peak.h"
#include "tests/harness.h"

typedef struct sheet {
  const char *name;
  double bf16, fp32; /* TFLOP/s */
} sheet;

static const fx_dtype g_types[] = {FX_BF16, FX_F16, FX_F32};

static void check(const sheet *s) {
  for (int i = 0; i < 2; i++) {
    double got = fx_device_peak(s->name, g_types[i]) / 1e12;
    CHECK_MSG(got > s->bf16 - 1 && got < s->bf16 + 1, "%s in %s: got %.1f TFLOP/s, expected %.1f", s->name,
              fx_dtype_name(g_types[i]), got, s->bf16);
  }
  double got = fx_device_peak(s->name, FX_F32) / 1e12;
  CHECK_MSG(got > s->fp32 - 0.5 && got < s->fp32 + 0.5, "%s in float32: got %.1f TFLOP/s, expected %.1f",
            s->name, got, s->fp32);
  CHECK(fx_device_peak(s->name, FX_I32) == 0);
}

static void known_gpus(void) {
  static const sheet sheets[] = {
      {"NVIDIA H200", 989, 67},
      {"NVIDIA H200 NVL", 835.5, 60},
      {"NVIDIA GH200 480GB", 989, 67},
      {"NVIDIA H100 80GB HBM3", 989, 67}, /* SXM */
      {"NVIDIA H100 PCIe", 756, 51},
      {"NVIDIA H100 NVL", 835.5, 60},
      {"NVIDIA H800", 989, 67},
      {"NVIDIA H800 PCIe", 756, 51},
      {"NVIDIA H20", 148, 44},
      {"NVIDIA B200", 2250, 80},
      {"NVIDIA B300 SXM6 AC", 2500, 80},
      {"NVIDIA A100-SXM4-80GB", 312, 19.5},
      {"NVIDIA A100-PCIE-40GB", 312, 19.5},
      {"NVIDIA A100 80GB PCIe", 312, 19.5},
      {"A100-SXM4-40GB", 312, 19.5}, /* drivers before 470 */
      {"NVIDIA A800-SXM4-80GB", 312, 19.5},
      {"NVIDIA A40", 149.7, 37.4},
      {"NVIDIA A30", 165, 10.3},
      {"NVIDIA A10", 125, 31.2},
      {"NVIDIA L40S", 362, 91.6},
      {"NVIDIA L40", 181, 90.5},
      {"NVIDIA L4", 121, 30.3},
      {"NVIDIA GeForce RTX 4090", 165.2, 82.6},
  };
  for (size_t i = 0; i < sizeof sheets / sizeof sheets[0]; i++) check(&sheets[i]);
}

/* Names that only look like one of those, or are a part of one. */
static void unknown_gpus(void) {
  static const char *const names[] = {"",
                                      "CPU",
                                      "NVIDIA",
                                      "NVIDIA H2000",
                                      "NVIDIA H300",
                                      "XH100",
                                      "NVIDIA GB200",
                                      "NVIDIA A10G",
                                      "NVIDIA RTX A4000",
                                      "NVIDIA A1000",
                                      "NVIDIA A100X",
                                      "Tesla V100-SXM2-16GB",
                                      "Tesla T4",
                                      "NVIDIA L400",
                                      "NVIDIA GeForce RTX 4090 D",
                                      "NVIDIA GeForce RTX 4090 Laptop GPU",
                                      "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
                                      "NVIDIA H100 80GB HBM3 MIG 3g.40gb"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    for (int t = 0; t < 3; t++)
      CHECK_MSG(fx_device_peak(names[i], g_types[t]) == 0, "\"%s\" in %s: got %.1f TFLOP/s, expected none",
                names[i], fx_dtype_name(g_types[t]), fx_device_peak(names[i], g_types[t]) / 1e12);
}

static const fx_test tests[] = {{"known GPUs", known_gpus}, {"unknown GPUs", unknown_gpus}};
FX_TEST_MAIN("peak", tests)
