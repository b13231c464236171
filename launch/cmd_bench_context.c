/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion bench context CONFIG`: the attention of a sequence that all ranks share, against one rank alone.
 */
#include <jansson.h>
#include <stdio.h>

#include "core/bench/exchange.h"
#include "launch/commands.h"
#include "launch/layer_options.h"
#include "launch/options.h"
#include "launch/ranks.h"
#include "launch/report.h"

enum { DEFAULT_STEPS = 7, TIMEOUT_MS = 120000 };

typedef struct measurement {
  int argc;
  char **argv;
  int config; /* where it stands in argv */
  fx_layer_arguments a;
  fx_bench_exchange_report report;
} measurement;

static void print_usage(FILE *stream) {
  fputs(
      "usage: flexion bench context CONFIG [key=value...] [--length N] [--batch B] [--documents MEAN] "
      "[--seed S]\n"
      "                             [--dtype TYPE] [--layer L] [--steps N] [--trace FILE]\n"
      "                             [--json]\n"
      "\n"
      "The attention op of a layer, forward and backward, of a sequence that all ranks share "
      "(parallel.context; start\n"
      "it with launch/run.sh -np N), beside the same of the whole sequence on one rank in the same run. "
      "TFLOP/s count\n"
      "visible pairs only: 14 D a pair and head. Efficiency is the time of one rank over N times that of N. "
      "Results\n"
      "of both are compared; a difference beyond rounding is an error. Documents, turns and tokens are "
      "made up.\n"
      "\n",
      stream);
  fx_layer_arguments_explain(stream);
  fputs("  --steps N         steps to time (default 7)\n"
        "  --trace FILE      a Chrome/Perfetto trace of one run of both, each kernel alone; %d in FILE "
        "becomes\n"
        "                    the rank (else rank 0 alone writes)\n"
        "  --json            one JSON object on the last line\n"
        "  --help            this text\n",
        stream);
}

static void print_report(const fx_bench_exchange_report *r, int64_t layer) {
  char where[80];
  if (r->gpu)
    snprintf(where, sizeof where, "%s%s", r->device, r->recorded ? ", CUDA graphs" : "");
  else
    snprintf(where, sizeof where, "%d threads a rank", r->threads);
  printf("%s, layer %lld: B=%lld T=%lld, %lld heads (%lld key heads) of %lld, %s, %lld documents\n",
         r->variant, (long long)layer, (long long)r->B, (long long)r->T, (long long)r->H, (long long)r->K,
         (long long)r->D, fx_dtype_name(r->dtype), (long long)r->documents);
  printf("%d ranks by %s over %s, %s; %.4g visible pairs%s, imbalance %.4f, room for %d of a rank's %d "
         "blocks of keys, to the next %d ranks\n",
         r->ranks, r->exchange, r->transport, where, r->visible_pairs, r->pairs_exact ? "" : " (estimated)",
         r->imbalance, r->room.blocks, r->blocks, r->room.hops);
  printf("\n%-10s %12s %16s\n", "", "ms", "TFLOP/s a rank");
  printf("%-10s %12.3f %16.3f\n", "one rank", r->single_ms, r->single_tflops);
  printf("%-10s %12.3f %16.3f\n", "shared", r->shared_ms, r->shared_tflops);
  printf("%-10s %12.3f\n", "efficiency", r->efficiency);
  printf("\ndifference: out %.2e, dq %.2e, dk %.2e, dv %.2e (relative L2, at most %.1e)\n",
         r->difference[FX_BENCH_OUT], r->difference[FX_BENCH_DQ], r->difference[FX_BENCH_DK],
         r->difference[FX_BENCH_DV], r->bound);
}

static void print_json(const fx_bench_exchange_report *r) {
  json_t *differences =
      json_pack("{s:f, s:f, s:f, s:f}", "out", r->difference[FX_BENCH_OUT], "dq", r->difference[FX_BENCH_DQ],
                "dk", r->difference[FX_BENCH_DK], "dv", r->difference[FX_BENCH_DV]);
  json_t *row =
      json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:b, s:i, s:s, s:s, s:s, s:s}", "ranks", r->ranks,
                "batch", (json_int_t)r->B, "length", (json_int_t)r->T, "heads", (json_int_t)r->H, "key_heads",
                (json_int_t)r->K, "head_dim", (json_int_t)r->D, "dtype", fx_dtype_name(r->dtype), "gpu",
                r->gpu, "recorded", r->recorded, "threads", r->threads, "device", r->device, "transport",
                r->transport, "exchange", r->exchange, "variant", r->variant);
  json_t *figures =
      json_pack("{s:I, s:I, s:b, s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "documents",
                (json_int_t)r->documents, "visible_pairs", (json_int_t)(r->visible_pairs + 0.5),
                "pairs_exact", r->pairs_exact, "capacity_blocks", r->room.blocks, "hops", r->room.hops,
                "blocks", r->blocks, "imbalance", r->imbalance, "steps", r->steps, "single_ms", r->single_ms,
                "shared_ms", r->shared_ms, "single_tflops", r->single_tflops, "shared_tflops",
                r->shared_tflops, "efficiency", r->efficiency, "difference", r->worst, "bound", r->bound);
  if (row && figures && differences) {
    json_object_update(row, figures);
    json_object_set(row, "differences", differences);
  }
  fx_print_json(row);
  json_decref(figures);
  json_decref(differences);
}

static fx_status measure(fx_control *control, void *measured) {
  measurement *m = measured;
  fx_config *config = NULL;
  fx_status status = fx_load_arguments(m->argc, m->argv, m->config, m->a.command, &config);
  status = fx_control_agree_status(control, status, TIMEOUT_MS);
  if (status == FX_OK) status = fx_bench_exchange(config, control, &m->a.options, &m->report);
  fx_config_destroy(config);
  return status;
}

static void print(const void *measured) {
  const measurement *m = measured;
  print_report(&m->report, m->a.options.layer);
  if (m->a.json) print_json(&m->report);
}

int fx_cmd_bench_context(int argc, char **argv) {
  measurement m = {.argc = argc, .argv = argv, .a = {.command = "bench context", .takes_trace = true}};
  int code = fx_layer_arguments_read(argc, argv, print_usage, &m.a);
  if (code >= 0) return code;
  if (m.a.options.steps == 0) m.a.options.steps = DEFAULT_STEPS;
  m.config = optind;
  return fx_measure_on_ranks(measure, print, &m);
}
