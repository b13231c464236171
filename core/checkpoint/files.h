/* SPDX-License-Identifier: Apache-2.0 */
/* The file system as checkpoints need it: durable writes, atomic replacement, and the directory of steps.
 * Private to core/checkpoint. */
#ifndef FX_CORE_CHECKPOINT_FILES_H
#define FX_CORE_CHECKPOINT_FILES_H

#include "core/checkpoint/checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_CKPT_NAME_BYTES = 48 };

/* Makes the directory and its parents. FX_ERR_IO. */
fx_status fx_files_make_dirs(const char *path);
/* Deletes a file or directory with all in it; one that is missing is fine. Leaves the error text alone. */
bool fx_files_remove_tree(const char *path);
/* Creates or truncates, writes and fsyncs. FX_ERR_IO. */
fx_status fx_files_write(const char *path, const void *data, size_t bytes);
/* The whole file with a final NUL; FX_ERR_CHECKPOINT. *data is malloc'ed. */
fx_status fx_files_read(const char *path, char **data, size_t *bytes);
fx_status fx_files_sync_dir(const char *path);
bool fx_files_exist(const char *path);

/* "step_00001000" */
void fx_steps_name(int64_t step, char name[FX_CKPT_NAME_BYTES]);
/* All step directories, complete or not, highest first; *steps is malloc'ed. A missing directory has none. */
fx_status fx_steps_list(const char *dir, int64_t **steps, int64_t *count);
/* The step that `latest` names, -1 when it says nothing of use. */
int64_t fx_steps_latest(const char *dir);
bool fx_steps_is_complete(const char *dir, int64_t step);
/* Renames step_N.tmp to step_N (an older step_N goes away), then points `latest` to it. FX_ERR_IO. */
fx_status fx_steps_publish(const char *dir, int64_t step);
/* Deletes the oldest complete steps so that `keep` of those up to `step` remain; failures are warnings. */
void fx_steps_prune(const char *dir, int64_t step, int keep, const fx_log *log);

#ifdef __cplusplus
}
#endif
#endif
