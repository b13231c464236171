/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion doctor`: what this machine offers and what flexion would use of it. Looks only at the process it
 * is run in: under mpirun each rank may see other processors, so start it the way the job is started. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "dynamo_rt/base/status.h"
#include "launch/commands.h"
#include "launch/doctor.h"
#include "launch/options.h"
#include "launch/report.h"

static void print_usage(FILE *stream) {
  fputs(
      "usage: flexion doctor [CONFIG [key=value...] [--ranks N]] [--json]\n"
      "\n"
      "Reports processors, memory, limits, the instruction set and GEMM library that flexion uses here "
      "with a\n"
      "quick measurement, and the versions of MPI, HDF5 and the CUDA driver. Warnings do not change the exit "
      "code.\n"
      "With a configuration, first of all how it lays out the ranks of a job: who shares layers (tp), "
      "sequences (cp),\n"
      "gradients (dp, dp_cp) and key heads (kv).\n"
      "\n"
      "  --ranks N  ranks of the job (default parallel.tensor x parallel.context)\n"
      "  --json     one JSON object on the last line\n"
      "  --help     this text\n",
      stream);
}

void fx_doctor_fact(fx_doctor *doctor, const char *key, json_t *value, const char *label, const char *format,
                    ...) {
  json_object_set_new(doctor->facts, key, value);
  if (!format) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  json_array_append_new(doctor->texts, json_pack("[ss]", label, text));
}

void fx_doctor_warn(fx_doctor *doctor, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  json_array_append_new(doctor->warnings, json_string(text));
}

static void print_text(const fx_doctor *doctor) {
  for (size_t i = 0; i < json_array_size(doctor->texts); i++) {
    const json_t *pair = json_array_get(doctor->texts, i);
    printf("%-12s %s\n", json_string_value(json_array_get(pair, 0)),
           json_string_value(json_array_get(pair, 1)));
  }
  for (size_t i = 0; i < json_array_size(doctor->warnings); i++)
    printf("warning: %s\n", json_string_value(json_array_get(doctor->warnings, i)));
}

static int print_json(const fx_doctor *doctor) {
  json_object_set(doctor->facts, "warnings", doctor->warnings);
  char *text = json_dumps(doctor->facts, JSON_COMPACT | JSON_REAL_PRECISION(6));
  if (!text) {
    fprintf(stderr, "flexion: %s: cannot print the report\n", fx_status_text(FX_ERR_MEMORY));
    return fx_status_exit_code(FX_ERR_MEMORY);
  }
  puts(text);
  free(text);
  return 0;
}

static void destroy(fx_doctor *doctor) {
  json_decref(doctor->facts);
  json_decref(doctor->texts);
  json_decref(doctor->warnings);
}

typedef struct arguments {
  int64_t ranks;
  bool json;
} arguments;

/* config may be NULL. */
static int report(const fx_config *config, const void *words) {
  const arguments *a = words;
  fx_doctor doctor = {json_object(), json_array(), json_array()};
  fx_doctor_fact(&doctor, "version", json_string(FX_VERSION), "flexion", "%s", FX_VERSION);
  fx_status status = config ? fx_doctor_layout(&doctor, config, (int)a->ranks) : FX_OK;
  if (status != FX_OK) {
    destroy(&doctor);
    return fx_report(status);
  }
  fx_doctor_machine(&doctor);
  fx_doctor_compute(&doctor);
  fx_doctor_libraries(&doctor);
  int code = 0;
  if (a->json)
    code = print_json(&doctor);
  else
    print_text(&doctor);
  destroy(&doctor);
  return fx_flush_output(code);
}

static fx_status read_option(int option, const char *word, void *words) {
  enum { MOST_RANKS = 4096 }; /* what it takes grows with their square */
  arguments *a = words;
  if (option == 'j') {
    a->json = true;
    return FX_OK;
  }
  if (option != 'n') return fx_option_unreadable("doctor", word);
  FX_TRY(fx_option_number("doctor", "ranks", 1, &a->ranks));
  if (a->ranks > MOST_RANKS)
    return fx_error(FX_ERR_USAGE, "--ranks takes a number up to %d, got \"%s\"; see flexion doctor --help",
                    MOST_RANKS, optarg);
  return FX_OK;
}

int fx_cmd_doctor(int argc, char **argv) {
  static const struct option rows[] = {{"json", no_argument, NULL, 'j'},
                                       {"ranks", required_argument, NULL, 'n'},
                                       {"help", no_argument, NULL, 'h'},
                                       {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  arguments a = {0};
  fx_config *config = NULL;
  int code = fx_options_read(&options, argc, argv, &a);
  if (code >= 0) return code;
  if (optind >= argc && a.ranks > 0)
    return fx_report(
        fx_error(FX_ERR_USAGE, "--ranks needs a configuration to lay out; see flexion doctor --help"));
  fx_status status = optind < argc ? fx_load_arguments(argc, argv, optind, "doctor", &config) : FX_OK;
  if (status != FX_OK) return fx_report(status);
  code = report(config, &a);
  fx_config_destroy(config);
  return code;
}
