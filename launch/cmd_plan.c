/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion plan CONFIG`: what a rank of a configuration would run and how much memory it needs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/bench/plan.h"
#include "dynamo_rt/base/memory.h"
#include "launch/commands.h"
#include "launch/options.h"
#include "launch/report.h"

typedef struct arguments {
  int ranks;
  bool gpu, ledger, json;
} arguments;

static void print_usage(FILE *stream) {
  fputs("usage: flexion plan CONFIG [key=value...] [--ranks N] [--gpu] [--ledger] [--json]\n"
        "\n"
        "Records and plans the training step of rank 0 of N ranks without running it: kernels, collectives, "
        "the\n"
        "arena against its lower bound, memory a rank. Needs neither the memory nor a GPU.\n"
        "\n"
        "  --ranks N  ranks of the job (default parallel.tensor x parallel.context)\n"
        "  --gpu      as on a GPU: its kernels, its types\n"
        "  --ledger   every collective of every plan, in issue order\n"
        "  --json     one JSON object on the last line\n"
        "  --help     this text\n",
        stream);
}

/* Smaller rungs are rows of their own, with longer names. */
static int name_width(const fx_bench_plan_report *r) {
  size_t width = 14;
  for (int i = 0; i < r->count; i++)
    if (strlen(r->row[i].name) > width) width = strlen(r->row[i].name);
  return (int)width;
}

static void print_plans(const fx_bench_plan_report *r) {
  int width = name_width(r);
  bool rungs = false;
  printf("%-*s %8s %7s %12s %7s %12s %12s %12s %10s %10s\n", width, "plan", "kernels", "fused", "collectives",
         "waits", "arena MiB", "bound MiB", "scratch MiB", "GFLOP", "GB");
  for (int i = 0; i < r->count; i++) {
    const fx_bench_plan_row *p = &r->row[i];
    printf("%-*s %8d %7d %12d %7d %12.1f %12.1f %12.1f %10.1f %10.2f\n", width, p->name, p->kernels, p->fused,
           p->collectives, p->waits, fx_mib(p->arena_bytes), fx_mib(p->arena_bound_bytes),
           fx_mib(p->workspace_bytes), p->gflop, p->gbyte);
    rungs = rungs || strchr(p->name, '/');
  }
  if (rungs)
    printf("\nPLAN/NxH runs in place of PLAN for batches of which at most N blocks of 128 keys of any rank "
           "travel, to the next H ranks.\n");
}

static void print_text(const fx_bench_plan_report *r, const arguments *a) {
  const fx_memory_account *m = &r->memory;
  printf("%lld parameters, %s, %s; rank 0 of %d, %s; attention %s\n\n", (long long)r->params, r->topology,
         fx_dtype_name(r->dtype), r->ranks, a->gpu ? "GPU" : "CPU", r->attention);
  print_plans(r);
  printf(
      "\nmemory of the rank, MiB: weights %.1f, gradients %.1f, moments %.1f, arena %.1f, inputs %.1f: %.1f "
      "together;\n%.1f more on the host for checkpoints beside training. Libraries, data and communicators "
      "come on top.\n",
      fx_mib(m->weights), fx_mib(m->gradients), fx_mib(m->moments), fx_mib(m->arena), fx_mib(m->inputs),
      fx_mib(m->weights + m->gradients + m->moments + m->arena + m->inputs), fx_mib(r->snapshot_bytes));
  for (int i = 0; a->ledger && i < r->count; i++)
    printf("\n%s\n%s", r->row[i].name, r->row[i].ledger[0] ? r->row[i].ledger : "no collectives\n");
}

static void print_json(const fx_bench_plan_report *r) {
  const fx_memory_account *m = &r->memory;
  json_t *plans = json_array();
  for (int i = 0; i < r->count; i++) {
    const fx_bench_plan_row *p = &r->row[i];
    json_array_append_new(
        plans, json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:f, s:f, s:s}", "plan", p->name,
                         "kernels", p->kernels, "fused", p->fused, "collectives", p->collectives, "waits",
                         p->waits, "arena_bytes", (json_int_t)p->arena_bytes, "arena_bound_bytes",
                         (json_int_t)p->arena_bound_bytes, "workspace_bytes", (json_int_t)p->workspace_bytes,
                         "gflop", p->gflop, "gbyte", p->gbyte, "ledger", p->ledger));
  }
  json_t *row =
      json_pack("{s:I, s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "params", (json_int_t)r->params,
                "ranks", r->ranks, "topology", r->topology, "dtype", fx_dtype_name(r->dtype), "weight_bytes",
                (json_int_t)m->weights, "gradient_bytes", (json_int_t)m->gradients, "moment_bytes",
                (json_int_t)m->moments, "arena_bytes", (json_int_t)m->arena, "input_bytes",
                (json_int_t)m->inputs, "snapshot_bytes", (json_int_t)r->snapshot_bytes, "plans", plans);
  fx_print_json(row);
}

static fx_status read_option(int option, const char *word, void *words) {
  arguments *a = words;
  char *end = NULL;
  long ranks;
  switch (option) {
  case 'n':
    ranks = strtol(optarg, &end, 10);
    if (end == optarg || *end || ranks < 1 || ranks > 999999)
      return fx_error(FX_ERR_USAGE,
                      "--ranks takes a number from 1 to 999999, got \"%s\"; see flexion plan --help", optarg);
    a->ranks = (int)ranks;
    return FX_OK;
  case 'g':
    a->gpu = true;
    return FX_OK;
  case 'l':
    a->ledger = true;
    return FX_OK;
  case 'j':
    a->json = true;
    return FX_OK;
  default:
    return fx_option_unreadable("plan", word);
  }
}

static int show(const fx_config *config, const void *words) {
  const arguments *a = words;
  fx_bench_plan_report report;
  fx_status status = fx_bench_plan(config, a->ranks, a->gpu, &report);
  if (status == FX_OK) print_text(&report, a);
  if (status == FX_OK && a->json) print_json(&report);
  int code = status == FX_OK ? fx_flush_output(0) : fx_report(status);
  fx_bench_plan_fini(&report);
  return code;
}

int fx_cmd_plan(int argc, char **argv) {
  static const struct option rows[] = {
      {"ranks", required_argument, NULL, 'n'}, {"gpu", no_argument, NULL, 'g'},
      {"ledger", no_argument, NULL, 'l'},      {"json", no_argument, NULL, 'j'},
      {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  arguments a = {0};
  return fx_options_run(&options, "plan", argc, argv, &a, show);
}
