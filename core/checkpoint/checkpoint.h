/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: saving, finding, loading, checking and comparing.
 *
 *   <dir>/latest                     name of the newest step
 *   <dir>/step_00001000/             complete by construction: it was renamed from step_00001000.tmp
 *     shard_00000.h5 ...             payload, at most 256 files
 *     index.h5                       every tensor whole under its name, for people (virtual datasets)
 *     manifest.json                  state, config, tensors, fragments with their hashes; what loading reads
 *
 * A tensor is known by its path ("/model/<Hugging Face name>", "/optimizer/exp_avg/<name>", ...), dtype and
 * whole shape. A rank describes the parts that it holds as regions: rectangular boxes of a tensor, contiguous
 * in memory. Saving and loading may use entirely different regions, so a checkpoint has no layout.
 *
 * Everything read from disk is checked against XXH3-128 hashes before it is trusted; what is wrong with a
 * checkpoint is FX_ERR_CHECKPOINT and one sentence that names the file. */
#ifndef FX_CORE_CHECKPOINT_CHECKPOINT_H
#define FX_CORE_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "dynamo_rt/base/log.h"
#include "dynamo_rt/base/status.h"
#include "dynamo_rt/comm/control.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FX_CKPT_DIMS = 4,
  FX_CKPT_PATH_BYTES = 256, /* of a tensor path, final NUL included */
  FX_CKPT_FILES = 256       /* shards of a step; with more ranks several share a file */
};

typedef struct fx_ckpt_state {
  int64_t step; /* iteration; names the directory */
  int64_t consumed_samples, optimizer_step, skipped;
  double loss_scale;
} fx_ckpt_state;

/* A box of a tensor. Zero-size boxes and ndim 0 (one element) are fine; a rank may have several of one
 * tensor. */
typedef struct fx_ckpt_region {
  const char *path; /* "/model/wte.weight": letters, digits, "_.-" between slashes; not under /trainer */
  fx_dtype dtype;
  int ndim;
  int64_t dim[FX_CKPT_DIMS];                        /* the whole tensor */
  int64_t start[FX_CKPT_DIMS], count[FX_CKPT_DIMS]; /* this part of it */
  void *data;    /* count[] elements, row-major; read by save, written by read; host memory */
  int64_t pitch; /* elements from one line (of the last dimension) to the next in data; 0: as many as a line
                    has. Not below that; of no meaning below 2 dimensions */
} fx_ckpt_region;

/* Writes one step. Collective over `control` (NULL: this process alone); blocks until the step is on disk.
 * state, config_text: rank 0's are kept; state->step must be the same everywhere.
 * regions: what this rank holds. The replica_size ranks of a replica group pass the same regions in the same
 *   order and share the writing by bytes; groups are told apart by their regions alone. Together the groups
 *   must cover every tensor exactly once: what is held by several groups (a norm under tensor parallelism) is
 *   passed by one of them only, the others leave it out (n may be 0).
 * keep > 0: after success the oldest complete steps are deleted so that `keep` up to this one remain.
 * *out_path: malloc'ed path of the step on every rank; out_path may be NULL.
 * FX_ERR_IO (full disk, ...) or FX_ERR_CHECKPOINT: the same on every rank, step_N.tmp is removed and earlier
 * steps are untouched. An existing step of this number is replaced at the very end. */
fx_status fx_ckpt_save(fx_control *control, const char *dir, const fx_ckpt_state *state,
                       const char *config_text, const fx_ckpt_region *regions, int64_t n, int replica_rank,
                       int replica_size, int keep, const fx_log *log, char **out_path);

/* The same in three parts, so that the writing can overlap with training. begin (collective, quick) lays the
 * files out; write (local, any thread, no HDF5 and no communication) puts this rank's pieces on disk; commit
 * (collective, quick) makes the step complete, or removes it when any rank's write failed (`written`: this
 * rank's outcome). Between begin and commit the regions' data must not change; the other arguments are
 * copied. commit takes the writer, whatever comes out. */
typedef struct fx_ckpt_writer fx_ckpt_writer;
fx_status fx_ckpt_save_begin(fx_control *control, const char *dir, const fx_ckpt_state *state,
                             const char *config_text, const fx_ckpt_region *regions, int64_t n,
                             int replica_rank, int replica_size, fx_ckpt_writer **out);
/* How much of its thread's time write may use, 1 to 100 (the default); any thread, also while it writes:
 * beside training it should leave the cores to training, and hurry when somebody waits for it. */
void fx_ckpt_save_pace(fx_ckpt_writer *writer, int percent);
fx_status fx_ckpt_save_write(fx_ckpt_writer *writer);
fx_status fx_ckpt_save_commit(fx_ckpt_writer *writer, fx_status written, int keep, const fx_log *log,
                              char **out_path);
/* Instead of commit, after an error elsewhere: local, frees the writer; step_N.tmp stays for the next save to
 * replace. */
void fx_ckpt_save_abandon(fx_ckpt_writer *writer);

/* The step to load: the path itself when it is a step, else the one that `latest` names, else the highest
 * complete one. Unfinished (.tmp) and rejected (.bad) ones are ignored. *step_path: malloc'ed, NULL when
 * there is none, which is FX_OK; also when the directory does not exist. */
fx_status fx_ckpt_find(const char *dir_or_step, char **step_path);

typedef struct fx_ckpt fx_ckpt; /* an opened step: its manifest, and nothing else */

/* Reads and validates the manifest; no shard is touched. Threads may share it. */
fx_status fx_ckpt_open(const char *step_path, fx_ckpt **out);
void fx_ckpt_close(fx_ckpt *ckpt); /* NULL is fine */

/* All borrowed, valid until fx_ckpt_close. */
const char *fx_ckpt_path(const fx_ckpt *ckpt);
const fx_ckpt_state *fx_ckpt_state_get(const fx_ckpt *ckpt);
const char *fx_ckpt_config(const fx_ckpt *ckpt);       /* the resolved config as YAML */
const char *fx_ckpt_code_version(const fx_ckpt *ckpt); /* of the flexion that wrote it */

typedef struct fx_ckpt_tensor {
  const char *path;
  fx_dtype dtype;
  int ndim;
  int64_t dim[FX_CKPT_DIMS];
  int64_t elements, bytes, fragments;
} fx_ckpt_tensor;

int64_t fx_ckpt_tensor_count(const fx_ckpt *ckpt);
fx_ckpt_tensor fx_ckpt_tensor_at(const fx_ckpt *ckpt, int64_t index); /* sorted by path */
bool fx_ckpt_tensor_find(const fx_ckpt *ckpt, const char *path, fx_ckpt_tensor *out);
int64_t fx_ckpt_shard_count(const fx_ckpt *ckpt);
/* Name of the file and payload bytes in it. */
void fx_ckpt_shard_at(const fx_ckpt *ckpt, int64_t index, char name[32], int64_t *bytes);

/* Fills every region's data, whatever the layout that wrote it. Not collective: each rank reads what it
 * needs. That is the blocks (of 64 KiB to 4 MiB) of a fragment in which some region has an element; each is
 * read whole and checked against its hash (before version 2 of the manifest a fragment has one hash, and is
 * read whole). On failure the regions' contents are undefined. FX_ERR_CHECKPOINT: a tensor is missing, or its
 * shape or dtype differs, or a file is damaged. */
fx_status fx_ckpt_read(const fx_ckpt *ckpt, const fx_ckpt_region *regions, int64_t n);
/* Bytes of payload that reading and checking took from the shards so far. */
int64_t fx_ckpt_bytes_read(const fx_ckpt *ckpt);

/* Checks index.h5 and every fragment against the manifest. *bytes: payload that was checked; may be NULL. */
fx_status fx_ckpt_check(const fx_ckpt *ckpt, int64_t *bytes);
/* The share of one of `size` ranks, which together check everything: every size-th block. */
fx_status fx_ckpt_check_share(const fx_ckpt *ckpt, int rank, int size);
/* The same for a path: opens it, too. */
fx_status fx_ckpt_verify(const char *step_path, int64_t *bytes);

/* What `checkpoint.resume` asks for, opened and verified. Collective over `control` (NULL: this process
 * alone): rank 0 looks for the steps, each rank checks its share of one, and all leave with the same outcome
 * and an fx_ckpt of their own. *out NULL (and FX_OK) is a fresh start.
 * - "none": always a fresh start
 * - "auto": the step that fx_ckpt_find names, or else the one before it, ...; each bad one is warned about
 *   and renamed to step_N.bad. No step at all: a fresh start. Steps, but no good one (those put aside earlier
 *   count): FX_ERR_CHECKPOINT
 * - a path: that step (or checkpoint directory); anything wrong is FX_ERR_CHECKPOINT, nothing is renamed */
fx_status fx_ckpt_resume(fx_control *control, const char *dir, const char *mode, const fx_log *log,
                         fx_ckpt **out);

/* Deletes the directories step_N.tmp with N up to the complete step that `latest` names: what a crash left of
 * a pruned or replaced step. Nothing else, and nothing without such a step. Called by one rank, while nobody
 * saves to `dir`; what cannot be deleted is warned about. */
void fx_ckpt_sweep(const char *dir, const fx_log *log);

/* How one tensor compares. */
typedef enum fx_ckpt_diff_kind {
  FX_CKPT_DIFF_NONE, /* bitwise equal */
  FX_CKPT_DIFF_VALUES,
  FX_CKPT_DIFF_SHAPE, /* shape or dtype */
  FX_CKPT_DIFF_ONLY_A,
  FX_CKPT_DIFF_ONLY_B
} fx_ckpt_diff_kind;

typedef struct fx_ckpt_diff {
  const char *path; /* borrowed from a or b */
  fx_ckpt_diff_kind kind;
  int64_t elements, bytes;
  int64_t different;       /* elements whose bits differ */
  double max_abs, max_rel; /* largest |a - b| and |a - b| / max(|a|, |b|); infinite when one is NaN */
} fx_ckpt_diff;

/* Compares all tensors; *out: malloc'ed array sorted by path. Holds two whole tensors in memory. */
fx_status fx_ckpt_diff_tensors(const fx_ckpt *a, const fx_ckpt *b, fx_ckpt_diff **out, int64_t *count);

/* One key of the resolved configs that differs; a value is NULL where the key is missing. */
typedef struct fx_ckpt_diff_key {
  char *key, *a, *b; /* owned */
  bool expected; /* checkpoint.dir, checkpoint.resume, train.iters: no reason to call the runs different */
} fx_ckpt_diff_key;

fx_status fx_ckpt_diff_config(const fx_ckpt *a, const fx_ckpt *b, fx_ckpt_diff_key **out, int64_t *count);
void fx_ckpt_diff_config_free(fx_ckpt_diff_key *keys, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
