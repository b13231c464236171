/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo_rt/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 2048 };

static _Thread_local char g_error_text[TEXT_BYTES];

static const struct {
  const char *name, *text;
  int exit_code;
} g_status_table[FX_STATUS_COUNT] = {
#define FX_STATUS_ROW(name, exit_code, text) {"FX_" #name, text, exit_code},
    FX_STATUS_LIST(FX_STATUS_ROW)
#undef FX_STATUS_ROW
};

int fx_status_exit_code(fx_status status) {
  return (unsigned)status < FX_STATUS_COUNT ? g_status_table[status].exit_code : 1;
}

const char *fx_status_name(fx_status status) {
  return (unsigned)status < FX_STATUS_COUNT ? g_status_table[status].name : "FX_ERR_UNKNOWN";
}

const char *fx_status_text(fx_status status) {
  return (unsigned)status < FX_STATUS_COUNT ? g_status_table[status].text : "unknown status";
}

/* A sentence is one line, and no input steers the terminal. */
static void no_controls(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7F) *text = '?';
}

fx_status fx_error(fx_status status, const char *format, ...) {
  char fresh[TEXT_BYTES]; /* the arguments may point into the old sentence */
  va_list args;
  va_start(args, format);
  vsnprintf(fresh, sizeof fresh, format, args);
  va_end(args);
  no_controls(fresh);
  memcpy(g_error_text, fresh, sizeof fresh);
  return status;
}

fx_status fx_error_prefix(fx_status status, const char *format, ...) {
  char prefix[512];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(prefix, sizeof prefix - 2, format, args);
  va_end(args);
  if (length < 0) return status;
  if (length > (int)sizeof prefix - 3) length = (int)sizeof prefix - 3;
  no_controls(prefix);
  memcpy(prefix + length, ": ", 2);
  length += 2;
  memmove(g_error_text + length, g_error_text, sizeof g_error_text - (size_t)length);
  memcpy(g_error_text, prefix, (size_t)length);
  g_error_text[sizeof g_error_text - 1] = '\0';
  return status;
}

fx_status fx_error_excerpt(fx_status status, const char *line, size_t length, size_t column) {
  enum { WIDTH = 100, BEFORE = 60 };
  size_t at = column == 0           ? 0
              : column - 1 < length ? column - 1
                                    : length,
         from = length > WIDTH && at > BEFORE ? at - BEFORE : 0;
  if (length - from > WIDTH) length = from + WIDTH;
  char shown[WIDTH + 1];
  memcpy(shown, line + from, length - from);
  shown[length - from] = '\0';
  no_controls(shown);
  size_t used = strlen(g_error_text);
  snprintf(g_error_text + used, sizeof g_error_text - used, "\n  %s\n  %*s^", shown, (int)(at - from), "");
  return status;
}

const char *fx_error_text(void) {
  return g_error_text;
}

void fx_error_clear(void) {
  g_error_text[0] = '\0';
}

void fx_assert_failed(const char *cond, const char *file, int line) {
  fprintf(stderr, "flexion: internal error: %s does not hold (%s:%d); please report this\n", cond, file,
          line);
  abort();
}
