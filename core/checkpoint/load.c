/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, checking and reading a step. Payload is streamed fragment by fragment in pieces of 4 MiB: each
 * piece is hashed and, when reading, copied into the regions that want some of it, so that memory does not
 * grow with the fragments of whoever wrote them. HDF5 is not involved. */
#include "core/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/checkpoint/files.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/save.h"
#include "dynamo_rt/base/memory.h"

enum { PIECE_BYTES = 4 << 20 }; /* a multiple of every element size */

struct fx_ckpt {
  char *path;
  fx_manifest manifest;
};

/* ---- the manifest and what it says ---- */

fx_status fx_ckpt_open(const char *step_path, fx_ckpt **out) {
  fx_ckpt *ckpt = calloc(1, sizeof *ckpt);
  char *text = NULL, *name = fx_strfmt("%s/manifest.json", step_path);
  size_t bytes = 0;
  fx_status status;
  if (ckpt) ckpt->path = fx_strdup(step_path);
  if (!ckpt || !ckpt->path || !name) {
    fx_error(FX_ERR_MEMORY, "out of host memory for %s", step_path);
    FX_TRY_GOTO(FX_ERR_MEMORY, close_ckpt);
  }
  FX_TRY_GOTO(fx_files_read(name, &text, &bytes), close_ckpt);
  FX_TRY_GOTO(fx_manifest_parse(text, bytes, name, &ckpt->manifest), close_ckpt);
  *out = ckpt;
  ckpt = NULL;
close_ckpt:
  free(text);
  free(name);
  fx_ckpt_close(ckpt);
  return status;
}

void fx_ckpt_close(fx_ckpt *ckpt) {
  if (!ckpt) return;
  fx_manifest_fini(&ckpt->manifest);
  free(ckpt->path);
  free(ckpt);
}

const char *fx_ckpt_path(const fx_ckpt *ckpt) {
  return ckpt->path;
}

const fx_ckpt_state *fx_ckpt_state_get(const fx_ckpt *ckpt) {
  return &ckpt->manifest.state;
}

const char *fx_ckpt_config(const fx_ckpt *ckpt) {
  return ckpt->manifest.config;
}

const char *fx_ckpt_code_version(const fx_ckpt *ckpt) {
  return ckpt->manifest.code_version;
}

int64_t fx_ckpt_tensor_count(const fx_ckpt *ckpt) {
  return ckpt->manifest.n_tensors;
}

fx_ckpt_tensor fx_ckpt_tensor_at(const fx_ckpt *ckpt, int64_t index) {
  const fx_manifest_tensor *t = &ckpt->manifest.tensors[index];
  fx_ckpt_tensor out = {.path = t->path, .dtype = t->dtype, .ndim = t->ndim, .elements = t->elements};
  memcpy(out.dim, t->dim, sizeof out.dim);
  out.bytes = t->elements * (int64_t)fx_dtype_bytes(t->dtype);
  out.fragments = t->fragments;
  return out;
}

bool fx_ckpt_tensor_find(const fx_ckpt *ckpt, const char *path, fx_ckpt_tensor *out) {
  int64_t index = fx_manifest_find(&ckpt->manifest, path);
  if (index < 0) return false;
  *out = fx_ckpt_tensor_at(ckpt, index);
  return true;
}

int64_t fx_ckpt_shard_count(const fx_ckpt *ckpt) {
  return ckpt->manifest.n_shards;
}

void fx_ckpt_shard_at(const fx_ckpt *ckpt, int64_t index, char name[32], int64_t *bytes) {
  const fx_manifest *m = &ckpt->manifest;
  int64_t shard = 0, sum = 0;
  for (int64_t seen = 0; shard < FX_CKPT_FILES; shard++)
    if (m->has_shard[shard] && seen++ == index) break;
  for (int64_t i = 0; i < m->n_fragments; i++)
    if (m->fragments[i].shard == shard) sum += m->fragments[i].bytes;
  fx_manifest_shard_name(shard, name);
  *bytes = sum;
}

/* ---- reading fragments ---- */

/* What is wanted: regions chained by the tensor they belong to. */
typedef struct wants {
  const fx_ckpt_region *regions;
  const int64_t *next; /* region -> next region of the tensor, -1 */
  int64_t first;       /* -1: nothing, only check the hash */
} wants;

/* Copies elements [from, from + n) of the fragment, which lie at `piece`, into the region. Both are walked by
 * lines of the last dimension. */
static void scatter(const fx_manifest_tensor *t, const fx_manifest_fragment *f, const char *piece,
                    int64_t from, int64_t n, const fx_ckpt_region *region) {
  const int last = t->ndim - 1;
  const size_t size = fx_dtype_bytes(t->dtype);
  const int64_t width = last < 0 ? 1 : f->count[last];
  for (int64_t end = from + n, line = from / width; line * width < end; line++) {
    int64_t rest = line, stride = last < 0 ? 1 : fx_ckpt_region_pitch(region), target = 0;
    bool inside = true;
    for (int d = last - 1; d >= 0 && inside; d--) {
      int64_t at = f->start[d] + rest % f->count[d] - region->start[d];
      rest /= f->count[d];
      inside = at >= 0 && at < region->count[d];
      target += at * stride;
      stride *= region->count[d];
    }
    if (!inside) continue;
    int64_t shift =
        last < 0 ? 0 : f->start[last] - region->start[last]; /* fragment column -> region column */
    int64_t low = fx_max_i64(from - line * width, 0), high = fx_min_i64(end - line * width, width);
    low = fx_max_i64(low, -shift);
    high = fx_min_i64(high, (last < 0 ? 1 : region->count[last]) - shift);
    if (low >= high) continue;
    memcpy((char *)region->data + (size_t)(target + low + shift) * size,
           piece + (size_t)(line * width + low - from) * size, (size_t)(high - low) * size);
  }
}

static fx_status read_piece(int fd, const char *path, char *piece, int64_t bytes, int64_t offset) {
  for (int64_t have = 0; have < bytes;) {
    ssize_t got = pread(fd, piece + have, (size_t)(bytes - have), offset + have);
    if (got > 0)
      have += got;
    else if (got == 0)
      return fx_error(FX_ERR_CHECKPOINT, "%s is cut: it ends before byte %" PRId64, path, offset + bytes);
    else if (errno != EINTR)
      return fx_error(FX_ERR_CHECKPOINT, "%s cannot be read: %s", path, strerror(errno));
  }
  return FX_OK;
}

static fx_status stream(int fd, const char *path, const fx_manifest_tensor *t, const fx_manifest_fragment *f,
                        const wants *want, char *piece) {
  const int64_t size = (int64_t)fx_dtype_bytes(t->dtype);
  fx_hasher *hasher = fx_hasher_create();
  fx_status status = hasher ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory for a hash");
  for (int64_t at = 0; status == FX_OK && at < f->bytes; at += PIECE_BYTES) {
    int64_t bytes = fx_min_i64(PIECE_BYTES, f->bytes - at);
    status = read_piece(fd, path, piece, bytes, f->offset + at);
    if (status != FX_OK) break;
    fx_hasher_add(hasher, piece, (size_t)bytes);
    for (int64_t r = want->first; r >= 0; r = want->next[r])
      scatter(t, f, piece, at / size, bytes / size, &want->regions[r]);
  }
  fx_hash128 got = {0, 0};
  if (status == FX_OK) got = fx_hasher_get(hasher);
  fx_hasher_destroy(hasher);
  if (status == FX_OK && (got.low != f->hash.low || got.high != f->hash.high)) {
    char start[96];
    fx_manifest_shape_text(t->ndim, f->start, start);
    status = fx_error(FX_ERR_CHECKPOINT,
                      "%s: the part of %s at %s does not match its hash; the file is damaged or belongs to "
                      "another step",
                      path, t->path, start);
  }
  return status;
}

static fx_status read_fragment(const fx_ckpt *ckpt, const fx_manifest_fragment *f, const wants *want,
                               char *piece) {
  char file[FX_MANIFEST_SHARD_BYTES];
  fx_manifest_shard_name(f->shard, file);
  char *path = fx_strfmt("%s/%s", ckpt->path, file);
  if (!path) return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  fx_status status = FX_OK;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    status = fx_error(FX_ERR_CHECKPOINT, "%s cannot be opened: %s", path, strerror(errno));
  else
    status = stream(fd, path, &ckpt->manifest.tensors[f->tensor], f, want, piece);
  if (fd >= 0) close(fd);
  free(path);
  return status;
}

static bool region_meets(const fx_ckpt_region *region, const fx_manifest_fragment *f) {
  for (int d = 0; d < region->ndim; d++)
    if (region->start[d] >= f->start[d] + f->count[d] || f->start[d] >= region->start[d] + region->count[d])
      return false;
  return true;
}

/* A fragment is read when some region meets it, and then serves all of the tensor's regions. */
static fx_status read_tensor(const fx_ckpt *ckpt, const fx_manifest_tensor *t, const wants *want,
                             char *piece) {
  for (int64_t i = t->first; i < t->first + t->fragments; i++) {
    const fx_manifest_fragment *f = &ckpt->manifest.fragments[i];
    bool met = false;
    for (int64_t r = want->first; r >= 0 && !met; r = want->next[r]) met = region_meets(&want->regions[r], f);
    if (met) FX_TRY(read_fragment(ckpt, f, want, piece));
  }
  return FX_OK;
}

static fx_status check_region(const fx_ckpt *ckpt, const fx_ckpt_region *region, int64_t *tensor) {
  const char *wrong = fx_manifest_box_fault(region->path, region->dtype, region->ndim, region->dim,
                                            region->start, region->count);
  if (wrong) return fx_error(FX_ERR_SHAPE, "%s %s", region->path ? region->path : "(null)", wrong);
  *tensor = fx_manifest_find(&ckpt->manifest, region->path);
  if (*tensor < 0)
    return fx_error(FX_ERR_CHECKPOINT,
                    "%s has no tensor %s; was it saved with another model? (flexion ckpt inspect lists them)",
                    ckpt->path, region->path);
  const fx_manifest_tensor *t = &ckpt->manifest.tensors[*tensor];
  bool same = t->dtype == region->dtype && t->ndim == region->ndim;
  for (int d = 0; d < region->ndim && same; d++) same = t->dim[d] == region->dim[d];
  if (same) return FX_OK;
  char saved[96], wanted[96];
  fx_manifest_shape_text(t->ndim, t->dim, saved);
  fx_manifest_shape_text(region->ndim, region->dim, wanted);
  return fx_error(
      FX_ERR_CHECKPOINT,
      "%s: tensor %s is %s %s there, but %s %s here; use the model section that it was saved with",
      ckpt->path, t->path, fx_dtype_name(t->dtype), saved, fx_dtype_name(region->dtype), wanted);
}

fx_status fx_ckpt_read(const fx_ckpt *ckpt, const fx_ckpt_region *regions, int64_t n) {
  const fx_manifest *m = &ckpt->manifest;
  int64_t *head = NULL, *next = NULL, tensor = 0;
  char *piece = NULL;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&head, (size_t)m->n_tensors, sizeof *head), free_chains);
  FX_TRY_GOTO(fx_calloc(&next, (size_t)n, sizeof *next), free_chains);
  FX_TRY_GOTO(fx_alloc_aligned(&piece, PIECE_BYTES), free_chains);
  for (int64_t i = 0; i < m->n_tensors; i++) head[i] = -1;
  for (int64_t i = n - 1; i >= 0; i--) {
    FX_TRY_GOTO(check_region(ckpt, &regions[i], &tensor), free_chains);
    next[i] = -1;
    if (fx_manifest_elements(regions[i].ndim, regions[i].count) == 0) continue;
    next[i] = head[tensor];
    head[tensor] = i;
  }
  for (int64_t i = 0; i < m->n_tensors; i++) {
    wants want = {regions, next, head[i]};
    if (head[i] >= 0) FX_TRY_GOTO(read_tensor(ckpt, &m->tensors[i], &want, piece), free_chains);
  }
free_chains:
  free(head);
  free(next);
  free(piece);
  return status;
}

/* ---- checking ---- */

static fx_status check_index(const fx_ckpt *ckpt) {
  char *data = NULL, *path = fx_strfmt("%s/index.h5", ckpt->path);
  size_t bytes = 0;
  if (!path) return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  fx_status status = fx_files_read(path, &data, &bytes);
  if (status == FX_OK) {
    fx_hash128 got = fx_hash128_of(data, bytes);
    if (got.low != ckpt->manifest.index_hash.low || got.high != ckpt->manifest.index_hash.high)
      status =
          fx_error(FX_ERR_CHECKPOINT, "%s does not match its hash; the file is damaged or was edited", path);
  }
  free(data);
  free(path);
  return status;
}

fx_status fx_ckpt_check(const fx_ckpt *ckpt, int64_t *bytes) {
  const wants nothing = {NULL, NULL, -1};
  int64_t sum = 0;
  char *piece = NULL;
  FX_TRY(check_index(ckpt));
  FX_TRY(fx_alloc_aligned(&piece, PIECE_BYTES));
  fx_status status = FX_OK;
  for (int64_t i = 0; i < ckpt->manifest.n_fragments && status == FX_OK; i++) {
    const fx_manifest_fragment *f = &ckpt->manifest.fragments[i];
    status = read_fragment(ckpt, f, &nothing, piece);
    sum += f->bytes;
  }
  free(piece);
  if (status == FX_OK && bytes) *bytes = sum;
  return status;
}

fx_status fx_ckpt_verify(const char *step_path, int64_t *bytes) {
  fx_ckpt *ckpt = NULL;
  FX_TRY(fx_ckpt_open(step_path, &ckpt));
  fx_status status = fx_ckpt_check(ckpt, bytes);
  fx_ckpt_close(ckpt);
  return status;
}
