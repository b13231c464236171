/* SPDX-License-Identifier: Apache-2.0 */
/* A reader takes from a checkpoint the blocks that it needs and no other: counted against the blocks
 * that a region's lines meet, with damage inside and outside of them, and from manifests of before there were
 * blocks. */
#include <fcntl.h>
#include <unistd.h>

#include "core/checkpoint/files.h"
#include "core/checkpoint/manifest.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/base/philox.h"
#include "tests/core/checkpoint_ranks.h"

enum { ROWS = 4000, COLUMNS = 2500, ELEMENTS = ROWS * COLUMNS, BLOCK = 2 << 20, QUARTERS = 4 };
enum { BYTES = 4 * ELEMENTS, BLOCKS = (BYTES + BLOCK - 1) / BLOCK }; /* 20, the last one short */
static const char g_name[] = "/model/big";

/* ---- a tensor whose elements are their own numbers ---- */

static fx_ckpt_region box_of(int ndim, const int64_t *dim, const int64_t *start, const int64_t *count) {
  fx_ckpt_region region = {.path = g_name, .dtype = FX_F32, .ndim = ndim};
  memcpy(region.dim, dim, (size_t)ndim * sizeof *dim);
  memcpy(region.start, start, (size_t)ndim * sizeof *start);
  memcpy(region.count, count, (size_t)ndim * sizeof *count);
  region.data = calloc((size_t)box_elements(ndim, count), sizeof(float));
  return region;
}

static fx_ckpt_region rows_of(int64_t row, int64_t rows) {
  return box_of(2, (int64_t[]){ROWS, COLUMNS}, (int64_t[]){row, 0}, (int64_t[]){rows, COLUMNS});
}

static void save_part(fx_control *control, void *context) {
  save_case *c = context;
  fx_ckpt_region region = rows_of(ROWS / control->size * control->rank, ROWS / control->size);
  fx_ckpt_state state = state_of(1);
  for (int64_t i = 0; i < ROWS / control->size * COLUMNS; i++)
    ((float *)region.data)[i] = (float)global_index(&region, i); /* exact: below 2^24 */
  fx_status status = fx_ckpt_save(control, c->dir, &state, "", &region, 1, 0, 1, 0, NULL, NULL);
  free(region.data);
  pthread_mutex_lock(&g_case_lock);
  c->failures += status != FX_OK;
  pthread_mutex_unlock(&g_case_lock);
}

/* dir/step_00000001, saved by that many ranks */
static const char *save_big(const char *name, int ranks) {
  static char step[500];
  save_case c = {.dir = sub_dir(name)};
  run_ranks(ranks, save_part, &c);
  CHECK_INT(c.failures, 0);
  snprintf(step, sizeof step, "%s/step_00000001", c.dir);
  return step;
}

/* Reads the region and frees it; *bytes: what that took from the disk. */
static fx_status read_box(const char *step, fx_ckpt_region region, int64_t *bytes) {
  fx_ckpt *ckpt = NULL;
  int64_t wrong = 0;
  fx_status status = fx_ckpt_open(step, &ckpt);
  if (status == FX_OK) CHECK_INT(fx_ckpt_bytes_read(ckpt), 0);
  if (status == FX_OK) status = fx_ckpt_read(ckpt, &region, 1);
  for (int64_t i = 0; status == FX_OK && i < box_elements(region.ndim, region.count); i++)
    wrong += ((float *)region.data)[i] != (float)global_index(&region, i);
  CHECK_INT(wrong, 0);
  *bytes = status == FX_OK ? fx_ckpt_bytes_read(ckpt) : -1;
  fx_ckpt_close(ckpt);
  free(region.data);
  return status;
}

/* Bytes of the blocks that the region's lines meet, in a tensor that is one fragment. */
static int64_t bytes_met(const fx_ckpt_region *region) {
  bool met[BLOCKS] = {false};
  int64_t width = region->count[region->ndim - 1], bytes = 0;
  for (int64_t i = 0; i < box_elements(region->ndim, region->count); i += width) {
    int64_t first = 4 * global_index(region, i), last = first + 4 * width - 1;
    for (int64_t b = first / BLOCK; b <= last / BLOCK; b++) met[b] = true;
  }
  for (int64_t b = 0; b < BLOCKS; b++) bytes += met[b] ? (b < BLOCKS - 1 ? BLOCK : BYTES - b * BLOCK) : 0;
  return bytes;
}

/* ---- what is read ---- */

static void rows_need_their_blocks(void) {
  const char *step = save_big("rows", 1);
  int64_t bytes = 0;
  for (int64_t q = 0; q < QUARTERS; q++) {
    int64_t first = q * BYTES / QUARTERS / BLOCK, end = ((q + 1) * BYTES / QUARTERS + BLOCK - 1) / BLOCK;
    CHECK_OK(read_box(step, rows_of(ROWS / QUARTERS * q, ROWS / QUARTERS), &bytes));
    CHECK_INT(bytes, (end == BLOCKS ? BYTES : end * BLOCK) - first * BLOCK);
    CHECK(bytes < BYTES / QUARTERS + 2 * BLOCK);
  }
  CHECK_OK(read_box(step, rows_of(0, ROWS), &bytes));
  CHECK_INT(bytes, BYTES);
  CHECK_OK(read_box(step, rows_of(ROWS - 1, 1), &bytes)); /* in the short one */
  CHECK_INT(bytes, BYTES - (BLOCKS - 1) * BLOCK);
  CHECK_OK(fx_ckpt_verify(step, &bytes));
  CHECK_INT(bytes, BYTES);
}

/* Each block has some of the columns of a narrow matrix; of a wide one few have. */
static void columns_need_theirs(void) {
  enum { WIDE = ELEMENTS / 4 };
  const char *step = save_big("columns", 1);
  int64_t bytes = 0;
  fx_ckpt_region part =
      box_of(2, (int64_t[]){ROWS, COLUMNS}, (int64_t[]){0, 700}, (int64_t[]){ROWS, COLUMNS / 4});
  CHECK_OK(read_box(step, part, &bytes));
  CHECK_INT(bytes, BYTES);
  fx_ckpt_state state = state_of(1);
  fx_ckpt_region wide = box_of(2, (int64_t[]){4, WIDE}, (int64_t[]){0, 0}, (int64_t[]){4, WIDE});
  for (int64_t i = 0; i < ELEMENTS; i++) ((float *)wide.data)[i] = (float)i;
  CHECK_OK(fx_ckpt_save(NULL, sub_dir("columns"), &state, "", &wide, 1, 0, 1, 0, NULL, NULL));
  free(wide.data);
  part = box_of(2, (int64_t[]){4, WIDE}, (int64_t[]){0, 1100000}, (int64_t[]){4, 1000});
  CHECK_OK(read_box(step, part, &bytes)); /* bytes 4.4, 14.4, 24.4 and 34.4 million: blocks 2, 6, 11 and 16 */
  CHECK_INT(bytes, 4 * BLOCK);
}

/* Boxes of all sizes in three dimensions. */
static void boxes_need_theirs(void) {
  enum { BOXES = 200 };
  static const int64_t dim[3] = {40, 250, 1000}, none[3] = {0, 0, 0};
  const char *step = save_big("boxes", 1);
  fx_ckpt_state state = state_of(1);
  fx_ckpt_region whole = box_of(3, dim, none, dim);
  int64_t few = 0, bytes = 0;
  for (int64_t i = 0; i < ELEMENTS; i++) ((float *)whole.data)[i] = (float)i;
  CHECK_OK(fx_ckpt_save(NULL, sub_dir("boxes"), &state, "", &whole, 1, 0, 1, 0, NULL, NULL));
  free(whole.data);
  for (uint64_t seed = 0; seed < BOXES; seed++) {
    int64_t start[3], count[3];
    for (int d = 0; d < 3; d++) {
      uint32_t a = fx_philox_at(seed, 0xB0B0u, (uint64_t)d, 0).word[0],
               b = fx_philox_at(seed, 1, (uint64_t)d, 0).word[0];
      start[d] = a % dim[d];
      count[d] = seed % 3 == (uint64_t)d ? 1 : 1 + b % (dim[d] - start[d]);
    }
    fx_ckpt_region box = box_of(3, dim, start, count);
    int64_t met = bytes_met(&box);
    few += met < BYTES / 2;
    CHECK_OK(read_box(step, box, &bytes));
    CHECK_MSG(bytes == met, "seed %llu: expected %lld bytes, got %lld", (unsigned long long)seed,
              (long long)met, (long long)bytes);
  }
  CHECK_MSG(few > BOXES / 10 && few < BOXES, "%lld of %d boxes need few blocks", (long long)few, BOXES);
}

static void a_layout_reads_its_own(void) {
  const char *step = save_big("four", QUARTERS);
  int64_t bytes = 0;
  for (int64_t q = 0; q < QUARTERS; q++) {
    CHECK_OK(read_box(step, rows_of(ROWS / QUARTERS * q, ROWS / QUARTERS), &bytes));
    CHECK_INT(bytes, BYTES / QUARTERS);
  }
}

/* ---- the manifest ---- */

static fx_manifest manifest_of(const char *step) {
  char path[600], *text = NULL;
  size_t bytes = 0;
  fx_manifest m = {.n_shards = 0};
  snprintf(path, sizeof path, "%s/manifest.json", step);
  if (CHECK_OK(fx_files_read(path, &text, &bytes))) CHECK_OK(fx_manifest_parse(text, bytes, path, &m));
  free(text);
  return m;
}

/* Byte `at` of the one fragment becomes another. */
static void flip_payload(const char *step, int64_t at) {
  char path[600], byte = 0;
  fx_manifest m = manifest_of(step);
  snprintf(path, sizeof path, "%s/shard_00000.h5", step);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  CHECK(m.n_fragments == 1 && pread(fd, &byte, 1, m.fragments[0].offset + at) == 1);
  byte ^= 1;
  CHECK_INT(pwrite(fd, &byte, 1, m.fragments[0].offset + at), 1);
  close(fd);
  fx_manifest_fini(&m);
}

static char *payload_of(const char *step, const fx_manifest *m) {
  char path[600], *data = NULL;
  size_t bytes = 0;
  snprintf(path, sizeof path, "%s/shard_00000.h5", step);
  CHECK_OK(fx_files_read(path, &data, &bytes));
  memmove(data, data + m->fragments[0].offset, BYTES);
  return data;
}

static bool same(fx_hash128 a, fx_hash128 b) {
  return a.low == b.low && a.high == b.high;
}

static void a_hash_a_block(void) {
  static const struct {
    int64_t bytes, block, blocks;
  } rows[] = {{0, 64 << 10, 0},         {1, 64 << 10, 1},         {65537, 64 << 10, 2},
              {2 << 20, 64 << 10, 32},  {2097153, 128 << 10, 17}, {128 << 20, 4 << 20, 32},
              {134217729, 4 << 20, 33}, {BYTES, BLOCK, BLOCKS}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    CHECK_INT(fx_manifest_block_bytes(rows[i].bytes), rows[i].block);
    CHECK_INT(fx_manifest_blocks(rows[i].bytes), rows[i].blocks);
  }
  const char *step = save_big("hashes", 1);
  fx_manifest m = manifest_of(step);
  if (!CHECK_INT(m.n_fragments, 1) || !CHECK_INT(m.fragments[0].hashes, BLOCKS)) return;
  char *data = payload_of(step, &m);
  for (int64_t b = 0; b < BLOCKS; b++) {
    size_t bytes = b < BLOCKS - 1 ? BLOCK : BYTES - (BLOCKS - 1) * BLOCK;
    CHECK_MSG(same(m.hashes[m.fragments[0].first_hash + b], fx_hash128_of(data + b * BLOCK, bytes)),
              "block %lld", (long long)b);
  }
  free(data);
  fx_manifest_fini(&m);
}

static void write_manifest(const char *step, const char *body, size_t bytes) {
  char path[600];
  size_t sealed_bytes = 0;
  char *sealed = fx_manifest_seal(body, bytes, &sealed_bytes);
  snprintf(path, sizeof path, "%s/manifest.json", step);
  CHECK_OK(fx_files_write(path, sealed, sealed_bytes));
  free(sealed);
}

/* The text up to its seal; the first `from` in it, which is there, becomes `to`. */
static char *edited(const fx_manifest *m, const char *from, const char *to) {
  size_t bytes = 0;
  char *text = NULL;
  if (!CHECK_OK(fx_manifest_print(m, &text, &bytes))) return NULL;
  *strstr(text, ",\n\"manifest_xxh3_128\"") = '\0';
  char *at = strstr(text, from), *out = NULL;
  if (CHECK_MSG(at != NULL, "no %s", from))
    out = fx_strfmt("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  free(text);
  return out;
}

static void wrong_arrays(void) {
  static const struct {
    int64_t hashes; /* that are printed; the edit of the text comes after */
    const char *from, *to, *says;
  } rows[] = {
      {BLOCKS - 1, "\"xxh3_128\": [", "\"xxh3_128\": [", "expected a hash for each block of the fragment"},
      {BLOCKS, "\"xxh3_128\": [", "\"xxh3_128\": [7, ", "expected a hash for each block of the fragment"},
      {BLOCKS - 1, "\"xxh3_128\": [", "\"xxh3_128\": [7, ", "expected 32 lower-case hexadecimal digits"},
      {BLOCKS, "\"xxh3_128\": [\"", "\"xxh3_128\": [\"0", "expected 32 lower-case hexadecimal digits"},
      {BLOCKS, "\"version\": 2", "\"version\": 0", "format version 0 is not known"},
  };
  const char *step = save_big("wrong", 1);
  fx_manifest m = manifest_of(step);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fx_ckpt *ckpt = NULL;
    m.fragments[0].hashes = rows[i].hashes;
    char *body = edited(&m, rows[i].from, rows[i].to);
    if (body) write_manifest(step, body, strlen(body));
    fx_error_clear();
    CHECK_STATUS(fx_ckpt_open(step, &ckpt), FX_ERR_CHECKPOINT);
    CHECK_HAS(fx_error_text(), rows[i].says);
    free(body);
  }
  fx_manifest_fini(&m);
}

/* ---- damage ---- */

static void damage_is_named_where_it_is(void) {
  const char *step = save_big("damage", 1);
  int64_t bytes = 0;
  flip_payload(step, 5 * (int64_t)BLOCK + 7);
  CHECK_OK(read_box(step, rows_of(0, ROWS / 4), &bytes));
  CHECK_OK(read_box(step, rows_of(ROWS / 2, ROWS / 2), &bytes));
  for (int i = 0; i < 2; i++) {
    fx_error_clear();
    CHECK_STATUS(i ? fx_ckpt_verify(step, NULL) : read_box(step, rows_of(ROWS / 4, ROWS / 4), &bytes),
                 FX_ERR_CHECKPOINT);
    CHECK_HAS(fx_error_text(),
              "shard_00000.h5: the part of /model/big at [1048, 1440] does not match its hash");
  }
}

/* A fragment of several blocks with one hash. */
static void older_manifests_load(void) {
  const char *step = save_big("older", 1);
  int64_t bytes = 0;
  fx_manifest m = manifest_of(step);
  char *data = payload_of(step, &m);
  m.hashes[m.fragments[0].first_hash] = fx_hash128_of(data, BYTES);
  m.fragments[0].hashes = 1;
  char *body = edited(&m, "\"version\": 2", "\"version\": 1");
  if (body) write_manifest(step, body, strlen(body));
  CHECK_OK(fx_ckpt_verify(step, &bytes));
  CHECK_INT(bytes, BYTES);
  CHECK_OK(read_box(step, rows_of(ROWS / 4, ROWS / 4), &bytes));
  CHECK_INT(bytes, BYTES);
  flip_payload(step, 5 * (int64_t)BLOCK);
  CHECK_STATUS(read_box(step, rows_of(0, 1), &bytes), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "the part of /model/big at [0, 0] does not match its hash");
  free(body);
  free(data);
  fx_manifest_fini(&m);
}

/* ---- checking together ---- */

enum { CHECKERS = 3 };

typedef struct resumption {
  const char *dir, *mode;
  fx_status status[CHECKERS];
  int64_t bytes[CHECKERS];
  char path[CHECKERS][600], text[CHECKERS][2048];
} resumption;

static void resume_rank(fx_control *control, void *context) {
  resumption *r = context;
  const int rank = control->rank;
  fx_ckpt *ckpt = NULL;
  fx_error_clear();
  r->status[rank] = fx_ckpt_resume(control, r->dir, r->mode, NULL, &ckpt);
  r->bytes[rank] = ckpt ? fx_ckpt_bytes_read(ckpt) : -1;
  snprintf(r->path[rank], sizeof r->path[rank], "%s", ckpt ? fx_ckpt_path(ckpt) : "");
  snprintf(r->text[rank], sizeof r->text[rank], "%s", fx_error_text());
  fx_ckpt_close(ckpt);
}

/* path: of the step that all have then, each having read its share of it; NULL: all fail. noticed: the rank
 * that all have a sentence of, -1: nobody. */
static void resume_together(resumption *r, const char *path, int noticed) {
  char says[16];
  snprintf(says, sizeof says, "rank %d: ", noticed);
  run_ranks(CHECKERS, resume_rank, r);
  for (int rank = 0; rank < CHECKERS; rank++) {
    int64_t share = (BLOCKS - rank + CHECKERS - 1) / CHECKERS * (int64_t)BLOCK;
    if ((BLOCKS - 1) % CHECKERS == rank) share -= BLOCKS * (int64_t)BLOCK - BYTES;
    CHECK_STATUS(r->status[rank], path ? FX_OK : FX_ERR_CHECKPOINT);
    CHECK_STR(r->path[rank], path ? path : "");
    CHECK_INT(r->bytes[rank], path ? share : -1);
    if (noticed >= 0) CHECK_HAS(r->text[rank], says);
    if (noticed >= 0) CHECK_HAS(r->text[rank], "does not match its hash");
  }
}

/* Whichever block is damaged, a rank notices, and all go back together to the step before. */
static void ranks_check_shares(void) {
  char first[500], second[500];
  snprintf(first, sizeof first, "%s", save_big("shares", 1));
  snprintf(second, sizeof second, "%.*s2", (int)strlen(first) - 1, first);
  resumption any = {.dir = sub_dir("shares"), .mode = "auto"}, this = {.dir = any.dir, .mode = second};
  resume_together(&any, first, -1);
  CHECK_INT(shell("cp -r '%s' '%s'", first, second), 0);
  fx_temp_file(any.dir, "latest", "step_00000002\n");
  resume_together(&any, second, -1);
  for (int b = 0; b < BLOCKS; b++) {
    flip_payload(second, b * (int64_t)BLOCK + 9);
    resume_together(&this, NULL, b % CHECKERS);
    resume_together(&any, first, b % CHECKERS);
    CHECK_INT(shell("mv '%s.bad' '%s'", second, second), 0);
    flip_payload(second, b * (int64_t)BLOCK + 9); /* as it was */
  }
  resume_together(&this, second, -1);
}

static const fx_test g_tests[] = {
    {"a quarter of the rows, a quarter of the blocks", rows_need_their_blocks},
    {"columns", columns_need_theirs},
    {"boxes of three dimensions", boxes_need_theirs},
    {"the layout that saved", a_layout_reads_its_own},
    {"each block has its hash", a_hash_a_block},
    {"arrays of hashes that are wrong", wrong_arrays},
    {"damage, wanted or not", damage_is_named_where_it_is},
    {"manifests without blocks", older_manifests_load},
    {"ranks share the checking", ranks_check_shares},
};
FX_TEST_MAIN("core/checkpoint_blocks", g_tests)
