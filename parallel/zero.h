/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO (Rajbhandari et al., arXiv:1910.02054): which part of the parameters' state lies on which rank.
 *
 * Rank r of N owns slice r, an Nth, of every bucket. It alone keeps masters, moments and the summed gradient
 * of what it owns, *packed*: the slices one behind the other, so that bucket [b, e) lies at b / N. What lies
 * in no bucket (norms, biases, tables: small) every rank keeps and updates; it follows the slices. As a
 * bucket is made of whole storages, a rank owns one flat range of a storage, or nothing.
 *
 * Masters are the exception where kernels compute in fp32: the whole weights are there anyway, so the slices
 * of the masters are those of `weight` itself.
 *
 * All functions are good without ZeRO too: a rank then owns everything and packed is flat. */
#ifndef FX_PARALLEL_ZERO_H
#define FX_PARALLEL_ZERO_H

#include "parallel/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This rank's slice of a bucket. */
typedef struct fx_zero_slice {
  int64_t count;
  int64_t flat;   /* its first element in the flat layout, */
  int64_t packed; /* in the packed one, */
  int64_t place;  /* and without padding: what rounding draws by */
} fx_zero_slice;
fx_zero_slice fx_zero_slice_of(const fx_params *params, const fx_param_bucket *bucket);

/* Where element `flat` >= num_sharded of the flat layout lies in packed buffers. */
int64_t fx_zero_rest(const fx_params *params, int64_t flat);
/* Where that element lies in `weight`. */
int64_t fx_zero_weight_rest(const fx_params *params, int64_t flat);
/* Where the masters of a slice lie in `weight`. */
int64_t fx_zero_master(const fx_params *params, const fx_zero_slice *slice);

/* What of a parameter's local part this rank keeps, as boxes: a slice of a bucket may begin and end inside a
 * row. */
enum { FX_ZERO_BOXES = 3 };
typedef struct fx_zero_box {
  int64_t row, rows, col, cols; /* of the local part */
  int64_t packed;               /* its first element in packed buffers, */
  int64_t master;               /* and in `weight` */
  int64_t pitch;                /* elements from row to row, in both */
  bool shared;                  /* every rank of the group keeps it */
} fx_zero_box;
int fx_zero_boxes(const fx_params *params, const fx_param *param, fx_zero_box box[FX_ZERO_BOXES]);

/* Copies this rank's masters to or from num_own packed floats of the host; returns when it is done. */
fx_status fx_zero_copy_masters(const fx_params *params, float *host, bool to_host);

/* Moves whole flat weights [numel] of the host to their packed form, in place. */
void fx_zero_pack(const fx_params *params, float *host);

#ifdef __cplusplus
}
#endif
#endif
