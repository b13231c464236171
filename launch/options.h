/* SPDX-License-Identifier: Apache-2.0 */
/* How subcommands read their options, and the sentences about those that cannot be read. */
#ifndef FX_LAUNCH_OPTIONS_H
#define FX_LAUNCH_OPTIONS_H

#include <getopt.h>
#include <stdio.h>

#include "core/config/config.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a command's options are. rows: with "help" as 'h', zeros last. read takes one of them: its row's `val`
 * with optarg, or '?' for what is none or lacks its value; `word` is the word of argv. */
typedef struct fx_options {
  const struct option *rows;
  fx_status (*read)(int option, const char *word, void *arguments);
  void (*print_usage)(FILE *stream);
} fx_options;

/* Reads the options of argv, whose first other word stands at optind afterwards. -1: go on; else the exit
 * code: help is printed, and what is behind --help or -h was not read, or an option's error is. */
int fx_options_read(const fx_options *options, int argc, char **argv, void *arguments);

/* The same for a command that takes one configuration with overrides, which `run` gets; returns the exit
 * code, as `run` does. name: the command's. */
int fx_options_run(const fx_options *options, const char *name, int argc, char **argv, void *arguments,
                   int (*run)(const fx_config *config, const void *arguments));

/* For `read`: the sentence about a word that is no option of the command, or (_unreadable) perhaps one that
 * lacks its value. */
fx_status fx_option_unknown(const char *command, const char *word);
fx_status fx_option_unreadable(const char *command, const char *word);

/* For `read`: *value from optarg, a whole number from `least`. */
fx_status fx_option_number(const char *command, const char *option, int64_t least, int64_t *value);

#ifdef __cplusplus
}
#endif
#endif
