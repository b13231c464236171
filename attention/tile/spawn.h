/* SPDX-License-Identifier: Apache-2.0 */
/* A child process without a shell: started, listened to, and ended in time. Private to attention/tile. */
#ifndef FX_ATTENTION_TILE_SPAWN_H
#define FX_ATTENTION_TILE_SPAWN_H

#include <stddef.h>

#include "dynamo_rt/base/status.h"

/* Runs the program at `path` with argv (argv[0] included, NULL-terminated), stdin closed; what it writes to
 * stdout and stderr is kept in text[size], cut where it is longer. *code is its exit code, 128 + the signal
 * that ended it, or -1 when nobody can know because the process ignores SIGCHLD. FX_ERR_IO: it cannot be
 * started, or ran longer than `limit` seconds and was killed with all that it had started. */
fx_status fx_spawn(const char *path, char *const argv[], double limit, char *text, size_t size, int *code);

/* The file that `name` means: itself when it holds a slash, else found in PATH. malloc'ed, NULL: no such
 * program. */
char *fx_spawn_find(const char *name);

#endif
