/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are damaged, foreign, edited or cut, random edits of the manifest with and without a fresh
 * seal, and a disk that is really full. Each is one sentence, never a crash and never a wrong load, and
 * `resume: auto` goes back to the step before. */
#define _GNU_SOURCE /* unshare */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/checkpoint/files.h"
#include "core/checkpoint/manifest.h"
#include "dynamo_rt/base/philox.h"
#include "tests/core/checkpoint_ranks.h"

enum { RANKS = 3, SALT = 5 };

/* HDF5 1.10 keeps its own file structures when H5Fclose fails on a full disk. Read by the leak sanitizer
 * only; the other suites run without. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
  return "leak:libhdf5";
}

/* A directory with steps 1 and 2, by copying; the originals are saved once. */
static const char *fresh_dir(const char *name) {
  static char origin[400];
  if (!origin[0]) {
    snprintf(origin, sizeof origin, "%s", sub_dir("origin"));
    save_table(origin, 1, RANKS, CUT_ROWS, 1, SALT + 1, 0);
    save_table(origin, 2, RANKS, CUT_ROWS, 1, SALT, 0);
  }
  const char *dir = sub_dir(name);
  CHECK_INT(shell("cp -r '%s' '%s'", origin, dir), 0);
  return dir;
}

/* Not inlined: GCC 12 then takes the malloc'ed result for a pointer to the local variable. */
__attribute__((noinline)) static char *read_text(const char *dir, const char *name, size_t *bytes) {
  char path[600], *text = NULL;
  snprintf(path, sizeof path, "%s/%s", dir, name);
  CHECK_OK(fx_files_read(path, &text, bytes));
  return text;
}

static void write_bytes(const char *dir, const char *name, const char *data, size_t bytes) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  CHECK_OK(fx_files_write(path, data, bytes));
}

static void flip_byte(const char *dir, const char *name, int64_t offset) {
  size_t bytes = 0;
  char *text = read_text(dir, name, &bytes);
  if (CHECK(text && offset < (int64_t)bytes)) {
    text[offset] ^= 1;
    write_bytes(dir, name, text, bytes);
  }
  free(text);
}

/* Reading everything from step 2: FX_OK only with the right elements. */
static fx_status load_step(const char *step) {
  fx_ckpt_region regions[TENSORS];
  fx_ckpt *ckpt = NULL;
  FX_TRY(fx_ckpt_open(step, &ckpt));
  int64_t n = make_regions(regions, CUT_COLUMNS, 0, 1, false);
  fx_status status = fx_ckpt_read(ckpt, regions, n);
  if (status == FX_OK) CHECK_INT(wrong_elements(regions, n, SALT), 0);
  free_regions(regions, n);
  fx_ckpt_close(ckpt);
  return status;
}

/* ---- damage to files ---- */

static int64_t payload_offset(const char *step) {
  size_t bytes = 0;
  char *text = read_text(step, "manifest.json", &bytes);
  fx_manifest m;
  int64_t offset = -1;
  if (text && CHECK_OK(fx_manifest_parse(text, bytes, "manifest", &m))) {
    for (int64_t i = 0; i < m.n_fragments; i++)
      if (m.fragments[i].shard == 1) offset = m.fragments[i].offset + m.fragments[i].bytes - 1;
    fx_manifest_fini(&m);
  }
  free(text);
  return offset;
}

static void flip_payload(const char *step) {
  flip_byte(step, "shard_00001.h5", payload_offset(step));
}
static void cut_shard(const char *step) {
  CHECK_INT(shell("truncate -s -1 '%s/%s'", step, "shard_00002.h5"), 0);
}
static void empty_shard(const char *step) {
  CHECK_INT(shell("truncate -s 0 '%s/%s'", step, "shard_00000.h5"), 0);
}
static void remove_shard(const char *step) {
  CHECK_INT(shell("rm '%s/%s'", step, "shard_00001.h5"), 0);
}
static void foreign_shard(const char *step) {
  CHECK_INT(shell("cp '%s/../step_00000001/shard_00001.h5' '%s/shard_00001.h5'", step, step), 0);
}
static void edit_index(const char *step) {
  flip_byte(step, "index.h5", 2000);
}
static void remove_index(const char *step) {
  CHECK_INT(shell("rm '%s/%s'", step, "index.h5"), 0);
}
static void edit_manifest(const char *step) {
  CHECK_INT(shell("sed -i 's/\"skipped\": 1/\"skipped\": 0/' '%s/%s'", step, "manifest.json"), 0);
}
static void garbage_manifest(const char *step) {
  write_bytes(step, "manifest.json", "{\"format\": 1}\n", 14);
}
static void empty_manifest(const char *step) {
  write_bytes(step, "manifest.json", "", 0);
}
static void remove_manifest(const char *step) {
  CHECK_INT(shell("rm '%s/%s'", step, "manifest.json"), 0);
}
static void manifest_directory(const char *step) {
  CHECK_INT(shell("rm '%s/manifest.json' && mkdir '%s/manifest.json'", step, step), 0);
}

static const struct {
  const char *name;
  void (*damage)(const char *step);
  const char *file, *says;
  bool loads; /* index.h5 is not needed for loading */
} g_damages[] = {
    {"flip", flip_payload, "shard_00001.h5", "does not match its hash", false},
    {"cut", cut_shard, "shard_00002.h5", "is cut: it ends before byte", false},
    {"empty", empty_shard, "shard_00000.h5", "is cut: it ends before byte", false},
    {"gone", remove_shard, "shard_00001.h5", "No such file", false},
    {"foreign", foreign_shard, "shard_00001.h5", "belongs to another step", false},
    {"index", edit_index, "index.h5", "does not match its hash", true},
    {"no-index", remove_index, "index.h5", "No such file", true},
    {"edited", edit_manifest, "manifest.json", "was edited", false},
    {"garbage", garbage_manifest, "manifest.json", "does not match the hash", false},
    {"void", empty_manifest, "manifest.json", "does not match the hash", false},
    {"no-manifest", remove_manifest, "manifest.json", "No such file", false},
    {"directory", manifest_directory, "manifest.json", "is not a file", false},
};

static void damages(void) {
  for (size_t i = 0; i < sizeof g_damages / sizeof g_damages[0]; i++) {
    const char *dir = fresh_dir(g_damages[i].name);
    char step[500];
    fx_ckpt *ckpt = NULL;
    snprintf(step, sizeof step, "%s/step_00000002", dir);
    CHECK_OK(fx_ckpt_verify(step, NULL));
    g_damages[i].damage(step);
    fx_error_clear();
    CHECK_STATUS(fx_ckpt_verify(step, NULL), FX_ERR_CHECKPOINT);
    CHECK_HAS(fx_error_text(), g_damages[i].file);
    CHECK_HAS(fx_error_text(), g_damages[i].says);
    CHECK_STATUS(load_step(step), g_damages[i].loads ? FX_OK : FX_ERR_CHECKPOINT);
    CHECK_STATUS(fx_ckpt_resume(NULL, dir, step, NULL, &ckpt), FX_ERR_CHECKPOINT);
    CHECK_MSG(there_is(dir, "step_00000002"), "%s: an explicit path was renamed", g_damages[i].name);
    if (!CHECK_OK(fx_ckpt_resume(NULL, dir, "auto", NULL, &ckpt)) || !CHECK(ckpt != NULL)) continue;
    CHECK_INT(fx_ckpt_state_get(ckpt)->step, 1);
    check_table(ckpt, CUT_ROWS, 2, SALT + 1);
    fx_ckpt_close(ckpt);
    CHECK(there_is(dir, "step_00000002.bad") && !there_is(dir, "step_00000002"));
  }
}

static void resume(void) {
  const char *dir = fresh_dir("resume");
  fx_ckpt *ckpt = NULL;
  char step[500], text[4096] = "";
  FILE *stream = fmemopen(text, sizeof text, "w");
  fx_log log = {stream, FX_LOG_INFO, 0, 1};
  CHECK_OK(fx_ckpt_resume(NULL, dir, "none", NULL, &ckpt));
  CHECK(ckpt == NULL);
  CHECK_OK(fx_ckpt_resume(NULL, sub_dir("nothing-here"), "auto", NULL, &ckpt));
  CHECK(ckpt == NULL);
  CHECK_STATUS(fx_ckpt_resume(NULL, dir, sub_dir("nothing-here"), NULL, &ckpt), FX_ERR_CHECKPOINT);
  CHECK_HAS(fx_error_text(), "no complete step at");
  if (CHECK_OK(fx_ckpt_resume(NULL, sub_dir("x"), dir, NULL, &ckpt)))
    CHECK_INT(fx_ckpt_state_get(ckpt)->step, 2);
  fx_ckpt_close(ckpt);
  fx_temp_file(dir, "latest", "step_00000001\n"); /* someone goes back on purpose */
  if (CHECK_OK(fx_ckpt_resume(NULL, dir, "auto", NULL, &ckpt))) CHECK_INT(fx_ckpt_state_get(ckpt)->step, 1);
  fx_ckpt_close(ckpt);
  ckpt = NULL;
  snprintf(step, sizeof step, "%s/step_00000001", dir);
  flip_payload(step);
  if (CHECK_OK(fx_ckpt_resume(NULL, dir, "auto", &log, &ckpt))) CHECK_INT(fx_ckpt_state_get(ckpt)->step, 2);
  fx_ckpt_close(ckpt);
  ckpt = NULL;
  CHECK_HAS(text, "warning: ");
  CHECK_HAS(text, "shard_00001.h5");
  CHECK_HAS(text, "step_00000001.bad");
  snprintf(step, sizeof step, "%s/step_00000002", dir);
  flip_payload(step);
  for (int again = 0; again < 2;
       again++) { /* the second time nothing but .bad is left: still no fresh start */
    CHECK_STATUS(fx_ckpt_resume(NULL, dir, "auto", NULL, &ckpt), FX_ERR_CHECKPOINT);
    CHECK_HAS(fx_error_text(), "none of its steps is good");
  }
  CHECK(ckpt == NULL);
  fclose(stream);
}

/* ---- the manifest ---- */

/* The text without its seal. */
static size_t body_bytes_of(const char *text) {
  return (size_t)(strstr(text, ",\n\"manifest_xxh3_128\"") - text);
}

static void reseal(const char *step, const char *body, size_t bytes) {
  size_t sealed_bytes = 0;
  char *sealed = fx_manifest_seal(body, bytes, &sealed_bytes);
  write_bytes(step, "manifest.json", sealed, sealed_bytes);
  free(sealed);
}

/* Replaces the first `from` behind `after`; everything else is valid, so the sentence is about this. */
static void strict_manifest(void) {
  static const struct {
    const char *after, *from, *to, *says;
  } rows[] = {
      {"", "\"flexion-checkpoint\"", "\"other\"", "format: expected flexion-checkpoint"},
      {"", "\"version\": 2", "\"version\": 3", "format version 3 is not known"},
      {"", "\"version\": 2", "\"version\": 2.0", "version: expected an integer"},
      {"", "\"version\": 2", "\"version\": 2, \"more\": 2", "expected an object of 11 members"},
      {"", "\"step\": 2", "\"step\": -2", "step: expected an integer that is not negative"},
      {"", "\"step\": 2", "\"step\": 99999999999999999999", "manifest.json:4:"},
      {"", "\"step\": 2", "\"step\": 2, \"step\": 2", "duplicate"},
      {"", "\"skipped\": 1", "\"skipped\": true", "trainer.skipped: expected an integer"},
      {"", "\"loss_scale\": 65536.5", "\"loss_scale\": \"1\"",
       "trainer.loss_scale: expected a finite number"},
      {"", "\"index.h5\"", "\"../index.h5\"", "index.file: expected index.h5"},
      {"", "[\"shard_00000.h5\"", "[\"../hard_000.h5\"", "shards: expected a shard_00000.h5"},
      {"", "[\"shard_00000.h5\"", "[\"shard_00256.h5\"", "shards: expected a shard_00000.h5"},
      {"", "[\"shard_00000.h5\"", "[\"shard_00001.h5\"", "shards: expected each file once"},
      {"", "[\"shard_00000.h5\", ", "[", "].file: expected one of the shards"},
      {"tensors", "float64", "float63", "has an unknown dtype"},
      {"tensors", "\"shape\": [3, 2, 5, 4]", "\"shape\": [3, 2, 5, 4, 1]", "at most 4"},
      {"tensors", "\"shape\": [3, 2, 5, 4]", "\"shape\": [3, 2, 5, -4]", "not negative"},
      {"tensors", "\"shape\": [5, 3, 7]", "\"shape\": [4611686018427387904, 3, 7]", "larger than 2^63"},
      {"tensors", "/model/bytes", "/model/../tes", "is no tensor path"},
      {"tensors", "/model/bytes", "/trainer/tes", "is no tensor path"},
      {"tensors", "/model/bytes", "/model/z", "sorted by path"},
      {"tensors", "/model/bytes", "/model/byte", "fragments[0].tensor: expected one of the tensors"},
      {"tensors", "[13]", "[14]", "has 14 elements, its parts have 13"},
      {"tensors", "[13]", "[12]", "reaches outside of it"},
      {"fragments", "\"start\": [0]", "\"start\": [1]", "is held twice"},
      {"fragments", "\"start\": [0]", "\"start\": [9223372036854775807]", "reaches outside of it"},
      {"fragments", "\"count\": [4]", "\"count\": [0]", "expected no empty fragment"},
      {"fragments", "\"count\": [4]", "\"count\": [3]", "bytes: expected count times"},
      {"fragments", "\"start\": [0]", "\"start\": []", "one number a dimension"},
      {"fragments", "shard_00000.h5", "/etc/passwd.h5", "file: expected a shard_00000.h5"},
      {"fragments", "shard_00000.h5", "shard_00007.h5", "file: expected one of the shards"},
      {"fragments", "\"offset\": ", "\"offset\": 9223372036854775807, \"o\": ", "an object of 7 members"},
      {"fragments", "\"xxh3_128\": \"", "\"xxh3_128\": \"g", "32 lower-case hexadecimal digits"},
      {"fragments", "\"bytes\": ", "\"bytes\": \"1\", \"x\": ", "an object of 7 members"},
  };
  const char *dir = fresh_dir("strict");
  char step[500];
  size_t bytes = 0;
  snprintf(step, sizeof step, "%s/step_00000002", dir);
  char *text = read_text(step, "manifest.json", &bytes);
  size_t body = body_bytes_of(text);
  reseal(step, text, body);
  CHECK_OK(load_step(step));
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char *edited = malloc(body + 256), *list = strstr(text, rows[i].after);
    char *at = list ? strstr(list, rows[i].from) : NULL;
    if (!CHECK_MSG(at != NULL, "row %zu: no %s", i, rows[i].from)) {
      free(edited);
      continue;
    }
    size_t head = (size_t)(at - text), tail = head + strlen(rows[i].from);
    memcpy(edited, text, head);
    strcpy(edited + head, rows[i].to); // NOLINT: room for it
    memcpy(edited + head + strlen(rows[i].to), text + tail, body - tail);
    reseal(step, edited, body - strlen(rows[i].from) + strlen(rows[i].to));
    fx_error_clear();
    CHECK_MSG(load_step(step) == FX_ERR_CHECKPOINT, "row %zu (%s): accepted", i, rows[i].to);
    CHECK_HAS(fx_error_text(), rows[i].says);
    CHECK_HAS(fx_error_text(), "manifest.json");
    CHECK(!strchr(fx_error_text(), '\n'));
    free(edited);
  }
  free(text);
}

typedef struct dice {
  uint64_t seed, next;
} dice;

static size_t roll(dice *d, size_t below) {
  return fx_philox_at(d->seed, 0xF022u, d->next++, 0).word[0] % (below ? below : 1);
}

/* One random edit in place; *bytes changes. `text` has room for 64 bytes more. */
static void mutate(dice *d, char *text, size_t *bytes) {
  static const char *const words[] = {"-1",    "0",      "1",    "2",     "4294967296", "9223372036854775807",
                                      "1e300", "null",   "true", "\"x\"", "[]",         "{}",
                                      "[[[[",  "\\u0000"};
  size_t at = roll(d, *bytes), length;
  switch (roll(d, 5)) {
  case 0:
    text[at] = (char)roll(d, 256);
    break;
  case 1:
    text[at] ^= (char)(1 << roll(d, 8));
    break;
  case 2: /* cut a piece out */
    length = roll(d, 40) < *bytes - at ? roll(d, 40) % (*bytes - at) : *bytes - at;
    memmove(text + at, text + at + length, *bytes - at - length);
    *bytes -= length;
    break;
  case 3: /* a word instead of the next number */
    while (at < *bytes && (text[at] < '0' || text[at] > '9')) at++;
    for (length = 0; at + length < *bytes && text[at + length] >= '0' && text[at + length] <= '9';) length++;
    const char *word = words[roll(d, sizeof words / sizeof words[0])];
    memmove(text + at + strlen(word), text + at + length, *bytes - at - length);
    memcpy(text + at, word, strlen(word)); // NOLINT: into the middle of a text
    *bytes = *bytes - length + strlen(word);
    break;
  default: /* a piece from elsewhere */
    length = roll(d, 30);
    if (at + length <= *bytes) memmove(text + at, text + roll(d, *bytes - length), length);
    break;
  }
}

static void random_manifests(void) {
  enum { ROUNDS = 600 };
  const char *dir = fresh_dir("random");
  char step[500];
  size_t bytes = 0;
  int refused = 0, loaded = 0;
  snprintf(step, sizeof step, "%s/step_00000002", dir);
  char *text = read_text(step, "manifest.json", &bytes);
  for (uint64_t seed = 0; seed < ROUNDS; seed++) {
    dice d = {seed, 0};
    bool sealed = seed % 2;
    size_t size = sealed ? body_bytes_of(text) : bytes, edits = 1 + roll(&d, 3);
    const size_t before = size;
    char *edited = calloc(size + 3 * 64, 1);
    memcpy(edited, text, size);
    for (size_t e = 0; e < edits; e++) mutate(&d, edited, &size);
    bool same = size == before && memcmp(edited, text, size) == 0;
    if (sealed)
      reseal(step, edited, size);
    else
      write_bytes(step, "manifest.json", edited, size);
    fx_error_clear();
    fx_status status = load_step(step); /* checks the elements itself */
    bool fine = status == FX_OK ? same || sealed : status == FX_ERR_CHECKPOINT && fx_error_text()[0];
    CHECK_MSG(fine, "seed %llu: %s: %s", (unsigned long long)seed, fx_status_name(status), fx_error_text());
    refused += status != FX_OK;
    loaded += sealed && status == FX_OK;
    free(edited);
  }
  free(text);
  CHECK_MSG(refused > ROUNDS / 2, "only %d of %d edits were refused", refused, ROUNDS);
  printf("(%d refused, %d resealed ones loaded right) ", refused, loaded);
}

/* ---- a full disk ---- */

#define NEED(cond)                                                                                     \
  do {                                                                                                 \
    if (!(cond)) {                                                                                     \
      fprintf(stderr, "\n%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #cond, fx_error_text()); \
      return 1;                                                                                        \
    }                                                                                                  \
  } while (0)

/* Root of a fresh mount namespace, so that the file system goes away with the process. */
static int own_mounts(void) {
  char map[64];
  uid_t uid = geteuid();
  if (uid == 0)
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 ? 0 : -1;
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return -1;
  int length = snprintf(map, sizeof map, "0 %u 1", uid), fd = open("/proc/self/uid_map", O_WRONLY);
  int held = fd >= 0 && write(fd, map, (size_t)length) == length;
  if (fd >= 0) close(fd);
  return held ? 0 : -1;
}

static void fill_disk(const char *path, int64_t leave) {
  static const char block[4096];
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  while (write(fd, block, sizeof block) == (ssize_t)sizeof block) continue;
  int64_t size = lseek(fd, 0, SEEK_END);
  if (ftruncate(fd, size > leave ? size - leave : 0) != 0) abort();
  close(fd);
}

static fx_status save_floats(const char *dir, int64_t step, int64_t n) {
  float *data = calloc((size_t)n, sizeof *data);
  fx_ckpt_state state = state_of(step);
  fx_ckpt_region region = {
      .path = "/model/w", .dtype = FX_F32, .ndim = 1, .dim = {n}, .count = {n}, .data = data};
  fx_status status = fx_ckpt_save(NULL, dir, &state, g_config, &region, 1, 0, 1, 0, NULL, NULL);
  free(data);
  return status;
}

/* Rank 1 alone has more than fits. */
static void save_uneven(fx_control *control, void *context) {
  save_case *c = context;
  int64_t n = control->rank == 1 ? 2000000 : 10;
  char path[32];
  float *data = calloc((size_t)n, sizeof *data);
  snprintf(path, sizeof path, "/model/w%d", control->rank);
  fx_ckpt_state state = state_of(c->step);
  fx_ckpt_region region = {.path = path, .dtype = FX_F32, .ndim = 1, .dim = {n}, .count = {n}, .data = data};
  fx_status status = fx_ckpt_save(control, c->dir, &state, "", &region, 1, 0, 1, 0, NULL, NULL);
  pthread_mutex_lock(&g_case_lock);
  c->failures += status == FX_ERR_IO && strstr(fx_error_text(), "rank 1: ") &&
                 strstr(fx_error_text(), "shard_00001.h5 cannot be written: No space left on device");
  pthread_mutex_unlock(&g_case_lock);
  free(data);
}

static int on_full_disk(const char *disk) {
  char dir[500], filler[500], name[64], *found = NULL;
  int failed = 0, saved = 0;
  snprintf(dir, sizeof dir, "%s/run", disk);
  snprintf(filler, sizeof filler, "%s/filler", disk);
  NEED(save_floats(dir, 1, 700000) == FX_OK);
  /* payload does not fit */
  NEED(save_floats(dir, 2, 2000000) == FX_ERR_IO);
  NEED(strstr(fx_error_text(), "shard_00000.h5 cannot be written: No space left on device"));
  NEED(!there_is(dir, "step_00000002.tmp") && !there_is(dir, "step_00000002"));
  save_case uneven = {.dir = dir, .step = 3};
  run_ranks(RANKS, save_uneven, &uneven);
  NEED(uneven.failures == RANKS && !there_is(dir, "step_00000003.tmp"));
  /* no rank has room */
  fill_disk(filler, 300000);
  save_case c = {.dir = dir, .step = 3, .how = CUT_ROWS, .replicas = 1};
  run_ranks(RANKS, save_rank, &c);
  NEED(c.failures == RANKS && c.status == FX_ERR_IO && strstr(c.text, "No space left on device"));
  NEED(!there_is(dir, "step_00000003.tmp"));
  /* full at each stage: layout, payload, index, manifest, pointer */
  for (int64_t leave = 0; leave <= 64 * 1024; leave += 4096) {
    fill_disk(filler, leave);
    fx_status status = save_floats(dir, 4, 2000);
    snprintf(name, sizeof name, "step_00000004");
    NEED(status == FX_OK || status == FX_ERR_IO);
    NEED(status == FX_OK || strstr(fx_error_text(), "No space left on device"));
    NEED(!there_is(dir, "step_00000004.tmp") && !there_is(dir, "latest.tmp"));
    NEED(there_is(dir, name) == (status == FX_OK));
    failed += status != FX_OK;
    saved += status == FX_OK;
    if (status == FX_OK) {
      NEED(shell("test \"$(cat '%s/latest')\" = %s", dir, name) == 0);
      NEED(shell("rm -r '%s/%s'", dir, name) == 0);
    }
  }
  NEED(failed > 1 && saved > 1);
  NEED(fx_ckpt_find(dir, &found) == FX_OK && found && strstr(found, "step_00000001"));
  NEED(fx_ckpt_verify(found, NULL) == FX_OK);
  free(found);
  /* and it goes on once there is room */
  NEED(unlink(filler) == 0 && save_floats(dir, 5, 2000) == FX_OK);
  NEED(fx_ckpt_find(dir, &found) == FX_OK && strstr(found, "step_00000005"));
  NEED(fx_ckpt_verify(found, NULL) == FX_OK);
  free(found);
  return 0;
}

static void full_disk(void) {
  enum { NO_NAMESPACE = 77 };
  const char *disk = sub_dir("disk");
  int result = 0;
  CHECK_INT(mkdir(disk, 0700), 0);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    if (own_mounts() != 0 || mount("tmpfs", disk, "tmpfs", 0, "size=8m") != 0) {
      fprintf(stderr, "\nno 8 MiB tmpfs: %s\n", strerror(errno));
      _exit(NO_NAMESPACE);
    }
    exit(on_full_disk(disk)); /* not _exit: HDF5 must survive the end of the process, too */
  }
  CHECK_INT(waitpid(child, &result, 0), child);
  if (WIFEXITED(result) && WEXITSTATUS(result) == NO_NAMESPACE && geteuid() != 0) {
    fprintf(stderr, "\nNOT TESTED: a full disk needs root or user namespaces\n");
    return;
  }
  CHECK_MSG(WIFEXITED(result), "the process on the full disk ended with signal %d", WTERMSIG(result));
  CHECK_INT(WEXITSTATUS(result), 0);
}

static const fx_test g_tests[] = {
    {"damaged files, and the step before", damages},
    {"resume", resume},
    {"strict manifest", strict_manifest},
    {"random manifests", random_manifests},
    {"full disk", full_disk},
};
FX_TEST_MAIN("core/checkpoint_damage", g_tests)
