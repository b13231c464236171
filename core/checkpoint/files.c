/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* nftw */
#include "core/checkpoint/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dynamo_rt/base/memory.h"

enum { OPEN_DIRS = 8 };

static fx_status failed(const char *path, const char *what) {
  return fx_error(FX_ERR_IO, "%s cannot be %s: %s", path, what, strerror(errno));
}

fx_status fx_files_make_dirs(const char *path) {
  char *copy = fx_strdup(path);
  struct stat info;
  if (!copy) return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  for (char *slash = copy + 1; *copy && (slash = strchr(slash, '/')); slash++) {
    *slash = '\0';
    mkdir(copy, 0777); /* the last mkdir reports */
    *slash = '/';
  }
  free(copy);
  if (mkdir(path, 0777) == 0) return FX_OK;
  if (errno == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return FX_OK;
  return failed(path, "made a directory");
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk) {
  (void)info;
  (void)kind;
  (void)walk;
  return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

bool fx_files_remove_tree(const char *path) {
  if (nftw(path, remove_entry, OPEN_DIRS, FTW_DEPTH | FTW_PHYS) == 0) return true;
  return !fx_files_exist(path);
}

bool fx_files_exist(const char *path) {
  struct stat info;
  return lstat(path, &info) == 0;
}

fx_status fx_files_write(const char *path, const void *data, size_t bytes) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return failed(path, "created");
  const char *at = data;
  fx_status status = FX_OK;
  while (bytes > 0 && status == FX_OK) {
    ssize_t written = write(fd, at, bytes);
    if (written > 0) {
      at += written;
      bytes -= (size_t)written;
    } else if (written == 0 || errno != EINTR) {
      status = failed(path, "written");
    }
  }
  if (status == FX_OK && fsync(fd) != 0) status = failed(path, "written");
  if (close(fd) != 0 && status == FX_OK) status = failed(path, "written");
  return status;
}

static fx_status read_failed(const char *path) {
  return fx_error(FX_ERR_CHECKPOINT, "%s cannot be read: %s", path, strerror(errno));
}

fx_status fx_files_read(const char *path, char **data, size_t *bytes) {
  struct stat info;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return read_failed(path);
  fx_status status = FX_OK;
  char *text = NULL;
  size_t have = 0, size = 0;
  if (fstat(fd, &info) != 0)
    status = read_failed(path);
  else if (!S_ISREG(info.st_mode))
    status = fx_error(FX_ERR_CHECKPOINT, "%s is not a file", path);
  else
    size = (size_t)info.st_size;
  if (status == FX_OK) status = fx_calloc(&text, size + 1, 1);
  while (status == FX_OK && have < size) {
    ssize_t got = read(fd, text + have, size - have);
    if (got > 0)
      have += (size_t)got;
    else if (got == 0)
      size = have;
    else if (errno != EINTR)
      status = read_failed(path);
  }
  close(fd);
  if (status != FX_OK) {
    free(text);
    return status;
  }
  *data = text;
  *bytes = size;
  return FX_OK;
}

fx_status fx_files_sync_dir(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed(path, "opened");
  /* some file systems have no fsync for directories, and say so */
  fx_status status = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP ? FX_OK : failed(path, "written");
  close(fd);
  return status;
}
