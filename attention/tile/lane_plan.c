/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/tile/lane_plan.h"

#include <stdlib.h>
#include <string.h>

#include "dynamo_rt/base/memory.h"

enum { U, Q, K, B, SPACES }; /* fx_code_rate and the sections' first three have this order too */
enum { NOWHERE = -1, FOREVER = INT32_MAX };

/* While a plan is made, steps name virtual registers: external ones by their number, the value made by step i
 * as FIRST + i. */
enum { FIRST = FX_LANE_PLAN_SLOT };

typedef struct builder {
  const fx_code *code;
  fx_lane_plan_step *step;
  int32_t (*arg)[4]; /* virtual registers of step i: out, a, b, c */
  int64_t capacity, arg_capacity;
  int32_t count;
  int32_t (*at)[SPACES]; /* virtual register of instruction i in each space */
  bool tile, pinned;
  fx_status status;
} builder;

static int space_of(const builder *b, int rate) {
  return rate == FX_CODE_UNIFORM ? U : b->tile ? rate : B;
}

static int32_t add(builder *b, fx_lane_plan_step step, const int32_t arg[3]) {
  if (b->status == FX_OK) b->status = fx_grow(&b->step, &b->capacity, b->count + 1, sizeof *b->step);
  if (b->status == FX_OK) b->status = fx_grow(&b->arg, &b->arg_capacity, b->count + 1, sizeof *b->arg);
  if (b->status != FX_OK) return NOWHERE;
  b->step[b->count] = step;
  b->arg[b->count][0] = FIRST + b->count;
  for (int i = 0; i < 3; i++) b->arg[b->count][i + 1] = arg ? arg[i] : NOWHERE;
  return FIRST + b->count++;
}

static int32_t add_on(builder *b, fx_lane_plan_step step, int32_t a) {
  return add(b, step, (const int32_t[3]){a, NOWHERE, NOWHERE});
}

static int section_of(const builder *b, int space, bool invariant) {
  if (space != B) return space;
  return invariant && b->pinned ? FX_LANE_PLAN_B_ONCE : FX_LANE_PLAN_IN_B;
}

/* Constants, parameters and h are made in whichever space wants them. */
static bool is_uniform_leaf(const fx_code_instr *instr) {
  return instr->num_args == 0 && instr->rate == FX_CODE_UNIFORM;
}

static int32_t uniform_leaf(builder *b, const fx_code_instr *instr, int space) {
  fx_lane_plan_step step = {
      .section = (uint8_t)section_of(b, space, true), .value = instr->value, .index = instr->index};
  step.kind = instr->op == FX_EX_CONST ? FX_STEP_VALUE : instr->op == FX_EX_PARAM ? FX_STEP_PARAM : FX_STEP_H;
  return add(b, step, NULL);
}

/* The virtual register that holds instruction i in a space at least as wide as its own. */
static int32_t in_space(builder *b, int32_t i, int space) {
  int32_t *at = b->at[i];
  if (at[space] != NOWHERE || b->status != FX_OK) return at[space];
  const fx_code_instr *instr = &b->code->instr[i];
  int own = space_of(b, instr->rate);
  if (is_uniform_leaf(instr)) {
    at[space] = uniform_leaf(b, instr, space);
  } else if (own == U) {
    fx_lane_plan_step step = {.kind = FX_STEP_SPLAT, .section = (uint8_t)section_of(b, space, true)};
    at[space] = add_on(b, step, at[U]);
  } else if (own == Q) {
    fx_lane_plan_step step = {.kind = FX_STEP_REPEAT, .section = (uint8_t)section_of(b, space, true)};
    at[space] = add_on(b, step, at[Q]);
  } else {
    FX_ASSERT(own == K);
    at[space] = add_on(b, (fx_lane_plan_step){.kind = FX_STEP_SPREAD, .section = FX_LANE_PLAN_IN_B}, at[K]);
  }
  return at[space];
}

static void instruction(builder *b, int32_t i) {
  const fx_code_instr *instr = &b->code->instr[i];
  int space = space_of(b, instr->rate);
  if (instr->op == FX_EX_VAR && instr->index != FX_EX_H) {
    b->at[i][space] = instr->index == FX_EX_Q    ? FX_LANE_PLAN_Q
                      : instr->index == FX_EX_KV ? FX_LANE_PLAN_KV
                                                 : FX_LANE_PLAN_SCORE;
    return;
  }
  if (is_uniform_leaf(instr)) return; /* made by in_space */
  fx_lane_plan_step step = {
      .kind = FX_STEP_APPLY, .section = (uint8_t)section_of(b, space, false), .index = instr->index};
  int args = instr->num_args;
  if (instr->op == FX_EX_LOAD) step.kind = FX_STEP_LOAD;
  const fx_code_instr *second = &b->code->instr[instr->arg[args == 2 ? 1 : 0]];
  if ((instr->op == FX_EX_DIV || instr->op == FX_EX_MOD) && fx_code_is_positive(second)) {
    step.kind = instr->op == FX_EX_DIV ? FX_STEP_DIV_BY : FX_STEP_MOD_BY;
    step.value = second->value;
    step.reciprocal = fx_lanes_reciprocal(second->value.i);
    args = 1;
  }
  int32_t arg[3] = {NOWHERE, NOWHERE, NOWHERE};
  for (int k = 0; k < args; k++) arg[k] = in_space(b, instr->arg[k], space);
  if (step.kind == FX_STEP_APPLY) {
    step.apply = fx_lanes_get(instr->op, instr->arg_type);
    FX_ASSERT(step.apply);
  }
  b->at[i][space] = add(b, step, arg);
}

/* Outputs in block registers; of points, each in a register of the caller's. */
static void outputs(builder *b, int32_t *output) {
  for (int k = 0; k < b->code->num_outputs; k++) output[k] = in_space(b, b->code->output[k], B);
  if (b->tile || b->status != FX_OK) return;
  for (int k = 0; k < b->code->num_outputs; k++) {
    int32_t made = output[k] - FIRST, own = FX_LANE_PLAN_OUTPUT + k;
    bool direct = made >= 0 && b->step[made].section == FX_LANE_PLAN_IN_B && b->arg[made][0] == output[k];
    if (direct) { /* whoever reads the value reads it there */
      b->arg[made][0] = own;
      for (int32_t i = 0; i < b->count; i++)
        for (int a = 1; a < 4; a++)
          if (b->arg[i][a] == output[k]) b->arg[i][a] = own;
      for (int later = k + 1; later < b->code->num_outputs; later++)
        if (output[later] == output[k]) output[later] = own;
    } else {
      int32_t copy =
          add_on(b, (fx_lane_plan_step){.kind = FX_STEP_COPY, .section = FX_LANE_PLAN_IN_B}, output[k]);
      if (copy != NOWHERE) b->arg[copy - FIRST][0] = own;
    }
    output[k] = own;
  }
}

/* Steps in the order of sections (stable), virtual registers of the arguments renamed with them. */
static fx_status sort_sections(builder *b, int32_t *output, int32_t first[FX_LANE_PLAN_SECTIONS + 1]) {
  fx_lane_plan_step *step = NULL;
  int32_t(*arg)[4] = NULL, *moved = NULL, count = 0;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&step, (size_t)b->count + 1, sizeof *step), free_all);
  FX_TRY_GOTO(fx_calloc(&arg, (size_t)b->count + 1, sizeof *arg), free_all);
  FX_TRY_GOTO(fx_calloc(&moved, (size_t)b->count + 1, sizeof *moved), free_all);
  for (int section = 0; section < FX_LANE_PLAN_SECTIONS; section++) {
    first[section] = count;
    for (int32_t i = 0; i < b->count; i++)
      if (b->step[i].section == section) moved[i] = count++;
  }
  first[FX_LANE_PLAN_SECTIONS] = count;
  for (int32_t i = 0; i < b->count; i++) {
    step[moved[i]] = b->step[i];
    for (int a = 0; a < 4; a++) {
      int32_t reg = b->arg[i][a];
      arg[moved[i]][a] = reg >= FIRST ? FIRST + moved[reg - FIRST] : reg;
    }
  }
  for (int k = 0; k < b->code->num_outputs; k++)
    if (output[k] >= FIRST) output[k] = FIRST + moved[output[k] - FIRST];
  fx_lane_plan_step *old_step = b->step;
  int32_t(*old_arg)[4] = b->arg;
  b->step = step;
  b->arg = arg;
  step = old_step;
  arg = old_arg;
free_all:
  free(moved);
  free(arg);
  free(step);
  return status;
}

/* last[i]: the step that reads the value of step i for the last time. */
static void last_uses(const builder *b, const int32_t *output, int32_t block, int32_t *last) {
  for (int32_t i = 0; i < b->count; i++) last[i] = i;
  for (int32_t i = 0; i < b->count; i++)
    for (int a = 1; a < 4; a++) {
      int32_t made = b->arg[i][a] - FIRST;
      if (made >= 0) last[made] = made < block && i >= block ? FOREVER : last[made] == FOREVER ? FOREVER : i;
    }
  for (int k = 0; k < b->code->num_outputs; k++)
    if (output[k] >= FIRST) last[output[k] - FIRST] = FOREVER;
}

/* Registers by last use; the number of slots, or -1 when they do not suffice. */
static int32_t give_registers(builder *b, int32_t *output, int32_t block, int32_t *last, int16_t *slot) {
  int16_t unused[FX_LANE_PLAN_SLOTS];
  int32_t num_unused = 0, slots = 0;
  last_uses(b, output, block, last);
  for (int32_t i = 0; i < b->count; i++) {
    for (int a = 1; a < 4; a++) {
      int32_t made = b->arg[i][a] - FIRST;
      b->step[i].reg[a] = (int16_t)(made >= 0 ? FIRST + slot[made] : b->arg[i][a]);
      if (made >= 0 && last[made] == i) {
        unused[num_unused++] = slot[made];
        last[made] = NOWHERE; /* not again when it is two arguments */
      }
    }
    if (b->arg[i][0] < FIRST) {
      b->step[i].reg[0] = (int16_t)b->arg[i][0];
      continue;
    }
    if (!num_unused && slots == FX_LANE_PLAN_SLOTS) return -1;
    slot[i] = num_unused ? unused[--num_unused] : (int16_t)slots++;
    b->step[i].reg[0] = (int16_t)(FIRST + slot[i]);
    if (last[i] == i) unused[num_unused++] = slot[i]; /* never read: cannot be but for an output's leaf */
  }
  for (int k = 0; k < b->code->num_outputs; k++)
    if (output[k] >= FIRST) output[k] = FIRST + slot[output[k] - FIRST];
  return slots;
}

static fx_status build(fx_lane_plan *plan, bool pinned) {
  builder b = {.code = plan->code, .tile = plan->tile, .pinned = pinned, .status = FX_OK};
  int32_t output[FX_LANE_PLAN_MAX_OUTPUTS] = {0}, *last = NULL;
  int16_t *slot = NULL;
  fx_status status;
  FX_TRY_GOTO(fx_calloc(&b.at, (size_t)b.code->num_instrs, sizeof *b.at), free_builder);
  memset(b.at, 0xff, (size_t)b.code->num_instrs * sizeof *b.at);
  for (int32_t i = 0; i < b.code->num_instrs; i++) instruction(&b, i);
  outputs(&b, output);
  FX_TRY_GOTO(b.status, free_builder);
  FX_TRY_GOTO(sort_sections(&b, output, plan->first), free_builder);
  FX_TRY_GOTO(fx_calloc(&last, (size_t)b.count + 1, sizeof *last), free_builder);
  FX_TRY_GOTO(fx_calloc(&slot, (size_t)b.count + 1, sizeof *slot), free_builder);
  plan->slots = give_registers(&b, output, plan->first[FX_LANE_PLAN_IN_B], last, slot);
  if (plan->slots >= 0) {
    for (int k = 0; k < b.code->num_outputs; k++) plan->output[k] = (int16_t)output[k];
    plan->step = b.step;
    b.step = NULL;
  }
free_builder:
  free(slot);
  free(last);
  free(b.at);
  free(b.arg);
  free(b.step);
  return status;
}

fx_status fx_lane_plan_create(fx_code *code, bool tile, fx_lane_plan **out) {
  FX_ASSERT(code->num_outputs <= FX_LANE_PLAN_MAX_OUTPUTS);
  fx_lane_plan *plan = NULL;
  fx_status status = fx_calloc(&plan, 1, sizeof *plan);
  if (status != FX_OK) {
    fx_code_destroy(code);
    return status;
  }
  plan->code = code;
  plan->tile = tile;
  status = build(plan, true);
  if (status == FX_OK && !plan->step) status = build(plan, false);
  if (status == FX_OK && !plan->step)
    status =
        fx_error(FX_ERR_UNSUPPORTED,
                 "the expression needs more than %d values at once, too many to interpret; simplify it or "
                 "install a C compiler",
                 FX_LANE_PLAN_SLOTS);
  if (status == FX_OK)
    *out = plan;
  else
    fx_lane_plan_destroy(plan);
  return status;
}

void fx_lane_plan_destroy(fx_lane_plan *plan) {
  if (!plan) return;
  fx_code_destroy(plan->code);
  free(plan->step);
  free(plan);
}

/* ---- running ---- */

void fx_lane_plan_begin(const fx_lane_plan *plan, fx_lane_plan_frame *frame, const float *uniform,
                        const void *const *buffer, int32_t h) {
  frame->plan = plan;
  frame->uniform = uniform;
  frame->buffer = buffer;
  frame->h = h;
  for (int32_t i = 0; i < plan->slots; i++) frame->reg[FX_LANE_PLAN_SLOT + i] = frame->slot[i];
}

static void load(const fx_lane_plan_frame *frame, const fx_lane_plan_step *step, int64_t n) {
  const fx_ex_buffer *declared = &frame->plan->code->buffer[step->index];
  const void *given = frame->buffer ? frame->buffer[step->index] : NULL;
  const int32_t *index[3] = {NULL, NULL, NULL};
  for (int i = 0; i < declared->ndim; i++) index[i] = frame->reg[step->reg[i + 1]];
  fx_lanes_load(n, frame->reg[step->reg[0]], given ? given : declared->constant, declared->ndim,
                declared->dim, index);
}

static int32_t uniform_bits(const fx_lane_plan_frame *frame, int32_t index) {
  fx_ex_value value = {.f = frame->uniform ? frame->uniform[index] : frame->plan->code->param[index].value};
  return value.i;
}

static void widen(const fx_lane_plan_step *step, int64_t n, int32_t *out, const int32_t *a, int32_t key) {
  if (step->kind == FX_STEP_SPLAT) fx_lanes_fill(n, out, a[0]);
  if (step->kind == FX_STEP_COPY) memcpy(out, a, (size_t)n * sizeof *out);
  for (int64_t i = 0; step->kind == FX_STEP_SPREAD && i < n; i += FX_TILE_ROWS)
    fx_lanes_fill(FX_TILE_ROWS, out + i, a[key + i / FX_TILE_ROWS]);
  for (int64_t i = 0; step->kind == FX_STEP_REPEAT && i < n; i += FX_TILE_ROWS)
    if (out + i != a) memcpy(out + i, a, FX_TILE_ROWS * sizeof *out); /* in place for i = 0 */
}

void fx_lane_plan_run(fx_lane_plan_frame *frame, fx_lane_plan_section section, int64_t n, int32_t key) {
  const fx_lane_plan *plan = frame->plan;
  for (int32_t i = plan->first[section]; i < plan->first[section + 1]; i++) {
    const fx_lane_plan_step *step = &plan->step[i];
    int32_t *out = frame->reg[step->reg[0]];
    const int32_t *a = frame->reg[step->reg[step->reg[1] >= 0 ? 1 : 0]]; /* what is no argument is not read */
    switch ((fx_lane_plan_kind)step->kind) {
    case FX_STEP_APPLY:
      step->apply(n, out, a, step->reg[2] >= 0 ? frame->reg[step->reg[2]] : a,
                  step->reg[3] >= 0 ? frame->reg[step->reg[3]] : a);
      break;
    case FX_STEP_VALUE:
      fx_lanes_fill(n, out, step->value.i);
      break;
    case FX_STEP_PARAM:
      fx_lanes_fill(n, out, uniform_bits(frame, step->index));
      break;
    case FX_STEP_H:
      fx_lanes_fill(n, out, frame->h);
      break;
    case FX_STEP_LOAD:
      load(frame, step, n);
      break;
    case FX_STEP_DIV_BY:
      fx_lanes_div_by(n, out, a, step->value.i, step->reciprocal);
      break;
    case FX_STEP_MOD_BY:
      fx_lanes_mod_by(n, out, a, step->value.i, step->reciprocal);
      break;
    default:
      widen(step, n, out, a, key);
      break;
    }
  }
}
