/* SPDX-License-Identifier: Apache-2.0 */
/* How the interpreter runs a code: steps over registers of 256 lanes.
 *
 * Values live in spaces: one lane (U), the 32 rows of a tile (Q), its keys (K), or a block (B) of up to 256
 * lanes: for a tile eight keys of 32 rows, else 256 points, where q and kv are lanes of the block too. A step
 * is one operator over all lanes of its space, so that dispatch costs one indirect call for 256 lanes.
 * Sections run in order U, Q, K, B_ONCE once a tile (or call), then B for every block; where a space uses a
 * value of a narrower one, a step of its own widens it.
 *
 * Registers are given by last use. Those that a block reads but does not make stay until the last block;
 * where that needs too many, constants and widened values are made anew in every block.
 *
 * Private to attention/tile. */
#ifndef FX_ATTENTION_TILE_LANE_PLAN_H
#define FX_ATTENTION_TILE_LANE_PLAN_H

#include "attention/tile/code.h"
#include "attention/tile/interp.h"
#include "attention/tile/lanes.h"

enum {
  FX_LANE_PLAN_WIDTH = 256,
  FX_LANE_PLAN_SLOTS = 160, /* registers of 1 KiB on the stack, touched only as far as they are used */
  FX_LANE_PLAN_MAX_OUTPUTS = 128
};

/* Registers that the caller points somewhere; slots follow. */
enum {
  FX_LANE_PLAN_Q,
  FX_LANE_PLAN_KV,
  FX_LANE_PLAN_SCORE,
  FX_LANE_PLAN_OUTPUT,
  FX_LANE_PLAN_SLOT = FX_LANE_PLAN_OUTPUT + FX_LANE_PLAN_MAX_OUTPUTS
};

typedef enum fx_lane_plan_section {
  FX_LANE_PLAN_IN_U,
  FX_LANE_PLAN_IN_Q,
  FX_LANE_PLAN_IN_K,
  FX_LANE_PLAN_B_ONCE,
  FX_LANE_PLAN_IN_B,
  FX_LANE_PLAN_SECTIONS
} fx_lane_plan_section;

typedef enum fx_lane_plan_kind {
  FX_STEP_APPLY,  /* out = apply(a, b, c) */
  FX_STEP_VALUE,  /* out = value in every lane */
  FX_STEP_PARAM,  /* out = uniform[index] in every lane */
  FX_STEP_H,      /* out = h in every lane */
  FX_STEP_SPLAT,  /* out = lane 0 of a in every lane */
  FX_STEP_REPEAT, /* out = the 32 lanes of a, for each key */
  FX_STEP_SPREAD, /* out = lane k of a in the 32 lanes of key k */
  FX_STEP_COPY,   /* out = a */
  FX_STEP_LOAD,   /* out = buffer[index] under the indices a, b, c */
  FX_STEP_DIV_BY, /* out = a / value */
  FX_STEP_MOD_BY
} fx_lane_plan_kind;

typedef struct fx_lane_plan_step {
  uint8_t kind;
  uint8_t section;
  int16_t reg[4]; /* out, a, b, c */
  int32_t index;
  fx_ex_value value;
  double reciprocal;
  fx_lanes_fn apply;
} fx_lane_plan_step;

typedef struct fx_lane_plan {
  fx_code *code;
  fx_lane_plan_step *step;
  int32_t first[FX_LANE_PLAN_SECTIONS + 1]; /* steps of section s: [first[s], first[s + 1]) */
  int32_t slots;
  int16_t output[FX_LANE_PLAN_MAX_OUTPUTS]; /* registers of the outputs */
  bool tile;
} fx_lane_plan;

/* A run: pointers of all registers. */
typedef struct fx_lane_plan_frame {
  const fx_lane_plan *plan;
  const float *uniform;
  const void *const *buffer;
  int32_t h;
  int32_t *reg[FX_LANE_PLAN_SLOT + FX_LANE_PLAN_SLOTS];
  int32_t slot[FX_LANE_PLAN_SLOTS][FX_LANE_PLAN_WIDTH] __attribute__((aligned(64)));
} fx_lane_plan_frame;

/* Takes the code. `tile`: outputs stay in registers; else they go straight to the registers
 * FX_LANE_PLAN_OUTPUT + i. FX_ERR_UNSUPPORTED: more values live at once than there are registers. */
fx_status fx_lane_plan_create(fx_code *code, bool tile, fx_lane_plan **plan);
void fx_lane_plan_destroy(fx_lane_plan *plan);

/* Points the slots; the caller points FX_LANE_PLAN_Q and so on where the code uses them. uniform or buffer
 * NULL, or an entry of buffer NULL: the pool's values. */
void fx_lane_plan_begin(const fx_lane_plan *plan, fx_lane_plan_frame *frame, const float *uniform,
                        const void *const *buffer, int32_t h);
/* Runs a section over n lanes; key: number of the block's first key (tiles). */
void fx_lane_plan_run(fx_lane_plan_frame *frame, fx_lane_plan_section section, int64_t n, int32_t key);

#endif
