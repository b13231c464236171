/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the error record.
 *
 * Every fallible function returns fx_status. The first function that detects a failure calls fx_error() once,
 * with one sentence (what, where, what was expected, what to do); everybody above only passes the code on.
 * The sentence is kept per thread (as errno is), so in-process ranks never mix theirs; a thread that hands
 * its failure to another one copies the text along (fx_error_text / fx_error_set). */
#ifndef FX_DYNAMO_RT_BASE_STATUS_H
#define FX_DYNAMO_RT_BASE_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, process exit code, what kind of failure it is) */
#define FX_STATUS_LIST(X)                  \
  X(OK, 0, "success")                      \
  X(ERR_USAGE, 2, "usage error")           \
  X(ERR_CONFIG, 2, "configuration error")  \
  X(ERR_UNSUPPORTED, 2, "not supported")   \
  X(ERR_DATA, 3, "data error")             \
  X(ERR_CHECKPOINT, 3, "checkpoint error") \
  X(ERR_IO, 3, "input/output error")       \
  X(ERR_DEVICE, 4, "device error")         \
  X(ERR_COMM, 4, "communicator error")     \
  X(ERR_MEMORY, 4, "out of memory")        \
  X(ERR_DIVERGED, 5, "diverged")           \
  X(ERR_SHAPE, 1, "shape error")           \
  X(ERR_GRAPH, 1, "graph error")           \
  X(ERR_INTERNAL, 1, "internal error")

typedef enum fx_status {
#define FX_STATUS_ENUM(name, exit_code, text) FX_##name,
  FX_STATUS_LIST(FX_STATUS_ENUM)
#undef FX_STATUS_ENUM
      FX_STATUS_COUNT
} fx_status;

/* Process exit code of a status (0 ok, 2 usage or config, 3 data or checkpoint, 4 device or communicator,
 * 5 diverged, 1 a defect of flexion itself). */
int fx_status_exit_code(fx_status status);
const char *fx_status_name(fx_status status); /* "FX_ERR_CONFIG" */
const char *fx_status_text(fx_status status); /* "configuration error" */

/* Records the calling thread's error sentence and returns `status`, so that `return fx_error(...)` reads
 * well. At most 2047 bytes are kept; control characters, which quoted input may bring, become '?'. */
fx_status fx_error(fx_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts "prefix: " before the recorded sentence; used to add where it happened on the way up. Returns
 * `status`. */
fx_status fx_error_prefix(fx_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends an excerpt of the user's text: on lines of their own the `length` bytes of a line (cut around the
 * column where it is long) and a caret under `column` (bytes, from 1). Returns `status`. */
fx_status fx_error_excerpt(fx_status status, const char *line, size_t length, size_t column);
/* The calling thread's last sentence ("" when none); valid until the next fx_error on this thread. */
const char *fx_error_text(void);
void fx_error_clear(void);

#define FX_TRY(expr)                                    \
  do {                                                  \
    fx_status fx_try_status_ = (expr);                  \
    if (fx_try_status_ != FX_OK) return fx_try_status_; \
  } while (0)

/* Needs a local `fx_status status`; jumps to `label`, whose name says what it undoes. */
#define FX_TRY_GOTO(expr, label)     \
  do {                               \
    status = (expr);                 \
    if (status != FX_OK) goto label; \
  } while (0)

/* States an invariant of flexion's own code; never used on user input. Aborts with file and line. */
#define FX_ASSERT(cond) ((cond) ? (void)0 : fx_assert_failed(#cond, __FILE__, __LINE__))
void fx_assert_failed(const char *cond, const char *file, int line) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
