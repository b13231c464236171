/* SPDX-License-Identifier: Apache-2.0 */
/* The directory of steps: names, the `latest` pointer, publishing, pruning, finding, and what `resume` means.
 */
#define _GNU_SOURCE /* renameat2 */
#include "core/checkpoint/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dynamo_rt/base/memory.h"

enum { WAIT_MS = 30 * 60 * 1000 }; /* for ranks that check their shares */

static fx_status no_memory(void) {
  return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
}

void fx_steps_name(int64_t step, char name[FX_CKPT_NAME_BYTES]) {
  snprintf(name, FX_CKPT_NAME_BYTES, "step_%08" PRId64, step);
}

/* The number in exactly such a name, -1 for any other. */
static int64_t step_of_name(const char *name) {
  char again[FX_CKPT_NAME_BYTES];
  if (strncmp(name, "step_", 5) != 0 || strlen(name) > 5 + 18) return -1;
  if (strspn(name + 5, "0123456789") != strlen(name + 5)) return -1;
  int64_t step = strtoll(name + 5, NULL, 10);
  fx_steps_name(step, again);
  return strcmp(name, again) == 0 ? step : -1;
}

/* dir/step_N<suffix>, malloc'ed */
static char *step_path(const char *dir, int64_t step, const char *suffix) {
  char name[FX_CKPT_NAME_BYTES];
  fx_steps_name(step, name);
  return fx_strfmt("%s/%s%s", dir, name, suffix);
}

static bool is_step(const char *path) {
  char *manifest = fx_strfmt("%s/manifest.json", path);
  bool held = manifest && fx_files_exist(manifest);
  free(manifest);
  return held;
}

bool fx_steps_is_complete(const char *dir, int64_t step) {
  char *path = step_path(dir, step, "");
  bool held = path && is_step(path);
  free(path);
  return held;
}

static int highest_first(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

fx_status fx_steps_list(const char *dir, int64_t **steps, int64_t *count) {
  int64_t *found = NULL, room = 0, n = 0;
  fx_status status = FX_OK;
  DIR *stream = opendir(dir);
  if (!stream && errno != ENOENT)
    return fx_error(FX_ERR_CHECKPOINT, "%s cannot be read: %s", dir, strerror(errno));
  for (struct dirent *entry; status == FX_OK && stream && (entry = readdir(stream));) {
    int64_t step = step_of_name(entry->d_name);
    if (step < 0) continue;
    status = fx_grow(&found, &room, n + 1, sizeof *found);
    if (status == FX_OK) found[n++] = step;
  }
  if (stream) closedir(stream);
  if (status != FX_OK) {
    free(found);
    return status;
  }
  if (n > 0) qsort(found, (size_t)n, sizeof *found, highest_first);
  *steps = found;
  *count = n;
  return FX_OK;
}

int64_t fx_steps_latest(const char *dir) {
  char name[FX_CKPT_NAME_BYTES] = "";
  char *path = fx_strfmt("%s/latest", dir);
  FILE *file = path ? fopen(path, "r") : NULL;
  if (file) {
    size_t got = fread(name, 1, sizeof name - 1, file);
    name[got] = '\0';
    name[strcspn(name, "\n")] = '\0';
    fclose(file);
  }
  free(path);
  return step_of_name(name);
}

/* ---- publishing ---- */

/* `latest` is written beside its place before the step is renamed, so that after it only renames are left and
 * a full disk cannot come between the two. */
static fx_status write_pointer(const char *path, int64_t step) {
  char name[FX_CKPT_NAME_BYTES], text[FX_CKPT_NAME_BYTES + 1];
  fx_steps_name(step, name);
  snprintf(text, sizeof text, "%s\n", name);
  return fx_files_write(path, text, strlen(text));
}

static fx_status rename_pointer(const char *from, const char *to) {
  if (rename(from, to) == 0) return FX_OK;
  return fx_error(FX_ERR_IO, "%s cannot be replaced: %s", to, strerror(errno));
}

/* An existing step of the same number changes places with the new one, at once where the file system can. */
static fx_status rename_step(const char *from, const char *to) {
  if (fx_files_exist(to)) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
      fx_files_remove_tree(from); /* now the old one; what stays of it is ignored as any .tmp */
      return FX_OK;
    }
    if (!fx_files_remove_tree(to)) return fx_error(FX_ERR_IO, "%s cannot be replaced", to);
  }
  if (rename(from, to) == 0) return FX_OK;
  return fx_error(FX_ERR_IO, "%s cannot be renamed to %s: %s", from, to, strerror(errno));
}

fx_status fx_steps_publish(const char *dir, int64_t step) {
  char *from = step_path(dir, step, ".tmp"), *to = step_path(dir, step, "");
  char *fresh = fx_strfmt("%s/latest.tmp", dir), *latest = fx_strfmt("%s/latest", dir);
  fx_status status = from && to && fresh && latest ? FX_OK : no_memory();
  if (status == FX_OK) status = write_pointer(fresh, step);
  if (status == FX_OK) status = fx_files_sync_dir(from);
  if (status == FX_OK) status = rename_step(from, to);
  if (status == FX_OK) status = rename_pointer(fresh, latest);
  if (status == FX_OK) status = fx_files_sync_dir(dir);
  if (status != FX_OK && fresh) fx_files_remove_tree(fresh);
  free(from);
  free(to);
  free(fresh);
  free(latest);
  return status;
}

/* First renamed, so that a crash half-way leaves no step that looks complete. */
static bool remove_step(const char *dir, int64_t step) {
  char *from = step_path(dir, step, ""), *to = step_path(dir, step, ".tmp");
  bool gone = from && to && fx_files_remove_tree(to) && rename(from, to) == 0 && fx_files_remove_tree(to);
  free(from);
  free(to);
  return gone;
}

void fx_steps_prune(const char *dir, int64_t step, int keep, const fx_log *log) {
  int64_t *steps = NULL, count = 0, kept = 0;
  if (keep <= 0 || fx_steps_list(dir, &steps, &count) != FX_OK) return;
  for (int64_t i = 0; i < count; i++) {
    if (steps[i] > step || !fx_steps_is_complete(dir, steps[i])) continue;
    if (kept++ < keep) continue;
    if (!remove_step(dir, steps[i]))
      fx_warn(log, "%s/step_%08" PRId64 " is older than the %d to keep and cannot be deleted", dir, steps[i],
              keep);
  }
  free(steps);
}

/* The number in exactly step_N.tmp, -1 for any other. */
static int64_t step_of_unfinished(const char *name) {
  char stem[FX_CKPT_NAME_BYTES];
  size_t length = strlen(name);
  if (length < 4 || length - 4 >= sizeof stem || strcmp(name + length - 4, ".tmp") != 0) return -1;
  snprintf(stem, sizeof stem, "%.*s", (int)length - 4, name);
  return step_of_name(stem);
}

void fx_ckpt_sweep(const char *dir, const fx_log *log) {
  int64_t latest = fx_steps_latest(dir), *steps = NULL, room = 0, n = 0;
  DIR *stream = latest >= 0 && fx_steps_is_complete(dir, latest) ? opendir(dir) : NULL;
  for (struct dirent *entry; stream && (entry = readdir(stream));) {
    int64_t step = step_of_unfinished(entry->d_name);
    if (step < 0 || step > latest) continue;
    if (fx_grow(&steps, &room, n + 1, sizeof *steps) != FX_OK) break; /* the next run sweeps the rest */
    steps[n++] = step;
  }
  if (stream) closedir(stream);
  for (int64_t i = 0; i < n; i++) {
    char *path = step_path(dir, steps[i], ".tmp");
    struct stat info;
    if (path && lstat(path, &info) == 0 && S_ISDIR(info.st_mode) && !fx_files_remove_tree(path))
      fx_warn(log, "%s is left from an earlier run and cannot be deleted", path);
    free(path);
  }
  free(steps);
}

/* ---- finding ---- */

fx_status fx_ckpt_find(const char *dir_or_step, char **out) {
  int64_t *steps = NULL, count = 0, best = -1;
  char *path = NULL;
  if (is_step(dir_or_step)) {
    path = fx_strdup(dir_or_step);
  } else {
    FX_TRY(fx_steps_list(dir_or_step, &steps, &count));
    int64_t latest = fx_steps_latest(dir_or_step);
    if (latest >= 0 && fx_steps_is_complete(dir_or_step, latest)) best = latest;
    for (int64_t i = 0; i < count && best < 0; i++)
      if (fx_steps_is_complete(dir_or_step, steps[i])) best = steps[i];
    free(steps);
    if (best < 0) {
      *out = NULL;
      return FX_OK;
    }
    path = step_path(dir_or_step, best, "");
  }
  if (!path) return no_memory();
  *out = path;
  return FX_OK;
}

/* ---- resuming ---- */

static void reject(const char *path, const fx_log *log) {
  char *to = fx_strfmt("%s.bad", path);
  fx_warn(log, "%s; trying the step before, and renaming this one to %s", fx_error_text(), to ? to : ".bad");
  if (to && fx_files_exist(to)) fx_files_remove_tree(to);
  if (!to || rename(path, to) != 0) fx_warn(log, "that renaming failed: %s", strerror(errno));
  free(to);
}

/* Whether an earlier resume has put steps aside: then a fresh start would bury them. */
static bool has_rejected(const char *dir) {
  bool found = false;
  DIR *stream = opendir(dir);
  for (struct dirent *entry; stream && !found && (entry = readdir(stream));) {
    char name[FX_CKPT_NAME_BYTES];
    size_t length = strlen(entry->d_name);
    if (length < 4 || length >= sizeof name || strcmp(entry->d_name + length - 4, ".bad") != 0) continue;
    snprintf(name, sizeof name, "%.*s", (int)length - 4, entry->d_name);
    found = step_of_name(name) >= 0;
  }
  if (stream) closedir(stream);
  return found;
}

/* Adds a path and its NUL. */
static fx_status add_path(char **paths, int64_t *room, int64_t *bytes, const char *path) {
  int64_t length = (int64_t)strlen(path) + 1;
  FX_TRY(fx_grow(paths, room, *bytes + length, 1));
  memcpy(*paths + *bytes, path, (size_t)length);
  *bytes += length;
  return FX_OK;
}

/* From the step that `latest` names downwards; newer ones, which it disowns, come last. */
static fx_status all_steps(const char *dir, char **paths, int64_t *bytes) {
  int64_t *steps = NULL, count = 0, first = 0, room = 0;
  fx_status status = FX_OK;
  FX_TRY(fx_steps_list(dir, &steps, &count));
  int64_t latest = fx_steps_latest(dir);
  for (int64_t i = 0; i < count; i++)
    if (steps[i] == latest && fx_steps_is_complete(dir, latest)) first = i;
  for (int64_t i = 0; i < count && status == FX_OK; i++) {
    char *path = step_path(dir, steps[(first + i) % count], "");
    status = path ? add_path(paths, &room, bytes, path) : no_memory();
    free(path);
  }
  free(steps);
  return status;
}

static fx_status one_step(const char *mode, char **paths, int64_t *bytes) {
  int64_t room = 0;
  char *path = NULL;
  FX_TRY(fx_ckpt_find(mode, &path));
  if (!path)
    return fx_error(FX_ERR_CHECKPOINT,
                    "checkpoint.resume: there is no complete step at %s; expected a step_N directory, or one "
                    "that holds some",
                    mode);
  fx_status status = add_path(paths, &room, bytes, path);
  free(path);
  return status;
}

static fx_status agree(fx_control *control, fx_status mine) {
  return control ? fx_control_agree_status(control, mine, WAIT_MS) : mine;
}

/* Rank 0's paths take the place of everybody's. */
static fx_status share_paths(fx_control *control, char **paths, int64_t *bytes) {
  int64_t *offsets = NULL;
  char *all = NULL;
  if (!control) return FX_OK;
  FX_TRY(agree(control, fx_calloc(&offsets, (size_t)control->size + 1, sizeof *offsets)));
  fx_status status = fx_control_all_gather(control, *paths, *bytes, &all, offsets, WAIT_MS);
  if (status == FX_OK) {
    free(*paths);
    *paths = all;
    *bytes = offsets[control->size];
  }
  free(offsets);
  return status;
}

static fx_status open_checked(fx_control *control, const char *path, fx_ckpt **out) {
  fx_ckpt *ckpt = NULL;
  fx_status status = fx_ckpt_open(path, &ckpt);
  if (status == FX_OK)
    status = fx_ckpt_check_share(ckpt, control ? control->rank : 0, control ? control->size : 1);
  status = agree(control, status);
  if (status != FX_OK) {
    fx_ckpt_close(ckpt);
    return status;
  }
  *out = ckpt;
  return FX_OK;
}

/* The first good one of the paths. bad_aside: rank 0 renames those before it. */
static fx_status first_good(fx_control *control, const char *paths, int64_t bytes, bool bad_aside,
                            const fx_log *log, fx_ckpt **out) {
  for (const char *path = paths; path < paths + bytes; path += strlen(path) + 1) {
    fx_status status = open_checked(control, path, out);
    if (!bad_aside || status != FX_ERR_CHECKPOINT) /* found, or a failure that says nothing about the step */
      return status;
    if (!control || control->rank == 0) reject(path, log);
  }
  return FX_OK;
}

static fx_status none_good(const char *dir, bool some) {
  if (has_rejected(dir))
    return fx_error(
        FX_ERR_CHECKPOINT,
        "%s: none of its steps is good (they are kept as step_N.bad); set checkpoint.resume: none, "
        "or delete them, to start afresh",
        dir);
  if (some)
    return fx_error(FX_ERR_CHECKPOINT, "%s: none of its steps is good, and they cannot be put aside", dir);
  return FX_OK;
}

fx_status fx_ckpt_resume(fx_control *control, const char *dir, const char *mode, const fx_log *log,
                         fx_ckpt **out) {
  const bool first = !control || control->rank == 0, automatic = strcmp(mode, "auto") == 0;
  fx_ckpt *good = NULL;
  char *paths = NULL;
  int64_t bytes = 0;
  fx_status status = FX_OK;
  if (strcmp(mode, "none") == 0) {
    *out = NULL;
    return FX_OK;
  }
  if (first) status = automatic ? all_steps(dir, &paths, &bytes) : one_step(mode, &paths, &bytes);
  FX_TRY_GOTO(agree(control, status), free_paths);
  FX_TRY_GOTO(share_paths(control, &paths, &bytes), free_paths);
  FX_TRY_GOTO(first_good(control, paths, bytes, automatic, log, &good), free_paths);
  if (!good) FX_TRY_GOTO(agree(control, first ? none_good(dir, bytes > 0) : FX_OK), free_paths);
  *out = good;
free_paths:
  free(paths);
  return status;
}
