/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion bench attention CONFIG`: the attention op of a layer and its gradient, against a matrix product.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/bench/attention.h"
#include "dynamo_rt/base/memory.h"
#include "launch/commands.h"
#include "launch/layer_options.h"
#include "launch/options.h"
#include "launch/report.h"

enum { DEFAULT_STEPS = 7 };

static void print_usage(FILE *stream) {
  fputs("usage: flexion bench attention CONFIG [key=value...] [--length N] [--batch B] [--documents MEAN] "
        "[--seed S]\n"
        "                               [--dtype TYPE] [--layer L] [--memory] [--steps N] [--json]\n"
        "\n"
        "The attention op of a layer and its gradient as a training step runs them, beside a square product "
        "of the\n"
        "machine's GEMM library in the same run. GFLOP/s count visible pairs only: 4 D a pair and head "
        "forward, 10 D\n"
        "backward. Documents, turns and tokens are made up; no data is read.\n"
        "\n",
        stream);
  fx_layer_arguments_explain(stream);
  fputs("  --memory          bytes beyond inputs and outputs, at half the length and at the length\n"
        "  --steps N         steps to time (default 7; with --memory 1)\n"
        "  --json            one JSON object on the last line\n"
        "  --help            this text\n",
        stream);
}

/* ---- output ---- */

static void print_kernels(const fx_bench_attention_report *r) {
  if (r->gpu)
    printf("kernels   CUDA, compiled by NVRTC or found in the cache\n");
  else if (r->kernels == FX_BENCH_KERNELS_NONE)
    printf("kernels   nothing generated runs%s\n", r->R ? ": limits say who sees whom" : "");
  else if (r->kernels == FX_BENCH_KERNELS_COMPILED)
    printf("kernels   compiled: %.1f ms at first use, %.1f ms from the cache\n", r->compile_ms, r->cached_ms);
  else
    printf("kernels   interpreted%s%s\n", r->reason[0] ? ": " : "", r->reason);
}

static void print_memory(const fx_bench_attention_memory *m) {
  printf("%10lld %12.2f %12.2f %12.2f %12.2f %12.2f %12.2f\n", (long long)m->length, fx_mib(m->io_bytes),
         fx_mib(m->workspace_bytes), fx_mib(m->mask_bytes), fx_mib(m->lse_bytes), fx_mib(m->peak_bytes),
         fx_mib(m->peak_bytes - m->io_bytes));
}

static void print_report(const fx_bench_attention_report *r, const fx_layer_arguments *a) {
  char where[80];
  if (r->gpu)
    snprintf(where, sizeof where, "%s", r->device);
  else
    snprintf(where, sizeof where, "%d threads", r->threads);
  printf("%s, layer %lld: B=%lld T=%lld, %lld heads (%lld key heads) of %lld, %s, %lld documents, %s\n",
         r->name, (long long)a->options.layer, (long long)r->B, (long long)r->T, (long long)r->H,
         (long long)r->K, (long long)r->D, fx_dtype_name(r->dtype), (long long)r->documents, where);
  printf("%s%s\n", r->text, r->text[0] && r->text[strlen(r->text) - 1] == '\n' ? "" : "\n");
  printf("mask      %s", r->form);
  if (r->R) printf(", %d interval%s a query", r->R, r->R == 1 ? "" : "s");
  printf("; %.4f%% visible%s; built in %.3f ms, %.3f MiB\n", 100 * r->density,
         r->density_exact ? "" : " (estimated)", r->mask_build_ms, fx_mib(r->full.mask_bytes));
  print_kernels(r);
  printf("\n%-10s %10s %10s %10s\n", "", "ms", "GFLOP/s", "of product");
  printf("%-10s %10.3f %10.1f %9.1f%%\n", "forward", r->forward_ms, r->forward_gflops,
         100 * r->forward_gflops / r->gemm_gflops);
  printf("%-10s %10.3f %10.1f %9.1f%%\n", "backward", r->backward_ms, r->backward_gflops,
         100 * r->backward_gflops / r->gemm_gflops);
  printf("%-10s %10.3f %10.1f            %s, %s, %lld x %lld x %lld\n", "product", r->gemm_ms, r->gemm_gflops,
         r->provider, fx_dtype_name(r->gpu ? r->dtype : FX_F32), (long long)r->gemm_size,
         (long long)r->gemm_size, (long long)r->gemm_size);
  if (!a->memory) return;
  printf("\nmemory, MiB; the peak is %s growth from before the inputs were allocated\n",
         r->gpu ? "the GPU's" : "VmHWM's");
  printf("%10s %12s %12s %12s %12s %12s %12s\n", "length", "in and out", "workspace", "mask", "lse", "peak",
         "beyond");
  print_memory(&r->half);
  print_memory(&r->full);
}

static json_t *memory_json(const fx_bench_attention_memory *m) {
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "length", (json_int_t)m->length, "io_bytes",
                   (json_int_t)m->io_bytes, "workspace_bytes", (json_int_t)m->workspace_bytes, "mask_bytes",
                   (json_int_t)m->mask_bytes, "lse_bytes", (json_int_t)m->lse_bytes, "peak_bytes",
                   (json_int_t)m->peak_bytes);
}

static void print_json(const fx_bench_attention_report *r, const fx_layer_arguments *a) {
  static const char *const kernels[] = {"none", "compiled", "interpreted"};
  json_t *row =
      json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "forward_ms", r->forward_ms, "backward_ms",
                r->backward_ms, "forward_gflops", r->forward_gflops, "backward_gflops", r->backward_gflops,
                "gemm_gflops", r->gemm_gflops, "forward_of_gemm", r->forward_gflops / r->gemm_gflops,
                "backward_of_gemm", r->backward_gflops / r->gemm_gflops, "mask_build_ms", r->mask_build_ms,
                "compile_ms", r->compile_ms);
  json_t *more = json_pack(
      "{s:f, s:I, s:f, s:b, s:I, s:s, s:s, s:i, s:s, s:i, s:s}", "cached_ms", r->cached_ms, "visible_pairs",
      (json_int_t)(r->visible_pairs + 0.5), "density", r->density, "density_exact", r->density_exact,
      "documents", (json_int_t)r->documents, "variant", r->name, "form", r->form, "intervals", r->R,
      "kernels", kernels[r->kernels], "threads", r->threads, "dtype", fx_dtype_name(r->dtype));
  json_t *memory = memory_json(&r->full);
  if (row && more && memory) {
    json_object_update(row, more);
    json_object_update(row, memory);
    if (a->memory) json_object_set_new(row, "half", memory_json(&r->half));
  }
  fx_print_json(row);
  json_decref(memory);
  json_decref(more);
}

static int measure(const fx_config *config, const fx_layer_arguments *a) {
  fx_bench_attention_report r;
  fx_status status =
      fx_bench_attention(config, &(fx_bench_attention_options){.layer = a->options, .memory = a->memory}, &r);
  if (status != FX_OK) return fx_report(status);
  print_report(&r, a);
  if (a->json) print_json(&r, a);
  return fx_flush_output(0);
}

int fx_cmd_bench_attention(int argc, char **argv) {
  fx_layer_arguments a = {.command = "bench attention", .takes_memory = true};
  int code = fx_layer_arguments_read(argc, argv, print_usage, &a);
  if (code >= 0) return code;
  if (a.options.steps == 0) a.options.steps = a.memory ? 1 : DEFAULT_STEPS;
  fx_config *config = NULL;
  fx_status status = fx_load_arguments(argc, argv, optind, a.command, &config);
  if (status != FX_OK) return fx_report(status);
  code = measure(config, &a);
  fx_config_destroy(config);
  return code;
}
