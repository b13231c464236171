/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/interval.h"

#include <stdlib.h>
#include <string.h>

#include "attention/mask/interval_ops.h"
#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/base/memory.h"

typedef struct instr {
  uint8_t op, type, arg_type, num_args; /* arg_type: of the first argument, of a branch for SELECT */
  bool plain;                           /* cannot wrap anywhere: the ends need not be brought back */
  int32_t arg[3];                       /* registers */
  int32_t index;
  fx_ex_value value;
  int32_t dim[3];       /* LOAD; ndim is num_args */
  fx_interval declared; /* LOAD: of any element */
} instr;

struct fx_interval_code {
  int32_t count;
  int32_t begin[FX_PART_COUNT + 1]; /* of the parts in code */
  int32_t var[FX_EX_VAR_COUNT];     /* registers of the variables, -1 */
  int32_t root;
  instr *code;
  int32_t *live; /* registers that other parts read, in the order of the parts */
  int32_t live_begin[FX_PART_COUNT + 1];
  int32_t *reg; /* [nodes] register of a node, -1 */
  int32_t num_nodes;
  fx_interval *domain; /* [count] */
};

static fx_interval_part part_of(const fx_ex_node *node) {
  bool q = (node->depends >> FX_EX_Q) & 1, kv = (node->depends >> FX_EX_KV) & 1;
  return q ? (kv ? FX_PART_PAIR : FX_PART_Q) : kv ? FX_PART_KV : FX_PART_FIXED;
}

static fx_interval declared_of(const fx_ex_buffer *buffer) {
  fx_interval range;
  if (buffer->type == FX_EX_FLOAT)
    range.lo.f = -INFINITY, range.hi.f = INFINITY;
  else
    range.lo.i = buffer->lo, range.hi.i = buffer->hi;
  if (buffer->type == FX_EX_INT && buffer->constant) {
    int64_t count = 1;
    for (int i = 0; i < buffer->ndim; i++) count *= buffer->dim[i];
    const int32_t *x = buffer->constant;
    range.lo.i = range.hi.i = x[0];
    for (int64_t i = 1; i < count; i++)
      range.lo.i = fx_min_i64(range.lo.i, x[i]), range.hi.i = fx_max_i64(range.hi.i, x[i]);
  }
  return range;
}

static void translate(const fx_ex_pool *pool, fx_ex node, const int32_t *reg, instr *to) {
  const fx_ex_node *n = fx_ex_get(pool, node);
  *to = (instr){.op = n->op, .type = n->type, .num_args = n->num_args, .index = n->index, .value = n->value};
  for (int k = 0; k < 3; k++) to->arg[k] = n->num_args ? reg[n->arg[k < n->num_args ? k : 0]] : 0;
  to->arg_type = n->num_args ? fx_ex_get(pool, n->arg[n->op == FX_EX_SELECT])->type : n->type;
  if (n->op != FX_EX_LOAD) return;
  const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, n->index);
  memcpy(to->dim, buffer->dim, sizeof to->dim);
  to->declared = declared_of(buffer);
}

static void find_live(fx_interval_code *code) {
  bool *read = (bool *)(code->live + code->count + 1); /* room of the allocation behind the list */
  for (int part = 0; part < FX_PART_COUNT; part++)
    for (int32_t i = code->begin[part]; i < code->begin[part + 1]; i++)
      for (int k = 0; k < code->code[i].num_args; k++)
        if (code->code[i].arg[k] < code->begin[part]) read[code->code[i].arg[k]] = true;
  read[code->root] = true;
  int32_t count = 0;
  for (int part = 0; part < FX_PART_COUNT; part++) {
    code->live_begin[part] = count;
    for (int32_t i = code->begin[part]; i < code->begin[part + 1]; i++)
      if (read[i]) code->live[count++] = i;
  }
  code->live_begin[FX_PART_COUNT] = count;
}

static void find_domain(fx_interval_code *code, const fx_ex_pool *pool, void *memory) {
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(pool);
  float uniform[FX_EX_MAX_PARAMS];
  for (int i = 0; i < fx_ex_num_params(pool); i++) uniform[i] = NAN; /* any value may come */
  fx_interval_run run;
  fx_interval_bind(&run, code, NULL, uniform, memory);
  fx_interval_fix(&run, 0, ranges->H - 1);
  for (int lane = 0; lane < FX_INTERVAL_LANES; lane++) {
    fx_interval_set(&run, FX_EX_Q, lane, 0, ranges->T - 1);
    fx_interval_set(&run, FX_EX_KV, lane, 0, ranges->T_kv - 1);
  }
  for (int part = FX_PART_Q; part < FX_PART_COUNT; part++) fx_interval_eval(&run, (fx_interval_part)part);
  for (int32_t i = 0; i < code->count; i++)
    code->domain[i] = (fx_interval){*fx_interval_own(&run, i, 0), *fx_interval_own(&run, i, 1)};
}

/* Marks what cannot wrap, from the ranges of the arguments. */
static void find_plain(fx_interval_code *code) {
  for (int32_t i = 0; i < code->count; i++) {
    instr *in = &code->code[i];
    if (in->type != FX_EX_INT || in->arg_type != FX_EX_INT) continue;
    fx_interval a = code->domain[in->arg[0]], b = code->domain[in->arg[1]];
    if (in->op == FX_EX_ADD) in->plain = a.lo.i + b.lo.i >= INT32_MIN && a.hi.i + b.hi.i <= INT32_MAX;
    if (in->op == FX_EX_SUB) in->plain = a.lo.i - b.hi.i >= INT32_MIN && a.hi.i - b.lo.i <= INT32_MAX;
    if (in->op == FX_EX_ABS) in->plain = a.lo.i > INT32_MIN;
  }
}

fx_status fx_interval_create(const fx_ex_pool *pool, fx_ex root, fx_interval_code **code) {
  size_t nodes = (size_t)root + 1;
  bool *needed = fx_ex_reachable(pool, &root, 1);
  fx_interval_code *made = NULL;
  void *memory = NULL;
  fx_status status = needed ? fx_calloc(&made, 1, sizeof *made) : FX_ERR_MEMORY;
  if (status == FX_OK) status = fx_calloc(&made->code, nodes, sizeof *made->code);
  if (status == FX_OK) status = fx_calloc(&made->live, 2 * nodes + 2, sizeof *made->live);
  if (status == FX_OK) status = fx_calloc(&made->reg, nodes, sizeof *made->reg);
  if (status == FX_OK) status = fx_calloc(&made->domain, nodes, sizeof *made->domain);
  if (status != FX_OK) goto free_made;
  made->num_nodes = (int32_t)nodes;
  memset(made->reg, 0xff, nodes * sizeof *made->reg);
  memset(made->var, 0xff, sizeof made->var);
  for (int part = 0; part < FX_PART_COUNT; part++) {
    made->begin[part] = made->count;
    for (fx_ex i = 0; i <= root; i++) {
      const fx_ex_node *n = fx_ex_get(pool, i);
      if (!needed[i] || part_of(n) != (fx_interval_part)part) continue;
      if (n->op == FX_EX_VAR) made->var[n->index] = made->count;
      made->reg[i] = made->count;
      translate(pool, i, made->reg, &made->code[made->count++]);
    }
  }
  made->begin[FX_PART_COUNT] = made->count;
  made->root = made->reg[root];
  find_live(made);
  FX_TRY_GOTO(fx_alloc_aligned(&memory, fx_interval_bytes(made)), free_made);
  find_domain(made, pool, memory);
  find_plain(made);
  free(memory);
  free(needed);
  *code = made;
  return FX_OK;
free_made:
  fx_interval_destroy(made);
  free(needed);
  return status;
}

void fx_interval_destroy(fx_interval_code *code) {
  if (!code) return;
  free(code->code);
  free(code->live);
  free(code->reg);
  free(code->domain);
  free(code);
}

fx_interval fx_interval_domain(const fx_interval_code *code, fx_ex node) {
  FX_ASSERT(node >= 0 && node < code->num_nodes && code->reg[node] >= 0);
  return code->domain[code->reg[node]];
}

const int32_t *fx_interval_live(const fx_interval_code *code, fx_interval_part part, int32_t *count) {
  *count = code->live_begin[part + 1] - code->live_begin[part];
  return code->live + code->live_begin[part];
}

size_t fx_interval_bytes(const fx_interval_code *code) {
  size_t registers = (size_t)code->count * 2;
  return registers * FX_INTERVAL_LANES * sizeof(fx_interval_end) +
         fx_align_up(registers * sizeof(fx_interval_end *), FX_ALIGN);
}

void fx_interval_bind(fx_interval_run *run, const fx_interval_code *code, const fx_summary *summary,
                      const float *uniform, void *memory) {
  *run = (fx_interval_run){.code = code, .summary = summary, .uniform = uniform, .own = memory};
  run->read = (void *)(run->own + (int64_t)code->count * 2 * FX_INTERVAL_LANES);
  for (int32_t i = 0; i < code->count; i++)
    for (int end = 0; end < 2; end++) run->read[i][end] = fx_interval_own(run, i, end);
}

/* ---- evaluation ---- */

/* Of one lane: the range of the last index where all others are single values, else the whole buffer. */
static void load_lane(const fx_interval_run *run, const instr *in, int k, fx_lanes_out to) {
  int64_t first[3] = {0}, last[3] = {0}, at = 0;
  FX_ASSERT(in->num_args >= 1);
  bool single = true;
  for (int i = 0; i < in->num_args; i++) {
    int64_t lo = run->read[in->arg[i]][0][k].i, hi = run->read[in->arg[i]][1][k].i, most = in->dim[i] - 1;
    first[i] = lo < 0 ? 0 : lo < most ? lo : most;
    last[i] = hi < 0 ? 0 : hi < most ? hi : most;
    if (i + 1 < in->num_args) {
      single = single && first[i] == last[i];
      at = (at + first[i]) * in->dim[i + 1];
    }
  }
  const fx_summary *summary = run->summary ? &run->summary[in->index] : NULL;
  fx_interval range = in->declared;
  if (summary && summary->data)
    range = single ? fx_summary_range(summary, at + first[in->num_args - 1], at + last[in->num_args - 1])
                   : fx_summary_range(summary, 0, summary->count - 1);
  to.lo[k] = range.lo, to.hi[k] = range.hi;
}

FX_INLINE void eval_int(const instr *in, fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  switch ((fx_ex_op)in->op) {
  case FX_EX_NEG:
    FX_EACH fx_lane_store(to, k, -a.hi[k].i, -a.lo[k].i);
    break;
  case FX_EX_ABS:
    fx_lanes_abs(to, a, in->plain);
    break;
  case FX_EX_ADD:
    if (in->plain)
      FX_EACH to.lo[k].i = a.lo[k].i + b.lo[k].i, to.hi[k].i = a.hi[k].i + b.hi[k].i;
    else
      FX_EACH fx_lane_store(to, k, a.lo[k].i + b.lo[k].i, a.hi[k].i + b.hi[k].i);
    break;
  case FX_EX_SUB:
    if (in->plain)
      FX_EACH to.lo[k].i = a.lo[k].i - b.hi[k].i, to.hi[k].i = a.hi[k].i - b.lo[k].i;
    else
      FX_EACH fx_lane_store(to, k, a.lo[k].i - b.hi[k].i, a.hi[k].i - b.lo[k].i);
    break;
  case FX_EX_MUL:
    fx_lanes_mul(to, a, b);
    break;
  case FX_EX_MIN:
    FX_EACH to.lo[k].i = fx_lane_min(a.lo[k].i, b.lo[k].i), to.hi[k].i = fx_lane_min(a.hi[k].i, b.hi[k].i);
    break;
  case FX_EX_MAX:
    FX_EACH to.lo[k].i = fx_lane_max(a.lo[k].i, b.lo[k].i), to.hi[k].i = fx_lane_max(a.hi[k].i, b.hi[k].i);
    break;
  case FX_EX_BIT_NOT:
    FX_EACH to.lo[k].i = ~a.hi[k].i, to.hi[k].i = ~a.lo[k].i;
    break;
  case FX_EX_BIT_AND:
  case FX_EX_BIT_OR:
  case FX_EX_BIT_XOR:
    fx_lanes_bits((fx_ex_op)in->op, to, a, b);
    break;
  case FX_EX_SHL:
  case FX_EX_SHR:
    fx_lanes_shift(in->op == FX_EX_SHL, to, a, b);
    break;
  case FX_EX_NOT:
    FX_EACH to.lo[k].i = 1 - a.hi[k].i, to.hi[k].i = 1 - a.lo[k].i;
    break;
  case FX_EX_AND:
    FX_EACH to.lo[k].i = a.lo[k].i & b.lo[k].i, to.hi[k].i = a.hi[k].i & b.hi[k].i;
    break;
  case FX_EX_OR:
    FX_EACH to.lo[k].i = a.lo[k].i | b.lo[k].i, to.hi[k].i = a.hi[k].i | b.hi[k].i;
    break;
  case FX_EX_LT:
    FX_EACH to.lo[k].i = a.hi[k].i < b.lo[k].i, to.hi[k].i = a.lo[k].i < b.hi[k].i;
    break;
  case FX_EX_LE:
    FX_EACH to.lo[k].i = a.hi[k].i <= b.lo[k].i, to.hi[k].i = a.lo[k].i <= b.hi[k].i;
    break;
  case FX_EX_EQ:
    FX_EACH to.lo[k].i = (a.lo[k].i == b.hi[k].i) & (a.hi[k].i == b.lo[k].i),
            to.hi[k].i = (a.lo[k].i <= b.hi[k].i) & (b.lo[k].i <= a.hi[k].i);
    break;
  case FX_EX_NE:
    FX_EACH to.lo[k].i = (a.lo[k].i > b.hi[k].i) | (b.lo[k].i > a.hi[k].i),
            to.hi[k].i = !((a.lo[k].i == b.hi[k].i) & (a.hi[k].i == b.lo[k].i));
    break;
  case FX_EX_TO_FLOAT:
    FX_EACH to.lo[k].f = (double)(float)a.lo[k].i, to.hi[k].f = (double)(float)a.hi[k].i;
    break;
  default: /* TO_INT of a condition */
    FX_EACH to.lo[k].i = a.lo[k].i, to.hi[k].i = a.hi[k].i;
  }
}

/* `/` and `%` of ints: by a constant where there is one. */
FX_INLINE void eval_division(const fx_interval_code *code, const instr *in, fx_lanes_out to, fx_lanes_in a,
                             fx_lanes_in b) {
  const instr *divisor = &code->code[in->arg[1]];
  bool div = in->op == FX_EX_DIV;
  if (divisor->op != FX_EX_CONST) {
    if (div)
      fx_lanes_div(to, a, b);
    else
      fx_lanes_mod(to, a, b);
  } else if (divisor->value.i == -1 && div) {
    FX_EACH fx_lane_store(to, k, -a.hi[k].i, -a.lo[k].i);
  } else if (divisor->value.i == 0 || divisor->value.i == -1) {
    FX_EACH to.lo[k].i = to.hi[k].i = 0;
  } else if (div) {
    fx_lanes_div_by(to, a, divisor->value.i);
  } else {
    fx_lanes_mod_by(to, a, divisor->value.i);
  }
}

FX_INLINE void eval_float(const instr *in, fx_lanes_out to, fx_lanes_in a, fx_lanes_in b) {
  switch ((fx_ex_op)in->op) {
  case FX_EX_LT:
  case FX_EX_LE:
  case FX_EX_EQ:
  case FX_EX_NE:
    fx_lanes_float_compare((fx_ex_op)in->op, to, a, b);
    break;
  case FX_EX_ADD:
  case FX_EX_SUB:
  case FX_EX_MUL:
  case FX_EX_DIV:
  case FX_EX_MIN:
  case FX_EX_MAX:
    fx_lanes_float_arith((fx_ex_op)in->op, to, a, b);
    break;
  case FX_EX_TO_INT:
    fx_lanes_to_int(to, a);
    break;
  default:
    fx_lanes_float_function((fx_ex_op)in->op, to, a);
  }
}

FX_INLINE void eval_select(const instr *in, fx_lanes_out to, fx_lanes_in c, fx_lanes_in a, fx_lanes_in b) {
  FX_EACH_SCALAR {
    bool first = c.lo[k].i == 1, second = c.hi[k].i == 0;
    if (in->arg_type == FX_EX_FLOAT) {
      double lo = fmin(a.lo[k].f, b.lo[k].f), hi = fmax(a.hi[k].f, b.hi[k].f);
      to.lo[k].f = first ? a.lo[k].f : second ? b.lo[k].f : lo;
      to.hi[k].f = first ? a.hi[k].f : second ? b.hi[k].f : hi;
    } else {
      int64_t lo = fx_lane_min(a.lo[k].i, b.lo[k].i), hi = fx_lane_max(a.hi[k].i, b.hi[k].i);
      to.lo[k].i = first ? a.lo[k].i : second ? b.lo[k].i : lo;
      to.hi[k].i = first ? a.hi[k].i : second ? b.hi[k].i : hi;
    }
  }
}

static void eval_leaf(const fx_interval_run *run, const instr *in, fx_lanes_out to) {
  fx_interval_end value;
  if (in->op == FX_EX_PARAM)
    value.f = run->uniform[in->index];
  else if (in->type == FX_EX_FLOAT)
    value.f = in->value.f;
  else
    value.i = in->value.i;
  bool nan = in->type == FX_EX_FLOAT && value.f != value.f;
  FX_EACH_SCALAR {
    to.lo[k] = to.hi[k] = value;
    if (nan) to.lo[k].f = -INFINITY, to.hi[k].f = INFINITY;
  }
}

FX_ISA_CLONES static void eval(const fx_interval_run *run, int32_t begin, int32_t end) {
  for (int32_t i = begin; i < end; i++) {
    const instr *in = &run->code->code[i];
    fx_lanes_out to = {fx_interval_own(run, i, 0), fx_interval_own(run, i, 1)};
    fx_lanes_in arg[3];
    for (int n = 0; n < 3; n++) arg[n] = (fx_lanes_in){run->read[in->arg[n]][0], run->read[in->arg[n]][1]};
    switch ((fx_ex_op)in->op) {
    case FX_EX_VAR:
      break;
    case FX_EX_CONST:
    case FX_EX_PARAM:
      eval_leaf(run, in, to);
      break;
    case FX_EX_LOAD:
      FX_EACH_SCALAR load_lane(run, in, k, to);
      break;
    case FX_EX_SELECT:
      eval_select(in, to, arg[0], arg[1], arg[2]);
      break;
    default:
      if (in->arg_type == FX_EX_FLOAT)
        eval_float(in, to, arg[0], arg[1]);
      else if (in->op == FX_EX_DIV || in->op == FX_EX_MOD)
        eval_division(run->code, in, to, arg[0], arg[1]);
      else
        eval_int(in, to, arg[0], arg[1]);
    }
  }
}

void fx_interval_eval(fx_interval_run *run, fx_interval_part part) {
  eval(run, run->code->begin[part], run->code->begin[part + 1]);
}

void fx_interval_set(fx_interval_run *run, fx_ex_var var, int lane, int32_t lo, int32_t hi) {
  int32_t reg = run->code->var[var];
  if (reg < 0) return;
  fx_interval_own(run, reg, 0)[lane].i = lo;
  fx_interval_own(run, reg, 1)[lane].i = hi;
}

void fx_interval_fix(fx_interval_run *run, int32_t h_lo, int32_t h_hi) {
  for (int lane = 0; lane < FX_INTERVAL_LANES; lane++) fx_interval_set(run, FX_EX_H, lane, h_lo, h_hi);
  fx_interval_eval(run, FX_PART_FIXED);
}

const fx_interval_end *const *fx_interval_root(const fx_interval_run *run) {
  return run->read[run->code->root];
}
