/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a step: what is in it and where each fragment lies. Private to core/checkpoint and its
 * tests.
 *
 * On disk it is JSON with one tensor or fragment a line; its last member is the XXH3-128 of every byte before
 * the comma in front of it, so an edited or cut file is noticed before anything in it is believed:
 *
 *   {"format": "flexion-checkpoint", "version": 2, ..., "fragments": [...],
 *   "manifest_xxh3_128": "<32 hex digits>"}
 *
 * A fragment's "xxh3_128" is one hash, of all its bytes, or since version 2 an array: one a block (of
 * fx_manifest_block_bytes, the last may be shorter), so that a reader can leave out the blocks that it does
 * not need.
 *
 * Invariants of a manifest in memory (fx_manifest_finish and fx_manifest_parse establish them): tensors are
 * sorted by path, fragments by (tensor, start); every tensor is covered exactly once by its fragments; no
 * fragment is empty; all products and file ranges fit in int64_t. */
#ifndef FX_CORE_CHECKPOINT_MANIFEST_H
#define FX_CORE_CHECKPOINT_MANIFEST_H

#include "core/checkpoint/checkpoint.h"
#include "dynamo_rt/base/hash.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  FX_MANIFEST_VERSION = 2, /* written; 1 is read, too */
  FX_MANIFEST_SHARD_BYTES = 32,
  FX_MANIFEST_DATASET_BYTES = 352,
  FX_MANIFEST_BLOCK_BYTES = 4 << 20 /* at most */
};

typedef struct fx_manifest_tensor {
  char *path; /* owned */
  fx_dtype dtype;
  int ndim;
  int64_t dim[FX_CKPT_DIMS];
  int64_t elements;
  int64_t first, fragments; /* its range of the fragments */
} fx_manifest_tensor;

typedef struct fx_manifest_fragment {
  int64_t tensor; /* index */
  int64_t start[FX_CKPT_DIMS], count[FX_CKPT_DIMS];
  int64_t shard; /* number in the file's name */
  int64_t offset, bytes;
  int64_t first_hash, hashes; /* its range of the manifest's: one of the whole, or one a block */
} fx_manifest_fragment;

typedef struct fx_manifest {
  fx_ckpt_state state;
  char *config, *code_version; /* owned */
  fx_hash128 index_hash;
  bool has_shard[FX_CKPT_FILES];
  int64_t n_shards;
  fx_manifest_tensor *tensors; /* owned */
  int64_t n_tensors, tensors_room;
  fx_manifest_fragment *fragments; /* owned */
  int64_t n_fragments, fragments_room;
  fx_hash128 *hashes; /* owned */
  int64_t n_hashes, hashes_room;
} fx_manifest;

void fx_manifest_fini(fx_manifest *manifest);

/* NULL when path, shape, dtype and box are in order, else what is wrong with them (a static phrase). */
const char *fx_manifest_box_fault(const char *path, fx_dtype dtype, int ndim, const int64_t *dim,
                                  const int64_t *start, const int64_t *count);
/* Elements of a box known to be in order. */
int64_t fx_manifest_elements(int ndim, const int64_t *count);
/* Of a fragment of so many bytes: the size of its blocks and their number. A power of two from 64 KiB to 4
 * MiB, with at most 32 blocks where that is possible: fine enough for eight ranks to share a matrix, and few
 * hashes. */
int64_t fx_manifest_block_bytes(int64_t bytes);
int64_t fx_manifest_blocks(int64_t bytes);

/* Building: any order; a tensor is added once a fragment, and must look the same each time. Errors are
 * FX_ERR_CHECKPOINT. */
fx_status fx_manifest_add_tensor(fx_manifest *manifest, const char *path, fx_dtype dtype, int ndim,
                                 const int64_t *dim);
/* The fragment's tensor is the one added last. */
fx_status fx_manifest_add_fragment(fx_manifest *manifest, const fx_manifest_fragment *fragment);
/* Sorts, merges equal tensors, and checks that fragments cover each one exactly once. */
fx_status fx_manifest_finish(fx_manifest *manifest);

/* malloc'ed text of the file. FX_ERR_CHECKPOINT when the config is not UTF-8 or loss_scale is not finite. */
fx_status fx_manifest_print(const fx_manifest *manifest, char **text, size_t *bytes);
/* Appends the last member to `body` (the file up to, not including, the comma before it). malloc'ed, NULL
 * when out of memory. */
char *fx_manifest_seal(const char *body, size_t body_bytes, size_t *bytes);
/* name: of the file, for messages. *out is initialised on success only. */
fx_status fx_manifest_parse(const char *text, size_t bytes, const char *name, fx_manifest *out);

/* Index of the tensor of that path, -1 when there is none. */
int64_t fx_manifest_find(const fx_manifest *manifest, const char *path);

void fx_manifest_shard_name(int64_t shard, char name[FX_MANIFEST_SHARD_BYTES]);
/* Name of a fragment's dataset in its shard: "<path>@<start,...>". */
void fx_manifest_dataset_name(const char *path, int ndim, const int64_t *start,
                              char name[FX_MANIFEST_DATASET_BYTES]);
/* "[3, 4]" */
void fx_manifest_shape_text(int ndim, const int64_t *dim, char text[96]);

#ifdef __cplusplus
}
#endif
#endif
