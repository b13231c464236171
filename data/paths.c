/* SPDX-License-Identifier: Apache-2.0 */
#include "data/paths.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dynamo_rt/base/memory.h"

/* Directories on the way down to the one being walked: a link back to one of them ends there. */
typedef struct walk {
  const struct walk *parent;
  dev_t device;
  ino_t inode;
} walk;

static const char *const format_names[] = {
#define FORMAT_NAME(name, text) text,
    FX_TEXT_FORMAT_LIST(FORMAT_NAME)
#undef FORMAT_NAME
};

const char *fx_text_format_name(fx_text_format format) {
  return format_names[format];
}

fx_text_format fx_text_format_from_name(const char *name) {
  int i = 0;
  while (i < FX_TEXT_FORMAT_COUNT && strcmp(format_names[i], name) != 0) i++;
  return (fx_text_format)i;
}

static fx_text_format resolve_format(fx_text_format format, const char *path) {
  size_t length = strlen(path);
  if (format != FX_TEXT_AUTO) return format;
  return length >= 6 && strcmp(path + length - 6, ".jsonl") == 0 ? FX_TEXT_JSONL : FX_TEXT_FILE;
}

/* Takes `path`, on failure too. */
static fx_status add_file(fx_path_list *list, char *path, const struct stat *info, fx_text_format format,
                          bool named) {
  fx_status status = fx_grow(&list->items, &list->capacity, list->count + 1, sizeof *list->items);
  if (status != FX_OK) {
    free(path);
    return status;
  }
  list->items[list->count++] = (fx_path){.path = path,
                                         .format = resolve_format(format, path),
                                         .named = named,
                                         .bytes = (int64_t)info->st_size,
                                         .device = (uint64_t)info->st_dev,
                                         .inode = (uint64_t)info->st_ino};
  return FX_OK;
}

static fx_status cannot_look(const char *path) {
  return fx_error(FX_ERR_DATA, "cannot read %s (%s); check the path and its permissions", path,
                  strerror(errno));
}

static fx_status out_of_memory(void) {
  return fx_error(FX_ERR_MEMORY, "out of host memory while listing the corpus");
}

static fx_status walk_directory(fx_path_list *list, const char *path, const struct stat *info,
                                fx_text_format format, const walk *parent);

/* Takes `path`. Sockets and the like are passed over: nobody named them. */
static fx_status walk_entry(fx_path_list *list, char *path, fx_text_format format, const walk *here) {
  struct stat info;
  fx_status status = FX_OK;
  if (stat(path, &info) != 0)
    status = cannot_look(path);
  else if (S_ISREG(info.st_mode))
    return add_file(list, path, &info, format, false);
  else if (S_ISDIR(info.st_mode))
    status = walk_directory(list, path, &info, format, here);
  free(path);
  return status;
}

static fx_status walk_directory(fx_path_list *list, const char *path, const struct stat *info,
                                fx_text_format format, const walk *parent) {
  walk here = {parent, info->st_dev, info->st_ino};
  for (const walk *up = parent; up; up = up->parent)
    if (up->device == here.device && up->inode == here.inode) return FX_OK;
  DIR *directory = opendir(path);
  if (!directory) return cannot_look(path);
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') length--;
  fx_status status = FX_OK;
  for (;;) {
    errno = 0;
    struct dirent *entry = readdir(directory);
    if (!entry) {
      if (errno) status = cannot_look(path);
      break;
    }
    if (entry->d_name[0] == '.') continue;
    char *child = fx_strfmt("%.*s/%s", (int)length, path, entry->d_name);
    status = child ? walk_entry(list, child, format, &here) : out_of_memory();
    if (status != FX_OK) break;
  }
  closedir(directory);
  return status;
}

/* One path that exists: a file or a directory. */
static fx_status add_path(fx_path_list *list, const char *path, const struct stat *info,
                          fx_text_format format, bool named) {
  if (S_ISDIR(info->st_mode)) {
    int64_t before = list->count;
    FX_TRY(walk_directory(list, path, info, format, NULL));
    if (list->count == before && named)
      return fx_error(FX_ERR_DATA,
                      "directory %s holds no files (hidden ones are skipped); name a directory with text "
                      "files, or the files themselves",
                      path);
    return FX_OK;
  }
  if (!S_ISREG(info->st_mode))
    return fx_error(FX_ERR_DATA, "%s is no regular file or directory; expected a text file", path);
  char *copy = fx_strdup(path);
  return copy ? add_file(list, copy, info, format, named) : out_of_memory();
}

static fx_status add_glob(fx_path_list *list, const char *pattern, fx_text_format format) {
  glob_t found;
  int code = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
  if (code == GLOB_NOSPACE) return out_of_memory();
  if (code == GLOB_ABORTED) return cannot_look(pattern);
  if (code != 0)
    return fx_error(FX_ERR_DATA, "no file matches %s; check the pattern and the directory it is relative to",
                    pattern);
  fx_status status = FX_OK;
  int64_t before = list->count;
  for (size_t i = 0; i < found.gl_pathc && status == FX_OK; i++) {
    struct stat info;
    if (stat(found.gl_pathv[i], &info) != 0)
      status = cannot_look(found.gl_pathv[i]);
    else
      status = add_path(list, found.gl_pathv[i], &info, format, false);
  }
  globfree(&found);
  if (status == FX_OK && list->count == before)
    status = fx_error(FX_ERR_DATA, "%s matches directories without files; name a pattern that matches files",
                      pattern);
  return status;
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const fx_path *)a)->path, ((const fx_path *)b)->path);
}

static fx_status add_pattern(fx_path_list *list, const char *pattern, fx_text_format format) {
  for (int i = 0; i < FX_TEXT_FORMAT_COUNT; i++) {
    size_t length = strlen(format_names[i]);
    if (strncmp(pattern, format_names[i], length) == 0 && pattern[length] == ':') {
      format = (fx_text_format)i;
      pattern += length + 1;
      break;
    }
  }
  if (!*pattern)
    return fx_error(FX_ERR_CONFIG, "a path of the corpus is empty; expected a file, a glob or a directory");
  int64_t before = list->count;
  struct stat info;
  if (stat(pattern, &info) == 0)
    FX_TRY(add_path(list, pattern, &info, format, true));
  else if (errno != ENOENT && errno != ENOTDIR)
    return cannot_look(pattern);
  else if (strpbrk(pattern, "*?["))
    FX_TRY(add_glob(list, pattern, format));
  else
    return fx_error(FX_ERR_DATA, "%s does not exist; check the path and the directory it is relative to",
                    pattern);
  if (list->count > before)
    qsort(list->items + before, (size_t)(list->count - before), sizeof *list->items, by_path);
  return FX_OK;
}

static int by_index(const void *a, const void *b) {
  uint64_t x = ((const fx_path *)a)->index, y = ((const fx_path *)b)->index;
  return (x > y) - (x < y);
}

static int by_file(const void *a, const void *b) {
  const fx_path *x = a, *y = b;
  if (x->device != y->device) return x->device > y->device ? 1 : -1;
  if (x->inode != y->inode) return x->inode > y->inode ? 1 : -1;
  return by_index(a, b);
}

static void drop_duplicates(fx_path_list *list) {
  if (!list->items) return;
  for (int64_t i = 0; i < list->count; i++) list->items[i].index = (uint64_t)i;
  qsort(list->items, (size_t)list->count, sizeof *list->items, by_file);
  int64_t kept = 0;
  for (int64_t i = 0; i < list->count; i++) {
    const fx_path *last = kept ? &list->items[kept - 1] : NULL;
    if (last && last->device == list->items[i].device && last->inode == list->items[i].inode)
      free(list->items[i].path);
    else
      list->items[kept++] = list->items[i];
  }
  list->duplicates = list->count - kept;
  list->count = kept;
  qsort(list->items, (size_t)list->count, sizeof *list->items, by_index);
}

fx_status fx_paths_expand(const char *const *patterns, int count, fx_text_format format, fx_path_list *out) {
  fx_path_list list = {0};
  *out = list;
  if (count < 1)
    return fx_error(FX_ERR_CONFIG, "the corpus has no path; expected files, globs or directories");
  for (int i = 0; i < count; i++) {
    fx_status status = add_pattern(&list, patterns[i], format);
    if (status != FX_OK) {
      fx_paths_fini(&list);
      return status;
    }
  }
  drop_duplicates(&list);
  for (int64_t i = 0; i < list.count; i++) list.bytes += list.items[i].bytes;
  *out = list;
  return FX_OK;
}

void fx_paths_fini(fx_path_list *list) {
  for (int64_t i = 0; i < list->count; i++) free(list->items[i].path);
  free(list->items);
  *list = (fx_path_list){0};
}
