/* SPDX-License-Identifier: Apache-2.0 */
/* The log of one rank: a level, a stream, a rank number. Passed by pointer; NULL is a silent log, so library
 * code never has to ask. One line a call, written with a single write so that ranks do not interleave. */
#ifndef FX_DYNAMO_RT_BASE_LOG_H
#define FX_DYNAMO_RT_BASE_LOG_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fx_log_level { FX_LOG_DEBUG, FX_LOG_INFO, FX_LOG_WARN, FX_LOG_ERROR } fx_log_level;

typedef struct fx_log {
  FILE *stream;       /* borrowed */
  fx_log_level level; /* lines below it are dropped */
  int rank, size;     /* rank is printed when size > 1 */
} fx_log;

void fx_log_line(const fx_log *log, fx_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define fx_debug(log, ...) fx_log_line(log, FX_LOG_DEBUG, __VA_ARGS__)
#define fx_info(log, ...) fx_log_line(log, FX_LOG_INFO, __VA_ARGS__)
#define fx_warn(log, ...) fx_log_line(log, FX_LOG_WARN, __VA_ARGS__)

#ifdef __cplusplus
}
#endif
#endif
