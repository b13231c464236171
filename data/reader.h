/* SPDX-License-Identifier: Apache-2.0 */
/* Readers: from one file to documents of text, pushed into a sink. Readers know formats and nothing about
 * tokens, so the sink may be a corpus in memory or a writer of an indexed dataset. */
#ifndef FX_DATA_READER_H
#define FX_DATA_READER_H

#include <stddef.h>
#include <stdint.h>

#include "data/paths.h"
#include "dynamo_rt/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fx_text_sink {
  /* A piece of the document being read; text [bytes] is borrowed for the call. */
  fx_status (*append)(void *ctx, const char *text, size_t bytes);
  /* The document is complete (perhaps without a byte). line: 1-based where it began, 0 for a whole file. */
  fx_status (*end_document)(void *ctx, const char *path, int64_t line);
  void *ctx;
} fx_text_sink;

/* Reads one file by its format, through a buffer of 1 MiB or its longest line. *bytes (set on success): its
 * size. FX_ERR_DATA, naming file and line or offset: unreadable, a NUL byte in the first 64 KiB, bad JSON, a
 * line without a string "text"; or what the sink reported. */
fx_status fx_reader_read(const fx_path *file, const fx_text_sink *sink, int64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
