/* SPDX-License-Identifier: Apache-2.0 */
/* A thousand injected faults: the k-th call of a save fails (no space, input/output error, interruption, a
 * short write) for every k, the process dies at the k-th call for every k, and files of a finished step are
 * damaged at random. After each one the step before is whole, bit for bit, `resume: auto` finds a good step,
 * nothing is left behind, and the next save succeeds.
 *
 * The calls are taken over by defining them in this program, which also catches those that HDF5 makes. fsync
 * is counted but not carried out: what a power cut does to a disk cannot be tested this way. */
#undef _FORTIFY_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT, open64 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/checkpoint/files.h"
#include "data/h5/h5_file.h"
#include "dynamo_rt/base/philox.h"
#include "tests/core/checkpoint_ranks.h"

enum { CRASHED = 77, RANKS_HERE = 3, ROWS = 40, COLUMNS = 24 };

/* ---- faults ---- */

typedef enum call {
  CALL_OPEN,
  CALL_MKDIR,
  CALL_WRITE,
  CALL_PWRITE,
  CALL_FSYNC,
  CALL_RENAME,
  CALL_OTHER,
  CALLS
} call;
static const char *const g_call_names[CALLS] = {"open",  "mkdir",  "write", "pwrite",
                                                "fsync", "rename", "other"};

static struct {
  atomic_bool armed, fired;
  atomic_long seen[CALLS], all;
  call which; /* CALLS: none fails, they are only counted */
  long at;
  int error; /* 0: a short write */
  bool crash;
} g_fault;

static void disarm(void) {
  g_fault.armed = false;
}

static void arm(call which, long at, int error, bool crash) {
  for (int c = 0; c < CALLS; c++) g_fault.seen[c] = 0;
  g_fault.all = 0;
  g_fault.fired = false;
  g_fault.which = which;
  g_fault.at = at;
  g_fault.error = error;
  g_fault.crash = crash;
  g_fault.armed = true;
}

/* Whether this call is the one. */
static bool hit(call c) {
  if (!g_fault.armed) return false;
  long all = ++g_fault.all, seen = ++g_fault.seen[c];
  if (g_fault.crash && all == g_fault.at) _exit(CRASHED);
  if (g_fault.crash || c != g_fault.which || seen != g_fault.at) return false;
  g_fault.fired = true;
  return true;
}

static bool fails(call c) {
  if (!hit(c)) return false;
  errno = g_fault.error;
  return true;
}

static int open_file(const char *path, int flags, va_list args) {
  int mode = flags & O_CREAT ? va_arg(args, int) : 0;
  return fails(CALL_OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  int fd = open_file(path, flags, args);
  va_end(args);
  return fd;
}

int open64(const char *path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  int fd = open_file(path, flags, args);
  va_end(args);
  return fd;
}

int mkdir(const char *path, mode_t mode) {
  return fails(CALL_MKDIR) ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

/* Bytes to write instead of n; -1: fail. */
static ssize_t allowed(call c, size_t n) {
  if (!hit(c)) return (ssize_t)n;
  if (g_fault.error == 0) return (ssize_t)(n > 1 ? n / 2 : n);
  errno = g_fault.error;
  return -1;
}

ssize_t write(int fd, const void *data, size_t n) {
  ssize_t m = allowed(CALL_WRITE, n);
  return m < 0 ? -1 : (ssize_t)syscall(SYS_write, fd, data, (size_t)m);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
  ssize_t m = allowed(CALL_PWRITE, n);
  return m < 0 ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, data, (size_t)m, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) {
  return pwrite(fd, data, n, offset);
}

int fsync(int fd) {
  (void)fd;
  return fails(CALL_FSYNC) ? -1 : 0;
}

int rename(const char *from, const char *to) {
  return fails(CALL_RENAME) ? -1 : (int)syscall(SYS_rename, from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
  return fails(CALL_RENAME) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
}

/* Crashes only. */
int remove(const char *path) {
  hit(CALL_OTHER);
  int done = (int)syscall(SYS_unlink, path);
  return done == 0 || errno != EISDIR ? done : (int)syscall(SYS_rmdir, path);
}

int ftruncate64(int fd, off64_t bytes) {
  hit(CALL_OTHER);
  return (int)syscall(SYS_ftruncate, fd, bytes);
}

int close(int fd) {
  hit(CALL_OTHER);
  return (int)syscall(SYS_close, fd);
}

static int g_h5_opened;
int64_t H5Fopen(const char *path, unsigned flags, int64_t access);
int64_t H5Fopen(const char *path, unsigned flags, int64_t access) {
  int64_t (*real)(const char *, unsigned, int64_t) = NULL;
  g_h5_opened++;
  *(void **)&real = dlsym(RTLD_NEXT, "H5Fopen");
  return real ? real(path, flags, access) : -1;
}

/* ---- a small model ---- */

typedef struct small_save {
  const char *dir;
  int64_t step;
  int keep;
  uint64_t salt;
  atomic_int ok, failed;
  fx_status status; /* rank 0's */
  char text[1024];
} small_save;

static float element(int64_t i, int64_t step, uint64_t salt) {
  return (float)(fx_hash64(&i, sizeof i, salt * 1000 + (uint64_t)step) >> 40);
}

static void save_rows(fx_control *control, void *context) {
  small_save *s = context;
  int rank = control ? control->rank : 0, size = control ? control->size : 1;
  int64_t low = ROWS * rank / size, high = ROWS * (rank + 1) / size, count = s->step;
  float w[ROWS * COLUMNS];
  for (int64_t i = 0; i < (high - low) * COLUMNS; i++) w[i] = element(low * COLUMNS + i, s->step, s->salt);
  fx_ckpt_region regions[] = {
      {"/model/w", FX_F32, 2, {ROWS, COLUMNS}, {low, 0}, {high - low, COLUMNS}, w, 0},
      {"/optimizer/exp_avg/w", FX_F32, 2, {ROWS, COLUMNS}, {low, 0}, {high - low, COLUMNS}, w, 0},
      {"/model/count", FX_I64, 0, {0}, {0}, {0}, &count, 0}};
  fx_ckpt_state state = state_of(s->step);
  fx_status status =
      fx_ckpt_save(control, s->dir, &state, "", regions, rank == 0 ? 3 : 2, 0, 1, s->keep, NULL, NULL);
  *(status == FX_OK ? &s->ok : &s->failed) += 1;
  if (rank == 0) {
    s->status = status;
    snprintf(s->text, sizeof s->text, "%s", status == FX_OK ? "" : fx_error_text());
  }
}

static small_save save_small(const char *dir, int64_t step, uint64_t salt, int ranks, int keep) {
  small_save s = {.dir = dir, .step = step, .keep = keep, .salt = salt};
  fx_error_clear();
  if (ranks == 1)
    save_rows(NULL, &s);
  else
    run_ranks(ranks, save_rows, &s);
  disarm();
  CHECK_MSG(s.ok == ranks || s.failed == ranks, "%d ranks saved and %d did not", s.ok, s.failed);
  return s;
}

/* Elements of an opened step that are not those of (step, salt); -1: it cannot be read. */
static int64_t wrong_in(const fx_ckpt *ckpt, uint64_t salt) {
  int64_t step = fx_ckpt_state_get(ckpt)->step, count = 0, wrong = 0;
  float w[ROWS * COLUMNS], m[ROWS * COLUMNS];
  fx_ckpt_region regions[] = {
      {"/model/w", FX_F32, 2, {ROWS, COLUMNS}, {0}, {ROWS, COLUMNS}, w, 0},
      {"/optimizer/exp_avg/w", FX_F32, 2, {ROWS, COLUMNS}, {0}, {ROWS, COLUMNS}, m, 0},
      {"/model/count", FX_I64, 0, {0}, {0}, {0}, &count, 0}};
  if (fx_ckpt_read(ckpt, regions, 3) != FX_OK) return -1;
  for (int64_t i = 0; i < ROWS * COLUMNS; i++)
    wrong += w[i] != element(i, step, salt) || m[i] != element(i, step, salt);
  return wrong + (count != step);
}

/* The step is verified against its hashes and holds the elements of one of two salts. */
static bool step_holds(const char *dir, int64_t step, uint64_t salt, uint64_t or_salt) {
  char path[600];
  fx_ckpt *ckpt = NULL;
  snprintf(path, sizeof path, "%s/step_%08lld", dir, (long long)step);
  if (fx_ckpt_open(path, &ckpt) != FX_OK) return false;
  bool held =
      fx_ckpt_check(ckpt, NULL) == FX_OK && (wrong_in(ckpt, salt) == 0 || wrong_in(ckpt, or_salt) == 0);
  fx_ckpt_close(ckpt);
  return held;
}

/* What resume: auto takes; 0 when it fails. */
static int64_t resumed(const char *dir, uint64_t salt, uint64_t or_salt) {
  fx_ckpt *ckpt = NULL;
  if (fx_ckpt_resume(NULL, dir, "auto", NULL, &ckpt) != FX_OK || !ckpt) return 0;
  int64_t step = fx_ckpt_state_get(ckpt)->step;
  if (wrong_in(ckpt, salt) != 0 && wrong_in(ckpt, or_salt) != 0) step = 0;
  fx_ckpt_close(ckpt);
  return step;
}

static int entries(const char *dir, const char *ending) {
  int n = 0;
  DIR *stream = opendir(dir);
  for (struct dirent *e; stream && (e = readdir(stream));) {
    size_t length = strlen(e->d_name), tail = strlen(ending);
    n += e->d_name[0] != '.' && length >= tail && strcmp(e->d_name + length - tail, ending) == 0;
  }
  if (stream) closedir(stream);
  return n;
}

static void drop(const char *dir, const char *name) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  CHECK(fx_files_remove_tree(path));
}

static int g_faults; /* injected so far, all tests together */

/* ---- a call fails ---- */

/* One fault in a save of step 2 (fresh, or over one that is there) after step 1. */
static void one_failure(const char *dir, call which, long at, int error, int ranks, bool over) {
  enum { OLD = 1, NEW = 2 };
  if (!over) drop(dir, "step_00000002");
  arm(which, at, error, false);
  small_save s = save_small(dir, 2, NEW, ranks, 0);
  if (!g_fault.fired) return; /* fewer calls than when they were counted */
  g_faults++;
  char what[128];
  snprintf(what, sizeof what, "%s number %ld fails with %s, %d ranks%s", g_call_names[which], at,
           error ? strerror(error) : "a short write", ranks, over ? ", over an old step" : "");
  CHECK_MSG(s.status == FX_OK || s.status == FX_ERR_IO || s.status == FX_ERR_CHECKPOINT, "%s: %s: %s", what,
            fx_status_name(s.status), s.text);
  if (s.status != FX_OK) CHECK_MSG(s.text[0] && !strchr(s.text, '\n'), "%s: \"%s\"", what, s.text);
  bool retried = (which == CALL_WRITE || which == CALL_PWRITE) && (error == 0 || error == EINTR);
  if (retried) CHECK_MSG(s.status == FX_OK, "%s: %s", what, s.text);
  CHECK_MSG(step_holds(dir, 1, OLD, OLD), "%s: the step before is damaged: %s", what, fx_error_text());
  if (s.status == FX_OK) CHECK_MSG(step_holds(dir, 2, NEW, NEW), "%s: saved, but %s", what, fx_error_text());
  if (over) CHECK_MSG(step_holds(dir, 2, NEW, OLD), "%s: neither the old nor the new step 2", what);
  int64_t step = resumed(dir, OLD, NEW);
  CHECK_MSG(step == 2 || (step == 1 && s.status != FX_OK), "%s: resumed from %lld", what, (long long)step);
  CHECK_MSG(entries(dir, ".tmp") == 0 && entries(dir, ".bad") == 0, "%s: something is left behind", what);
  s = save_small(dir, 2, OLD, 1, 0);
  CHECK_MSG(s.status == FX_OK && resumed(dir, OLD, OLD) == 2, "%s: the next save: %s", what, s.text);
}

static void failures(void) {
  static const int errors[] = {ENOSPC, EIO, EINTR, 0};
  const char *dir = sub_dir("failures");
  int before = g_faults;
  save_small(dir, 1, 1, 1, 0);
  save_small(dir, 2, 1, 1, 0);
  int fds = entries("/proc/self/fd", "");
  for (int ranks = 1; ranks <= RANKS_HERE; ranks += RANKS_HERE - 1)
    for (int over = 0; over < 2; over++) {
      long counts[CALLS];
      if (!over) drop(dir, "step_00000002");
      arm(CALLS, 0, 0, false);
      save_small(dir, 2, 1, ranks, 0);
      for (int c = 0; c < CALLS; c++) counts[c] = g_fault.seen[c];
      for (int c = 0; c < CALL_OTHER; c++) {
        CHECK_MSG(counts[c] > 0, "a save makes no call of %s that this test sees", g_call_names[c]);
        for (long at = 1; at <= counts[c]; at++)
          for (int e = 0; e < 4; e++)
            if (errors[e] || c == CALL_WRITE || c == CALL_PWRITE)
              one_failure(dir, (call)c, at, errors[e], ranks, over != 0);
      }
    }
  CHECK_INT(entries("/proc/self/fd", ""), fds);
  fprintf(stderr, "%d failing calls ... ", g_faults - before);
  CHECK(g_faults - before > 100);
}

/* ---- the process dies ---- */

/* Dies at the at-th call of saving `step`; false when it came to the end. */
static bool dies(const char *dir, int64_t step, uint64_t salt, long at, int keep) {
  int result = 0;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    small_save s = {.dir = dir, .step = step, .salt = salt, .keep = keep};
    arm(CALLS, at, 0, true);
    save_rows(NULL, &s);
    _exit(s.status == FX_OK ? 0 : 1);
  }
  CHECK_INT(waitpid(child, &result, 0), child);
  CHECK_MSG(WIFEXITED(result) && (WEXITSTATUS(result) == CRASHED || WEXITSTATUS(result) == 0),
            "call %ld: the child ended with %x", at, (unsigned)result);
  return WIFEXITED(result) && WEXITSTATUS(result) == CRASHED;
}

static void crashes(void) {
  enum { OLD = 1, NEW = 2 };
  static const char *const kinds[] = {"fresh", "over an old step", "pruning"};
  int before = g_faults;
  for (int kind = 0; kind < 3; kind++) {
    const char *dir = sub_dir(kind == 0 ? "crash-fresh" : kind == 1 ? "crash-over" : "crash-prune");
    int64_t last = kind == 2 ? 3 : 2;
    for (long at = 1; at < 1000; at++) {
      save_small(dir, 1, OLD, 1, 0);
      if (kind > 0) save_small(dir, 2, OLD, 1, 0);
      if (kind != 1) drop(dir, kind == 0 ? "step_00000002" : "step_00000003");
      if (!dies(dir, last, NEW, at, kind == 2 ? 1 : 0)) break;
      g_faults++;
      if (kind < 2)
        CHECK_MSG(step_holds(dir, 1, OLD, OLD), "%s, call %ld: step 1 is damaged", kinds[kind], at);
      if (kind == 1) CHECK_MSG(step_holds(dir, 2, OLD, NEW), "over, call %ld: step 2 is lost", at);
      if (kind == 2)
        CHECK_MSG(step_holds(dir, 2, OLD, OLD) || step_holds(dir, 3, NEW, NEW), "pruning, call %ld: all lost",
                  at);
      int64_t step = resumed(dir, OLD, NEW);
      CHECK_MSG(step >= last - 1, "%s, call %ld: resumed from %lld", kinds[kind], at, (long long)step);
      CHECK_MSG(entries(dir, ".bad") == 0, "%s, call %ld: a whole step was put aside", kinds[kind], at);
      small_save s = save_small(dir, last, OLD, 1, 0);
      CHECK_MSG(s.status == FX_OK && resumed(dir, OLD, OLD) == last, "%s, call %ld: the next save: %s",
                kinds[kind], at, s.text);
      CHECK_MSG(!there_is(dir, "latest.tmp"), "%s, call %ld: latest.tmp stays", kinds[kind], at);
    }
  }
  fprintf(stderr, "%d crashes ... ", g_faults - before);
  CHECK(g_faults - before > 30);
}

/* ---- files are damaged ---- */

static size_t roll(uint64_t seed, uint64_t n, size_t below) {
  return fx_philox_at(seed, 0xDA3A6Eu, n, 0).word[0] % (below ? below : 1);
}

static void damage(const char *path, uint64_t seed) {
  char *data = NULL;
  size_t bytes = 0;
  if (!CHECK_OK(fx_files_read(path, &data, &bytes)) || !CHECK(bytes > 0)) return;
  size_t at = roll(seed, 1, bytes);
  switch (roll(seed, 2, 3)) {
  case 0:
    bytes = at;
    break;
  case 1:
    data[at] ^= (char)(1 << roll(seed, 3, 8));
    break;
  default:
    for (size_t i = at; i < bytes && i < at + 64; i++) data[i] ^= (char)(1 + roll(seed, 4 + i, 255));
    break;
  }
  CHECK_OK(fx_files_write(path, data, bytes));
  free(data);
}

static void damages(void) {
  enum { OLD = 1, NEW = 2, LEAST = 400 };
  static const char *const files[] = {"manifest.json", "index.h5", "shard_00000.h5", "shard_00001.h5"};
  const char *dir = sub_dir("damages");
  int before = g_faults, refused = 0, unread = 0;
  save_small(dir, 1, OLD, 2, 0);
  for (uint64_t seed = 0; g_faults - before < LEAST || g_faults < 1000; seed++, g_faults++) {
    const char *file = files[roll(seed, 0, 4)];
    char path[600];
    save_small(dir, 2, NEW, 2, 0);
    snprintf(path, sizeof path, "%s/step_00000002/%s", dir, file);
    damage(path, seed);
    g_h5_opened = 0;
    int64_t step = resumed(dir, OLD, NEW);
    bool shard = strncmp(file, "shard", 5) == 0; /* HDF5's own bytes of a shard are never read */
    CHECK_MSG(step == 1 || (step == 2 && shard), "seed %llu: %s damaged, resumed from %lld: %s",
              (unsigned long long)seed, file, (long long)step, fx_error_text());
    CHECK_MSG(there_is(dir, "step_00000002.bad") == (step == 1), "seed %llu: not put aside",
              (unsigned long long)seed);
    CHECK_MSG(step_holds(dir, 1, OLD, OLD), "seed %llu: the step before is damaged",
              (unsigned long long)seed);
    CHECK_MSG(g_h5_opened == 0, "seed %llu: HDF5 opened a file of a damaged step", (unsigned long long)seed);
    refused += step == 1;
    unread += step == 2;
    if (step == 1) drop(dir, "step_00000002.bad");
  }
  fprintf(stderr, "seeds 0 to %d: %d refused, %d in bytes that nobody reads ... ", g_faults - before - 1,
          refused, unread);
  CHECK(refused > LEAST / 2);
}

/* The counter of damages() sees an opening when there is one. */
static void opening_is_seen(void) {
  const char *dir = sub_dir("opening");
  char path[600];
  fx_h5_dataset info;
  void *data = NULL;
  save_small(dir, 1, 1, 1, 0);
  snprintf(path, sizeof path, "%s/step_00000001/index.h5", dir);
  g_h5_opened = 0;
  CHECK_OK(fx_h5_read(path, "/model/count", &info, &data));
  free(data);
  CHECK_INT(g_h5_opened, 1);
}

static const fx_test g_tests[] = {
    {"a call fails", failures},
    {"the process dies", crashes},
    {"files are damaged, a thousand faults in all", damages},
    {"opening is seen", opening_is_seen},
};
FX_TEST_MAIN("core/checkpoint_faults", g_tests)
