/* SPDX-License-Identifier: Apache-2.0 */
/* The battery every CPU transport has to pass: each kind of call, dtype, operation, in place or not, at
 * counts that do not divide evenly. What a rank puts in is a function of (rank, index), so each rank computes
 * every expected result by itself, with plain loops of its own, and compares bits. Checks return a status,
 * since ranks may be threads. */
#ifndef FX_TESTS_PARALLEL_BATTERY_H
#define FX_TESTS_PARALLEL_BATTERY_H

#include <stdbool.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "dynamo_rt/base/philox.h"
#include "dynamo_rt/comm/comm.h"

#define REQUIRE(cond, ...)                                      \
  do {                                                          \
    if (!(cond)) return fx_error(FX_ERR_INTERNAL, __VA_ARGS__); \
  } while (0)

typedef struct battery_case {
  fx_collective kind;
  fx_dtype dtype;
  fx_reduce reduce;
  bool in_place;
  int64_t count;
  int shift; /* root of a broadcast, distance of a ring shift */
} battery_case;

enum { BATTERY_GUARD = 64 };

static inline const char *battery_text(const battery_case *c) {
  static _Thread_local char text[160];
  snprintf(text, sizeof text, "%s %s %s x %lld%s shift %d", fx_collective_name(c->kind),
           c->reduce == FX_REDUCE_MAX ? "max" : "sum", fx_dtype_name(c->dtype), (long long)c->count,
           c->in_place ? " in place" : "", c->shift);
  return text;
}

/* Element i of rank r. Floats span magnitudes whose sum depends on the order of the additions. */
static inline void battery_fill(fx_dtype dtype, void *data, int rank, int64_t count) {
  static const double magnitudes[8] = {1e8, -1e8, 1, -3, 1e-3, 3e7, -3e7, 0.5};
  for (int64_t i = 0; i < count; i++) {
    uint64_t x = ((uint64_t)i * 0x9E3779B97F4A7C15ull) ^ ((uint64_t)(rank + 1) * 0xC2B2AE3D27D4EB4Full);
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 32;
    double value = magnitudes[x & 7] * (1 + (double)(x >> 40) * 0x1p-24);
    if (dtype == FX_F32) ((float *)data)[i] = (float)value;
    if (dtype == FX_F64) ((double *)data)[i] = value * (x & 8 ? 1e9 : 1);
    if (dtype == FX_I32) ((int32_t *)data)[i] = (int32_t)(uint32_t)x;
    if (dtype == FX_I64) ((int64_t *)data)[i] = (int64_t)x;
    if (dtype == FX_BF16 || dtype == FX_F16) ((uint16_t *)data)[i] = (uint16_t)x;
    if (dtype == FX_U8) ((uint8_t *)data)[i] = (uint8_t)x;
  }
}

/* sum[i] = sum[i] op x[i] */
static inline void battery_combine(fx_dtype dtype, fx_reduce reduce, void *sum, const void *x,
                                   int64_t count) {
  bool max = reduce == FX_REDUCE_MAX;
  for (int64_t i = 0; i < count; i++) {
    if (dtype == FX_F32) {
      float *s = (float *)sum + i, v = ((const float *)x)[i];
      *s = max ? (v > *s ? v : *s) : *s + v;
    } else if (dtype == FX_F64) {
      double *s = (double *)sum + i, v = ((const double *)x)[i];
      *s = max ? (v > *s ? v : *s) : *s + v;
    } else if (dtype == FX_I32) {
      int32_t *s = (int32_t *)sum + i, v = ((const int32_t *)x)[i];
      *s = max ? (v > *s ? v : *s) : (int32_t)((uint32_t)*s + (uint32_t)v);
    } else {
      int64_t *s = (int64_t *)sum + i, v = ((const int64_t *)x)[i];
      *s = max ? (v > *s ? v : *s) : (int64_t)((uint64_t)*s + (uint64_t)v);
    }
  }
}

/* The result that `rank` of `size` must get into want (battery_out elements); scratch holds one rank's input.
 */
static inline void battery_expect(const battery_case *c, int rank, int size, char *want, char *scratch) {
  size_t element = fx_dtype_bytes(c->dtype), bytes = (size_t)c->count * element;
  if (c->kind == FX_ALL_REDUCE || c->kind == FX_REDUCE_SCATTER) {
    bool scatter = c->kind == FX_REDUCE_SCATTER;
    for (int r = 0; r < size; r++) {
      battery_fill(c->dtype, scratch, r, scatter ? c->count * size : c->count);
      const char *block = scratch + (scatter ? (size_t)rank * bytes : 0);
      if (r == 0)
        memcpy(want, block, bytes);
      else
        battery_combine(c->dtype, c->reduce, want, block, c->count);
    }
    return;
  }
  if (c->kind == FX_ALL_GATHER)
    for (int r = 0; r < size; r++) battery_fill(c->dtype, want + (size_t)r * bytes, r, c->count);
  if (c->kind == FX_BROADCAST) battery_fill(c->dtype, want, c->shift % size, c->count);
  if (c->kind == FX_SEND_RECV) battery_fill(c->dtype, want, (rank + size - c->shift % size) % size, c->count);
  if (c->kind == FX_RECV) battery_fill(c->dtype, want, rank - 1, c->count);
}

static inline fx_status battery_compare(const battery_case *c, int rank, const char *got, const char *want,
                                        int64_t count) {
  size_t element = fx_dtype_bytes(c->dtype);
  if (memcmp(got, want, (size_t)count * element) == 0) return FX_OK;
  int64_t i = 0;
  while (memcmp(got + (size_t)i * element, want + (size_t)i * element, element) == 0) i++;
  uint64_t g = 0, w = 0;
  memcpy(&g, got + (size_t)i * element, element);
  memcpy(&w, want + (size_t)i * element, element);
  return fx_error(FX_ERR_INTERNAL, "%s on rank %d: element %lld: expected bits %llx, got %llx",
                  battery_text(c), rank, (long long)i, (unsigned long long)w, (unsigned long long)g);
}

/* Four buffers of one call, each with a guard behind it. */
typedef struct battery_buffers {
  char *block; /* owned */
  char *src, *dst, *want, *scratch;
  size_t in_bytes, out_bytes;
} battery_buffers;

static inline void battery_allocate(const battery_case *c, int size, battery_buffers *b) {
  size_t bytes = (size_t)c->count * fx_dtype_bytes(c->dtype);
  b->in_bytes = c->kind == FX_REDUCE_SCATTER ? bytes * (size_t)size : bytes;
  b->out_bytes = c->kind == FX_ALL_GATHER ? bytes * (size_t)size : bytes;
  size_t most = (b->in_bytes > b->out_bytes ? b->in_bytes : b->out_bytes) + BATTERY_GUARD;
  most = (most + 63) / 64 * 64;
  b->block = malloc(4 * most);
  FX_ASSERT(b->block);
  b->src = b->block;
  b->dst = b->src + most;
  b->want = b->dst + most;
  b->scratch = b->want + most;
  memset(b->block, 0xEE, 4 * most);
}

/* Issues the call; *got is where its result lies. */
static inline fx_status battery_issue(fx_comm *comm, const battery_case *c, const battery_buffers *b,
                                      const char **got) {
  int size = comm->size, rank = comm->rank, root = c->shift % size;
  size_t own = (size_t)rank * (size_t)c->count * fx_dtype_bytes(c->dtype);
  char *src = b->src, *dst = b->dst;
  if (c->in_place && c->kind == FX_ALL_REDUCE) dst = src;
  if (c->in_place && c->kind == FX_REDUCE_SCATTER) dst = src + own;
  if (c->in_place && c->kind == FX_ALL_GATHER) src = memcpy(dst + own, src, b->in_bytes);
  if (c->kind == FX_BROADCAST && rank == root) memcpy(dst, src, b->out_bytes);
  fx_comm_call call = {.kind = c->kind,
                       .reduce = c->reduce,
                       .dtype = c->dtype,
                       .peer = (rank + c->shift) % size,
                       .peer_from = (rank + size - root) % size,
                       .count = c->count,
                       .src = c->kind == FX_BROADCAST || c->kind == FX_RECV ? NULL : src,
                       .dst = c->kind == FX_SEND ? NULL : dst};
  if (c->kind == FX_BROADCAST) call.peer = root;
  if (c->kind == FX_SEND) call.peer = rank + 1;
  if (c->kind == FX_RECV) call.peer = rank - 1;
  *got = dst;
  return fx_comm_issue(comm, &call);
}

static inline fx_status battery_check(fx_comm *comm, const battery_case *c, const battery_buffers *b,
                                      const char *got) {
  int64_t element = (int64_t)fx_dtype_bytes(c->dtype);
  if (c->kind != FX_SEND) {
    battery_expect(c, comm->rank, comm->size, b->want, b->scratch);
    FX_TRY(battery_compare(c, comm->rank, got, b->want, (int64_t)b->out_bytes / element));
  }
  for (int i = 0; i < BATTERY_GUARD; i++)
    REQUIRE((unsigned char)b->dst[b->out_bytes + (size_t)i] == 0xEE &&
                (unsigned char)b->src[b->in_bytes + (size_t)i] == 0xEE,
            "%s on rank %d wrote past its end", battery_text(c), comm->rank);
  if (c->in_place) return FX_OK;
  battery_fill(c->dtype, b->scratch, comm->rank, (int64_t)b->in_bytes / element); /* src is only read */
  return battery_compare(c, comm->rank, b->src, b->scratch, (int64_t)b->in_bytes / element);
}

/* One call with buffers of its own. For FX_SEND even ranks send to the next odd one, which runs FX_RECV. */
static inline fx_status battery_run(fx_comm *comm, battery_case c) {
  battery_buffers b = {0};
  const char *got = NULL;
  if (c.kind == FX_SEND) {
    if (comm->rank % 2 == 0 && comm->rank + 1 == comm->size) return FX_OK;
    if (comm->rank % 2) c.kind = FX_RECV;
  }
  battery_allocate(&c, comm->size, &b);
  battery_fill(c.dtype, b.src, comm->rank, (int64_t)(b.in_bytes / fx_dtype_bytes(c.dtype)));
  fx_status status = battery_issue(comm, &c, &b, &got);
  if (status == FX_OK) status = battery_check(comm, &c, &b, got);
  free(b.block);
  return status;
}

/* Every kind, dtype, operation, in place and not, at `count` elements. */
static inline fx_status battery_all(fx_comm *comm, int64_t count) {
  for (int d = 0; d < FX_DTYPE_COUNT; d++) {
    fx_dtype dtype = (fx_dtype)d;
    bool sums = dtype == FX_F32 || dtype == FX_F64 || dtype == FX_I32 || dtype == FX_I64;
    for (int in_place = 0; in_place < 2; in_place++) {
      for (int op = 0; sums && op < 2; op++) {
        FX_TRY(battery_run(comm, (battery_case){FX_ALL_REDUCE, dtype, (fx_reduce)op, in_place, count, 0}));
        FX_TRY(
            battery_run(comm, (battery_case){FX_REDUCE_SCATTER, dtype, (fx_reduce)op, in_place, count, 0}));
      }
      FX_TRY(battery_run(comm, (battery_case){FX_ALL_GATHER, dtype, FX_REDUCE_SUM, in_place, count, 0}));
    }
    for (int shift = 0; shift < comm->size; shift++) {
      FX_TRY(battery_run(comm, (battery_case){FX_BROADCAST, dtype, FX_REDUCE_SUM, false, count, shift}));
      FX_TRY(battery_run(comm, (battery_case){FX_SEND_RECV, dtype, FX_REDUCE_SUM, false, count, shift}));
    }
    if (comm->size > 1)
      FX_TRY(battery_run(comm, (battery_case){FX_SEND, dtype, FX_REDUCE_SUM, false, count, 0}));
    FX_TRY(fx_comm_issue(comm, &(fx_comm_call){.kind = FX_BARRIER}));
  }
  return FX_OK;
}

/* 1e8, -1e8, 1, 1, ... from ranks 0, 1, 2, 3, ...: in rank order the sum keeps every 1; 1, 1e8, -1e8, ...: it
 * loses the first. Known by hand, for 3 ranks and more. */
static inline fx_status battery_known_order(fx_comm *comm) {
  float late = comm->rank == 0 ? 1e8f : comm->rank == 1 ? -1e8f : 1.0f;
  float early = comm->rank == 0 ? 1.0f : comm->rank == 1 ? 1e8f : comm->rank == 2 ? -1e8f : 0.0f;
  fx_comm_call call = {.kind = FX_ALL_REDUCE, .dtype = FX_F32, .count = 1, .src = &late, .dst = &late};
  FX_TRY(fx_comm_issue(comm, &call));
  call.src = call.dst = &early;
  FX_TRY(fx_comm_issue(comm, &call));
  if (comm->size < 3) return FX_OK;
  REQUIRE(late == (float)(comm->size - 2), "(1e8 - 1e8) + 1 + ... over %d ranks: expected %d, got %g",
          comm->size, comm->size - 2, (double)late);
  REQUIRE(early == 0.0f, "(1 + 1e8) - 1e8: expected 0, got %g", (double)early);
  return FX_OK;
}

#endif
