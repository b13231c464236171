/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are in order: round trips between layouts, sharing among replicas, what h5py and h5dump
 * see, directories, and comparison. Damage is test_checkpoint_damage.c. */
#include <math.h>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/save.h"
#include "tests/core/checkpoint_ranks.h"

static void open_step(const char *dir, fx_ckpt **out) {
  char *path = NULL;
  *out = NULL;
  if (CHECK_OK(fx_ckpt_find(dir, &path)) && CHECK_MSG(path != NULL, "no step in %s", dir))
    CHECK_OK(fx_ckpt_open(path, out));
  free(path);
}

/* One process without a control channel. */
static void alone(void) {
  const char *dir = sub_dir("alone/deep/down");
  fx_ckpt_region regions[TENSORS];
  fx_ckpt_state state = state_of(7);
  char *path = NULL;
  fx_ckpt *ckpt = NULL;
  int64_t n = make_regions(regions, CUT_ROWS, 0, 1, true), bytes = 0;
  fill_regions(regions, n, 1);
  CHECK_OK(fx_ckpt_save(NULL, dir, &state, g_config, regions, n, 0, 1, 0, NULL, &path));
  free_regions(regions, n);
  open_step(dir, &ckpt);
  if (!ckpt) return;
  CHECK_STR(fx_ckpt_path(ckpt), path);
  CHECK_STR(fx_ckpt_config(ckpt), g_config);
  CHECK_STR(fx_ckpt_code_version(ckpt), FX_VERSION);
  const fx_ckpt_state *got = fx_ckpt_state_get(ckpt);
  CHECK_MSG(got->step == 7 && got->consumed_samples == 112 && got->optimizer_step == 6 && got->skipped == 1 &&
                got->loss_scale == 65536.5,
            "the state differs");
  CHECK_INT(fx_ckpt_tensor_count(ckpt), TENSORS);
  fx_ckpt_tensor tensor;
  CHECK(fx_ckpt_tensor_find(ckpt, "/model/none", &tensor) && tensor.bytes == 0 && tensor.dim[1] == 5);
  CHECK(fx_ckpt_tensor_find(ckpt, "/model/scalar", &tensor) && tensor.bytes == 2 && tensor.ndim == 0);
  check_table(ckpt, CUT_ROWS, 1, 1);
  CHECK_OK(fx_ckpt_verify(path, &bytes));
  for (int i = 0; i < TENSORS; i++)
    bytes -= box_elements(g_tensors[i].ndim, g_tensors[i].dim) * (int64_t)fx_dtype_bytes(g_tensors[i].dtype);
  CHECK_INT(bytes, 0);
  fx_ckpt_close(ckpt);
  free(path);
}

/* Every way of saving is read in every way, bitwise. */
static void other_layouts(void) {
  static const struct {
    int ranks, replicas;
    cut how;
  } saves[] = {{3, 1, CUT_ROWS}, {3, 1, CUT_COLUMNS}, {4, 1, CUT_GRID},
               {3, 3, CUT_ROWS}, {6, 3, CUT_COLUMNS}, {2, 1, CUT_MIDDLE}};
  static const struct {
    int ranks;
    cut how;
  } loads[] = {{1, CUT_ROWS}, {2, CUT_ROWS},    {2, CUT_COLUMNS}, {4, CUT_COLUMNS},
               {4, CUT_GRID}, {7, CUT_COLUMNS}, {5, CUT_ROWS},    {3, CUT_MIDDLE}};
  for (size_t s = 0; s < sizeof saves / sizeof saves[0]; s++) {
    char name[32];
    fx_ckpt *ckpt = NULL;
    snprintf(name, sizeof name, "layout%zu", s);
    const char *dir = sub_dir(name);
    if (!save_table(dir, 10, saves[s].ranks, saves[s].how, saves[s].replicas, s, 0)) continue;
    open_step(dir, &ckpt);
    if (!ckpt) continue;
    CHECK_INT(fx_ckpt_shard_count(ckpt), saves[s].ranks);
    CHECK_OK(fx_ckpt_check(ckpt, NULL));
    for (size_t l = 0; l < sizeof loads / sizeof loads[0]; l++)
      check_table(ckpt, loads[l].how, loads[l].ranks, s);
    fx_ckpt_close(ckpt);
  }
}

/* The share of each replica: disjoint, complete, balanced, and in place within the region. */
static void sharing(void) {
  fx_ckpt_region regions[TENSORS];
  int64_t n = make_regions(regions, CUT_ROWS, 0, 1, true), total = 0;
  for (int64_t i = 0; i < n; i++)
    total += box_elements(regions[i].ndim, regions[i].count) * (int64_t)fx_dtype_bytes(regions[i].dtype);
  for (int size = 1; size <= 9; size += 2) {
    int64_t covered = 0, worst = 0;
    int64_t rows_seen[TENSORS] = {0};
    for (int rank = 0; rank < size; rank++) {
      fx_ckpt_piece *pieces = NULL;
      int64_t count = 0, bytes = 0;
      CHECK_OK(fx_ckpt_share(regions, n, rank, size, &pieces, &count));
      for (int64_t i = 0; i < count; i++) {
        int64_t r = pieces[i].region - regions;
        if (regions[r].ndim > 0) CHECK_INT(pieces[i].start[0], rows_seen[r]);
        rows_seen[r] += regions[r].ndim > 0 ? pieces[i].count[0] : 1;
        CHECK(pieces[i].data >= (char *)regions[r].data);
        bytes += pieces[i].bytes;
      }
      covered += bytes;
      worst = bytes > worst ? bytes : worst;
      free(pieces);
    }
    CHECK_INT(covered, total);
    CHECK_MSG(worst - total / size <= 65536, "%d replicas: the largest share is %lld of %lld", size,
              (long long)worst, (long long)total);
  }
  free_regions(regions, n);
}

/* Three column ranges of one tensor a rank (q, k and v of a fused matrix), each in a matrix that is wider:
 * two such ranks of two replicas each save, three ranks load. */
enum { WIDE_ROWS = 700, WIDE = 512 * 3, WIDE_PAD = 5 };

static float wide_element(int64_t row, int64_t column) {
  return (float)(row * WIDE + column); /* exact: below 2^24 */
}

static fx_ckpt_region wide_region(int part, int parts, int which, float *matrix) {
  int64_t third = WIDE / 3, low = third * part / parts, count = third * (part + 1) / parts - low;
  int64_t pitch = 3 * (third / parts + 1) + WIDE_PAD; /* of q | k | v here, and what belongs to others */
  return (fx_ckpt_region){.path = "/model/wide",
                          .dtype = FX_F32,
                          .ndim = 2,
                          .dim = {WIDE_ROWS, WIDE},
                          .start = {0, which * third + low},
                          .count = {WIDE_ROWS, count},
                          .data = matrix + which * (third / parts + 1),
                          .pitch = pitch};
}

/* Elements of a matrix that are neither the tensor's nor, outside of the regions, what they were. */
static int64_t wide_wrong(const fx_ckpt_region region[3], const float *matrix, float outside) {
  int64_t pitch = region[0].pitch, wrong = 0, inside = 0;
  for (int64_t r = 0; r < WIDE_ROWS; r++)
    for (int64_t c = 0; c < pitch; c++) {
      float want = outside;
      for (int i = 0; i < 3; i++) {
        int64_t at = c - ((float *)region[i].data - matrix);
        if (at >= 0 && at < region[i].count[1]) want = wide_element(r, region[i].start[1] + at), inside++;
      }
      wrong += matrix[r * pitch + c] != want;
    }
  return inside == 3 * WIDE_ROWS * region[0].count[1] ? wrong : -1;
}

static void save_wide(fx_control *control, void *context) {
  save_case *c = context;
  fx_ckpt_region regions[3];
  fx_ckpt_state state = state_of(1);
  float *matrix = calloc((size_t)WIDE_ROWS * (WIDE + 64), sizeof *matrix);
  for (int i = 0; i < 3; i++) {
    regions[i] = wide_region(control->rank % 2, 2, i, matrix);
    for (int64_t r = 0; r < WIDE_ROWS; r++)
      for (int64_t k = 0; k < regions[i].count[1]; k++)
        ((float *)regions[i].data)[r * regions[i].pitch + k] = wide_element(r, regions[i].start[1] + k);
  }
  fx_status status =
      fx_ckpt_save(control, c->dir, &state, "", regions, 3, control->rank / 2, 2, 0, NULL, NULL);
  pthread_mutex_lock(&g_case_lock);
  c->failures += status != FX_OK;
  pthread_mutex_unlock(&g_case_lock);
  free(matrix);
}

static void lines_apart(void) {
  save_case c = {.dir = sub_dir("wide")};
  fx_ckpt *ckpt = NULL;
  run_ranks(4, save_wide, &c);
  CHECK_INT(c.failures, 0);
  open_step(c.dir, &ckpt);
  if (!ckpt) return;
  CHECK_OK(fx_ckpt_check(ckpt, NULL));
  for (int parts = 1; parts <= 3; parts += 2)
    for (int part = 0; part < parts; part++) {
      size_t elements = (size_t)WIDE_ROWS * (WIDE + 64);
      float *matrix = malloc(elements * sizeof *matrix);
      fx_ckpt_region regions[3];
      for (size_t i = 0; i < elements; i++) matrix[i] = -1.0f;
      for (int i = 0; i < 3; i++) regions[i] = wide_region(part, parts, i, matrix);
      CHECK_OK(fx_ckpt_read(ckpt, regions, 3));
      CHECK_INT(wide_wrong(regions, matrix, -1.0f), 0);
      free(matrix);
    }
  float w[4];
  fx_ckpt_region narrow = {.path = "/model/wide",
                           .dtype = FX_F32,
                           .ndim = 2,
                           .dim = {WIDE_ROWS, WIDE},
                           .count = {2, 2},
                           .data = w,
                           .pitch = 1};
  fx_ckpt_state state = state_of(2);
  CHECK_STATUS(fx_ckpt_save(NULL, c.dir, &state, "", &narrow, 1, 0, 1, 0, NULL, NULL), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "overlap in memory");
  fx_ckpt_close(ckpt);
}

/* More ranks than files: several ranks write into one shard that the first of them laid out. */
static void save_tiny(fx_control *control, void *context) {
  save_case *c = context;
  int32_t value = control->rank * 3;
  fx_ckpt_region region = {.path = "/model/rank", .dtype = FX_I32, .ndim = 1, .dim = {control->size}};
  fx_ckpt_state state = state_of(1);
  region.start[0] = control->rank;
  region.count[0] = 1;
  region.data = &value;
  fx_status status = fx_ckpt_save(control, c->dir, &state, "", &region, 1, 0, 1, 0, NULL, NULL);
  pthread_mutex_lock(&g_case_lock);
  c->failures += status != FX_OK;
  pthread_mutex_unlock(&g_case_lock);
}

static void many_ranks(void) {
  enum { RANKS = 300 };
  save_case c = {.dir = sub_dir("many")};
  static int32_t values[RANKS];
  fx_ckpt *ckpt = NULL;
  run_ranks(RANKS, save_tiny, &c);
  CHECK_INT(c.failures, 0);
  open_step(c.dir, &ckpt);
  if (!ckpt) return;
  CHECK_INT(fx_ckpt_shard_count(ckpt), FX_CKPT_FILES);
  fx_ckpt_region whole = {
      .path = "/model/rank", .dtype = FX_I32, .ndim = 1, .dim = {RANKS}, .count = {RANKS}, .data = values};
  CHECK_OK(fx_ckpt_read(ckpt, &whole, 1));
  for (int r = 0; r < RANKS; r++) CHECK_INT(values[r], r * 3);
  fx_ckpt_close(ckpt);
}

/* Writes down what is expected, as raw files, from the hashes alone. */
static void write_expected(const char *dir, uint64_t salt) {
  char list[8192] = "[", name[32];
  for (int i = 0; i < TENSORS; i++) {
    const test_tensor *t = &g_tensors[i];
    char path[600], shape[96];
    int64_t n = box_elements(t->ndim, t->dim);
    size_t size = fx_dtype_bytes(t->dtype), used = strlen(list);
    snprintf(name, sizeof name, "expected%d.bin", i);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (!CHECK(file != NULL)) return;
    for (int64_t e = 0; e < n; e++) {
      char value[8];
      element_at(t, e, salt, value);
      fwrite(value, 1, size, file);
    }
    CHECK_INT(fclose(file), 0);
    fx_manifest_shape_text(t->ndim, t->dim, shape);
    snprintf(list + used, sizeof list - used,
             "%s{\"path\": \"%s\", \"dtype\": \"%s\", \"shape\": %s, \"file\": \"%s\"}", i ? ", " : "",
             t->path, fx_dtype_name(t->dtype), shape, name);
  }
  strcat(list, "]"); // NOLINT: room for it was left
  fx_temp_file(dir, "expected.json", list);
}

static void foreign_readers(void) {
  const char *dir = sub_dir("readers");
  char step[500], dump[500], command[1500];
  if (!save_table(dir, 7, 6, CUT_COLUMNS, 3, 7, 0)) return;
  snprintf(step, sizeof step, "%s/step_00000007", dir);
  write_expected(dir, 7);
  snprintf(command, sizeof command, "/usr/bin/python3 '%s' '%s' '%s'",
           fx_source_path("tests/core/checkpoint_h5py.py"), step, dir);
  CHECK_INT(system(command), 0); // NOLINT: paths that this suite made
  snprintf(dump, sizeof dump, "%s/dump.txt", dir);
  CHECK_INT(shell("cd / && h5dump -d /model/two_bytes '%s/index.h5' > '%s'", step, dump), 0);
  uint16_t bits[4]; /* element_at may write 8 bytes */
  char value[32], found[4096] = "";
  element_at(tensor_of("/model/two_bytes"), 0, 7, bits);
  snprintf(value, sizeof value, "(0): %.6g", (double)fx_bf16_to_f32(bits[0]));
  FILE *file = fopen(dump, "r");
  if (CHECK(file != NULL)) {
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
  }
  CHECK_HAS(found, value);
  CHECK_INT(shell("cd / && h5dump -H '%s/shard_00000.h5' > '%s'", step, dump), 0);
}

static void directories(void) {
  const char *dir = sub_dir("steps");
  char *path = NULL;
  CHECK_OK(fx_ckpt_find(dir, &path));
  CHECK_MSG(path == NULL, "a step was found where there is no directory");
  CHECK_INT(
      shell("mkdir -p '%s/step_00000003.tmp' && echo old > '%s/step_00000003.tmp/shard_00009.h5'", dir, dir),
      0);
  CHECK_OK(fx_ckpt_find(dir, &path));
  CHECK_MSG(path == NULL, "an unfinished step was taken");
  for (int64_t step = 1; step <= 4; step++) save_table(dir, step, 2, CUT_ROWS, 1, (uint64_t)step, 2);
  CHECK(!there_is(dir, "step_00000003.tmp") && !there_is(dir, "step_00000003/shard_00009.h5"));
  CHECK(!there_is(dir, "step_00000001") && !there_is(dir, "step_00000002"));
  CHECK(there_is(dir, "step_00000003") && there_is(dir, "step_00000004"));
  CHECK_INT(shell("test \"$(cat '%s/latest')\" = step_00000004 -a ! -e '%s/latest.tmp'", dir, dir), 0);
  fx_temp_file(dir, "latest", "step_00000003\n");
  CHECK_OK(fx_ckpt_find(dir, &path));
  CHECK_HAS(path, "step_00000003");
  free(path);
  fx_temp_file(dir, "latest", "../../etc\n");
  CHECK_OK(fx_ckpt_find(dir, &path));
  CHECK_HAS(path, "step_00000004");
  free(path);
  /* the same number again replaces it */
  save_table(dir, 4, 3, CUT_COLUMNS, 1, 99, 2);
  fx_ckpt *ckpt = NULL;
  open_step(dir, &ckpt);
  if (ckpt) check_table(ckpt, CUT_ROWS, 2, 99);
  fx_ckpt_close(ckpt);
  CHECK(!there_is(dir, "step_00000004.tmp"));
  /* a run that went back counts up to its own step and leaves the later ones alone */
  save_table(dir, 2, 1, CUT_ROWS, 1, 2, 1);
  CHECK(there_is(dir, "step_00000002") && there_is(dir, "step_00000003") && there_is(dir, "step_00000004"));
}

/* What a crash leaves of pruned steps goes when a run starts; nothing else does. */
static void swept(void) {
  static const char *const kept[] = {
      "step_00000004.tmp", /* newer than `latest`: somebody may be writing it */
      "step_00000001.bad", "step_1.tmp", "step_00000001.tmp.tmp",
      "step_0000000x.tmp", "other.tmp",  "step_00000002.txt"};
  const char *dir = sub_dir("swept");
  fx_ckpt_sweep(dir, NULL); /* no directory */
  for (int64_t step = 2; step <= 3; step++) save_table(dir, step, 1, CUT_ROWS, 1, (uint64_t)step, 0);
  CHECK_INT(shell("cd '%s' && mkdir step_00000001.tmp step_00000003.tmp step_00000000.tmp && "
                  "echo old > step_00000001.tmp/shard_00000.h5 && echo file > '%s/step_00000002.tmp'",
                  dir, dir),
            0);
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    CHECK_INT(shell("mkdir '%s/%s'", dir, kept[i]), 0);
  fx_temp_file(dir, "latest", "step_00000009\n"); /* not there: nothing is known */
  fx_ckpt_sweep(dir, NULL);
  CHECK(there_is(dir, "step_00000001.tmp"));
  fx_temp_file(dir, "latest", "step_00000003\n");
  fx_ckpt_sweep(dir, NULL);
  CHECK(!there_is(dir, "step_00000000.tmp") && !there_is(dir, "step_00000001.tmp") &&
        !there_is(dir, "step_00000003.tmp"));
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    CHECK_MSG(there_is(dir, kept[i]), "%s was deleted", kept[i]);
  CHECK(there_is(dir, "step_00000002.tmp")); /* a file of somebody's */
  CHECK(there_is(dir, "step_00000002") && there_is(dir, "step_00000003"));
}

static void save_bad(fx_control *control, void *context) {
  save_case *c = context;
  float data[8] = {0};
  fx_ckpt_state state = state_of(c->step + (c->keep == 3 ? control->rank : 0));
  fx_ckpt_region region = {.path = "/model/w", .dtype = FX_F32, .ndim = 1, .dim = {8}, .data = data};
  region.count[0] = c->keep == 1 || c->keep == 5 ? 8 : 2; /* whole : too little */
  region.start[0] = c->keep == 2 ? 2 * control->rank : 0;
  if (c->keep == 4 && control->rank == 1) region.path = "model/../w";
  if (c->keep == 5) region.path = control->rank ? "/model/w/below" : "/model/w";
  fx_status status = fx_ckpt_save(control, c->dir, &state, "", &region, 1, 0, 1, 0, NULL, NULL);
  pthread_mutex_lock(&g_case_lock);
  c->failures += status != FX_OK;
  if (control->rank == 1) {
    c->status = status;
    snprintf(c->text, sizeof c->text, "%s", fx_error_text());
  }
  pthread_mutex_unlock(&g_case_lock);
}

/* What cannot be a checkpoint is refused on every rank, and leaves nothing. */
static void refused(void) {
  static const struct {
    int kind;
    fx_status status;
    const char *says;
  } rows[] = {{1, FX_ERR_CHECKPOINT, "tensor /model/w is held twice"},
              {2, FX_ERR_CHECKPOINT, "has 8 elements, its parts have 4"},
              {3, FX_ERR_DIVERGED, "rank 1 saves step 6 while rank 0 saves step 5"},
              {4, FX_ERR_SHAPE, "rank 1: model/../w is no tensor path"},
              {5, FX_ERR_CHECKPOINT, "lies below another tensor"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    save_case c = {.dir = sub_dir("refused"), .step = 5, .keep = rows[i].kind};
    run_ranks(2, save_bad, &c);
    CHECK_INT(c.failures, 2);
    CHECK_MSG(c.status == rows[i].status, "expected %s, got %s", fx_status_name(rows[i].status),
              fx_status_name(c.status));
    CHECK_HAS(c.text, rows[i].says);
    CHECK(!there_is(c.dir, "step_00000005") && !there_is(c.dir, "step_00000005.tmp"));
  }
}

static void wrong_wishes(void) {
  const char *dir = sub_dir("wishes");
  float data[4];
  fx_ckpt *ckpt = NULL;
  if (!save_table(dir, 1, 1, CUT_ROWS, 1, 1, 0)) return;
  open_step(dir, &ckpt);
  if (!ckpt) return;
  fx_ckpt_region region = {
      .path = "/model/h.0.ln_1.weight", .dtype = FX_F32, .ndim = 1, .dim = {49}, .count = {4}, .data = data};
  CHECK_STATUS(fx_ckpt_read(ckpt, &region, 1), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "/model/h.0.ln_1.weight is float32 [48] there, but float32 [49] here");
  region.dim[0] = 48;
  region.dtype = FX_BF16;
  CHECK_STATUS(fx_ckpt_read(ckpt, &region, 1), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "float32 [48] there, but bfloat16 [48] here");
  region.dtype = FX_F32;
  region.path = "/model/h.1.ln_1.weight";
  CHECK_STATUS(fx_ckpt_read(ckpt, &region, 1), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "has no tensor /model/h.1.ln_1.weight");
  region.path = "/model/h.0.ln_1.weight";
  region.start[0] = 45;
  CHECK_STATUS(fx_ckpt_read(ckpt, &region, 1), FX_ERR_SHAPE);
  CHECK_HAS(fx_error_text(), "reaches outside");
  fx_ckpt_close(ckpt);
}

static void save_pair(const char *dir, int64_t step, const float *w, int64_t n, const char *extra,
                      const char *config) {
  const float one = 1.0f;
  fx_ckpt_state state = state_of(step);
  fx_ckpt_region regions[2] = {
      {.path = "/model/w", .dtype = FX_F32, .ndim = 1, .dim = {n}, .count = {n}, .data = (void *)w},
      {.path = extra, .dtype = FX_F32, .ndim = 0, .data = (void *)&one}};
  CHECK_OK(fx_ckpt_save(NULL, dir, &state, config, regions, extra ? 2 : 1, 0, 1, 0, NULL, NULL));
}

static void compared(void) {
  float w[4] = {1.0f, -2.0f, 0.0f, 4.0f};
  fx_ckpt *a = NULL, *b = NULL;
  fx_ckpt_diff *rows = NULL;
  fx_ckpt_diff_key *keys = NULL;
  int64_t n = 0;
  save_pair(sub_dir("diff_a"), 3, w, 4, "/model/a", "train:\n  iters: 5\n  seed: 1\nx:\n  y: [1, 2]\n");
  w[1] = -2.5f;
  w[2] = -0.0f; /* other bits, the same number */
  save_pair(sub_dir("diff_b"), 3, w, 4, "/model/z", "train:\n  iters: 6\n  seed: 2\n");
  open_step(sub_dir("diff_a"), &a);
  open_step(sub_dir("diff_b"), &b);
  if (!a || !b) return;
  if (CHECK_OK(fx_ckpt_diff_tensors(a, b, &rows, &n)) && CHECK_INT(n, 3)) {
    CHECK_INT(rows[0].kind, FX_CKPT_DIFF_ONLY_A);
    CHECK_INT(rows[1].kind, FX_CKPT_DIFF_VALUES);
    CHECK_INT(rows[1].different, 2);
    CHECK_MSG(rows[1].max_abs == 0.5 && rows[1].max_rel == 0.2, "got %g, %g", rows[1].max_abs,
              rows[1].max_rel);
    CHECK_INT(rows[2].kind, FX_CKPT_DIFF_ONLY_B);
  }
  free(rows);
  if (CHECK_OK(fx_ckpt_diff_config(a, b, &keys, &n)) && CHECK_INT(n, 3)) {
    CHECK_STR(keys[0].key, "train.iters");
    CHECK(keys[0].expected && !keys[1].expected && !keys[2].expected);
    CHECK_STR(keys[1].key, "train.seed");
    CHECK_STR(keys[1].b, "2");
    CHECK_STR(keys[2].key, "x.y");
    CHECK(keys[2].b == NULL);
  }
  fx_ckpt_diff_config_free(keys, n);
  if (CHECK_OK(fx_ckpt_diff_tensors(a, a, &rows, &n)))
    for (int64_t i = 0; i < n; i++) CHECK_INT(rows[i].kind, FX_CKPT_DIFF_NONE);
  free(rows);
  fx_ckpt_close(a);
  fx_ckpt_close(b);
}

static const fx_test g_tests[] = {
    {"one process, round trip", alone},
    {"any layout into any other, bitwise", other_layouts},
    {"replicas share the writing", sharing},
    {"several column ranges of one tensor a rank", lines_apart},
    {"more ranks than files", many_ranks},
    {"h5py and h5dump read whole tensors", foreign_readers},
    {"steps, latest, keep, leftovers", directories},
    {"unfinished steps are swept", swept},
    {"what cannot be saved", refused},
    {"what cannot be loaded", wrong_wishes},
    {"comparison", compared},
};
FX_TEST_MAIN("core/checkpoint", g_tests)
