/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion bench step|gemm|comm|attention|context CONFIG`: how fast this machine runs a configuration,
 * against what it could at best. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/comm.h"
#include "core/bench/gemm.h"
#include "core/bench/step.h"
#include "dynamo_rt/base/memory.h"
#include "launch/commands.h"
#include "launch/options.h"
#include "launch/ranks.h"
#include "launch/report.h"

static void print_usage(FILE *stream) {
  fputs("usage: flexion bench step CONFIG [key=value...] [--steps N] [--snapshot] [--json]\n"
        "       flexion bench gemm CONFIG [key=value...] [--json]\n"
        "       flexion bench comm CONFIG [key=value...] [--json]\n"
        "       flexion bench attention CONFIG [key=value...] [...]; see flexion bench attention --help\n"
        "       flexion bench context CONFIG [key=value...] [...]; see flexion bench context --help\n"
        "\n"
        "step: a training step on random tokens; gemm: the matrix products of that step; comm: the "
        "collectives\n"
        "between ranks (start it with launch/run.sh -np N); attention: the op; context: the op shared by "
        "ranks.\n"
        "\n"
        "One process, one micro-batch a step; times are medians, rates of ops those of their best step. "
        "Bounds are\n"
        "measured in the same run: multiply-adds in registers and a copy far larger than the caches.\n"
        "\n"
        "  --steps N   steps to time (default 10)\n"
        "  --snapshot  every step copies its state aside, as training does when it saves (checkpoint.async)\n"
        "  --json      one JSON object on the last line\n"
        "  --help      this text\n",
        stream);
}

static void print_step(const fx_bench_step_report *r) {
  printf("%lld parameters, %lld tokens a step, %s\n", (long long)r->params, (long long)r->tokens, r->device);
  printf("step        %10.2f ms   %.1f tokens/s (median of %d; fastest %.1f ms, first %.1f ms, capture %.1f "
         "ms)\n",
         r->step_ms, r->tokens_per_s, r->steps, r->best_step_ms, r->first_step_ms, r->capture_ms);
  if (r->memory.gpu)
    printf("kernels     %10.2f ms   one by one; launching a step takes the host %.0f us\n", r->kernel_ms,
           r->launch_us);
  else
    printf("kernels     %10.2f ms   replay adds %.4f%%\n", r->kernel_ms, r->dispatch_percent);
  if (r->launched_step_ms > 0)
    printf("CUDA graphs %10.2f ms   a step; %.2f ms when its kernels are launched one by one\n", r->step_ms,
           r->launched_step_ms);
  if (r->bounds.gflops > 0)
    printf("arithmetic  %10.1f GFLOP/s of %.1f (%s): %.1f%%\n", r->gflops, r->bounds.gflops,
           r->memory.gpu ? "nominal peak" : "multiply-adds in registers", 100 * r->gflops / r->bounds.gflops);
  else
    printf("arithmetic  %10.1f GFLOP/s\n", r->gflops);
  if (r->mfu_percent > 0) printf("MFU         %10.1f %%\n", r->mfu_percent);
  printf("\n%-22s %6s %10s %8s %10s %12s %10s\n", "op", "calls", "ms", "share", "best ms", "GFLOP/s", "GB/s");
  for (int i = 0; i < r->num_ops; i++) {
    const fx_bench_op *op = &r->ops[i];
    double seconds = op->best_ms / 1e3;
    printf("%-22s %6d %10.3f %7.1f%% %10.3f %12.1f %10.1f\n", op->name, op->calls, op->ms,
           100 * op->ms / r->kernel_ms, op->best_ms, op->gflop / seconds, op->gbyte / seconds);
  }
  if (r->bounds.copy_gbps > 0)
    printf("%-22s %6s %10s %8s %10s %12.1f %10.1f\n", "bound", "", "", "", "", r->bounds.gflops,
           r->bounds.copy_gbps);
  char memory[FX_MEMORY_TEXT];
  fx_memory_print(&r->memory, memory);
  printf("\nmemory planned %s\n", memory);
  if (!r->memory.gpu)
    printf("       VmHWM %.1f MiB (%+.1f%%)\n", fx_mib(r->peak_bytes),
           fx_memory_excess_percent(fx_memory_planned(&r->memory), r->peak_bytes));
  else
    printf("       GPU memory in use %.1f MiB (%+.1f%%)\n", fx_mib(r->gpu_peak_bytes),
           fx_memory_excess_percent(fx_memory_planned_gpu(&r->memory), r->gpu_peak_bytes));
}

static void put(json_t *row, const char *key, double value) {
  json_object_set_new(row, key, json_real(value));
}
static void put_int(json_t *row, const char *key, int64_t value) {
  json_object_set_new(row, key, json_integer(value));
}

static int bench_step(const fx_config *config, int steps, bool snapshot, bool json) {
  fx_bench_step_report r;
  fx_status status = fx_bench_step(config, steps, snapshot, &r);
  if (status != FX_OK) return fx_report(status);
  print_step(&r);
  if (!json) return 0;
  json_t *row = json_object();
  put_int(row, "params", r.params);
  put_int(row, "threads", r.threads);
  put(row, "step_ms", r.step_ms);
  put(row, "best_step_ms", r.best_step_ms);
  put(row, "tokens_per_s", r.tokens_per_s);
  put(row, "kernel_ms", r.kernel_ms);
  put(row, "dispatch_percent", r.dispatch_percent);
  if (r.memory.gpu) {
    put(row, "launch_us", r.launch_us);
    put(row, "launched_step_ms", r.launched_step_ms);
    put_int(row, "gpu_planned_bytes", fx_memory_planned_gpu(&r.memory));
    put_int(row, "gpu_peak_bytes", r.gpu_peak_bytes);
  }
  json_object_set_new(row, "mfu_percent", r.mfu_percent > 0 ? json_real(r.mfu_percent) : json_null());
  put(row, "gflops", r.gflops);
  put(row, "bound_gflops", r.bounds.gflops);
  put(row, "bound_gbps", r.bounds.copy_gbps);
  put(row, "capture_ms", r.capture_ms);
  put(row, "first_step_ms", r.first_step_ms);
  put_int(row, "param_bytes", fx_memory_params(&r.memory));
  put_int(row, "arena_bytes", r.memory.arena);
  put_int(row, "arena_bound_bytes", r.memory.arena_bound);
  put_int(row, "input_bytes", r.memory.inputs);
  put_int(row, "library_bytes", r.memory.libraries);
  put_int(row, "snapshot_bytes", r.memory.snapshot);
  put_int(row, "planned_bytes", fx_memory_planned(&r.memory));
  put_int(row, "peak_bytes", r.peak_bytes);
  fx_print_json(row);
  return 0;
}

static int bench_gemm(const fx_config *config, bool json) {
  fx_bench_gemm_report r;
  fx_status status = fx_bench_gemm(config, &r);
  if (status != FX_OK) return fx_report(status);
  static const char *const passes[] = {
      [FX_BENCH_FORWARD] = "forward", [FX_BENCH_DX] = "dx", [FX_BENCH_DW] = "dw"};
  printf("%s; %% of %.1f GFLOP/s (%s)\n\n", r.provider, r.bounds.gflops,
         r.gpu ? "nominal peak" : "multiply-adds in registers");
  printf("%-12s %-8s %8s %8s %8s %10s %10s %8s\n", "product", "pass", "m", "n", "k", "ms", "GFLOP/s", "%");
  json_t *rows = json_array();
  for (int i = 0; i < r.count; i++) {
    const fx_bench_gemm_row *p = &r.product[i];
    double share = r.bounds.gflops > 0 ? 100 * p->gflops / r.bounds.gflops : 0;
    printf("%-12s %-8s %8lld %8lld %8lld %10.3f %10.1f %7.1f%%\n", p->name, passes[p->pass], (long long)p->m,
           (long long)p->n, (long long)p->k, p->ms, p->gflops, share);
    json_t *row = json_object();
    json_object_set_new(row, "product", json_string(p->name));
    json_object_set_new(row, "pass", json_string(passes[p->pass]));
    put(row, "ms", p->ms);
    put(row, "gflops", p->gflops);
    json_array_append_new(rows, row);
  }
  printf("\nall products of a step: %.1f ms\n", r.step_ms);
  json_t *all = json_object();
  put(all, "step_ms", r.step_ms);
  put(all, "bound_gflops", r.bounds.gflops);
  json_object_set_new(all, "products", rows);
  if (json)
    fx_print_json(all);
  else
    json_decref(all);
  return 0;
}

static void print_comm_report(const fx_bench_comm_report *r, bool json) {
  json_t *rows = json_array();
  printf("%d ranks, %s, %s; a rank's own copy moves %.1f GB/s\n\n", r->ranks, r->transport, r->device,
         r->copy_gbps);
  printf("%-16s %12s %12s %10s\n", "collective", "KiB", "us", "GB/s");
  for (int i = 0; i < r->count; i++) {
    const fx_bench_comm_row *c = &r->row[i];
    printf("%-16s %12lld %12.1f %10.2f\n", fx_collective_name(c->kind), (long long)c->bytes >> 10, c->us,
           c->gbps);
    json_t *row = json_object();
    json_object_set_new(row, "collective", json_string(fx_collective_name(c->kind)));
    put_int(row, "bytes", c->bytes);
    put(row, "us", c->us);
    put(row, "gbps", c->gbps);
    json_array_append_new(rows, row);
  }
  json_t *all = json_object();
  put_int(all, "ranks", r->ranks);
  json_object_set_new(all, "transport", json_string(r->transport));
  put(all, "copy_gbps", r->copy_gbps);
  json_object_set_new(all, "collectives", rows);
  if (json)
    fx_print_json(all);
  else
    json_decref(all);
}

typedef struct comm_measurement {
  const fx_config *config;
  fx_bench_comm_report report;
  bool json;
} comm_measurement;

static fx_status measure_comm(fx_control *control, void *measurement) {
  comm_measurement *m = measurement;
  return fx_bench_comm(m->config, control, &m->report);
}

static void print_comm(const void *measurement) {
  const comm_measurement *m = measurement;
  print_comm_report(&m->report, m->json);
}

static int bench_comm(const fx_config *config, bool json) {
  comm_measurement m = {.config = config, .json = json};
  return fx_measure_on_ranks(measure_comm, print_comm, &m);
}

typedef enum subject { STEP, GEMM, COMM, SUBJECTS } subject;
static const char *const g_subjects[SUBJECTS] = {[STEP] = "step", [GEMM] = "gemm", [COMM] = "comm"};

typedef struct arguments {
  int steps; /* 0: no number of steps */
  bool snapshot, json;
} arguments;

static fx_status read_option(int option, const char *word, void *words) {
  arguments *a = words;
  char *end;
  long steps;
  switch (option) {
  case 'j':
    a->json = true;
    return FX_OK;
  case 'S':
    a->snapshot = true;
    return FX_OK;
  case 's':
    steps = strtol(optarg, &end, 10);
    a->steps = *end || steps < 1 || steps > 100 ? 0 : (int)steps;
    return FX_OK;
  default:
    return fx_option_unknown("bench", word);
  }
}

int fx_cmd_bench(int argc, char **argv) {
  static const struct option rows[] = {{"steps", required_argument, NULL, 's'},
                                       {"snapshot", no_argument, NULL, 'S'},
                                       {"json", no_argument, NULL, 'j'},
                                       {"help", no_argument, NULL, 'h'},
                                       {NULL, 0, NULL, 0}};
  if (argc > 1 && strcmp(argv[1], "attention") == 0) return fx_cmd_bench_attention(argc - 1, argv + 1);
  if (argc > 1 && strcmp(argv[1], "context") == 0) return fx_cmd_bench_context(argc - 1, argv + 1);
  static const fx_options options = {rows, read_option, print_usage};
  arguments a = {.steps = 10};
  int code = fx_options_read(&options, argc, argv, &a);
  if (code >= 0) return code;
  if (a.steps == 0)
    return fx_report(
        fx_error(FX_ERR_USAGE, "--steps takes a number from 1 to 100; see flexion bench --help"));
  int what = 0;
  while (what < SUBJECTS && (optind >= argc || strcmp(argv[optind], g_subjects[what]) != 0)) what++;
  if (what == SUBJECTS)
    return fx_report(
        fx_error(FX_ERR_USAGE,
                 "bench expects step, gemm, comm, attention or context, got %s; see flexion bench --help",
                 optind < argc ? argv[optind] : "nothing"));
  if (what != STEP && a.snapshot)
    return fx_report(
        fx_error(FX_ERR_USAGE, "--snapshot is an option of bench step; see flexion bench --help"));
  if (optind + 1 >= argc)
    return fx_report(
        fx_error(FX_ERR_USAGE, "bench %s expects a YAML file; see flexion bench --help", argv[optind]));
  fx_config *config = NULL;
  fx_status status =
      fx_config_load(argv[optind + 1], (const char *const *)argv + optind + 2, argc - optind - 2, &config);
  if (status != FX_OK) return fx_report(status);
  code = what == STEP   ? bench_step(config, a.steps, a.snapshot, a.json)
         : what == GEMM ? bench_gemm(config, a.json)
                        : bench_comm(config, a.json);
  fx_config_destroy(config);
  return code;
}
