/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memfd_create, mkostemp */
#include "dynamo_rt/base/cache.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "dynamo_rt/base/hash.h"
#include "dynamo_rt/base/memory.h"

enum { MAX_BYTES = 64 << 20, MARK_BYTES = 8 };
static const char g_mark[MARK_BYTES + 1] = "fxtile01";

typedef struct trailer {
  char mark[MARK_BYTES];
  fx_hash128 hash; /* of the bytes before the trailer */
} trailer;

/* ---- the directory ---- */

/* Makes the directory and the one above it, for $HOME/.cache. */
static void make_directory(const char *path) {
  if (mkdir(path, 0700) == 0 || errno != ENOENT) return;
  char *above = fx_strdup(path);
  char *slash = above ? strrchr(above, '/') : NULL;
  if (slash && slash != above) {
    *slash = '\0';
    if (mkdir(above, 0700) == 0) mkdir(path, 0700);
  }
  free(above);
}

static char *default_directory(void) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && cache[0] == '/') return fx_strfmt("%s/flexion", cache);
  return home && home[0] == '/' ? fx_strfmt("%s/.cache/flexion", home) : NULL;
}

fx_status fx_cache_open(const char *directory, int *fd) {
  char *path = directory ? fx_strdup(directory) : default_directory();
  *fd = -1;
  if (!path) return FX_OK;
  make_directory(path);
  int opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat about;
  fx_status status = FX_OK;
  if (opened < 0 || fstat(opened, &about) != 0) {
    /* none to be had */
  } else if (about.st_uid != geteuid() || (about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    status = fx_error(FX_ERR_CONFIG,
                      "the kernel cache %s is %s; whoever writes there could make this process run anything: "
                      "chmod 700 it or choose another directory",
                      path, about.st_uid != geteuid() ? "not yours" : "writable by others");
  } else if (faccessat(opened, ".", W_OK | X_OK, AT_EACCESS) == 0) {
    *fd = opened;
    opened = -1;
  }
  if (opened >= 0) close(opened);
  free(path);
  return status;
}

/* ---- files ---- */

static bool read_all(int fd, void *data, size_t size) {
  for (size_t at = 0; at < size;) {
    ssize_t got = read(fd, (char *)data + at, size - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += (size_t)got;
  }
  return true;
}

static bool write_all(int fd, const void *data, size_t size) {
  for (size_t at = 0; at < size;) {
    ssize_t put = write(fd, (const char *)data + at, size - at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += (size_t)put;
  }
  return true;
}

/* The bytes of an open file; data NULL when they cannot be had. */
static fx_cache_image contents(int fd, off_t size) {
  fx_cache_image image = {NULL, 0};
  if (size <= 0 || size > MAX_BYTES) return image;
  image.size = (size_t)size;
  image.data = malloc(image.size);
  if (image.data && read_all(fd, image.data, image.size)) return image;
  free(image.data);
  return (fx_cache_image){NULL, 0};
}

bool fx_cache_get(int fd, const char *key, const char *suffix, fx_cache_image *image) {
  char name[64];
  snprintf(name, sizeof name, "%.40s.%.10s", key, suffix);
  int file = openat(fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return false;
  struct stat about;
  bool trusted = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
                 (about.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  fx_cache_image whole = trusted ? contents(file, about.st_size) : (fx_cache_image){NULL, 0};
  close(file);
  trailer end;
  bool good = whole.data && whole.size > sizeof end;
  if (good) {
    whole.size -= sizeof end;
    memcpy(&end, whole.data + whole.size, sizeof end);
    fx_hash128 hash = fx_hash128_of(whole.data, whole.size);
    good =
        memcmp(end.mark, g_mark, MARK_BYTES) == 0 && hash.low == end.hash.low && hash.high == end.hash.high;
  }
  if (good)
    *image = whole;
  else
    free(whole.data);
  return good;
}

/* A name that no other process or thread uses at the same time. */
static void unique_name(char name[96], const char *key) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  snprintf(name, 96, ".%.40s.%ld.%ld.%p", key, (long)getpid(), t.tv_nsec, (void *)name);
}

void fx_cache_put(int fd, const char *key, const char *suffix, const fx_cache_image *image) {
  char name[64], unique[96];
  snprintf(name, sizeof name, "%.40s.%.10s", key, suffix);
  unique_name(unique, key);
  int file = openat(fd, unique, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return;
  trailer end = {.hash = fx_hash128_of(image->data, image->size)};
  memcpy(end.mark, g_mark, MARK_BYTES);
  bool good =
      write_all(file, image->data, image->size) && write_all(file, &end, sizeof end) && fsync(file) == 0;
  good = close(file) == 0 && good;
  if (good && renameat(fd, unique, fd, name) == 0) return;
  unlinkat(fd, unique, 0);
}

fx_status fx_cache_read(const char *path, fx_cache_image *image) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about;
  fx_cache_image whole = {NULL, 0};
  if (file >= 0 && fstat(file, &about) == 0) whole = contents(file, about.st_size);
  if (file >= 0) close(file);
  if (!whole.data) return fx_error(FX_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
  *image = whole;
  return FX_OK;
}

/* ---- into the process ---- */

/* Where anonymous memory may not be executed: a file that has no name once it is loaded. */
static void *load_from_file(const fx_cache_image *image) {
  char path[] = "/tmp/flexion-XXXXXX";
  int file = mkostemp(path, O_CLOEXEC);
  if (file < 0) return NULL;
  bool good = write_all(file, image->data, image->size);
  good = close(file) == 0 && good;
  void *library = good ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  unlink(path);
  return library;
}

fx_status fx_cache_load(const fx_cache_image *image, int *fd, void **library) {
  int memory = memfd_create("flexion-tile", MFD_CLOEXEC);
  void *opened = NULL;
  if (memory >= 0 && write_all(memory, image->data, image->size)) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  if (!opened && memory >= 0) {
    close(memory);
    memory = -1;
  }
  if (!opened) opened = load_from_file(image);
  if (!opened) return fx_error(FX_ERR_IO, "a compiled kernel cannot be loaded: %s", dlerror());
  *fd = memory;
  *library = opened;
  return FX_OK;
}
