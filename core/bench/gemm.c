/* SPDX-License-Identifier: Apache-2.0 */
#include "core/bench/gemm.h"

#include <stdio.h>
#include <string.h>

#include "core/model/model.h"
#include "core/train/device.h"
#include "dynamo_rt/base/memory.h"

enum { REPEATS = 7 };

static fx_status time_product(fx_device *device, fx_dtype dtype, fx_bench_gemm_row *row) {
  double ms[REPEATS];
  fx_bench_product *product = NULL;
  FX_TRY(fx_bench_product_create(device, dtype, row->pass, row->m, row->n, row->k, &product));
  fx_status status = FX_OK;
  for (int r = 0; r < REPEATS && status == FX_OK; r++) status = fx_bench_product_run(product, &ms[r]);
  fx_bench_product_destroy(product);
  if (status != FX_OK) return status;
  row->ms = fx_median(ms, REPEATS);
  row->gflops = 2e-6 * (double)row->m * (double)row->n * (double)row->k / row->ms;
  return FX_OK;
}

static int list_products(const fx_config *config, fx_bench_gemm_row *out) {
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
    out[count++] = (fx_bench_gemm_row){
        .name = layers[i].name, .pass = FX_BENCH_FORWARD, .m = rows, .n = width, .k = in, .calls = calls};
    out[count++] = (fx_bench_gemm_row){
        .name = layers[i].name, .pass = FX_BENCH_DX, .m = rows, .n = in, .k = width, .calls = calls};
    out[count++] = (fx_bench_gemm_row){
        .name = layers[i].name, .pass = FX_BENCH_DW, .m = width, .n = in, .k = rows, .calls = calls};
  }
  return count;
}

fx_status fx_bench_gemm(const fx_config *config, fx_bench_gemm_report *report) {
  fx_device *device = NULL;
  int threads = config->runtime.threads == FX_CONFIG_AUTO ? 0 : (int)config->runtime.threads;
  memset(report, 0, sizeof *report);
  FX_TRY(fx_device_choose_alone(config, threads, &device));
  fx_dtype dtype = fx_model_dtype(config, device->backend);
  report->gpu = device->backend != FX_BACKEND_CPU;
  if (report->gpu)
    snprintf(report->provider, sizeof report->provider, "%s, %.60s, %s", device->gemm_name, device->name,
             fx_dtype_name(dtype));
  else
    snprintf(report->provider, sizeof report->provider, "%s, %d threads, %s", device->gemm_name,
             device->threads, device->isa);
  report->count = list_products(config, report->product);
  fx_status status = FX_OK;
  for (int i = 0; status == FX_OK && i < report->count; i++) {
    status = time_product(device, dtype, &report->product[i]);
    report->step_ms += report->product[i].ms * (double)report->product[i].calls;
  }
  if (status == FX_OK) status = fx_machine_measure_device(device, dtype, &report->bounds);
  fx_device_destroy(device);
  return status;
}
