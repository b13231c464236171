/* SPDX-License-Identifier: Apache-2.0 */
/* From path patterns to a list of files in an order that is the same on every rank.
 *
 * A pattern is a file, a glob (glob(3): `*`, `?`, `[...]`; no `**`) or a directory, which is walked
 * recursively. Patterns keep the order they were given in; what one pattern matched is sorted by path, byte
 * by byte (never by locale). Hidden files and directories (a leading dot) are skipped unless they are named.
 * Symbolic links are followed, a link back to a directory that is being walked is not. A file that is matched
 * twice (by path, link or hard link) is listed once, at its first place, so that no text counts double. */
#ifndef FX_DATA_PATHS_H
#define FX_DATA_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(enum name, name in configs and as the prefix of a pattern) */
#define FX_TEXT_FORMAT_LIST(X)                             \
  X(AUTO, "auto")   /* by the ending: .jsonl, else file */ \
  X(FILE, "file")   /* one file = one document */          \
  X(LINES, "lines") /* one line = one document */          \
  X(JSONL, "jsonl") /* one JSON object a line, key "text" */

typedef enum fx_text_format {
#define FX_TEXT_FORMAT_ENUM(name, text) FX_TEXT_##name,
  FX_TEXT_FORMAT_LIST(FX_TEXT_FORMAT_ENUM)
#undef FX_TEXT_FORMAT_ENUM
      FX_TEXT_FORMAT_COUNT
} fx_text_format;

const char *fx_text_format_name(fx_text_format format);
/* FX_TEXT_FORMAT_COUNT when no format has that name. */
fx_text_format fx_text_format_from_name(const char *name);

typedef struct fx_path {
  char *path;            /* owned by the list */
  fx_text_format format; /* never AUTO */
  bool named;            /* written out by the user, not found by a glob or a walk */
  int64_t bytes;         /* size when it was listed */
  uint64_t device, inode, index;
} fx_path;

typedef struct fx_path_list {
  fx_path *items; /* [count] */
  int64_t count, capacity;
  int64_t bytes;      /* sum of items[].bytes */
  int64_t duplicates; /* matches left out because the file was listed already */
} fx_path_list;

/* patterns [count]: borrowed; each may carry a prefix `file:`, `lines:`, `jsonl:` or `auto:` that overrides
 * `format`. *out is overwritten and owned by the caller (fini).
 * FX_ERR_CONFIG: no pattern at all, or an empty one. FX_ERR_DATA: a missing path, a glob without a match, a
 * directory without files, something that is no regular file, or one that may not be looked at; *out is then
 * empty. */
fx_status fx_paths_expand(const char *const *patterns, int count, fx_text_format format, fx_path_list *out);
void fx_paths_fini(fx_path_list *list);

#ifdef __cplusplus
}
#endif
#endif
