/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/gemm.h"

#include <stdlib.h>
#include <string.h>

#include "core/train/threads.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/device/device.h"
#include "dynamo_rt/exec/trace.h"
#include "dynamo_rt/ops/cpu/gemm.h"

enum { REPEATS = 7 };

/* The buffers are reused by all products: inputs first, the result behind them. */
static fx_status time_product(const fx_gemm *gemm, bool transpose_a, bool transpose_b, float *memory,
                              fx_bench_product *p) {
  double seconds[REPEATS];
  float *a = memory, *b = a + p->m * p->k, *c = b + p->k * p->n;
  for (int r = -1; r < REPEATS; r++) {
    int64_t begin = fx_now_ns();
    FX_TRY(fx_gemm_f32(gemm, transpose_a, transpose_b, p->m, p->n, p->k, a, transpose_a ? p->m : p->k, b,
                       transpose_b ? p->k : p->n, 0.0f, c, p->n));
    if (r >= 0) seconds[r] = (double)(fx_now_ns() - begin) / 1e9;
  }
  p->ms = 1e3 * fx_median(seconds, REPEATS);
  p->gflops = 2e-6 * (double)p->m * (double)p->n * (double)p->k / p->ms;
  return FX_OK;
}

static int list_products(const fx_config *config, fx_bench_product *out) {
  const fx_config_model *m = &config->model;
  int64_t rows = config->train.micro_batch_size * config->train.seq_length, L = m->num_hidden_layers;
  int64_t q = m->num_attention_heads * m->head_dim, kv = m->num_key_value_heads * m->head_dim;
  int64_t up = m->intermediate_size * (m->activation == FX_MODEL_ACTIVATION_SWIGLU ? 2 : 1);
  const struct {
    const char *name;
    int64_t in, out, calls;
  } layers[] = {{"qkv", m->hidden_size, q + 2 * kv, L},
                {"proj", q, m->hidden_size, L},
                {"up", m->hidden_size, up, L},
                {"down", m->intermediate_size, m->hidden_size, L},
                {"head", m->hidden_size, fx_ceil_div(m->vocab_size, 128) * 128, 1}};
  int count = 0;
  for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
    int64_t in = layers[i].in, width = layers[i].out, calls = layers[i].calls;
    out[count++] = (fx_bench_product){
        .name = layers[i].name, .pass = "forward", .m = rows, .n = width, .k = in, .calls = calls};
    out[count++] = (fx_bench_product){
        .name = layers[i].name, .pass = "dx", .m = rows, .n = in, .k = width, .calls = calls};
    out[count++] = (fx_bench_product){
        .name = layers[i].name, .pass = "dw", .m = width, .n = in, .k = rows, .calls = calls};
  }
  return count;
}

fx_status fx_bench_gemm(const fx_config *config, fx_bench_gemm_report *report) {
  fx_device *device = NULL;
  float *memory = NULL;
  int64_t most = 0;
  fx_affinity here = fx_affinity_get();
  int threads = (int)config->runtime.threads;
  if (threads == FX_CONFIG_AUTO) threads = fx_affinity_threads(&here, 1, 0, NULL);
  memset(report, 0, sizeof *report);
  FX_TRY(fx_device_create_cpu(threads, "auto", &device));
  report->threads = threads;
  strncpy(report->provider, fx_gemm_name(device->gemm), sizeof report->provider - 1);
  report->count = list_products(config, report->product);
  for (int i = 0; i < report->count; i++) {
    const fx_bench_product *p = &report->product[i];
    most = fx_max_i64(most, p->m * p->k + p->k * p->n + p->m * p->n);
  }
  fx_status status = fx_alloc_aligned(&memory, (size_t)most * sizeof *memory);
  for (int64_t i = 0; status == FX_OK && i < most; i++) memory[i] = (float)(i % 23) * 0.0625f - 0.7f;
  for (int i = 0; status == FX_OK && i < report->count; i++) {
    fx_bench_product *p = &report->product[i];
    status =
        time_product(device->gemm, strcmp(p->pass, "dw") == 0, strcmp(p->pass, "forward") == 0, memory, p);
    report->step_ms += p->ms * (double)p->calls;
  }
  if (status == FX_OK) report->bounds = fx_machine_measure(threads);
  free(memory);
  fx_device_destroy(device);
  return status;
}
