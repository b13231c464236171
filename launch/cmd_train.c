/* SPDX-License-Identifier: Apache-2.0 */
/* flexion train CONFIG [key=value...]: one rank of a training job. */
#include <getopt.h>
#include <signal.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/train/trainer.h"
#include "launch/commands.h"
#include "launch/report.h"
#include "parallel/comm/mpi/bootstrap.h"

static void usage(FILE *stream) {
  fprintf(
      stream,
      "usage: flexion train CONFIG [key=value...] [--json] [--trace FILE [--trace-step N]]\n\n"
      "Trains the model of CONFIG; `section.key=value` overrides it. Under mpirun each process is one rank:\n"
      "  launch/run.sh -np 2 train configs/quickstart.yaml data.train=corpus/\n\n"
      "  --json          one JSON object with the figures of the run on the last line\n"
      "  --trace FILE    a Chrome/Perfetto trace of one step; %%d in FILE becomes the rank (else rank 0 "
      "only)\n"
      "  --trace-step N  which step of this process (default 5)\n");
}

typedef struct arguments {
  const char *config, *trace;
  const char *const *overrides;
  int num_overrides, trace_step;
  bool json;
} arguments;

/* -1: go on; otherwise the exit code. */
static int parse(int argc, char **argv, arguments *out) {
  static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"trace", required_argument, NULL, 't'},
                                          {"trace-step", required_argument, NULL, 's'},
                                          {NULL, 0, NULL, 0}};
  *out = (arguments){.trace_step = 5};
  optind = 0;
  for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
    switch (c) {
    case 'h':
      usage(stdout);
      return fx_flush_output(0);
    case 'j':
      out->json = true;
      break;
    case 't':
      out->trace = optarg;
      break;
    case 's': {
      char *end = NULL;
      long step = strtol(optarg, &end, 10);
      if (*end || step < 1 || step > 1000000000) {
        fprintf(stderr, "flexion: usage error: --trace-step takes a step number from 1, got \"%s\"\n",
                optarg);
        return 2;
      }
      out->trace_step = (int)step;
      break;
    }
    default:
      usage(stderr);
      return 2;
    }
  }
  if (optind == argc) {
    usage(stderr);
    return 2;
  }
  out->config = argv[optind];
  out->overrides = (const char *const *)argv + optind + 1;
  out->num_overrides = argc - optind - 1;
  return -1;
}

/* TERM, INT and USR1 (which mpirun forwards) let the run finish its step and save; a second TERM or INT ends
 * it at once, while USR1 may repeat (launch/run.sh does, until the ranks hear it). */
static volatile int g_stop; /* the signal */

static void on_signal(int number) {
  if (g_stop && number != SIGUSR1) signal(number, SIG_DFL);
  if (!g_stop || number != SIGUSR1) g_stop = number;
}

/* The handler has a stack of its own: oneDNN 2.6's generated products keep data below the stack pointer,
 * beyond what the ABI protects, and a handler's frame there corrupts them (tests/integration/survive.sh). */
static void catch_signals(void) {
  static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
  static char memory[65536];
  stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
  struct sigaction action;
  sigaltstack(&stack, NULL);
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) sigaction(numbers[i], &action, NULL);
}

static void print_json(const fx_train_report *r) {
  json_t *row = json_object();
  json_object_set_new(row, "steps", json_integer(r->steps));
  json_object_set_new(row, "skipped", json_integer(r->skipped));
  json_object_set_new(row, "consumed_samples", json_integer(r->consumed_samples));
  json_object_set_new(row, "loss", isfinite(r->loss) ? json_real(r->loss) : json_null());
  json_object_set_new(row, "valid_loss", isfinite(r->valid_loss) ? json_real(r->valid_loss) : json_null());
  json_object_set_new(row, "tokens_per_s", json_real(r->tokens_per_s));
  json_object_set_new(row, "capture_ms", json_real(r->capture_ms));
  json_object_set_new(row, "arena_bytes", json_integer(r->arena_bytes));
  json_object_set_new(row, "arena_bound_bytes", json_integer(r->arena_bound_bytes));
  fx_print_json(row);
}

static void end_job(void *ctx, fx_status status) {
  (void)ctx;
  fx_mpi_abort(fx_status_exit_code(status));
}

int fx_cmd_train(int argc, char **argv) {
  arguments args;
  int code = parse(argc, argv, &args);
  if (code >= 0) return code;
  fx_control *control = NULL;
  fx_config *config = NULL;
  const char *restart = getenv("FLEXION_RESTART"); /* set by launch/run.sh --restarts */
  fx_log log = {.stream = stderr, .level = FX_LOG_INFO, .rank = 0, .size = 1};
  fx_status status = fx_mpi_bootstrap(&argc, &argv, &control);
  if (status != FX_OK) {
    fprintf(stderr, "flexion: %s: %s\n", fx_status_text(status), fx_error_text());
    return fx_status_exit_code(status);
  }
  log.rank = control->rank;
  log.size = control->size;
  catch_signals();
  /* Reading the configuration is agreed: all ranks leave together, one of them speaks. */
  status = fx_config_load(args.config, args.overrides, args.num_overrides, &config);
  if (status == FX_OK) status = fx_config_check_train(config);
  status = fx_control_agree_status(control, status, 60000);
  bool agreed = status != FX_OK, stopped = false;
  if (status == FX_OK) {
    log.level = config->runtime.log_level;
    for (int64_t i = 0; control->rank == 0 && i < config->warnings.count; i++)
      fx_warn(&log, "%s", config->warnings.items[i]);
    fx_job job = {.control = control,
                  .log = &log,
                  .trace_path = args.trace,
                  .trace_step = args.trace_step,
                  .stop = &g_stop,
                  .fatal = end_job,
                  .restarted = restart && atoi(restart) > 0};
    fx_train_report report;
    status = fx_train(config, &job, &report);
    agreed = report.agreed;
    stopped = report.stopped;
    if (status == FX_OK && args.json && control->rank == 0) print_json(&report);
  }
  int rank = control->rank, exit_code = fx_status_exit_code(status);
  if (stopped && status == FX_OK) exit_code = g_stop == SIGINT ? 130 : 143;
  if (status != FX_OK && (rank == 0 || !agreed))
    fprintf(stderr, "flexion: %s: %s\n", fx_status_text(status), fx_error_text());
  fx_config_destroy(config);
  if (status != FX_OK && !agreed) fx_mpi_abort(exit_code); /* peers may wait in a collective for us */
  fx_control_destroy(control);
  fx_mpi_finalize();
  return exit_code;
}
