/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/model.h"
#include "dynamo_rt/base/memory.h"
#include "dynamo_rt/ops/input.h"
#include "parallel/context_blocks.h"
#include "parallel/context_cost.h"

enum { BLOCK = FX_LIMITS_ALIGN };

fx_status fx_context_check(const fx_config *config, int64_t T, int ranks) {
  if (T % ((int64_t)BLOCK * ranks) == 0) return FX_OK;
  return fx_error(
      FX_ERR_CONFIG,
      "%s: train.seq_length=%lld is not a multiple of %d x parallel.context=%d, so its blocks of %d "
      "positions cannot be dealt evenly; set train.seq_length to a multiple of %lld or lower "
      "parallel.context",
      fx_config_where(config, "parallel.context"), (long long)T, BLOCK, ranks, BLOCK,
      (long long)BLOCK * ranks);
}

fx_status fx_context_exchange_auto(const fx_config *config, fx_backend backend,
                                   const fx_attention_setup *ring, fx_context_exchange *out) {
  fx_context_shape shape = {.backend = backend,
                            .ranks = ring->ranks,
                            .B = ring->B,
                            .T = ring->T,
                            .H = fx_max_i64(ring->H / config->parallel.tensor, 1),
                            .K = fx_max_i64(ring->K / config->parallel.tensor, 1),
                            .D = config->model.head_dim,
                            .dtype = fx_model_dtype(config, backend),
                            .density = 0.5,
                            .room = ring->rung[0]};
  if (ring->fixed) FX_TRY(fx_context_need(ring, &shape.room, &shape.density));
  *out = fx_context_choose(&shape);
  return FX_OK;
}

fx_context_blocks fx_context_values(fx_graph *graph, const fx_attention_setup *setup, fx_value blocks,
                                    fx_value shared) {
  int64_t count = setup->rows / BLOCK;
  fx_context_blocks values = {blocks, FX_NONE, FX_NONE, setup->room};
  if (setup->num_rungs == 1 || fx_graph_status(graph) != FX_OK) return values; /* everything, always */
  values.index = fx_slice_heads(graph, shared, setup->ranks + 1, 1, count);
  values.base = fx_slice_heads(graph, shared, setup->ranks + 1 + count, 1, setup->ranks * count);
  return values;
}

/* ---- area ---- */

static fx_limits whole_limits(const fx_attention_setup *setup, const fx_attention_kind *kind) {
  return fx_mask_limits_plan(kind->program, setup->B, setup->H, setup->T);
}

static fx_runs whole_runs(const fx_attention_setup *setup, const fx_attention_kind *kind) {
  return fx_mask_runs_plan(kind->program, setup->B, setup->H, setup->T, setup->T, BLOCK, BLOCK, 0);
}

static bool by_limits(const fx_attention_kind *kind) {
  return fx_mask_program_facts(kind->program)->form == FX_MASK_FORM_LIMITS;
}

/* Scratch of a kind's area: what the builder needs, then what it builds. */
static size_t kind_scratch(const fx_attention_setup *setup, const fx_attention_kind *kind, size_t *built_at) {
  fx_limits limits;
  fx_runs runs;
  size_t bytes;
  if (!kind->program) return 0;
  if (by_limits(kind)) {
    limits = whole_limits(setup, kind);
    *built_at = fx_align_up(fx_mask_limits_scratch(kind->program), FX_ALIGN);
    bytes = fx_limits_bytes(&limits);
  } else {
    runs = whole_runs(setup, kind);
    *built_at = fx_align_up(fx_mask_runs_scratch(kind->program, &runs), FX_ALIGN);
    bytes = fx_runs_bytes(&runs);
  }
  return *built_at + bytes;
}

static size_t deal_scratch(const fx_attention_setup *setup) {
  return fx_align_up(fx_context_deal_scratch(setup->T / BLOCK, setup->ranks), FX_ALIGN);
}
/* Of each block its area, what it sees, and how far it travels. */
static size_t area_scratch(const fx_attention_setup *setup) {
  return fx_align_up((size_t)(setup->T / BLOCK) * (sizeof(double) + 3 * sizeof(int32_t)), FX_ALIGN);
}

size_t fx_context_scratch(const fx_attention_setup *setup) {
  size_t most = deal_scratch(setup), built_at = 0;
  for (int32_t k = 0; k < setup->num_kinds; k++) {
    size_t bytes = kind_scratch(setup, &setup->kind[k], &built_at);
    most = bytes > most ? bytes : most;
  }
  return area_scratch(setup) + most;
}

/* What adding up fills: area, and where asked for, reach. */
typedef struct totals {
  double *area;
  const fx_context_reach *reach;
} totals;

static void see(const totals *sum, int32_t block, int32_t first, int32_t last) {
  const fx_context_reach *reach = sum->reach;
  if (!reach || first >= last) return;
  bool blind = reach->last[block] == 0;
  if (blind || first < reach->first[block]) reach->first[block] = first;
  if (last > reach->last[block]) reach->last[block] = last;
}

/* Lists that samples or heads share count as often as they are used. */
static void add_limits(const fx_limits *limits, double weight, const totals *sum) {
  for (int32_t b = 0; b < limits->Bm; b++)
    for (int32_t h = 0; h < fx_limits_heads(limits); h++)
      for (int32_t r = 0; r < limits->R; r++) {
        const int32_t *lo = limits->lo + fx_limits_at(limits, r, b, h),
                      *hi = limits->hi + fx_limits_at(limits, r, b, h);
        for (int32_t t = 0; t < limits->T; t++) {
          if (lo[t] >= hi[t]) continue;
          sum->area[t / BLOCK] += weight * (hi[t] - lo[t]);
          see(sum, t / BLOCK, lo[t] / BLOCK, (hi[t] - 1) / BLOCK + 1);
        }
      }
}

static void add_runs(const fx_runs *runs, double weight, const totals *sum) {
  for (int32_t b = 0; b < runs->Bm; b++)
    for (int32_t h = 0; h < fx_runs_heads(runs); h++)
      for (int32_t i = 0; i < runs->blocks; i++) {
        int32_t count;
        const fx_run *run = fx_runs_get_head(runs, b, h, i, &count);
        for (int32_t k = 0; k < count; k++) {
          int32_t part = run[k].kind == FX_RUN_FULL ? 1 : 2;
          sum->area[i] += weight * (run[k].end - run[k].begin) * (BLOCK * BLOCK) / part;
          see(sum, i, run[k].begin, run[k].end);
        }
      }
}

static void add_all(const fx_attention_setup *setup, double weight, const totals *sum) {
  int32_t count = setup->T / BLOCK;
  for (int32_t i = 0; i < count; i++) {
    sum->area[i] += weight * BLOCK * setup->T;
    see(sum, i, 0, count);
  }
}

static fx_status add_kind(const fx_attention_setup *setup, const fx_attention_kind *kind,
                          const void *const *buffer, const totals *sum, char *scratch) {
  fx_mask_batch in = {.B = setup->B, .buffer = buffer, .uniform = kind->flex->uniform};
  double uses = (double)kind->layers * setup->B * setup->H;
  size_t built_at = 0;
  kind_scratch(setup, kind, &built_at);
  if (!kind->program) {
    add_all(setup, uses, sum);
  } else if (by_limits(kind)) {
    fx_limits limits = whole_limits(setup, kind);
    fx_limits_bind(&limits, scratch + built_at);
    FX_TRY(fx_mask_limits_build(kind->program, &in, &limits, scratch));
    add_limits(&limits, uses / limits.Bm / fx_limits_heads(&limits), sum);
  } else {
    fx_runs runs = whole_runs(setup, kind);
    fx_runs_bind(&runs, scratch + built_at);
    FX_TRY(fx_mask_runs_build(kind->program, &in, NULL, &runs, scratch));
    add_runs(&runs, uses / runs.Bm / fx_runs_heads(&runs), sum);
  }
  return FX_OK;
}

fx_status fx_context_area(const fx_attention_setup *setup, const void *const *const *buffer, double *area,
                          const fx_context_reach *reach, void *scratch) {
  size_t count = (size_t)(setup->T / BLOCK);
  totals sum = {area, reach};
  memset(area, 0, count * sizeof *area);
  if (reach) {
    memset(reach->first, 0, count * sizeof *reach->first);
    memset(reach->last, 0, count * sizeof *reach->last);
  }
  for (int32_t k = 0; k < setup->num_kinds; k++)
    if (setup->kind[k].layers > 0) FX_TRY(add_kind(setup, &setup->kind[k], buffer[k], &sum, scratch));
  return FX_OK;
}

/* ---- assignment ---- */

/* A block that travels: K and V of 128 positions there in bfloat16 in forward and backward, their fp32
 * gradients once, 16 bytes an element of the head; a visible pair: 14 flops an element (4 forward, 10
 * backward). Rates of one H200 with NVLink in ring attention; elsewhere they only shift the choice between
 * even work and few keys that travel. A whole number, so that sums of it are exact. */
static const double k_link_bytes_per_second = 3e11, k_attention_flops_per_second = 4e14;

static double block_cost(const fx_attention_setup *setup) {
  if (setup->exchange != FX_CONTEXT_RING) return 0; /* all keys are gathered anyway */
  double seconds = 16.0 * BLOCK / k_link_bytes_per_second,
         pairs = seconds * k_attention_flops_per_second / 14;
  int64_t uses = 0;
  for (int32_t k = 0; k < setup->num_kinds; k++) uses += setup->kind[k].layers * setup->B * setup->K;
  return floor(pairs) * (double)uses;
}

/* Who computes which blocks, rank by rank; by block number what they see and how far they travel (in
 * scratch). */
typedef struct dealt {
  const double *area;
  const int32_t *travels;
} dealt;

static fx_status deal(const fx_attention_setup *setup, const void *const *const *buffer, int32_t *order,
                      dealt *out, void *scratch) {
  int32_t count = setup->T / BLOCK;
  double *area = scratch;
  int32_t *first = (int32_t *)(area + count), *last = first + count, *hops = last + count;
  char *rest = (char *)scratch + area_scratch(setup);
  fx_context_reach reach = {first, last};
  FX_TRY(fx_context_area(setup, buffer, area, &reach, rest));
  fx_context_deal(area, first, last, count, setup->ranks, block_cost(setup), setup->rung,
                  setup->fixed ? 0 : setup->num_rungs, order, rest);
  fx_context_hops(first, last, count, setup->ranks, order, hops, rest);
  *out = (dealt){area, hops};
  return FX_OK;
}

/* Numbers of those among `count` blocks that travel; returns how many. */
static int32_t find_travelling(const int32_t *order, int32_t count, const int32_t *travels, int32_t *number) {
  int32_t found = 0;
  for (int32_t i = 0; i < count; i++)
    if (travels[order[i]] > 0) number[found++] = i;
  return found;
}

static int32_t farthest(const fx_attention_setup *setup, const int32_t *travels) {
  int32_t most = 0;
  for (int32_t b = 0; b < setup->T / BLOCK; b++) most = travels[b] > most ? travels[b] : most;
  return most;
}

/* Behind the positions of blocks that travel: that of the rank's first block. */
static void fill_shared(const fx_attention_setup *setup, const int32_t *order, const int32_t *travels,
                        const fx_attention_shared *shared) {
  int32_t share = setup->rows / BLOCK;
  *shared->hops = farthest(setup, travels);
  for (int r = 0; r < setup->ranks; r++) {
    const int32_t *mine = order + r * share;
    int32_t *base = shared->base + r * share, count = find_travelling(mine, share, travels, base);
    shared->count[r] = count;
    for (int32_t i = 0; i < share; i++) {
      if (r == setup->rank) shared->index[i] = i < count ? base[i] : -1;
      base[i] = BLOCK * mine[i < count ? base[i] : 0];
    }
  }
}

fx_status fx_context_assign(const fx_attention_setup *setup, const void *const *const *buffer,
                            int32_t *blocks, const fx_attention_shared *shared, void *scratch) {
  dealt made;
  if (setup->exchange == FX_CONTEXT_ALLTOALL) { /* all rows are everywhere: in order */
    for (int32_t i = 0; i < setup->T / BLOCK; i++) blocks[i] = i;
  } else {
    FX_TRY(deal(setup, buffer, blocks, &made, scratch));
    if (shared) fill_shared(setup, blocks, made.travels, shared);
  }
  for (int32_t i = 0; i < setup->T / BLOCK; i++) blocks[i] *= BLOCK;
  return FX_OK;
}

fx_status fx_context_need(const fx_attention_setup *setup, fx_ring_room *need, double *density) {
  const void *none[FX_EX_MAX_BUFFERS] = {NULL};
  const void *const *buffer[FX_ATTENTION_MAX_KINDS] = {none, none, none, none};
  dealt made;
  int32_t *order = NULL, share = setup->rows / BLOCK;
  double pairs = 0, layers = 0;
  char *scratch = NULL;
  fx_status status = FX_OK;
  FX_TRY_GOTO(fx_calloc(&order, (size_t)(setup->T / BLOCK), sizeof *order), free_memory);
  FX_TRY_GOTO(fx_alloc_aligned(&scratch, fx_context_scratch(setup)), free_memory);
  FX_TRY_GOTO(deal(setup, buffer, order, &made, scratch), free_memory);
  *need = (fx_ring_room){0, farthest(setup, made.travels)};
  for (int r = 0; r < setup->ranks; r++) {
    int32_t count = 0;
    for (int32_t i = 0; i < share; i++) count += made.travels[order[r * share + i]] > 0;
    need->blocks = count > need->blocks ? count : need->blocks;
  }
  for (int32_t b = 0; b < setup->T / BLOCK; b++) pairs += made.area[b];
  for (int32_t k = 0; k < setup->num_kinds; k++) layers += (double)setup->kind[k].layers;
  if (density) *density = pairs / (layers * setup->B * setup->H * setup->T * setup->T);
free_memory:
  free(scratch);
  free(order);
  return status;
}

void fx_context_take_rows(const fx_attention_setup *setup, const int32_t *blocks, const int32_t *whole,
                          int32_t *local) {
  const int32_t *mine = blocks + setup->rank * (setup->rows / BLOCK);
  for (int64_t b = 0; b < setup->B; b++)
    for (int64_t i = 0; i < setup->rows / BLOCK; i++)
      memcpy(local + b * setup->rows + i * BLOCK, whole + b * setup->T + mine[i], BLOCK * sizeof *local);
}
