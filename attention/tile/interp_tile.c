/* SPDX-License-Identifier: Apache-2.0 */
/* Tile functions of the interpreter. */
#include <stdlib.h>
#include <string.h>

#include "attention/tile/outputs.h"
#include "attention/tile/lane_plan.h"
#include "attention/variant/variant.h"
#include "dynamo_rt/base/memory.h"

enum { BLOCK = FX_LANE_PLAN_WIDTH / FX_TILE_ROWS }; /* keys a block */

struct fx_tile_interp {
  fx_lane_plan *plan[FX_TILE_FUNCTION_COUNT]; /* NULL: no such function */
  fx_tile_read *read;                         /* [num_reads] what `tables` adds to */
  int32_t num_reads;
};

/* All that a tile's blocks share. */
static const fx_lane_plan *begin(const fx_tile_args *args, fx_tile_function function,
                                 fx_lane_plan_frame *frame) {
  const fx_tile_interp *interp = args->self;
  const fx_lane_plan *plan = interp->plan[function];
  fx_lane_plan_begin(plan, frame, args->uniform, args->buffer, args->h);
  frame->reg[FX_LANE_PLAN_Q] = (int32_t *)(uintptr_t)args->q;
  frame->reg[FX_LANE_PLAN_KV] = (int32_t *)(uintptr_t)args->kv;
  fx_lane_plan_run(frame, FX_LANE_PLAN_IN_U, 1, 0);
  fx_lane_plan_run(frame, FX_LANE_PLAN_IN_Q, FX_TILE_ROWS, 0);
  fx_lane_plan_run(frame, FX_LANE_PLAN_IN_K, args->keys, 0);
  fx_lane_plan_run(frame, FX_LANE_PLAN_B_ONCE, FX_LANE_PLAN_WIDTH, 0);
  return plan;
}

static int32_t keys_of_block(const fx_tile_args *args, int32_t key) {
  return args->keys - key < BLOCK ? args->keys - key : BLOCK;
}

/* The block's scores, side by side. */
static void take_scores(fx_lane_plan_frame *frame, const float *s, int64_t stride, int32_t key, int32_t keys,
                        float room[FX_LANE_PLAN_WIDTH]) {
  if (!((frame->plan->code->depends >> FX_EX_SCORE) & 1)) return;
  for (int32_t k = 0; k < keys; k++)
    memcpy(room + k * FX_TILE_ROWS, s + (key + k) * stride, FX_TILE_ROWS * sizeof *room);
  frame->reg[FX_LANE_PLAN_SCORE] = (int32_t *)(void *)room;
}

static void run_block(fx_lane_plan_frame *frame, int32_t key, int32_t keys) {
  fx_lane_plan_run(frame, FX_LANE_PLAN_IN_B, (int64_t)keys * FX_TILE_ROWS, key);
}

static const int32_t *result(const fx_lane_plan_frame *frame, int output) {
  return frame->reg[frame->plan->output[output]];
}

static void mask(const fx_tile_args *args, uint32_t *bits) {
  fx_lane_plan_frame frame;
  begin(args, FX_TILE_MASK, &frame);
  for (int32_t key = 0; key < args->keys; key += BLOCK) {
    int32_t keys = keys_of_block(args, key);
    run_block(&frame, key, keys);
    fx_lanes_pack(keys, bits + key, result(&frame, 0));
  }
}

static void put(const fx_lane_plan_frame *frame, int output, float *s, int64_t stride, int32_t key,
                int32_t keys, float factor) {
  const float *lane = (const float *)(const void *)result(frame, output);
  for (int32_t k = 0; k < keys; k++)
    fx_lanes_scale(FX_TILE_ROWS, s + (key + k) * stride, lane + k * FX_TILE_ROWS, factor);
}

static void run_score(const fx_tile_args *args, fx_tile_function function, float *s, float *slope,
                      int64_t stride, float factor) {
  fx_lane_plan_frame frame;
  _Alignas(64) float room[FX_LANE_PLAN_WIDTH];
  begin(args, function, &frame);
  for (int32_t key = 0; key < args->keys; key += BLOCK) {
    int32_t keys = keys_of_block(args, key);
    take_scores(&frame, s, stride, key, keys, room);
    run_block(&frame, key, keys);
    put(&frame, 0, s, stride, key, keys, factor);
    if (slope) put(&frame, 1, slope, stride, key, keys, 1.0f);
  }
}

static void score(const fx_tile_args *args, float *s, int64_t stride, float factor) {
  run_score(args, FX_TILE_SCORE, s, NULL, stride, factor);
}

static void score_slope(const fx_tile_args *args, float *s, float *slope, int64_t stride, float factor) {
  run_score(args, FX_TILE_SCORE_SLOPE, s, slope, stride, factor);
}

/* The outputs of a read: its indices, then the slope. */
static void add_read(const fx_lane_plan_frame *frame, const fx_tile_read *read, int32_t lane0, uint32_t bits,
                     const float *ds, float *table) {
  const fx_ex_buffer *declared = &frame->plan->code->buffer[read->buffer];
  const int32_t *index[3] = {NULL, NULL, NULL};
  int32_t flat[FX_TILE_ROWS];
  for (int i = 0; i < declared->ndim; i++) index[i] = result(frame, read->first_output + i) + lane0;
  fx_lanes_flatten(FX_TILE_ROWS, flat, declared->ndim, declared->dim, index);
  const float *slope =
      (const float *)(const void *)result(frame, read->first_output + declared->ndim) + lane0;
  for (int32_t r = 0; r < FX_TILE_ROWS; r++)
    if ((bits >> r) & 1) table[flat[r]] += ds[r] * slope[r];
}

static void tables(const fx_tile_args *args, const uint32_t *bits, const float *raw, const float *ds,
                   int64_t stride) {
  const fx_tile_interp *interp = args->self;
  fx_lane_plan_frame frame;
  _Alignas(64) float room[FX_LANE_PLAN_WIDTH];
  begin(args, FX_TILE_TABLES, &frame);
  for (int32_t key = 0; key < args->keys; key += BLOCK) {
    int32_t keys = keys_of_block(args, key);
    take_scores(&frame, raw, stride, key, keys, room);
    run_block(&frame, key, keys);
    for (int32_t k = 0; k < keys; k++)
      for (int32_t i = 0; i < interp->num_reads; i++)
        add_read(&frame, &interp->read[i], k * FX_TILE_ROWS, bits[key + k], ds + (key + k) * stride,
                 args->table_grad[interp->read[i].buffer]);
  }
}

static bool in_bounds(const fx_tile_args *args, const uint32_t *bits, const float *raw, int64_t stride) {
  fx_lane_plan_frame frame;
  _Alignas(64) float room[FX_LANE_PLAN_WIDTH];
  const fx_lane_plan *plan = begin(args, FX_TILE_IN_BOUNDS, &frame);
  uint32_t any = 0, fault[BLOCK];
  for (int32_t key = 0; key < args->keys; key += BLOCK) {
    int32_t keys = keys_of_block(args, key);
    take_scores(&frame, raw, stride, key, keys, room);
    run_block(&frame, key, keys);
    for (int output = 0; output < plan->code->num_outputs; output++) {
      fx_lanes_pack(keys, fault, result(&frame, output));
      for (int32_t k = 0; k < keys; k++) any |= fault[k] & bits[key + k];
    }
  }
  return !any;
}

fx_status fx_tile_interp_create(const fx_variant *variant, fx_tile_interp **out) {
  fx_tile_interp *interp;
  FX_TRY(fx_calloc(&interp, 1, sizeof *interp));
  fx_status status;
  for (int i = 0; i < FX_TILE_FUNCTION_COUNT; i++) {
    fx_code *code = NULL;
    FX_TRY_GOTO(fx_tile_code(variant, i, &code), destroy_interp);
    if (!code) continue;
    FX_TRY_GOTO(code->num_outputs <= FX_LANE_PLAN_MAX_OUTPUTS
                    ? FX_OK
                    : fx_error(FX_ERR_UNSUPPORTED,
                               "the score reads learnable tables in %d places, too many to "
                               "interpret; install a C compiler",
                               variant->num_reads),
                destroy_code);
    FX_TRY_GOTO(fx_lane_plan_create(code, true, &interp->plan[i]), destroy_interp);
    continue;
  destroy_code:
    fx_code_destroy(code);
    goto destroy_interp;
  }
  FX_TRY_GOTO(fx_tile_reads(variant, &interp->read), destroy_interp);
  interp->num_reads = variant->num_reads;
  *out = interp;
  return FX_OK;
destroy_interp:
  fx_tile_interp_destroy(interp);
  return status;
}

void fx_tile_interp_destroy(fx_tile_interp *interp) {
  if (!interp) return;
  for (int i = 0; i < FX_TILE_FUNCTION_COUNT; i++) fx_lane_plan_destroy(interp->plan[i]);
  free(interp->read);
  free(interp);
}

fx_tile_functions fx_tile_interp_functions(const fx_tile_interp *interp) {
  return (fx_tile_functions){
      .self = interp,
      .mask = interp->plan[FX_TILE_MASK] ? mask : NULL,
      .score = interp->plan[FX_TILE_SCORE] ? score : NULL,
      .score_slope = interp->plan[FX_TILE_SCORE_SLOPE] ? score_slope : NULL,
      .tables = interp->plan[FX_TILE_TABLES] ? tables : NULL,
      .in_bounds = interp->plan[FX_TILE_IN_BOUNDS] ? in_bounds : NULL,
  };
}
