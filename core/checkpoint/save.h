/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a save: which rank writes what (share.c), and the collective itself (save.c). Private to
 * core/checkpoint and its tests. */
#ifndef FX_CORE_CHECKPOINT_SAVE_H
#define FX_CORE_CHECKPOINT_SAVE_H

#include "core/checkpoint/manifest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements between two lines of a region's data. */
int64_t fx_ckpt_region_pitch(const fx_ckpt_region *region);

/* What one rank writes: rows of dim 0 of one of its regions. */
typedef struct fx_ckpt_piece {
  const fx_ckpt_region *region;
  int64_t start[FX_CKPT_DIMS], count[FX_CKPT_DIMS];
  const char *data; /* lines of line_bytes, line_pitch bytes apart */
  int64_t line_bytes, line_pitch;
  int64_t bytes;
  int64_t offset; /* in the shard, once it is laid out */
} fx_ckpt_piece;

/* Copies bytes [from, from + bytes) of a piece, as if it were contiguous. */
void fx_ckpt_piece_copy(const fx_ckpt_piece *piece, int64_t from, int64_t bytes, char *out);

/* The pieces of replica_rank. The regions are thought of as one long line of bytes that is cut into
 * replica_size equal lengths; each cut moves to the nearest row of its region (small regions are not cut). So
 * the pieces of all replicas are disjoint, cover everything, and differ by about a row. A region without
 * elements gives one empty piece, to replica 0. *pieces is malloc'ed. FX_ERR_SHAPE for a region that is out
 * of order. */
fx_status fx_ckpt_share(const fx_ckpt_region *regions, int64_t n, int replica_rank, int replica_size,
                        fx_ckpt_piece **pieces, int64_t *count);

#ifdef __cplusplus
}
#endif
#endif
