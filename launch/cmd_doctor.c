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
      "usage: flexion doctor [--json]\n"
      "\n"
      "Reports processors, memory, limits, the instruction set and GEMM library that flexion uses here "
      "with a\n"
      "quick measurement, and the versions of MPI, HDF5 and the CUDA driver. Warnings do not change the exit "
      "code.\n"
      "\n"
      "  --json   one JSON object on the last line\n"
      "  --help   this text\n",
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

static int report(bool json) {
  fx_doctor doctor = {json_object(), json_array(), json_array()};
  fx_doctor_fact(&doctor, "version", json_string(FX_VERSION), "flexion", "%s", FX_VERSION);
  fx_doctor_machine(&doctor);
  fx_doctor_compute(&doctor);
  fx_doctor_libraries(&doctor);
  int code = 0;
  if (json)
    code = print_json(&doctor);
  else
    print_text(&doctor);
  json_decref(doctor.facts);
  json_decref(doctor.texts);
  json_decref(doctor.warnings);
  return fx_flush_output(code);
}

static fx_status read_option(int option, const char *word, void *json) {
  if (option != 'j') return fx_option_unknown("doctor", word);
  *(bool *)json = true;
  return FX_OK;
}

int fx_cmd_doctor(int argc, char **argv) {
  static const struct option rows[] = {
      {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  bool json = false;
  int code = fx_options_read(&options, argc, argv, &json);
  if (code >= 0) return code;
  if (optind < argc)
    return fx_report(fx_error(FX_ERR_USAGE, "doctor takes no argument, got \"%s\"; see flexion doctor --help",
                              argv[optind]));
  return report(json);
}
