/* SPDX-License-Identifier: Apache-2.0 */
/* The options of commands that time the attention of a layer. */
#ifndef FX_LAUNCH_LAYER_OPTIONS_H
#define FX_LAUNCH_LAYER_OPTIONS_H

#include <stdio.h>

#include "core/bench/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_layer_arguments {
  const char *command;            /* its words, as "bench attention"; set by the caller, as is: */
  bool takes_memory, takes_trace; /* whether --memory and --trace are options */
  fx_bench_layer_options options;
  bool memory, json;
} fx_layer_arguments;

/* As fx_options_read; optind is where the configuration stands. Steps stay 0 where none are given. */
int fx_layer_arguments_read(int argc, char **argv, void (*print_usage)(FILE *stream),
                            fx_layer_arguments *arguments);

/* The lines about the options that all of these commands have, but for --steps, --json and --help. */
void fx_layer_arguments_explain(FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
