/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of BLOCK elements are accumulated in a buffer of their own and copied out at the end, so that dst
 * may be any of the sources and the inner loops still vectorise. Vectors run along the elements, never across
 * ranks: the order of the additions of one element is the rank order whatever the block. */
#include "parallel/comm/reduce.h"

#include <string.h>

#include "dynamo_rt/base/memory.h"

enum { BLOCK = 1024 };

/* Integer sums wrap: unsigned arithmetic, then back. */
#define ADD_FLOAT(type, a, b) ((a) + (b))
#define ADD_I32(type, a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define ADD_I64(type, a, b) ((int64_t)((uint64_t)(a) + (uint64_t)(b)))
#define MAX_FLOAT(type, a, b) ((b) > (a) || (b) != (b) ? (b) : (a))
#define MAX_INT(type, a, b) ((b) > (a) ? (b) : (a))

#define REDUCE_FUNCTION(name, type, combine)                                          \
  static void name(const void *const *src, int num_ranks, void *dst, int64_t count) { \
    type sum[BLOCK];                                                                  \
    for (int64_t begin = 0; begin < count; begin += BLOCK) {                          \
      int64_t n = fx_min_i64(BLOCK, count - begin);                                   \
      memcpy(sum, (const type *)src[0] + begin, (size_t)n * sizeof(type));            \
      for (int r = 1; r < num_ranks; r++) {                                           \
        const type *x = (const type *)src[r] + begin;                                 \
        for (int64_t i = 0; i < n; i++) sum[i] = combine(type, sum[i], x[i]);         \
      }                                                                               \
      memcpy((type *)dst + begin, sum, (size_t)n * sizeof(type));                     \
    }                                                                                 \
  }

REDUCE_FUNCTION(sum_f32, float, ADD_FLOAT)
REDUCE_FUNCTION(sum_f64, double, ADD_FLOAT)
REDUCE_FUNCTION(sum_i32, int32_t, ADD_I32)
REDUCE_FUNCTION(sum_i64, int64_t, ADD_I64)
REDUCE_FUNCTION(max_f32, float, MAX_FLOAT)
REDUCE_FUNCTION(max_f64, double, MAX_FLOAT)
REDUCE_FUNCTION(max_i32, int32_t, MAX_INT)
REDUCE_FUNCTION(max_i64, int64_t, MAX_INT)

typedef void (*reduce_fn)(const void *const *src, int num_ranks, void *dst, int64_t count);

static const reduce_fn g_reduce[FX_DTYPE_COUNT][2] = {
    [FX_F32] = {[FX_REDUCE_SUM] = sum_f32, [FX_REDUCE_MAX] = max_f32},
    [FX_F64] = {[FX_REDUCE_SUM] = sum_f64, [FX_REDUCE_MAX] = max_f64},
    [FX_I32] = {[FX_REDUCE_SUM] = sum_i32, [FX_REDUCE_MAX] = max_i32},
    [FX_I64] = {[FX_REDUCE_SUM] = sum_i64, [FX_REDUCE_MAX] = max_i64},
};

fx_status fx_reduce_check(const fx_comm *comm, const fx_comm_call *call) {
  if (call->kind != FX_ALL_REDUCE && call->kind != FX_REDUCE_SCATTER) return FX_OK;
  FX_ASSERT((unsigned)call->dtype < FX_DTYPE_COUNT && (unsigned)call->reduce <= FX_REDUCE_MAX);
  if (g_reduce[call->dtype][call->reduce]) return FX_OK;
  return fx_error(
      FX_ERR_UNSUPPORTED,
      "%s of %s on communicator %s: sums are taken in float32, float64, int32 or int64; cast before",
      fx_collective_name(call->kind), fx_dtype_name(call->dtype), comm->name);
}

void fx_reduce_ranks(fx_dtype dtype, fx_reduce reduce, const void *const *src, int num_ranks, void *dst,
                     int64_t count) {
  g_reduce[dtype][reduce](src, num_ranks, dst, count);
}
