/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/report.h"

#include <stdio.h>
#include <stdlib.h>

fx_status fx_load_arguments(int argc, char **argv, int at, const char *command, fx_config **out) {
  if (at >= argc)
    return fx_error(FX_ERR_USAGE, "%s expects a YAML file; see flexion %s --help", command, command);
  return fx_config_load(argv[at], (const char *const *)argv + at + 1, argc - at - 1, out);
}

int fx_report(fx_status status) {
  fprintf(stderr, "flexion: %s: %s\n", fx_status_text(status), fx_error_text());
  return fx_status_exit_code(status);
}

void fx_print_json(json_t *row) {
  char *text = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
  if (text) printf("%s\n", text);
  free(text);
  json_decref(row);
}

int fx_flush_output(int code) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  return fx_report(
      fx_error(FX_ERR_IO, "standard output cannot be written; check the disk or pipe behind it"));
}
