/* SPDX-License-Identifier: Apache-2.0 */
/* Saving one step, in three calls (fx_ckpt_save makes all of them): begin and commit are collective, write is
 * local and may run on a thread of its own while training goes on. After each collective stage that can fail
 * the ranks agree on its outcome, so that all leave with the same sentence:
 *
 * begin
 *   prepare   every rank decides what it writes; rank 0 makes an empty step_N.tmp/
 *   describe  the descriptions are gathered; rank 0 checks that they cover every tensor once
 *   lay out   the first rank of each shard creates it with HDF5, closes it, and tells where the pieces go
 * write       every rank writes its pieces there and syncs
 * commit
 *   finish    hashes go to rank 0, which writes index.h5 and the manifest and renames the directory
 *
 * Nothing is a checkpoint before the last rename, and no file is changed after it. */
#include "core/checkpoint/save.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/checkpoint/files.h"
#include "data/h5/h5_file.h"
#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"

enum { WAIT_MS = 30 * 60 * 1000, CHUNK_BYTES = 2 << 20 };

typedef struct wire_head {
  int64_t step, pieces;
} wire_head;

typedef struct wire_piece {
  char path[FX_CKPT_PATH_BYTES];
  int32_t dtype, ndim;
  int64_t dim[FX_CKPT_DIMS], start[FX_CKPT_DIMS], count[FX_CKPT_DIMS];
} wire_piece;

struct fx_ckpt_writer {
  fx_control *control; /* NULL: alone */
  int rank, size;
  char *dir, *path, *tmp; /* dir/step_N, dir/step_N.tmp */
  fx_ckpt_state state;
  char *config_text;
  fx_ckpt_region *regions; /* the pieces point into them */
  int64_t *offsets;        /* of all pieces, rank after rank */
  int64_t begin_ns;
  int percent; /* of the writing thread's time, accessed atomically; 100: as fast as it goes */
  fx_ckpt_piece *pieces;
  int64_t n;
  fx_hash128 *hashes; /* of the blocks of this rank's pieces, piece after piece */
  int64_t n_hashes;
  char *wires;          /* all ranks': a wire_head and its wire_pieces each */
  int64_t *wires_at;    /* [size + 1] */
  fx_manifest manifest; /* rank 0's; a fragment's offset is the piece's number until it is known */
};
typedef fx_ckpt_writer save_job;

/* ---- together ---- */

static fx_status agree(const save_job *job, fx_status mine) {
  return job->control ? fx_control_agree_status(job->control, mine, WAIT_MS) : mine;
}

static fx_status gather(const save_job *job, const void *mine, int64_t bytes, char **all, int64_t **at) {
  FX_TRY(fx_calloc(at, (size_t)job->size + 1, sizeof **at));
  if (job->control) return fx_control_all_gather(job->control, mine, bytes, all, *at, WAIT_MS);
  FX_TRY(fx_calloc(all, (size_t)bytes + 1, 1));
  if (bytes > 0) memcpy(*all, mine, (size_t)bytes);
  (*at)[1] = bytes;
  return FX_OK;
}

/* Up to FX_CKPT_FILES ranks have a shard each; more share them evenly. */
static int64_t shard_of(const save_job *job, int rank) {
  return job->size <= FX_CKPT_FILES ? rank : (int64_t)rank * FX_CKPT_FILES / job->size;
}

static int shard_leader(const save_job *job, int rank) {
  int leader = rank;
  while (leader > 0 && shard_of(job, leader - 1) == shard_of(job, rank)) leader--;
  return leader;
}

static wire_head head_of(const save_job *job, int rank) {
  wire_head head;
  memcpy(&head, job->wires + job->wires_at[rank], sizeof head);
  return head;
}

static wire_piece wire_of(const save_job *job, int rank, int64_t piece) {
  wire_piece wire;
  memcpy(&wire, job->wires + job->wires_at[rank] + sizeof(wire_head) + (size_t)piece * sizeof wire,
         sizeof wire);
  return wire;
}

static char *shard_path(const save_job *job, int64_t shard) {
  char name[FX_MANIFEST_SHARD_BYTES];
  fx_manifest_shard_name(shard, name);
  return fx_strfmt("%s/%s", job->tmp, name);
}

/* ---- prepare and describe ---- */

static fx_status check_state(const fx_ckpt_state *s) {
  if (s->step >= 0 && s->consumed_samples >= 0 && s->optimizer_step >= 0 && s->skipped >= 0) return FX_OK;
  return fx_error(FX_ERR_CHECKPOINT, "the trainer state to save has a negative number (step %" PRId64 ")",
                  s->step);
}

static fx_status prepare(save_job *job, const fx_ckpt_region *regions, int64_t n, int replica_rank,
                         int replica_size) {
  FX_TRY(fx_ckpt_share(regions, n, replica_rank, replica_size, &job->pieces, &job->n));
  for (int64_t i = 0; i < job->n; i++) job->n_hashes += fx_manifest_blocks(job->pieces[i].bytes);
  FX_TRY(fx_calloc(&job->hashes, (size_t)job->n_hashes, sizeof *job->hashes));
  if (job->rank != 0) return FX_OK;
  if (!fx_files_remove_tree(job->tmp))
    return fx_error(FX_ERR_IO, "%s is left from an earlier save and cannot be deleted: %s", job->tmp,
                    strerror(errno));
  return fx_files_make_dirs(job->tmp);
}

static void describe_piece(const fx_ckpt_piece *piece, wire_piece *wire) {
  const fx_ckpt_region *region = piece->region;
  memset(wire, 0, sizeof *wire);
  snprintf(wire->path, sizeof wire->path, "%s", region->path);
  wire->dtype = (int32_t)region->dtype;
  wire->ndim = region->ndim;
  for (int d = 0; d < region->ndim; d++) wire->dim[d] = region->dim[d];
  memcpy(wire->start, piece->start, sizeof wire->start);
  memcpy(wire->count, piece->count, sizeof wire->count);
}

static fx_status describe(save_job *job) {
  const wire_head head = {job->state.step, job->n};
  const int64_t bytes = (int64_t)sizeof head + job->n * (int64_t)sizeof(wire_piece);
  char *mine = NULL;
  fx_status status = agree(job, fx_calloc(&mine, (size_t)bytes, 1));
  if (status == FX_OK) {
    memcpy(mine, &head, sizeof head);
    for (int64_t i = 0; i < job->n; i++) {
      wire_piece wire;
      describe_piece(&job->pieces[i], &wire);
      memcpy(mine + sizeof head + (size_t)i * sizeof wire, &wire, sizeof wire);
    }
    status = gather(job, mine, bytes, &job->wires, &job->wires_at);
  }
  free(mine);
  return status;
}

/* Rank 0: all pieces as a manifest, checked before anything is written. */
static fx_status collect(save_job *job) {
  fx_manifest *m = &job->manifest;
  int64_t number = 0;
  for (int rank = 0; rank < job->size; rank++) {
    wire_head head = head_of(job, rank);
    if (head.step != job->state.step)
      return fx_error(FX_ERR_DIVERGED, "rank %d saves step %" PRId64 " while rank 0 saves step %" PRId64,
                      rank, head.step, job->state.step);
    for (int64_t i = 0; i < head.pieces; i++, number++) {
      wire_piece wire = wire_of(job, rank, i);
      fx_manifest_fragment fragment = {.shard = shard_of(job, rank), .offset = number};
      FX_TRY(fx_manifest_add_tensor(m, wire.path, (fx_dtype)wire.dtype, wire.ndim, wire.dim));
      memcpy(fragment.start, wire.start, sizeof fragment.start);
      memcpy(fragment.count, wire.count, sizeof fragment.count);
      int64_t elements = fx_manifest_elements(wire.ndim, wire.count);
      if (elements == 0) continue;
      fragment.bytes = elements * (int64_t)fx_dtype_bytes((fx_dtype)wire.dtype);
      fragment.first_hash = m->n_hashes;
      fragment.hashes = fx_manifest_blocks(fragment.bytes);
      m->n_hashes += fragment.hashes; /* their order is that of all ranks' hashes */
      FX_TRY(fx_manifest_add_fragment(m, &fragment));
      if (!m->has_shard[fragment.shard]) m->n_shards++;
      m->has_shard[fragment.shard] = true;
    }
  }
  return fx_manifest_finish(m);
}

/* ---- lay out and write ---- */

/* Working arrays of a leader, by dataset. */
typedef struct layout {
  fx_h5_dataset *sets;
  char (*names)[FX_MANIFEST_DATASET_BYTES];
  int64_t *piece; /* number of the piece among those of the shard */
  int64_t count;
} layout;

static void add_rank(const save_job *job, int rank, layout *l, int64_t *number) {
  for (int64_t i = 0; i < head_of(job, rank).pieces; i++, ++*number) {
    wire_piece wire = wire_of(job, rank, i);
    if (fx_manifest_elements(wire.ndim, wire.count) == 0) continue;
    fx_h5_dataset *set = &l->sets[l->count];
    fx_manifest_dataset_name(wire.path, wire.ndim, wire.start, l->names[l->count]);
    *set = (fx_h5_dataset){.path = l->names[l->count], .dtype = (fx_dtype)wire.dtype, .ndim = wire.ndim};
    memcpy(set->dim, wire.count, sizeof wire.count);
    l->piece[l->count++] = *number;
  }
}

/* offsets[total]: of the pieces of the shard that this rank leads, in rank order; -1 for an empty piece. */
static fx_status lay_out(const save_job *job, int64_t *offsets, int64_t total) {
  layout l = {.count = 0};
  int64_t number = 0;
  fx_status status;
  char *path = shard_path(job, shard_of(job, job->rank));
  FX_TRY_GOTO(path ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory for a path"), free_layout);
  FX_TRY_GOTO(fx_calloc(&l.sets, (size_t)total, sizeof *l.sets), free_layout);
  FX_TRY_GOTO(fx_calloc(&l.names, (size_t)total, sizeof *l.names), free_layout);
  FX_TRY_GOTO(fx_calloc(&l.piece, (size_t)total, sizeof *l.piece), free_layout);
  for (int rank = job->rank; number < total; rank++) add_rank(job, rank, &l, &number);
  if (l.count > 0) FX_TRY_GOTO(fx_h5_layout(path, l.sets, l.count), free_layout);
  for (int64_t i = 0; i < total; i++) offsets[i] = -1;
  for (int64_t i = 0; i < l.count; i++) offsets[l.piece[i]] = l.sets[i].offset;
free_layout:
  free(path);
  free(l.sets);
  free(l.names);
  free(l.piece);
  return status;
}

/* Leaders create their shards; every rank learns where its own pieces go. *all: the offsets of all pieces,
 * rank after rank (leaders send those of their shard). */
static fx_status place(save_job *job, int64_t **all) {
  int64_t *offsets = NULL, *at = NULL, total = 0, before = 0;
  char *bytes = NULL;
  fx_status status = FX_OK;
  if (shard_leader(job, job->rank) == job->rank) {
    for (int r = job->rank; r < job->size && shard_of(job, r) == shard_of(job, job->rank); r++)
      total += head_of(job, r).pieces;
    status = fx_calloc(&offsets, (size_t)total, sizeof *offsets);
    if (status == FX_OK && total > 0) status = lay_out(job, offsets, total);
  }
  status = agree(job, status);
  if (status == FX_OK) status = gather(job, offsets, total * (int64_t)sizeof *offsets, &bytes, &at);
  free(offsets);
  free(at);
  if (status != FX_OK) {
    free(bytes);
    return status;
  }
  *all = (int64_t *)(void *)bytes; /* malloc'ed, so aligned */
  for (int rank = 0; rank < job->rank; rank++) before += head_of(job, rank).pieces;
  for (int64_t i = 0; i < job->n; i++) job->pieces[i].offset = (*all)[before + i];
  return FX_OK;
}

static fx_status write_failed(const char *path) {
  return fx_error(FX_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
}

/* Sleeps after work that began at `begin_ns`, so that work takes `percent` of the time. */
static void pace(const save_job *job, int64_t begin_ns) {
  int percent = __atomic_load_n(&job->percent, __ATOMIC_ACQUIRE);
  if (percent >= 100) return;
  int64_t rest = (fx_now_ns() - begin_ns) * (100 - percent) / percent;
  if (rest > 500000000) rest = 500000000; /* a slow disk rests by itself */
  struct timespec pause = {rest / 1000000000, rest % 1000000000};
  nanosleep(&pause, NULL);
}

/* The block that begins at byte `done` of the piece. Hashes each chunk while it is in the cache. buffer
 * [CHUNK_BYTES]: for pieces that are not contiguous. */
static fx_status write_block(const save_job *job, int fd, const char *path, const fx_ckpt_piece *piece,
                             int64_t done, char *buffer, fx_hash128 *hash) {
  const int64_t end = fx_min_i64(done + fx_manifest_block_bytes(piece->bytes), piece->bytes);
  fx_hasher *hasher = fx_hasher_create();
  if (!hasher) return fx_error(FX_ERR_MEMORY, "out of host memory for a hash");
  fx_status status = FX_OK;
  while (done < end && status == FX_OK) {
    int64_t chunk = fx_min_i64(CHUNK_BYTES, end - done), began = fx_now_ns();
    const char *data = piece->data + done;
    if (piece->line_bytes < piece->bytes) {
      fx_ckpt_piece_copy(piece, done, chunk, buffer);
      data = buffer;
    }
    ssize_t written = pwrite(fd, data, (size_t)chunk, piece->offset + done);
    if (written > 0) {
      fx_hasher_add(hasher, data, (size_t)written);
      done += written;
      pace(job, began);
    } else if (written == 0 || errno != EINTR) {
      status = write_failed(path);
    }
  }
  if (status == FX_OK) *hash = fx_hasher_get(hasher);
  fx_hasher_destroy(hasher);
  return status;
}

static fx_status write_pieces(save_job *job) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < job->n; i++) bytes += job->pieces[i].bytes;
  if (bytes == 0) return FX_OK;
  char *path = shard_path(job, shard_of(job, job->rank));
  char *buffer = NULL;
  fx_hash128 *hash = job->hashes;
  if (!path) return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  fx_status status = fx_alloc_aligned(&buffer, CHUNK_BYTES);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 && status == FX_OK) status = write_failed(path);
  for (int64_t i = 0; i < job->n; i++) {
    const fx_ckpt_piece *piece = &job->pieces[i];
    const int64_t block = fx_manifest_block_bytes(piece->bytes);
    for (int64_t at = 0; at < piece->bytes && status == FX_OK; at += block)
      status = write_block(job, fd, path, piece, at, buffer, hash++);
  }
  if (status == FX_OK && fsync(fd) != 0) status = write_failed(path);
  if (fd >= 0 && close(fd) != 0 && status == FX_OK) status = write_failed(path);
  free(buffer);
  free(path);
  return status;
}

/* Into the manifest, rank after rank. */
static fx_status gather_hashes(save_job *job) {
  int64_t *at = NULL;
  char *bytes = NULL;
  fx_status status = gather(job, job->hashes, job->n_hashes * (int64_t)sizeof *job->hashes, &bytes, &at);
  free(at);
  if (status != FX_OK) {
    free(bytes);
    return status;
  }
  job->manifest.hashes = (fx_hash128 *)(void *)bytes; /* malloc'ed, so aligned */
  return FX_OK;
}

/* ---- finish: rank 0 ---- */

static void index_sources(const fx_manifest *m, fx_h5_source *sources, char (*files)[FX_MANIFEST_SHARD_BYTES],
                          char (*names)[FX_MANIFEST_DATASET_BYTES]) {
  for (int s = 0; s < FX_CKPT_FILES; s++) fx_manifest_shard_name(s, files[s]);
  for (int64_t i = 0; i < m->n_fragments; i++) {
    const fx_manifest_fragment *f = &m->fragments[i];
    const fx_manifest_tensor *t = &m->tensors[f->tensor];
    fx_manifest_dataset_name(t->path, t->ndim, f->start, names[i]);
    sources[i] = (fx_h5_source){.tensor = f->tensor, .file = files[f->shard], .dataset = names[i]};
    memcpy(sources[i].start, f->start, sizeof f->start);
    memcpy(sources[i].count, f->count, sizeof f->count);
  }
}

static fx_status build_index(const fx_manifest *m, void **image, size_t *bytes) {
  const fx_h5_attribute attributes[] = {
      {"/trainer", "step", FX_H5_I64, m->state.step, 0, NULL},
      {"/trainer", "consumed_samples", FX_H5_I64, m->state.consumed_samples, 0, NULL},
      {"/trainer", "optimizer_step", FX_H5_I64, m->state.optimizer_step, 0, NULL},
      {"/trainer", "skipped", FX_H5_I64, m->state.skipped, 0, NULL},
      {"/trainer", "loss_scale", FX_H5_F64, 0, m->state.loss_scale, NULL},
      {"/trainer", "code_version", FX_H5_TEXT, 0, 0, m->code_version},
  };
  const fx_h5_text text = {"/trainer/config", m->config};
  fx_h5_dataset *tensors = NULL;
  fx_h5_source *sources = NULL;
  char(*files)[FX_MANIFEST_SHARD_BYTES] = NULL;
  char(*names)[FX_MANIFEST_DATASET_BYTES] = NULL;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&tensors, (size_t)m->n_tensors, sizeof *tensors), free_index);
  FX_TRY_GOTO(fx_calloc(&sources, (size_t)m->n_fragments, sizeof *sources), free_index);
  FX_TRY_GOTO(fx_calloc(&files, FX_CKPT_FILES, sizeof *files), free_index);
  FX_TRY_GOTO(fx_calloc(&names, (size_t)m->n_fragments, sizeof *names), free_index);
  for (int64_t i = 0; i < m->n_tensors; i++) {
    const fx_manifest_tensor *t = &m->tensors[i];
    tensors[i] = (fx_h5_dataset){.path = t->path, .dtype = t->dtype, .ndim = t->ndim};
    memcpy(tensors[i].dim, t->dim, sizeof t->dim);
  }
  index_sources(m, sources, files, names);
  fx_h5_index index = {tensors,    m->n_tensors,
                       sources,    m->n_fragments,
                       attributes, sizeof attributes / sizeof attributes[0],
                       &text,      1};
  FX_TRY_GOTO(fx_h5_index_build(&index, image, bytes), free_index);
free_index:
  free(tensors);
  free(sources);
  free(files);
  free(names);
  return status;
}

static fx_status write_beside(const save_job *job, const char *name, const void *data, size_t bytes) {
  char *path = fx_strfmt("%s/%s", job->tmp, name);
  if (!path) return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  fx_status status = fx_files_write(path, data, bytes);
  free(path);
  return status;
}

static fx_status finish(save_job *job, const int64_t *offsets) {
  fx_manifest *m = &job->manifest;
  void *image = NULL;
  char *text = NULL;
  size_t image_bytes = 0, text_bytes = 0;
  fx_status status = FX_OK;
  for (int64_t i = 0; i < m->n_fragments; i++) m->fragments[i].offset = offsets[m->fragments[i].offset];
  m->state = job->state;
  m->config = fx_strdup(job->config_text);
  m->code_version = fx_strdup(FX_VERSION);
  if (!m->config || !m->code_version) return fx_error(FX_ERR_MEMORY, "out of host memory for the manifest");
  FX_TRY(build_index(m, &image, &image_bytes));
  m->index_hash = fx_hash128_of(image, image_bytes);
  FX_TRY_GOTO(write_beside(job, "index.h5", image, image_bytes), free_texts);
  FX_TRY_GOTO(fx_manifest_print(m, &text, &text_bytes), free_texts);
  FX_TRY_GOTO(write_beside(job, "manifest.json", text, text_bytes), free_texts);
  FX_TRY_GOTO(fx_steps_publish(job->dir, job->state.step), free_texts);
free_texts:
  free(image);
  free(text);
  return status;
}

/* ---- the public functions ---- */

static void destroy(save_job *job) {
  fx_manifest_fini(&job->manifest);
  free(job->wires);
  free(job->wires_at);
  free(job->pieces);
  free(job->hashes);
  free(job->offsets);
  free(job->regions);
  free(job->config_text);
  free(job->dir);
  free(job->path);
  free(job->tmp);
  free(job);
}

/* Copies of what the caller passed: the writer outlives the call. */
static fx_status own(save_job *job, const char *dir, const fx_ckpt_state *state, const char *config_text,
                     const fx_ckpt_region *regions, int64_t n) {
  char name[FX_CKPT_NAME_BYTES];
  job->state = *state;
  FX_TRY(check_state(state));
  fx_steps_name(state->step, name);
  job->dir = fx_strdup(dir);
  job->path = fx_strfmt("%s/%s", dir, name);
  job->tmp = fx_strfmt("%s/%s.tmp", dir, name);
  job->config_text = fx_strdup(config_text);
  FX_TRY(fx_calloc(&job->regions, (size_t)n, sizeof *job->regions));
  if (n > 0) memcpy(job->regions, regions, (size_t)n * sizeof *regions);
  if (!job->dir || !job->path || !job->tmp || !job->config_text)
    return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  return FX_OK;
}

static fx_status begin(save_job *job, int64_t n, int replica_rank, int replica_size) {
  FX_TRY(agree(job, prepare(job, job->regions, n, replica_rank, replica_size)));
  FX_TRY(describe(job));
  FX_TRY(agree(job, job->rank == 0 ? collect(job) : FX_OK));
  return place(job, &job->offsets);
}

static void give_up(save_job *job) {
  if (job->rank == 0 && job->tmp) fx_files_remove_tree(job->tmp);
  destroy(job);
}

fx_status fx_ckpt_save_begin(fx_control *control, const char *dir, const fx_ckpt_state *state,
                             const char *config_text, const fx_ckpt_region *regions, int64_t n,
                             int replica_rank, int replica_size, fx_ckpt_writer **out) {
  save_job alone = {.control = control, .size = 1}, *job = NULL;
  fx_status status = agree(&alone, fx_calloc(&job, 1, sizeof *job));
  if (status != FX_OK) {
    free(job);
    return status;
  }
  job->control = control;
  job->rank = control ? control->rank : 0;
  job->size = control ? control->size : 1;
  job->begin_ns = fx_now_ns();
  job->percent = 100;
  status = agree(job, own(job, dir, state, config_text, regions, n));
  if (status == FX_OK) status = begin(job, n, replica_rank, replica_size);
  if (status != FX_OK) {
    give_up(job);
    return status;
  }
  *out = job;
  return FX_OK;
}

void fx_ckpt_save_pace(fx_ckpt_writer *writer, int percent) {
  __atomic_store_n(&writer->percent, percent, __ATOMIC_RELEASE);
}

fx_status fx_ckpt_save_write(fx_ckpt_writer *writer) {
  return write_pieces(writer);
}

void fx_ckpt_save_abandon(fx_ckpt_writer *writer) {
  if (writer) destroy(writer);
}

static void report(const save_job *job, const fx_log *log) {
  int64_t bytes = 0;
  double seconds = (double)(fx_now_ns() - job->begin_ns) / 1e9;
  for (int64_t i = 0; i < job->manifest.n_fragments; i++) bytes += job->manifest.fragments[i].bytes;
  fx_info(log, "saved %s: %" PRId64 " tensors, %.1f MiB in %.2f s", job->path, job->manifest.n_tensors,
          (double)bytes / 1048576.0, seconds);
}

fx_status fx_ckpt_save_commit(fx_ckpt_writer *job, fx_status written, int keep, const fx_log *log,
                              char **out_path) {
  fx_status status = agree(job, written);
  if (status == FX_OK) status = gather_hashes(job);
  if (status == FX_OK) status = agree(job, job->rank == 0 ? finish(job, job->offsets) : FX_OK);
  if (status != FX_OK) {
    give_up(job);
    return status;
  }
  if (job->rank == 0) {
    report(job, log);
    fx_steps_prune(job->dir, job->state.step, keep, log);
  }
  if (out_path) {
    *out_path = job->path;
    job->path = NULL;
  }
  destroy(job);
  return FX_OK;
}

fx_status fx_ckpt_save(fx_control *control, const char *dir, const fx_ckpt_state *state,
                       const char *config_text, const fx_ckpt_region *regions, int64_t n, int replica_rank,
                       int replica_size, int keep, const fx_log *log, char **out_path) {
  fx_ckpt_writer *writer = NULL;
  FX_TRY(
      fx_ckpt_save_begin(control, dir, state, config_text, regions, n, replica_rank, replica_size, &writer));
  return fx_ckpt_save_commit(writer, fx_ckpt_save_write(writer), keep, log, out_path);
}
