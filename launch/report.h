/* SPDX-License-Identifier: Apache-2.0 */
/* How subcommands begin and end: the configuration, the sentence of a failure, and output that really
 * arrived. */
#ifndef FX_LAUNCH_REPORT_H
#define FX_LAUNCH_REPORT_H

#include <jansson.h>

#include "core/config/config.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The configuration argv[at] with the overrides behind it; to be destroyed. FX_ERR_USAGE where there is none;
 * `command`: its words, as "bench attention". */
fx_status fx_load_arguments(int argc, char **argv, int at, const char *command, fx_config **out);

/* Prints "flexion: KIND: SENTENCE" of the calling thread's error; returns the exit code of `status`. */
int fx_report(fx_status status);

/* One JSON object on a line of standard output; takes the row, which may be NULL. */
void fx_print_json(json_t *row);

/* `code` once standard output has taken everything, else the exit code of an I/O error that is reported. */
int fx_flush_output(int code);

#ifdef __cplusplus
}
#endif
#endif
