/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/bench_report.h"

#include "dynamo_rt/base/memory.h"

static void put(json_t *row, const char *key, double value) {
  json_object_set_new(row, key, json_real(value));
}
static void put_int(json_t *row, const char *key, int64_t value) {
  json_object_set_new(row, key, json_integer(value));
}
/* What is compared with a peak, and the peak: 0 where it is not known. */
static void put_known(json_t *row, const char *key, double value) {
  json_object_set_new(row, key, value > 0 ? json_real(value) : json_null());
}
static const char *known(double value, const char *unit, char text[32]) {
  snprintf(text, 32, value > 0 ? "%.1f%s" : "n/a", value, unit);
  return text;
}

void fx_bench_step_print(FILE *out, const fx_bench_step_report *r) {
  char text[32];
  fprintf(out, "%lld parameters, %lld tokens a step, %s\n", (long long)r->params, (long long)r->tokens,
          r->device);
  fprintf(out,
          "step        %10.2f ms   %.1f tokens/s (median of %d; fastest %.1f ms, first %.1f ms, capture %.1f "
          "ms)\n",
          r->step_ms, r->tokens_per_s, r->steps, r->best_step_ms, r->first_step_ms, r->capture_ms);
  if (r->memory.gpu)
    fprintf(out, "kernels     %10.2f ms   one by one; launching a step takes the host %.0f us\n",
            r->kernel_ms, r->launch_us);
  else
    fprintf(out, "kernels     %10.2f ms   replay adds %.4f%%\n", r->kernel_ms, r->dispatch_percent);
  if (r->launched_step_ms > 0)
    fprintf(out, "CUDA graphs %10.2f ms   a step; %.2f ms when its kernels are launched one by one\n",
            r->step_ms, r->launched_step_ms);
  if (r->bounds.gflops > 0)
    fprintf(out, "arithmetic  %10.1f GFLOP/s of %.1f (%s): %.1f%%\n", r->gflops, r->bounds.gflops,
            r->memory.gpu ? "nominal peak" : "multiply-adds in registers",
            100 * r->gflops / r->bounds.gflops);
  else
    fprintf(out, "arithmetic  %10.1f GFLOP/s; the peak of this GPU is not known\n", r->gflops);
  if (r->memory.gpu) fprintf(out, "MFU         %10s\n", known(r->mfu_percent, " %", text));
  fprintf(out, "\n%-22s %6s %10s %8s %10s %12s %10s\n", "op", "calls", "ms", "share", "best ms", "GFLOP/s",
          "GB/s");
  for (int i = 0; i < r->num_ops; i++) {
    const fx_bench_op *op = &r->ops[i];
    double seconds = op->best_ms / 1e3;
    fprintf(out, "%-22s %6d %10.3f %7.1f%% %10.3f %12.1f %10.1f\n", op->name, op->calls, op->ms,
            100 * op->ms / r->kernel_ms, op->best_ms, op->gflop / seconds, op->gbyte / seconds);
  }
  if (r->bounds.copy_gbps > 0)
    fprintf(out, "%-22s %6s %10s %8s %10s %12s %10.1f\n", "bound", "", "", "", "",
            known(r->bounds.gflops, "", text), r->bounds.copy_gbps);
  char memory[FX_MEMORY_TEXT];
  fx_memory_print(&r->memory, memory);
  fprintf(out, "\nmemory planned %s\n", memory);
  if (!r->memory.gpu)
    fprintf(out, "       VmHWM %.1f MiB (%+.1f%%)\n", fx_mib(r->peak_bytes),
            fx_memory_excess_percent(fx_memory_planned(&r->memory), r->peak_bytes));
  else
    fprintf(out, "       GPU memory in use %.1f MiB (%+.1f%%)\n", fx_mib(r->gpu_peak_bytes),
            fx_memory_excess_percent(fx_memory_planned_gpu(&r->memory), r->gpu_peak_bytes));
}

json_t *fx_bench_step_json(const fx_bench_step_report *r) {
  json_t *row = json_object();
  put_int(row, "params", r->params);
  put_int(row, "threads", r->threads);
  put(row, "step_ms", r->step_ms);
  put(row, "best_step_ms", r->best_step_ms);
  put(row, "tokens_per_s", r->tokens_per_s);
  put(row, "kernel_ms", r->kernel_ms);
  put(row, "dispatch_percent", r->dispatch_percent);
  if (r->memory.gpu) {
    put(row, "launch_us", r->launch_us);
    put(row, "launched_step_ms", r->launched_step_ms);
    put_int(row, "gpu_planned_bytes", fx_memory_planned_gpu(&r->memory));
    put_int(row, "gpu_peak_bytes", r->gpu_peak_bytes);
  }
  put_known(row, "mfu_percent", r->mfu_percent);
  put(row, "gflops", r->gflops);
  put_known(row, "bound_gflops", r->bounds.gflops);
  put(row, "bound_gbps", r->bounds.copy_gbps);
  put(row, "capture_ms", r->capture_ms);
  put(row, "first_step_ms", r->first_step_ms);
  put_int(row, "param_bytes", fx_memory_params(&r->memory));
  put_int(row, "arena_bytes", r->memory.arena);
  put_int(row, "arena_bound_bytes", r->memory.arena_bound);
  put_int(row, "input_bytes", r->memory.inputs);
  put_int(row, "library_bytes", r->memory.libraries);
  put_int(row, "snapshot_bytes", r->memory.snapshot);
  put_int(row, "planned_bytes", fx_memory_planned(&r->memory));
  put_int(row, "peak_bytes", r->peak_bytes);
  return row;
}

static const char *const g_passes[] = {
    [FX_BENCH_FORWARD] = "forward", [FX_BENCH_DX] = "dx", [FX_BENCH_DW] = "dw"};

void fx_bench_gemm_print(FILE *out, const fx_bench_gemm_report *r) {
  char text[32];
  fprintf(out, "%s; %% of %s (%s)\n\n", r->provider, known(r->bounds.gflops, " GFLOP/s", text),
          r->gpu ? "nominal peak" : "multiply-adds in registers");
  fprintf(out, "%-12s %-8s %8s %8s %8s %10s %10s %8s\n", "product", "pass", "m", "n", "k", "ms", "GFLOP/s",
          "%");
  for (int i = 0; i < r->count; i++) {
    const fx_bench_gemm_row *p = &r->product[i];
    double share = r->bounds.gflops > 0 ? 100 * p->gflops / r->bounds.gflops : 0;
    fprintf(out, "%-12s %-8s %8lld %8lld %8lld %10.3f %10.1f %8s\n", p->name, g_passes[p->pass],
            (long long)p->m, (long long)p->n, (long long)p->k, p->ms, p->gflops, known(share, "%", text));
  }
  fprintf(out, "\nall products of a step: %.1f ms\n", r->step_ms);
}

json_t *fx_bench_gemm_json(const fx_bench_gemm_report *r) {
  json_t *rows = json_array(), *all = json_object();
  for (int i = 0; i < r->count; i++) {
    const fx_bench_gemm_row *p = &r->product[i];
    json_t *row = json_object();
    json_object_set_new(row, "product", json_string(p->name));
    json_object_set_new(row, "pass", json_string(g_passes[p->pass]));
    put(row, "ms", p->ms);
    put(row, "gflops", p->gflops);
    json_array_append_new(rows, row);
  }
  put(all, "step_ms", r->step_ms);
  put_known(all, "bound_gflops", r->bounds.gflops);
  json_object_set_new(all, "products", rows);
  return all;
}
