/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/options.h"

#include <stdlib.h>

#include "launch/report.h"

int fx_options_read(const fx_options *options, int argc, char **argv, void *arguments) {
  optind = 0; /* glibc: start over, main has parsed its own options */
  opterr = 0;
  for (int option; (option = getopt_long(argc, argv, "h", options->rows, NULL)) != -1;) {
    if (option == 'h') {
      options->print_usage(stdout);
      return fx_flush_output(0);
    }
    fx_status status = options->read(option, argv[optind - 1], arguments);
    if (status != FX_OK) return fx_report(status);
  }
  return -1;
}

int fx_options_run(const fx_options *options, const char *name, int argc, char **argv, void *arguments,
                   int (*run)(const fx_config *config, const void *arguments)) {
  fx_config *config = NULL;
  int code = fx_options_read(options, argc, argv, arguments);
  if (code >= 0) return code;
  fx_status status = fx_load_arguments(argc, argv, optind, name, &config);
  if (status != FX_OK) return fx_report(status);
  code = run(config, arguments);
  fx_config_destroy(config);
  return code;
}

fx_status fx_option_unknown(const char *command, const char *word) {
  return fx_error(FX_ERR_USAGE, "%s does not know the option %s; see flexion %s --help", command, word,
                  command);
}

fx_status fx_option_unreadable(const char *command, const char *word) {
  return fx_error(FX_ERR_USAGE,
                  "%s does not know the option %s, or it lacks its value; see flexion %s --help", command,
                  word, command);
}

fx_status fx_option_number(const char *command, const char *option, int64_t least, int64_t *value) {
  char *end;
  long long number = strtoll(optarg, &end, 10);
  if (end == optarg || *end || number < least)
    return fx_error(FX_ERR_USAGE, "--%s takes a number from %lld, got \"%s\"; see flexion %s --help", option,
                    (long long)least, optarg, command);
  *value = number;
  return FX_OK;
}
