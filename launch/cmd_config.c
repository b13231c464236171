/* SPDX-License-Identifier: Apache-2.0 */
/* `flexion config`: shows or checks a configuration without starting anything. All judgement is
 * core/config's; this file only parses arguments and prints. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config.h"
#include "launch/commands.h"
#include "launch/options.h"
#include "launch/report.h"

static void print_usage(FILE *stream) {
  fputs("usage: flexion config show  CONFIG [section.key=value...]   print the resolved configuration\n"
        "       flexion config check CONFIG [section.key=value...]   say whether it is valid\n"
        "       flexion config show --keys                           list all keys\n"
        "\n"
        "  --keys   list all keys: meaning, type, range, [default]\n"
        "  --help   this text\n",
        stream);
}

static int show(const fx_config *cfg) {
  char *text = fx_config_print(cfg);
  if (!text) return fx_report(fx_error(FX_ERR_MEMORY, "out of host memory while printing the configuration"));
  fputs(text, stdout);
  free(text);
  return fx_flush_output(0);
}

static int show_or_check(int count, char **words) {
  fx_config *cfg = NULL;
  bool showing = count > 0 && strcmp(words[0], "show") == 0;
  if (!showing && (count < 1 || strcmp(words[0], "check") != 0))
    return fx_report(fx_error(FX_ERR_USAGE, "config expects show or check, got %s; see flexion config --help",
                              count > 0 ? words[0] : "nothing"));
  if (count < 2)
    return fx_report(
        fx_error(FX_ERR_USAGE, "config %s expects a YAML file; see flexion config --help", words[0]));
  fx_status status = fx_config_load(words[1], (const char *const *)(words + 2), count - 2, &cfg);
  if (status != FX_OK) return fx_report(status);
  int code = 0;
  for (int64_t i = 0; i < cfg->warnings.count; i++)
    fprintf(stderr, "flexion: warning: %s\n", cfg->warnings.items[i]);
  if (showing) {
    code = show(cfg);
  } else {
    printf("%s: valid\n", words[1]);
    code = fx_flush_output(0);
  }
  fx_config_destroy(cfg);
  return code;
}

static fx_status read_option(int option, const char *word, void *keys) {
  if (option != 'k') return fx_option_unknown("config", word);
  *(bool *)keys = true;
  return FX_OK;
}

int fx_cmd_config(int argc, char **argv) {
  static const struct option rows[] = {
      {"keys", no_argument, NULL, 'k'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  static const fx_options options = {rows, read_option, print_usage};
  bool keys = false;
  int code = fx_options_read(&options, argc, argv, &keys);
  if (code >= 0) return code;
  if (!keys) return show_or_check(argc - optind, argv + optind);
  fx_config_help(stdout);
  return fx_flush_output(0);
}
