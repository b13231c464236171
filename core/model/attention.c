/* SPDX-License-Identifier: Apache-2.0 */
#include "core/model/attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/variant/inputs.h"
#include "core/model/context.h"
#include "dynamo_rt/base/memory.h"

static int add_field(fx_attention_setup *setup, const char *name, int32_t kind, int64_t words) {
  fx_attention_field *field = &setup->field[setup->num_fields];
  if (kind == 0)
    snprintf(field->name, sizeof field->name, "%s", name);
  else
    snprintf(field->name, sizeof field->name, "%s_%d", name, kind);
  field->words = words;
  return setup->num_fields++;
}

/* Rows of queries that limits and run lists are for. */
static int32_t mask_rows(const fx_attention_setup *setup) {
  return fx_context_rows(setup->exchange, setup->ranks, setup->rows);
}

static fx_runs plan_runs(const fx_attention_setup *setup, const fx_attention_kind *kind, int backward) {
  const int32_t *tile = setup->tile[backward];
  int32_t rows = mask_rows(setup), keys = fx_context_keys(setup->exchange, setup->ranks, setup->rows);
  fx_runs runs = fx_mask_runs_plan(kind->program, setup->B, setup->H, rows, keys, tile[0], tile[1], 0);
  if (keys == rows) return runs;
  /* what is one range of keys on one rank is one a rank where keys lie rank by rank */
  int32_t capacity = runs.capacity * setup->ranks;
  return fx_mask_runs_plan(kind->program, setup->B, setup->H, rows, keys, tile[0], tile[1], capacity);
}

/* int32 words of one list; a field holds fx_context_lists of them. */
static int64_t list_words(const fx_runs *runs) {
  return (int64_t)(fx_runs_bytes(runs) / sizeof(int32_t));
}

static void widen_scratch(fx_attention_setup *setup, size_t bytes) {
  if (bytes > setup->scratch_bytes) setup->scratch_bytes = bytes;
}

/* How the kind's mask is represented, and the fields of it. */
static void plan_mask(fx_attention_setup *setup, int32_t index) {
  fx_attention_kind *kind = &setup->kind[index];
  const fx_mask_facts *facts = fx_mask_program_facts(kind->program);
  kind->attr.ask_mask = facts->form == FX_MASK_FORM_EXPRESSION || facts->R > 1;
  if (facts->form == FX_MASK_FORM_LIMITS) {
    fx_limits limits = fx_mask_limits_plan(kind->program, setup->B, setup->H, mask_rows(setup));
    widen_scratch(setup, fx_mask_limits_scratch(kind->program));
    if (!kind->attr.ask_mask) {
      kind->limits =
          add_field(setup, "mask_limits", index, (int64_t)(fx_limits_bytes(&limits) / sizeof(int32_t)));
      kind->attr.R = limits.R;
      kind->attr.Bm = limits.Bm;
      kind->attr.Hm = fx_limits_heads(&limits);
      kind->attr.T_total = setup->T;
    } else { /* the kernels ask the expression, the run lists come from limits that only the builder sees */
      widen_scratch(setup,
                    fx_align_up(fx_mask_limits_scratch(kind->program), FX_ALIGN) + fx_limits_bytes(&limits));
    }
  }
  static const char *const names[] = {"mask_runs", "mask_runs_backward"};
  for (int backward = 0; backward < 2; backward++) {
    fx_runs runs = plan_runs(setup, kind, backward);
    int64_t lists = fx_context_lists(setup->exchange, setup->ranks);
    int field = add_field(setup, names[backward], index, lists * list_words(&runs));
    if (!backward) kind->runs = field;
    *(backward ? &kind->attr.capacity_backward : &kind->attr.capacity) = runs.capacity;
    kind->attr.runs_Bm = runs.Bm;
    kind->attr.runs_Hm = fx_runs_heads(&runs);
    widen_scratch(setup, fx_mask_runs_scratch(kind->program, &runs));
  }
}

static fx_status check_inputs(fx_attention_setup *setup, const fx_attention_kind *kind) {
  const fx_variant *variant = kind->flex->variant;
  for (int32_t i = 0; i < kind->flex->num_inputs; i++) {
    const char *name = fx_ex_buffer_at(variant->pool, kind->flex->input[i].buffer)->name;
    if (fx_variant_input_find(name) < 0)
      return fx_error(
          FX_ERR_CONFIG,
          "attention variant \"%s\": no batch brings the buffer \"%s\"; batches bring doc_start, doc_end, "
          "doc_id, position, token, turn and role",
          variant->name, name);
    bool tokens = strcmp(name, "token") == 0 || strcmp(name, "turn") == 0 || strcmp(name, "role") == 0;
    setup->reads_tokens = setup->reads_tokens || tokens;
  }
  return FX_OK;
}

/* kind->program stays NULL where every query sees every key. */
static fx_status create_program(fx_attention_kind *kind, const fx_variant *variant) {
  if (variant->mask == FX_EX_NONE) return FX_OK;
  FX_TRY(fx_mask_program_create(variant->pool, variant->mask, &kind->program));
  if (fx_mask_program_facts(kind->program)->form != FX_MASK_FORM_NONE) return FX_OK;
  fx_mask_program_destroy(kind->program);
  kind->program = NULL;
  return FX_OK;
}

static fx_status create_kind(fx_attention_setup *setup, const fx_config *config, int32_t index,
                             fx_tile_mode mode) {
  fx_attention_kind *kind = &setup->kind[index];
  fx_variant *variant = NULL;
  fx_ex_ranges ranges = {setup->H, setup->T, setup->T};
  fx_tile_options options = {.mode = mode, .compile = {.compiler = config->runtime.compiler}};
  if (strcmp(config->runtime.compiler, "none") == 0) options.mode = FX_TILE_INTERPRETED;
  kind->limits = kind->runs = kind->buffers = -1;
  FX_TRY(fx_config_variant(config, index, &ranges, &variant));
  size_t used = strnlen(setup->text, sizeof setup->text);
  snprintf(setup->text + used, sizeof setup->text - used, "%s%s:%016llx", index ? " " : "", variant->name,
           (unsigned long long)fx_hash64_text(variant->text));
  fx_status status = create_program(kind, variant);
  if (status != FX_OK) {
    fx_variant_destroy(variant);
    return status;
  }
  if (kind->program) plan_mask(setup, index);
  FX_TRY(fx_flex_variant_create(variant, kind->attr.ask_mask, &options, &kind->flex));
  FX_TRY(check_inputs(setup, kind));
  kind->attr.flex = kind->flex;
  int64_t words = fx_flex_blob_words(kind->flex, setup->B);
  if (words > 0) kind->buffers = add_field(setup, "mask_buffers", index, words);
  return FX_OK;
}

static bool reads_batch(const fx_attention_kind *kind) {
  if (!kind->program) return false;
  const fx_mask_facts *facts = fx_mask_program_facts(kind->program);
  const fx_ex_pool *pool = kind->flex->variant->pool;
  for (int32_t i = 0; i < fx_ex_num_buffers(pool); i++)
    if (facts->reads[i] && !fx_ex_buffer_at(pool, i)->constant) return true;
  return false;
}

static void add_rung(fx_attention_setup *setup, fx_ring_room room) {
  const fx_ring_room *last = &setup->rung[setup->num_rungs - 1];
  if (room.blocks < last->blocks || room.hops < last->hops) setup->rung[setup->num_rungs++] = room;
}

/* Room for all, and where a batch may need less of the ring, less. If masks are the same for all batches, so
 * is what travels; one batch tells. If not, steps that save most of what a sparse mask can, since each one
 * costs a recording: a quarter of the blocks; a sixteenth, or where there are ranks behind the next one half
 * of the blocks for that one alone (documents that are dealt nearly whole); nothing, where the ring does not
 * turn. */
static fx_status plan_rungs(fx_attention_setup *setup) {
  fx_ring_room all = setup->rung[0], need;
  if (setup->fixed) {
    FX_TRY(fx_context_need(setup, &need, NULL));
    add_rung(setup, need);
    return FX_OK;
  }
  int32_t parts = all.hops > 1 ? 2 : 16;
  add_rung(setup, (fx_ring_room){(all.blocks + 3) / 4, all.hops});
  add_rung(setup, (fx_ring_room){(all.blocks + parts - 1) / parts, 1});
  add_rung(setup, (fx_ring_room){0, 0});
  return FX_OK;
}

/* The assignment of blocks, where ranks share the sequence, and what travels. */
static fx_status plan_context(fx_attention_setup *setup, const fx_config *config) {
  int32_t count = setup->rows / FX_LIMITS_ALIGN;
  setup->blocks = setup->shared = -1;
  setup->room = setup->rung[0] = (fx_ring_room){count, setup->ranks - 1};
  setup->num_rungs = 1;
  setup->fixed = true;
  for (int32_t k = 0; k < setup->num_kinds; k++) setup->fixed = setup->fixed && !reads_batch(&setup->kind[k]);
  if (setup->ranks == 1) return FX_OK;
  setup->blocks = add_field(setup, "context_blocks", 0, setup->T / FX_LIMITS_ALIGN);
  for (int64_t l = 0; l < config->model.num_hidden_layers; l++)
    setup->kind[fx_config_layer_variant(config, l)].layers++;
  widen_scratch(setup, fx_context_scratch(setup));
  if (setup->exchange != FX_CONTEXT_RING) return FX_OK;
  setup->shared = add_field(setup, "context_shared", 0, setup->ranks + 1 + (setup->ranks + 1) * count);
  return plan_rungs(setup);
}

fx_status fx_attention_setup_create(const fx_config *config, fx_backend backend, int64_t B, int64_t T,
                                    fx_attention_setup **out) {
  return fx_attention_setup_create_for(config, backend, B, T, 1, 0, out);
}

static fx_status create(const fx_config *config, fx_backend backend, fx_attention_setup sizes,
                        fx_tile_mode mode, fx_attention_setup **out) {
  fx_attention_setup *setup = NULL;
  fx_status status = FX_OK;
  FX_TRY(fx_calloc(&setup, 1, sizeof *setup));
  *setup = sizes;
  setup->rows = setup->T / setup->ranks;
  setup->H = (int32_t)config->model.num_attention_heads;
  setup->K = (int32_t)config->model.num_key_value_heads;
  setup->turn_token = (int32_t)config->attention.turn_token;
  for (int backward = 0; backward < 2; backward++)
    fx_flex_attention_tile(backend, backward, (int32_t)config->model.head_dim, setup->tile[backward]);
  for (int32_t i = 0; i < fx_config_num_variants(config); i++) {
    setup->num_kinds++;
    FX_TRY_GOTO(create_kind(setup, config, i, mode), destroy_setup);
    setup->kind[i].attr.dq_apart = fx_flex_attention_dq_apart(backend);
  }
  FX_TRY_GOTO(plan_context(setup, config), destroy_setup);
  *out = setup;
  return FX_OK;
destroy_setup:
  fx_attention_setup_destroy(setup);
  return status;
}

/* What auto stands for depends on what the masks let ranks see: a ring's set-up tells, which compiles
 * nothing. */
static fx_status choose_exchange(const fx_config *config, fx_backend backend, fx_attention_setup *sizes) {
  static const fx_context_exchange named[] = {[FX_PARALLEL_CONTEXT_EXCHANGE_RING] = FX_CONTEXT_RING,
                                              [FX_PARALLEL_CONTEXT_EXCHANGE_ALLGATHER] = FX_CONTEXT_ALLGATHER,
                                              [FX_PARALLEL_CONTEXT_EXCHANGE_ALLTOALL] = FX_CONTEXT_ALLTOALL};
  fx_attention_setup *ring = NULL;
  sizes->exchange = FX_CONTEXT_RING;
  if (config->parallel.context_exchange != FX_PARALLEL_CONTEXT_EXCHANGE_AUTO) {
    sizes->exchange = named[config->parallel.context_exchange];
    return FX_OK;
  }
  FX_TRY(create(config, backend, *sizes, FX_TILE_INTERPRETED, &ring));
  fx_status status = fx_context_exchange_auto(config, backend, ring, &sizes->exchange);
  fx_attention_setup_destroy(ring);
  return status;
}

fx_status fx_attention_setup_create_for(const fx_config *config, fx_backend backend, int64_t B, int64_t T,
                                        int ranks, int rank, fx_attention_setup **out) {
  fx_attention_setup sizes;
  memset(&sizes, 0, sizeof sizes);
  sizes.B = (int32_t)B, sizes.T = (int32_t)T;
  sizes.ranks = ranks, sizes.rank = rank;
  if (fx_config_num_variants(config) > FX_ATTENTION_MAX_KINDS)
    return fx_error(FX_ERR_CONFIG, "%s: %d different variants in one model, at most %d are possible",
                    fx_config_where(config, "attention.layers"), fx_config_num_variants(config),
                    FX_ATTENTION_MAX_KINDS);
  if (ranks > 1) {
    FX_TRY(fx_context_check(config, T, ranks));
    FX_TRY(choose_exchange(config, backend, &sizes));
  }
  return create(config, backend, sizes, FX_TILE_AUTO, out);
}

fx_status fx_attention_check_deterministic(const fx_config *config, const fx_attention_setup *setup,
                                           fx_backend backend) {
  if (backend == FX_BACKEND_CPU || !config->runtime.deterministic) return FX_OK;
  for (int32_t k = 0; k < setup->num_kinds; k++)
    if (fx_flex_num_tables(setup->kind[k].flex) > 0)
      return fx_error(FX_ERR_CONFIG,
                      "%s: attention variant \"%s\" learns a table, whose gradient GPUs add up in no fixed "
                      "order, so runtime.deterministic=true cannot hold; set it to false, or train with "
                      "runtime.device=cpu",
                      fx_config_where(config, "runtime.deterministic"), setup->kind[k].flex->variant->name);
  return FX_OK;
}

void fx_attention_setup_destroy(fx_attention_setup *setup) {
  if (!setup) return;
  for (int32_t i = 0; i < setup->num_kinds; i++) {
    fx_mask_program_destroy(setup->kind[i].program);
    fx_flex_variant_destroy(setup->kind[i].flex);
  }
  free(setup);
}

fx_status fx_attention_declare(const fx_attention_setup *setup, fx_inputs *inputs) {
  for (int i = 0; i < setup->num_fields; i++)
    FX_TRY(fx_inputs_add(inputs, setup->field[i].name, fx_type_1d(FX_I32, setup->field[i].words)));
  return FX_OK;
}

/* ---- one batch ---- */

/* Turns of one sample: a document's first token begins turn 0, the token after a turn_token the next. */
static void number_turns(const int32_t *tokens, const int32_t *doc_start, int32_t T, int32_t turn_token,
                         bool role, int32_t *out) {
  int32_t turn = 0;
  for (int32_t t = 0; t < T; t++) {
    if (doc_start[t] == t)
      turn = 0;
    else if (tokens[t - 1] == turn_token)
      turn++;
    out[t] = role ? turn % 2 : turn;
  }
}

static void number_documents(const int32_t *doc_start, int32_t T, int32_t *out) {
  int32_t id = -1;
  for (int32_t t = 0; t < T; t++) out[t] = id += doc_start[t] == t;
}

/* One input of all samples. */
static void fill_input(const fx_attention_setup *setup, const fx_attention_batch *batch, const char *name,
                       int32_t *out) {
  const struct {
    const char *name;
    const int32_t *data;
  } copied[] = {{"doc_start", batch->doc_start},
                {"doc_end", batch->doc_end},
                {"position", batch->positions},
                {"token", batch->tokens}};
  int64_t T = setup->T;
  for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
    if (strcmp(name, copied[i].name) == 0) {
      memcpy(out, copied[i].data, (size_t)(setup->B * T) * sizeof *out);
      return;
    }
  for (int64_t b = 0; b < setup->B; b++) {
    const int32_t *start = batch->doc_start + b * T;
    if (strcmp(name, "doc_id") == 0)
      number_documents(start, setup->T, out + b * T);
    else
      number_turns(batch->tokens + b * T, start, setup->T, setup->turn_token, strcmp(name, "role") == 0,
                   out + b * T);
  }
}

void fx_attention_find_buffers(const fx_attention_setup *setup, int32_t index, void *const *memory,
                               const void *buffer[FX_EX_MAX_BUFFERS]) {
  const fx_attention_kind *kind = &setup->kind[index];
  const fx_flex_variant *flex = kind->flex;
  for (int32_t i = 0; i < FX_EX_MAX_BUFFERS; i++) buffer[i] = NULL;
  for (int32_t i = 0; i < flex->num_inputs; i++)
    buffer[flex->input[i].buffer] =
        (const int32_t *)memory[kind->buffers] + fx_flex_blob_offset(flex, i, setup->B);
}

static fx_status fill_buffers(const fx_attention_setup *setup, int32_t index, const fx_attention_batch *batch,
                              void *const *memory, const void **buffer) {
  const fx_attention_kind *kind = &setup->kind[index];
  const fx_flex_variant *flex = kind->flex;
  fx_attention_find_buffers(setup, index, memory, buffer);
  for (int32_t i = 0; i < flex->num_inputs; i++) {
    int32_t *out = (int32_t *)memory[kind->buffers] + fx_flex_blob_offset(flex, i, setup->B);
    fill_input(setup, batch, fx_ex_buffer_at(flex->variant->pool, flex->input[i].buffer)->name, out);
  }
  if (!kind->program) return FX_OK;
  fx_mask_batch in = {.B = setup->B, .buffer = buffer, .uniform = flex->uniform};
  return fx_mask_check(kind->program, &in);
}

/* The keys that a run list is for: with a ring, one rank's, and of another rank's those that travel. Returns
 * their number. */
static int32_t find_keys(const fx_attention_setup *setup, void *const *memory, int32_t list,
                         const int32_t **base) {
  int32_t share = setup->rows / FX_LIMITS_ALIGN;
  *base = setup->blocks < 0 ? NULL : (const int32_t *)memory[setup->blocks] + list * share;
  if (setup->shared < 0 || list == setup->rank)
    return fx_context_keys(setup->exchange, setup->ranks, setup->rows);
  fx_attention_shared shared = fx_attention_shared_at(setup, memory[setup->shared]);
  *base = shared.base + list * share;
  return shared.count[list] * FX_LIMITS_ALIGN;
}

/* One pass's run lists: one, or one for the keys of each rank. A list of fewer keys has its counts and runs
 * where that of all keys has them. */
static fx_status fill_runs(const fx_attention_setup *setup, const fx_attention_kind *kind, int backward,
                           fx_mask_batch in, const fx_limits *limits, void *const *memory, void *scratch) {
  const fx_runs whole = plan_runs(setup, kind, backward);
  int32_t *at = memory[kind->runs + backward];
  for (int32_t list = 0; list < fx_context_lists(setup->exchange, setup->ranks); list++) {
    int32_t keys = find_keys(setup, memory, list, &in.kv.base);
    fx_runs runs = whole;
    if (keys > 0)
      runs = fx_mask_runs_plan(kind->program, setup->B, setup->H, mask_rows(setup), keys, whole.block,
                               whole.tile, whole.capacity);
    fx_runs_bind(&runs, at + list * list_words(&whole));
    if (keys > 0)
      FX_TRY(fx_mask_runs_build(kind->program, &in, limits, &runs, scratch));
    else
      fx_runs_clear(&runs);
  }
  return FX_OK;
}

static fx_status fill_mask(const fx_attention_setup *setup, const fx_attention_kind *kind,
                           const void *const *buffer, void *const *memory, void *scratch) {
  const int32_t *blocks = setup->blocks >= 0 ? memory[setup->blocks] : NULL;
  if (!kind->program) return FX_OK;
  fx_mask_batch in = {.B = setup->B, .buffer = buffer, .uniform = kind->flex->uniform};
  if (blocks && setup->exchange != FX_CONTEXT_ALLTOALL)
    in.q.base = blocks + setup->rank * (setup->rows / FX_LIMITS_ALIGN);
  bool by_limits = fx_mask_program_facts(kind->program)->form == FX_MASK_FORM_LIMITS;
  fx_limits limits;
  if (by_limits) {
    limits = fx_mask_limits_plan(kind->program, setup->B, setup->H, mask_rows(setup));
    void *place = kind->limits >= 0
                      ? memory[kind->limits]
                      : (char *)scratch + fx_align_up(fx_mask_limits_scratch(kind->program), FX_ALIGN);
    fx_limits_bind(&limits, place);
    FX_TRY(fx_mask_limits_build(kind->program, &in, &limits, scratch));
  }
  for (int backward = 0; backward < 2; backward++)
    FX_TRY(fill_runs(setup, kind, backward, in, by_limits ? &limits : NULL, memory, scratch));
  return FX_OK;
}

fx_status fx_attention_fill_kind(const fx_attention_setup *setup, int32_t index,
                                 const fx_attention_batch *batch, void *const *memory, void *scratch) {
  const void *buffer[FX_EX_MAX_BUFFERS];
  FX_TRY(fill_buffers(setup, index, batch, memory, buffer));
  return fill_mask(setup, &setup->kind[index], buffer, memory, scratch);
}

fx_attention_shared fx_attention_shared_at(const fx_attention_setup *setup, int32_t *field) {
  int32_t *hops = field + setup->ranks, *index = hops + 1;
  return (fx_attention_shared){field, hops, index, index + setup->rows / FX_LIMITS_ALIGN};
}

fx_ring_room fx_attention_need(const fx_attention_setup *setup, void *const *memory) {
  if (setup->shared < 0) return setup->rung[0];
  fx_attention_shared shared = fx_attention_shared_at(setup, memory[setup->shared]);
  fx_ring_room need = {0, *shared.hops};
  for (int r = 0; r < setup->ranks; r++)
    need.blocks = shared.count[r] > need.blocks ? shared.count[r] : need.blocks;
  return need;
}

int32_t fx_attention_rung(const fx_attention_setup *setup, void *const *memory) {
  return fx_ring_room_for(setup->rung, setup->num_rungs, fx_attention_need(setup, memory));
}

static fx_status assign(const fx_attention_setup *setup, const void *const *const *buffers,
                        void *const *memory, void *scratch) {
  int32_t *blocks = memory[setup->blocks];
  if (setup->shared < 0) return fx_context_assign(setup, buffers, blocks, NULL, scratch);
  fx_attention_shared shared = fx_attention_shared_at(setup, memory[setup->shared]);
  return fx_context_assign(setup, buffers, blocks, &shared, scratch);
}

/* All buffers first: who computes which rows depends on the masks of all kinds. */
fx_status fx_attention_fill(const fx_attention_setup *setup, const fx_attention_batch *batch,
                            void *const *memory, void *scratch) {
  const void *buffer[FX_ATTENTION_MAX_KINDS][FX_EX_MAX_BUFFERS];
  const void *const *buffers[FX_ATTENTION_MAX_KINDS];
  for (int32_t i = 0; i < setup->num_kinds; i++) {
    buffers[i] = buffer[i];
    FX_TRY(fill_buffers(setup, i, batch, memory, buffer[i]));
  }
  if (setup->blocks >= 0) FX_TRY(assign(setup, buffers, memory, scratch));
  for (int32_t i = 0; i < setup->num_kinds; i++)
    FX_TRY(fill_mask(setup, &setup->kind[i], buffer[i], memory, scratch));
  return FX_OK;
}

fx_status fx_attention_fill_slot(const fx_attention_setup *setup, const fx_attention_batch *batch,
                                 fx_inputs *inputs, int slot) {
  void *memory[FX_ATTENTION_MAX_FIELDS];
  char *scratch = NULL;
  for (int i = 0; i < setup->num_fields; i++) memory[i] = fx_inputs_data(inputs, slot, setup->field[i].name);
  FX_TRY(fx_alloc_aligned(&scratch, setup->scratch_bytes + FX_ALIGN));
  fx_status status = fx_attention_fill(setup, batch, memory, scratch);
  free(scratch);
  return status;
}

/* ---- does it look ahead? ---- */

/* Run lists of "visible and later than the query" are empty where no query looks ahead. */
static fx_status looks_ahead(const fx_attention_setup *setup, const fx_attention_kind *kind,
                             const fx_mask_batch *in, bool *ahead) {
  fx_ex_pool *pool = kind->flex->variant->pool;
  fx_mask_program *program = NULL;
  char *memory = NULL, *scratch = NULL;
  fx_ex later = fx_ex_binary(pool, FX_EX_LT, fx_ex_variable(pool, FX_EX_Q), fx_ex_variable(pool, FX_EX_KV));
  fx_ex both = kind->program ? fx_ex_binary(pool, FX_EX_AND, kind->flex->variant->mask, later) : later;
  FX_TRY(fx_mask_program_create(pool, both, &program));
  fx_status status = FX_OK;
  *ahead = fx_mask_program_facts(program)->form == FX_MASK_FORM_NONE;
  if (*ahead) goto destroy_program;
  fx_limits limits = fx_mask_limits_plan(program, setup->B, setup->H, setup->T);
  fx_runs runs = fx_mask_runs_plan(program, setup->B, setup->H, setup->T, setup->T, setup->tile[0][0],
                                   setup->tile[0][1], 0);
  size_t limits_bytes =
      fx_mask_program_facts(program)->form == FX_MASK_FORM_LIMITS ? fx_limits_bytes(&limits) : 0;
  size_t scratch_bytes =
      limits_bytes ? fx_mask_limits_scratch(program) : fx_mask_runs_scratch(program, &runs);
  FX_TRY_GOTO(fx_alloc_aligned(&memory, limits_bytes + fx_runs_bytes(&runs)), destroy_program);
  FX_TRY_GOTO(fx_alloc_aligned(&scratch, scratch_bytes + FX_ALIGN), destroy_program);
  if (limits_bytes) {
    fx_limits_bind(&limits, memory);
    FX_TRY_GOTO(fx_mask_limits_build(program, in, &limits, scratch), destroy_program);
  }
  fx_runs_bind(&runs, memory + limits_bytes);
  FX_TRY_GOTO(fx_mask_runs_build(program, in, limits_bytes ? &limits : NULL, &runs, scratch),
              destroy_program);
  fx_runs_totals totals = fx_runs_count(&runs);
  *ahead = totals.full + totals.partial > 0;
destroy_program:
  free(scratch);
  free(memory);
  fx_mask_program_destroy(program);
  return status;
}

fx_status fx_attention_is_causal(const fx_attention_setup *setup, const fx_attention_batch *batch,
                                 bool *causal) {
  *causal = true;
  for (int32_t k = 0; k < setup->num_kinds && *causal; k++) {
    const fx_attention_kind *kind = &setup->kind[k];
    const void *buffer[FX_EX_MAX_BUFFERS] = {NULL};
    int32_t *blob = NULL;
    bool ahead = false;
    FX_TRY(fx_calloc(&blob, (size_t)fx_flex_blob_words(kind->flex, setup->B) + 1, sizeof *blob));
    for (int32_t i = 0; i < kind->flex->num_inputs; i++) {
      int32_t at = kind->flex->input[i].buffer, *out = blob + fx_flex_blob_offset(kind->flex, i, setup->B);
      fill_input(setup, batch, fx_ex_buffer_at(kind->flex->variant->pool, at)->name, out);
      buffer[at] = out;
    }
    fx_mask_batch in = {.B = setup->B, .buffer = buffer, .uniform = kind->flex->uniform};
    fx_status status = looks_ahead(setup, kind, &in, &ahead);
    free(blob);
    FX_TRY(status);
    *causal = !ahead;
  }
  return FX_OK;
}
