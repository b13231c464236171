/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 128 rows picked by number, out of a strided slice and into a strided place, and added back. */
#include "dynamo_rt/ops/blocks.h"
#include "dynamo_rt/ops/input.h"
#include "tests/dynamo_rt/plan_fixture.h"

enum { B = 2, N = 5, T = N * FX_BLOCK_ROWS, H = 3, D = 4, WIDE = 2 * H * D, COUNT = 4 };

static int32_t g_index[COUNT] = {3, 0, -1, 4};

static fx_value index_of(fx_graph *g) {
  return fx_graph_persistent(FX_AT(g), "index", g_index, fx_type_1d(FX_I32, COUNT));
}

static float at(const float *x, int64_t rows, int64_t width, int64_t b, int64_t row, int64_t column) {
  return x[(b * rows + row) * width + column];
}

/* The second half of x's columns go to the first half of y's. */
static void blocks_are_picked(void) {
  enum { ROWS = COUNT * FX_BLOCK_ROWS };
  float *x = normals((int64_t)B * T * WIDE, 1, 1), *y = normals((int64_t)B * ROWS * WIDE, 2, 1);
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(2, "auto", &device));
  fx_graph *g = fx_graph_create(NULL);
  fx_type from = fx_type_3d(FX_F32, B, T, WIDE), to = fx_type_3d(FX_F32, B, ROWS, WIDE);
  fx_value all = fx_graph_persistent(FX_AT(g), "x", x, from);
  fx_value parts[2] = {
      fx_take_blocks(FX_AT(g), fx_slice_heads(FX_AT(g), all, H * D, H, D), index_of(g), COUNT),
      fx_take_blocks(FX_AT(g), fx_slice_heads(FX_AT(g), all, 0, H, D), index_of(g), COUNT)};
  fx_store(FX_AT(g), fx_graph_persistent(FX_AT(g), "y", y, to),
           fx_assemble(FX_AT(g), parts, (int64_t[]){0, H * D}, 2, to));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  int wrong = 0;
  for (int64_t b = 0; b < B; b++)
    for (int64_t r = 0; r < ROWS; r++)
      for (int64_t c = 0; c < WIDE; c++) {
        int32_t block = g_index[r / FX_BLOCK_ROWS];
        int64_t row = block * FX_BLOCK_ROWS + r % FX_BLOCK_ROWS, column = (c + H * D) % WIDE;
        wrong += at(y, ROWS, WIDE, b, r, c) != (block < 0 ? 0.0f : at(x, T, WIDE, b, row, column));
      }
  CHECK_INT(wrong, 0);
  free(x), free(y), free(arena);
  fx_device_destroy(device);
}

static void blocks_are_added(void) {
  enum { ROWS = COUNT * FX_BLOCK_ROWS, COLS = H * D };
  float *x = normals((int64_t)B * ROWS * COLS, 1, 1), *sum = normals((int64_t)B * T * COLS, 2, 1);
  float *before = normals((int64_t)B * T * COLS, 2, 1);
  fx_device *device = NULL;
  void *arena = NULL;
  CHECK_OK(fx_device_create_cpu(2, "auto", &device));
  fx_graph *g = fx_graph_create(NULL);
  fx_type blocks = fx_type_of(FX_F32, 4, (int64_t[]){B, ROWS, H, D}),
          all = fx_type_of(FX_F32, 4, (int64_t[]){B, T, H, D});
  fx_add_blocks(FX_AT(g), fx_graph_persistent(FX_AT(g), "sum", sum, all),
                fx_graph_persistent(FX_AT(g), "x", x, blocks), index_of(g));
  fx_plan_destroy(run_graph(g, device, FX_EXEC_REPLAY, &arena));
  for (int64_t b = 0; b < B; b++)
    for (int64_t n = 0; n < COUNT; n++)
      for (int64_t i = 0; g_index[n] >= 0 && i < FX_BLOCK_ROWS * COLS; i++)
        before[(b * N + g_index[n]) * FX_BLOCK_ROWS * COLS + i] +=
            x[(b * COUNT + n) * FX_BLOCK_ROWS * COLS + i];
  CHECK(memcmp(sum, before, (size_t)(B * T * COLS) * sizeof *sum) == 0);
  free(x), free(sum), free(before), free(arena);
  fx_device_destroy(device);
}

static void what_does_not_fit_is_refused(void) {
  float x[FX_BLOCK_ROWS * D];
  fx_type type = fx_type_of(FX_F32, 4, (int64_t[]){1, FX_BLOCK_ROWS, 1, D});
  fx_graph *g = fx_graph_create(NULL);
  CHECK_INT(fx_take_blocks(FX_AT(g), fx_graph_persistent(FX_AT(g), "x", x, type), index_of(g), COUNT + 1),
            FX_NONE);
  CHECK_HAS(fx_error_text(), "4 numbers do not pick 5 blocks of 128 rows");
  fx_graph_destroy(g);
}

static const fx_test tests[] = {
    {"picked", blocks_are_picked}, {"added", blocks_are_added}, {"refused", what_does_not_fit_is_refused}};
FX_TEST_MAIN("blocks of rows", tests)
