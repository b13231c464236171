/* SPDX-License-Identifier: Apache-2.0 */
#include "core/checkpoint/save.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

enum { WHOLE_BYTES = 64 << 10 }; /* a region up to this is written by one rank */

static int64_t region_bytes(const fx_ckpt_region *region) {
  return fx_manifest_elements(region->ndim, region->count) * (int64_t)fx_dtype_bytes(region->dtype);
}

int64_t fx_ckpt_region_pitch(const fx_ckpt_region *region) {
  int64_t width = region->ndim ? region->count[region->ndim - 1] : 1;
  return region->ndim > 1 && region->pitch ? region->pitch : width;
}

/* A contiguous region is one line. */
static void set_lines(const fx_ckpt_region *region, fx_ckpt_piece *piece) {
  int64_t size = (int64_t)fx_dtype_bytes(region->dtype);
  int64_t width = region->ndim ? region->count[region->ndim - 1] : 1, pitch = fx_ckpt_region_pitch(region);
  bool contiguous = pitch == width;
  piece->line_bytes = contiguous ? piece->bytes : width * size;
  piece->line_pitch = contiguous ? piece->bytes : pitch * size;
}

void fx_ckpt_piece_copy(const fx_ckpt_piece *piece, int64_t from, int64_t bytes, char *out) {
  while (bytes > 0) {
    int64_t line = from / piece->line_bytes, at = from % piece->line_bytes;
    int64_t some = fx_min_i64(bytes, piece->line_bytes - at);
    memcpy(out, piece->data + line * piece->line_pitch + at, (size_t)some);
    out += some;
    from += some;
    bytes -= some;
  }
}

/* The row of a region, which begins at `base` on the line, where the cut at `cut` falls. */
static int64_t row_at(int64_t cut, int64_t base, int64_t row_bytes, int64_t rows) {
  if (cut <= base) return 0;
  return fx_min_i64((cut - base + row_bytes / 2) / row_bytes, rows);
}

static int64_t cut_at(int64_t total, int rank, int size) {
  return total / size * rank + total % size * rank / size;
}

static fx_status add_piece(fx_ckpt_piece **pieces, int64_t *room, int64_t *count,
                           const fx_ckpt_region *region, int64_t row, int64_t rows, int64_t row_bytes) {
  FX_TRY(fx_grow(pieces, room, *count + 1, sizeof **pieces));
  fx_ckpt_piece *piece = &(*pieces)[(*count)++];
  *piece = (fx_ckpt_piece){.region = region, .offset = -1};
  memcpy(piece->start, region->start, sizeof piece->start);
  memcpy(piece->count, region->count, sizeof piece->count);
  for (int d = region->ndim; d < FX_CKPT_DIMS; d++) piece->start[d] = piece->count[d] = 0;
  piece->data = region->data;
  piece->bytes = rows * row_bytes;
  set_lines(region, piece);
  if (rows == 1 && row_bytes == region_bytes(region)) return FX_OK; /* not cut */
  piece->start[0] += row;
  piece->count[0] = rows;
  int64_t width = region->count[region->ndim - 1], pitch = fx_ckpt_region_pitch(region);
  if (piece->bytes > 0) piece->data += row * (row_bytes / width * pitch);
  return FX_OK;
}

static fx_status check_regions(const fx_ckpt_region *regions, int64_t n, int64_t *total) {
  *total = 0;
  for (int64_t i = 0; i < n; i++) {
    const fx_ckpt_region *r = &regions[i];
    const char *wrong = fx_manifest_box_fault(r->path, r->dtype, r->ndim, r->dim, r->start, r->count);
    if (wrong) return fx_error(FX_ERR_SHAPE, "%s %s", r->path ? r->path : "(null)", wrong);
    if (r->ndim > 1 && r->pitch && r->pitch < r->count[r->ndim - 1])
      return fx_error(FX_ERR_SHAPE, "%s has lines that overlap in memory", r->path);
    if (!r->data && region_bytes(r) > 0) return fx_error(FX_ERR_SHAPE, "%s has no data", r->path);
    if (__builtin_add_overflow(*total, region_bytes(r), total))
      return fx_error(FX_ERR_SHAPE, "%s: the regions are larger than 2^63 bytes", r->path);
  }
  return FX_OK;
}

fx_status fx_ckpt_share(const fx_ckpt_region *regions, int64_t n, int replica_rank, int replica_size,
                        fx_ckpt_piece **pieces, int64_t *count) {
  fx_ckpt_piece *mine = NULL;
  int64_t room = 0, found = 0, base = 0, total;
  fx_status status = FX_OK;
  FX_ASSERT(replica_size > 0 && replica_rank >= 0 && replica_rank < replica_size);
  FX_TRY(check_regions(regions, n, &total));
  int64_t low = cut_at(total, replica_rank, replica_size),
          high = cut_at(total, replica_rank + 1, replica_size);
  for (int64_t i = 0; i < n && status == FX_OK; i++) {
    const fx_ckpt_region *region = &regions[i];
    int64_t bytes = region_bytes(region);
    bool whole = bytes <= WHOLE_BYTES || region->ndim == 0;
    int64_t rows = whole ? 1 : region->count[0], row_bytes = bytes / rows;
    if (bytes == 0) {
      if (replica_rank == 0) status = add_piece(&mine, &room, &found, region, 0, 1, 0);
      continue;
    }
    int64_t first = row_at(low, base, row_bytes, rows), last = row_at(high, base, row_bytes, rows);
    if (first < last) status = add_piece(&mine, &room, &found, region, first, last - first, row_bytes);
    base += bytes;
  }
  if (status != FX_OK) {
    free(mine);
    return status;
  }
  *pieces = mine;
  *count = found;
  return FX_OK;
}
