/* SPDX-License-Identifier: Apache-2.0 */
#include "attention/mask/mask.h"

#include <stdlib.h>
#include <string.h>

#include "attention/mask/check.h"
#include "attention/mask/classify.h"
#include "attention/mask/symbolic.h"
#include "dynamo_rt/base/isa.h"
#include "dynamo_rt/base/memory.h"

enum { LANES = FX_BOUND_LANES, MAX_SLOTS = FX_SYMBOLIC_MAX };

/* Rows that creating a program may look at, to learn that more than R candidates never meet in one row. */
#define FX_MASK_MAX_TRIED ((int64_t)1 << 22)

struct fx_mask_program {
  const fx_ex_pool *pool;
  fx_mask_facts facts;
  int32_t slots; /* LIMITS: intervals that the bounds give, before those of a row are joined */
  fx_bound_code *bounds;
  fx_classifier *classifier;
  int32_t num_buffers;
  int64_t size[FX_EX_MAX_BUFFERS]; /* values of one sample */
};

/* ---- creating ---- */

static void find_facts(fx_mask_program *program, fx_ex mask, const bool *needed) {
  const fx_ex_pool *pool = program->pool;
  program->facts.per_head = fx_ex_depends(pool, mask, FX_EX_H);
  for (fx_ex i = 0; i <= mask; i++) {
    const fx_ex_node *n = fx_ex_get(pool, i);
    if (!needed[i] || n->op != FX_EX_LOAD) continue;
    program->facts.reads[n->index] = true;
    if (fx_ex_buffer_at(pool, n->index)->per_batch) program->facts.per_sample = true;
  }
}

/* Whether the limits of all rows are known already: nothing that comes with a batch enters. */
static bool is_static(const fx_mask_program *program, fx_ex mask, const bool *needed) {
  for (fx_ex i = 0; i <= mask; i++)
    if (needed[i] && fx_ex_get(program->pool, i)->op == FX_EX_PARAM) return false;
  for (int32_t i = 0; i < program->num_buffers; i++)
    if (program->facts.reads[i] && !fx_ex_buffer_at(program->pool, i)->constant) return false;
  return true;
}

/* Limits of one row; see normalise. */
static int join_row(int64_t T_kv, int slots, int64_t *lo, int64_t *hi) {
  int count = 0;
  for (int k = 0; k < slots; k++) {
    int64_t low = fx_max_i64(lo[k], 0), high = fx_min_i64(hi[k], T_kv);
    if (low >= high) continue;
    int at = count++;
    for (; at > 0 && lo[at - 1] > low; at--) lo[at] = lo[at - 1], hi[at] = hi[at - 1];
    lo[at] = low, hi[at] = high;
  }
  int joined = 0;
  for (int k = 1; k < count; k++) {
    if (lo[k] <= hi[joined]) {
      hi[joined] = fx_max_i64(hi[joined], hi[k]);
    } else {
      joined++;
      lo[joined] = lo[k], hi[joined] = hi[k];
    }
  }
  return count ? joined + 1 : 0;
}

/* The most intervals that any row has, by trying all; more than FX_LIMITS_MAX_R ends it early. */
static fx_status try_rows(const fx_mask_program *program, int32_t *most) {
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(program->pool);
  const void *buffer[FX_EX_MAX_BUFFERS];
  for (int32_t i = 0; i < program->num_buffers; i++) buffer[i] = fx_ex_buffer_at(program->pool, i)->constant;
  fx_interp_inputs inputs = {NULL, buffer};
  void *scratch = NULL;
  FX_TRY(fx_alloc_aligned(&scratch, fx_bound_scratch(program->bounds)));
  *most = 0;
  for (int32_t h = 0; h < (program->facts.per_head ? ranges->H : 1); h++) {
    fx_bound_begin(program->bounds, scratch);
    for (int64_t first = 0; first < ranges->T && *most <= FX_LIMITS_MAX_R; first += LANES) {
      int n = (int)fx_min_i64(LANES, ranges->T - first);
      int32_t q[LANES];
      const int64_t *ends[2 * MAX_SLOTS];
      for (int i = 0; i < n; i++) q[i] = (int32_t)(first + i);
      fx_bound_run(program->bounds, &inputs, h, n, q, scratch, ends);
      for (int i = 0; i < n; i++) {
        int64_t lo[MAX_SLOTS], hi[MAX_SLOTS];
        for (int k = 0; k < program->slots; k++) lo[k] = ends[2 * k][i], hi[k] = ends[2 * k + 1][i];
        int count = join_row(ranges->T_kv, program->slots, lo, hi);
        *most = count > *most ? count : *most;
      }
    }
  }
  free(scratch);
  return FX_OK;
}

/* Limits, if the mask has them; `form` says so. */
static fx_status recognise(fx_mask_program *program, fx_bounds *bounds, fx_ex mask, const bool *needed) {
  const fx_ex_ranges *ranges = fx_ex_pool_ranges(program->pool);
  fx_symbolic found;
  if (!fx_symbolic_limits(bounds, mask, &found)) return FX_OK;
  if (found.count == 1 && bounds->term[found.lo[0]].hi <= 0 && bounds->term[found.hi[0]].lo >= ranges->T_kv) {
    program->facts.form = FX_MASK_FORM_NONE;
    return FX_OK;
  }
  fx_bound output[2 * MAX_SLOTS];
  for (int k = 0; k < found.count; k++) output[2 * k] = found.lo[k], output[2 * k + 1] = found.hi[k];
  FX_TRY(fx_bound_code_create(bounds, output, 2 * found.count, &program->bounds));
  program->slots = found.count;
  int32_t most = found.count;
  int64_t rows = (int64_t)ranges->T * (program->facts.per_head ? ranges->H : 1);
  if (most > FX_LIMITS_MAX_R && rows <= FX_MASK_MAX_TRIED && is_static(program, mask, needed))
    FX_TRY(try_rows(program, &most));
  if (most > FX_LIMITS_MAX_R) {
    fx_bound_code_destroy(program->bounds);
    program->bounds = NULL;
    return FX_OK;
  }
  program->facts.form = FX_MASK_FORM_LIMITS;
  program->facts.R = most > 1 ? most : 1;
  return FX_OK;
}

static fx_status analyse(fx_mask_program *program, fx_ex mask) {
  bool *needed = fx_ex_reachable(program->pool, &mask, 1);
  if (!needed) return FX_ERR_MEMORY;
  find_facts(program, mask, needed);
  fx_interval_code *code = NULL;
  fx_bounds *bounds = NULL;
  fx_status status = fx_interval_create(program->pool, mask, &code);
  if (status == FX_OK) status = fx_calloc(&bounds, 1, sizeof *bounds);
  if (status == FX_OK && fx_interval_domain(code, mask).lo.i == 0) { /* else it always holds */
    program->facts.form = FX_MASK_FORM_EXPRESSION;
    fx_bounds_init(bounds, program->pool, code);
    status = recognise(program, bounds, mask, needed);
  }
  if (status == FX_OK && program->facts.form == FX_MASK_FORM_EXPRESSION)
    status = fx_classifier_create(program->pool, mask, &program->classifier);
  free(bounds);
  fx_interval_destroy(code);
  free(needed);
  return status;
}

fx_status fx_mask_program_create(const fx_ex_pool *pool, fx_ex mask, fx_mask_program **program) {
  fx_mask_program *made = NULL;
  FX_TRY(fx_calloc(&made, 1, sizeof *made));
  made->pool = pool;
  made->num_buffers = fx_ex_num_buffers(pool);
  for (int32_t i = 0; i < made->num_buffers; i++) {
    const fx_ex_buffer *buffer = fx_ex_buffer_at(pool, i);
    made->size[i] = 1;
    for (int k = 0; k < buffer->ndim; k++) made->size[i] *= buffer->dim[k];
  }
  fx_status status = mask == FX_EX_NONE ? FX_OK : analyse(made, mask);
  if (status != FX_OK) {
    fx_mask_program_destroy(made);
    return status;
  }
  if (made->facts.form == FX_MASK_FORM_NONE) made->facts = (fx_mask_facts){.form = FX_MASK_FORM_NONE};
  *program = made;
  return FX_OK;
}

void fx_mask_program_destroy(fx_mask_program *program) {
  if (!program) return;
  fx_bound_code_destroy(program->bounds);
  fx_classifier_destroy(program->classifier);
  free(program);
}

const fx_mask_facts *fx_mask_program_facts(const fx_mask_program *program) {
  return &program->facts;
}

/* ---- what a build reads ---- */

/* Buffers of sample b. */
static void select_sample(const fx_mask_program *program, const fx_mask_batch *batch, int32_t b,
                          const void **buffer) {
  for (int32_t i = 0; i < program->num_buffers; i++) {
    const fx_ex_buffer *declared = fx_ex_buffer_at(program->pool, i);
    const char *data = batch->buffer ? batch->buffer[i] : NULL;
    if (declared->constant)
      buffer[i] = declared->constant;
    else
      buffer[i] = data && declared->per_batch ? data + (int64_t)b * program->size[i] * 4 : data;
  }
}

fx_status fx_mask_check(const fx_mask_program *program, const fx_mask_batch *batch) {
  for (int32_t i = 0; i < program->num_buffers; i++) {
    const fx_ex_buffer *declared = fx_ex_buffer_at(program->pool, i);
    if (!program->facts.reads[i] || declared->constant) continue;
    const int32_t *values = batch->buffer ? batch->buffer[i] : NULL;
    if (!values)
      return fx_error(FX_ERR_DATA, "the mask reads \"%s\", but the batch has none", declared->name);
    for (int32_t b = 0; b < (declared->per_batch ? batch->B : 1) && declared->type == FX_EX_INT; b++)
      FX_TRY(fx_mask_check_buffer(declared, values + b * program->size[i], program->size[i], b));
  }
  return FX_OK;
}

static fx_status check_rows(const fx_mask_program *program, const fx_mask_batch *batch, int32_t T) {
  int32_t all = fx_ex_pool_ranges(program->pool)->T;
  if (fx_positions_fit(&batch->q, T, all)) return FX_OK;
  return fx_error(FX_ERR_SHAPE, "%d rows do not lie within the %d positions the mask was made for", T, all);
}

/* ---- limits ---- */

fx_limits fx_mask_limits_plan(const fx_mask_program *program, int32_t B, int32_t H, int32_t T) {
  FX_ASSERT(B > 0 && H > 0 && T > 0);
  const fx_mask_facts *facts = &program->facts;
  return (fx_limits){.R = facts->R,
                     .Bm = facts->per_sample ? B : 1,
                     .Hm = facts->per_head ? H : 1,
                     .T = T,
                     .Tpad = fx_attention_tpad(T),
                     .T_kv = fx_ex_pool_ranges(program->pool)->T_kv};
}

static size_t rows_bytes(void) {
  return LANES * sizeof(int32_t);
}

size_t fx_mask_limits_scratch(const fx_mask_program *program) {
  return program->bounds ? rows_bytes() + fx_bound_scratch(program->bounds) : 0;
}

/* One candidate a row: cut to the keys. */
FX_ISA_CLONES static void store_one(int n, int64_t T_kv, const int64_t *lo, const int64_t *hi, int32_t *to_lo,
                                    int32_t *to_hi) {
  for (int i = 0; i < n; i++) {
    int64_t low = lo[i] > 0 ? lo[i] : 0, high = hi[i] < T_kv ? hi[i] : T_kv;
    to_lo[i] = low < high ? (int32_t)low : 0;
    to_hi[i] = low < high ? (int32_t)high : 0;
  }
}

/* Two candidates a row: cut, put in order, joined where they touch. */
FX_ISA_CLONES static void store_two(int n, int64_t T_kv, const int64_t *const *ends, int32_t *const *lo,
                                    int32_t *const *hi) {
  const int64_t *a_lo = ends[0], *a_hi = ends[1], *b_lo = ends[2], *b_hi = ends[3];
  int32_t *lo0 = lo[0], *hi0 = hi[0], *lo1 = lo[1], *hi1 = hi[1];
  for (int i = 0; i < n; i++) {
    int64_t al = a_lo[i] > 0 ? a_lo[i] : 0, ah = a_hi[i] < T_kv ? a_hi[i] : T_kv;
    int64_t bl = b_lo[i] > 0 ? b_lo[i] : 0, bh = b_hi[i] < T_kv ? b_hi[i] : T_kv;
    int64_t none = (int64_t)1 << 40; /* empty ones sort last */
    bool a_empty = al >= ah, b_empty = bl >= bh;
    al = a_empty ? none : al, ah = a_empty ? none : ah;
    bl = b_empty ? none : bl, bh = b_empty ? none : bh;
    bool swap = bl < al;
    int64_t first_lo = swap ? bl : al, first_hi = swap ? bh : ah, lo_after = swap ? al : bl,
            hi_after = swap ? ah : bh;
    bool one = lo_after <= first_hi || lo_after == none, nothing = first_lo == none;
    int64_t joined = hi_after > first_hi && lo_after != none ? hi_after : first_hi;
    lo0[i] = nothing ? 0 : (int32_t)first_lo;
    hi0[i] = nothing ? 0 : one ? (int32_t)joined : (int32_t)first_hi;
    lo1[i] = one ? 0 : (int32_t)lo_after;
    hi1[i] = one ? 0 : (int32_t)hi_after;
  }
}

/* Any number of candidates. */
static void store_rows(const fx_mask_program *program, int n, int64_t T_kv, const int64_t *const *ends,
                       int32_t *const *to_lo, int32_t *const *to_hi) {
  for (int i = 0; i < n; i++) {
    int64_t lo[MAX_SLOTS], hi[MAX_SLOTS];
    for (int k = 0; k < program->slots; k++) lo[k] = ends[2 * k][i], hi[k] = ends[2 * k + 1][i];
    int count = join_row(T_kv, program->slots, lo, hi);
    FX_ASSERT(count <= program->facts.R);
    for (int k = 0; k < program->facts.R; k++) {
      to_lo[k][i] = k < count ? (int32_t)lo[k] : 0;
      to_hi[k][i] = k < count ? (int32_t)hi[k] : 0;
    }
  }
}

static void build_list(const fx_mask_program *program, const fx_mask_batch *batch, int32_t b, int32_t h,
                       const fx_limits *limits, void *scratch) {
  const void *buffer[FX_EX_MAX_BUFFERS];
  select_sample(program, batch, b, buffer);
  fx_interp_inputs inputs = {batch->uniform, buffer};
  int32_t *q = scratch;
  void *rest = (char *)scratch + rows_bytes();
  fx_bound_begin(program->bounds, rest);
  FX_ASSERT(limits->R == program->facts.R && limits->R >= 1 && limits->R <= FX_LIMITS_MAX_R);
  for (int32_t first = 0; first < limits->Tpad; first += LANES) {
    int n = (int)fx_min_i64(LANES, limits->T - first), padded = (int)fx_min_i64(LANES, limits->Tpad - first);
    int32_t *lo[FX_LIMITS_MAX_R] = {NULL}, *hi[FX_LIMITS_MAX_R] = {NULL};
    for (int32_t k = 0; k < limits->R; k++) {
      int64_t at = fx_limits_at(limits, k, b, h) + first;
      lo[k] = limits->lo + at, hi[k] = limits->hi + at;
      for (int i = n > 0 ? n : 0; i < padded; i++) lo[k][i] = hi[k][i] = 0;
    }
    if (n <= 0) continue;
    for (int i = 0; i < n; i++) q[i] = fx_position(&batch->q, first + i);
    const int64_t *ends[2 * MAX_SLOTS] = {NULL};
    fx_bound_run(program->bounds, &inputs, batch->first_head + h, n, q, rest, ends);
    if (program->slots == 1)
      store_one(n, limits->T_kv, ends[0], ends[1], lo[0], hi[0]);
    else if (program->slots == 2 && limits->R == 2)
      store_two(n, limits->T_kv, ends, lo, hi);
    else
      store_rows(program, n, limits->T_kv, ends, lo, hi);
  }
}

fx_status fx_mask_limits_build(const fx_mask_program *program, const fx_mask_batch *batch, fx_limits *limits,
                               void *scratch) {
  FX_ASSERT(program->facts.form == FX_MASK_FORM_LIMITS);
  FX_TRY(check_rows(program, batch, limits->T));
  for (int32_t b = 0; b < limits->Bm; b++)
    for (int32_t h = 0; h < fx_limits_heads(limits); h++) build_list(program, batch, b, h, limits, scratch);
  return FX_OK;
}

/* ---- runs ---- */

fx_runs fx_mask_runs_plan(const fx_mask_program *program, int32_t B, int32_t H, int32_t T, int32_t T_kv,
                          int32_t tile_q, int32_t tile_kv, int32_t capacity) {
  const fx_mask_facts *facts = &program->facts;
  FX_ASSERT(facts->form != FX_MASK_FORM_NONE && B > 0 && H > 0);
  if (capacity == 0)
    capacity = facts->form == FX_MASK_FORM_LIMITS ? fx_runs_capacity(facts->R) : FX_MASK_CAPACITY;
  fx_runs runs = fx_runs_plan(facts->per_sample ? B : 1, T, T_kv, tile_q, tile_kv, capacity);
  runs.Hm = facts->per_head ? H : 1;
  return runs;
}

size_t fx_mask_runs_scratch(const fx_mask_program *program, const fx_runs *runs) {
  return program->classifier ? fx_classify_scratch(program->classifier, runs) : 0;
}

fx_status fx_mask_runs_build(const fx_mask_program *program, const fx_mask_batch *batch,
                             const fx_limits *limits, fx_runs *runs, void *scratch) {
  int32_t keys = fx_ex_pool_ranges(program->pool)->T_kv;
  FX_TRY(check_rows(program, batch, runs->block_length));
  if (!fx_positions_fit(&batch->kv, runs->tile_length, keys))
    return fx_error(FX_ERR_SHAPE, "%d keys do not lie within the %d positions the mask was made for",
                    runs->tile_length, keys);
  runs->key_base = batch->kv.base;
  runs->kv_base = batch->kv.first;
  if (program->facts.form == FX_MASK_FORM_LIMITS) return fx_runs_build(limits, runs);
  fx_runs_clear(runs);
  for (int32_t b = 0; b < runs->Bm; b++) {
    const void *buffer[FX_EX_MAX_BUFFERS];
    float uniform[FX_EX_MAX_PARAMS];
    select_sample(program, batch, b, buffer);
    for (int i = 0; i < fx_ex_num_params(program->pool); i++)
      uniform[i] = batch->uniform ? batch->uniform[i] : fx_ex_param_at(program->pool, i)->value;
    fx_interp_inputs inputs = {uniform, buffer};
    fx_classify_begin(program->classifier, &inputs, scratch);
    for (int32_t h = 0; h < fx_runs_heads(runs); h++)
      fx_classify_build(program->classifier, &inputs, batch->first_head + h, &batch->q, &batch->kv, runs,
                        fx_runs_list(runs, b, h, 0), scratch);
  }
  return FX_OK;
}
