/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/log.h"

#include <stdarg.h>

void fx_log_line(const fx_log *log, fx_log_level level, const char *format, ...) {
  static const char *const names[] = {"debug: ", "", "warning: ", "error: "};
  if (!log || level < log->level) return;
  char line[2200];
  int used = log->size > 1 ? snprintf(line, sizeof line, "[%d] %s", log->rank, names[level])
                           : snprintf(line, sizeof line, "%s", names[level]);
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
  va_end(args);
  used += n < (int)sizeof line - used - 2 ? n : (int)sizeof line - used - 2;
  line[used] = '\n';
  fwrite(line, 1, (size_t)used + 1, log->stream);
  fflush(log->stream);
}
