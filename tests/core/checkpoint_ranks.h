/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint suites share: ranks as threads behind a control channel of their own, a table of
 * tensors whose elements are hash(path, index), and the cutting of them into regions in several ways. */
#ifndef FX_TESTS_CORE_CHECKPOINT_RANKS_H
#define FX_TESTS_CORE_CHECKPOINT_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/checkpoint/checkpoint.h"
#include "dynamo_rt/base/hash.h"
#include "tests/harness.h"

/* ---- ranks ---- */

enum { MAX_RANKS = 320 };

typedef struct meeting {
  pthread_barrier_t barrier;
  const void *data[MAX_RANKS];
  int64_t bytes[MAX_RANKS];
} meeting;

typedef struct thread_control {
  fx_control base;
  meeting *shared;
} thread_control;

static inline fx_status meet_all_gather(fx_control *control, const void *mine, int64_t bytes, char **all,
                                        int64_t *offsets, int timeout_ms) {
  meeting *m = ((thread_control *)control)->shared;
  (void)timeout_ms;
  m->data[control->rank] = mine;
  m->bytes[control->rank] = bytes;
  pthread_barrier_wait(&m->barrier);
  offsets[0] = 0;
  for (int r = 0; r < control->size; r++) offsets[r + 1] = offsets[r] + m->bytes[r];
  char *out = calloc((size_t)offsets[control->size] + 1, 1);
  for (int r = 0; r < control->size; r++)
    if (m->bytes[r]) memcpy(out + offsets[r], m->data[r], (size_t)m->bytes[r]);
  pthread_barrier_wait(&m->barrier);
  *all = out;
  return FX_OK;
}

static const fx_control_vtable g_meet_vtable = {.transport = "test", .all_gather = meet_all_gather};

typedef struct rank_job {
  thread_control control;
  void (*run)(fx_control *control, void *context);
  void *context;
} rank_job;

static inline void *rank_main(void *argument) {
  rank_job *job = argument;
  job->run(&job->control.base, job->context);
  return NULL;
}

/* Runs the function once a rank, each on a thread of its own, and waits for all. */
static inline void run_ranks(int size, void (*run)(fx_control *control, void *context), void *context) {
  static rank_job jobs[MAX_RANKS];
  static meeting shared;
  pthread_t threads[MAX_RANKS];
  pthread_barrier_init(&shared.barrier, NULL, (unsigned)size);
  for (int r = 0; r < size; r++) {
    jobs[r] = (rank_job){{{&g_meet_vtable, r, size}, &shared}, run, context};
    if (pthread_create(&threads[r], NULL, rank_main, &jobs[r]) != 0) abort();
  }
  for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&shared.barrier);
}

/* ---- tensors ---- */

typedef struct test_tensor {
  const char *path;
  fx_dtype dtype;
  int ndim;
  int64_t dim[FX_CKPT_DIMS];
} test_tensor;

static const test_tensor g_tensors[] = {
    {"/model/wte.weight", FX_F32, 2, {1001, 48}}, /* large enough for replicas to share its rows */
    {"/model/h.0.attn.c_attn.weight", FX_F32, 2, {48, 145}},
    {"/model/h.0.ln_1.weight", FX_F32, 1, {48}},
    {"/model/half", FX_BF16, 2, {7, 3}},
    {"/model/half_long", FX_BF16, 2, {3000, 17}},
    {"/model/deep", FX_F64, 3, {5, 3, 7}},
    {"/model/deeper", FX_I32, 4, {3, 2, 5, 4}},
    {"/model/two_bytes", FX_BF16, 1, {1}},
    {"/model/scalar", FX_BF16, 0, {0}},
    {"/model/count", FX_I64, 0, {0}},
    {"/model/none", FX_F32, 2, {0, 5}},
    {"/model/f16", FX_F16, 2, {4, 4}},
    {"/model/bytes", FX_U8, 1, {13}},
    {"/optimizer/exp_avg/wte.weight", FX_F32, 2, {1001, 48}},
    {"/optimizer/exp_avg_sq/wte.weight", FX_F32, 2, {1001, 48}},
};
enum { TENSORS = sizeof g_tensors / sizeof g_tensors[0] };

static inline void element_at(const test_tensor *t, int64_t index, uint64_t salt, void *out) {
  uint64_t h = fx_hash64(&index, sizeof index, fx_hash64_text(t->path) + salt);
  float value = (float)(h >> 40) / 8388608.0f - 1.0f;
  double wide = (double)(h >> 11) / 9007199254740992.0;
  uint16_t half = t->dtype == FX_BF16 ? fx_f32_to_bf16(value) : (uint16_t)(h & 0xBBFF); /* f16: finite */
  switch (t->dtype) {
  case FX_F32:
    memcpy(out, &value, 4);
    break;
  case FX_F64:
    memcpy(out, &wide, 8);
    break;
  case FX_BF16:
  case FX_F16:
    memcpy(out, &half, 2);
    break;
  default:
    memcpy(out, &h, fx_dtype_bytes(t->dtype));
    break;
  }
}

static inline int64_t box_elements(int ndim, const int64_t *count) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= count[d];
  return n;
}

/* Where the i-th element of the region lies in the whole tensor. */
static inline int64_t global_index(const fx_ckpt_region *r, int64_t i) {
  int64_t index = 0, stride = 1;
  for (int d = r->ndim - 1; d >= 0; d--) {
    index += (r->start[d] + i % r->count[d]) * stride;
    stride *= r->dim[d];
    i /= r->count[d];
  }
  return index;
}

/* ---- cutting ---- */

typedef enum cut { CUT_ROWS, CUT_COLUMNS, CUT_GRID, CUT_MIDDLE } cut; /* middle: dim 1 of 3 and more */

static inline void cut_dim(fx_ckpt_region *r, int d, int part, int parts) {
  int64_t n = r->dim[d], low = n * part / parts, high = n * (part + 1) / parts;
  r->start[d] = low;
  r->count[d] = high - low;
}

/* Part `part` of `parts` of every tensor; a scalar belongs to part 0 when saving, to all when loading. */
static inline int64_t make_regions(fx_ckpt_region *regions, cut how, int part, int parts, bool saving) {
  int64_t n = 0;
  for (int i = 0; i < TENSORS; i++) {
    const test_tensor *t = &g_tensors[i];
    fx_ckpt_region *r = &regions[n];
    *r = (fx_ckpt_region){.path = t->path, .dtype = t->dtype, .ndim = t->ndim};
    memcpy(r->dim, t->dim, sizeof r->dim);
    memcpy(r->count, t->dim, sizeof r->count);
    if (t->ndim == 0 && saving && part != 0) continue;
    if (t->ndim > 0 && how == CUT_ROWS) cut_dim(r, 0, part, parts);
    if (t->ndim > 0 && how == CUT_COLUMNS) cut_dim(r, t->ndim - 1, part, parts);
    if (t->ndim > 0 && how == CUT_MIDDLE) cut_dim(r, t->ndim > 2 ? 1 : 0, part, parts);
    if (how == CUT_GRID && t->ndim == 1) cut_dim(r, 0, part, parts);
    if (how == CUT_GRID && t->ndim > 1) {
      cut_dim(r, 0, part / 2, parts / 2);
      cut_dim(r, t->ndim - 1, part % 2, 2);
    }
    n++;
  }
  for (int64_t i = 0; i < n; i++) {
    size_t bytes = (size_t)box_elements(regions[i].ndim, regions[i].count) * fx_dtype_bytes(regions[i].dtype);
    regions[i].data = malloc(bytes ? bytes : 1);
    memset(regions[i].data, 0xA5, bytes ? bytes : 1);
  }
  return n;
}

static inline const test_tensor *tensor_of(const char *path) {
  for (int i = 0; i < TENSORS; i++)
    if (strcmp(g_tensors[i].path, path) == 0) return &g_tensors[i];
  abort();
}

static inline void fill_regions(fx_ckpt_region *regions, int64_t n, uint64_t salt) {
  for (int64_t i = 0; i < n; i++) {
    const fx_ckpt_region *r = &regions[i];
    size_t size = fx_dtype_bytes(r->dtype);
    for (int64_t e = 0; e < box_elements(r->ndim, r->count); e++)
      element_at(tensor_of(r->path), global_index(r, e), salt, (char *)r->data + (size_t)e * size);
  }
}

/* Number of elements that are not the hash of their place; the first one is printed. */
static inline int64_t wrong_elements(const fx_ckpt_region *regions, int64_t n, uint64_t salt) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; i++) {
    const fx_ckpt_region *r = &regions[i];
    size_t size = fx_dtype_bytes(r->dtype);
    for (int64_t e = 0; e < box_elements(r->ndim, r->count); e++) {
      char want[8];
      element_at(tensor_of(r->path), global_index(r, e), salt, want);
      if (memcmp(want, (char *)r->data + (size_t)e * size, size) == 0) continue;
      if (wrong++ == 0)
        fprintf(stderr, "%s: element %lld is wrong\n", r->path, (long long)global_index(r, e));
    }
  }
  return wrong;
}

static inline void free_regions(fx_ckpt_region *regions, int64_t n) {
  for (int64_t i = 0; i < n; i++) free(regions[i].data);
}

/* ---- saving and loading the table ---- */

static const char g_config[] = "train:\n  iters: 5\ncheckpoint:\n  dir: \"runs/\xC3\xA4\"\n";

typedef struct save_case {
  const char *dir;
  int64_t step;
  cut how;
  int replicas; /* ranks = parts x replicas */
  uint64_t salt;
  int keep;
  int failures;     /* out: ranks that did not get FX_OK */
  fx_status status; /* out: the same on all, checked */
  char text[2048];  /* out: rank 0's sentence */
} save_case;

static pthread_mutex_t g_case_lock = PTHREAD_MUTEX_INITIALIZER;

static inline fx_ckpt_state state_of(int64_t step) {
  return (fx_ckpt_state){step, step * 16, step - 1, 1, 65536.5};
}

static inline void save_rank(fx_control *control, void *context) {
  save_case *c = context;
  fx_ckpt_region regions[TENSORS];
  char *path = NULL, name[32];
  int parts = control->size / c->replicas, part = control->rank / c->replicas;
  int64_t n = make_regions(regions, c->how, part, parts, true);
  fill_regions(regions, n, c->salt);
  fx_ckpt_state state = state_of(c->step);
  fx_status status = fx_ckpt_save(control, c->dir, &state, g_config, regions, n, control->rank % c->replicas,
                                  c->replicas, c->keep, NULL, &path);
  snprintf(name, sizeof name, "step_%08lld", (long long)c->step);
  pthread_mutex_lock(&g_case_lock); /* CUnit is not thread-safe: only counting here */
  if (status != FX_OK || !path || !strstr(path, name)) c->failures++;
  if (control->rank == 0) {
    c->status = status;
    snprintf(c->text, sizeof c->text, "%s", fx_error_text());
  }
  pthread_mutex_unlock(&g_case_lock);
  free(path);
  free_regions(regions, n);
}

static inline bool save_table(const char *dir, int64_t step, int ranks, cut how, int replicas, uint64_t salt,
                              int keep) {
  save_case c = {.dir = dir, .step = step, .how = how, .replicas = replicas, .salt = salt, .keep = keep};
  run_ranks(ranks, save_rank, &c);
  return CHECK_MSG(c.failures == 0, "saving step %lld under %d ranks: %d failed: %s", (long long)step, ranks,
                   c.failures, c.text);
}

/* Reads the table under `parts` ranks, one after the other, and compares every element. */
static inline void check_table(const fx_ckpt *ckpt, cut how, int parts, uint64_t salt) {
  for (int part = 0; part < parts; part++) {
    fx_ckpt_region regions[TENSORS];
    int64_t n = make_regions(regions, how, part, parts, false);
    if (CHECK_OK(fx_ckpt_read(ckpt, regions, n))) CHECK_INT(wrong_elements(regions, n, salt), 0);
    free_regions(regions, n);
  }
}

static inline const char *sub_dir(const char *name) {
  static char paths[4][400];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, 400, "%s/%s", fx_temp_dir(), name);
  return path;
}

static inline bool there_is(const char *dir, const char *name) {
  char path[600];
  struct stat info;
  snprintf(path, sizeof path, "%s/%s", dir, name);
  return stat(path, &info) == 0;
}

static inline int shell(const char *format, const char *a, const char *b) {
  char command[2048];
  snprintf(command, sizeof command, format, a, b); // NOLINT: formats are literals of the suites
  return system(command);                          // NOLINT: paths that the suites made
}

#endif
