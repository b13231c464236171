/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, checking and reading a step. A fragment is read by blocks, each with its hash: those of which some
 * region wants an element, and no other. What is hashed as a whole (by older versions) is streamed
 * through the same buffer, so that memory does not grow with the fragments of whoever wrote them. HDF5 is not
 * involved. */
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

struct fx_ckpt {
  char *path;
  fx_manifest manifest;
  int64_t *bytes_read; /* accessed atomically; a pointer, since readers have a const fx_ckpt */
};

/* ---- the manifest and what it says ---- */

fx_status fx_ckpt_open(const char *step_path, fx_ckpt **out) {
  fx_ckpt *ckpt = calloc(1, sizeof *ckpt);
  char *text = NULL, *name = fx_strfmt("%s/manifest.json", step_path);
  size_t bytes = 0;
  fx_status status;
  if (ckpt) ckpt->path = fx_strdup(step_path);
  if (ckpt) ckpt->bytes_read = calloc(1, sizeof *ckpt->bytes_read);
  if (!ckpt || !ckpt->path || !ckpt->bytes_read || !name) {
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
  free(ckpt->bytes_read);
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

int64_t fx_ckpt_bytes_read(const fx_ckpt *ckpt) {
  return __atomic_load_n(ckpt->bytes_read, __ATOMIC_RELAXED);
}

/* ---- reading fragments ---- */

/* What is wanted: regions chained by the tensor they belong to. */
typedef struct wants {
  const fx_ckpt_region *regions;
  const int64_t *next; /* region -> next region of the tensor, -1 */
  int64_t first;
  int rank, size; /* size > 0: every size-th hash, from the rank-th on, only to check it */
} wants;

/* The number of the first element of the fragment, from `from` on, that lies in the region; -1: none does. */
static int64_t next_wanted(const fx_manifest_fragment *f, const fx_ckpt_region *region, int64_t from) {
  int64_t low[FX_CKPT_DIMS], high[FX_CKPT_DIMS], at[FX_CKPT_DIMS], number = 0;
  const int ndim = region->ndim;
  int d = ndim;
  while (--d >= 0) { /* the region and `from` by the fragment's coordinates */
    int64_t shift = region->start[d] - f->start[d];
    low[d] = fx_max_i64(shift, 0);
    high[d] = fx_min_i64(shift + region->count[d], f->count[d]);
    if (low[d] >= high[d]) return -1;
    at[d] = from % f->count[d];
    from /= f->count[d];
  }
  for (d = 0; d < ndim && at[d] >= low[d] && at[d] < high[d];) d++;
  if (d < ndim && at[d] >= high[d]) { /* behind the region in this dimension: one on in one before */
    while (--d >= 0 && at[d] + 1 >= high[d]) continue;
    if (d < 0) return -1;
    at[d++]++;
  }
  for (; d < ndim; d++) at[d] = low[d];
  for (d = 0; d < ndim; d++) number = number * f->count[d] + at[d];
  return number;
}

/* hash: its number in the manifest; it is of the fragment's elements [from, from + n) */
static bool is_wanted(const wants *want, const fx_manifest_fragment *f, int64_t hash, int64_t from,
                      int64_t n) {
  if (want->size > 0) return hash % want->size == want->rank;
  for (int64_t r = want->first; r >= 0; r = want->next[r]) {
    int64_t next = next_wanted(f, &want->regions[r], from);
    if (next >= 0 && next < from + n) return true;
  }
  return false;
}

/* Copies elements [from, from + n) of the fragment, which lie at `block`, into the region. Both are walked by
 * lines of the last dimension. */
static void scatter(const fx_manifest_tensor *t, const fx_manifest_fragment *f, const char *block,
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
           block + (size_t)(line * width + low - from) * size, (size_t)(high - low) * size);
  }
}

static fx_status read_block(int fd, const char *path, char *block, int64_t bytes, int64_t offset) {
  for (int64_t have = 0; have < bytes;) {
    ssize_t got = pread(fd, block + have, (size_t)(bytes - have), offset + have);
    if (got > 0)
      have += got;
    else if (got == 0)
      return fx_error(FX_ERR_CHECKPOINT, "%s is cut: it ends before byte %" PRId64, path, offset + bytes);
    else if (errno != EINTR)
      return fx_error(FX_ERR_CHECKPOINT, "%s cannot be read: %s", path, strerror(errno));
  }
  return FX_OK;
}

/* from: the number of the first element that the hash is of */
static fx_status does_not_match(const char *path, const fx_manifest_tensor *t, const fx_manifest_fragment *f,
                                int64_t from) {
  int64_t at[FX_CKPT_DIMS];
  char place[96];
  for (int d = t->ndim - 1; d >= 0; d--) {
    at[d] = f->start[d] + from % f->count[d];
    from /= f->count[d];
  }
  fx_manifest_shape_text(t->ndim, at, place);
  return fx_error(FX_ERR_CHECKPOINT,
                  "%s: the part of %s at %s does not match its hash; the file is damaged or belongs to "
                  "another step",
                  path, t->path, place);
}

/* Bytes [from, from + bytes) of the fragment, which have one hash. */
static fx_status read_hashed(const fx_ckpt *ckpt, int fd, const char *path, const fx_manifest_fragment *f,
                             int64_t from, int64_t bytes, fx_hash128 hash, const wants *want, char *block) {
  const fx_manifest_tensor *t = &ckpt->manifest.tensors[f->tensor];
  const int64_t size = (int64_t)fx_dtype_bytes(t->dtype), end = from + bytes;
  fx_hasher *hasher = fx_hasher_create();
  fx_status status = hasher ? FX_OK : fx_error(FX_ERR_MEMORY, "out of host memory for a hash");
  for (int64_t at = from, some; status == FX_OK && at < end; at += some) {
    some = fx_min_i64(FX_MANIFEST_BLOCK_BYTES, end - at);
    status = read_block(fd, path, block, some, f->offset + at);
    if (status != FX_OK) break;
    __atomic_fetch_add(ckpt->bytes_read, some, __ATOMIC_RELAXED);
    fx_hasher_add(hasher, block, (size_t)some);
    for (int64_t r = want->first; r >= 0; r = want->next[r])
      scatter(t, f, block, at / size, some / size, &want->regions[r]);
  }
  fx_hash128 got = {0, 0};
  if (status == FX_OK) got = fx_hasher_get(hasher);
  fx_hasher_destroy(hasher);
  if (status == FX_OK && (got.low != hash.low || got.high != hash.high))
    status = does_not_match(path, t, f, from / size);
  return status;
}

/* The file is opened only for what is wanted. */
static fx_status read_fragment(const fx_ckpt *ckpt, const fx_manifest_fragment *f, const wants *want,
                               char *block) {
  const int64_t size = (int64_t)fx_dtype_bytes(ckpt->manifest.tensors[f->tensor].dtype);
  const int64_t hashed = f->hashes > 1 ? fx_manifest_block_bytes(f->bytes) : f->bytes;
  char file[FX_MANIFEST_SHARD_BYTES];
  fx_manifest_shard_name(f->shard, file);
  char *path = fx_strfmt("%s/%s", ckpt->path, file);
  if (!path) return fx_error(FX_ERR_MEMORY, "out of host memory for a path");
  fx_status status = FX_OK;
  int fd = -1;
  for (int64_t h = 0; h < f->hashes && status == FX_OK; h++) {
    int64_t from = h * hashed, bytes = fx_min_i64(hashed, f->bytes - from);
    if (!is_wanted(want, f, f->first_hash + h, from / size, bytes / size)) continue;
    if (fd < 0) fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
      status = fx_error(FX_ERR_CHECKPOINT, "%s cannot be opened: %s", path, strerror(errno));
    else
      status =
          read_hashed(ckpt, fd, path, f, from, bytes, ckpt->manifest.hashes[f->first_hash + h], want, block);
  }
  if (fd >= 0) close(fd);
  free(path);
  return status;
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
  char *block = NULL;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&head, (size_t)m->n_tensors, sizeof *head), free_chains);
  FX_TRY_GOTO(fx_calloc(&next, (size_t)n, sizeof *next), free_chains);
  FX_TRY_GOTO(fx_alloc_aligned(&block, FX_MANIFEST_BLOCK_BYTES), free_chains);
  for (int64_t i = 0; i < m->n_tensors; i++) head[i] = -1;
  for (int64_t i = n - 1; i >= 0; i--) {
    FX_TRY_GOTO(check_region(ckpt, &regions[i], &tensor), free_chains);
    next[i] = -1;
    if (fx_manifest_elements(regions[i].ndim, regions[i].count) == 0) continue;
    next[i] = head[tensor];
    head[tensor] = i;
  }
  for (int64_t i = 0; i < m->n_fragments; i++) {
    wants want = {regions, next, head[m->fragments[i].tensor], 0, 0};
    FX_TRY_GOTO(read_fragment(ckpt, &m->fragments[i], &want, block), free_chains);
  }
free_chains:
  free(head);
  free(next);
  free(block);
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

fx_status fx_ckpt_check_share(const fx_ckpt *ckpt, int rank, int size) {
  const fx_manifest *m = &ckpt->manifest;
  const wants share = {NULL, NULL, -1, rank, size};
  char *block = NULL;
  if (rank == 0) FX_TRY(check_index(ckpt));
  FX_TRY(fx_alloc_aligned(&block, FX_MANIFEST_BLOCK_BYTES));
  fx_status status = FX_OK;
  for (int64_t i = 0; i < m->n_fragments && status == FX_OK; i++)
    status = read_fragment(ckpt, &m->fragments[i], &share, block);
  free(block);
  return status;
}

fx_status fx_ckpt_check(const fx_ckpt *ckpt, int64_t *bytes) {
  int64_t before = fx_ckpt_bytes_read(ckpt);
  FX_TRY(fx_ckpt_check_share(ckpt, 0, 1));
  if (bytes) *bytes = fx_ckpt_bytes_read(ckpt) - before;
  return FX_OK;
}

fx_status fx_ckpt_verify(const char *step_path, int64_t *bytes) {
  fx_ckpt *ckpt = NULL;
  FX_TRY(fx_ckpt_open(step_path, &ckpt));
  fx_status status = fx_ckpt_check(ckpt, bytes);
  fx_ckpt_close(ckpt);
  return status;
}
