/* SPDX-License-Identifier: Apache-2.0 */
/* The HDF5 wrapper: bytes written by pwrite at the offsets it reports come back through HDF5, alone and
 * through the virtual index, for every dtype and for the shapes at the edge; what cannot work is one
 * sentence. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/h5/h5_file.h"
#include "dynamo_rt/base/hash.h"
#include "tests/harness.h"

enum { DTYPES = FX_DTYPE_COUNT, ROWS = 3, COLUMNS = 5 };

static void write_at(const char *path, int64_t offset, const void *data, size_t bytes) {
  int fd = open(path, O_WRONLY);
  CHECK_MSG(fd >= 0 && pwrite(fd, data, bytes, offset) == (ssize_t)bytes, "pwrite to %s", path);
  close(fd);
}

static void write_file(const char *path, const void *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  CHECK_MSG(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "writing %s", path);
}

static void fill(unsigned char *bytes, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)fx_hash64(&i, sizeof i, seed);
}

/* One dataset a dtype, laid out together: all offsets distinct, every one reads back what was written. */
static void layout_every_dtype(void) {
  char path[300], names[DTYPES][32];
  unsigned char data[DTYPES][ROWS * COLUMNS * 8];
  fx_h5_dataset sets[DTYPES];
  snprintf(path, sizeof path, "%s/dtypes.h5", fx_temp_dir());
  for (int i = 0; i < DTYPES; i++) {
    snprintf(names[i], sizeof names[i], "/a/%s@0,0", fx_dtype_name((fx_dtype)i));
    sets[i] = (fx_h5_dataset){names[i], (fx_dtype)i, 2, {ROWS, COLUMNS}, 0};
    fill(data[i], sizeof data[i], (uint64_t)i);
  }
  if (!CHECK_OK(fx_h5_layout(path, sets, DTYPES))) return;
  for (int i = 0; i < DTYPES; i++)
    write_at(path, sets[i].offset, data[i], ROWS * COLUMNS * fx_dtype_bytes((fx_dtype)i));
  for (int i = 0; i < DTYPES; i++) {
    fx_h5_dataset info;
    void *back = NULL;
    if (!CHECK_OK(fx_h5_read(path, names[i], &info, &back))) continue;
    CHECK_INT(info.dtype, i);
    CHECK_INT(info.ndim, 2);
    CHECK_INT(info.dim[0] * 100 + info.dim[1], ROWS * 100 + COLUMNS);
    CHECK_MSG(memcmp(back, data[i], ROWS * COLUMNS * fx_dtype_bytes((fx_dtype)i)) == 0, "%s differs",
              names[i]);
    free(back);
  }
}

static void edge_shapes(void) {
  char path[300];
  const uint16_t one = 0x3F80;
  fx_h5_dataset sets[] = {{"/scalar", FX_BF16, 0, {0}, 0},
                          {"/none", FX_F32, 2, {0, 7}, 0},
                          {"/five", FX_U8, 5, {1, 2, 1, 2, 1}, 0}};
  snprintf(path, sizeof path, "%s/edges.h5", fx_temp_dir());
  if (!CHECK_OK(fx_h5_layout(path, sets, 3))) return;
  CHECK_INT(sets[1].offset, -1);
  write_at(path, sets[0].offset, &one, sizeof one);
  fx_h5_dataset info;
  void *back = NULL;
  if (CHECK_OK(fx_h5_read(path, "/scalar", &info, &back))) CHECK_INT(*(uint16_t *)back, one);
  CHECK_INT(info.ndim, 0);
  free(back);
  if (CHECK_OK(fx_h5_read(path, "/none", &info, &back))) CHECK_INT(info.dim[0] * 10 + info.dim[1], 7);
  free(back);
  if (CHECK_OK(fx_h5_read(path, "/five", &info, &back))) CHECK_INT(info.ndim, 5);
  free(back);
}

/* Two files hold the left and the right columns; the index shows the whole, and NaN where nothing is. */
static void index_joins_files(void) {
  char path[300];
  float left[ROWS * 2], right[ROWS * 2];
  const int64_t loose[FX_H5_DIMS] = {ROWS, 2};
  fx_h5_dataset parts[2] = {{"/w@0,0", FX_F32, 2, {ROWS, 2}, 0}, {"/w@0,2", FX_F32, 2, {ROWS, 2}, 0}};
  for (int i = 0; i < ROWS * 2; i++) {
    left[i] = (float)i;
    right[i] = 100.0f + (float)i;
  }
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/part%d.h5", fx_temp_dir(), i);
    if (!CHECK_OK(fx_h5_layout(path, &parts[i], 1))) return;
    write_at(path, parts[i].offset, i ? right : left, sizeof left);
  }
  fx_h5_dataset tensors[] = {{"/model/w", FX_F32, 2, {ROWS, COLUMNS}, 0}, {"/model/none", FX_F32, 1, {0}, 0}};
  fx_h5_source sources[] = {{0, {0, 0}, {loose[0], loose[1]}, "part0.h5", "/w@0,0"},
                            {0, {0, 2}, {loose[0], loose[1]}, "part1.h5", "/w@0,2"}};
  fx_h5_attribute attributes[] = {{"/trainer", "step", FX_H5_I64, 7, 0, NULL},
                                  {"/trainer", "loss_scale", FX_H5_F64, 0, 0.5, NULL},
                                  {"/trainer", "version", FX_H5_TEXT, 0, 0, "1"}};
  char *config = malloc(100001); /* longer than an attribute may be */
  memset(config, 'x', 100000);
  config[100000] = '\0';
  fx_h5_text text = {"/trainer/config", config};
  fx_h5_index index = {tensors, 2, sources, 2, attributes, 3, &text, 1};
  void *image = NULL, *back = NULL;
  size_t bytes = 0;
  if (!CHECK_OK(fx_h5_index_build(&index, &image, &bytes))) return;
  snprintf(path, sizeof path, "%s/joined.h5", fx_temp_dir());
  write_file(path, image, bytes);
  free(image);
  free(config);
  fx_h5_dataset info;
  if (!CHECK_OK(fx_h5_read(path, "/model/w", &info, &back))) return;
  CHECK_INT(info.dim[0] * 100 + info.dim[1], ROWS * 100 + COLUMNS);
  const float *w = back;
  for (int r = 0; r < ROWS; r++) {
    for (int c = 0; c < 4; c++) {
      float want = c < 2 ? left[r * 2 + c] : right[r * 2 + c - 2], got = w[r * COLUMNS + c];
      CHECK_MSG(got == want, "[%d, %d]: expected %g, got %g", r, c, (double)want, (double)got);
    }
    CHECK_MSG(w[r * COLUMNS + 4] != w[r * COLUMNS + 4], "row %d: expected NaN, got %g", r,
              (double)w[r * COLUMNS + 4]);
  }
  free(back);
}

/* Standard error into a file from here on; returns what undoes it. */
static int redirect_errors(const char *path) {
  fflush(stderr);
  int old = dup(STDERR_FILENO), fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(fd, STDERR_FILENO);
  close(fd);
  return old;
}

static void failures_print_nothing(void) {
  char path[300];
  struct stat info = {.st_size = -1};
  fx_h5_dataset set = {"/a", FX_F32, 1, {4}, 0};
  snprintf(path, sizeof path, "%s/errors.txt", fx_temp_dir());
  int old = redirect_errors(path);
  fx_status status = fx_h5_layout("/nonexistent/x.h5", &set, 1);
  dup2(old, STDERR_FILENO);
  close(old);
  CHECK_INT(status, FX_ERR_IO);
  CHECK_INT(stat(path, &info), 0);
  CHECK_INT(info.st_size, 0);
}

static void failures(void) {
  fx_h5_dataset set = {"/a", FX_F32, 1, {4}, 0}, info = {.ndim = -7};
  fx_h5_dataset clash[] = {{"/a/b", FX_F32, 1, {4}, 0}, {"/a/b/c", FX_F32, 1, {4}, 0}};
  void *back = NULL;
  char path[300];
  CHECK_STATUS(fx_h5_layout("/nonexistent/x.h5", &set, 1), FX_ERR_IO);
  CHECK_HAS(fx_error_text(), "No such file or directory");
  snprintf(path, sizeof path, "%s/clash.h5", fx_temp_dir());
  CHECK_STATUS(fx_h5_layout(path, clash, 2), FX_ERR_IO);
  CHECK_STATUS(fx_h5_read(fx_temp_file(fx_temp_dir(), "text.h5", "no HDF5"), "/a", &info, &back),
               FX_ERR_DATA);
  CHECK_STATUS(fx_h5_layout(path, &set, 1), FX_OK);
  CHECK_STATUS(fx_h5_read(path, "/b", &info, &back), FX_ERR_DATA);
  CHECK_MSG(back == NULL && info.ndim == -7, "outputs were written on failure");
}

static void version(void) {
  char text[64] = "";
  int major = 0, minor = 0, release = 0;
  fx_h5_version(text, sizeof text);
  CHECK_INT(sscanf(text, "%d.%d.%d", &major, &minor, &release), 3);
  CHECK_MSG(major == 1 && minor >= 8, "HDF5 %s", text);
}

static const fx_test g_tests[] = {
    {"every dtype at its offset", layout_every_dtype},  {"scalar, empty and five dimensions", edge_shapes},
    {"an index joins files", index_joins_files},        {"failures", failures},
    {"failures print nothing", failures_print_nothing}, {"version", version},
};
FX_TEST_MAIN("data/h5", g_tests)
