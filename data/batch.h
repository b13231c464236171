/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-batch of one data-parallel rank: named buffers in one aligned block, so that upper layers add
 * theirs (mask limits, chunk permutations) without data knowing what they mean.
 *
 * A global batch is the G samples of ordinals [consumed, consumed + G). Micro step m, data-parallel rank r of
 * R, row j holds ordinal consumed + m*(B*R) + r*B + j: any R sees the same samples in a global batch. */
#ifndef FX_DATA_BATCH_H
#define FX_DATA_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "data/sampler.h"
#include "dynamo_rt/base/status.h"
#include "dynamo_rt/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FX_BATCH_MAX_FIELDS = 32, FX_BATCH_MAX_NAME = 32 };

typedef struct fx_batch_field {
  char name[FX_BATCH_MAX_NAME];
  fx_dtype dtype;
  int64_t elements;
  void *data; /* 64-byte aligned, owned by the batch; NULL in a request */
} fx_batch_field;

/* How the global batch is dealt out. */
typedef struct fx_batch_layout {
  int64_t micro_batch_size;  /* B */
  int64_t global_batch_size; /* G, a multiple of B * dp_size */
  int64_t dp_rank, dp_size;  /* r, R */
} fx_batch_layout;

/* Memory for the block, e.g. pinned. alloc: 64-byte aligned, any content. */
typedef struct fx_batch_allocator {
  fx_status (*alloc)(void *ctx, size_t bytes, void **out);
  void (*release)(void *ctx, void *memory);
  void *ctx;
} fx_batch_allocator;

typedef struct fx_batch {
  int64_t rows, seq_length;                                    /* B, T */
  int32_t *tokens, *targets, *positions, *doc_start, *doc_end; /* [B,T]; also fields of those names */
  int64_t *sample_ordinal;                                     /* [B]; also a field of that name */
  int64_t consumed_samples; /* the global batch is ordinals [consumed_samples, consumed_end) */
  int64_t consumed_end;     /* what consumed_samples becomes once the global batch is done */
  int64_t micro, n_micro;   /* which micro-batch of the global batch, of how many */
  int64_t valid;            /* targets other than -1 in this micro-batch, on this rank */
  int64_t global_valid;     /* the same over the global batch and all ranks: the loss divisor (may be 0) */
  fx_batch_field fields[FX_BATCH_MAX_FIELDS];
  int n_fields;
  void *block;
  fx_batch_allocator allocator;
} fx_batch;

/* rows = B, seq_length = T. extra [n_extra]: further buffers (name, dtype, elements); they start as zeros and
 * fill never touches them. allocator: NULL for host memory; copied. *out is owned by the caller.
 * FX_ERR_SHAPE: B or T below 1, an empty, long or repeated name, elements < 0, too many fields. */
fx_status fx_batch_create(int64_t rows, int64_t seq_length, const fx_batch_field *extra, int n_extra,
                          const fx_batch_allocator *allocator, fx_batch **out);
void fx_batch_destroy(fx_batch *batch);

/* Borrowed for the life of the batch; NULL when there is no field of that name. */
const fx_batch_field *fx_batch_find(const fx_batch *batch, const char *name);
/* Its data, checked: FX_ERR_SHAPE names what differs when the field is missing, of another dtype, or holds
 * fewer than `elements`. */
fx_status fx_batch_buffer(const fx_batch *batch, const char *name, fx_dtype dtype, int64_t elements,
                          void **data);

/* FX_ERR_CONFIG unless B, G, R >= 1, 0 <= r < R and G is a multiple of B * R. */
fx_status fx_batch_layout_check(const fx_batch_layout *layout);
/* G / (B * R): gradient accumulation steps. */
int64_t fx_batch_layout_micros(const fx_batch_layout *layout);
int64_t fx_batch_layout_ordinal(const fx_batch_layout *layout, int64_t consumed_samples, int64_t micro,
                                int64_t row);

/* Targets other than -1 in samples [consumed_samples, consumed_samples + G): from the sample index alone, so
 * every rank computes the same number without communication. Thread-safe as fx_sampler_valid is. */
int64_t fx_batch_count_valid(fx_sampler *sampler, int64_t consumed_samples, int64_t global_batch_size);

/* Fills the six data buffers and every count. global_valid: fx_batch_count_valid's result, or -1 to have it
 * computed. The batch's B and T must be the layout's and the sampler's. Allocates nothing. */
void fx_batch_fill(fx_batch *batch, fx_sampler *sampler, const fx_batch_layout *layout,
                   int64_t consumed_samples, int64_t micro, int64_t global_valid);

#ifdef __cplusplus
}
#endif
#endif
