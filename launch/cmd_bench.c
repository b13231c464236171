/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion bench step|gemm|comm|attention|context CONFIG`: how fast this machine runs a configuration,
 * against what it could at best. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/comm.h"
#include "launch/bench_report.h"
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

static int bench_step(const fx_config *config, int steps, bool snapshot, bool json) {
  fx_bench_step_report r;
  fx_status status = fx_bench_step(config, steps, snapshot, &r);
  if (status != FX_OK) return fx_report(status);
  fx_bench_step_print(stdout, &r);
  if (json) fx_print_json(fx_bench_step_json(&r));
  return 0;
}

static int bench_gemm(const fx_config *config, bool json) {
  fx_bench_gemm_report r;
  fx_status status = fx_bench_gemm(config, &r);
  if (status != FX_OK) return fx_report(status);
  fx_bench_gemm_print(stdout, &r);
  if (json) fx_print_json(fx_bench_gemm_json(&r));
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
    json_object_set_new(row, "bytes", json_integer(c->bytes));
    json_object_set_new(row, "us", json_real(c->us));
    json_object_set_new(row, "gbps", json_real(c->gbps));
    json_array_append_new(rows, row);
  }
  json_t *all = json_object();
  json_object_set_new(all, "ranks", json_integer(r->ranks));
  json_object_set_new(all, "transport", json_string(r->transport));
  json_object_set_new(all, "copy_gbps", json_real(r->copy_gbps));
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
